"""TrustGraph's face over our path: both dialects, and every call that is neither."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import RejectedError, ToolServiceClient
from dispatch.errors import CallTimeoutError, InvalidArgumentsError, ToolError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.trustgraph.client import DEFAULT_TIMEOUT_S
from tests.helpers.clock import START, idle
from tests.helpers.dispatcher_and_service import Peer, Service, dispatching, stand

CONFIG, ARGUMENTS = {"style": "pun"}, {"topic": "cats"}


def client_of(dispatcher: Any) -> ToolServiceClient:
    return ToolServiceClient(dispatcher, service="lab")


@pytest.mark.parametrize(
    ("values", "named", "expected"),
    [
        ((CONFIG, ARGUMENTS), {}, (CONFIG, ARGUMENTS, "")),
        ((CONFIG, ARGUMENTS), {"timeout": 5}, (CONFIG, ARGUMENTS, "")),
        ((CONFIG, ARGUMENTS, 5), {}, (CONFIG, ARGUMENTS, "")),
        (("alice", CONFIG, ARGUMENTS), {}, (CONFIG, ARGUMENTS, "alice")),
        (("alice", CONFIG, ARGUMENTS, 5), {}, (CONFIG, ARGUMENTS, "alice")),
        (("alice", CONFIG, ARGUMENTS), {"timeout": 5}, (CONFIG, ARGUMENTS, "alice")),
        (("", CONFIG, ARGUMENTS), {}, (CONFIG, ARGUMENTS, "")),
        ((), {"config": CONFIG, "arguments": ARGUMENTS}, (CONFIG, ARGUMENTS, "")),
        ((), {"user": "alice", "config": CONFIG, "arguments": ARGUMENTS}, (CONFIG, ARGUMENTS, "alice")),
        ((CONFIG,), {"arguments": ARGUMENTS, "user": "alice"}, (CONFIG, ARGUMENTS, "alice")),
        (("alice",), {"config": CONFIG, "arguments": ARGUMENTS}, (CONFIG, ARGUMENTS, "alice")),
        ((None, None), {}, ({}, {}, "")),
        (({}, {}), {}, ({}, {}, "")),
    ],
)
async def test_both_dialects_by_position_and_by_name(
    values: tuple[Any, ...], named: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    service = Service(lambda _: "ha")
    async with stand(service) as (dispatcher, _):
        client = client_of(dispatcher)
        assert await client.call(*values, **named) == "ha"
        got: list[str] = []
        streaming = {key: value for key, value in named.items() if key != "timeout"}
        leading = values[:-1] if values and values[-1] == 5 else values
        assert await client.call_streaming(*leading, **streaming, callback=got.append) == "ha"
        assert got == ["ha"]
    assert service.requests == [expected] * 2


@pytest.mark.parametrize(
    ("values", "named", "problem"),
    [
        ((), {}, "'config' is missing"),
        ((CONFIG,), {}, "'arguments' is missing"),
        (("alice", CONFIG), {}, "'arguments' is missing"),
        ((CONFIG, ARGUMENTS, 5, 6), {}, "at most 3 values"),
        ((CONFIG, ARGUMENTS), {"config": {}}, "'config' is given twice"),
        (("alice", CONFIG, ARGUMENTS), {"user": "bob"}, "'user' is given twice"),
        ((CONFIG, ARGUMENTS), {"tiemout": 5}, "'tiemout' is not known"),
        ((CONFIG, ARGUMENTS), {"user": 5}, "user must be a text, not int"),
    ],
)
async def test_a_call_in_neither_dialect_is_a_clear_type_error(
    values: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        with pytest.raises(TypeError, match=problem):
            await client_of(dispatcher).call(*values, **named)
        assert peer.arrived.empty()


async def test_a_stream_needs_its_callback() -> None:
    async with dispatching() as dispatcher:
        with pytest.raises(TypeError, match=r"'callback' is missing; write \(\[user,\] config, arguments, callback"):
            await client_of(dispatcher).call_streaming(CONFIG, ARGUMENTS)


async def test_a_service_must_be_there() -> None:
    async with dispatching() as dispatcher:
        with pytest.raises(RejectedError, match="Call 'lab' if you meant that"):
            ToolServiceClient(dispatcher, service="lap")


@pytest.mark.usefixtures("strangers")
async def test_the_default_limit_is_trustgraphs() -> None:
    assert DEFAULT_TIMEOUT_S == 600.0
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(client_of(dispatcher).call(CONFIG, ARGUMENTS))
        message = await peer.arrived.get()
        assert int(message.properties()["remaining-ms"]) in (600_000, 599_999)
        assert json.loads(message.data()) == {"user": "", "config": '{"style":"pun"}', "arguments": '{"topic":"cats"}'}
        with pytest.raises(CallTimeoutError, match=r"No reply arrived within 600 s, and no instance .*; tool 'lab'"):
            await call


@pytest.mark.parametrize(("values", "seconds"), [((), 4), ((3,), 3)])
async def test_a_limit_is_kept_whichever_way_it_is_given(values: tuple[Any, ...], seconds: float) -> None:
    async with Peer.as_service(), dispatching() as dispatcher:
        with pytest.raises(TimeoutError):  # as code written for TrustGraph's client may catch it
            await client_of(dispatcher).call(CONFIG, ARGUMENTS, *values, **({} if values else {"timeout": 4}))
        assert asyncio.get_running_loop().time() == pytest.approx(START + seconds, abs=0.01)


async def test_a_tools_error_is_the_runtime_error_trustgraph_raises_and_has_its_type() -> None:
    def work(_: Any) -> None:
        raise KeyError("topic")

    async with stand(work) as (dispatcher, _):
        client = client_of(dispatcher)
        with pytest.raises(RuntimeError, match=r"^KeyError: 'topic'$") as caught:
            await client.call(CONFIG, ARGUMENTS)
        assert isinstance(caught.value, ToolError)
        assert caught.value.type == "KeyError"
        with pytest.raises(RuntimeError, match=r"^KeyError: 'topic'$"):
            await client.call_streaming(CONFIG, ARGUMENTS, print)


@pytest.mark.parametrize(
    ("config", "arguments", "type"),
    [
        ([1], ARGUMENTS, "invalid-config"),
        ({"a": object()}, ARGUMENTS, "invalid-config"),
        (CONFIG, ["cats"], "invalid-arguments"),
        (CONFIG, {"a": object()}, "invalid-arguments"),
        (CONFIG, {"a": "x" * MAX_MESSAGE_BYTES}, "request-too-large"),
    ],
)
async def test_values_that_cannot_travel_are_told_before_anything_is_sent(
    config: Any, arguments: Any, type: str
) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        for call in (
            client_of(dispatcher).call(config, arguments),
            client_of(dispatcher).call_streaming(config, arguments, print),
        ):
            with pytest.raises(InvalidArgumentsError) as caught:
                await call
            assert caught.value.type == type
        assert peer.arrived.empty()


# -- streams --------------------------------------------------------------------------------------------------------


def story(_: Any) -> AsyncIterator[str]:
    async def stream() -> AsyncIterator[str]:
        for index in range(4):
            await asyncio.sleep(1)
            yield f"<{index}>"

    return stream()


@pytest.mark.parametrize("awaited", [True, False])
async def test_each_chunk_is_told_as_it_comes_to_either_kind_of_callback(awaited: bool) -> None:
    seen: list[tuple[int, str]] = []

    def note(chunk: str) -> None:
        seen.append((round(asyncio.get_running_loop().time() - START), chunk))

    async def note_later(chunk: str) -> None:
        await asyncio.sleep(0)
        note(chunk)

    async with stand(story) as (dispatcher, _):
        text = await client_of(dispatcher).call_streaming("alice", CONFIG, ARGUMENTS, note_later if awaited else note)
    assert text == "<0><1><2><3>"
    assert seen == [(second + 1, f"<{second}>") for second in range(4)]


async def test_a_callback_that_fails_ends_the_stream_and_leaves_nothing() -> None:
    def fails(chunk: str) -> None:
        raise ZeroDivisionError(chunk)

    async with stand(story) as (dispatcher, _):
        with pytest.raises(ZeroDivisionError, match="<0>") as caught:
            await client_of(dispatcher).call_streaming(CONFIG, ARGUMENTS, fails)
        assert dispatcher.pending_requests == 0, caught


async def test_a_streams_limit_is_one_for_everything() -> None:
    got: list[str] = []
    async with stand(story) as (dispatcher, _):
        with pytest.raises(CallTimeoutError):
            await client_of(dispatcher).call_streaming(CONFIG, ARGUMENTS, got.append, timeout=2.5)
        assert got == ["<0>", "<1>"]
        assert asyncio.get_running_loop().time() == pytest.approx(START + 2.5, abs=0.01)
        await idle()
        assert dispatcher.pending_requests == 0


async def test_a_silence_may_last_as_long_as_the_limit() -> None:
    async def slow(_: Any) -> str:
        await asyncio.sleep(500)
        return "done"

    async with stand(slow) as (dispatcher, _):
        assert await client_of(dispatcher).call_streaming(CONFIG, ARGUMENTS, print) == "done"
