"""The bulkhead: bounded concurrency, a bounded wait queue, immediate rejection beyond both.

Guards against defects of other libraries: a waiter that is cancelled as its permit is granted leaks it; a wait starts that
must exceed the deadline; work continues for cancelled callers; a cancelled call counts as a fast one.
A bulkhead's settings change while calls are in flight and in the queue.
The wait queue: priorities, FIFO, LIFO under overload, bounded memory.

Guards against defects of other libraries: a heap that keeps every cancelled waiter, and a queue in which every waiter is
served just after its deadline.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead
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
    Waiter,
    WaitQueue,
)

OK = Outcome.SUCCESS


class Bench:
    """A bulkhead on a clock of its own, with a ``max_wait`` of 1 s unless another is given; ``told`` has who got what, in
    order."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000.0
        limits = {name: settings.pop(name) for name in QueueLimits.__struct_fields__ if name in settings}
        self.guard = BulkheadGuard(
            Bulkhead(**{"max_concurrent_calls": 1, "max_wait": 1.0, **settings}),
            lambda: self.now,
            QueueLimits(**{"max_length": 4, **limits}),
        )
        self.told: list[tuple[str, BulkheadPermit | Rejection]] = []
        self.absent: set[str] = set()

    def acquire(self) -> BulkheadPermit:
        permit = self.guard.admit()
        assert isinstance(permit, BulkheadPermit)
        return permit

    def enqueue(
        self, name: str, *, left: float | None = None, priority: str | None = None
    ) -> BulkheadPermit | BulkheadWaiter | Rejection:
        def decide(answer: BulkheadPermit | Rejection) -> bool:
            self.told.append((name, answer))
            return name not in self.absent

        return self.guard.enqueue(decide, deadline=None if left is None else self.now + left, priority=priority)

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
        permit = self.told[-1][1]
        assert isinstance(permit, BulkheadPermit)
        return permit


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
    assert bench.told == []
    assert bench.guard.in_flight == 1


def test_released_permits_go_to_waiters_in_order() -> None:
    bench = Bench()
    held = bench.acquire()
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
    bench = Bench()
    held = bench.acquire()
    bench.wait("a")
    bench.now += 0.5
    held.finish(Outcome.CANCELLED)
    bench.now += 0.25
    bench.last().finish(OK)
    assert bench.guard.service_s == 0.25


def test_permit_refused_by_a_cancelled_waiter_goes_to_the_next() -> None:
    """Peers' bulkheads shrank from 4 places to 0 by this."""
    bench = Bench()
    held = bench.acquire()
    bench.wait("a", "b", "c")
    bench.absent = {"a", "b"}
    held.finish(OK)
    assert bench.names == "a b c"
    assert (bench.guard.granted, bench.guard.released, bench.guard.in_flight) == (4, 3, 1)
    lost = bench.told[0][1]
    assert isinstance(lost, BulkheadPermit)
    lost.finish(OK)
    assert bench.guard.in_flight == 1, "what was taken back cannot come back again"


def test_thousands_of_cancelled_waiters_are_skipped_without_recursion() -> None:
    bench = Bench(max_length=5_000)
    held = bench.acquire()
    for number in range(5_000):
        bench.wait(str(number))
    bench.absent = {str(number) for number in range(4_999)}
    held.finish(OK)
    assert bench.guard.in_flight == 1
    assert bench.guard.waiting == 0


def test_full_queue_rejects_with_retry_after() -> None:
    bench = Bench(max_concurrent_calls=2, max_length=2, max_wait=10)
    bench.acquire()
    bench.acquire()
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
    bench = Bench(max_wait=0)
    bench.acquire()
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
    bench = Bench()
    bench.acquire()
    assert bench.enqueue("a", left=0.0) == Rejection("bulkhead", "too-late", None)
    assert bench.enqueue("a", left=-1.0) == Rejection("bulkhead", "too-late", None)
    bench.wait("a", left=0.001)


def test_wait_ends_at_max_wait_or_deadline_whichever_is_first() -> None:
    bench = Bench(max_wait=1)
    bench.acquire()
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
    assert bench.guard.next_expiry() is None
    assert bench.guard.waiting == 0


# -- without a max-wait: the wait follows the tool -------------------------------------------------------------------
def test_wait_lasts_while_the_call_can_still_end_by_its_deadline() -> None:
    bench = Bench(max_wait=None)
    bench.serve(4.0)
    bench.acquire()
    [a] = bench.wait("a", left=30.0)
    assert a.expires == bench.now + 15.0, "the one in flight has run for 15 s by then: another would not end in time"
    bench.now += 5.0
    bench.guard.expire(bench.now)
    assert bench.told == []
    bench.now += 9.999
    bench.guard.expire(bench.now)
    assert bench.told == []
    bench.now += 0.001
    bench.guard.expire(bench.now)
    assert bench.names == "a:too-late"


def test_wait_is_extended_as_calls_end() -> None:
    bench = Bench(max_wait=None)
    held = bench.acquire()
    bench.wait("a", "b", left=30.0)
    bench.now += 13.0
    held.finish(OK)
    bench.now += 3.0
    bench.guard.expire(bench.now)
    assert bench.names == "a", "15 s are over, but a call has ended since"
    bench.now += 1.0
    bench.guard.expire(bench.now)
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
    bench = Bench(max_wait=None)
    held = bench.acquire()
    bench.wait("a")
    assert bench.guard.next_expiry() == math.inf
    bench.now += 1e6
    held.finish(OK)
    assert bench.names == "a"


def test_expired_call_gets_no_permit_even_if_the_timer_is_late() -> None:
    bench = Bench()
    held = bench.acquire()
    bench.wait("a", left=0.5)
    bench.wait("b")
    bench.now += 0.5
    held.finish(OK)
    assert bench.names == "a:too-late b"


def test_urgent_calls_are_served_first_and_displace_others_from_a_full_queue() -> None:
    bench = Bench(max_length=2)
    held = bench.acquire()
    bench.wait("x", "y", priority="batch")
    assert bench.enqueue("z", priority="batch") == Rejection("bulkhead", "queue-full", None)
    bench.wait("a", priority="interactive")
    assert bench.names == "y:queue-full"
    assert bench.guard.waiting == 2
    held.finish(OK)
    bench.last().finish(OK)
    assert bench.names == "y:queue-full a x"


@pytest.mark.parametrize(("priority", "first"), [(None, "a"), ("interactive", "a"), ("unknown", "x")])
def test_missing_priority_is_the_most_urgent_and_an_unknown_one_the_least(priority: str | None, first: str) -> None:
    bench = Bench()
    held = bench.acquire()
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
    assert bench.names == "d a:overload b:overload"
    shed = bench.told[1][1]
    assert shed == Rejection("bulkhead", "overload", pytest.approx(0.03)), "b and c are still in line"
    assert bench.guard.waiting == 1
    assert bench.guard.is_overloaded


def test_short_queue_is_fifo_and_sheds_no_call() -> None:
    bench = Bench(shed_after=0.1, max_wait=10)
    held = bench.acquire()
    bench.wait("a", "b")
    bench.now += 9.0
    held.finish(Outcome.CANCELLED)
    assert bench.names == "a"
    assert bench.guard.waiting == 1


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
    assert bench.names == "c"
    assert bench.guard.waiting == 2


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
    assert bench.names == "c b a:overload"


def test_full_queue_under_overload_sheds_its_oldest() -> None:
    bench = Bench(max_length=2, max_wait=10)
    bench.acquire()
    bench.wait("a", "b")
    bench.stand()
    bench.wait("c")
    assert bench.names == "a:queue-full"


def test_close_rejects_waiting_and_later_calls_and_lets_calls_in_flight_end() -> None:
    bench = Bench(max_concurrent_calls=2)
    held = bench.acquire()
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
    bench = Bench(max_wait=0)
    bench.acquire()
    answers = {bench.enqueue(str(number)) for number in range(100)}
    assert len(answers) == 1, "values, alike and without a reference to the call"
    assert len(bench.guard._queue._expiries) == 0


def test_a_caller_that_knows_the_time_spares_readings_of_the_clock() -> None:
    bench = Bench(max_concurrent_calls=1)
    began = bench.now
    bench.now += 100.0
    permit = bench.guard.admit(began)
    assert isinstance(permit, BulkheadPermit)
    permit.finish(OK, now=began + 2.0)
    assert bench.guard.service_s == 2.0


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


class Named(Waiter):
    __slots__ = ("name",)

    def __init__(self, name: str, rank: int = 0, since: float = 0.0, expires: float = 100.0) -> None:
        super().__init__(rank, since, expires)
        self.name = name

    def __repr__(self) -> str:
        return self.name


def line(*waiters: Named, capacity: int = 10) -> WaitQueue[Named]:
    made: WaitQueue[Named] = WaitQueue(2, capacity)
    for waiter in waiters:
        made.add(waiter, waiter.since)
    return made


def pop_expired(waiting: WaitQueue[Named], now: float) -> Named | None:
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
    waiting = line(capacity=0)
    assert waiting.is_full
    assert waiting.displace(0) is None
    assert waiting.pop_next() is None
    assert waiting.pop_last() is None


@pytest.mark.parametrize("stay", [0, 7])
def test_stale_heap_entries_of_cancelled_waiters_are_bounded(stay: int) -> None:
    """Unlike with a limiter that keeps 20,001 entries of 20,000 waiters that were cancelled."""
    waiting = line(*(Named("s", expires=1.0) for _ in range(stay)))
    most = 0
    for _ in range(5_000):
        waiter = Named("c")
        waiting.add(waiter, 0.0)
        most = max(most, len(waiting._expiries))
        waiting.remove(waiter)
    assert most == 2 * (stay + 1) + SLACK + 1
    assert SLACK == 16
    assert len(waiting) == stay
    assert sum(pop_expired(waiting, 1.0) is not None for _ in range(stay + 1)) == stay
