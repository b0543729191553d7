"""TrustGraph's client, ours, and theirs wrapped, each with TrustGraph's service and with ours: all arrives as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dispatch
from tests.integration.interop.conftest import Cell
from tests.integration.interop.peers import TIMEOUT_S, call_again
from tests.integration.interop.tool_behaviour import BIG, MEBIBYTE, PREFIX, RESULTS, UNICODE, digest

pytestmark = pytest.mark.pulsar


async def test_plain(cell: Cell) -> None:
    async with cell() as client:
        assert await client.call(PREFIX, {"join": "who bought kettles?"}, timeout=TIMEOUT_S) == (
            "customers|who bought kettles?"
        )


@pytest.mark.parametrize("nothing", [{}, None], ids=["empty", "None"])
async def test_no_config_and_no_arguments(cell: Cell, nothing: Any) -> None:
    async with cell() as client:
        text = await client.call(nothing, nothing, timeout=TIMEOUT_S)
        assert json.loads(text) == {"config": {}, "arguments": {}}


async def test_values_keep_their_types(cell: Cell) -> None:
    config = {"limit": 3, "ratio": 0.1, "strict": True, "nothing": None, "nested": {"list": [1, "2", [3]]}}
    arguments = {"number": 2**53 + 1, "negative": -0.5, "empty": [], "no": False, "ключ": "値", "": "no name"}

    async with cell() as client:
        text = await client.call(config, arguments, timeout=TIMEOUT_S)
        assert json.loads(text) == {"config": config, "arguments": arguments}


async def test_results_of_every_kind(cell: Cell) -> None:
    async with cell() as client:
        for name, result in RESULTS.items():
            text = await client.call({}, {"give": name}, timeout=TIMEOUT_S)
            if isinstance(result, str):
                assert text == result, name
            else:
                assert json.loads(text) == result, name


async def test_an_ascii_dict_is_the_same_text_from_both_services(cell: Cell) -> None:
    async with cell() as client:
        assert await client.call({}, {"give": "dict"}, timeout=TIMEOUT_S) == json.dumps(RESULTS["dict"])


async def test_unicode_in_config_arguments_and_result(cell: Cell) -> None:
    async with cell() as client:
        for name, text in UNICODE.items():
            assert await client.call({"prefix": text}, {"join": text}, timeout=TIMEOUT_S) == f"{text}|{text}", name


@pytest.mark.parametrize("kind", BIG)
async def test_arguments_of_a_mebibyte(cell: Cell, kind: str) -> None:
    assert len(BIG[kind].encode()) == MEBIBYTE

    async with cell() as client:
        assert await call_again(client, {"measure": BIG[kind]}) == digest(BIG[kind])


@pytest.mark.parametrize("kind", BIG)
async def test_a_result_of_a_mebibyte(cell: Cell, kind: str) -> None:
    async with cell() as client:
        assert digest(await call_again(client, {"make": kind})) == digest(BIG[kind])


async def test_a_mebibyte_both_ways(cell: Cell) -> None:
    async with cell() as client:
        text = await call_again(client, {"echo": BIG["ASCII"]})
        assert digest(text) == digest(BIG["ASCII"])


async def test_the_connection_outlives_an_error(cell: Cell) -> None:
    async with cell() as client:
        for arguments in ({"refuse": "no"}, {"unwritable": True}):
            with pytest.raises(RuntimeError):
                await client.call({}, arguments, timeout=TIMEOUT_S)
            assert await client.call(PREFIX, {"join": "again"}, timeout=TIMEOUT_S) == "customers|again"


async def test_an_error_is_the_services_own(cell: Cell, client_kind: str, service_kind: str) -> None:
    """The message always arrives. The type arrives where the wire has it: TrustGraph's service sends one type for all, its
    client keeps none."""
    message = "no customer 42: «مجهول» 😀"
    on_the_wire = {"theirs": "tool-service-error", "ours": "Refused"}[service_kind]

    async with cell() as client:
        with pytest.raises(RuntimeError) as caught:
            await client.call({}, {"refuse": message}, timeout=TIMEOUT_S)
        assert str(caught.value) == message
        if client_kind == "theirs":
            assert type(caught.value) is RuntimeError
        else:
            assert isinstance(caught.value, dispatch.ToolError)
            assert caught.value.type == (on_the_wire if client_kind == "ours" else "tool-error")
            assert not caught.value.retryable


async def test_a_result_that_cannot_be_written_is_an_error_at_once(cell: Cell) -> None:
    async with cell() as client:
        with pytest.raises(RuntimeError, match=r"object\b.*JSON"):
            await client.call({}, {"unwritable": True}, timeout=TIMEOUT_S)
