"""The bulkhead: so many at once, so many in line, and a quick, honest no to the rest.

The peers' failures it guards against: a waiter that leaves as it is granted a place takes the place with it; a wait is begun
that must outlive its call; work goes on for callers who have left; a cancelled call counts as a fast one.
"""

from __future__ import annotations

import pytest

from dispatch._internal.permit import Rejection
from dispatch.errors import Outcome
from dispatch.resilience.bulkhead.bulkhead import MARGIN, BulkheadPermit
from tests.helpers.bulkhead_harness import OK, Bench, reconfigure


def test_places_are_given_until_none_is_left_and_again_when_one_comes_back() -> None:
    bench = Bench(max_concurrent_calls=2)
    guard = bench.guard
    first = bench.take()
    bench.take()
    assert guard.admit() == Rejection("bulkhead", "full", None)
    assert (guard.limit, guard.in_flight, guard.granted, guard.released) == (2, 2, 2, 0)
    first.finish(OK)
    assert (guard.in_flight, guard.granted, guard.released) == (1, 2, 1)
    bench.take()
    assert guard.in_flight == 2


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_place_comes_back_once_however_the_call_ended(outcome: Outcome) -> None:
    bench = Bench()
    permit = bench.take()
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
def test_what_tells_how_long_a_place_is_held(outcome: Outcome, counts: bool) -> None:
    bench = Bench()
    bench.serve(2.0, outcome)
    assert bench.guard.service_s == (2.0 if counts else None)
    bench = Bench()
    bench.serve(1.0)
    bench.serve(2.0, outcome)
    assert bench.guard.service_s == pytest.approx(1.1 if counts else 1.0)


def test_join_takes_a_free_place_at_once() -> None:
    bench = Bench()
    assert isinstance(bench.join("a"), BulkheadPermit)
    assert bench.told == []
    assert bench.guard.in_flight == 1


def test_who_waits_gets_the_place_that_comes_back_in_order() -> None:
    bench = Bench()
    held = bench.take()
    a, b, c = bench.wait("a", "b", "c")
    assert bench.guard.waiting == 3
    held.finish(OK)
    assert bench.names == "a"
    assert not a.waits
    assert bench.guard.leave(b)
    assert not bench.guard.leave(b)
    assert not bench.guard.leave(a)
    bench.last().finish(OK)
    assert bench.names == "a c"
    assert not c.waits
    assert (bench.guard.granted, bench.guard.released, bench.guard.waiting) == (3, 2, 0)


def test_the_time_of_a_call_that_waited_begins_with_its_place() -> None:
    bench = Bench()
    held = bench.take()
    bench.wait("a")
    bench.now += 0.5
    held.finish(Outcome.CANCELLED)
    bench.now += 0.25
    bench.last().finish(OK)
    assert bench.guard.service_s == 0.25


def test_a_place_for_one_who_has_gone_goes_to_the_next() -> None:
    """Peers' bulkheads shrank from 4 places to 0 by this."""
    bench = Bench()
    held = bench.take()
    bench.wait("a", "b", "c")
    bench.absent = {"a", "b"}
    held.finish(OK)
    assert bench.names == "a b c"
    assert (bench.guard.granted, bench.guard.released, bench.guard.in_flight) == (4, 3, 1)
    lost = bench.told[0][1]
    assert isinstance(lost, BulkheadPermit)
    lost.finish(OK)
    assert bench.guard.in_flight == 1, "what was taken back cannot come back again"


def test_thousands_who_have_gone_are_passed_over_without_a_deep_stack() -> None:
    bench = Bench(max_length=5_000)
    held = bench.take()
    for number in range(5_000):
        bench.wait(str(number))
    bench.absent = {str(number) for number in range(4_999)}
    held.finish(OK)
    assert bench.guard.in_flight == 1
    assert bench.guard.waiting == 0


def test_a_full_line_refuses_at_once_and_says_when_there_may_be_room() -> None:
    bench = Bench(max_concurrent_calls=2, max_length=2, max_wait=10)
    bench.take()
    bench.take()
    bench.wait("a", "b")
    assert bench.join("c") == Rejection("bulkhead", "queue-full", None), "nobody knows how long calls take"
    bench = Bench(max_concurrent_calls=2, max_length=2, max_wait=10)
    bench.serve(4.0)
    bench.take()
    bench.take()
    bench.wait("a", "b")
    assert bench.join("c") == Rejection("bulkhead", "queue-full", 6.0), "three calls of 4 s on two places"
    assert bench.guard.admit() == Rejection("bulkhead", "full", 6.0)
    assert bench.guard.retry_after() == 6.0


def test_a_max_wait_of_0_rejects_at_once() -> None:
    bench = Bench(max_wait=0)
    bench.take()
    assert bench.join("a") == Rejection("bulkhead", "full", None)
    bench = Bench(max_wait=0)
    bench.serve(4.0)
    bench.take()
    assert bench.join("a", left=9.0) == Rejection("bulkhead", "full", 4.0)


def test_a_wait_that_would_outlive_its_deadline_is_refused_at_once() -> None:
    """Peers let it wait, hold a place in the line, and fail all the same."""
    bench = Bench(max_concurrent_calls=2, max_length=9, max_wait=10)
    bench.serve(2.0)
    bench.take()
    bench.take()
    bench.wait("a", "b")
    # Two calls of 2 s each are ahead, on two places, and half of a place's time has passed: 2.5 s.
    assert bench.join("c", left=2.499) == Rejection("bulkhead", "too-late", 3.0)
    bench.wait("c", left=2.5)
    assert bench.join("d", left=0.0) == Rejection("bulkhead", "too-late", 4.0)


def test_a_wait_that_would_be_much_longer_than_the_longest_is_refused_at_once() -> None:
    bench = Bench(max_concurrent_calls=2, max_length=9, max_wait=2.5 / MARGIN)
    bench.serve(2.0)
    bench.take()
    bench.take()
    bench.wait("a", "b", "c")
    assert bench.join("d") == Rejection("bulkhead", "too-long", 4.0)
    assert bench.join("d", left=100.0) == Rejection("bulkhead", "too-long", 4.0)


def test_as_long_as_nobody_knows_how_long_calls_take_only_what_is_over_is_refused() -> None:
    bench = Bench()
    bench.take()
    assert bench.join("a", left=0.0) == Rejection("bulkhead", "too-late", None)
    assert bench.join("a", left=-1.0) == Rejection("bulkhead", "too-late", None)
    bench.wait("a", left=0.001)


def test_a_wait_ends_by_the_longest_wait_or_the_deadline_whichever_is_first() -> None:
    bench = Bench(max_wait=1)
    bench.take()
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


def test_a_call_that_has_ended_gets_no_place_even_if_the_timer_is_late() -> None:
    bench = Bench()
    held = bench.take()
    bench.wait("a", left=0.5)
    bench.wait("b")
    bench.now += 0.5
    held.finish(OK)
    assert bench.names == "a:too-late b"


def test_the_urgent_go_first_and_take_the_line_from_the_others() -> None:
    bench = Bench(max_length=2)
    held = bench.take()
    bench.wait("x", "y", priority="batch")
    assert bench.join("z", priority="batch") == Rejection("bulkhead", "queue-full", None)
    bench.wait("a", priority="interactive")
    assert bench.names == "y:queue-full"
    assert bench.guard.waiting == 2
    held.finish(OK)
    bench.last().finish(OK)
    assert bench.names == "y:queue-full a x"


@pytest.mark.parametrize(("priority", "first"), [(None, "a"), ("interactive", "a"), ("unknown", "x")])
def test_no_priority_is_the_most_urgent_and_an_unknown_one_the_least(priority: str | None, first: str) -> None:
    bench = Bench()
    held = bench.take()
    bench.wait("x", priority="batch")
    bench.wait("a", priority=priority)
    held.finish(OK)
    assert bench.names == first


def test_only_those_that_go_first_count_for_the_wait() -> None:
    bench = Bench(max_length=9, max_wait=1.0 / MARGIN)
    bench.serve(0.41)
    bench.take()
    bench.wait("x", "y", priority="batch")
    assert bench.join("z", priority="batch") == Rejection("bulkhead", "too-long", pytest.approx(1.23))
    bench.wait("a", "b", priority="interactive")


def test_under_overload_the_newest_goes_first_and_the_old_are_shed() -> None:
    bench = Bench(overload_after=0.5, shed_after=0.1, max_wait=10, max_length=9)
    bench.serve(0.01)
    held = bench.take()
    bench.wait("a")
    bench.now += 0.4
    bench.wait("b")
    bench.now += 0.0625
    bench.wait("c", "d")
    assert not bench.guard.overloaded
    bench.now += 0.0375 + 0.01
    assert bench.guard.overloaded
    held.finish(Outcome.CANCELLED)
    assert bench.names == "d a:overload b:overload"
    shed = bench.told[1][1]
    assert shed == Rejection("bulkhead", "overload", pytest.approx(0.03)), "b and c are still in line"
    assert bench.guard.waiting == 1
    assert bench.guard.overloaded


def test_a_short_line_takes_turns_and_sheds_nobody() -> None:
    bench = Bench(overload_after=0.5, shed_after=0.1, max_wait=10)
    held = bench.take()
    bench.wait("a", "b")
    bench.now += 0.499
    held.finish(Outcome.CANCELLED)
    assert bench.names == "a"
    assert bench.guard.waiting == 1


def test_nobody_is_shed_while_nothing_moves_or_nobody_knows_how_long_calls_take() -> None:
    bench = Bench(overload_after=0.5, shed_after=0.1, max_wait=10, max_concurrent_calls=2)
    held, more = bench.take(), bench.take()
    bench.wait("a", "b", "c")
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


def test_where_places_come_free_seldom_the_line_keeps_some_in_reserve() -> None:
    bench = Bench(overload_after=0.5, shed_after=0.1, max_wait=50, max_length=9)
    bench.serve(1.0)
    held = bench.take()
    bench.wait("a")
    bench.now += 1.0
    bench.wait("b", "c")
    bench.now += 2.999
    held.finish(Outcome.CANCELLED)
    assert bench.names == "c", "four calls of 1 s could have been served since then"
    bench.now += 0.001
    bench.last().finish(Outcome.CANCELLED)
    assert bench.names == "c b a:overload"


def test_a_full_line_under_overload_sheds_its_oldest() -> None:
    bench = Bench(overload_after=0.5, max_length=2, max_wait=10)
    bench.take()
    bench.wait("a", "b")
    bench.now += 0.5
    bench.wait("c")
    assert bench.names == "a:queue-full"


def test_closing_refuses_what_waits_and_what_comes_and_lets_the_rest_end() -> None:
    bench = Bench(max_concurrent_calls=2)
    held = bench.take()
    bench.take()
    bench.wait("a", "b")
    bench.guard.close()
    assert bench.names == "b:closed a:closed"
    assert bench.told[0][1] == Rejection("bulkhead", "closed", None)
    held.finish(OK)
    assert bench.guard.in_flight == 1
    assert bench.guard.admit() == Rejection("bulkhead", "closed", None)
    assert bench.join("c") == Rejection("bulkhead", "closed", None)


def test_a_rejection_keeps_nothing_alive() -> None:
    bench = Bench(max_wait=0)
    bench.take()
    answers = {bench.join(str(number)) for number in range(100)}
    assert len(answers) == 1, "values, alike and without a reference to the call"
    assert len(bench.guard._line._expiries) == 0
