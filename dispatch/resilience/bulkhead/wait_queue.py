"""Wait queue of a bulkhead: by priority, bounded, FIFO in a burst and LIFO under overload (adaptive LIFO). Sans-I/O.

A burst drains: however long its queue is, fewer calls arrive than are served. A standing queue does not: calls arrive faster
than they are served, over several rounds of all permits. The longest waiting call is then the least likely to have time left
when it is served: the newest is served first, and the oldest are rejected (CoDel, K. Nichols and V. Jacobson 2012; adaptive
LIFO, B. Maurer, "Fail at Scale", 2015). Operations are O(1) or O(log n) per waiter.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

SLACK = 16
"""Stale entries that the expiry heap may contain, beyond one for each waiter."""


class Waiter:
    """A waiting call.

    Attributes:
        rank: number of its priority; 0 is the most urgent.
        since: when it was added.
        expires: when its waiting time ends, or is decided anew.
        serial: number in order of arrival.
        is_waiting: whether it is in the queue.
    """

    __slots__ = ("expires", "is_waiting", "rank", "serial", "since")

    def __init__(self, rank: int, since: float, expires: float) -> None:
        self.rank = rank
        self.since = since
        self.expires = expires
        self.serial = 0
        self.is_waiting = False


W = TypeVar("W", bound=Waiter)


INTERVALS = 3
"""Intervals in which more calls arrive than are served, beyond the number of the others, after which the queue stands. One
burst adds one."""


class LoadTrend:
    """Whether calls arrive faster than they are served while the queue is never empty, by interval.

    An interval lasts until ``min_served`` waiters have been served and ``min_s`` seconds have passed: at least one duration
    of the tool, fast or slow, and no interval ends while nothing completes. The first one gives no verdict: it contains the
    burst that the queue began with.

    Attributes:
        arrived, served: in the current interval; calls that were refused are among those that arrived.
        is_overloaded: the queue stands: since :data:`INTERVALS` were counted, until the count is 0 again.
    """

    __slots__ = ("_count", "_is_first", "_since", "arrived", "is_overloaded", "served")

    def __init__(self, now: float) -> None:
        self._since = now
        self._is_first = True
        self._count = 0
        self.arrived = self.served = 0
        self.is_overloaded = False

    def review(self, now: float, min_served: float, min_s: float) -> None:
        """End the interval if it is complete."""
        if self.served < min_served or now - self._since < min_s:
            return
        if self._is_first:
            self._is_first = False
        elif self.arrived > self.served:
            self._count = min(INTERVALS, self._count + 1)
        else:
            self._count = max(0, self._count - 1)
        if self._count in (0, INTERVALS):
            self.is_overloaded = self._count == INTERVALS
        self._since = now
        self.arrived = self.served = 0


class WaitQueue(Generic[W]):
    """The wait queue of one bulkhead.

    Args:
        ranks: number of priorities.
        capacity: maximum number of waiters.

    Attributes:
        length: number of waiters; the hot path reads it, because ``len()`` costs more.
        trend: of the load since the queue was last empty.
    """

    __slots__ = ("_expiries", "_ranks", "_serial", "capacity", "length", "trend")

    def __init__(self, ranks: int, capacity: int) -> None:
        self.capacity = capacity
        self._ranks: tuple[OrderedDict[W, None], ...] = tuple(OrderedDict() for _ in range(ranks))
        self.length = 0
        self.trend = LoadTrend(0.0)
        self._serial = 0
        # Entries of removed waiters are dropped when they reach the top, or all at once when there are too many.
        self._expiries: list[tuple[float, int, W]] = []

    def __len__(self) -> int:
        return self.length

    @property
    def is_full(self) -> bool:
        return self.length >= self.capacity

    @property
    def is_overloaded(self) -> bool:
        """Whether the queue stands: the newest waiter is served first."""
        return self.length > 0 and self.trend.is_overloaded

    def count_ahead(self, rank: int) -> int:
        """Count the waiters that would be served before a newcomer of ``rank``."""
        count = 0 if self.is_overloaded else len(self._ranks[rank])
        for waiting in self._ranks[:rank]:
            count += len(waiting)
        return count

    def add(self, waiter: W, now: float) -> None:
        """Add a waiter that was never in this queue. The caller checks :attr:`is_full` first."""
        if not self.length:
            self.trend = LoadTrend(now)
        self._ranks[waiter.rank][waiter] = None
        self.length += 1
        waiter.is_waiting = True
        self._serial = waiter.serial = self._serial + 1
        if len(self._expiries) > 2 * self.length + SLACK:
            self._expiries = [entry for entry in self._expiries if entry[2].is_waiting]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (waiter.expires, waiter.serial, waiter))

    def remove(self, waiter: W) -> bool:
        """Remove a waiter. False if it is not in the queue (any more)."""
        if not waiter.is_waiting:
            return False
        del self._ranks[waiter.rank][waiter]
        self._mark_removed(waiter)
        return True

    def pop_next(self) -> W | None:
        """Remove and return the waiter to serve next; None when the queue is empty."""
        newest = self.is_overloaded
        for waiting in self._ranks:
            if waiting:
                waiter, _ = waiting.popitem(last=newest)
                self._mark_removed(waiter)
                return waiter
        return None

    def displace(self, rank: int) -> W | None:
        """Remove and return the waiter that would be served last, if a newcomer of ``rank`` would be served before it."""
        newest = not self.is_overloaded
        for least in range(len(self._ranks) - 1, -1, -1):
            waiting = self._ranks[least]
            if waiting:
                # Within the newcomer's priority, only under overload is a waiter (the oldest) served after it.
                if least < rank or (least == rank and newest):
                    return None
                waiter, _ = waiting.popitem(last=newest)
                self._mark_removed(waiter)
                return waiter
        return None

    def pop_last(self) -> W | None:
        """Remove and return the waiter that would be served last; None when the queue is empty."""
        return self.displace(-1)

    def pop_stale(self, now: float, age: float) -> W | None:
        """Under overload, remove and return a waiter that has waited for ``age`` seconds; None when there is none."""
        if self.is_overloaded:
            for waiting in self._ranks:
                if waiting:
                    waiter = next(iter(waiting))
                    if now - waiter.since >= age:
                        del waiting[waiter]
                        self._mark_removed(waiter)
                        return waiter
        return None

    def pop_due(self, now: float) -> W | None:
        """Return a waiter whose ``expires`` has come by ``now``; None when there is none. The caller removes it
        (:meth:`remove`) or lets it wait on (:meth:`extend`)."""
        expires = self.next_expiry()
        if expires is None or expires > now:
            return None
        return heapq.heappop(self._expiries)[2]

    def extend(self, waiter: W, expires: float) -> None:
        """Let a waiter from :meth:`pop_due` wait until ``expires``."""
        waiter.expires = expires
        heapq.heappush(self._expiries, (expires, waiter.serial, waiter))

    def next_expiry(self) -> float | None:
        """Return when the next waiting time ends; None when the queue is empty."""
        expiries = self._expiries
        while expiries:
            expires, _, waiter = expiries[0]
            if waiter.is_waiting:
                return expires
            heapq.heappop(expiries)
        return None

    def clear(self) -> list[W]:
        """Remove and return all waiters, in order of arrival."""
        waiting = [entry[2] for entry in sorted(self._expiries, key=_serial) if entry[2].is_waiting]
        for waiter in waiting:
            self.remove(waiter)
        return waiting

    def _mark_removed(self, waiter: W) -> None:
        waiter.is_waiting = False
        self.length -= 1


def _serial(entry: tuple[float, int, W]) -> int:
    return entry[1]
