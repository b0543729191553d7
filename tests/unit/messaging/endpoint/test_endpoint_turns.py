"""The endpoint and the event loop: which packets leave when, and how much is done in one turn."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dispatch.messaging import endpoint
from dispatch.protocol import CallerSession, Session, Settings
from dispatch.protocol.events import Event, Failure, RequestFailed, RequestReceived
from tests.helpers.clock import advance, idle
from tests.helpers.endpoint_peers import URL, Request, peers

# -- packets that are sent in a turn ----------------------------------------------------------------------------------


async def test_requests_of_one_turn_and_of_the_tasks_it_wakes_leave_in_one_packet() -> None:
    async with peers(URL) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
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
    async with peers(URL) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
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
    async with peers(URL) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
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
    async with peers(URL) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
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
    async with peers(URL) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
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
    async with peers(URL) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
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
        outcome = await lost.outcome
        assert isinstance(outcome, RequestFailed)
        assert (outcome.reason, outcome.may_have_run) == (Failure.DEADLINE, True)
