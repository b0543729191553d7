"""Sessions whose peer's inbox the broker opens no longer: its namespace was deleted, or the right to produce withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dispatch.errors import ErrorType, TransportError
from dispatch.messaging.endpoint import GIVE_UP_S, REFUSALS, RETRY_S
from dispatch.protocol import CallerSession
from dispatch.protocol.events import Failure, RequestFailed
from dispatch.transports.errors import opening_failed, unreachable
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.endpoint_peers import Callee, Caller, new_topics

URL = "memory://endpoint"
ENDS_S = (REFUSALS - 1) * RETRY_S


class RefusedPublisher(MemoryPublisher):
    """A publisher that the transport reopens, as that of Pulsar does."""

    def __init__(self, transport: RefusingTransport, topic: str) -> None:
        super().__init__(transport, topic)
        self._refusals = transport.refusals

    @property
    def opening_error(self) -> TransportError | None:
        return self._refusals.get(self.topic)

    @property
    def is_connected(self) -> bool:
        return True

    def send_packet(self, payload: bytes) -> bool:
        return self.opening_error is None and super().send_packet(payload)


class RefusingTransport(MemoryTransport):
    """Does not open the topics in ``refusals``, and sends nothing to them."""

    def __init__(self) -> None:
        super().__init__(URL)
        self.refusals: dict[str, TransportError] = {}

    async def publisher(self, topic: str) -> MemoryPublisher:
        if topic in self.refusals:
            raise self.refusals[topic]
        return RefusedPublisher(self, topic)


def gone(topic: str) -> TransportError:
    return opening_failed("TopicNotFound", url="pulsar://x", topic=topic)


@asynccontextmanager
async def refusing_peers() -> AsyncIterator[tuple[Caller, Callee, CallerSession, dict[str, TransportError]]]:
    """A caller, a callee that holds its requests, an open session, and what the broker refuses to either."""
    topics, transport, other = new_topics(), RefusingTransport(), RefusingTransport()
    other.refusals = transport.refusals
    callee, caller = Callee(other, topics), Caller(transport, topics)
    callee.is_holding = True
    await callee.start()
    await caller.start()
    yield caller, callee, await caller.connect(callee.inbox), transport.refusals
    await caller.stop()
    await callee.stop()


async def test_requests_end_soon_with_what_is_certain_about_each() -> None:
    loop = asyncio.get_running_loop()
    async with refusing_peers() as (caller, callee, session, refusals):
        sent = caller.send(session, b"1:1")
        await advance(0.1)
        refusals[callee.inbox] = gone(callee.inbox)
        began = loop.time()
        unsent = caller.send(session, b"2:1")
        outcomes = [await sent.outcome, await unsent.outcome]
        assert ENDS_S <= loop.time() - began < ENDS_S + 0.1
        assert all(isinstance(each, RequestFailed) and each.reason is Failure.BROKER_REFUSED for each in outcomes)
        assert [each.may_have_run for each in outcomes if isinstance(each, RequestFailed)] == [True, False]
        assert "has no namespace" in str(session.end_error)
        assert (callee.runs, caller.closed) == ({b"1": 1}, [("one", "broker-refused")])


async def test_a_request_that_waits_for_its_reply_ends_without_another_one() -> None:
    """Its session sends a PING every two seconds, which finds the refusal."""
    async with refusing_peers() as (caller, callee, session, refusals):
        sent = caller.send(session, b"1:1")
        await advance(0.1)
        refusals[callee.inbox] = gone(callee.inbox)
        await advance(2.0 + ENDS_S + 0.1)
        assert await sent.failure() == (Failure.BROKER_REFUSED, True)


async def test_a_callee_ends_the_session_of_a_caller_that_it_cannot_answer() -> None:
    async with refusing_peers() as (caller, callee, session, refusals):
        caller.send(session, b"1:1")
        await advance(0.1)
        refusals[caller.inbox] = gone(caller.inbox)
        callee.release()
        await advance(ENDS_S + 0.1)
        assert callee.closed == [("caller", "broker-refused")]


async def test_another_session_is_opened_when_the_inbox_is_there_again() -> None:
    async with refusing_peers() as (caller, callee, session, refusals):
        refusals[callee.inbox] = gone(callee.inbox)
        await caller.send(session, b"1:1").outcome
        with pytest.raises(TransportError) as caught:
            await caller.connect(callee.inbox)
        assert caught.value.type == ErrorType.NO_SUCH_NAMESPACE
        refusals.clear()
        await advance(RETRY_S)
        session = await caller.connect(callee.inbox)
        callee.is_holding = False
        assert await caller.call(session, b"2:1") == b"2"
        assert callee.runs == {b"2": 1}


@pytest.mark.parametrize("seconds", [0.5, RETRY_S, (REFUSALS - 1.5) * RETRY_S])
async def test_a_refusal_that_passes_ends_no_session(seconds: float) -> None:
    """As of a broker that has just started."""
    async with refusing_peers() as (caller, callee, session, refusals):
        callee.is_holding = False
        for number in range(3):
            refusals[callee.inbox] = gone(callee.inbox)
            request = caller.send(session, b"%d:1" % number)
            await advance(seconds)
            assert not request.outcome.done()
            refusals.clear()
            await advance(RETRY_S)
            assert await request.outcome == b"%d" % number
        assert caller.closed == []
        assert set(callee.runs.values()) == {1}


async def test_a_broker_that_is_out_of_reach_ends_no_session_early() -> None:
    """The session is probed, and lives until its peer counts as silent."""
    async with refusing_peers() as (caller, callee, session, refusals):
        callee.is_holding = False
        refusals[callee.inbox] = unreachable("pulsar://x")
        request = caller.send(session, b"1:1")
        await advance(9)
        assert not request.outcome.done()
        refusals.clear()
        await advance(1)
        assert await request.outcome == b"1"
        assert caller.closed == []


async def test_a_session_whose_publisher_cannot_be_opened_for_long_ends_too() -> None:
    """Nothing is probed meanwhile, so that its silence says nothing."""
    async with refusing_peers() as (caller, callee, session, refusals):
        request = caller.send(session, b"1:1")
        await advance(0.1)
        refusals[callee.inbox] = gone(callee.inbox)
        caller.send(session, b"2:1")
        await advance(0.1)
        refusals[callee.inbox] = unreachable("pulsar://x")
        await advance(GIVE_UP_S - 1)
        assert not request.outcome.done()
        await advance(3)
        assert await request.failure() == (Failure.BROKER_REFUSED, True)


async def test_sessions_with_other_inboxes_continue() -> None:
    topics, transport = new_topics(), RefusingTransport()
    caller = Caller(transport, topics)
    callees = [Callee(MemoryTransport(URL), topics, name) for name in ("one", "two")]
    for peer in (caller, *callees):
        await peer.start()
    first, second = [await caller.connect(callee.inbox) for callee in callees]
    transport.refusals[callees[0].inbox] = gone(callees[0].inbox)
    unsent = caller.send(first, b"1:1")
    await advance(ENDS_S + 0.1)
    assert isinstance(await unsent.outcome, RequestFailed)
    assert await caller.call(second, b"2:1") == b"2"
    await idle()
    assert caller.closed == [("one", "broker-refused")]
    for peer in (caller, *callees):
        await peer.stop()
