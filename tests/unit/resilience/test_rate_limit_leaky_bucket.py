"""The leaky bucket: never more than its burst and its rate, also when permits come back late (others hand out twice what has
run out meanwhile, or cannot take a permit back at all)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.resilience.rate_limit import NEVER, CombinedBucket, LeakyBucket


def added(bucket: LeakyBucket | CombinedBucket, now: float, cost: float = 1.0) -> int:
    """How many of a cost fit at once."""
    count = 0
    while bucket.try_add(cost, now):
        count += 1
        assert count < 1_000, "a bucket without a bottom"
    return count


def test_an_empty_bucket_holds_its_burst_and_not_a_call_more() -> None:
    bucket = LeakyBucket(burst=5.0, per_second=2.0)
    assert (bucket.empty_at, bucket.burst) == (NEVER, 5.0)
    assert added(bucket, 100.0) == 5
    assert bucket.empty_at == 102.5


@pytest.fixture
def bucket() -> LeakyBucket:
    return LeakyBucket(5.0, 2.0)


def test_room_comes_exactly_when_it_was_promised(bucket: LeakyBucket) -> None:
    added(bucket, 100.0)
    assert bucket.time_until_fits(1.0, 100.0) == 0.5
    assert bucket.time_until_fits(1.0, 100.25) == 0.25
    assert not bucket.try_add(1.0, math.nextafter(100.5, 0))
    assert bucket.time_until_fits(1.0, 100.5) == 0.0
    assert bucket.try_add(1.0, 100.5)
    assert not bucket.try_add(1.0, 100.5)


def test_what_is_in_it_runs_out_at_the_rate() -> None:
    bucket = LeakyBucket(5.0, 4.0)
    added(bucket, 100.0)
    assert [bucket.level(at) for at in (100.0, 100.5, 101.25, 200.0)] == [5.0, 3.0, 0.0, 0.0]


def test_quiet_time_saves_up_no_more_than_the_burst(bucket: LeakyBucket) -> None:
    added(bucket, 100.0)
    assert added(bucket, 101.0) == 2
    assert added(bucket, 9_000.0) == 5


def test_the_wait_for_more_than_the_burst_is_that_for_its_last_call(bucket: LeakyBucket) -> None:
    assert bucket.time_until_fits(5.0, 100.0) == 0.0
    assert bucket.time_until_fits(7.0, 100.0) == 1.0
    added(bucket, 100.0)
    assert bucket.time_until_fits(7.0, 100.0) == 3.5
    assert not bucket.try_add(7.0, 900.0)


def test_costs_other_than_one_count_as_what_they_are(bucket: LeakyBucket) -> None:
    assert bucket.try_add(4.5, 100.0)
    assert not bucket.try_add(0.6, 100.0)
    assert bucket.try_add(0.5, 100.0)
    assert bucket.time_until_fits(3.0, 100.0) == 1.5


def test_a_bucket_can_begin_with_something_in_it() -> None:
    assert added(LeakyBucket(5.0, 2.0, empty_at=102.0), 100.0) == 1


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_clock_with_an_earlier_origin_goes_on_from_the_level(is_asked: bool, bucket: LeakyBucket) -> None:
    """A dispatcher may be used again on another event loop."""
    added(bucket, 100.0)
    if is_asked:
        assert bucket.time_until_fits(1.0, 10.0) == 0.5
    assert not bucket.try_add(1.0, 10.0)
    assert not bucket.try_add(1.0, 10.25)
    assert bucket.try_add(1.0, 10.5)
    assert bucket.level(10.5) == 5.0


def test_what_is_given_back_at_once_is_there_again(bucket: LeakyBucket) -> None:
    added(bucket, 100.0)
    bucket.give_back(1.0, 100.0, 100.0)
    assert bucket.empty_at == 102.0
    assert added(bucket, 100.0) == 1


def test_a_busy_bucket_takes_a_permit_back_whole_however_late(bucket: LeakyBucket) -> None:
    added(bucket, 100.0)
    assert bucket.try_add(1.0, 100.5)
    assert bucket.try_add(1.0, 101.0)
    bucket.give_back(1.0, 100.5, 101.0)
    assert bucket.empty_at == 103.0
    assert added(bucket, 101.0) == 1


def test_what_has_run_out_while_nothing_else_was_there_is_not_given_twice() -> None:
    bucket = LeakyBucket(5.0, 2.0)
    assert bucket.try_add(1.0, 100.0)
    bucket.give_back(1.0, 100.0, 100.25)
    assert bucket.empty_at == 100.25, "half of it was left, and only that goes"
    bucket = LeakyBucket(5.0, 2.0)
    assert bucket.try_add(1.0, 100.0)
    bucket.give_back(1.0, 100.0, 200.0)
    assert bucket.empty_at == 100.5
    assert added(bucket, 200.0) == 5


def test_a_permit_of_a_former_busy_time_brings_nothing_back(bucket: LeakyBucket) -> None:
    assert bucket.try_add(1.0, 100.0)
    assert added(bucket, 200.0) == 5
    bucket.give_back(1.0, 100.0, 200.0)
    assert bucket.empty_at == 202.5
    assert added(bucket, 200.0) == 0


def test_a_permit_comes_back_less_what_ran_out_when_somebody_found_the_bucket_low(bucket: LeakyBucket) -> None:
    assert bucket.try_add(1.0, 100.0)
    assert bucket.try_add(1.0, 100.25), "found half a call in it"
    assert bucket.try_add(1.0, 100.25)
    bucket.give_back(1.0, 100.0, 100.25)
    assert bucket.empty_at == 101.5 - 0.25


def test_after_one_permit_came_back_the_next_brings_no_more_than_is_left_without_both() -> None:
    """Two permits of one moment: the second one's share had run out by then if the first is thought away."""
    bucket = LeakyBucket(2.0, 1.0)
    assert bucket.try_add(1.0, 100.0)
    assert bucket.try_add(1.0, 100.0)
    assert bucket.try_add(1.0, 101.0), "found one call in it: not low, yet without the two it was empty"
    bucket.give_back(1.0, 100.0, 101.0)
    bucket.give_back(1.0, 100.0, 101.0)
    assert added(bucket, 101.0) == 1


def test_as_much_as_the_largest_call_is_not_low() -> None:
    bucket = LeakyBucket(5.0, 1.0, empty_at=102.0)
    assert bucket.try_add(1.0, 100.0)
    assert bucket.try_add(1.0, 100.0)
    bucket.give_back(1.0, 100.0, 100.25)
    bucket.give_back(1.0, 100.0, 100.5)
    assert bucket.level(100.5) == 1.5, "both are back whole"
    bucket = LeakyBucket(5.0, 1.0, empty_at=101.0)
    assert bucket.try_add(1.0, 100.0), "finds exactly one in it"
    assert bucket.try_add(1.0, 100.0)
    bucket.give_back(1.0, 100.0, 100.25)
    assert bucket.level(100.25) == 1.75


def test_where_all_calls_are_small_less_is_enough() -> None:
    bucket = LeakyBucket(5.0, 1.0, empty_at=100.5)
    assert bucket.try_add(0.5, 100.0), "finds exactly as much in it"
    assert bucket.try_add(0.5, 100.25), "finds more"
    bucket.give_back(0.5, 100.0, 100.25)
    assert bucket.level(100.25) == 0.75, "it is back whole"


def test_a_larger_call_makes_what_was_enough_low() -> None:
    bucket = LeakyBucket(4.0, 1.0)
    assert bucket.try_add(3.0, 100.0)
    assert bucket.try_add(1.0, 101.0), "found two in it, fewer than the large one costs"
    bucket.give_back(3.0, 100.0, 101.0)
    assert bucket.empty_at == 102.0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([0.1, 0.25, 0.5, 1.0, 3.0])),
        st.tuples(st.just("take"), st.sampled_from([1.0, 1.0, 0.5, 2.0])),
        st.tuples(st.just("back"), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([0.5, 1.0, 4.0]), STEPS)
def test_no_time_sees_more_than_burst_and_rate_whatever_is_given_back(
    burst: float, per_second: float, steps: list[tuple[str, float]]
) -> None:
    bucket = LeakyBucket(burst, per_second)
    now = 100.0
    went: list[tuple[float, float]] = []
    for step, value in steps:
        if step == "pass":
            now += value
        elif step == "take":
            fits = bucket.time_until_fits(value, now) == 0.0
            assert bucket.try_add(value, now) == fits
            if fits:
                went.append((now, value))
        elif went:
            at, cost = went.pop(int(value) % len(went))
            before = bucket.empty_at
            bucket.give_back(cost, at, now)
            assert bucket.empty_at <= before
            assert bucket.empty_at >= min(before, now), "nobody gets more than an empty bucket"
        for begin, _ in went:
            assert sum(cost for at, cost in went if at >= begin) <= burst + per_second * (now - begin) + 1e-6
    assert bucket.time_until_fits(burst, now) == pytest.approx(max(0.0, bucket.empty_at - now))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.integers(0, 100))
def test_returned_at_once_is_as_if_it_had_never_been(costs: list[int], which: int) -> None:
    here, there = LeakyBucket(100.0, 4.0), LeakyBucket(100.0, 4.0)
    which %= len(costs)
    for index, cost in enumerate(costs):
        now = 100.0 + index / 4
        assert here.try_add(float(cost), now)
        if index == which:
            here.give_back(float(cost), now, now)
        else:
            assert there.try_add(float(cost), now)
    assert max(here.empty_at, now) == max(there.empty_at, now)


def test_both_lets_through_what_fits_into_both_and_fills_neither_otherwise() -> None:
    small, large = LeakyBucket(2.0, 1.0), LeakyBucket(5.0, 0.5)
    for both in (CombinedBucket(small, large), CombinedBucket(large, small)):
        assert added(both, 100.0) == 2
        assert (small.empty_at, large.empty_at) == (102.0, 104.0)
        assert both.time_until_fits(1.0, 100.0) == 1.0
        assert both.time_until_fits(4.0, 100.0) == 6.0 - 2.0
        both.give_back(1.0, 100.0, 100.0)
        both.give_back(1.0, 100.0, 100.0)
        assert (small.empty_at, large.empty_at) == (100.0, 100.0)


def test_both_gives_the_first_back_when_the_second_says_no_after_all() -> None:
    class Fickle(LeakyBucket):
        def try_add(self, cost: float, now: float) -> bool:
            return False

    sure = LeakyBucket(2.0, 1.0)
    assert not CombinedBucket(sure, Fickle(2.0, 1.0)).try_add(1.0, 100.0)
    assert sure.empty_at == 100.0


def test_both_pours_nothing_into_the_first_of_what_must_wait_for_the_second() -> None:
    class Watched(LeakyBucket):
        poured = 0

        def try_add(self, cost: float, now: float) -> bool:
            self.poured += 1
            return super().try_add(cost, now)

    first = Watched(2.0, 1.0)
    both = CombinedBucket(first, LeakyBucket(1.0, 2.0, empty_at=100.5))
    assert both.time_until_fits(1.0, 100.0) == 0.5
    assert not both.try_add(1.0, 100.0)
    assert first.poured == 0
    assert both.try_add(1.0, 100.5)
