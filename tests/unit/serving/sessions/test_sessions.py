"""Sessions of an instance that drains or closes.
Idempotency keys of requests over sessions: one execution, and its stored reply for each further request.
The identity of a session's ends: foreign inboxes, restarted instances, and two instances of one name.
Limits of an instance as its callers see them: concurrency, load, and deadlines.
Requests over sessions: results, errors and streams, and requests that are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch.errors import ToolError
from dispatch.messaging.endpoint import WRITABLE_BYTES
from dispatch.messaging.wire import MAX_PROPERTY_BYTES, Refusal
from dispatch.protocol.events import Failure
from dispatch.serving.replies import KEY_AGE_S
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import START, advance, idle, now
from tests.helpers.dispatcher_and_service import BROKER, Service, serving
from tests.helpers.session import KEY
from tests.helpers.session_caller import calling
from tests.helpers.waiting_tool import Gate, count


# -- drain ----------------------------------------------------------------------------------------------------------
async def test_draining_tells_callers_at_once_and_finishes_what_runs() -> None:
    gate = Gate()
    async with serving(gate, concurrency=1) as server, calling(server) as caller:
        running, queued = caller.send({"n": 1}), caller.send({"n": 2})
        await idle()
        drain = asyncio.create_task(server.drain())
        await idle()
        assert caller.is_draining
        assert (await queued.refusal()).reason == Refusal.DRAINING
        assert (await caller.send({"n": 3}).refusal()).reason == Refusal.DRAINING
        assert now() == START
        gate.open.set()
        assert await running.text() == "done 1"
        await drain
        assert gate.begun == [1]


async def test_refusals_of_the_session_itself_are_counted() -> None:
    gate = Gate()
    async with serving(gate, drain_timeout=30, max_payload_bytes=100_000) as server, calling(server) as caller:
        await advance(0.1)
        expired = caller.send(run_for=0.0)
        assert (await expired.refusal()).reason == Refusal.EXPIRED
        too_large = caller.send(payload=b"x" * 100_001)
        assert (await too_large.refusal()).reason == Refusal.TOO_LARGE
        running = caller.send()
        await idle()
        drain = asyncio.create_task(server.drain())
        await idle()
        late = caller.send()
        assert (await late.refusal()).reason == Refusal.DRAINING
        gate.open.set()
        await running.text()
        await drain
        counted = {reason: count for reason, count in server.refused.items() if count}
        assert counted == {Refusal.EXPIRED: 1, Refusal.TOO_LARGE: 1, Refusal.DRAINING: 1}
        assert server.requests == 4


async def test_a_draining_instance_accepts_no_session() -> None:
    gate = Gate()
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
async def test_closing_cancels_what_runs_and_tells_its_caller() -> None:
    gate = Gate()
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


async def test_a_key_runs_once_and_every_request_with_it_gets_the_reply() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        sent = [caller.send({"n": n}, key="order") for n in range(3)]
        await idle()
        gate.open.set()
        assert [await each.text() for each in sent] == ["done 0"] * 3
        assert await caller.send({"n": 4}, key="order").text() == "done 0"
        assert gate.begun == [0]


async def test_a_keyed_request_runs_on_after_its_deadline_and_after_its_caller() -> None:
    gate = Gate()
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


async def test_a_keyed_request_ends_when_its_key_is_too_old() -> None:
    gate = Gate()
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


async def test_a_restarted_instance_runs_no_request_of_its_former_session() -> None:
    gate = Gate()
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
async def test_one_too_many_is_refused_with_a_time_to_come_back() -> None:
    gate = Gate()
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


async def test_a_caller_learns_how_many_requests_run() -> None:
    gate = Gate()
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
async def test_a_tool_is_stopped_at_its_callers_deadline() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        sent = caller.send(seconds=60, run_for=2.5)
        refusal = await sent.refusal()
        assert refusal.reason == Refusal.STOPPED
        assert now() == pytest.approx(START + 2.5, abs=0.02)
        assert (gate.cancelled, server.running) == (1, 0)


async def test_one_timer_serves_the_deadlines_of_all_requests() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        sent = [caller.send({"n": n}, seconds=60, run_for=10 - n) for n in range(8)]
        ends = []
        for each in reversed(sent):
            assert (await each.refusal()).reason == Refusal.STOPPED
            ends.append(now() - START)
        assert ends == pytest.approx([3, 4, 5, 6, 7, 8, 9, 10], abs=0.02)
        assert server.refused[Refusal.STOPPED] == 8


async def test_a_request_whose_deadline_passed_in_the_queue_is_refused_unrun() -> None:
    gate = Gate()
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
