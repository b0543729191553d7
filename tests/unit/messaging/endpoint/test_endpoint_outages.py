"""Sessions and deadlines while the connection is down, or while a publisher cannot be opened."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.endpoint import RETRY_S
from dispatch.protocol.events import Failure, RequestFailed
from dispatch.testing import FaultInjector, FaultyTransport
from dispatch.transports.errors import unreachable
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.endpoint_peers import URL, Callee, Caller, new_topics, peers

# -- a connection that is down ----------------------------------------------------------------------------------------


async def test_sessions_survive_an_outage_that_is_longer_than_they_wait_for_a_silent_peer() -> None:
    faults = FaultInjector()
    async with peers(URL, wrap=lambda inner: FaultyTransport(inner, faults)) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        await advance(1)
        callee.is_holding = True
        running = [caller.send(session, b"%d:10" % number) for number in range(5)]
        await idle()
        faults.disconnect(60)
        waiting = [caller.send(session, b"%d:10" % number) for number in range(5, 10)]
        expired = caller.send(session, b"99:1", deadline=asyncio.get_running_loop().time() + 1)
        callee.is_holding = False
        callee.release()
        await advance(59)
        outcome = await expired.outcome
        assert isinstance(outcome, RequestFailed)
        assert (outcome.reason, outcome.may_have_run) == (Failure.DEADLINE, False)
        assert not any(request.outcome.done() for request in (*running, *waiting))
        await advance(1.2)
        assert [await request.outcome for request in (*running, *waiting)] == [
            (b"%d" % number).ljust(10, b".") for number in range(10)
        ]
        assert set(callee.runs.values()) == {1}
        assert caller.closed == callee.closed == []
        assert isinstance(callee.transport, FaultyTransport)
        await callee.transport.inner.close()
        request = caller.send(session, b"100:1")
        await advance(15)
        outcome = await request.outcome
        assert isinstance(outcome, RequestFailed)
        assert outcome.reason is Failure.SILENT, "it is given up again"


async def test_deadlines_that_pass_during_an_outage_are_kept() -> None:
    """One after the other within a millisecond: each ends by a timer that is due almost at once."""
    faults, loop = FaultInjector(), asyncio.get_running_loop()
    async with peers(URL, wrap=lambda inner: FaultyTransport(inner, faults)) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        await advance(1)
        faults.disconnect(60)
        ended: list[float] = []
        started = loop.time()
        for number in range(20):
            request = caller.send(session, b"%d:1" % number, deadline=started + 3 + 0.0004 * number)
            request.outcome.add_done_callback(lambda _: ended.append(loop.time() - started))
        await advance(6)
        assert len(ended) == 20
        assert 3 <= min(ended) <= max(ended) < 3.05


async def test_a_session_that_begins_during_an_outage_opens_after_it() -> None:
    faults = FaultInjector()
    async with peers(URL, wrap=lambda inner: FaultyTransport(inner, faults)) as (caller, [callee]):
        faults.disconnect(30)
        first = asyncio.create_task(caller.connect(callee.inbox))
        await advance(1)
        second = asyncio.create_task(caller.connect(callee.inbox))
        await advance(28)
        assert not first.done()
        assert not second.done()
        await advance(2)
        await first
        session = await second
        assert await caller.call(session, b"1:1") == b"1"


# -- a publisher that cannot be opened --------------------------------------------------------------------------------


class RefusingTransport(MemoryTransport):
    """Opens no publisher for the topics in ``refused``."""

    def __init__(self) -> None:
        super().__init__(URL)
        self.refused: set[str] = set()

    async def publisher(self, topic: str):  # type: ignore[no-untyped-def]
        if topic in self.refused:
            raise unreachable(self.url)
        return await super().publisher(topic)


async def test_deadlines_are_kept_while_a_publisher_is_not_open() -> None:
    loop, topics, transport = asyncio.get_running_loop(), new_topics(), RefusingTransport()
    callee, caller = Callee(MemoryTransport(URL), topics), Caller(transport, topics)
    await callee.start()
    await caller.start()
    session = await caller.endpoint.connect(callee.inbox)  # its HELLO has not left
    transport.refused.add(callee.inbox)
    publishers = caller.endpoint.publishers
    publishers._forget(callee.inbox, publishers._inboxes[callee.inbox])
    started = loop.time()
    request = caller.send(session, b"1:1", deadline=started + 2.25)
    await request.outcome
    assert 2.25 <= loop.time() - started < 2.3
    assert session in caller.endpoint._unready[callee.inbox]
    await caller.stop()
    await callee.stop()


async def test_a_callee_whose_publisher_cannot_be_opened_answers_when_it_can() -> None:
    topics, transport = new_topics(), RefusingTransport()
    callee, caller = Callee(transport, topics), Caller(MemoryTransport(URL), topics)
    transport.refused.add(caller.inbox)
    await callee.start()
    await caller.start()
    connecting = asyncio.create_task(caller.connect(callee.inbox))
    await advance(3)
    assert not connecting.done()
    transport.refused.clear()
    await advance(RETRY_S + 1)
    session = await connecting
    assert await caller.call(session, b"1:1") == b"1"
    await caller.stop()
    await callee.stop()


async def test_connect_reports_an_inbox_that_cannot_be_opened() -> None:
    topics, transport = new_topics(), RefusingTransport()
    caller = Caller(transport, topics)
    await caller.start()
    transport.refused.add("non-persistent://tg/request/unreachable")
    with pytest.raises(TransportError, match="no Pulsar broker replies"):
        await caller.endpoint.connect("non-persistent://tg/request/unreachable")
    assert not caller.table.sessions
    await caller.stop()
    with pytest.raises(TransportError, match="closed"):
        await caller.endpoint.connect("non-persistent://tg/request/other")
