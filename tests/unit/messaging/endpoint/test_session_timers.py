"""Timers of sessions: never late, early at most, and bounded."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dispatch.messaging.endpoint import SessionTimers


def test_a_session_is_due_at_its_time() -> None:
    timers: SessionTimers[str] = SessionTimers()
    timers.schedule("a", 2.0)
    timers.schedule("b", 1.0)
    assert timers.next_due == 1.0
    assert timers.pop_due(0.5) == []
    assert timers.pop_due(1.0) == ["b"]
    assert timers.pop_due(5.0) == ["a"]
    assert timers.next_due == math.inf


def test_a_later_time_adds_no_entry_and_an_earlier_one_does() -> None:
    timers: SessionTimers[str] = SessionTimers()
    for _ in range(1000):
        timers.schedule("a", 5.0)
        timers.schedule("a", 7.0)
    timers.schedule("a", math.inf)
    assert len(timers) == 1
    timers.schedule("a", 3.0)
    assert len(timers) == 2
    assert timers.next_due == 3.0


def test_a_session_that_alternates_between_soon_and_late_leaves_no_entries() -> None:
    """A request: due in milliseconds; its reply: due in ten seconds."""
    timers: SessionTimers[str] = SessionTimers()
    now = 0.0
    for _ in range(1000):
        timers.schedule("a", now + 10.0)
        timers.schedule("a", now + 0.005)
        now += 0.006
        assert "a" in timers.pop_due(now)
    assert len(timers) <= 2


def test_a_discarded_session_is_not_reported() -> None:
    timers: SessionTimers[str] = SessionTimers()
    timers.schedule("a", 1.0)
    timers.schedule("b", 1.0)
    timers.discard("a")
    timers.discard("unknown")
    assert timers.pop_due(2.0) == ["b"]
    timers.schedule("b", 3.0)
    timers.clear()
    assert timers.pop_due(9.0) == []


times = st.floats(0, 100)


@given(st.lists(st.tuples(st.sampled_from("abc"), times, times), max_size=60))
def test_every_session_is_reported_by_the_time_it_is_due(steps: list[tuple[str, float, float]]) -> None:
    timers: SessionTimers[str] = SessionTimers()
    wanted: dict[str, float] = {}
    now = 0.0
    for session, delay, passed in steps:
        wanted[session] = min(wanted.get(session, math.inf), now + delay)
        timers.schedule(session, now + delay)
        now += passed
        reported = set(timers.pop_due(now))
        assert {each for each, at in wanted.items() if at <= now} <= reported
        assert not any(at <= now for at in [timers.next_due])
        for each in reported:
            if wanted.get(each, math.inf) <= now:
                del wanted[each]
            else:
                timers.schedule(each, wanted.get(each, math.inf))
