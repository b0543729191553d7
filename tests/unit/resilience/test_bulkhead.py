"""The bulkhead: bounded concurrency, a bounded wait queue, immediate rejection beyond both.

Guards against defects of other libraries: a waiter that is cancelled as its permit is granted leaks it; a wait starts that
must exceed the deadline; work continues for cancelled callers; a cancelled call counts as a fast one.
A bulkhead's settings change while calls are in flight and in the queue.
The wait queue: priorities, FIFO, LIFO under overload, bounded memory.

Guards against defects of other libraries: a heap that keeps every cancelled waiter, and a queue in which every waiter is
served just after its deadline.
Waiting for a bulkhead permit on an event loop: cancellation at any moment, one timer, goodput under tenfold overload.

Guards against defects of other libraries: a caller that is cancelled as its permit is granted leaks the permit, or consumes
the wake-up of the next waiter.
Goal G12: a bulkhead in front of a simulated service at two to ten times its capacity.

Guards against congestion collapse: work for cancelled callers, so that goodput falls as load rises.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, deque
from typing import Any

import msgspec
import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead
from dispatch.resilience.aio import AsyncBulkhead
from dispatch.resilience.bulkhead import (
    INTERVALS,
    MARGIN,
    SLACK,
    STALLED_AFTER,
    BulkheadGuard,
    BulkheadPermit,
    BulkheadWaiter,
    LoadTrend,
    QueueLimits,
    WaitQueue,
)
from tests.helpers.clock import advance, cancel_task, idle, virtual_loop

OK = Outcome.SUCCESS


class Bench:
    """A bulkhead on a clock of its own, with a ``max_wait`` of 1 s unless another is given; ``told`` has who got what, in
    order."""

    def __init__(self, taken: int = 0, **settings: Any) -> None:
        self.now = 1_000.0
        limits = {name: settings.pop(name) for name in QueueLimits.__struct_fields__ if name in settings}
        self.guard = BulkheadGuard(
            Bulkhead(**{"max_concurrent_calls": 1, "max_wait": 1.0, **settings}),
            lambda: self.now,
            QueueLimits(**{"max_length": 4, **limits}),
        )
        self.told: list[tuple[str, BulkheadPermit | Rejection]] = []
        self.absent: set[str] = set()
        for _ in range(taken):
            self.acquire()

    def expire(self, seconds: float) -> None:
        """Let time pass, and end the waits that are over."""
        self.now += seconds
        self.guard.expire(self.now)

    def acquire(self) -> BulkheadPermit:
        permit = self.guard.admit()
        assert isinstance(permit, BulkheadPermit)
        return permit

    def enqueue(
        self, name: str, *, user: str = "", left: float | None = None, priority: str | None = None
    ) -> BulkheadPermit | BulkheadWaiter | Rejection:
        def decide(answer: BulkheadPermit | Rejection) -> bool:
            self.told.append((name, answer))
            return name not in self.absent

        return self.guard.enqueue(
            decide, user=user, deadline=None if left is None else self.now + left, priority=priority
        )

    def wait(self, *names: str, **how: Any) -> list[BulkheadWaiter]:
        waiters = [self.enqueue(name, **how) for name in names]
        for waiter in waiters:
            assert isinstance(waiter, BulkheadWaiter)
            assert waiter.is_waiting
        return waiters  # type: ignore[return-value]

    def serve(self, seconds: float, outcome: Outcome = OK) -> None:
        """One call of so many seconds."""
        permit = self.acquire()
        self.now += seconds
        permit.finish(outcome)

    def stand(self) -> None:
        """The queue stands from now on: calls arrive faster than they end."""
        trend = self.guard._queue.trend
        trend._count, trend._is_first, trend.is_overloaded = INTERVALS, False, True

    @property
    def names(self) -> str:
        """Who got a place, in order; a refused one as ``name:reason``."""
        return " ".join(f"{name}:{got.reason}" if isinstance(got, Rejection) else name for name, got in self.told)

    def last(self) -> BulkheadPermit:
        return self.told[-1][1]


def occupied(**settings: Any) -> tuple[Bench, BulkheadPermit]:
    """A bulkhead, and a permit of it."""
    bench = Bench(**settings)
    return bench, bench.acquire()


def reconfigure(bench: Bench, **changes: Any) -> None:
    bench.guard.reconfigure(msgspec.structs.replace(bench.guard.settings, **changes))


def test_permits_are_granted_up_to_the_limit_and_again_after_a_release() -> None:
    bench = Bench(max_concurrent_calls=2)
    guard = bench.guard
    first = bench.acquire()
    bench.acquire()
    assert guard.admit() == Rejection("bulkhead", "full", None)
    assert (guard.limit, guard.in_flight, guard.granted, guard.released) == (2, 2, 2, 0)
    first.finish(OK)
    assert (guard.in_flight, guard.granted, guard.released) == (1, 2, 1)
    bench.acquire()
    assert guard.in_flight == 2


def test_no_call_waits_while_threads_without_callers_have_all_permits() -> None:
    bench = Bench(max_concurrent_calls=2)
    guard = bench.guard
    permits = [bench.acquire(), bench.acquire()]
    guard.occupied = 1
    assert guard.admit() == Rejection("bulkhead", "full", None)
    assert not isinstance(bench.enqueue("a"), Rejection)
    guard.occupied = 2
    assert guard.admit() == bench.enqueue("b") == Rejection("bulkhead", "occupied", None)
    guard.occupied = 1
    permits[0].finish(OK)
    assert (guard.in_flight, guard.waiting) == (2, 0), "the permit went to the call that had waited"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_permit_is_released_once_for_every_outcome(outcome: Outcome) -> None:
    bench = Bench()
    permit = bench.acquire()
    permit.finish(outcome, retry_after=3.0)
    permit.finish(outcome)
    permit.finish(Outcome.SUCCESS)
    assert bench.guard.released == 1
    assert isinstance(bench.guard.admit(), BulkheadPermit), "and the service's pause is not the bulkhead's to keep"


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (Outcome.SUCCESS, True),
        (Outcome.TOOL_ERROR, True),
        (Outcome.INVALID_ARGUMENTS, True),
        (Outcome.TIMEOUT, True),
        (Outcome.TRANSPORT, True),
        (Outcome.THROTTLED, False),
        (Outcome.CANCELLED, False),
        (Outcome.REJECTED, False),
    ],
)
def test_outcomes_that_measure_the_service_time(outcome: Outcome, counts: bool) -> None:
    bench = Bench()
    bench.serve(2.0, outcome)
    assert bench.guard.service_s == (2.0 if counts else None)
    bench = Bench()
    bench.serve(1.0)
    bench.serve(2.0, outcome)
    assert bench.guard.service_s == pytest.approx(1.1 if counts else 1.0)


def test_enqueue_acquires_a_free_permit_at_once() -> None:
    bench = Bench()
    assert isinstance(bench.enqueue("a"), BulkheadPermit)
    assert (bench.told, bench.guard.in_flight) == ([], 1)


def test_released_permits_go_to_waiters_in_order() -> None:
    bench, held = occupied()
    a, b, c = bench.wait("a", "b", "c")
    assert bench.guard.waiting == 3
    held.finish(OK)
    assert bench.names == "a"
    assert not a.is_waiting
    assert bench.guard.cancel_wait(b)
    assert not bench.guard.cancel_wait(b)
    assert not bench.guard.cancel_wait(a)
    bench.last().finish(OK)
    assert bench.names == "a c"
    assert not c.is_waiting
    assert (bench.guard.granted, bench.guard.released, bench.guard.waiting) == (3, 2, 0)


def test_service_time_starts_when_the_permit_is_granted() -> None:
    bench, held = occupied()
    bench.wait("a")
    bench.now += 0.5
    held.finish(Outcome.CANCELLED)
    bench.now += 0.25
    bench.last().finish(OK)
    assert bench.guard.service_s == 0.25


def test_permit_refused_by_a_cancelled_waiter_goes_to_the_next() -> None:
    """Peers' bulkheads shrank from 4 places to 0 by this."""
    bench, held = occupied()
    bench.wait("a", "b", "c")
    bench.absent = {"a", "b"}
    held.finish(OK)
    assert bench.names == "a b c"
    assert (bench.guard.granted, bench.guard.released, bench.guard.in_flight) == (4, 3, 1)
    bench.told[0][1].finish(OK)
    assert bench.guard.in_flight == 1, "what was taken back cannot come back again"


def test_thousands_of_cancelled_waiters_are_skipped_without_recursion() -> None:
    bench, held = occupied(max_length=5_000)
    for number in range(5_000):
        bench.wait(str(number))
    bench.absent = {str(number) for number in range(4_999)}
    held.finish(OK)
    assert (bench.guard.in_flight, bench.guard.waiting) == (1, 0)


def test_full_queue_rejects_with_retry_after() -> None:
    bench = Bench(max_concurrent_calls=2, max_length=2, max_wait=10, taken=2)
    bench.wait("a", "b")
    assert bench.enqueue("c") == Rejection("bulkhead", "queue-full", None), "nobody knows how long calls take"
    bench = Bench(max_concurrent_calls=2, max_length=2, max_wait=10)
    bench.serve(4.0)
    bench.acquire()
    bench.acquire()
    bench.wait("a", "b")
    assert bench.enqueue("c") == Rejection("bulkhead", "queue-full", 6.0), "three calls of 4 s on two places"
    assert bench.guard.admit() == Rejection("bulkhead", "full", 6.0)
    assert bench.guard.retry_after() == 6.0


def test_a_max_wait_of_0_rejects_at_once() -> None:
    bench = Bench(max_wait=0, taken=1)
    assert bench.enqueue("a") == Rejection("bulkhead", "full", None)
    bench = Bench(max_wait=0)
    bench.serve(4.0)
    bench.acquire()
    assert bench.enqueue("a", left=9.0) == Rejection("bulkhead", "full", 4.0)


def test_wait_beyond_the_deadline_is_rejected_at_once() -> None:
    """Peers let it wait, hold a place in the line, and fail all the same."""
    bench = Bench(max_concurrent_calls=2, max_length=9, max_wait=10)
    bench.serve(2.0)
    bench.acquire()
    bench.acquire()
    bench.wait("a", "b")
    # Two calls of 2 s each are ahead, on two places, and half of a place's time has passed: 2.5 s.
    assert bench.enqueue("c", left=2.499) == Rejection("bulkhead", "too-late", 3.0)
    bench.wait("c", left=2.5)
    assert bench.enqueue("d", left=0.0) == Rejection("bulkhead", "too-late", 4.0)


def test_wait_far_beyond_max_wait_is_rejected_at_once() -> None:
    bench = Bench(max_concurrent_calls=2, max_length=9, max_wait=2.5 / MARGIN)
    bench.serve(2.0)
    bench.acquire()
    bench.acquire()
    bench.wait("a", "b", "c")
    assert bench.enqueue("d") == Rejection("bulkhead", "too-long", 4.0)
    assert bench.enqueue("d", left=100.0) == Rejection("bulkhead", "too-long", 4.0)


def test_without_a_service_time_only_expired_deadlines_are_rejected() -> None:
    bench = Bench(taken=1)
    assert bench.enqueue("a", left=0.0) == Rejection("bulkhead", "too-late", None)
    assert bench.enqueue("a", left=-1.0) == Rejection("bulkhead", "too-late", None)
    bench.wait("a", left=0.001)


def test_wait_ends_at_max_wait_or_deadline_whichever_is_first() -> None:
    bench = Bench(max_wait=1, taken=1)
    [a] = bench.wait("a", left=5.0)
    [b] = bench.wait("b", left=0.5)
    [c] = bench.wait("c")
    [d] = bench.wait("d", left=1.0)
    assert [waiter.expires for waiter in (a, b, c, d)] == [1_001.0, 1_000.5, 1_001.0, 1_001.0]
    assert bench.guard.next_expiry() == 1_000.5
    bench.guard.expire(1_000.499)
    assert bench.told == []
    bench.guard.expire(1_000.5)
    assert bench.names == "b:too-late"
    bench.guard.expire(1_001.0)
    assert bench.names == "b:too-late a:too-long c:too-long d:too-late"
    assert (bench.guard.next_expiry(), bench.guard.waiting) == (None, 0)


# -- without a max-wait: the wait follows the tool -------------------------------------------------------------------
def test_wait_lasts_while_the_call_can_still_end_by_its_deadline() -> None:
    bench = Bench(max_wait=None)
    bench.serve(4.0)
    bench.acquire()
    [a] = bench.wait("a", left=30.0)
    assert a.expires == bench.now + 15.0, "the one in flight has run for 15 s by then: another would not end in time"
    bench.expire(5.0)
    assert bench.told == []
    bench.expire(9.999)
    assert bench.told == []
    bench.expire(0.001)
    assert bench.names == "a:too-late"


def test_wait_is_extended_as_calls_end() -> None:
    bench, held = occupied(max_wait=None)
    bench.wait("a", "b", left=30.0)
    bench.now += 13.0
    held.finish(OK)
    bench.expire(3.0)
    assert bench.names == "a", "15 s are over, but a call has ended since"
    bench.expire(1.0)
    assert bench.names == "a b:too-late", "13 s are left, as long as calls take"


def test_call_that_needs_longer_than_it_has_is_rejected_before_it_waits() -> None:
    bench = Bench(max_wait=None, max_length=99)
    bench.serve(4.0)
    bench.acquire()
    assert bench.enqueue("a", left=4.0) == Rejection("bulkhead", "too-late", 4.0)
    assert not isinstance(bench.enqueue("a", left=6.0), Rejection), "half a call is ahead, and the average is noisy"
    bench.wait("b", left=60.0)
    assert isinstance(bench.enqueue("c", left=8.999), Rejection), "2.5 calls of 4 s are 10 s, twice what it can wait"
    bench.wait("c", left=9.001)


def test_outcomes_without_an_answer_do_not_lengthen_the_usual_duration() -> None:
    bench = Bench(max_wait=None)
    bench.serve(1.0)
    for _ in range(9):
        bench.serve(30.0, Outcome.TIMEOUT)
    bench.acquire()
    [a] = bench.wait("a", left=20.0)
    assert a.expires == bench.now + 10.0
    bench = Bench(max_wait=None)
    bench.serve(30.0, Outcome.TIMEOUT)
    bench.acquire()
    assert bench.enqueue("a", left=29.0) == Rejection("bulkhead", "too-late", 30.0), "nothing else is known"


def test_stalled_tool_rejects_further_calls_and_keeps_those_that_came_with_the_burst() -> None:
    bench = Bench(max_wait=None)
    bench.serve(0.05)
    bench.acquire()
    bench.wait("a", left=30.0)
    bench.now += 1.0
    bench.wait("b", left=30.0)
    bench.now += 0.001
    assert bench.enqueue("c", left=30.0) == Rejection("bulkhead", "stalled", pytest.approx(0.15))
    bench.guard.expire(bench.now)
    assert bench.told == []


def test_stall_is_measured_in_durations_of_the_tool() -> None:
    bench = Bench(max_wait=None)
    bench.serve(0.5)
    bench.acquire()
    bench.now += STALLED_AFTER * 0.5
    bench.wait("a", left=60.0)
    bench.now += 0.001
    assert bench.enqueue("b", left=60.0) == Rejection("bulkhead", "stalled", 1.0)


def test_call_without_a_deadline_waits_without_one() -> None:
    bench, held = occupied(max_wait=None)
    bench.wait("a")
    assert bench.guard.next_expiry() == math.inf
    bench.now += 1e6
    held.finish(OK)
    assert bench.names == "a"


def test_expired_call_gets_no_permit_even_if_the_timer_is_late() -> None:
    bench, held = occupied()
    bench.wait("a", left=0.5)
    bench.wait("b")
    bench.now += 0.5
    held.finish(OK)
    assert bench.names == "a:too-late b"


def test_urgent_calls_are_served_first_and_displace_others_from_a_full_queue() -> None:
    bench, held = occupied(max_length=2)
    bench.wait("x", "y", priority="batch")
    assert bench.enqueue("z", priority="batch") == Rejection("bulkhead", "queue-full", None)
    bench.wait("a", priority="interactive")
    assert (bench.names, bench.guard.waiting) == ("y:queue-full", 2)
    held.finish(OK)
    bench.last().finish(OK)
    assert bench.names == "y:queue-full a x"


def test_users_who_wait_are_served_in_turn() -> None:
    bench, held = occupied(max_length=9)
    bench.wait("a1", "a2", "a3", user="a")
    bench.wait("b1", user="b")
    bench.wait("c1", "c2", user="c")
    held.finish(OK)
    for _ in range(5):
        bench.last().finish(OK)
    assert bench.names == "a1 b1 c1 a2 c2 a3"


def test_user_with_many_waiting_calls_makes_no_other_user_wait_too_long() -> None:
    bench = Bench(max_length=99, max_wait=1.0 / MARGIN)
    bench.serve(0.41)
    bench.acquire()
    bench.wait("a1", "a2", user="a")
    assert bench.enqueue("a3", user="a") == Rejection("bulkhead", "too-long", pytest.approx(1.23)), "two are before it"
    bench.wait("b1", user="b")
    assert bench.enqueue("b2", user="b") == Rejection("bulkhead", "too-long", pytest.approx(1.64)), "a1, b1, a2"


def test_full_queue_drops_from_the_longest_line() -> None:
    bench, held = occupied(max_length=4)
    bench.wait("a1", "a2", "a3", "a4", user="a")
    assert bench.enqueue("a5", user="a") == Rejection("bulkhead", "queue-full", None)
    bench.wait("b1", "b2", user="b")
    assert bench.enqueue("b3", user="b") == Rejection("bulkhead", "queue-full", None), "two each"
    bench.wait("c1", user="c", priority="interactive")
    held.finish(OK)
    for _ in range(3):
        bench.last().finish(OK)
    assert bench.names == "a4:queue-full a3:queue-full b2:queue-full a1 b1 c1 a2"


def test_overload_serves_the_newest_of_each_user() -> None:
    bench, held = occupied(max_length=9)
    bench.wait("a1", "a2", "a3", user="a")
    bench.wait("b1", "b2", user="b")
    bench.stand()
    held.finish(OK)
    for _ in range(3):
        bench.last().finish(OK)
    assert bench.names == "a3 b2 a2 b1"


@pytest.mark.parametrize(("priority", "first"), [(None, "a"), ("interactive", "a"), ("unknown", "x")])
def test_missing_priority_is_the_most_urgent_and_an_unknown_one_the_least(priority: str | None, first: str) -> None:
    bench, held = occupied()
    bench.wait("x", priority="batch")
    bench.wait("a", priority=priority)
    held.finish(OK)
    assert bench.names == first


def test_wait_estimate_counts_only_calls_served_earlier() -> None:
    bench = Bench(max_length=9, max_wait=1.0 / MARGIN)
    bench.serve(0.41)
    bench.acquire()
    bench.wait("x", "y", priority="batch")
    assert bench.enqueue("z", priority="batch") == Rejection("bulkhead", "too-long", pytest.approx(1.23))
    bench.wait("a", "b", priority="interactive")


def test_overload_serves_the_newest_and_sheds_the_oldest() -> None:
    bench = Bench(shed_after=0.1, max_wait=10, max_length=9)
    bench.serve(0.01)
    held = bench.acquire()
    bench.wait("a")
    bench.now += 0.4
    bench.wait("b")
    bench.now += 0.0625
    bench.wait("c", "d")
    assert not bench.guard.is_overloaded
    bench.now += 0.0375 + 0.01
    bench.stand()
    assert bench.guard.is_overloaded
    held.finish(Outcome.CANCELLED)
    assert bench.names == "d"
    bench.wait("e")
    assert bench.names == "d a:overload b:overload"
    shed = bench.told[1][1]
    assert shed == Rejection("bulkhead", "overload", pytest.approx(0.04)), "b, c and e are still in line"
    assert bench.guard.waiting == 2
    assert bench.guard.is_overloaded


def test_overload_sheds_no_urgent_call_for_which_a_permit_comes_free_at_once() -> None:
    """Permits come free many at a time, and the next one is theirs."""
    bench = Bench(shed_after=0.1, max_wait=10, max_length=9, max_concurrent_calls=2)
    bench.serve(0.01)
    held, more = bench.acquire(), bench.acquire()
    bench.wait("x", "y", priority="batch")
    bench.wait("a", "b", priority="interactive")
    bench.stand()
    bench.now += 1.0
    held.finish(OK)
    more.finish(OK)
    assert bench.names == "b a"
    bench.wait("z", priority="batch")
    assert bench.names == "b a x:overload y:overload"


def test_short_queue_is_fifo_and_sheds_no_call() -> None:
    bench, held = occupied(shed_after=0.1, max_wait=10)
    bench.wait("a", "b")
    bench.now += 9.0
    held.finish(Outcome.CANCELLED)
    assert (bench.names, bench.guard.waiting) == ("a", 1)


def test_no_call_is_shed_without_progress_or_service_time() -> None:
    bench = Bench(shed_after=0.1, max_wait=10, max_concurrent_calls=2)
    held, more = bench.acquire(), bench.acquire()
    bench.wait("a", "b", "c")
    bench.stand()
    bench.now += 1.0
    held.finish(Outcome.CANCELLED)
    assert bench.names == "c"
    reconfigure(bench, max_concurrent_calls=1)
    more.finish(OK)
    assert bench.guard.service_s == 1.0
    bench.now += 10 - 1.5
    reconfigure(bench, max_wait=9)
    assert (bench.names, bench.guard.waiting) == ("c", 2)


def test_slow_tool_keeps_a_reserve_of_waiters() -> None:
    bench = Bench(shed_after=0.1, max_wait=50, max_length=9)
    bench.serve(1.0)
    held = bench.acquire()
    bench.wait("a")
    bench.stand()
    bench.now += 1.0
    bench.wait("b", "c")
    bench.now += 2.999
    held.finish(Outcome.CANCELLED)
    assert bench.names == "c", "four calls of 1 s could have been served since then"
    bench.now += 0.001
    bench.last().finish(Outcome.CANCELLED)
    bench.wait("d")
    assert bench.names == "c b a:overload"


def test_full_queue_under_overload_sheds_its_oldest() -> None:
    bench = Bench(max_length=2, max_wait=10, taken=1)
    bench.wait("a", "b")
    bench.stand()
    bench.wait("c")
    assert bench.names == "a:queue-full"


def test_close_rejects_waiting_and_later_calls_and_lets_calls_in_flight_end() -> None:
    bench, held = occupied(max_concurrent_calls=2)
    bench.acquire()
    bench.wait("a", "b")
    bench.guard.close()
    assert bench.names == "b:closed a:closed"
    assert bench.told[0][1] == Rejection("bulkhead", "closed", None)
    held.finish(OK)
    assert bench.guard.in_flight == 1
    assert bench.guard.admit() == Rejection("bulkhead", "closed", None)
    assert bench.enqueue("c") == Rejection("bulkhead", "closed", None)


def test_rejection_retains_no_memory() -> None:
    bench = Bench(max_wait=0, taken=1)
    answers = {bench.enqueue(str(number)) for number in range(100)}
    assert len(answers) == 1, "values, alike and without a reference to the call"
    assert len(bench.guard._queue._expiries) == 0


def test_a_caller_that_knows_the_time_spares_readings_of_the_clock() -> None:
    bench = Bench(max_concurrent_calls=1)
    began = bench.now
    bench.now += 100.0
    bench.guard.admit(began).finish(OK, now=began + 2.0)
    assert bench.guard.service_s == 2.0


def test_higher_limit_grants_permits_to_waiters_at_once() -> None:
    bench = Bench(taken=1)
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
    assert (bench.names, bench.guard.in_flight) == ("a", 1)


def test_waiters_keep_their_expiry_when_max_wait_changes() -> None:
    bench = Bench(max_wait=1, taken=1)
    waiters = bench.wait("a", "b")
    reconfigure(bench, max_wait=5)
    assert [waiter.expires for waiter in waiters] == [1_001.0] * 2
    assert bench.guard.next_expiry() == 1_001.0
    assert bench.wait("c")[0].expires == 1_005.0


def test_new_priorities_reorder_waiters() -> None:
    bench, held = occupied()
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
    bench, held = occupied()
    bench.wait("x", priority="batch")
    bench.wait("a")
    reconfigure(bench, priorities=("chat", "night"))
    bench.wait("b", priority="chat")
    held.finish(OK)
    for _ in range(2):
        bench.last().finish(OK)
    assert bench.names == "a b x"


def test_overload_persists_across_reconfiguration() -> None:
    bench = Bench(max_wait=10, taken=1)
    bench.wait("a", "b")
    bench.stand()
    reconfigure(bench, max_wait=5)
    assert bench.guard.is_overloaded


def test_suspended_call_lends_its_place_to_a_waiter_and_counts_again_afterwards() -> None:
    bench, held = occupied()
    guard = bench.guard
    held.resume()
    assert (guard.in_flight, guard.suspended) == (1, 0), "it was not suspended"
    bench.wait("a", "b")
    held.suspend()
    held.suspend()
    assert bench.names == "a"
    assert (guard.in_flight, guard.suspended, guard.released, guard.waiting) == (1, 1, 0, 1)
    held.resume()
    held.resume()
    assert (guard.in_flight, guard.suspended, guard.released) == (2, 0, 0), "beyond the limit of one"
    bench.last().finish(OK)
    assert bench.names == "a", "the place belongs to the call that was suspended"
    held.finish(OK)
    assert bench.names == "a b"
    assert (guard.in_flight, guard.suspended, guard.released) == (1, 0, 2)


def test_suspending_a_call_without_waiters_leaves_its_place_to_the_next_call() -> None:
    bench, held = occupied()
    held.suspend()
    assert (bench.guard.in_flight, bench.guard.suspended) == (0, 1)
    bench.acquire()
    assert bench.enqueue("a", left=0.0) == Rejection("bulkhead", "too-late", None), "no place is free any more"


def test_call_that_ends_while_suspended_frees_no_place_and_measures_nothing() -> None:
    bench, held = occupied()
    bench.wait("a", "b")
    held.suspend()
    bench.now += 0.5
    held.finish(OK)
    assert bench.names == "a", "its place went to a when it was suspended"
    assert (bench.guard.in_flight, bench.guard.suspended, bench.guard.released) == (1, 0, 1)
    assert bench.guard.service_s is None, "how long an instance was out of reach says nothing of the tool"


def test_finished_permit_changes_nothing_any_more() -> None:
    bench = Bench(max_concurrent_calls=2)
    first, second = bench.acquire(), bench.acquire()
    second.suspend()
    for permit in (first, second):
        permit.finish(OK)
        permit.suspend()
        permit.pause()
        permit.resume()
        permit.restart(bench.now)
    assert (bench.guard.in_flight, bench.guard.suspended, bench.guard.released) == (0, 0, 2)


@pytest.mark.parametrize(("places", "paused"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_readers_that_pause_lend_at_most_half_of_the_places(places: int, paused: int) -> None:
    bench = Bench(max_concurrent_calls=places)
    permits = [bench.acquire() for _ in range(places)]
    for permit in permits:
        permit.pause()
    assert (bench.guard.suspended, bench.guard.in_flight) == (paused, places - paused)
    for permit in permits:
        permit.resume()
    assert (bench.guard.suspended, bench.guard.in_flight) == (0, places)


def test_service_time_of_a_call_that_was_suspended_counts_from_its_restart_only() -> None:
    bench = Bench()
    resumed = bench.acquire()
    resumed.suspend()
    bench.now += 5.0
    resumed.resume()
    resumed.finish(OK)
    assert bench.guard.service_s is None
    restarted = bench.acquire()
    restarted.suspend()
    bench.now += 5.0
    restarted.restart(bench.now)
    assert (bench.guard.in_flight, bench.guard.suspended) == (1, 0)
    bench.now += 0.25
    restarted.finish(OK)
    assert bench.guard.service_s == 0.25


def test_calls_wait_while_the_fleet_has_lent_every_place_to_other_processes() -> None:
    bench = Bench(max_wait=None, scope="fleet")
    bench.serve(4.0)
    bench.guard.set_limit(0)
    bench.now += 1_000.0
    assert bench.guard.admit() == Rejection("bulkhead", "full", 4.0)
    [a] = bench.wait("a", left=30.0)
    assert a.expires == bench.now + 26.0, "it needs 4 s, and no call in flight says that it may need more"
    bench.wait("b", left=30.0)
    bench.expire(25.0)
    assert bench.told == []
    bench.guard.set_limit(1)
    assert bench.names == "a", "a place has come back"
    assert (bench.guard.limit, bench.guard.in_flight, bench.guard.waiting) == (1, 1, 1)


def test_call_whose_time_ends_while_there_is_no_place_is_too_late() -> None:
    bench = Bench(max_wait=None, scope="fleet")
    bench.serve(4.0)
    bench.guard.set_limit(0)
    bench.wait("a", left=30.0)
    bench.expire(25.999)
    assert bench.told == []
    bench.expire(0.001)
    assert bench.told == [("a", Rejection("bulkhead", "too-late", 4.0))]


def test_places_from_the_fleet_are_used_by_later_calls_when_no_call_waits() -> None:
    bench = Bench(scope="fleet")
    bench.guard.set_limit(2)
    bench.acquire()
    bench.acquire()
    assert bench.guard.admit() == Rejection("bulkhead", "full", None)
    bench.guard.set_limit(1)
    assert (bench.guard.limit, bench.guard.in_flight) == (1, 2), "a lower number revokes no permit"
    reconfigure(bench, max_concurrent_calls=9)
    assert bench.guard.limit == 1, "the fleet divides the places, not the policy"


@pytest.mark.parametrize(("left", "told"), [(12.0, "a:too-late"), (12.001, "a")])
def test_call_gets_no_permit_when_calls_turn_out_to_be_too_long_for_it(left: float, told: str) -> None:
    bench = Bench(max_wait=None, max_concurrent_calls=2)
    slow = bench.acquire()
    bench.now += 4.0
    bench.acquire()
    bench.wait("a", left=left - 4.0)
    bench.wait("b", left=60.0)
    bench.now += 2.0
    slow.finish(OK)
    assert bench.names.split()[0] == told, "calls need 6 s, as no call had shown when it came"
    assert bench.guard.waiting == ("late" not in told)
    assert (bench.guard.in_flight, bench.guard.granted) == (2, 3)


def test_usual_duration_of_an_answer_is_the_mean_and_the_mean_deviation() -> None:
    bench = Bench()
    assert bench.guard.answer_s is None
    found = []
    for seconds in (1.0, 2.0, 1.1):
        bench.serve(seconds)
        found.append(bench.guard.answer_s)
    assert found == [1.0, pytest.approx(1.1 + 0.1), pytest.approx(1.1 + 0.09)]


@pytest.mark.parametrize(("arrivals", "stands"), [(3, [False, False, False, True]), (2, [False] * 4)])
def test_queue_of_a_bulkhead_stands_when_more_calls_come_than_end(arrivals: int, stands: list[bool]) -> None:
    bench = Bench(max_concurrent_calls=2, max_wait=100.0, max_length=99)
    permits = [bench.acquire(), bench.acquire()]
    bench.wait("first")
    found = []
    for number in range(4):
        bench.wait(*(f"{number}-{each}" for each in range(arrivals)))
        bench.now += 1.0
        for permit in permits:
            permit.finish(OK)
        permits = [answer for _, answer in bench.told[-2:] if isinstance(answer, BulkheadPermit)]
        found.append(bench.guard.is_overloaded)
    assert found == stands


def test_call_with_a_max_wait_gets_a_permit_until_its_deadline() -> None:
    bench, held = occupied()
    bench.wait("a", left=0.5)
    bench.now += 0.499
    held.finish(OK)
    assert bench.names == "a"


def test_permits_acquired_at_the_same_instant_are_distinct() -> None:
    bench = Bench(max_concurrent_calls=2)
    assert bench.acquire() != bench.acquire()


def waiter_until(expires: float) -> BulkheadWaiter:
    return BulkheadWaiter(0, "", 0.0, expires, math.inf, lambda _: True, expires)


def pop_expired(waiting: WaitQueue, now: float) -> BulkheadWaiter | None:
    waiter = waiting.pop_due(now)
    if waiter is not None:
        assert waiting.remove(waiter)
    return waiter


def trend_of(*intervals: tuple[int, int]) -> list[bool]:
    """Whether the queue stands after each interval of so many arrived and served calls."""
    trend, found = LoadTrend(0.0), []
    for number, (arrived, served) in enumerate(intervals, 1):
        trend.arrived, trend.served = arrived, served
        trend.review(float(number), 1, 1.0)
        assert (trend.arrived, trend.served) == (0, 0)
        found.append(trend.is_overloaded)
    return found


def test_queue_stands_when_more_calls_arrive_than_are_served_in_interval_after_interval() -> None:
    assert INTERVALS == 3
    assert trend_of((2, 1), (2, 1), (2, 1), (2, 1)) == [False, False, False, True]


def test_burst_is_no_standing_queue() -> None:
    assert not any(trend_of((1_000, 10), *((0, 10) for _ in range(100))))
    assert not any(trend_of((1_000, 10), (1_000, 10), (1_000, 10), *((10, 10) for _ in range(200)))), "nor are three"


def test_standing_queue_has_ended_when_as_many_intervals_are_better() -> None:
    over, better = (2, 1), (1, 1)
    assert trend_of(over, over, over, over, better, over, better, better, better)[3:] == [True] * 5 + [False]
    assert trend_of(over, over, over, better, over, over)[3:] == [False, False, True]


def test_interval_needs_calls_served_and_time() -> None:
    trend = LoadTrend(0.0)
    trend.arrived, trend.served = 9, 3
    trend.review(9.0, 4, 1.0)
    assert trend.arrived == 9, "nothing is known while nothing completes"
    trend.review(0.5, 3, 1.0)
    assert trend.arrived == 9
    trend.review(1.0, 3, 1.0)
    assert trend.arrived == 0


def test_queue_of_capacity_zero_is_full() -> None:
    waiting = WaitQueue(2, 0)
    assert waiting.is_full
    assert waiting.displace(0) is None
    assert waiting.pop_next() is None
    assert waiting.pop_last() is None


@pytest.mark.parametrize("stay", [0, 7])
def test_stale_heap_entries_of_cancelled_waiters_are_bounded(stay: int) -> None:
    """Unlike with a limiter that keeps 20,001 entries of 20,000 waiters that were cancelled."""
    waiting = WaitQueue(2, 10)
    for _ in range(stay):
        waiting.add(waiter_until(1.0), 0.0)
    most = 0
    for _ in range(5_000):
        waiter = waiter_until(100.0)
        waiting.add(waiter, 0.0)
        most = max(most, len(waiting._expiries))
        waiting.remove(waiter)
    assert most == 2 * (stay + 1) + SLACK + 1
    assert SLACK == 16
    assert waiting.length == stay
    assert sum(pop_expired(waiting, 1.0) is not None for _ in range(stay + 1)) == stay


def bulkhead(**settings: Any) -> AsyncBulkhead:
    limits = QueueLimits(max_length=settings.pop("max_length", 4))
    return AsyncBulkhead(Bulkhead(**{"max_concurrent_calls": 1, "max_wait": 1.0, **settings}), limits)


def granted(answer: BulkheadPermit | Rejection) -> BulkheadPermit:
    assert isinstance(answer, BulkheadPermit)
    return answer


def waiting(door: AsyncBulkhead, **how: Any) -> asyncio.Task[BulkheadPermit | Rejection]:
    return asyncio.create_task(door.acquire(**how))


async def test_free_permit_is_acquired_without_suspending() -> None:
    entering = bulkhead().acquire()
    with pytest.raises(StopIteration) as ended:
        entering.send(None)
    granted(ended.value.value).finish(OK)


async def test_waiter_receives_the_released_permit() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    first, second = waiting(door), waiting(door)
    await idle()
    assert len(virtual_loop().list_timers()) == 1, "one timer, however many wait"
    held.finish(OK)
    permit = granted(await first)
    assert not second.done()
    permit.finish(OK)
    granted(await second).finish(OK)
    assert (door.guard.in_flight, virtual_loop().list_timers()) == (0, [])


async def test_rejection_does_not_wait() -> None:
    door = bulkhead(max_wait=0)
    held = granted(await door.acquire())
    assert await door.acquire() == Rejection("bulkhead", "full", None)
    held.finish(OK)


async def test_wait_ends_after_max_wait() -> None:
    door = bulkhead(max_wait=1.0)
    loop = virtual_loop()
    held = granted(await door.acquire())
    began = loop.time()
    ends: dict[str, float] = {}

    async def wait(name: str, left: float | None) -> str:
        answer = await door.acquire(deadline=None if left is None else loop.time() + left)
        ends[name] = round(loop.time() - began, 6)
        assert isinstance(answer, Rejection)
        return answer.reason

    is_waiting = [
        asyncio.create_task(wait(name, left)) for name, left in (("a", None), ("b", 0.25), ("c", 0.5), ("d", 9.0))
    ]
    await idle()
    assert len(loop.list_timers()) == 1
    assert await asyncio.gather(*is_waiting) == ["too-long", "too-late", "too-late", "too-long"]
    assert ends == {"a": 1.0, "b": 0.25, "c": 0.5, "d": 1.0}
    assert loop.list_timers() == []
    held.finish(OK)


async def test_only_an_earlier_expiry_moves_the_timer() -> None:
    door = bulkhead(max_wait=1.0)
    loop = virtual_loop()
    held = granted(await door.acquire())
    is_waiting = [waiting(door)]
    await idle()
    [timer] = loop.list_timers()
    is_waiting.append(waiting(door, deadline=loop.time() + 1.0))
    await idle()
    assert loop.list_timers() == [timer]
    is_waiting.append(waiting(door, deadline=loop.time() + 0.5))
    await idle()
    [sooner] = loop.list_timers()
    assert sooner.when() == loop.time() + 0.5
    found = [getattr(answer, "reason", None) for answer in await asyncio.gather(*is_waiting)]
    assert found == ["too-long", "too-late", "too-late"]
    held.finish(OK)


async def test_early_timer_ends_the_wait() -> None:
    """A loop's timers may be early by its clock's resolution: setting one again for the same instant would spin."""
    door = bulkhead(max_wait=1.0)
    held = granted(await door.acquire())
    wait = waiting(door)
    await idle()
    [timer] = virtual_loop().list_timers()
    timer._callback(*timer._args)  # type: ignore[attr-defined]
    timer.cancel()
    assert await wait == Rejection("bulkhead", "too-long", None)
    held.finish(OK)


async def test_cancelled_waiter_is_removed_from_the_queue() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    wait = waiting(door)
    await idle()
    await cancel_task(wait)
    assert (door.guard.waiting, virtual_loop().list_timers()) == (0, [])
    held.finish(OK)
    assert door.guard.in_flight == 0


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_permit_of_a_waiter_cancelled_in_the_same_turn_goes_to_the_next(cancelled_first: bool) -> None:
    """Other semaphores lose the place here, or the wake-up of the next."""
    door = bulkhead()
    held = granted(await door.acquire())
    first, second = waiting(door), waiting(door)
    await idle()
    if cancelled_first:
        first.cancel()
        held.finish(OK)
    else:
        held.finish(OK)
        first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    permit = granted(await second)
    assert door.guard.in_flight == 1
    assert door.guard.service_s == 0.0, "a call that never began says nothing of how long one takes"
    permit.finish(OK)
    assert door.guard.granted == door.guard.released


async def test_cancellation_in_the_turn_of_the_rejection_is_raised() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    wait = waiting(door)
    await idle()
    door.guard.expire(virtual_loop().time() + 1.0)
    await cancel_task(wait)
    held.finish(OK)
    assert door.guard.in_flight == 0


async def test_settings_may_change_while_calls_wait() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    is_waiting = [waiting(door) for _ in range(3)]
    await idle()
    door.reconfigure(Bulkhead(max_concurrent_calls=2, max_wait=1.0))
    await idle()
    assert [wait.done() for wait in is_waiting] == [True, False, False]
    held.finish(OK)
    for wait in is_waiting:
        granted(await wait).finish(OK)
    assert door.guard.in_flight == 0


async def test_close_rejects_waiting_calls() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    wait = waiting(door, priority="batch")
    await idle()
    door.close()
    assert virtual_loop().list_timers() == []
    assert await wait == Rejection("bulkhead", "closed", None)
    assert await door.acquire() == Rejection("bulkhead", "closed", None)
    held.finish(OK)
    assert await door.acquire() == Rejection("bulkhead", "closed", None)
    door.close()


async def test_priorities_are_respected() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    batch, urgent = waiting(door, priority="batch"), waiting(door, priority="interactive")
    await idle()
    held.finish(OK)
    permit = granted(await urgent)
    assert not batch.done()
    permit.finish(OK)
    granted(await batch).finish(OK)


@pytest.mark.parametrize("seed", range(10))
async def test_no_permit_is_lost_under_random_cancellation(seed: int) -> None:
    """2,000 calls, each cancelled with a chance of a third at a moment of chance, often that of a grant."""
    chance = random.Random(seed)
    door = bulkhead(max_concurrent_calls=3, max_length=8, max_wait=0.25)
    most = 0

    async def call() -> None:
        nonlocal most
        left = chance.choice([None, 0.125, 1.0])
        deadline = None if left is None else virtual_loop().time() + left
        permit = await door.acquire(deadline=deadline, priority=chance.choice(["interactive", "batch"]))
        if isinstance(permit, BulkheadPermit):
            most = max(most, door.guard.in_flight)
            outcome = Outcome.CANCELLED
            try:
                await asyncio.sleep(chance.choice([0.0, 0.0, 0.0625, 0.125]))
                outcome = OK
            finally:
                permit.finish(outcome)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(200):
        tasks += [asyncio.create_task(call()) for _ in range(chance.randrange(6))]
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.0625]))
        for task in tasks[-12:]:
            if chance.random() < 1 / 12:
                task.cancel()
        guard = door.guard
        assert guard.granted - guard.released == guard.in_flight <= 3
        assert guard.waiting <= 8
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ended} <= {type(None), asyncio.CancelledError}
    assert most == 3
    assert door.guard.in_flight == door.guard.waiting == 0
    assert door.guard.granted == door.guard.released > 50
    assert [isinstance(door.guard.admit(), BulkheadPermit) for _ in range(4)] == [True, True, True, False]


async def test_hung_service_bounds_waits_and_frees_its_permits() -> None:
    door = bulkhead(max_concurrent_calls=2, max_length=2, max_wait=1.0)
    silent = [granted(await door.acquire()) for _ in range(2)]
    began = virtual_loop().time()
    answers = await asyncio.gather(*(door.acquire() for _ in range(50)))
    reasons = Counter(answer.reason for answer in answers if isinstance(answer, Rejection))
    assert reasons == {"queue-full": 48, "too-long": 2}
    assert virtual_loop().time() == pytest.approx(began + 1.0)
    for permit in silent:
        permit.finish(Outcome.TIMEOUT)
    granted(await door.acquire()).finish(OK)


SERVERS, SERVICE_S, DEADLINE_S, SECONDS = 8, 0.1, 1.0, 12.0
CAPACITY = SERVERS / SERVICE_S


class Service:
    """So many at work, the rest in a line without end; it does not notice that a caller has left."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.line: deque[asyncio.Future[None]] = deque()
        self.busy = 0
        self.longest = 0

    def call(self) -> asyncio.Future[None]:
        answer = virtual_loop().create_future()
        self.line.append(answer)
        self.longest = max(self.longest, len(self.line))
        self._work()
        return answer

    def _work(self) -> None:
        while self.busy < SERVERS and self.line:
            self.busy += 1
            virtual_loop().call_later(SERVICE_S * self.chance.uniform(0.5, 1.5), self._done, self.line.popleft())

    def _done(self, answer: asyncio.Future[None]) -> None:
        self.busy -= 1
        if not answer.done():
            answer.set_result(None)
        self._work()


async def overload(times: int, door: AsyncBulkhead | None, seed: int) -> tuple[Counter[str], Service, int]:
    """``times`` as many calls as the service can do, each with a second: how they ended, and the most that waited."""
    chance = random.Random(seed)
    loop = virtual_loop()
    service = Service(seed)
    ends: Counter[str] = Counter()
    most = 0
    until = loop.time() + SECONDS

    async def call() -> None:
        nonlocal most
        deadline = loop.time() + DEADLINE_S
        permit = None
        if door is not None:
            most = max(most, door.guard.waiting)
            assert len(door.guard._queue._expiries) <= 2 * door.guard.limits.max_length + 17
            permit = await door.acquire(deadline=deadline, priority=chance.choice(["interactive", "batch"]))
            if isinstance(permit, Rejection):
                ends[permit.reason] += 1
                return
        outcome = OK
        try:
            async with asyncio.timeout_at(deadline):
                await service.call()
        except TimeoutError:
            outcome = Outcome.TIMEOUT
        if outcome is not OK or loop.time() <= until:
            ends[outcome] += 1
        if permit is not None:
            permit.finish(outcome)

    tasks = set()
    while loop.time() < until:
        task = asyncio.create_task(call())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(chance.expovariate(times * CAPACITY))
    await asyncio.gather(*tasks)
    await advance(60 if door is None else 1)  # what is left in the service is worked off
    while service.busy:
        await advance(60)
    return ends, service, most


@pytest.mark.costly
@pytest.mark.parametrize("times", [2, 10])
async def test_goodput_under_overload_stays_near_capacity(times: int) -> None:
    """Goal G12: at least 90 % of what the service can do is answered in time, whatever is asked, in bounded memory."""
    door = AsyncBulkhead(Bulkhead(max_concurrent_calls=SERVERS), QueueLimits(max_length=32))
    ends, service, most = await overload(times, door, seed=times)
    assert ends[OK] / (CAPACITY * SECONDS) >= 0.9
    assert ends[Outcome.TIMEOUT] <= 0.01 * ends[OK], "hardly any work is done for callers who have left"
    assert most <= 32
    assert service.longest <= SERVERS
    assert door.guard.granted == door.guard.released


async def test_without_a_bulkhead_goodput_collapses() -> None:
    """So that the goal above is worth something."""
    ends, service, _ = await overload(2, None, seed=2)
    assert ends[OK] / (CAPACITY * SECONDS) <= 0.5
    assert service.longest > 200
