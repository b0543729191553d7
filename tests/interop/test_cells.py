"""{TrustGraph's client, ours, theirs wrapped} × {TrustGraph's service, ours}: whatever can be said arrives as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import dispatch

from .behaviour import BIG, MEBIBYTE, PREFIX, RESULTS, UNICODE, digest
from .conftest import Cell
from .peers import TIMEOUT_S

pytestmark = pytest.mark.pulsar

Run = Callable[[Any], Any]


def test_plain(cell: Cell, run: Run) -> None:
    async def test() -> None:
        async with cell() as client:
            assert await client.call(PREFIX, {"join": "who bought kettles?"}, timeout=TIMEOUT_S) == (
                "customers|who bought kettles?"
            )

    run(test())


@pytest.mark.parametrize("nothing", [{}, None], ids=["empty", "None"])
def test_no_config_and_no_arguments(cell: Cell, run: Run, nothing: Any) -> None:
    async def test() -> None:
        async with cell() as client:
            text = await client.call(nothing, nothing, timeout=TIMEOUT_S)
            assert json.loads(text) == {"config": {}, "arguments": {}}

    run(test())


def test_values_keep_their_types(cell: Cell, run: Run) -> None:
    config = {"limit": 3, "ratio": 0.1, "strict": True, "nothing": None, "nested": {"list": [1, "2", [3]]}}
    arguments = {"number": 2**53 + 1, "negative": -0.5, "empty": [], "no": False, "ключ": "値", "": "no name"}

    async def test() -> None:
        async with cell() as client:
            text = await client.call(config, arguments, timeout=TIMEOUT_S)
            assert json.loads(text) == {"config": config, "arguments": arguments}

    run(test())


def test_results_of_every_kind(cell: Cell, run: Run) -> None:
    async def test() -> None:
        async with cell() as client:
            for name, result in RESULTS.items():
                text = await client.call({}, {"give": name}, timeout=TIMEOUT_S)
                if isinstance(result, str):
                    assert text == result, name
                else:
                    assert json.loads(text) == result, name

    run(test())


def test_an_ascii_dict_is_the_same_text_from_both_services(cell: Cell, run: Run) -> None:
    async def test() -> None:
        async with cell() as client:
            assert await client.call({}, {"give": "dict"}, timeout=TIMEOUT_S) == json.dumps(RESULTS["dict"])

    run(test())


def test_unicode_in_config_arguments_and_result(cell: Cell, run: Run) -> None:
    async def test() -> None:
        async with cell() as client:
            for name, text in UNICODE.items():
                assert await client.call({"prefix": text}, {"join": text}, timeout=TIMEOUT_S) == f"{text}|{text}", name

    run(test())


@pytest.mark.parametrize("kind", BIG)
def test_arguments_of_a_mebibyte(cell: Cell, run: Run, kind: str) -> None:
    assert len(BIG[kind].encode()) == MEBIBYTE

    async def test() -> None:
        async with cell() as client:
            assert await client.call({}, {"measure": BIG[kind]}, timeout=TIMEOUT_S) == digest(BIG[kind])

    run(test())


@pytest.mark.parametrize("kind", BIG)
def test_a_result_of_a_mebibyte(cell: Cell, run: Run, kind: str) -> None:
    async def test() -> None:
        async with cell() as client:
            assert digest(await client.call({}, {"make": kind}, timeout=TIMEOUT_S)) == digest(BIG[kind])

    run(test())


def test_a_mebibyte_both_ways(cell: Cell, run: Run) -> None:
    async def test() -> None:
        async with cell() as client:
            text = await client.call({"prefix": "big"}, {"join": BIG["ASCII"]}, timeout=TIMEOUT_S)
            assert digest(text) == digest(f"big|{BIG['ASCII']}")

    run(test())


def test_the_connection_outlives_an_error(cell: Cell, run: Run) -> None:
    async def test() -> None:
        async with cell() as client:
            for arguments in ({"refuse": "no"}, {"unwritable": True}):
                with pytest.raises(RuntimeError):
                    await client.call({}, arguments, timeout=TIMEOUT_S)
                assert await client.call(PREFIX, {"join": "again"}, timeout=TIMEOUT_S) == "customers|again"

    run(test())


def test_an_error_is_the_services_own(
    cell: Cell, run: Run, client_kind: str, service_kind: str
) -> None:
    """The message always arrives. The type arrives where the wire has it: TrustGraph's service sends one type for all, its
    client keeps none."""
    message = "no customer 42: «مجهول» 😀"
    on_the_wire = {"theirs": "tool-service-error", "ours": "Refused"}[service_kind]

    async def test() -> None:
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

    run(test())


def test_a_result_that_cannot_be_written_is_an_error_at_once(cell: Cell, run: Run) -> None:
    async def test() -> None:
        async with cell() as client:
            with pytest.raises(RuntimeError, match=r"set\b.*JSON"):
                await client.call({}, {"unwritable": True}, timeout=TIMEOUT_S)

    run(test())
