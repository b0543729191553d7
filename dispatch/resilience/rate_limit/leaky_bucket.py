"""Leaky bucket, the counter of a rate limit. Sans-I/O: the caller passes the time."""

from __future__ import annotations

import math
from typing import Protocol

NEVER = float("-inf")
"""The infinite past."""


class Bucket(Protocol):
    """The interface of a bucket. Times are seconds on one monotonic clock; costs are in calls."""

    burst: float
    """The capacity, and so the largest cost that can fit."""

    @property
    def empty_at(self) -> float:
        """When the bucket is or was empty."""

    def try_add(self, cost: float, now: float) -> bool:
        """Add ``cost`` if it fits; return whether it did."""

    def give_back(self, cost: float, added_at: float, now: float) -> None:
        """Remove what remains of ``cost``, which was added at ``added_at``."""

    def time_until_fits(self, cost: float, now: float) -> float:
        """Return the seconds until ``cost`` fits if no other call is added; 0 if it fits now. A cost above ``burst`` stands
        for several calls, each added as soon as it fits: the result is the wait of the last."""


class LeakyBucket:
    """A leaky bucket that drains at ``per_second`` and holds ``burst`` (Turner 1986). In any ``t`` seconds, at most
    ``burst + per_second * t`` are added and not returned.

    Args:
        burst: capacity, in calls.
        per_second: drain rate, in calls per second.
        empty_at: when the initial content will have drained.
    """

    __slots__ = ("_at", "_largest", "_least", "_level", "_low_at", "burst", "per_second")

    def __init__(self, burst: float, per_second: float, empty_at: float = NEVER) -> None:
        self.burst = burst
        self.per_second = per_second
        # The level at the last change. In calls, not as an instant: whole calls add up without rounding.
        self._level = 0.0
        self._at = empty_at
        self._largest = 0.0  # the largest cost so far
        self._low_at = NEVER  # when the level was last below the largest cost
        self._least = math.inf  # the lowest level that calls found since then, less what was returned since

    @property
    def empty_at(self) -> float:
        return self._at + self._level / self.per_second

    def level(self, now: float) -> float:
        """Return the level, in calls."""
        level = self._level - (now - self._at) * self.per_second
        return level if level > 0.0 else 0.0

    def try_add(self, cost: float, now: float) -> bool:
        level = self._level - (now - self._at) * self.per_second
        if level < 0.0:
            level = 0.0
        if level + cost > self.burst:
            return False
        self._level = level + cost
        self._at = now
        if cost > self._largest:
            self._largest = cost
        if level < self._least:
            self._least = level
        if self._least < self._largest:
            self._low_at = now
            self._least = math.inf
        return True

    def give_back(self, cost: float, added_at: float, now: float) -> None:
        # Without the call the level would be lower by its cost, or by the lowest level since if that is less: what drained
        # while the bucket held nothing else must not be returned, or it would be granted twice. While the level never fell
        # below the largest cost, the whole cost is returned. Otherwise all that has drained since is attributed to this
        # call, which never returns too much.
        level = self.level(now)
        if self._low_at > added_at:
            cost -= (now - added_at) * self.per_second
        if cost > level:
            cost = level
        if cost > 0.0:
            self._level = level - cost
            self._at = now
            self._least -= cost
            if self._least < self._largest:
                self._low_at = now
                self._least = math.inf

    def time_until_fits(self, cost: float, now: float) -> float:
        level = self._level - (now - self._at) * self.per_second
        excess = (level if level > 0.0 else 0.0) + cost - self.burst
        return excess / self.per_second if excess > 0.0 else 0.0


class CombinedBucket:
    """Two buckets as one: a cost fits if it fits into both."""

    __slots__ = ("_one", "_other", "burst", "empty_at")

    def __init__(self, one: Bucket, other: Bucket) -> None:
        self._one = one
        self._other = other
        self.burst = min(one.burst, other.burst)
        self.empty_at = max(one.empty_at, other.empty_at)

    def try_add(self, cost: float, now: float) -> bool:
        if self._other.time_until_fits(cost, now) > 0.0 or not self._one.try_add(cost, now):
            return False
        if self._other.try_add(cost, now):
            return True
        self._one.give_back(cost, now, now)
        return False

    def give_back(self, cost: float, added_at: float, now: float) -> None:
        self._one.give_back(cost, added_at, now)
        self._other.give_back(cost, added_at, now)

    def time_until_fits(self, cost: float, now: float) -> float:
        return max(self._one.time_until_fits(cost, now), self._other.time_until_fits(cost, now))
