"""The learnt limit: up while calls answer as fast as ever, down when they queue inside the service or get lost.

The peers' failures it guards against: a limit that learns from a stable timeout and climbs to its maximum; one that grows
although nobody uses it.
"""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.resilience.bulkhead.adaptive_limit import LOOK_EVERY, MAX_TIMES, WITNESSES, AdaptiveLimit, correlation

START = 1_000.0


def limit_of(minimum: int = 4, initial: int = 20, maximum: int = 200, **more: Any) -> AdaptiveLimit:
    return AdaptiveLimit(minimum, initial, maximum, **{"max_limit_factor": 2.0, "freeze_at": 0.1, "now": START, **more})


class Feed:
    """Windows of samples, one a second."""

    def __init__(self, limit: AdaptiveLimit) -> None:
        self.limit = limit
        self.now = START

    def window(
        self,
        elapsed: float = 0.1,
        *,
        count: int = 100,
        in_flight: int | None = None,
        timeouts: int = 0,
        throttled: int = 0,
        lasted: float = 1.0,
    ) -> int:
        """``count`` samples in all; the limit afterwards."""
        in_flight = self.limit.limit if in_flight is None else in_flight
        for number in range(count):
            now = self.now + lasted * (number + 1) / count
            if number < timeouts:
                self.limit.dropped(in_flight, now, timed_out=True)
            elif number < timeouts + throttled:
                self.limit.dropped(in_flight, now, timed_out=False)
            else:
                self.limit.answered(elapsed, in_flight, now)
        self.now += lasted
        return self.limit.limit


def test_a_service_that_is_as_fast_as_ever_may_have_more() -> None:
    feed = Feed(limit_of())
    assert feed.limit.baseline is None
    assert feed.limit.limit == 20
    assert feed.limit.frozen is False
    assert feed.window() == 27, "six times the decimal logarithm"
    assert feed.limit.baseline == 0.1
    assert feed.window() == 36
    for _ in range(100):
        assert feed.window() <= 200
    assert feed.window() in range(160, 201)


def test_a_window_needs_a_second_and_fifty_samples() -> None:
    feed = Feed(limit_of())
    assert feed.window(count=49) == 20
    feed.limit.answered(0.1, 20, feed.now)
    assert feed.limit.limit == 27
    feed = Feed(limit_of())
    assert feed.window(count=200, lasted=0.999) == 20
    feed.limit.answered(0.1, 20, START + 1.0)
    assert feed.limit.limit == 27


def test_after_half_a_minute_ten_samples_do() -> None:
    feed = Feed(limit_of())
    assert feed.window(count=9, lasted=30.0) == 20
    feed.limit.answered(0.1, 20, feed.now)
    assert feed.limit.limit == 27
    feed = Feed(limit_of())
    assert feed.window(count=49, lasted=29.999) == 20
    feed.limit.answered(0.1, 20, START + 30.0)
    assert feed.limit.limit == 27


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    feed = Feed(limit_of())
    assert feed.window(in_flight=10) == 20, "half of it was used"
    assert feed.window(in_flight=11) == 27
    feed = Feed(limit_of(max_limit_factor=3.0))
    assert feed.window(in_flight=6) == 20
    assert feed.window(in_flight=7) == 27


def test_the_most_that_was_in_flight_counts_as_use() -> None:
    feed = Feed(limit_of())
    for number in range(100):
        feed.limit.answered(0.1, 11 if number == 50 else 2, START + (number + 1) / 100)
    assert feed.limit.limit == 27


@pytest.mark.parametrize(
    ("elapsed", "change"),
    [
        (0.105, 6 * 1.444),  # 1.2 of 27 calls are queued: fewer than the logarithm of the limit
        (0.11, 1.444),  # 2.4: fewer than three times that
        (0.125, 0.0),  # 5.2: fewer than six times that
        (0.2, -1.444),
    ],
)
def test_the_queue_inside_the_service_decides(elapsed: float, change: float) -> None:
    feed = Feed(limit_of())
    feed.window()
    before = feed.limit._limit
    feed.window(elapsed)
    assert feed.limit._limit - before == pytest.approx(change, abs=0.01)


def test_the_best_time_falls_fast_and_rises_slowly() -> None:
    feed = Feed(limit_of())
    feed.window(0.2)
    feed.window(0.1, in_flight=11)
    assert feed.limit.baseline == pytest.approx(0.175)
    feed.window(0.475, in_flight=20)
    assert feed.limit.baseline == pytest.approx(0.185)


def test_an_answer_that_took_no_time_at_all_divides_nothing() -> None:
    feed = Feed(limit_of())
    assert feed.window(0.0) == 27


@pytest.mark.parametrize(
    ("timeouts", "throttled", "limit", "frozen"),
    [
        (1, 0, 27, False),  # one of a hundred is tolerated
        (2, 0, 19, False),
        (0, 2, 19, False),
        (10, 0, 18, False),
        (11, 0, 17, True),
        (0, 11, 17, False),
        (0, 40, 12, False),
        (40, 0, 12, True),
        (50, 0, 10, True),
        (100, 0, 10, True),  # halved, at most
    ],
)
def test_losses_take_from_the_limit_as_they_took_from_the_calls(
    timeouts: int, throttled: int, limit: int, frozen: bool
) -> None:
    feed = Feed(limit_of())
    assert feed.window(timeouts=timeouts, throttled=throttled) == limit
    assert feed.limit.frozen is frozen
    assert (feed.limit.baseline is None) is frozen


def test_nothing_is_learnt_while_many_time_out() -> None:
    feed = Feed(limit_of(freeze_at=0.005))
    feed.window(0.2)
    assert feed.limit.limit == 27
    assert feed.window(0.01, timeouts=1) == 27, "too few to be a loss, too many to learn from"
    assert feed.limit.frozen
    assert feed.limit.baseline == 0.2
    assert len(feed.limit._witnesses) == 1
    assert feed.window(0.2) > 27
    assert not feed.limit.frozen


def test_a_stable_timeout_does_not_look_like_a_stable_duration() -> None:
    """Peers' limits climb to their maximum on a service that answers nothing, for it does so after the same time always."""
    feed = Feed(limit_of())
    limits = [feed.window(timeouts=100) for _ in range(20)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == 4
    assert feed.limit.baseline is None
    for _ in range(3):
        feed.window()
    assert feed.limit.limit > 12, "and it finds its way back"


def test_never_frozen_is_possible_and_no_answer_teaches_nothing() -> None:
    feed = Feed(limit_of(freeze_at=1.0))
    assert feed.window(timeouts=100) == 10
    assert not feed.limit.frozen
    assert feed.limit.baseline is None


def test_the_limit_keeps_to_its_bounds() -> None:
    feed = Feed(limit_of(minimum=19, maximum=21))
    assert feed.window() == 21
    assert feed.window(timeouts=50) == 19
    assert feed.window(timeouts=50) == 19
    feed.limit.reconfigure(30, 40, max_limit_factor=5.0, freeze_at=0.2)
    assert feed.limit.limit == 30
    feed.limit.reconfigure(1, 10, max_limit_factor=5.0, freeze_at=0.2)
    assert feed.limit.limit == 10
    assert feed.window(timeouts=11) == 8
    assert not feed.limit.frozen
    assert feed.window(in_flight=2) > 8, "five times what is in flight, now"


def test_now_and_then_it_looks_what_a_lower_limit_does() -> None:
    assert LOOK_EVERY == 15
    feed = Feed(limit_of(maximum=20))
    assert [feed.window() for _ in range(LOOK_EVERY)] == [20] * (LOOK_EVERY - 1) + [16]
    assert [feed.window() for _ in range(LOOK_EVERY)] == [20] * (LOOK_EVERY - 1) + [16]


def test_a_limit_that_is_not_used_up_needs_no_look() -> None:
    feed = Feed(limit_of(maximum=20))
    assert [feed.window(in_flight=19) for _ in range(2 * LOOK_EVERY)] == [20] * (2 * LOOK_EVERY)
    assert feed.window(in_flight=20) == 16


def test_a_limit_that_stands_still_is_looked_at_as_well() -> None:
    feed = Feed(limit_of())
    assert [feed.window(in_flight=10) for _ in range(LOOK_EVERY - 1)] == [20] * (LOOK_EVERY - 1)
    assert feed.window(in_flight=20) == 16


def test_any_step_down_serves_as_a_look() -> None:
    feed = Feed(limit_of(maximum=20))
    for _ in range(LOOK_EVERY - 1):
        feed.window()
    assert feed.window(throttled=2) == 19
    assert [feed.window() for _ in range(LOOK_EVERY)] == [20] * (LOOK_EVERY - 1) + [16]


def test_more_in_flight_that_brings_longer_calls_and_no_more_answers_is_too_much() -> None:
    """By the queue alone, the best time known having crept up to twice the true one, all would seem well."""
    feed = Feed(limit_of(initial=40, maximum=60))
    feed.limit.baseline = 0.4
    feed.window(0.30, in_flight=30)
    feed.window(0.32, in_flight=32)
    grown = feed.window(0.34, in_flight=34)
    assert grown == 60
    feed.limit.baseline = 0.4
    assert feed.window(0.36, in_flight=36) == 58, "the fourth witness makes the case"
    assert feed.limit.baseline == 0.30, "the best of the witnesses is nearer to the truth"


def test_more_in_flight_that_brings_more_answers_is_not_too_much() -> None:
    feed = Feed(limit_of(initial=40, maximum=60))
    for number in range(6):
        feed.window(0.30 + 0.003 * number, in_flight=30 + number, count=1000 + 30 * number)
    assert feed.limit.limit == 60


def test_a_full_service_with_hardly_a_queue_is_left_as_it_is() -> None:
    feed = Feed(limit_of(initial=40, maximum=60))
    for elapsed, in_flight in ((0.100, 25), (0.108, 27), (0.116, 29)):
        feed.window(elapsed, in_flight=in_flight)
    feed.limit._set(40.0)
    assert feed.window(0.096, in_flight=24) == 40
    assert feed.limit._full()
    assert feed.limit.baseline == 0.096


def test_windows_long_past_are_no_witnesses() -> None:
    feed = Feed(limit_of())
    for _ in range(3 * WITNESSES):
        feed.window()
    assert len(feed.limit._witnesses) == WITNESSES == 10


def test_a_witness_says_how_many_were_in_flight_how_many_were_answered_and_how_fast() -> None:
    feed = Feed(limit_of())
    feed.window(0.25, in_flight=15, count=100, timeouts=4)
    assert list(feed.limit._witnesses) == [(15.0, 96.0, 0.25)]


def test_a_window_of_any_number_of_samples_keeps_few() -> None:
    limit = limit_of()
    most = 0
    for number in range(10_000):
        limit.answered(float(number), 20, START + 0.5)
        most = max(most, len(limit._times))
        if number == 100:
            assert len(limit._times) == 101, "all, as long as there is room"
    assert most <= MAX_TIMES
    assert len(limit._times) >= MAX_TIMES // 2
    steps = {after - before for before, after in zip(limit._times, limit._times[1:], strict=False)}
    assert len(steps) == 1, "evenly over the whole window"
    limit.answered(0.0, 20, START + 1.0)
    assert limit.baseline == pytest.approx(5_000, rel=0.02), "the median of all"


def test_nothing_of_a_window_is_left_for_the_next() -> None:
    feed = Feed(limit_of())
    feed.window(count=3_000, timeouts=200)
    fresh = limit_of()
    for name in ("_count", "_lost", "_timeouts", "_in_flight", "_peak", "_times", "_stride", "_skip"):
        assert getattr(feed.limit, name) == getattr(fresh, name), name


@pytest.mark.parametrize(
    ("ones", "others", "expected"),
    [
        ((1.0, 2.0, 3.0), (2.0, 4.0, 6.0), 1.0),
        ((1.0, 2.0, 3.0), (6.0, 4.0, 2.0), -1.0),
        ((1.0, 2.0, 3.0, 4.0), (1.0, 3.0, 2.0, 4.0), 0.8),
        ((1.0, 2.0, 3.0), (5.0, 5.0, 5.0), 0.0),
        ((5.0, 5.0, 5.0), (1.0, 2.0, 3.0), 0.0),
        ((99.0, 101.0), (1.0, 2.0), 0.0),  # a spread of 1 % is none
        ((97.0, 103.0), (1.0, 2.0), 1.0),
        ((0.0, 0.0), (0.0, 0.0), 0.0),
        ((0.0, 0.0), (1.0, 2.0), 0.0),
        ((1.0, 2.0), (0.0, 0.0), 0.0),
    ],
)
def test_correlation(ones: tuple[float, ...], others: tuple[float, ...], expected: float) -> None:
    assert correlation(ones, others) == pytest.approx(expected)
