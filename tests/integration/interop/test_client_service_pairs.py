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


async def test_config_arguments_and_results_arrive_as_they_were(cell: Cell) -> None:
    config = {"limit": 3, "ratio": 0.1, "strict": True, "nothing": None, "nested": {"list": [1, "2", [3]]}}
    arguments = {"number": 2**53 + 1, "negative": -0.5, "empty": [], "no": False, "ключ": "値", "": "no name"}
    async with cell() as client:

        async def call(config: Any, arguments: Any) -> str:
            return await client.call(config, arguments, timeout=TIMEOUT_S)

        assert await call(PREFIX, {"join": "who bought kettles?"}) == "customers|who bought kettles?"
        for nothing in ({}, None):
            assert json.loads(await call(nothing, nothing)) == {"config": {}, "arguments": {}}
        assert json.loads(await call(config, arguments)) == {"config": config, "arguments": arguments}
        for name, result in RESULTS.items():
            text = await call({}, {"give": name})
            assert (text if isinstance(result, str) else json.loads(text)) == result, name
        assert await call({}, {"give": "dict"}) == json.dumps(RESULTS["dict"]), "the same text from both services"
        for name, text in UNICODE.items():
            assert await call({"prefix": text}, {"join": text}) == f"{text}|{text}", name


async def test_a_mebibyte_arrives_as_it_was(cell: Cell) -> None:
    async with cell() as client:
        for kind, text in BIG.items():
            assert len(text.encode()) == MEBIBYTE
            assert await call_again(client, {"measure": text}) == digest(text)
            assert digest(await call_again(client, {"make": kind})) == digest(text)
        assert digest(await call_again(client, {"echo": BIG["ASCII"]})) == digest(BIG["ASCII"])


async def test_an_error_is_the_services_own_and_the_connection_outlives_it(
    cell: Cell, client_kind: str, service_kind: str
) -> None:
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
        assert await client.call(PREFIX, {"join": "again"}, timeout=TIMEOUT_S) == "customers|again"
        with pytest.raises(RuntimeError, match=r"(?=.*JSON)(?=.*\bobject\b)"):
            await client.call({}, {"unwritable": True}, timeout=TIMEOUT_S)
        assert await client.call(PREFIX, {"join": "again"}, timeout=TIMEOUT_S) == "customers|again"
