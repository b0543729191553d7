"""Two endpoints over the embedded broker; over Pulsar: tests/integration/pulsar/test_sessions_*.py.
A broker that accepts smaller messages than it did when a session was opened: it was started again with another limit.
Sessions and deadlines while the connection is down, or while a publisher cannot be opened.
Further paths for large replies: opened, lost with their connection, withdrawn, and not opened.
The endpoint and the event loop: which packets leave when, and how much is done in one turn.
Sessions of an endpoint: their ends, restarted and absent callees, backpressure of streams, and load.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from dispatch.errors import TransportError
from dispatch.messaging import endpoint
from dispatch.messaging.endpoint import RETRY_S, Endpoint
from dispatch.protocol import CallerSession, Session, SessionTable, Settings
from dispatch.protocol.events import Event, Failure, RequestFailed, RequestReceived
from dispatch.testing import FaultInjector, Faults, FaultyTransport
from dispatch.transports import Transport
from dispatch.transports.errors import unreachable
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle, start_task
from tests.helpers.endpoint_peers import URL, Callee, Caller, Request, new_topics, pair, peers


async def test_a_request_gets_its_reply() -> None:
    async with pair() as (caller, callee, session):
        assert await caller.call(session, b"1:3") == b"1.."
        assert (session.peer_name, callee.runs) == ("callee-0", {b"1": 1})
    assert callee.closed == [("caller", "closed")]


async def test_a_reply_of_ten_megabytes() -> None:
    async with pair() as (caller, _, session):
        assert await caller.call(session, b"7:10000000") == b"7".ljust(10_000_000, b".")


async def test_many_requests_share_packets() -> None:
    async with pair() as (caller, callee, session):
        before = session.statistics.packets_sent
        replies = await asyncio.gather(*(caller.call(session, b"%d:20" % number) for number in range(500)))
        assert replies == [(b"%d" % number).ljust(20, b".") for number in range(500)]
        assert session.statistics.packets_sent - before < 50
        assert set(callee.runs.values()) == {1}


@pytest.mark.parametrize("size", [50, 20_000, 300_000])
async def test_nothing_is_lost_or_run_twice_with_one_packet_of_twenty_dropped_each_way(size: int) -> None:
    faults = FaultInjector(Faults(drop=0.05, direction="out", seed=size))
    async with pair(wrap=lambda inner: FaultyTransport(inner, faults)) as (caller, callee, session):
        count = max(160, 4_000_000 // (size + 1_000))

        async def call_several(start: int) -> None:
            for number in range(start, start + count // 8):
                reply = await caller.call(session, b"%d:%d" % (number, size))
                assert reply == (b"%d" % number).ljust(size, b".")

        await asyncio.gather(*(call_several(10_000 * start) for start in range(8)))
        assert faults.count["out drop"] > 0
        assert set(callee.runs.values()) == {1}
        assert not caller.failures
        faults.heal()


async def test_half_open_sessions_that_give_way_to_others_expire_all_the_same() -> None:
    """One session ends and another begins with the same packet: the number of sessions does not change."""
    settings = Settings(max_half_open=1, half_open=0.5)
    async with peers("memory://", settings=settings) as (caller, [callee]):
        for _ in range(3):
            session = caller.table.connect(callee.inbox, asyncio.get_running_loop().time())
            ((_, hello),) = session.packets_to_send(asyncio.get_running_loop().time())
            callee.endpoint.receive_packet(hello)
            caller.table.end(session, asyncio.get_running_loop().time())
        assert len(callee.table.sessions) == 1
        await asyncio.sleep(2)
        assert callee.table.sessions == {}


LIMIT = 20_000


@asynccontextmanager
async def limited() -> AsyncIterator[tuple[Caller, Callee]]:
    """A caller and a callee on a broker without a limit so far."""
    async with peers("memory://endpoint") as (caller, [callee]):
        yield caller, callee


def limit_messages(*peers: Caller | Callee) -> None:
    for peer in peers:
        peer.transport.max_message_bytes = LIMIT


@pytest.mark.parametrize("size", [50_000, 3_000_000])
async def test_a_request_in_a_packet_that_is_too_large_fails_at_once_and_the_next_session_fits(size: int) -> None:
    async with limited() as (caller, callee):
        session = await caller.connect(callee.inbox)
        await advance(1)
        limit_messages(caller, callee)
        began = asyncio.get_running_loop().time()
        outcome = await caller.send(session, b"1:1".ljust(size)).outcome
        assert asyncio.get_running_loop().time() == began
        assert outcome.reason is Failure.BROKER_REFUSED
        await idle()
        assert caller.closed == [("callee-0", "broker-refused")]
        assert callee.closed == [("caller", "broker-refused")]
        assert not callee.runs
        session = await caller.connect(callee.inbox)
        assert await caller.call(session, b"2:%d" % size) == b"2".ljust(size, b".")
        assert (await caller.call(session, b"3:1".ljust(size)))[:1] == b"3"


async def test_a_reply_in_a_packet_that_is_too_large_ends_the_session() -> None:
    async with limited() as (caller, callee):
        session = await caller.connect(callee.inbox)
        await advance(1)
        limit_messages(caller, callee)
        assert await caller.send(session, b"1:50000").failure() == (Failure.BROKER_REFUSED, True)
        session = await caller.connect(callee.inbox)
        assert await caller.call(session, b"2:50000") == b"2".ljust(50_000, b".")


async def test_a_session_with_small_packets_continues() -> None:
    async with limited() as (caller, callee):
        session = await caller.connect(callee.inbox)
        limit_messages(caller, callee)
        for number in range(20):
            assert await caller.call(session, b"%d:1000" % number) == (b"%d" % number).ljust(1_000, b".")
        assert caller.closed == callee.closed == []


# -- a connection that is down ----------------------------------------------------------------------------------------
async def test_sessions_survive_an_outage_that_is_longer_than_they_wait_for_a_silent_peer() -> None:
    faults = FaultInjector()
    async with pair(wrap=lambda inner: FaultyTransport(inner, faults)) as (caller, callee, session):
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
        assert await expired.failure() == (Failure.DEADLINE, False)
        assert not any(request.outcome.done() for request in (*running, *waiting))
        await advance(1.2)
        found = [await request.outcome for request in (*running, *waiting)]
        assert found == [(b"%d" % number).ljust(10, b".") for number in range(10)]
        assert set(callee.runs.values()) == {1}
        assert caller.closed == callee.closed == []
        await callee.transport.inner.close()
        request = caller.send(session, b"100:1")
        await advance(15)
        assert (await request.outcome).reason is Failure.SILENT, "it is given up again"


class Moving(FaultyTransport):
    """A connection whose topics have moved to another broker ``at`` some time, where the peer is back later."""

    at = -math.inf

    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool:
        return bool(topics) and self.at >= instant


@pytest.mark.parametrize("has_moved", [True, False])
async def test_a_peer_may_be_back_later_at_a_topic_that_has_moved(has_moved: bool) -> None:
    """Its client finds the new owner by itself; until then the broker drops what is sent there."""
    injector = FaultInjector()
    async with pair(wrap=lambda inner: Moving(inner, injector)) as (caller, callee, session):
        await advance(1)
        if has_moved:
            caller.transport.at = asyncio.get_running_loop().time()
        injector.inject(Faults(drop=1.0))
        request = caller.send(session, b"1:10")
        await advance(4)
        injector.heal()
        await advance(2)
        assert callee.runs[b"1"] == has_moved
        outcome = await request.outcome
        assert outcome == b"1".ljust(10, b".") if has_moved else isinstance(outcome, RequestFailed)


async def test_deadlines_that_pass_during_an_outage_are_kept() -> None:
    """One after the other within a millisecond: each ends by a timer that is due almost at once."""
    faults, loop = FaultInjector(), asyncio.get_running_loop()
    async with pair(wrap=lambda inner: FaultyTransport(inner, faults)) as (caller, _, session):
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
        first = await start_task(caller.connect(callee.inbox), 1)
        second = await start_task(caller.connect(callee.inbox), 28)
        assert not first.done()
        assert not second.done()
        await advance(2)
        await first
        assert await caller.call(await second, b"1:1") == b"1"


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
    await caller.send(session, b"1:1", deadline=started + 2.25).outcome
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
    connecting = await start_task(caller.connect(callee.inbox), 3)
    assert not connecting.done()
    transport.refused.clear()
    await advance(RETRY_S + 1)
    assert await caller.call(await connecting, b"1:1") == b"1"
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


class Recorded(FaultyTransport):
    """Adds its further connections to a list."""

    def __init__(self, inner: Transport, further: list[FaultyTransport]) -> None:
        super().__init__(inner)
        self._further = further

    def another(self) -> FaultyTransport:
        self._further.append(super().another())
        return self._further[-1]


async def test_a_large_reply_uses_the_paths_that_are_opened_for_it() -> None:
    async with pair(has_paths=True) as (caller, callee, session):
        for number in range(40):
            await asyncio.gather(*(caller.call(session, b"%d:400000" % number) for _ in range(8)))
        assert len(caller.table.inboxes) == 4
        [callee_session] = callee.table.sessions.values()
        assert len(callee_session.peer_inboxes) == 4
        assert callee_session.peer_inboxes == caller.table.inboxes
        assert all(path.next_number > 0 for path in callee_session._sender.paths)


async def test_large_replies_continue_when_the_connection_of_a_path_is_lost() -> None:
    further: list[FaultyTransport] = []
    async with pair(has_paths=True, wrap=lambda inner: Recorded(inner, further)) as (caller, callee, session):

        async def call_many() -> None:
            for number in range(40):
                await asyncio.gather(*(caller.call(session, b"%d:400000" % number) for _ in range(8)))

        await call_many()
        assert len(further) == 3
        [callee_session] = callee.table.sessions.values()
        first, second, third, fourth = callee_session.peer_inboxes
        further[1].disconnect(30)
        async with asyncio.timeout(5):
            await call_many()
        assert callee_session.peer_inboxes == [first, second, first, fourth]
        await advance(30)
        await call_many()
        assert callee_session.peer_inboxes == [first, second, third, fourth]
        assert not caller.failures


async def test_packets_of_a_path_that_the_caller_has_withdrawn_travel_on_the_first_one() -> None:
    further: list[FaultyTransport] = []
    async with pair(has_paths=True, wrap=lambda inner: Recorded(inner, further)) as (caller, _, session):
        for number in range(40):
            await asyncio.gather(*(caller.call(session, b"%d:400000" % number) for _ in range(8)))
        for connection in further:
            connection.disconnect(60)
        requests = [caller.send(session, b"%d:400000" % number) for number in range(8)]
        await advance(0.01)
        caller.table.replace_inboxes(caller.table.inboxes[:1])
        caller.endpoint.wake(session)
        async with asyncio.timeout(10):
            for request in requests:
                assert isinstance(await request.outcome, bytes)


async def test_small_replies_open_no_path() -> None:
    async with pair(has_paths=True) as (caller, _, session):
        for _ in range(40):
            await asyncio.gather(*(caller.call(session, b"%d:4000" % number) for number in range(64)))
        assert len(caller.table.inboxes) == 1


async def test_a_path_whose_connection_fails_is_not_used_and_tried_later() -> None:
    class OneConnection(MemoryTransport):
        attempts = 0

        def another(self) -> MemoryTransport:
            type(self).attempts += 1
            return MemoryTransport("memory://elsewhere") if self.attempts > 1 else Failing(URL)

    class Failing(MemoryTransport):
        async def start(self) -> None:
            raise unreachable(self.url)

    async with pair(has_paths=True, wrap=lambda _: OneConnection(URL)) as (caller, _, session):
        for _ in range(30):
            await asyncio.gather(*(caller.call(session, b"%d:400000" % number) for number in range(8)))
        assert OneConnection.attempts == 1
        assert len(caller.table.inboxes) == 1


# -- packets that are sent in a turn ----------------------------------------------------------------------------------
async def test_requests_of_one_turn_and_of_the_tasks_it_wakes_leave_in_one_packet() -> None:
    async with pair() as (caller, _, session):
        await advance(1)
        before = session.statistics.packets_sent
        first = [caller.send(session, b"%d:1" % number) for number in range(session.settings.early_frames - 1)]

        async def call_again(request: Request) -> None:
            await request.outcome
            await caller.call(session, b"9:1")

        tasks = [asyncio.create_task(call_again(request)) for request in first]
        await asyncio.gather(*tasks)
        # One for these requests, one for as many more with the acknowledgement of the replies.
        assert session.statistics.packets_sent - before == 2


async def test_an_idle_peer_gets_the_first_batch_of_a_long_turn_at_once() -> None:
    async with pair() as (caller, _, session):
        await advance(1)
        before, batch = session.statistics.packets_sent, session.settings.early_frames
        sent = []
        requests = []
        for number in range(4 * batch):
            requests.append(caller.send(session, b"%d:1" % number))
            sent.append(session.statistics.packets_sent - before)
        # The rest waits for the end of the turn: the peer has something to do.
        assert sent == [0] * (batch - 1) + [1] * (3 * batch + 1)
        await asyncio.gather(*(request.outcome for request in requests))
        assert session.statistics.packets_sent - before == 2


async def test_one_call_at_a_time_leaves_at_once_and_several_wait_for_each_other() -> None:
    async with pair() as (caller, _, session):
        await advance(1)
        statistics = session.statistics

        async def count_early(numbers: range) -> int:
            before = statistics.packets_sent
            requests = [caller.send(session, b"%d:1" % number) for number in numbers]
            early = statistics.packets_sent - before
            await asyncio.gather(*(request.outcome for request in requests))
            return early

        assert await count_early(range(1)) == 0, "whether others follow is not known yet"
        assert await count_early(range(1, 2)) == 1
        assert await count_early(range(2, 6)) == 1, "the first one leaves alone"
        assert await count_early(range(6, 10)) == 0
        assert await count_early(range(10, 11)) == 0
        assert await count_early(range(11, 12)) == 1


async def test_packets_of_a_burst_wake_their_tasks_before_the_next_packet_leaves() -> None:
    """Replies of several callees arrive in one turn: each caller's next request joins the same flush."""
    async with peers(URL, callees=5) as (caller, callees):
        sessions = [await caller.connect(callee.inbox) for callee in callees]
        await advance(1)
        before = sum(session.statistics.packets_sent for session in sessions)

        async def call_twice(session: CallerSession) -> None:
            await caller.call(session, b"1:1")
            await caller.call(session, b"2:1")

        await asyncio.gather(*(call_twice(session) for session in sessions))
        assert sum(session.statistics.packets_sent for session in sessions) - before == 10


async def test_two_packets_of_one_burst_are_answered_by_one() -> None:
    async with pair() as (caller, callee, session):
        await advance(1)
        callee.is_holding = True

        async def call_twice(number: int) -> None:
            await caller.call(session, b"%d:1" % number)
            await caller.call(session, b"%d:1" % (10 + number))

        tasks = [asyncio.create_task(call_twice(number)) for number in range(2)]
        await idle()
        before = session.statistics.packets_sent
        for callee_session, event in callee.held:
            callee.reply(callee_session, event)
            callee.endpoint._send_due(callee_session, callee.endpoint._clock())
        callee.is_holding = False
        await asyncio.gather(*tasks)
        assert session.statistics.packets_sent - before == 1


async def test_an_urgent_acknowledgement_leaves_before_the_events_are_handled() -> None:
    async with pair() as (caller, callee, session):
        await advance(1)
        [callee_session] = callee.table.sessions.values()
        before = callee_session.statistics.packets_sent
        inner, sent = callee.on_events, list[int]()

        def on_events(session: Session, events: list[Event]) -> None:
            sent.append(session.statistics.packets_sent - before)
            inner(session, events)

        callee.endpoint._on_events = on_events
        await caller.call(session, b"1:1".ljust(30_000))
        assert sent == [1], "half of the window is in flight"


async def test_peers_that_must_learn_of_a_smaller_window_are_told_at_once() -> None:
    settings = Settings(senders_at_full_window=1)
    async with peers(URL, callees=3, settings=settings) as (caller, callees):
        sessions = [await caller.connect(callee.inbox) for callee in callees]
        await advance(1)
        for callee in callees:
            callee.is_holding = True
        for session in sessions:
            caller.send(session, b"1:1")
        await idle()
        assert caller.table.receive_window.due == []
        assert {each.window for callee in callees for each in callee.table.sessions.values()} <= {16_000, 24_000}


# -- limits of a turn -------------------------------------------------------------------------------------------------
async def test_an_idle_session_costs_nothing_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with peers(URL, callees=30) as (caller, callees):
        sessions = [await caller.connect(callee.inbox) for callee in callees]
        await advance(1)
        asked: list[Session] = []
        inner = Session.packets_to_send

        def counted(session: Session, now: float) -> list[tuple[int, bytes]]:
            asked.append(session)
            return inner(session, now)

        monkeypatch.setattr(Session, "packets_to_send", counted)
        for number in range(20):
            await caller.call(sessions[0], b"%d:1" % number)
        of_caller = [session for session in asked if isinstance(session, CallerSession)]
        assert set(of_caller) == {sessions[0]}


async def test_a_turn_with_nothing_to_send_and_a_timer_that_is_not_due_pack_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call alone leaves at once, so that the end of its turn has nothing to send; and its timer is early, because what
    it was set for has been acknowledged."""
    async with pair() as (caller, callee, session):
        await advance(1)
        await caller.call(session, b"0:1")
        packed: list[Session] = []
        inner = Session.packets_to_send

        def counted(session: Session, now: float) -> list[tuple[int, bytes]]:
            packed.append(session)
            return inner(session, now)

        monkeypatch.setattr(Session, "packets_to_send", counted)
        before = sum(each.statistics.packets_sent for each in (session, *callee.endpoint.table.sessions.values()))
        for number in range(1, 11):
            await caller.call(session, b"%d:1" % number)
        sent = (
            sum(each.statistics.packets_sent for each in (session, *callee.endpoint.table.sessions.values())) - before
        )
        assert sent == 20, "a packet for each request and each reply; the acknowledgements travel in them"
        assert len(packed) == sent
        caller.endpoint._timer.cancel()
        caller.endpoint._timers.schedule(session, 0.0)
        caller.endpoint._on_timer()
        assert len(packed) == sent
        assert 0.0 < caller.endpoint._timers.next_due < math.inf


async def test_a_turn_handles_a_bounded_number_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FRAMES_PER_TURN", 10)
    async with peers(URL) as (caller, [callee]):
        callee.endpoint._budget = 10
        session = await caller.connect(callee.inbox)
        await advance(1)
        packets: list[bytes] = []
        for number in range(6):
            session.send_request(Request(), "tool", b"%d:1" % number, None, caller.endpoint._clock())
            session.send_request(Request(), "tool", b"%d:1" % (100 + number), None, caller.endpoint._clock())
            packets += [packet for _, packet in session.packets_to_send(caller.endpoint._clock())]
        assert len(packets) == 6
        done: list[int] = []
        for packet in packets:
            callee.endpoint.receive_packet(packet)
        while len(callee.runs) < 12:
            done.append(len(callee.runs))
            await asyncio.sleep(0)
        assert done[0] == 8, "each packet counts, too: three frames a packet"
        await idle()
        assert set(callee.runs.values()) == {1}


async def test_packets_beyond_the_backlog_are_dropped_and_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FRAMES_PER_TURN", 2)
    monkeypatch.setattr(endpoint, "MAX_BACKLOG_BYTES", 1_000)
    async with peers(URL, callees=8) as (caller, callees):
        sessions = [await caller.connect(callee.inbox) for callee in callees]
        await advance(1)
        outcomes = await asyncio.gather(*(caller.call(session, b"1:600") for session in sessions))
        assert len(outcomes) == 8
        assert caller.endpoint.dropped > 0
        assert caller.endpoint._backlog_bytes == 0
        assert not caller.failures


async def test_a_handler_that_raises_costs_its_own_events_only(caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as (caller, callee, session):
        inner = callee.on_events

        def on_events(session: Session, events: list[Event]) -> None:
            for event in events:
                if isinstance(event, RequestReceived) and event.payload.startswith(b"bad"):
                    raise RuntimeError("of the application")
            inner(session, events)

        callee.endpoint._on_events = on_events
        lost = caller.send(session, b"bad", deadline=asyncio.get_running_loop().time() + 5)
        with caplog.at_level(logging.CRITICAL, logger="dispatch.endpoint"):
            await idle()
        assert await caller.call(session, b"1:1") == b"1"
        assert callee.endpoint.handler_errors == 1
        assert await lost.failure() == (Failure.DEADLINE, True)


# -- the end of a session ---------------------------------------------------------------------------------------------


async def test_ending_a_session_tells_its_peer() -> None:
    async with pair() as (caller, callee, session):
        callee.is_holding = True
        request = caller.send(session, b"1:1")
        await idle()
        caller.endpoint.end(session)
        assert await request.failure() == (Failure.CLOSED, True)
        await idle()
        assert (callee.closed, callee.cancelled) == ([("caller", "closed")], [0])
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
        assert (await request.outcome).reason is Failure.CLOSED
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
        waiting = await start_task(callee.endpoint.writable(callee_session, event.number))
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
