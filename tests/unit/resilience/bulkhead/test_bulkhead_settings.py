"""A bulkhead's settings change while calls are in flight and in line; and a limit that changes by itself."""

from __future__ import annotations

import pytest

from dispatch._internal.permit import Rejection
from dispatch.errors import Outcome
from tests.helpers.bulkhead_harness import OK, Bench, reconfigure


def test_more_places_are_given_to_those_who_wait_at_once() -> None:
    bench = Bench()
    bench.take()
    bench.wait("a", "b", "c")
    reconfigure(bench, concurrency=3)
    assert bench.names == "a b"
    assert (bench.guard.limit, bench.guard.in_flight, bench.guard.waiting) == (3, 3, 1)
    assert bench.guard.settings.concurrency == 3


def test_fewer_places_take_none_away() -> None:
    bench = Bench(concurrency=3)
    permits = [bench.take() for _ in range(3)]
    bench.wait("a")
    reconfigure(bench, concurrency=1)
    assert bench.guard.in_flight == 3
    permits[0].finish(OK)
    permits[1].finish(OK)
    assert bench.names == ""
    permits[2].finish(OK)
    assert bench.names == "a"
    assert bench.guard.in_flight == 1


def test_a_shorter_line_refuses_its_last_and_the_rest_keep_their_time() -> None:
    bench = Bench(max_wait=1)
    held = bench.take()
    waiters = bench.wait("a", "b", "c")
    reconfigure(bench, queue=2, max_wait=5, overload_after=9)
    assert bench.names == "c:queue-full"
    assert [waiter.expires for waiter in waiters] == [1_001.0] * 3
    assert bench.guard.next_expiry() == 1_001.0
    assert isinstance(bench.join("d"), Rejection)
    held.finish(OK)
    assert bench.names == "c:queue-full a"


def test_other_priorities_sort_those_who_wait_anew() -> None:
    bench = Bench()
    held = bench.take()
    bench.wait("x", priority="batch")
    bench.wait("a")
    bench.wait("y", priority="batch")
    reconfigure(bench, priorities=("batch", "interactive", "night"))
    bench.wait("n", priority="night")
    held.finish(OK)
    for _ in range(3):
        bench.last().finish(OK)
    assert bench.names == "x y a n"


def test_calls_of_a_priority_that_is_no_more_become_the_least_urgent_unless_they_were_the_most() -> None:
    bench = Bench()
    held = bench.take()
    bench.wait("x", priority="batch")
    bench.wait("a")
    reconfigure(bench, priorities=("chat", "night"))
    bench.wait("b", priority="chat")
    held.finish(OK)
    for _ in range(2):
        bench.last().finish(OK)
    assert bench.names == "a b x"


def test_overload_outlasts_a_change_of_settings() -> None:
    bench = Bench(max_wait=10, overload_after=0.5)
    bench.take()
    bench.wait("a", "b")
    bench.now += 0.5
    reconfigure(bench, queue=3)
    assert bench.guard.overloaded


def test_an_adaptive_limit_learns_from_answers_and_losses() -> None:
    bench = Bench(adaptive=True, initial_limit=20, queue=50)
    guard = bench.guard
    assert guard.limit == 20
    assert guard.adaptive is not None
    for _ in range(3):
        permits = [bench.take() for _ in range(20)]
        bench.now += 0.5
        for permit in permits:
            permit.finish(OK)
    assert guard.adaptive.baseline == 0.5
    assert guard.limit > 20


def test_a_limit_that_is_not_used_is_not_raised() -> None:
    bench = Bench(adaptive=True, initial_limit=20)
    for _ in range(200):
        bench.serve(0.05)
    assert bench.guard.adaptive is not None
    assert bench.guard.adaptive.baseline == pytest.approx(0.05)
    assert bench.guard.limit == 20


def test_two_places_are_two_though_taken_in_the_same_moment() -> None:
    bench = Bench(concurrency=2)
    assert bench.take() != bench.take()


@pytest.mark.parametrize(
    ("outcome", "limit", "frozen"),
    [
        (Outcome.SUCCESS, 27, False),
        (Outcome.TOOL_ERROR, 27, False),
        (Outcome.TIMEOUT, 14, True),
        (Outcome.THROTTLED, 14, False),
        (Outcome.INVALID_ARGUMENTS, 27, False),
        (Outcome.TRANSPORT, 27, False),
        (Outcome.CANCELLED, 27, False),
        (Outcome.REJECTED, 27, False),
    ],
)
def test_what_each_outcome_teaches_the_limit(outcome: Outcome, limit: int, frozen: bool) -> None:
    """Three of ten calls end this way. Only timeouts and throttling are losses; only answers have a time."""
    bench = Bench(adaptive=True, initial_limit=20)
    guard = bench.guard
    for _ in range(10):
        permits = [bench.take() for _ in range(20)]
        bench.now += 0.11
        for number, permit in enumerate(permits):
            permit.finish(outcome if number % 10 in (1, 4, 7) else OK)
        if guard.limit != 20:
            break
    assert guard.adaptive is not None
    assert guard.limit == limit
    assert guard.adaptive.frozen == frozen


def test_what_was_learnt_outlasts_a_change_of_settings() -> None:
    bench = Bench(adaptive=True)
    adaptive = bench.guard.adaptive
    reconfigure(bench, max_limit=30, max_limit_factor=3.0, freeze_at=0.5, min_limit=2)
    assert bench.guard.adaptive is adaptive
    assert adaptive is not None
    assert (adaptive.minimum, adaptive.maximum, adaptive.max_limit_factor, adaptive.freeze_at) == (2, 30, 3.0, 0.5)
    assert bench.guard.limit == 20
    reconfigure(bench, initial_limit=10, max_limit=10)
    assert bench.guard.limit == 10
    reconfigure(bench, adaptive=False, concurrency=7)
    assert bench.guard.adaptive is None
    assert bench.guard.limit == 7
    reconfigure(bench, adaptive=True)
    assert bench.guard.adaptive is not adaptive
    assert bench.guard.limit == 10
