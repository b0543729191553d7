"""Sessions of an instance that drains or closes.
Idempotency keys of requests over sessions: one execution, and its stored reply for each further request.
The identity of a session's ends: foreign inboxes, restarted instances, and two instances of one name.
Limits of an instance as its callers see them: concurrency, load, and deadlines.
Requests over sessions: results, errors and streams, and requests that are cancelled.
After 4,096 dispatchers within ten minutes a service refused every new one as `overloaded`, however idle it was. The
session that was idle longest is evicted instead, a closing dispatcher ends its sessions, and nothing that ran for them runs
again.
10,000 requests with different reply topics stopped a service for 25 s: each was opened at once, and each one that was
closed for another copied the table of all. Openings are bounded, per second and in all, and cost the same however many there
are; what is beyond the bound is answered on the response topic, and nobody waits for it.
Mistakes of a new user ended in an AttributeError of the inside, or in a text that named no fix. Each says now what is
wrong and what to write instead.
A stream whose reader was 1,024 chunks behind its tool was cut, and an abandoned one took the tool's permits for 300 s.

The tool waits for its reader instead, within bounds of bytes; a reader that stops costs its own stream only, for the idle
limit.
A circuit breaker never closed for a tool whose streams last longer than a probe's lease of 60 s: each probe was lost.

A stream is a success for the breakers as soon as its first chunk is there; what becomes of it later concerns its instance.
One of two instances accepted calls and did not answer them: the 64 calls there that must not be repeated held all places
of the tool's bulkhead, and 17 % of the calls were refused as ``bulkhead-full`` while the other instance was idle.

Calls at an ejected instance hold no places. An instance that has many more old calls than another one is ejected when calls
must wait, though none of its calls has failed yet: those that must not be repeated end after their whole timeout only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dispatch
from dispatch import CallResult, CallTimeoutError, Dispatcher, RejectedError, ToolServer
from dispatch.calls.local import MAX_BYTES_AHEAD
from dispatch.catalog import check_items
from dispatch.catalog.items import Item
from dispatch.errors import Outcome, ToolError, TransportError
from dispatch.messaging.endpoint import WRITABLE_BYTES
from dispatch.messaging.wire import MAX_PROPERTY_BYTES, Refusal, derive_key, instance_topic, reply_topic
from dispatch.policy import Breaker, Bulkhead, Policy
from dispatch.protocol.events import Failure
from dispatch.protocol.frames import CHUNK_BYTES
from dispatch.resilience.breaker import BreakerRules, State
from dispatch.serving import plain
from dispatch.serving.plain import MAX_REPLY_TOPICS, OPENINGS_AT_ONCE, OPENINGS_PER_S, TOPICS_OF_ONE
from dispatch.serving.replies import KEY_AGE_S
from dispatch.testing import EmbeddedBroker
from dispatch.toolkit import McpConfig, McpService, McpTransportConfig, McpTransportType, Toolkit
from dispatch.toolkit.graph import ToolGroupType
from dispatch.transports import Message, Publisher
from dispatch.transports.memory import MemoryTransport
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE
from tests.helpers.clock import START, advance, idle, now, start_task
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    UNGUARDED,
    Gate,
    Peer,
    Service,
    catalog,
    dispatching,
    read,
    serving,
    stand,
)
from tests.helpers.protocol_settings import override_settings
from tests.helpers.reply_broker import ANSWER, OWN, asked, routing
from tests.helpers.session import KEY
from tests.helpers.session_caller import calling
from tests.unit.cli.conftest import Run, as_if_alone, run, write_catalog


async def count(most: int, size: int = 1) -> AsyncIterator[str]:
    for number in range(most):
        yield str(number % 10) * size


# -- drain ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_draining_tells_callers_at_once_and_finishes_what_runs(gate: Gate) -> None:
    async with serving(gate, concurrency=1) as server, calling(server) as caller:
        running, queued = caller.send({"n": 1}), caller.send({"n": 2})
        await idle()
        drain = await start_task(server.drain())
        assert caller.is_draining
        assert (await queued.refusal()).reason == Refusal.DRAINING
        assert (await caller.send({"n": 3}).refusal()).reason == Refusal.DRAINING
        assert now() == START
        gate.open.set()
        assert await running.text() == "done 1"
        await drain
        assert gate.begun == [1]


async def test_refusals_of_the_session_itself_are_counted(gate: Gate) -> None:
    async with serving(gate, drain_timeout=30, max_payload_bytes=100_000) as server, calling(server) as caller:
        await advance(0.1)
        expired = caller.send(run_for=0.0)
        assert (await expired.refusal()).reason == Refusal.EXPIRED
        too_large = caller.send(payload=b"x" * 100_001)
        assert (await too_large.refusal()).reason == Refusal.TOO_LARGE
        running = caller.send()
        await idle()
        drain = await start_task(server.drain())
        late = caller.send()
        assert (await late.refusal()).reason == Refusal.DRAINING
        gate.open.set()
        await running.text()
        await drain
        counted = {reason: count for reason, count in server.refused.items() if count}
        assert counted == {Refusal.EXPIRED: 1, Refusal.TOO_LARGE: 1, Refusal.DRAINING: 1}
        assert server.requests == 4


async def test_a_draining_instance_accepts_no_session(gate: Gate) -> None:
    async with serving(gate) as server, calling(server) as first:
        running = first.send({"n": 1})
        await idle()
        drain = asyncio.create_task(server.drain())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), calling(server, secret="of another dispatcher"):
                pass
        assert not drain.done()
        gate.open.set()
        assert await running.text() == "done 1"
        await drain


# -- close ----------------------------------------------------------------------------------------------------------
async def test_closing_cancels_what_runs_and_tells_its_caller(gate: Gate) -> None:
    async with serving(gate) as server, calling(server) as caller:
        sent = caller.send({"n": 1})
        await idle()
        await server.close()
        type, message = await sent.error()
        assert type == "cancelled"
        assert "may have been executed" in message


async def test_closing_ends_the_sessions() -> None:
    async with serving(lambda _: "done") as server, calling(server) as caller:
        await caller.send().text()
        await server.close()
        await idle()
        assert caller.session.is_closed


async def test_a_key_runs_once_and_every_request_with_it_gets_the_reply(gate: Gate) -> None:
    async with serving(gate) as server, calling(server) as caller:
        sent = [caller.send({"n": n}, key="order") for n in range(3)]
        await idle()
        gate.open.set()
        assert [await each.text() for each in sent] == ["done 0"] * 3
        assert await caller.send({"n": 4}, key="order").text() == "done 0"
        assert gate.begun == [0]


async def test_a_keyed_request_runs_on_after_its_deadline_and_after_its_caller(gate: Gate) -> None:
    async with serving(gate) as server:
        async with calling(server) as caller:
            sent = caller.send({"n": 1}, key="order", seconds=60, run_for=2)
            refusal = await sent.refusal()
            assert refusal.reason == Refusal.STOPPED
            assert "The tool runs on" in refusal.message
        await idle()
        assert (gate.cancelled, server.running) == (0, 1)
        async with calling(server) as caller:
            again = caller.send({"n": 2}, key="order")
            await idle()
            gate.open.set()
            assert await again.text() == "done 1"
        assert gate.begun == [1]


async def test_a_keyed_request_ends_when_its_key_is_too_old(gate: Gate) -> None:
    async with serving(gate) as server, calling(server) as caller:
        await caller.send(key="order", seconds=60, run_for=2).refusal()
        await advance(KEY_AGE_S - 3)
        assert server.running == 1
        await advance(3)
        assert (gate.cancelled, server.running) == (1, 0)


async def test_a_stored_stream_and_a_stored_error_are_sent_again() -> None:
    runs = 0

    def work(arguments: dict[str, Any]) -> Any:
        nonlocal runs
        runs += 1
        if arguments.get("fail"):
            raise ToolError("broken", "no more")
        return count(3)

    async with serving(work) as server, calling(server) as caller:
        for _ in range(2):
            sent = caller.send(key="stream")
            assert (await sent.text(), sent.chunks_received) == ("012", ["0", "1", "2"])
            assert await caller.send({"fail": True}, key="error").error() == ("broken", "no more")
        assert runs == 2


async def test_an_oversized_key_is_refused() -> None:
    async with serving(lambda _: "done") as server, calling(server) as caller:
        refusal = await caller.send(key="x" * (MAX_PROPERTY_BYTES + 1)).refusal()
        assert refusal.reason == Refusal.INVALID_REQUEST
        assert await caller.send(key="x" * MAX_PROPERTY_BYTES).text() == "done"


async def test_an_inbox_of_another_dispatcher_gets_no_session() -> None:
    async with serving(lambda _: "done") as server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), calling(server, secret="not the owner's", key=KEY):
                pass
        assert server._sessions.table.refused_hellos > 0  # type: ignore[union-attr]
        assert server.malformed == server._sessions.table.refused_hellos  # type: ignore[union-attr]


async def test_a_restarted_instance_runs_no_request_of_its_former_session(gate: Gate) -> None:
    async with serving(gate, instance="one") as server:
        transport = server._transport
        assert isinstance(transport, MemoryTransport)
        async with calling(server) as caller:
            sent = caller.send({"n": 1})
            await idle()
            transport.cut()
            async with serving(gate, instance="one") as again:
                failure = await sent.failure()
                assert failure.may_have_run
                assert failure.reason in (Failure.RESTARTED, Failure.SILENT)
                assert gate.begun == [1]
                assert again.requests == 0


async def test_a_second_instance_of_the_same_name_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(lambda _: "a", instance="one") as first,
        serving(lambda _: "b", instance="one"),
        calling(first) as caller,
    ):
        for _ in range(12):
            assert await caller.send().text() in ("a", "b")
            await advance(1)
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([text for text in texts if "another instance of" in text and "is named one" in text]) == 1


async def test_a_caller_that_vanishes_after_its_handshake_is_no_conflict(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(lambda _: "a", instance="one") as server:
        transport = MemoryTransport(BROKER)
        async with calling(server, transport=transport):
            transport.cut()
        await advance(60)
        assert server._sessions.table.sessions == {}  # type: ignore[union-attr]
    assert "another instance" not in caplog.text


# -- concurrency ----------------------------------------------------------------------------------------------------
async def test_one_too_many_is_refused_with_a_time_to_come_back(gate: Gate) -> None:
    async with serving(gate, concurrency=2, max_queue=1) as server, calling(server) as caller:
        sent = [caller.send({"n": n}) for n in range(3)]
        await idle()
        assert (server.running, server.queued) == (2, 1)
        refusal = await caller.send({"n": "too many"}).refusal()
        assert (refusal.reason, refusal.retry_after) == (Refusal.OVERLOADED, 1.0)
        assert "runs 2 requests and 1 wait" in refusal.message
        gate.open.set()
        assert [await each.text() for each in sent] == ["done 0", "done 1", "done 2"]
        assert caller.session.peer_load <= 2


async def test_a_caller_learns_how_many_requests_run(gate: Gate) -> None:
    async with serving(gate) as server, calling(server) as caller:
        for _ in range(3):
            caller.send()
        await idle()
        await caller.send(payload=b"").refusal()
        assert caller.session.peer_load == 3, "the one that ends with this packet does not count"
        gate.open.set()
        await advance(0.1)
        await caller.send().text()
        assert caller.session.peer_load == 0


# -- deadlines ------------------------------------------------------------------------------------------------------
async def test_a_tool_is_stopped_at_its_callers_deadline(gate: Gate) -> None:
    async with serving(gate) as server, calling(server) as caller:
        sent = caller.send(seconds=60, run_for=2.5)
        refusal = await sent.refusal()
        assert refusal.reason == Refusal.STOPPED
        assert now() == pytest.approx(START + 2.5, abs=0.02)
        assert (gate.cancelled, server.running) == (1, 0)


async def test_one_timer_serves_the_deadlines_of_all_requests(gate: Gate) -> None:
    async with serving(gate) as server, calling(server) as caller:
        sent = [caller.send({"n": n}, seconds=60, run_for=10 - n) for n in range(8)]
        ends = []
        for each in reversed(sent):
            assert (await each.refusal()).reason == Refusal.STOPPED
            ends.append(now() - START)
        assert ends == pytest.approx([3, 4, 5, 6, 7, 8, 9, 10], abs=0.02)
        assert server.refused[Refusal.STOPPED] == 8


async def test_a_request_whose_deadline_passed_in_the_queue_is_refused_unrun(gate: Gate) -> None:
    async with serving(gate, concurrency=1) as server, calling(server) as caller:
        first = caller.send({"n": 1})
        second = caller.send({"n": 2}, seconds=60, run_for=2)
        await advance(3)
        gate.open.set()
        assert await first.text() == "done 1"
        assert (await second.refusal()).reason == Refusal.EXPIRED
        assert gate.begun == [1]


async def test_a_tool_that_swallows_its_cancellation_still_answers() -> None:
    async def stubborn(_: Any) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved"
        return "never"

    async with serving(stubborn) as server, calling(server) as caller:
        assert await caller.send(seconds=60, run_for=1).text() == "saved"
        await idle()
        assert server.running == 0


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
async def test_a_cancelled_request_stops_and_makes_room(gate: Gate) -> None:
    async with serving(gate, concurrency=1) as server, calling(server) as caller:
        running, queued = caller.send({"n": 1}), caller.send({"n": 2})
        await idle()
        assert caller.cancel(queued), "it may have run, as far as the caller knows"
        assert caller.cancel(running)
        await idle()
        assert (gate.begun, gate.cancelled, server.cancelled, server.running) == ([1], 1, 2, 0)
        gate.open.set()
        assert await caller.send({"n": 3}).text() == "done 3"


@pytest.mark.costly
async def test_the_end_of_a_session_stops_its_requests(gate: Gate) -> None:
    async with serving(gate) as server:
        async with calling(server) as caller:
            caller.send({"n": 1})
            await idle()
            assert server.running == 1
        await idle()
        assert (gate.cancelled, server.running) == (1, 0)
        assert server._sessions.table.sessions == {}  # type: ignore[union-attr]


TOOLS = catalog(work={"policy": UNGUARDED})


ROOM = 3


@contextlib.asynccontextmanager
async def small(work: Any) -> AsyncIterator[ToolServer]:
    """A service with few sessions."""
    async with serving(work) as server:
        table = server._sessions.table
        table._settings = msgspec.structs.replace(table._settings, max_sessions=ROOM)
        yield server


class Counting:
    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.runs += 1
        number = self.runs
        await asyncio.sleep(arguments.get("seconds", 0))
        return f"run {number}"


@contextlib.asynccontextmanager
async def overhearing(server: ToolServer) -> AsyncIterator[tuple[Peer, list[Message]]]:
    """What comes to the instance's inbox."""
    async with Peer.as_caller(inbox_of(server)) as peer:
        packets: list[Message] = []

        async def listen() -> None:
            while True:
                packets.append(await peer.arrived.get())

        task = asyncio.create_task(listen())
        yield peer, packets
        task.cancel()


def inbox_of(server: ToolServer) -> str:
    return instance_topic(server.request_queue, server.instance)


async def again(peer: Peer, server: ToolServer, packets: list[Message]) -> None:
    """Send late copies of all ``packets``."""
    for packet in packets:
        await peer.send(inbox_of(server), packet.data(), {})
    await idle()


async def test_more_dispatchers_than_are_remembered_are_all_served() -> None:
    work = Counting()
    async with small(work) as server, contextlib.AsyncExitStack() as stack:
        dispatchers: list[Dispatcher] = []
        for number in range(1, 3 * ROOM + 1):
            dispatchers.append(await stack.enter_async_context(dispatching(TOOLS)))
            assert await dispatchers[-1].call("work") == f"run {number}"
        for number, dispatcher in enumerate(dispatchers, 3 * ROOM + 1):
            assert await dispatcher.call("work") == f"run {number}", "one that was evicted goes on as before"
        assert server.refused[Refusal.OVERLOADED] == server.refused[Refusal.REPLY_EVICTED] == 0


async def test_dispatchers_whose_calls_run_are_not_evicted_and_no_new_one_is_refused() -> None:
    work = Counting()
    async with small(work) as server, contextlib.AsyncExitStack() as stack:
        dispatchers = [await stack.enter_async_context(dispatching(TOOLS)) for _ in range(3 * ROOM)]
        calls = [asyncio.create_task(each.call("work", {"seconds": 20})) for each in dispatchers]
        assert len(set(await asyncio.gather(*calls))) == work.runs == 3 * ROOM
        assert server.refused[Refusal.OVERLOADED] == 0


async def test_late_copies_of_an_evicted_dispatchers_packets_run_nothing() -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, packets), dispatching(TOOLS) as dispatcher:
        await dispatcher.execute("work")
        theirs = packets.copy()
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2 * ROOM):
                other = await stack.enter_async_context(dispatching(TOOLS))
                await other.call("work")
            runs, unknown = work.runs, server.malformed
            await again(peer, server, theirs)
            assert work.runs == runs
            assert server.malformed > unknown
            assert (await dispatcher.execute("work")).ok, "its new requests run"


async def test_a_closing_dispatcher_ends_its_session_and_nothing_of_it_runs_again() -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, packets):
        assert server._sessions is not None
        for _ in range(2 * ROOM):
            async with dispatching(TOOLS) as other:
                await other.call("work")
            await idle()
            assert server._sessions.table.sessions == {}
        runs = work.runs
        await again(peer, server, packets.copy())
        assert work.runs == runs


FLOOD = 2_000


def topic_of(number: int) -> str:
    """The reply topic of a dispatcher of that number."""
    return reply_topic(RESPONSES, f"{derive_key(str(number))}-flood")


def asked_by(number: int) -> dict[str, str]:
    """The properties of a request of that dispatcher."""
    return asked(topic_of(number), session=str(number))


@pytest.mark.costly
async def test_a_flood_opens_no_more_topics_than_the_bound_and_loses_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, made = await routing()
    for number in range(FLOOD):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    assert len(broker.opened) - 1 == OPENINGS_AT_ONCE
    assert sum(len(broker.sent(topic)) for topic in broker.opened) == FLOOD
    assert (made.unopened, made.lost) == (FLOOD - OPENINGS_AT_ONCE, 0)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1

    await advance(1)
    for number in range(FLOOD, 2 * FLOOD):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    passed = asyncio.get_running_loop().time() - START  # the response topic takes its time for so many
    assert passed < 2
    assert len(broker.opened) - 1 <= OPENINGS_AT_ONCE + OPENINGS_PER_S * passed
    await made.close()


@pytest.mark.costly
async def test_topics_are_bounded_in_all_and_what_was_kept_for_a_closed_one_is_gone() -> None:
    broker, made = await routing()
    most = 0
    for number in range(2 * MAX_REPLY_TOPICS):
        made.send(asked_by(number), b"x", ANSWER)
        most = max(most, len(made._topics))
        if number % OPENINGS_PER_S == 0:
            await advance(1)
    await made.flush()
    await idle()
    still_open = [publisher for publisher in broker.opened.values() if not publisher.closed]
    assert (most, len(still_open)) == (MAX_REPLY_TOPICS, MAX_REPLY_TOPICS)
    assert made.unopened == 0
    assert len(made._owned) == MAX_REPLY_TOPICS - 1  # the response topic belongs to the service
    await made.close()


async def test_a_topic_that_cannot_be_closed_is_kept_and_the_rest_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "MAX_REPLY_TOPICS", 3)
    broker, made = await routing()
    broker.gate.clear()
    for number in range(5):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    assert broker.sent(RESPONSES) == [b"2", b"3", b"4"], "two topics are being opened"
    broker.gate.set()
    await made.flush()
    assert [broker.sent(topic_of(number)) for number in range(2)] == [[b"0"], [b"1"]]
    made.send(asked_by(5), b"5", ANSWER)
    await made.flush()
    assert broker.sent(topic_of(5)) == [b"5"], "there is room again"
    await made.close()


async def test_one_dispatcher_has_so_many_topics_and_costs_others_no_opening() -> None:
    broker, made = await routing()
    for number in range(FLOOD):
        made.send(asked(f"{OWN}-{number}"), b"%d" % number, ANSWER)
    for number in range(OPENINGS_AT_ONCE - TOPICS_OF_ONE):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    assert sum(topic.startswith(OWN) for topic in broker.opened) == TOPICS_OF_ONE
    assert all(topic_of(number) in broker.opened for number in range(OPENINGS_AT_ONCE - TOPICS_OF_ONE))
    assert made.unopened == FLOOD - TOPICS_OF_ONE
    assert sum(len(broker.sent(topic)) for topic in broker.opened) == FLOOD + OPENINGS_AT_ONCE - TOPICS_OF_ONE
    await made.close()


async def test_what_one_dispatcher_has_is_counted_when_topics_close_or_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "TOPICS_OF_ONE", 1)
    monkeypatch.setattr(plain, "MAX_REPLY_TOPICS", 2)
    broker, made = await routing()
    broker.refusals[f"{OWN}-0"] = TransportError("connection-refused", "no", may_have_run=False)
    for number, opens in ((0, False), (1, True), (2, False)):
        made.send(asked(f"{OWN}-{number}"), b"x", ANSWER)
        await made.flush()
        assert (f"{OWN}-{number}" in broker.opened) is opens
    made.send(asked_by(1), b"x", ANSWER)
    await made.flush()
    assert broker.opened[f"{OWN}-1"].closed, "it was the quietest"
    made.send(asked(f"{OWN}-3"), b"x", ANSWER)
    await made.flush()
    assert f"{OWN}-3" in broker.opened
    assert made.unopened == 1
    await made.close()


async def test_what_is_no_answer_is_not_sent_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "OPENINGS_AT_ONCE", 1)
    broker, made = await routing()
    for number in range(3):
        made.send(asked_by(number), b"", {"here": REQUESTS})
        await made.writable(asked_by(number))
    assert not broker.sent(RESPONSES)
    assert (made.unopened, made.lost) == (2, 0)
    await made.close()


@pytest.mark.costly
async def test_ordinary_callers_are_answered_at_once_during_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = catalog(work={"policy": UNGUARDED})
    opened: list[str] = []
    async with serving(lambda _: "done", max_queue=FLOOD) as server, dispatching(tools) as known:
        open_publisher = server._transport.publisher

        async def publisher(topic: str) -> Publisher:
            opened.append(topic)
            return await open_publisher(topic)

        monkeypatch.setattr(server._transport, "publisher", publisher)
        assert await known.call("work") == "done"
        async with Peer.as_caller() as flooding:
            for number in range(FLOOD):
                await flooding.send(REQUESTS, b"{}", asked_by(number) | {"id": f"x{number}"})
            await idle()
            before = asyncio.get_running_loop().time()
            assert await known.call("work") == "done"
            assert asyncio.get_running_loop().time() == before, "its topic is open"
            async with dispatching(tools) as new:
                assert await new.call("work", timeout=1) == "done"
        assert OPENINGS_AT_ONCE <= len(opened) < OPENINGS_AT_ONCE + 10
        assert asyncio.get_running_loop().time() < START + 5


__all__ = ["as_if_alone", "run"]


FIRST_HOUR = "memory://first-hour"


class Joke(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"About {arguments['topic']}."


class Client:
    async def call(self, config: Any, arguments: Any, timeout: float = 600) -> str:
        return "done"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


any_value: Any = None
"""Of another type than the signature says."""


def connect(catalog: Any = None, **options: Any) -> Dispatcher:
    return dispatch.connect(FIRST_HOUR, catalog, **options)


def serve(**options: Any) -> ToolServer:
    return ToolServer(Joke(), FIRST_HOUR, **{"service": "joke", **options})


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda: dispatch.connect(None), "None is not a broker address: is an environment variable unset? Use pulsar:"),
        (lambda: dispatch.connect(Path("x")), "PosixPath is not a broker address. Use pulsar://HOST:6650"),
        (lambda: dispatch.ToolServer(Joke(), any_value, service="joke"), "is an environment variable unset?"),
        (lambda: connect(policy=["timeout"]), "policy must be dispatch.Policy(timeout=10) or {'timeout':"),
        (lambda: connect(policy=dispatch.Policy), "not the class Policy"),
        (lambda: connect(policy={"timeot": 3}), "did you mean 'timeout'?"),
        (lambda: connect(policy={"timeout": "soon"}), "give seconds"),
        (lambda: connect(telemetry=any_value), "telemetry must be a dispatch.Telemetry, such as"),
        (lambda: connect(telemetry=dispatch.Telemetry), "not the class Telemetry"),
        (lambda: connect(security="token"), "security must be a dispatch.Security, such as"),
        (lambda: connect(grants={"users": {}}), "dispatch.Grants.of({…})"),
        (lambda: connect(grants=dispatch.Grants), "not the class Grants"),
        (lambda: connect(catalog=[add]), "function add is no source of a catalogue. Fix: wrap it: dispatch."),
        (lambda: connect(catalog=add), "dispatch.Functions(add)"),
        (lambda: connect(catalog={"tools": []}), "use dispatch.Catalog.of(services=[…], tools=[…])"),
        (lambda: connect(catalog=[{"mcpServers": {}}]), "use dispatch.McpServers({…})"),
        (lambda: connect(catalog=[dispatch.Folder]), "the class Folder is no source of a catalogue. Fix: pa"),
        (lambda: connect(catalog=3), "an int is no source of a catalogue. Fix: give a Catalog, the path"),
        (lambda: dispatch.Dispatcher(MemoryTransport), "the class MemoryTransport is not a broker address."),
        (lambda: dispatch.ToolServer(Joke, FIRST_HOUR, service="joke"), "Joke is a class: pass an instance, Joke()"),
        (lambda: dispatch.ToolServer(add, FIRST_HOUR, service="joke"), "catalog=dispatch.Functions(add)"),
        (lambda: dispatch.wrap(Client, tool="t"), "Client is a class: pass an instance, Client(…)."),
        (lambda: connect(admin=9464), "admin must be an address such as '127.0.0.1:9464', or"),
        (lambda: connect(fleet=7), "fleet must be the name of a fleet, such as 'shop', not an int."),
        (lambda: connect(approvals=7), "approvals must be the path of a file, such as"),
        (lambda: serve(admin=9464), "admin must be an address such as"),
        (lambda: serve(service=any_value or 7), "service must be the id of a service"),
        (lambda: serve(concurrency="8"), "concurrency must be a whole number, not a str."),
        (lambda: serve(drain_timeout="30"), "drain_timeout must be a number of seconds, not a str."),
        (lambda: serve(drain_timeout=-1), "drain_timeout must be a number of seconds, at least 0, not -1"),
        (lambda: ToolServer(FIRST_HOUR, service="joke"), "the service comes before the broker: ToolServer(Joke(), "),
        (lambda: dispatch.ToolServer(asyncio, FIRST_HOUR, service="joke"), "ToolServer(functions=asyncio, …)"),
        (
            lambda: dispatch.ToolServer(functions=Joke(), broker=FIRST_HOUR, service="joke"),
            "a Joke has no functions to serve. Fix: a tool service is given alone: ToolServer(Joke(), …).",
        ),
        (
            lambda: serve(service="tg/joke"),
            "'tg/joke' is no name of a service. Fix: write a name without blanks and '/', for example 'joke'",
        ),
        (lambda: serve(service="my joke"), "'my joke' is no name of a service."),
        (lambda: serve(tools=TELL_JOKE), "must be a list of descriptors"),
        (lambda: serve(tools=["a"]), "must be a list of descriptors"),
        (
            lambda: serve(descriptor="1.0"),
            "descriptor must be an object of keys, such as {'version': '1.0.0'}, not a str.",
        ),
        (lambda: connect(catalog=asyncio), "wrap it: dispatch.ToolPackage('asyncio')."),
        (lambda: connect(catalog=Joke()), "serve it with dispatch.ToolServer(…), and give the folder"),
        (lambda: connect(catalog=""), "the path is empty: is a variable unset?"),
        (lambda: dispatch.tool("price"), "Fix: write @dispatch.tool(name='price')."),
        (
            lambda: dispatch.ToolServiceClient(FIRST_HOUR, service="joke"),
            "dispatcher must be what dispatch.connect(…) returns, not a str.",
        ),
    ],
)
def test_a_value_of_another_kind_is_told_with_what_to_give(mistake: Callable[[], object], said: str) -> None:
    with pytest.raises((TypeError, ValueError, dispatch.DispatchError)) as told:
        mistake()
    assert said in str(told.value)


async def test_a_name_of_another_kind_is_told_with_what_to_give() -> None:
    told = r"tool must be the name of a tool, such as 'tell-joke', not None\."
    async with dispatch.connect("memory://names", dispatch.Functions(add)) as dispatcher:
        for call in (
            lambda: dispatcher.call(any_value, {}),
            lambda: dispatcher.execute(any_value, {}),
            lambda: dispatcher.call(any_value, {}, version="^1"),
            lambda: anext(dispatcher.stream(any_value, {})),
        ):
            with pytest.raises(TypeError, match=told):
                await call()
        for read in (dispatcher.tool, dispatcher.breaker):
            with pytest.raises(TypeError, match=told):
                read(any_value)
        with pytest.raises(TypeError, match="service must be the id of a service"):
            dispatcher.instances(any_value)
        with pytest.raises(TypeError, match=r"result must be what .* returns, not a str"):
            dispatcher.format_result("done")


@pytest.mark.parametrize(
    ("mistake", "key", "near"),
    [
        (lambda: dispatch.Policy(timeot=3), "timeot", "timeout"),
        (lambda: dispatch.Policy(**{"attempt-timeout": 3}), "attempt-timeout", "attempt_timeout"),
        (lambda: dispatch.Retry(max_attemps=3), "max_attemps", "max_attempts"),
        (lambda: dispatch.tool(readonly=True), "readonly", "read_only"),
        (lambda: dispatch.connect(FIRST_HOUR, catalogue="tools/"), "catalogue", "catalog"),
        (lambda: dispatch.ToolServer(Joke(), FIRST_HOUR, services="joke"), "services", "service"),
        (lambda: dispatch.Telemetry(contents=True), "contents", "content"),
        (lambda: dispatch.Security(tokn="x"), "tokn", "token"),
        (lambda: dispatch.Folder("tools", watched=True), "watched", "watch"),
        (lambda: dispatch.Functions(add, name_space="x"), "name_space", "namespace"),
        (lambda: dispatch.wrap(Client(), tool="t", annotation=None), "annotation", "annotations"),
        (lambda: dispatch.Catalog.of(service=[]), "service", "services"),
    ],
)
def test_a_misspelt_keyword_is_told_with_the_one_that_is_near(
    mistake: Callable[[], object], key: str, near: str
) -> None:
    with pytest.raises(TypeError) as told:
        mistake()
    assert str(told.value) == f"Unexpected keyword argument '{key}': did you mean '{near}'?"


def test_a_keyword_that_is_near_to_none_is_told_with_all() -> None:
    with pytest.raises(TypeError, match=r"Unexpected keyword argument 'xyzzy': the keywords are rate, burst, .*\."):
        dispatch.RateLimit(xyzzy=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing"):  # Python's own texts stay
        dispatch.ToolServer()  # type: ignore[call-arg]


async def test_a_policy_may_be_an_object_as_in_a_descriptor() -> None:
    tools = dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE])
    async with dispatch.connect(FIRST_HOUR, tools, policy={"timeout": 3, "retry": {"max-attempts": 2}}) as dispatcher:
        policy = dispatcher._live.resolver.policy
        assert policy == dispatch.Policy(timeout=3, retry=2)
        await dispatcher.reload(policy={"timeout": 4})
        assert dispatcher._live.resolver.policy == dispatch.Policy(timeout=4)
    assert dispatch.wrap(Client(), tool="t", policy={"retry": 1}).policy.timeout == 600  # over TrustGraph's own


async def test_without_a_catalogue_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dispatch.calls"):
        async with dispatch.connect(FIRST_HOUR) as dispatcher:
            for _ in range(2):
                result = await dispatcher.execute("tell-joke", {})
                assert result.error.message.endswith("Report that no tools are loaded.")
    (record,) = caplog.records
    assert "connect(catalog=…) has none" in record.getMessage()
    caplog.clear()
    async with dispatch.connect(FIRST_HOUR, dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE])) as dispatcher:
        await dispatcher.execute("unknown", {})
    assert caplog.records == []


async def test_retry_after_is_in_milliseconds() -> None:
    policy = {"policy": {"user-rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}}
    tools = dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE | policy])
    async with EmbeddedBroker().connect(tools, services={"joke": Joke()}) as dispatcher:
        await dispatcher.execute("tell-joke", {"topic": "cats"})
        error = (await dispatcher.execute("tell-joke", {"topic": "cats"})).error
        assert error.retry_after is not None
        assert 0.9 < error.retry_after <= 1
        assert len(str(error.as_dict()["retry_after"])) <= 5
    for seconds, shown in ((1 / 3, 0.334), (1.1, 1.1), (2.96601, 2.967), (0.1, 0.1), (12, 12)):
        assert dispatch.ThrottledError("t", "m", retry_after=seconds).retry_after == shown


def test_a_fix_is_not_escaped() -> None:
    service = JOKE_SERVICE | {"config-params": [{"name": "style", "required": True}]}
    tool = {key: value for key, value in TELL_JOKE.items() if key != "style"} | {"service": "  scherz‑dienst "}
    items = [Item("s", "tool-service", "joke-service", service), Item("t", "tool", "tell-joke", tool)]
    fixes = [problem.fix for problem in check_items(items)[1]]
    items[1] = Item("t", "tool", "tell-joke", tool | {"service": "joke-service"})
    fixes += [problem.fix for problem in check_items(items)[1]]
    assert 'write "service": "scherz‑dienst"' in fixes
    assert 'add "style": "…"' in fixes
    assert not [fix for fix in fixes if "\\u" in fix]


def test_a_toolkit_file_that_is_missing(run: Run, tmp_path: Path) -> None:
    problem = r"gone\.yml: there is no such file\. Fix: create it, or correct the path"
    with pytest.raises(dispatch.CatalogError, match=problem):
        Toolkit.load(tmp_path / "gone.yml")
    with pytest.raises(dispatch.CatalogError, match="cannot be read: Is a directory"):
        Toolkit.load(tmp_path)
    end = run("toolkit", "show", str(tmp_path / "gone.yml"))
    assert (end.code, "there is no such file" in end.err, "Errno" in end.err) == (2, True, False)


def test_an_error_of_the_system_is_told_without_its_number(run: Run, tmp_path: Path) -> None:
    (tmp_path / "toolkit.yml").write_text("actions: []\n")
    end = run("toolkit", "draw", str(tmp_path / "toolkit.yml"), "--output", f"{tmp_path}/gone/x.mmd")
    assert end.err.startswith(f"Error: No such file or directory: '{tmp_path}/gone/x.mmd'.")


@pytest.mark.parametrize("command", [("serve", "first_jokes.py:Joke", "--service", "joke"), ("demo", "--seconds", "5")])
def test_a_command_that_calls_no_tool_does_not_say_that_none_was_executed(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "first_jokes.py").write_text(
        "import dispatch\nclass Joke(dispatch.ToolService):\n    async def invoke(self, config, arguments): ...\n"
    )
    arguments = [str(tmp_path / each) if each.startswith("first_jokes") else each for each in command]
    end = run(*arguments, "--broker", "pulsar://127.0.0.1:1")
    assert "no Pulsar broker replies at pulsar://127.0.0.1:1" in end.out + end.err
    assert "executed" not in end.out + end.err


async def test_a_connection_to_an_mcp_server_has_chat2graphs_parameter() -> None:
    class Connection:
        async def close(self) -> None: ...

    async def connect(_: McpConfig) -> Any:
        return Connection()

    transport = McpTransportConfig(McpTransportType.STDIO, command="x")
    service = McpService(McpConfig(ToolGroupType.MCP, "server", transport), connect)
    assert type(await service.create_connection(tool_call_ctx=None)) is Connection
    assert type(await service.create_connection(object())) is Connection


@dispatch.tool
def undescribed(a: int) -> int:
    return a


async def test_a_function_without_a_docstring_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    source = dispatch.Functions(add, undescribed)
    with caplog.at_level(logging.WARNING, "dispatch.catalog"):
        async with dispatch.connect(FIRST_HOUR, source) as dispatcher:
            await dispatcher.registry.refresh(source.id)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{__name__}.undescribed has no docstring, by which models choose tools.")


@pytest.mark.costly
def test_metrics_without_circuits_are_told(run: Run, tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    from tests.helpers.metrics_port import expose_metrics

    write_catalog(tmp_path / "tools")
    with expose_metrics(dispatch.Telemetry(registry=CollectorRegistry())) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        end = run("tools", "--catalog", str(tmp_path / "tools"), "--metrics", url)
    assert (end.code, "tell-joke" in end.out) == (0, True)
    assert f"Warning: The metrics at {url} have no circuits" in end.err


@pytest.mark.parametrize("line_break", ["\n", "\\n"])
def test_an_excerpt_of_a_call_is_escaped_once(line_break: str) -> None:
    from dispatch.calling import parse

    (call,) = parse(f'<function_call>{{"name": "a", "args": {{"x": "one{line_break}two" oops}}}}</function_call>')
    assert call.error is not None
    assert "one\\ntwo" in call.error
    assert "\\\\n" not in call.error


async def test_a_server_is_started_once() -> None:
    server = dispatch.ToolServer(Joke(), "memory://once", service="joke")
    await server.start()
    with pytest.raises(RuntimeError, match="this server is started already"):
        await server.start()
    await server.close()
    with pytest.raises(RuntimeError, match="this server was closed; create a new one"):
        await server.start()


async def test_functions_are_no_tool_service() -> None:
    with pytest.raises(TypeError, match=r"functions are given as ToolServer\(functions="):
        await dispatch.serve([add], "memory://list", service="joke")


class Blocking:
    def call(self, config: Any, arguments: Any, timeout: float = 600) -> str:
        return "done"


async def test_a_wrapped_client_that_is_not_asynchronous() -> None:
    wrapped = dispatch.wrap(Blocking(), tool="t")
    with pytest.raises(TransportError, match="it returned a str at once: write 'async def' before its method"):
        await wrapped.call({}, {})
    with pytest.raises(TypeError, match="a Blocking has no method 'call_streaming'"):
        await wrapped.call_streaming({}, {}, print)
    with pytest.raises(TypeError, match="tool must be the name of a tool, such as 'tell-joke', not None"):
        dispatch.wrap(Blocking(), tool=any_value)


CHUNKS = 4_000
WINDOW_BYTES = 200_000
"""Of a stream in a session, a tenth of the default: 1,219 chunks."""


class Source:
    """A tool that sends chunks as fast as it may, or one each ``gap`` seconds."""

    def __init__(self, chunks: int = CHUNKS, *, size: int = 100, gap: float = 0.0) -> None:
        self.chunks, self.size, self.gap = chunks, size, gap
        self.sent = 0
        self.closed = 0

    async def stream(self) -> AsyncIterator[str]:
        try:
            for index in range(self.chunks):
                if self.gap:
                    await asyncio.sleep(self.gap)
                self.sent += 1
                yield f"{index}:".ljust(self.size, ".")
        finally:
            self.closed += 1

    def invoke(self, arguments: dict[str, Any]) -> Any:
        return "pong" if arguments else self.stream()


class Stand:
    """A dispatcher with a tool, and how many bytes of its chunks may be ahead of its reader."""

    def __init__(self, dispatcher: Dispatcher, window: int, server: ToolServer | None = None) -> None:
        self.dispatcher, self.window, self.server = dispatcher, window, server


@contextlib.asynccontextmanager
async def _open(kind: str, source: Source, policy: Policy | None = None) -> AsyncIterator[Stand]:
    if kind == "session":
        with override_settings(stream_window=WINDOW_BYTES):
            async with serving(source.invoke) as server, dispatching(policy=policy) as dispatcher:
                assert await dispatcher.call("work", {"ping": True}) == "pong"
                while not dispatcher.instances("lab"):
                    await advance(1)
                yield Stand(dispatcher, WINDOW_BYTES, server)
        return

    @dispatch.tool
    async def work(ping: bool = False) -> AsyncIterator[str]:
        """Work."""
        if ping:
            yield "pong"
            return
        async for chunk in source.stream():
            yield chunk

    async with dispatch.connect("memory://local", [dispatch.Functions(work)], policy=policy) as dispatcher:
        yield Stand(dispatcher, MAX_BYTES_AHEAD)


KINDS = pytest.mark.parametrize("kind", ["session", "function"])


@pytest.fixture
def source() -> Source:
    return Source()


@KINDS
@pytest.mark.parametrize("delay", [0.0, 0.02])
async def test_every_chunk_arrives_in_order_however_slow_the_reader_is(kind: str, delay: float, source: Source) -> None:
    async with _open(kind, source) as stand:
        most, read = 0, 0
        async for chunk in stand.dispatcher.stream("work", timeout=1_000):
            assert chunk.startswith(f"{read}:")
            read += 1
            most = max(most, source.sent - read)
            if delay:
                await asyncio.sleep(delay)
        assert read == CHUNKS
        assert most <= stand.window / (source.size + CHUNK_BYTES) + 2, "the tool waits for its reader"


@KINDS
async def test_large_chunks_wait_by_their_bytes(kind: str) -> None:
    source = Source(20, size=1_500_000)
    async with _open(kind, source) as stand:
        stream = stand.dispatcher.stream("work", timeout=1_000)
        async for chunk in stream:
            assert source.sent <= int(chunk.partition(":")[0]) + 3
            await asyncio.sleep(0.1)
        assert source.sent == 20


@KINDS
async def test_abandoned_streams_take_no_permits_after_the_idle_limit(kind: str) -> None:
    source = Source(10_000_000, size=10, gap=1.0)  # the tools never wait for their readers
    async with _open(kind, source) as stand:
        abandoned = [stand.dispatcher.stream("work") for _ in range(64)]
        await asyncio.gather(*map(anext, abandoned))
        before = await stand.dispatcher.execute("work", {"ping": True}, timeout=1)
        assert before.outcome is Outcome.THROTTLED
        await advance(31)
        after = await stand.dispatcher.execute("work", {"ping": True}, timeout=1)
        assert after.text == "pong"
        await idle()
        assert source.closed == 64, "the tools were stopped"
        assert stand.server is None or stand.server.running == 0
        with pytest.raises(CallTimeoutError, match=r"read nothing for 30 s .*while further ones waited") as caught:
            async for _ in abandoned[0]:
                pass
        assert (caught.value.limit_name, caught.value.type) == ("stream-reader", "idle-timeout")
        for stream in abandoned[1:]:
            await stream.aclose()


@pytest.mark.costly
@KINDS
async def test_streams_whose_readers_pause_let_other_calls_have_half_of_the_places(kind: str, source: Source) -> None:
    async with _open(kind, source) as stand:
        streams = [stand.dispatcher.stream("work", timeout=1_000) for _ in range(64)]
        for stream in streams:
            await anext(stream)
        assert (await stand.dispatcher.execute("work", {"ping": True}, timeout=0.5)).outcome is Outcome.THROTTLED
        pings = await asyncio.gather(*(stand.dispatcher.execute("work", {"ping": True}, timeout=3) for _ in range(200)))
        assert [ping.text for ping in pings] == ["pong"] * 200
        for stream in streams:
            assert len([chunk async for chunk in stream]) == CHUNKS - 1
        await idle()
        assert stand.server is None or stand.server.running == 0
        further = [stand.dispatcher.stream("work", timeout=1_000) for _ in range(64)]
        for stream in further:
            await anext(stream)
        assert (await stand.dispatcher.execute("work", {"ping": True}, timeout=0.5)).outcome is Outcome.THROTTLED
        for stream in further:
            await stream.aclose()


@KINDS
async def test_the_only_place_of_a_tool_is_not_given_away_while_its_reader_pauses(kind: str, source: Source) -> None:
    async with _open(kind, source, Policy(bulkhead=Bulkhead(max_concurrent_calls=1))) as stand:
        stream = stand.dispatcher.stream("work")
        await anext(stream)
        await advance(10)
        assert (await stand.dispatcher.execute("work", {"ping": True}, timeout=3)).outcome is Outcome.THROTTLED
        await stream.aclose()


@KINDS
async def test_a_stream_whose_tool_has_ended_takes_no_permit_however_long_its_reader_pauses(kind: str) -> None:
    source = Source(10)
    async with _open(kind, source) as stand:
        streams = [stand.dispatcher.stream("work") for _ in range(64)]
        for stream in streams:
            await anext(stream)
        await idle()
        assert (await stand.dispatcher.execute("work", {"ping": True})).text == "pong"
        await advance(500)
        for stream in streams:
            assert len([chunk async for chunk in stream]) == 9


async def test_a_stopped_reader_costs_its_own_stream_only(source: Source) -> None:
    async with _open("session", source) as stand:
        stopped = stand.dispatcher.stream("work")
        await anext(stopped)
        await advance(1)
        sent = source.sent
        assert sent < CHUNKS
        await advance(5)
        assert source.sent == sent, "its tool waits"
        assert len([chunk async for chunk in stand.dispatcher.stream("work")]) == CHUNKS
        assert (await stand.dispatcher.execute("work", {"ping": True})).text == "pong"
        await stopped.aclose()
        await idle()
        assert source.closed == 2


async def test_a_repeated_stream_of_an_idempotency_key_waits_for_its_reader_too(source: Source) -> None:
    async with _open("session", source) as stand:
        for _ in range(2):
            read = 0
            async for chunk in stand.dispatcher.stream("work", idempotency_key="k", timeout=1_000):
                assert chunk.startswith(f"{read}:")
                read += 1
                await asyncio.sleep(0.001)
            assert read == CHUNKS
        assert source.sent == CHUNKS, "the tool ran once"


LASTS_S = 90


OPEN_S = 5.0


PROMPT = BreakerRules(slow_call_duration=10, open_duration=OPEN_S, jitter=0)


async def _long(arguments: dict[str, Any]) -> AsyncIterator[str]:
    for second in range(LASTS_S):
        yield f"{second} "
        await asyncio.sleep(arguments.get("pause", 1))


def long(arguments: dict[str, Any]) -> AsyncIterator[str]:
    return _long(arguments)


async def open_circuit(dispatcher: Dispatcher) -> None:
    """The breaker is open for a moment, as after failures; what comes next is a probe."""
    breaker = dispatcher.breaker("work")
    breaker.open_until(asyncio.get_running_loop().time() + OPEN_S)
    await advance(OPEN_S)
    assert breaker.state is State.OPEN


async def test_streams_close_the_circuit_at_their_first_chunks() -> None:
    async with stand(long, policy=Policy(breaker=PROMPT)) as (dispatcher, _):
        breaker = dispatcher.breaker("work")
        await open_circuit(dispatcher)
        streams: list[asyncio.Task[None]] = []
        chunks: list[list[str]] = []
        for _ in range(21):  # the probes of all three rounds, of which none has ended
            chunks.append([])
            streams.append(asyncio.create_task(read(dispatcher.stream("work"), chunks[-1])))
            await advance(0.1)
        assert not any(stream.done() for stream in streams)
        assert breaker.state is State.CLOSED
        await asyncio.gather(*streams)
        assert {len(each) for each in chunks} == {LASTS_S}
        assert (breaker.state, breaker.lost, breaker.stale) == (State.CLOSED, 0, 0)
        assert breaker.slow_call_rate in (None, 0.0), "a stream is as slow as its first chunk"


@pytest.mark.costly
async def test_the_breaker_of_an_instance_closes_as_well() -> None:
    ill = True

    async def failing(arguments: dict[str, Any]) -> AsyncIterator[str]:
        if ill:
            raise ToolError("ill", "I am ill.")
        async for chunk in _long(arguments):
            yield chunk

    policy = Policy(
        retry=1, breaker=BreakerRules(failure_rate=1, count_tool_errors=True, open_duration=OPEN_S, jitter=0)
    )
    async with (
        serving(failing, instance="one"),
        serving(long, instance="two"),
        dispatching(policy=policy) as dispatcher,
    ):
        states: list[str] = []
        dispatcher.on_event(lambda event: states.append(event.new) if getattr(event, "instance", "") == "one" else None)
        for _ in range(20):
            await dispatcher.execute("work", {"pause": 0})
        assert states == [State.OPEN]
        ill = False
        await advance(OPEN_S)
        streams = []
        for _ in range(50):
            streams.append(asyncio.create_task(read(dispatcher.stream("work"), [])))
            await advance(0.1)
        assert states == [State.OPEN, State.HALF_OPEN, State.CLOSED]
        await asyncio.gather(*streams)


async def test_a_stream_that_breaks_after_its_first_chunk_counts_for_its_instance() -> None:
    policy = Policy(retry=1, breaker=Breaker(consecutive_failures=3), stream_idle_timeout=2)
    async with stand(long, policy=policy, instance="one") as (dispatcher, _):
        for _ in range(4):
            with pytest.raises(CallTimeoutError):
                await read(dispatcher.stream("work", {"pause": 10}), [])
        assert dispatcher.breaker("work").state is State.CLOSED
        assert [view.failures for view in dispatcher.instances("lab")] == [4]


async def test_a_stream_without_a_first_chunk_is_a_failure() -> None:
    policy = Policy(retry=1, breaker=Breaker(consecutive_failures=3), stream_idle_timeout=2)
    async with stand(lambda _: asyncio.sleep(60, ""), policy=policy) as (dispatcher, _):
        for _ in range(3):
            with pytest.raises(CallTimeoutError):
                await read(dispatcher.stream("work"), [])
        with pytest.raises(RejectedError, match="was not executed"):
            await read(dispatcher.stream("work"), [])


HANG_S, RATE, TIMEOUT_S = 6.0, 200, 5.0


async def load(dispatcher: Dispatcher, seconds: float, tools: tuple[str, ...]) -> list[CallResult]:
    """Begin calls of the tools in turn, at ``RATE``, whether or not earlier ones have ended."""
    calls = []
    for number in range(round(seconds * RATE)):
        calls.append(asyncio.ensure_future(dispatcher.execute(tools[number % len(tools)], {})))
        await asyncio.sleep(1 / RATE)
    return await asyncio.gather(*calls)


@pytest.mark.costly
@pytest.mark.parametrize("called", [("read", "write"), ("write",)], ids=["mixed", "not-repeatable"])
async def test_an_instance_that_hangs_costs_only_the_calls_that_it_has(called: tuple[str, ...]) -> None:
    is_well = asyncio.Event()
    is_well.set()

    async def answer(_arguments: Any) -> str:
        await asyncio.sleep(0.01)
        return "done"

    async def hang(arguments: Any) -> str:
        await is_well.wait()
        return await answer(arguments)

    tools = {"read": {"read-only": True, "policy": {"timeout": TIMEOUT_S}}, "write": {"policy": {"timeout": TIMEOUT_S}}}
    async with serving(answer), serving(hang), dispatching(catalog(**tools)) as dispatcher:
        await load(dispatcher, 3, called)
        is_well.clear()
        asyncio.get_running_loop().call_later(HANG_S, is_well.set)
        results = await load(dispatcher, HANG_S, called)
    ends = Counter(result.outcome for result in results)
    assert ends["success"] >= 0.9 * len(results), ends
    assert ends["throttled"] == 0
