"""The wait queue: priorities, FIFO, LIFO under overload, bounded memory.

Guards against defects of other libraries: a heap that keeps every cancelled waiter, and a queue in which every waiter is
served just after its deadline.
"""

from __future__ import annotations

import pytest

from dispatch.resilience.bulkhead import INTERVALS, SLACK, LoadTrend, Waiter, WaitQueue


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


def standing(*waiters: Named, capacity: int = 10) -> WaitQueue[Named]:
    made = line(*waiters, capacity=capacity)
    made.trend.is_overloaded = True
    return made


def pop_expired(waiting: WaitQueue[Named], now: float) -> Named | None:
    waiter = waiting.pop_due(now)
    if waiter is not None:
        assert waiting.remove(waiter)
    return waiter


def taken(waiting: WaitQueue[Named]) -> str:
    names = ""
    while (waiter := waiting.pop_next()) is not None:
        assert not waiter.is_waiting
        names += waiter.name
    return names


def mixed() -> list[Named]:
    return [Named("x", 1, 0.0), Named("a", 0, 1.0), Named("y", 1, 2.0), Named("b", 0, 3.0)]


def test_urgent_waiters_go_first_and_each_priority_is_fifo() -> None:
    waiting = line(*mixed())
    assert len(waiting) == waiting.length == 4
    assert taken(waiting) == "abxy"
    assert len(waiting) == 0


def test_standing_queue_serves_the_newest_first() -> None:
    waiting = standing(*mixed())
    assert waiting.is_overloaded
    assert taken(waiting) == "bayx"
    assert not waiting.is_overloaded, "an empty line is no overload"


def test_empty_queue_ends_overload() -> None:
    waiting = standing(Named("a"))
    waiting.pop_next()
    waiting.add(Named("b", since=6.0), 6.0)
    assert not waiting.is_overloaded


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


def test_count_ahead_of_a_newcomer() -> None:
    waiting = line(*mixed(), Named("c", 0, 3.5))
    assert [waiting.count_ahead(rank) for rank in (0, 1)] == [3, 5]
    waiting.trend.is_overloaded = True
    assert [waiting.count_ahead(rank) for rank in (0, 1)] == [0, 3], "under overload none of its own priority"


def test_full_queue_displaces_its_last_waiter_for_a_more_urgent_one() -> None:
    waiting = line(*mixed(), capacity=4)
    assert waiting.is_full
    assert waiting.displace(1) is None, "in order of arrival, a newcomer is the last of its own"
    assert waiting.displace(0).name == "y"  # type: ignore[union-attr]
    assert not waiting.is_full
    assert waiting.displace(0).name == "x"  # type: ignore[union-attr]
    assert waiting.displace(0) is None
    assert waiting.displace(1) is None, "none of lower priority is left, and those above it stay"
    assert taken(waiting) == "ab"
    assert waiting.displace(0) is None


def test_under_overload_the_oldest_is_displaced() -> None:
    waiting = standing(*mixed(), capacity=4)
    assert waiting.displace(1).name == "x"  # type: ignore[union-attr]
    assert waiting.displace(1).name == "y"  # type: ignore[union-attr]
    assert waiting.displace(1) is None
    assert waiting.displace(0).name == "a"  # type: ignore[union-attr]


def test_queue_of_capacity_zero_is_full() -> None:
    waiting = line(capacity=0)
    assert waiting.is_full
    assert waiting.displace(0) is None
    assert waiting.pop_next() is None
    assert waiting.pop_last() is None


def test_pop_last_removes_the_waiter_served_last() -> None:
    waiting = line(*mixed())
    assert [waiting.pop_last().name for _ in range(4)] == ["y", "x", "b", "a"]  # type: ignore[union-attr]
    waiting = standing(*mixed())
    assert [waiting.pop_last().name for _ in range(4)] == ["x", "y", "a", "b"]  # type: ignore[union-attr]


def test_pop_stale_applies_under_overload_only() -> None:
    assert line(*mixed()).pop_stale(9.0, 1.0) is None
    waiting = standing(*mixed())
    assert waiting.pop_stale(5.0, 4.0).name == "a"  # type: ignore[union-attr]
    assert waiting.pop_stale(5.0, 4.0).name == "x"  # type: ignore[union-attr]
    assert waiting.pop_stale(5.0, 4.0) is None, "b has waited for 2 s, y for 3 s"
    assert taken(waiting) == "by"


def test_waiters_expire_in_order_of_expiry() -> None:
    late, soon, gone = Named("l", expires=9.0), Named("s", 1, expires=2.0), Named("g", expires=1.0)
    waiting = line(late, soon, gone)
    assert waiting.next_expiry() == 1.0
    assert waiting.remove(gone)
    assert waiting.next_expiry() == 2.0
    assert pop_expired(waiting, 1.999) is None
    assert pop_expired(waiting, 2.0) is soon
    assert not soon.is_waiting
    assert pop_expired(waiting, 2.0) is None
    assert len(waiting) == 1
    assert waiting.pop_next() is late
    assert waiting.next_expiry() is None
    assert pop_expired(waiting, 100.0) is None


def test_waiter_that_is_due_may_wait_on() -> None:
    a, b = Named("a", expires=1.0), Named("b", expires=2.0)
    waiting = line(a, b)
    assert waiting.pop_due(1.0) is a
    waiting.extend(a, 3.0)
    assert waiting.next_expiry() == 2.0
    assert pop_expired(waiting, 3.0) is b
    assert pop_expired(waiting, 2.5) is None
    assert [waiter.name for waiter in waiting.clear()] == ["a"]


def test_removed_waiter_cannot_be_removed_again() -> None:
    a, b = Named("a"), Named("b")
    assert not a.is_waiting
    assert not line().remove(a)
    waiting = line(a, b)
    assert a.is_waiting
    assert waiting.remove(a)
    assert not waiting.remove(a)
    assert waiting.pop_next() is b
    assert not waiting.remove(b)
    assert len(waiting) == 0


def test_clear_returns_waiters_in_order_of_arrival() -> None:
    gone = Named("g")
    waiting = line(Named("x", 1, expires=3.0), gone, Named("a", expires=9.0), Named("b", expires=1.0))
    waiting.remove(gone)
    assert [waiter.name for waiter in waiting.clear()] == ["x", "a", "b"]
    assert len(waiting) == 0
    assert waiting.next_expiry() is None
    assert waiting.clear() == []


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
