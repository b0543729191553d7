"""Slices of a deadline. Guards against the first attempt that hangs eating the whole time of the call, so that no second
one can ever be made (a total timeout only), and against shares that cut off a slow tool although there is time.
Calls that are the same share one run: a caller that leaves takes nothing from the others, and the last one ends it.
Quantiles of durations, against the exact ones of a sorted list.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.resilience.aio import SingleFlight
from dispatch.resilience.durations import (
    AGE_S,
    BUCKETS,
    GROWTH,
    LONGEST_S,
    REFRESH_AFTER,
    SHORTEST_S,
    LatencyHistogram,
    Quantile,
    attempt_deadline,
    required_durations,
)
from tests.helpers.clock import START, advance, cancel_task, idle, start_task

NOW = 1_000.0


DEADLINES: list[tuple[float, dict[str, Any], float, str]] = [
    # A single attempt has the whole time; several share what remains, and a short one leaves more to the others.
    (0, {}, 30, "call"),
    (0, {"attempts_left": 3}, 10, "attempt"),
    (10, {"attempts_left": 2}, 20, "attempt"),
    (20, {"attempts_left": 1}, 30, "call"),
    (2, {"attempts_left": 2}, 16, "attempt"),
    # A limit of the policy replaces the share and never exceeds the deadline.
    (0, {"limit": 4, "attempts_left": 3}, 4, "attempt"),
    (0, {"limit": 20, "attempts_left": 3}, 20, "attempt"),
    (0, {"limit": 4, "attempts_left": 3, "usual": 9}, 4, "attempt"),
    (0, {"limit": 29.5}, 29.5, "attempt"),
    (0, {"limit": 30.0}, 30, "call"),
    (0, {"limit": 30.5}, 30, "call"),
    # A slow tool gets its usual duration.
    (0, {"attempts_left": 3, "usual": 5.0}, 10, "attempt"),
    (0, {"attempts_left": 3, "usual": 6.0}, 12, "attempt"),
    (0, {"attempts_left": 3, "usual": 15.0}, 30, "call"),
    (0, {"attempts_left": 3, "usual": 40.0}, 30, "call"),
    # An unusually long attempt times out while a retry may follow.
    (0, {"attempts_left": 3, "usual": 0.25}, 5, "attempt"),
    (0, {"attempts_left": 3, "usual": 0.001}, 1, "attempt"),
    (0, {"attempts_left": 3, "usual": 0.5}, 10, "attempt"),
    (0, {"attempts_left": 1, "usual": 0.001}, 30, "call"),
]
"""Seconds since the call began, what is known then, when the attempt ends, and whose limit that is; the call has 30 s."""


@pytest.mark.parametrize(("began", "known", "ends", "clock"), DEADLINES)
def test_deadline_of_an_attempt(began: float, known: dict[str, Any], ends: float, clock: str) -> None:
    assert attempt_deadline(NOW + began, NOW + 30, **known) == (NOW + ends, clock)


@given(
    st.floats(0.001, 1_000),
    st.integers(1, 10),
    st.one_of(st.none(), st.floats(0.001, 1_000)),
    st.one_of(st.none(), st.floats(0.001, 1_000)),
)
def test_every_attempt_deadline_is_within_the_call_and_names_its_limit(
    left: float, attempts: int, limit: float | None, usual: float | None
) -> None:
    ends, clock = attempt_deadline(NOW, NOW + left, limit=limit, attempts_left=attempts, usual=usual)
    assert NOW < ends <= NOW + left
    assert (clock == "call") == (ends == NOW + left)


@given(st.floats(0.01, 1_000), st.integers(2, 10))
def test_attempts_that_all_time_out_use_exactly_the_whole_time(timeout: float, attempts: int) -> None:
    now, ends = NOW, 0.0
    for left in range(attempts, 0, -1):
        now, clock = attempt_deadline(now, NOW + timeout, attempts_left=left)
        assert (clock == "call") == (left == 1)
        ends = now
    assert ends == NOW + timeout


LATER = START + 1_000


class Work:
    def __init__(self, error: Exception | None = None) -> None:
        self.begun = 0
        self.cancelled = 0
        self.error = error
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return number


async def test_one_call_runs_per_key() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work()
    calls = [asyncio.create_task(flights.share(key, work, LATER)) for key in ("a", "a", "b", "a")]
    await idle()
    assert (work.begun, len(flights), flights.shared) == (2, 2, 2)
    work.go.set()
    assert await asyncio.gather(*calls) == [1, 1, 2, 1]
    assert len(flights) == 0
    assert await flights.share("a", work, LATER) == 3, "only while it is under way"


async def test_cancelled_caller_does_not_affect_the_others() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work()
    first, second = (asyncio.create_task(flights.share("a", work, LATER)) for _ in range(2))
    await idle()
    await cancel_task(first)
    work.go.set()
    assert await second == 1
    assert (work.begun, work.cancelled) == (1, 0)


async def test_last_cancelled_caller_cancels_the_call() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work()
    calls = [asyncio.create_task(flights.share("a", work, LATER)) for _ in range(2)]
    await idle()
    for call in calls:
        call.cancel()
    for call in calls:
        with pytest.raises(asyncio.CancelledError):
            await call
    assert (work.cancelled, len(flights)) == (1, 0)


async def test_each_caller_waits_until_its_deadline() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work()
    patient = await start_task(flights.share("a", work, LATER))
    assert await flights.share("a", work, START + 1) is None
    assert (asyncio.get_running_loop().time(), work.cancelled) == (START + 1, 0)
    work.go.set()
    assert await patient == 1
    alone = Work()
    assert await flights.share("b", alone, START + 2) is None
    assert (alone.cancelled, len(flights)) == (1, 0)


async def test_result_at_the_very_deadline_of_a_caller_is_returned() -> None:
    flights: SingleFlight[int] = SingleFlight()

    async def work() -> int:
        await asyncio.sleep(1)
        return 7

    patient = await start_task(flights.share("a", work, LATER))
    assert await flights.share("a", work, START + 1) == 7
    assert await patient == 7


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("no")])
async def test_exception_is_raised_at_every_caller(error: Exception) -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work(error)
    calls = [asyncio.create_task(flights.share("a", work, LATER)) for _ in range(3)]
    await idle()
    work.go.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results == [error] * 3
    await advance(1)
    assert len(flights) == 0


ROUNDING = 1e-9
SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)


class Bench:
    def __init__(self, age: float = AGE_S) -> None:
        self.now = 1_000.0
        self.durations = LatencyHistogram(lambda: self.now, age)

    def record(self, *seconds: float) -> None:
        for each in seconds:
            self.durations.record(each)


def exact(durations: list[float], share: float) -> float:
    return sorted(durations)[math.ceil(share * len(durations) - ROUNDING) - 1]


def check(told: float | None, right: float) -> None:
    assert right * (1 - ROUNDING) <= told <= right * GROWTH * (1 + ROUNDING)


def test_the_error_and_the_ages_are_those_that_are_documented() -> None:
    assert (GROWTH, AGE_S, REFRESH_AFTER) == (1.05, 60.0, 32)
    assert (SHORTEST_S, LONGEST_S, BUCKETS) == (1e-4, 1e3, 332)


@pytest.mark.parametrize(("share", "count"), [(0.5, 10), (0.9, 50), (0.95, 100), (0.99, 500), (0.999, 5_000)])
def test_a_quantile_needs_five_durations_beyond_it(share: float, count: int) -> None:
    assert required_durations(share) == count
    bench = Bench()
    bench.record(*[1.0] * (count - 1))
    assert bench.durations.quantile(share) is None
    bench.record(1.0)
    check(bench.durations.quantile(share), 1.0)


def test_rank_is_exact() -> None:
    """95 fast ones of a hundred: the 95th is the last of them. One fewer, and it is a slow one."""
    bench = Bench()
    bench.record(*[0.01] * 95, *[2.0] * 5)
    check(bench.durations.quantile(0.95), 0.01)
    bench = Bench()
    bench.record(*[0.01] * 94, *[2.0] * 6)
    check(bench.durations.quantile(0.95), 2.0)


@pytest.mark.parametrize("share", [0.55, 0.56, 0.57, 0.58])
def test_rank_is_exact_despite_floating_point(share: float) -> None:
    bench = Bench()
    bench.record(*[0.01] * round(share * 100), *[2.0] * (100 - round(share * 100)))
    check(bench.durations.quantile(share), 0.01)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", SHARES)
def test_quantile_is_within_five_percent_and_never_below(seed: int, share: float) -> None:
    chance = random.Random(seed)
    durations = [min(max(chance.lognormvariate(-4, 1.5), SHORTEST_S), LONGEST_S) for _ in range(6_000)]
    bench = Bench()
    bench.record(*durations)
    check(bench.durations.quantile(share), exact(durations, share))


@given(st.lists(st.floats(SHORTEST_S, LONGEST_S), min_size=50, max_size=200), st.sampled_from((0.5, 0.75, 0.9)))
def test_error_is_within_five_percent_for_any_durations(durations: list[float], share: float) -> None:
    bench = Bench()
    bench.record(*durations)
    check(bench.durations.quantile(share), exact(durations, share))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, SHORTEST_S),
        (-1.0, SHORTEST_S),
        (1e-9, SHORTEST_S),
        (SHORTEST_S, SHORTEST_S),
        (LONGEST_S, LONGEST_S),
        (LONGEST_S * (1 - 1e-12), LONGEST_S),
        (1e9, LONGEST_S),
        (math.inf, LONGEST_S),
    ],
)
def test_durations_out_of_range_are_clipped(seconds: float, told: float) -> None:
    bench = Bench()
    bench.record(*[seconds] * 10)
    assert bench.durations.quantile(0.5) == told


def test_shortest_bucket_is_separate() -> None:
    bench = Bench()
    bench.record(*[SHORTEST_S * 1.001] * 10)
    assert bench.durations.quantile(0.5) == pytest.approx(SHORTEST_S * GROWTH)


def test_the_last_half_of_the_age_is_covered_and_nothing_beyond_the_age() -> None:
    bench = Bench(age=60)
    bench.now += 30 - 1 / 64
    bench.record(*[1.0] * 20)
    assert len(bench.durations) == 20
    bench.now += 30
    assert len(bench.durations) == 20
    check(bench.durations.quantile(0.5), 1.0)
    bench.now += 1 / 64
    assert len(bench.durations) == 0
    assert bench.durations.quantile(0.5) is None


def test_first_duration_of_a_generation_is_kept_for_the_whole_age() -> None:
    bench = Bench(age=60)
    bench.now += 30
    bench.record(*[1.0] * 20)
    bench.now += 60 - 1 / 64
    assert len(bench.durations) == 20
    bench.now += 1 / 64
    assert len(bench.durations) == 0


def test_two_generations_count_together() -> None:
    bench = Bench(age=60)
    bench.record(*[0.01] * 10)
    bench.now += 30
    bench.record(*[2.0] * 10)
    assert len(bench.durations) == 20
    check(bench.durations.quantile(0.5), 0.01)
    check(bench.durations.quantile(0.75), 2.0)
    bench.now += 30
    check(bench.durations.quantile(0.5), 2.0)
    assert bench.durations.recorded == 20


def test_the_shortest_of_both_generations_count_together() -> None:
    bench = Bench(age=60)
    bench.record(*[SHORTEST_S] * 6)
    bench.now += 30
    bench.record(*[SHORTEST_S] * 4, *[2.0] * 10)
    assert bench.durations.quantile(0.5) == SHORTEST_S


def test_generations_continue_after_a_long_idle_time() -> None:
    bench = Bench(age=60)
    bench.record(*[1.0] * 10)
    bench.now += 86_400 + 7
    bench.record(*[3.0] * 10)
    assert len(bench.durations) == 10
    assert bench.durations.turn_at == 1_000 + 86_400 + 30
    bench.now += 30
    assert len(bench.durations) == 10
    bench.now += 30
    assert len(bench.durations) == 0


@pytest.mark.parametrize("late", [30.0, 59.0, 60.0, 61.0])
def test_durations_are_forgotten_after_a_skipped_generation(late: float) -> None:
    bench = Bench(age=60)
    bench.record(*[1.0] * 10)
    bench.now += 30 + late
    assert len(bench.durations) == 0
    assert bench.durations.turn_at > bench.now
    assert bench.durations.turn_at <= bench.now + 30


def test_memory_is_constant() -> None:
    bench = Bench()
    size = sum(map(sys.getsizeof, (bench.durations._now, bench.durations._before)))
    bench.record(*[0.001 * (number % 5_000) for number in range(20_000)])
    bench.now += 30
    bench.record(5.0)
    assert sum(map(sys.getsizeof, (bench.durations._now, bench.durations._before))) == size <= 3_072
    assert len(bench.durations._now) == BUCKETS


class TestQuantile:
    def test_quantile_is_available_as_soon_as_possible(self) -> None:
        bench = Bench()
        median = Quantile(bench.durations, 0.5)
        for _ in range(9):
            bench.record(1.0)
            assert median.value(bench.now) is None
        bench.record(1.0)
        check(median.value(bench.now), 1.0)

    def test_quantile_is_refreshed_after_enough_new_durations(self) -> None:
        bench = Bench()
        median = Quantile(bench.durations, 0.5)
        bench.record(*[1.0] * 10)
        check(median.value(bench.now), 1.0)
        bench.record(*[9.0] * (REFRESH_AFTER - 1))
        check(median.value(bench.now), 1.0)
        bench.record(9.0)
        check(median.value(bench.now), 9.0)

    def test_refresh_interval_grows_with_the_number_of_durations(self) -> None:
        bench = Bench()
        most = Quantile(bench.durations, 0.99)
        bench.record(*[1.0] * 100 * REFRESH_AFTER)
        check(most.value(bench.now), 1.0)
        bench.record(*[9.0] * 99)
        check(most.value(bench.now), 1.0)
        bench.record(9.0)
        check(most.value(bench.now), 9.0)

    def test_quantile_is_refreshed_when_durations_are_forgotten(self) -> None:
        bench = Bench(age=60)
        median = Quantile(bench.durations, 0.5)
        bench.record(*[1.0] * 11)
        bench.now += 30
        bench.record(*[9.0] * 10)
        check(median.value(bench.now), 1.0)
        bench.now += 30 - 1 / 64
        check(median.value(bench.now), 1.0)
        bench.now += 1 / 64
        check(median.value(bench.now), 9.0)
        bench.now += 30
        assert median.value(bench.now) is None


def test_a_duration_is_recorded_at_the_given_time() -> None:
    bench = Bench()
    bench.durations.record(0.5, bench.now)
    bench.durations.record(0.5, bench.now + AGE_S / 2)
    bench.now += AGE_S
    assert len(bench.durations) == 1, "the first one is forgotten"
