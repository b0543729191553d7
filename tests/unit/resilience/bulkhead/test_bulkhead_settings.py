"""A bulkhead's settings change while calls are in flight and in the queue."""

from __future__ import annotations

from tests.helpers.bulkhead_harness import OK, Bench, reconfigure


def test_higher_limit_grants_permits_to_waiters_at_once() -> None:
    bench = Bench()
    bench.acquire()
    bench.wait("a", "b", "c")
    reconfigure(bench, max_concurrent_calls=3)
    assert bench.names == "a b"
    assert (bench.guard.limit, bench.guard.in_flight, bench.guard.waiting) == (3, 3, 1)
    assert bench.guard.settings.max_concurrent_calls == 3


def test_lower_limit_revokes_no_permit() -> None:
    bench = Bench(max_concurrent_calls=3)
    permits = [bench.acquire() for _ in range(3)]
    bench.wait("a")
    reconfigure(bench, max_concurrent_calls=1)
    assert bench.guard.in_flight == 3
    permits[0].finish(OK)
    permits[1].finish(OK)
    assert bench.names == ""
    permits[2].finish(OK)
    assert bench.names == "a"
    assert bench.guard.in_flight == 1


def test_waiters_keep_their_expiry_when_max_wait_changes() -> None:
    bench = Bench(max_wait=1)
    bench.acquire()
    waiters = bench.wait("a", "b")
    reconfigure(bench, max_wait=5)
    assert [waiter.expires for waiter in waiters] == [1_001.0] * 2
    assert bench.guard.next_expiry() == 1_001.0
    assert bench.wait("c")[0].expires == 1_005.0


def test_new_priorities_reorder_waiters() -> None:
    bench = Bench()
    held = bench.acquire()
    bench.wait("x", priority="batch")
    bench.wait("a")
    bench.wait("y", priority="batch")
    reconfigure(bench, priorities=("batch", "interactive", "night"))
    bench.wait("n", priority="night")
    held.finish(OK)
    for _ in range(3):
        bench.last().finish(OK)
    assert bench.names == "x y a n"


def test_waiters_of_a_removed_priority_become_least_urgent_unless_most_urgent() -> None:
    bench = Bench()
    held = bench.acquire()
    bench.wait("x", priority="batch")
    bench.wait("a")
    reconfigure(bench, priorities=("chat", "night"))
    bench.wait("b", priority="chat")
    held.finish(OK)
    for _ in range(2):
        bench.last().finish(OK)
    assert bench.names == "a b x"


def test_overload_persists_across_reconfiguration() -> None:
    bench = Bench(max_wait=10)
    bench.acquire()
    bench.wait("a", "b")
    bench.stand()
    reconfigure(bench, max_wait=5)
    assert bench.guard.is_overloaded


def test_permits_acquired_at_the_same_instant_are_distinct() -> None:
    bench = Bench(max_concurrent_calls=2)
    assert bench.acquire() != bench.acquire()
