"""How long a circuit stays open: spread, growing, bounded, and forgiven by health.

Guards against breakers that start again at their shortest time after each relapse, and against a herd of dispatchers that
come back at the same moment because all of them use the same fixed time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.resilience.breaker import BreakerRules, OpenDuration

DEFAULT = BreakerRules()
EXACT = BreakerRules(jitter=0)


def test_open_duration_doubles_up_to_the_maximum() -> None:
    time = OpenDuration(lambda: 0.5)
    assert [time.record_opening(0.0, 0, EXACT) for _ in range(9)] == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert time.doublings == 6


def test_no_doubling_is_counted_at_the_maximum() -> None:
    time, settings = OpenDuration(lambda: 0.5), BreakerRules(jitter=0, open_duration=5, max_open_duration=20)
    assert [time.record_opening(0.0, 0, settings) for _ in range(4)] == [5, 10, 20, 20]
    assert time.doublings == 2


@pytest.mark.parametrize(
    ("chance", "times"), [(0.0, (2.5, 5.0, 10.0)), (0.5, (5.0, 10.0, 20.0)), (0.75, (6.25, 12.5, 25.0))]
)
def test_jitter_spans_half_to_one_and_a_half(chance: float, times: tuple[float, ...]) -> None:
    time = OpenDuration(lambda: chance)
    assert tuple(time.record_opening(0.0, 0, DEFAULT) for _ in range(3)) == times


def test_maximum_open_durations_have_jitter() -> None:
    seen = []
    for seed in range(200):
        time = OpenDuration(random.Random(seed).random)
        for _ in range(12):
            last = time.record_opening(0.0, 0, DEFAULT)
        seen.append(last)
    assert 100 <= min(seen) < 110
    assert 290 < max(seen) <= 300


def test_each_decay_duration_spent_closed_undoes_one_doubling() -> None:
    time = OpenDuration(lambda: 0.5)
    for _ in range(4):
        time.record_opening(0.0, 0, EXACT)
    assert time.doublings == 4
    time.start_healthy_period(1000.0)
    assert time.record_opening(1029.999, 0, EXACT) == 80, "not a whole while: nothing forgiven"
    time.start_healthy_period(2000.0)
    assert time.record_opening(2030.0, 0, EXACT) == 80, "five, less one"
    time.start_healthy_period(3000.0)
    assert time.record_opening(3090.0, 0, EXACT) == 20, "five, less three"
    time.start_healthy_period(4000.0)
    assert time.record_opening(5000.0, 0, EXACT) == 5, "never below none"
    assert time.doublings == 1


def test_only_time_spent_closed_decays() -> None:
    time = OpenDuration(lambda: 0.5)
    assert time.record_opening(0.0, 0, EXACT) == 5
    assert time.record_opening(1e6, 0, EXACT) == 10, "it was open or probing all the while"
    time.start_healthy_period(1e6)
    time.end_healthy_period(1e6 + 30, EXACT)
    assert time.doublings == 1
    time.end_healthy_period(1e6 + 300, EXACT)
    assert time.record_opening(1e6 + 600, 0, EXACT) == 10, "it was not closed any more"


def test_cleared_open_duration_starts_at_the_shortest() -> None:
    time = OpenDuration(lambda: 0.5)
    time.record_opening(0.0, 0, EXACT)
    time.start_healthy_period(5.0)
    time.clear()
    time.end_healthy_period(1e6, EXACT)
    assert time.doublings == 0
    assert time.record_opening(6.0, 0, EXACT) == 5


def test_requested_retry_after_is_respected_with_jitter() -> None:
    assert OpenDuration(lambda: 0.0).record_opening(0.0, 60, DEFAULT) == 60
    assert OpenDuration(lambda: 0.5).record_opening(0.0, 60, DEFAULT) == 61.25
    assert OpenDuration(lambda: 0.5).record_opening(0.0, 60, EXACT) == 60
    assert OpenDuration(lambda: 0.5).record_opening(0.0, 0.5, DEFAULT) == 5, "our own time when that is longer"
    time = OpenDuration(lambda: 0.5)
    time.record_opening(0.0, 60, EXACT)
    assert time.record_opening(0.0, 0, EXACT) == 10, "what it asked for is not doubled"


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1e4), st.floats(0, 1, exclude_max=True)), max_size=60),
    st.floats(0, 0.99),
    st.floats(0.001, 300),
    st.floats(0.001, 300),
)
def test_open_duration_stays_within_its_bounds(
    steps: list[tuple[bool, float, float]], jitter: float, one: float, other: float
) -> None:
    settings = BreakerRules(jitter=jitter, open_duration=min(one, other), max_open_duration=max(one, other))
    chances = [chance for _, _, chance in steps]
    time, now = OpenDuration(lambda: chances.pop(0)), 0.0
    for closed, passed, _ in list(steps):
        now += passed
        seconds = time.record_opening(now, 0, settings)
        base = min(settings.open_duration, settings.max_open_duration / (1 + jitter))
        assert base * (1 - jitter) * 0.999999 <= seconds <= settings.max_open_duration * 1.000001
        assert 0 <= time.doublings <= 20
        if closed:
            time.start_healthy_period(now)
