"""Sessions of an endpoint: their ends, restarted and absent callees, backpressure of streams, and load."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.messaging.endpoint import Endpoint
from dispatch.protocol import SessionTable
from dispatch.protocol.events import Failure, RequestFailed
from dispatch.testing import FaultInjector, Faults, FaultyTransport
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.endpoint_peers import URL, Callee, new_topics, pair, peers

# -- the end of a session ---------------------------------------------------------------------------------------------


async def test_ending_a_session_tells_its_peer() -> None:
    async with pair() as (caller, callee, session):
        callee.is_holding = True
        request = caller.send(session, b"1:1")
        await idle()
        caller.endpoint.end(session)
        assert await request.failure() == (Failure.CLOSED, True)
        await idle()
        assert callee.closed == [("caller", "closed")]
        assert callee.cancelled == [0]
        assert not callee.table.sessions
        caller.endpoint.wake(session)
        await idle()


async def test_a_session_ends_when_its_peer_closes() -> None:
    faults = FaultInjector(Faults(drop=0.3, seed=3))
    async with pair(wrap=lambda inner: FaultyTransport(inner, faults)) as (caller, callee, session):
        callee.is_holding = True
        request = caller.send(session, b"1:1")
        await advance(1)
        faults.heal()
        await callee.endpoint.close()
        await advance(1)
        outcome = await request.outcome
        assert isinstance(outcome, RequestFailed)
        assert outcome.reason is Failure.CLOSED
        assert session.is_closed


async def test_closing_twice_and_receiving_afterwards_is_harmless() -> None:
    async with peers(URL) as (caller, [callee]):
        await caller.connect(callee.inbox)
        await caller.endpoint.close()
        caller.endpoint.receive_packet(b"\x99")
        await caller.endpoint.close()
        await idle()
        assert callee.closed == [("caller", "closed")]


async def test_a_callee_that_does_not_exist_is_given_up() -> None:
    async with peers(URL, callees=0) as (caller, _):
        session = await caller.endpoint.connect("non-persistent://tg/request/nobody")
        request = caller.send(session, b"1:1")
        await advance(11)
        assert await request.failure() == (Failure.SILENT, False)
        assert caller.closed == [("", "silent")]
        assert not caller.table.sessions


def callee_topics(callee: Callee) -> tuple[str, str]:
    permission = callee.table._may_reply_to
    namespace = next(iter(permission._allowed))  # type: ignore[attr-defined] # of a ReplyPermission
    return new_topics()[0], f"non-persistent://{namespace}/any"


async def test_a_restarted_callee_is_noticed_at_once_and_its_former_requests_never_run() -> None:
    async with pair() as (caller, callee, session):
        callee.is_holding = True
        lost = caller.send(session, b"1:1")
        await advance(0.1)
        callee.transport.cut()
        again = Callee(MemoryTransport(URL), callee_topics(callee), "callee-0")
        again.inbox = callee.inbox
        again.table.inboxes[:] = [callee.inbox]
        await again.start()
        started = asyncio.get_running_loop().time()
        second = caller.send(session, b"2:1")
        outcomes = [await lost.outcome, await second.outcome]
        assert asyncio.get_running_loop().time() - started < 1
        assert [isinstance(each, RequestFailed) and each.reason for each in outcomes] == [Failure.RESTARTED] * 2
        session = await caller.connect(callee.inbox)
        assert await caller.call(session, b"3:1") == b"3"
        assert again.runs == {b"3": 1}
        await again.stop()


# -- streams ----------------------------------------------------------------------------------------------------------


async def test_streams_wait_while_a_session_has_many_unsent_bytes() -> None:
    async with pair() as (caller, callee, session):
        callee.is_holding = True
        request = caller.send(session, b"1:1")
        await idle()
        [(callee_session, event)] = callee.held
        written: list[int] = []

        async def stream() -> None:
            for index in range(20):
                callee_session.send_chunk(event.number, b"%2d" % index + b"." * 600_000)
                callee.endpoint.wake(callee_session)
                written.append(callee_session.queued_bytes)
                await callee.endpoint.writable(callee_session, event.number)
            callee_session.send_end(event.number)
            callee.endpoint.wake(callee_session)

        await asyncio.gather(stream(), request.outcome)
        assert [chunk[:2] for chunk in request.chunk_payloads] == [b"%2d" % index for index in range(20)]
        assert max(written) < 2_500_000


async def test_a_stream_does_not_wait_for_a_session_that_has_ended() -> None:
    async with pair() as (caller, callee, session):
        callee.is_holding = True
        caller.send(session, b"1:1")
        await idle()
        [(callee_session, event)] = callee.held
        callee_session.send_chunk(event.number, b"." * 10_000_000)
        waiting = asyncio.create_task(callee.endpoint.writable(callee_session, event.number))
        await idle()
        assert not waiting.done()
        caller.endpoint.end(session)
        await idle()
        await waiting
        await callee.endpoint.writable(callee_session, event.number)


# -- load and foreign packets -----------------------------------------------------------------------------------------


async def test_the_load_of_a_process_reaches_its_peers() -> None:
    async with peers(URL) as (caller, [callee]):
        callee.endpoint.load = 7
        session = await caller.connect(callee.inbox)
        await caller.call(session, b"1:1")
        assert session.peer_load == 7


async def test_packets_that_are_not_of_a_session_change_nothing() -> None:
    async with pair() as (caller, callee, session):
        for data in (b"", b"\x99", b"text", b"\xff" * 100, b"\x99" + b"\x00" * 8):
            callee.endpoint.receive_packet(data)
        assert await caller.call(session, b"1:1") == b"1"
        assert callee.table.malformed + callee.table.unknown == 5


def test_an_endpoint_belongs_to_a_running_loop() -> None:
    table = SessionTable("a", "b", ["c"], random_bytes=bytes)
    with pytest.raises(RuntimeError):
        Endpoint(MemoryTransport(URL), table, lambda session, events: None)
