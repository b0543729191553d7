"""One bucket per user in bounded memory: at the limit, the bucket with the lowest level is evicted, and a new user starts
with the highest level evicted so far.

This is the Space-Saving algorithm (Metwally, Agrawal and El Abbadi 2005) on leaky buckets. Evicting the least recently used
bucket would grant a fresh burst to a returning user; one shared bucket for all users beyond the limit would let a flood of
invented users block real ones. Here no user gains by eviction: a new user starts at least at the level of the evicted
bucket, and levels only drain with time. New users start at zero as long as they make fewer calls together than all
remembered users may make, because the lowest level has drained by then. Beyond that, new users share the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from dispatch.resilience.rate_limit.leaky_bucket import NEVER, Bucket

B = TypeVar("B", bound=Bucket)

MAX_USERS = 10_000
"""Users remembered for one limit: some megabytes."""
SCAN_LIMIT = 16
"""Buckets examined per eviction to find the lowest level, some ten microseconds; the order is updated only then. If it is
not found, the search continues with the next new user, and the limit is exceeded by one; when it is exceeded by one in this
many, the lowest of the examined buckets is evicted."""


class UserBuckets(Generic[B]):
    """The buckets of users.

    Args:
        make: makes a bucket that will be empty at the given time; a time in the past: an empty bucket.
        most: maximum number of users; exceeded by at most one in :data:`SCAN_LIMIT`.
    """

    __slots__ = ("_buckets", "_make", "_most", "_number", "_order", "floor")

    def __init__(self, make: Callable[[float], B], most: int = MAX_USERS) -> None:
        self._make = make
        self._most = most
        self._buckets: dict[str, B] = {}
        # For each user when its bucket will be empty, as of the last examination: later now, or earlier by a returned cost.
        self._order: list[tuple[float, int, str]] = []
        self._number = 0
        self.floor = NEVER
        """When the last of all evicted buckets will be empty: where the bucket of a new user starts."""

    def __len__(self) -> int:
        return len(self._buckets)

    def get(self, user: str, now: float) -> B:
        """Return the bucket of ``user``. Valid until the next ``get``, which may evict it."""
        bucket = self._buckets.get(user)
        return self._add(user, now) if bucket is None else bucket

    def _add(self, user: str, now: float) -> B:
        if len(self._buckets) >= self._most:
            self._evict(now)
        bucket = self._buckets[user] = self._make(self.floor)
        self._number += 1
        heappush(self._order, (bucket.empty_at, self._number, user))
        return bucket

    def _evict(self, now: float) -> None:
        seen: list[tuple[float, int, str]] = []
        found = False
        while not found and self._order and len(seen) < SCAN_LIMIT:
            then, number, user = heappop(self._order)
            empty_at = self._buckets[user].empty_at
            seen.append((empty_at, number, user))
            found = empty_at <= max(then, now)  # empty, or no later entry can be lower
        if found or len(self._buckets) >= self._most + self._most // SCAN_LIMIT:
            seen.sort()
            least, _, forgotten = seen.pop(0)
            self.floor = max(self.floor, least)
            del self._buckets[forgotten]
        for each in seen:
            heappush(self._order, each)
