"""A leaky bucket: what a rate limit counts with. Pure: whoever asks says what time it is."""

from __future__ import annotations

import math
from typing import Protocol

NEVER = float("-inf")
"""A time before all others."""


class Bucket(Protocol):
    """What a limiter asks of a bucket. Times are seconds on one clock that never goes back; costs are in calls."""

    burst: float
    """The largest cost that can ever fit."""

    @property
    def empty_at(self) -> float:
        """When everything in it will have run out; in the past when it has."""

    def take(self, cost: float, now: float) -> bool:
        """Pour ``cost`` in if it fits."""

    def give_back(self, cost: float, taken_at: float, now: float) -> None:
        """Take out again what ``cost``, poured in at ``taken_at``, still fills."""

    def wait(self, cost: float, now: float) -> float:
        """Seconds until ``cost`` fits if nothing else comes; 0 when it does. More than ``burst`` comes in several calls,
        each as soon as it fits: until the last of them does."""


class LeakyBucket:
    """Runs out at ``per_second``, holds ``burst`` (Turner 1986). In any ``t`` seconds at most ``burst + per_second * t``
    were taken and not given back.

    Args:
        burst: what fits into an empty one.
        per_second: how fast it runs out.
        empty_at: when what is in it at first will have run out.
    """

    __slots__ = ("_at", "_largest", "_least", "_level", "_low_at", "burst", "per_second")

    def __init__(self, burst: float, per_second: float, empty_at: float = NEVER) -> None:
        self.burst = burst
        self.per_second = per_second
        # What was in it when it was last changed. In calls, not as an instant: whole calls add up without any rounding.
        self._level = 0.0
        self._at = empty_at
        self._largest = 0.0  # the largest cost yet
        self._low_at = NEVER  # when there was last less in it than that
        self._least = math.inf  # what calls found in it since, at least, less what was given back since

    @property
    def empty_at(self) -> float:
        return self._at + self._level / self.per_second

    def level(self, now: float) -> float:
        """What is in it, in calls."""
        level = self._level - (now - self._at) * self.per_second
        return level if level > 0.0 else 0.0

    def take(self, cost: float, now: float) -> bool:
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

    def give_back(self, cost: float, taken_at: float, now: float) -> None:
        # Without the call there would be less in the bucket: its cost, or, if that is less, the least there was since. For
        # what ran out while there was nothing else has run out for good: giving it back would let others have it twice. As
        # long as there always was more than any call costs, that is the whole cost. Otherwise it is reckoned as if all that
        # ran out since had been this call's, which is never too much.
        level = self.level(now)
        if self._low_at > taken_at:
            cost -= (now - taken_at) * self.per_second
        if cost > level:
            cost = level
        if cost > 0.0:
            self._level = level - cost
            self._at = now
            self._least -= cost
            if self._least < self._largest:
                self._low_at = now
                self._least = math.inf

    def wait(self, cost: float, now: float) -> float:
        level = self._level - (now - self._at) * self.per_second
        excess = (level if level > 0.0 else 0.0) + cost - self.burst
        return excess / self.per_second if excess > 0.0 else 0.0


class Both:
    """Two buckets as one: it fits when it fits into both."""

    __slots__ = ("_one", "_other", "burst", "empty_at")

    def __init__(self, one: Bucket, other: Bucket) -> None:
        self._one = one
        self._other = other
        self.burst = min(one.burst, other.burst)
        self.empty_at = max(one.empty_at, other.empty_at)

    def take(self, cost: float, now: float) -> bool:
        if self._other.wait(cost, now) > 0.0 or not self._one.take(cost, now):
            return False
        if self._other.take(cost, now):
            return True
        self._one.give_back(cost, now, now)
        return False

    def give_back(self, cost: float, taken_at: float, now: float) -> None:
        self._one.give_back(cost, taken_at, now)
        self._other.give_back(cost, taken_at, now)

    def wait(self, cost: float, now: float) -> float:
        return max(self._one.wait(cost, now), self._other.wait(cost, now))
