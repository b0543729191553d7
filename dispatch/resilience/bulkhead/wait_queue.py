"""Wait queue of a bulkhead: by priority, bounded, FIFO in a burst and LIFO under overload (adaptive LIFO). Sans-I/O.

A queue that has not been empty for ``overload_after`` seconds is a standing queue, not a burst. The longest waiting call is
then the least likely to have time left when it is served: the newest is served first, and the oldest are rejected (CoDel,
K. Nichols and V. Jacobson 2012; adaptive LIFO, B. Maurer, "Fail at Scale", 2015). Operations are O(1) or O(log n) per
waiter.
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
        expires: when its waiting time ends.
        is_waiting: whether it is in the queue.
    """

    __slots__ = ("expires", "is_waiting", "rank", "since")

    def __init__(self, rank: int, since: float, expires: float) -> None:
        self.rank = rank
        self.since = since
        self.expires = expires
        self.is_waiting = False


W = TypeVar("W", bound=Waiter)


class WaitQueue(Generic[W]):
    """The wait queue of one bulkhead.

    Args:
        ranks: number of priorities.
        capacity: maximum number of waiters.
        overload_after: seconds for which the queue was never empty, after which it is overloaded.

    Attributes:
        length: number of waiters; the hot path reads it, because ``len()`` costs more.
        standing_since: when the queue was last empty; undefined while it is empty.
    """

    __slots__ = ("_expiries", "_ranks", "_serial", "capacity", "length", "overload_after", "standing_since")

    def __init__(self, ranks: int, capacity: int, overload_after: float) -> None:
        self.capacity = capacity
        self.overload_after = overload_after
        self._ranks: tuple[OrderedDict[W, None], ...] = tuple(OrderedDict() for _ in range(ranks))
        self.length = 0
        self.standing_since = 0.0
        self._serial = 0
        # Entries of removed waiters are dropped when they reach the top, or all at once when there are too many.
        self._expiries: list[tuple[float, int, W]] = []

    def __len__(self) -> int:
        return self.length

    @property
    def is_full(self) -> bool:
        return self.length >= self.capacity

    def is_overloaded(self, now: float) -> bool:
        """Whether the queue has not been empty for ``overload_after``."""
        return self.length > 0 and now - self.standing_since >= self.overload_after

    def count_ahead(self, rank: int, now: float) -> int:
        """Count the waiters that would be served before a newcomer of ``rank``."""
        count = 0 if self.is_overloaded(now) else len(self._ranks[rank])
        for waiting in self._ranks[:rank]:
            count += len(waiting)
        return count

    def add(self, waiter: W, now: float) -> None:
        """Add a waiter that was never in this queue. The caller checks :attr:`is_full` first."""
        if not self.length:
            self.standing_since = now
        self._ranks[waiter.rank][waiter] = None
        self.length += 1
        waiter.is_waiting = True
        self._serial += 1
        if len(self._expiries) > 2 * self.length + SLACK:
            self._expiries = [entry for entry in self._expiries if entry[2].is_waiting]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (waiter.expires, self._serial, waiter))

    def remove(self, waiter: W) -> bool:
        """Remove a waiter. False if it is not in the queue (any more)."""
        if not waiter.is_waiting:
            return False
        del self._ranks[waiter.rank][waiter]
        self._mark_removed(waiter)
        return True

    def pop_next(self, now: float) -> W | None:
        """Remove and return the waiter to serve next; None when the queue is empty."""
        newest = self.is_overloaded(now)
        for waiting in self._ranks:
            if waiting:
                waiter, _ = waiting.popitem(last=newest)
                self._mark_removed(waiter)
                return waiter
        return None

    def displace(self, rank: int, now: float) -> W | None:
        """Remove and return the waiter that would be served last, if a newcomer of ``rank`` would be served before it."""
        newest = not self.is_overloaded(now)
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

    def pop_last(self, now: float) -> W | None:
        """Remove and return the waiter that would be served last; None when the queue is empty."""
        return self.displace(-1, now)

    def pop_stale(self, now: float, age: float) -> W | None:
        """Under overload, remove and return a waiter that has waited for ``age`` seconds; None when there is none."""
        if self.is_overloaded(now):
            for waiting in self._ranks:
                if waiting:
                    waiter = next(iter(waiting))
                    if now - waiter.since >= age:
                        del waiting[waiter]
                        self._mark_removed(waiter)
                        return waiter
        return None

    def pop_expired(self, now: float) -> W | None:
        """Remove and return a waiter whose waiting time has ended by ``now``; None when there is none."""
        expiries = self._expiries
        if not expiries or expiries[0][0] > now:
            return None  # perf: whether the first entry is that of a waiter or a stale one
        expires = self.next_expiry()
        if expires is None or expires > now:
            return None
        waiter = heapq.heappop(self._expiries)[2]
        del self._ranks[waiter.rank][waiter]
        self._mark_removed(waiter)
        return waiter

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
