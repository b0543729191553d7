"""A bucket for every user, in bounded memory: when there are too many, who owes least is forgotten, and who is new begins
with as much as was forgotten at most.

That is the Space-Saving algorithm (Metwally, Agrawal and El Abbadi 2005) on leaky buckets. Forgetting the least recently
seen would hand a fresh burst to whoever comes back; one bucket shared by all that find no room would let a flood of invented
users stop the real ones among them. Here nobody gains by being forgotten: a newcomer owes at least what the forgotten one
does, for debts only shrink with time. And newcomers pay nothing as long as new users make fewer calls together than all that
are remembered may make: the least of so many debts has run out by then. Beyond that, new users share what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from dispatch.resilience.rate_limit.leaky_bucket import NEVER, Bucket

B = TypeVar("B", bound=Bucket)

MAX_USERS = 10_000
"""Users remembered for one limit: some megabytes."""
LOOKS = 16
"""Users looked at to find the one who owes least. The order is brought up to date only then, and so many take some ten
microseconds. Who is not found by then is sought on with the next new user; until then there is one more to remember, and
when that makes one in so many too many, the least of those looked at goes."""


class UserBuckets(Generic[B]):
    """The buckets of users.

    Args:
        make: a bucket that will be empty at that time; a time that has passed: one that is empty now.
        most: users remembered; at most one in :data:`LOOKS` more.
    """

    __slots__ = ("_buckets", "_make", "_most", "_number", "_order", "floor")

    def __init__(self, make: Callable[[float], B], most: int = MAX_USERS) -> None:
        self._make = make
        self._most = most
        self._buckets: dict[str, B] = {}
        # For each user when its bucket will be empty, as it was when this was last looked at: it can only be later by now,
        # or sooner by what a call gave back.
        self._order: list[tuple[float, int, str]] = []
        self._number = 0
        self.floor = NEVER
        """When the last of all forgotten buckets is empty: what a newcomer begins with."""

    def __len__(self) -> int:
        return len(self._buckets)

    def get(self, user: str, now: float) -> B:
        """The bucket of ``user``. Valid until the next ``get``: after that it may have been forgotten."""
        bucket = self._buckets.get(user)
        return self._enter(user, now) if bucket is None else bucket

    def _enter(self, user: str, now: float) -> B:
        if len(self._buckets) >= self._most:
            self._forget(now)
        bucket = self._buckets[user] = self._make(self.floor)
        self._number += 1
        heappush(self._order, (bucket.empty_at, self._number, user))
        return bucket

    def _forget(self, now: float) -> None:
        seen: list[tuple[float, int, str]] = []
        found = False
        while not found and self._order and len(seen) < LOOKS:
            then, number, user = heappop(self._order)
            empty_at = self._buckets[user].empty_at
            seen.append((empty_at, number, user))
            found = empty_at <= max(then, now)  # it owes nothing, or nobody further on can owe less
        if found or len(self._buckets) >= self._most + self._most // LOOKS:
            seen.sort()
            least, _, forgotten = seen.pop(0)
            self.floor = max(self.floor, least)
            del self._buckets[forgotten]
        for each in seen:
            heappush(self._order, each)
