"""Requests over sessions: results, errors and streams, and requests that are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch.errors import ToolError
from dispatch.messaging.endpoint import WRITABLE_BYTES
from dispatch.messaging.wire import Refusal
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import START, advance, idle, now
from tests.helpers.dispatcher_and_service import BROKER, Service, serving
from tests.helpers.session_caller import calling
from tests.helpers.waiting_tool import Gate, count


async def test_a_request_is_answered_within_the_turn_that_it_arrives_in() -> None:
    service = Service(lambda arguments: f"hello {arguments['name']}")
    async with serving(service) as server, calling(server) as caller:
        assert await caller.send({"name": "Ada"}, user="ada").text() == "hello Ada"
        assert now() == START
        assert service.requests == [({}, {"name": "Ada"}, "ada")]
        assert (server.requests, server.running, server.malformed) == (1, 0, 0)


async def test_many_requests_are_answered_each_with_its_own_result() -> None:
    async with serving(lambda arguments: arguments["n"] * 2) as server, calling(server) as caller:
        sent = [caller.send({"n": n}) for n in range(300)]
        assert [await each.text() for each in sent] == [str(2 * n) for n in range(300)]
        await advance(1)
        assert all(session.is_at_rest for session in server._sessions.table.sessions.values())  # type: ignore[union-attr]
        assert server._sessions._requests == {}  # type: ignore[union-attr]


async def test_a_result_beyond_the_brokers_message_arrives_whole() -> None:
    async with serving(lambda arguments: "ü" * arguments["n"]) as server, calling(server) as caller:
        assert await caller.send({"n": 6_000_000}).text() == "ü" * 6_000_000


async def test_a_request_beyond_the_brokers_message_arrives_whole_and_its_bytes_are_released() -> None:
    async with serving(lambda arguments: len(arguments["text"])) as server, calling(server) as caller:
        for _ in range(4):  # together more than the caller may send before any is released
            assert await caller.send({"text": "x" * 7_000_000}).text() == "7000000"
        [session] = server._sessions.table.sessions.values()  # type: ignore[union-attr]
        assert session._held == 0


async def test_a_result_above_the_limit_is_an_error_that_names_both_sizes() -> None:
    async with serving(lambda _: "x" * 1_001, max_payload_bytes=1_000) as server, calling(server) as caller:
        type, message = await caller.send().error()
        assert type == "result-too-large"
        assert "1,001 bytes, the limit is 1,000" in message


async def test_half_a_surrogate_pair_is_an_error() -> None:
    async with serving(lambda _: "\ud800") as server, calling(server) as caller:
        assert (await caller.send().error())[0] == "invalid-result"


async def test_an_error_of_the_tool_has_its_type_and_its_message() -> None:
    def work(_: Any) -> None:
        raise ToolError("sold-out", "nothing is for sale")

    async with serving(work) as server, calling(server) as caller:
        assert await caller.send().error() == ("sold-out", "nothing is for sale")


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b'{"arguments": "SECRET"}'])
async def test_an_unreadable_request_is_refused(payload: bytes) -> None:
    async with serving(lambda _: "done") as server, calling(server) as caller:
        refusal = await caller.send(payload=payload).refusal()
        assert refusal.reason == Refusal.INVALID_REQUEST
        assert "SECRET" not in refusal.message
        assert server.refused[Refusal.INVALID_REQUEST] == 1


# -- streams --------------------------------------------------------------------------------------------------------


async def test_a_stream_arrives_chunk_by_chunk_with_an_end() -> None:
    async with serving(lambda _: count(3)) as server, calling(server) as caller:
        sent = caller.send()
        assert await sent.text() == "012"
        assert sent.chunks_received == ["0", "1", "2"]


async def test_an_empty_stream_is_an_empty_result() -> None:
    async with serving(lambda _: count(0)) as server, calling(server) as caller:
        assert await caller.send().text() == ""


async def test_an_error_ends_a_stream_after_its_chunks() -> None:
    async def broken() -> AsyncIterator[str]:
        yield "one"
        raise ToolError("broken", "no more")

    async with serving(lambda _: broken()) as server, calling(server) as caller:
        sent = caller.send()
        assert await sent.error() == ("broken", "no more")
        assert sent.chunks_received == ["one"]


async def test_a_tool_waits_while_many_bytes_of_its_stream_are_queued() -> None:
    produced = 0

    async def long() -> AsyncIterator[str]:
        nonlocal produced
        for _ in range(100):
            produced += 1
            yield "x" * 50_000

    transport = MemoryTransport(BROKER)
    async with serving(lambda _: long()) as server, calling(server, transport=transport) as caller:
        sent = caller.send()
        most = 0
        [session] = server._sessions.table.sessions.values()  # type: ignore[union-attr]
        while not sent.final.done():
            most = max(most, session.queued_bytes)
            await asyncio.sleep(0)
        assert len(await sent.text()) == 100 * 50_000
        assert produced == 100
        assert most <= WRITABLE_BYTES + 50_000


async def test_a_stream_keeps_its_chunks_whatever_their_size() -> None:
    chunks = ["small", "x" * 200_000, "", "small again", "y" * 3_000_000]

    async def mixed() -> AsyncIterator[str]:
        for chunk in chunks:
            yield chunk

    async with serving(lambda _: mixed()) as server, calling(server) as caller:
        sent = caller.send()
        assert await sent.text() == "".join(chunks)
        assert sent.chunks_received == chunks


# -- cancellation ---------------------------------------------------------------------------------------------------


async def test_a_cancelled_request_stops_and_makes_room() -> None:
    gate = Gate()
    async with serving(gate, concurrency=1) as server, calling(server) as caller:
        running, queued = caller.send({"n": 1}), caller.send({"n": 2})
        await idle()
        assert caller.cancel(queued), "it may have run, as far as the caller knows"
        assert caller.cancel(running)
        await idle()
        assert (gate.begun, gate.cancelled, server.cancelled, server.running) == ([1], 1, 2, 0)
        gate.open.set()
        assert await caller.send({"n": 3}).text() == "done 3"


async def test_the_end_of_a_session_stops_its_requests() -> None:
    gate = Gate()
    async with serving(gate) as server:
        async with calling(server) as caller:
            caller.send({"n": 1})
            await idle()
            assert server.running == 1
        await idle()
        assert (gate.cancelled, server.running) == (1, 0)
        assert server._sessions.table.sessions == {}  # type: ignore[union-attr]
