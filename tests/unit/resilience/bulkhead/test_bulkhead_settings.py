"""A bulkhead's settings change while calls are in flight and in the queue."""

from __future__ import annotations

from tests.helpers.bulkhead_harness import OK, Bench, reconfigure


def test_more_places_are_given_to_those_who_wait_at_once() -> None:
    bench = Bench()
    bench.take()
    bench.wait("a", "b", "c")
    reconfigure(bench, max_concurrent_calls=3)
    assert bench.names == "a b"
    assert (bench.guard.limit, bench.guard.in_flight, bench.guard.waiting) == (3, 3, 1)
    assert bench.guard.settings.max_concurrent_calls == 3


def test_fewer_places_take_none_away() -> None:
    bench = Bench(max_concurrent_calls=3)
    permits = [bench.take() for _ in range(3)]
    bench.wait("a")
    reconfigure(bench, max_concurrent_calls=1)
    assert bench.guard.in_flight == 3
    permits[0].finish(OK)
    permits[1].finish(OK)
    assert bench.names == ""
    permits[2].finish(OK)
    assert bench.names == "a"
    assert bench.guard.in_flight == 1


def test_those_who_wait_keep_their_time_when_the_longest_wait_changes() -> None:
    bench = Bench(max_wait=1)
    bench.take()
    waiters = bench.wait("a", "b")
    reconfigure(bench, max_wait=5)
    assert [waiter.expires for waiter in waiters] == [1_001.0] * 2
    assert bench.guard.next_expiry() == 1_001.0
    assert bench.wait("c")[0].expires == 1_005.0


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
    reconfigure(bench, max_wait=5)
    assert bench.guard.overloaded


def test_two_places_are_two_though_taken_in_the_same_moment() -> None:
    bench = Bench(max_concurrent_calls=2)
    assert bench.take() != bench.take()
