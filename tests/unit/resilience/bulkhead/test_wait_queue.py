"""The line for a place: priorities, first in first out, newest first under overload, and bounded whatever its users do.

The peers' failures it guards against: a heap that keeps every waiter which was cancelled, and a line whose every member is
served just after it has stopped waiting.
"""

from __future__ import annotations

import pytest

from dispatch.resilience.bulkhead.wait_queue import SLACK, Waiter, WaitingLine


class Named(Waiter):
    __slots__ = ("name",)

    def __init__(self, name: str, rank: int = 0, since: float = 0.0, expires: float = 100.0) -> None:
        super().__init__(rank, since, expires)
        self.name = name

    def __repr__(self) -> str:
        return self.name


def line(*waiters: Named, capacity: int = 10, overload_after: float = 5.0) -> WaitingLine[Named]:
    made: WaitingLine[Named] = WaitingLine(2, capacity, overload_after)
    for waiter in waiters:
        made.join(waiter, waiter.since)
    return made


def taken(waiting: WaitingLine[Named], now: float) -> str:
    names = ""
    while (waiter := waiting.take(now)) is not None:
        assert not waiter.waits
        names += waiter.name
    return names


def mixed() -> list[Named]:
    return [Named("x", 1, 0.0), Named("a", 0, 1.0), Named("y", 1, 2.0), Named("b", 0, 3.0)]


def test_the_urgent_go_first_and_each_priority_in_order_of_arrival() -> None:
    waiting = line(*mixed())
    assert len(waiting) == waiting.length == 4
    assert taken(waiting, 4.0) == "abxy"
    assert len(waiting) == 0


def test_a_line_that_stood_too_long_serves_the_newest_first() -> None:
    assert taken(line(*mixed()), 4.999) == "abxy"
    waiting = line(*mixed())
    assert not waiting.overloaded(4.999)
    assert waiting.overloaded(5.0)
    assert taken(waiting, 5.0) == "bayx"
    assert not waiting.overloaded(100.0), "an empty line is no overload, however long ago it was empty before"


def test_an_empty_moment_ends_overload() -> None:
    waiting = line(Named("a"))
    assert waiting.overloaded(6.0)
    waiting.take(6.0)
    waiting.join(Named("b", since=6.0), 6.0)
    waiting.join(Named("c", since=7.0), 7.0)
    assert waiting.standing_since == 6.0
    assert not waiting.overloaded(10.999)
    assert waiting.overloaded(11.0)


def test_who_would_be_served_before_a_newcomer() -> None:
    waiting = line(*mixed(), Named("c", 0, 3.5))
    assert [waiting.ahead(rank, 4.0) for rank in (0, 1)] == [3, 5]
    assert [waiting.ahead(rank, 5.0) for rank in (0, 1)] == [0, 3], "under overload none of its own priority"


def test_a_full_line_gives_the_place_of_the_last_to_one_that_is_served_earlier() -> None:
    waiting = line(*mixed(), capacity=4)
    assert waiting.full
    assert waiting.displace(1, 4.0) is None, "in order of arrival, a newcomer is the last of its own"
    assert waiting.displace(0, 4.0).name == "y"  # type: ignore[union-attr]
    assert not waiting.full
    assert waiting.displace(0, 4.0).name == "x"  # type: ignore[union-attr]
    assert waiting.displace(0, 4.0) is None
    assert waiting.displace(1, 4.0) is None, "none of lower priority is left, and those above it stay"
    assert taken(waiting, 4.0) == "ab"
    assert waiting.displace(0, 4.0) is None


def test_under_overload_the_oldest_is_the_last() -> None:
    waiting = line(*mixed(), capacity=4)
    assert waiting.displace(1, 5.0).name == "x"  # type: ignore[union-attr]
    assert waiting.displace(1, 5.0).name == "y"  # type: ignore[union-attr]
    assert waiting.displace(1, 5.0) is None
    assert waiting.displace(0, 5.0).name == "a"  # type: ignore[union-attr]


def test_a_line_without_room_for_anyone_is_full() -> None:
    waiting = line(capacity=0)
    assert waiting.full
    assert waiting.displace(0, 0.0) is None
    assert waiting.take(0.0) is None
    assert waiting.last(0.0) is None


def test_the_last_of_all_leaves_by_request() -> None:
    waiting = line(*mixed())
    assert [waiting.last(4.0).name for _ in range(4)] == ["y", "x", "b", "a"]  # type: ignore[union-attr]
    waiting = line(*mixed())
    assert [waiting.last(5.0).name for _ in range(4)] == ["x", "y", "a", "b"]  # type: ignore[union-attr]


def test_the_old_are_shed_under_overload_only() -> None:
    waiting = line(*mixed())
    assert waiting.stale(4.999, 1.0) is None
    assert waiting.stale(5.0, 4.0).name == "a"  # type: ignore[union-attr]
    assert waiting.stale(5.0, 4.0).name == "x"  # type: ignore[union-attr]
    assert waiting.stale(5.0, 4.0) is None, "b has waited for 2 s, y for 3 s"
    assert taken(waiting, 5.0) == "by"


def test_expiry_is_in_the_order_of_expiry() -> None:
    late, soon, gone = Named("l", expires=9.0), Named("s", 1, expires=2.0), Named("g", expires=1.0)
    waiting = line(late, soon, gone)
    assert waiting.next_expiry() == 1.0
    assert waiting.leave(gone)
    assert waiting.next_expiry() == 2.0
    assert waiting.expired(1.999) is None
    assert waiting.expired(2.0) is soon
    assert not soon.waits
    assert waiting.expired(2.0) is None
    assert len(waiting) == 1
    assert waiting.take(3.0) is late
    assert waiting.next_expiry() is None
    assert waiting.expired(100.0) is None


def test_who_has_left_cannot_leave_again() -> None:
    a, b = Named("a"), Named("b")
    assert not a.waits
    assert not line().leave(a)
    waiting = line(a, b)
    assert a.waits
    assert waiting.leave(a)
    assert not waiting.leave(a)
    assert waiting.take(0.0) is b
    assert not waiting.leave(b)
    assert len(waiting) == 0


def test_clearing_gives_all_in_the_order_in_which_they_came() -> None:
    gone = Named("g")
    waiting = line(Named("x", 1, expires=3.0), gone, Named("a", expires=9.0), Named("b", expires=1.0))
    waiting.leave(gone)
    assert [waiter.name for waiter in waiting.clear()] == ["x", "a", "b"]
    assert len(waiting) == 0
    assert waiting.next_expiry() is None
    assert waiting.clear() == []


@pytest.mark.parametrize("stay", [0, 7])
def test_what_the_cancelled_leave_behind_is_bounded(stay: int) -> None:
    """Unlike with a limiter that keeps 20,001 entries of 20,000 waiters that were cancelled."""
    waiting = line(*(Named("s", expires=1.0) for _ in range(stay)))
    most = 0
    for _ in range(5_000):
        waiter = Named("c")
        waiting.join(waiter, 0.0)
        most = max(most, len(waiting._expiries))
        waiting.leave(waiter)
    assert most == 2 * (stay + 1) + SLACK + 1
    assert SLACK == 16
    assert len(waiting) == stay
    assert sum(waiting.expired(1.0) is not None for _ in range(stay + 1)) == stay
