"""A line of those that wait for a place: by priority, bounded, and honest under overload. Pure bookkeeping.

While the line is a burst's, first in, first out. A line that has not been empty for long is no burst but overload: then
whoever waits longest is the least likely to be still wanted when served, so that the newest goes first and the old ones are
refused (CoDel's idea of a standing queue, K. Nichols and V. Jacobson 2012, and adaptive LIFO, B. Maurer, "Fail at Scale",
2015). Every operation is O(1), O(log n), or that for each waiter that leaves.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

SLACK = 16
"""Left-over entries of waiters that have gone, which the expiries may keep beyond one for each that waits."""


class Waiter:
    """One that waits.

    Attributes:
        rank: its priority's number; 0 is the most urgent.
        since: when it came, on the clock.
        expires: when it must have left.
        waits: it is in the line.
    """

    __slots__ = ("expires", "rank", "since", "waits")

    def __init__(self, rank: int, since: float, expires: float) -> None:
        self.rank = rank
        self.since = since
        self.expires = expires
        self.waits = False


W = TypeVar("W", bound=Waiter)


class WaitingLine(Generic[W]):
    """The line.

    Args:
        ranks: how many priorities there are.
        capacity: waiters at most.
        overload_after: seconds without an empty moment after which this is overload.

    Attributes:
        length: how many wait, as ``len()`` says at a higher price.
        standing_since: when the line was last empty, on the clock; means nothing while it is.
    """

    __slots__ = ("_expiries", "_ranks", "_serial", "capacity", "length", "overload_after", "standing_since")

    def __init__(self, ranks: int, capacity: int, overload_after: float) -> None:
        self.capacity = capacity
        self.overload_after = overload_after
        self._ranks: tuple[OrderedDict[W, None], ...] = tuple(OrderedDict() for _ in range(ranks))
        self.length = 0
        self.standing_since = 0.0
        self._serial = 0
        # Those that have left are dropped when they come up, or all together when there are too many.
        self._expiries: list[tuple[float, int, W]] = []

    def __len__(self) -> int:
        return self.length

    @property
    def full(self) -> bool:
        return self.length >= self.capacity

    def overloaded(self, now: float) -> bool:
        """Has the line stood for too long?"""
        return self.length > 0 and now - self.standing_since >= self.overload_after

    def ahead(self, rank: int, now: float) -> int:
        """How many of those in the line would be served before a newcomer."""
        count = sum(len(waiting) for waiting in self._ranks[:rank])
        return count if self.overloaded(now) else count + len(self._ranks[rank])

    def join(self, waiter: W, now: float) -> None:
        """Add a waiter that was never in this line. Whether there is room (:attr:`full`) is the caller's to ask."""
        if not self.length:
            self.standing_since = now
        self._ranks[waiter.rank][waiter] = None
        self.length += 1
        waiter.waits = True
        self._serial += 1
        if len(self._expiries) > 2 * self.length + SLACK:
            self._expiries = [entry for entry in self._expiries if entry[2].waits]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (waiter.expires, self._serial, waiter))

    def leave(self, waiter: W) -> bool:
        """Take a waiter out. False when it is not in the line (any more)."""
        if not waiter.waits:
            return False
        del self._ranks[waiter.rank][waiter]
        self._gone(waiter)
        return True

    def take(self, now: float) -> W | None:
        """Remove and return the one whose turn it is; None when nobody waits."""
        newest = self.overloaded(now)
        for waiting in self._ranks:
            if waiting:
                waiter, _ = waiting.popitem(last=newest)
                self._gone(waiter)
                return waiter
        return None

    def displace(self, rank: int, now: float) -> W | None:
        """Remove and return the one that would be served last, if a newcomer of ``rank`` would be served before it."""
        newest = not self.overloaded(now)
        for least in range(len(self._ranks) - 1, -1, -1):
            waiting = self._ranks[least]
            if waiting:
                # Of the newcomer's own priority, only the oldest of an overload would come after it.
                if least < rank or (least == rank and newest):
                    return None
                waiter, _ = waiting.popitem(last=newest)
                self._gone(waiter)
                return waiter
        return None

    def last(self, now: float) -> W | None:
        """Remove and return the one that would be served last; None when nobody waits."""
        return self.displace(-1, now)

    def stale(self, now: float, age: float) -> W | None:
        """Under overload, remove and return one that has waited for ``age`` seconds; None when there is none (left)."""
        if self.overloaded(now):
            for waiting in self._ranks:
                if waiting:
                    waiter = next(iter(waiting))
                    if now - waiter.since >= age:
                        del waiting[waiter]
                        self._gone(waiter)
                        return waiter
        return None

    def expired(self, now: float) -> W | None:
        """Remove and return one whose time has come; None when there is none (left)."""
        expires = self.next_expiry()
        if expires is None or expires > now:
            return None
        waiter = heapq.heappop(self._expiries)[2]
        del self._ranks[waiter.rank][waiter]
        self._gone(waiter)
        return waiter

    def next_expiry(self) -> float | None:
        """When the first waiter must have left; None when nobody waits."""
        expiries = self._expiries
        while expiries:
            expires, _, waiter = expiries[0]
            if waiter.waits:
                return expires
            heapq.heappop(expiries)
        return None

    def clear(self) -> list[W]:
        """Empty the line; those that were in it, in the order in which they came."""
        waiting = [entry[2] for entry in sorted(self._expiries, key=_serial) if entry[2].waits]
        for waiter in waiting:
            self.leave(waiter)
        return waiting

    def _gone(self, waiter: W) -> None:
        waiter.waits = False
        self.length -= 1


def _serial(entry: tuple[float, int, W]) -> int:
    return entry[1]
