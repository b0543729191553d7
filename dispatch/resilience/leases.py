"""Limits of this process that a fleet shares: rates, places of a bulkhead, and quotas. Sans-I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from weakref import WeakSet

from dispatch._internal import Clock, Rejection
from dispatch.resilience.bulkhead import BulkheadGuard
from dispatch.resilience.fleet import (
    BACKLOG_S,
    IDLE_S,
    LAG_S,
    MAX_USERS,
    OTHERS,
    PRESSED,
    TICK_S,
    FindShare,
    Fleet,
    Need,
    Share,
    period_of,
)
from dispatch.resilience.rate_limit import BY_TOOL, Bucket, LeakyBucket, RateLimiter, UserBuckets

MIN_MEMORY_S, MAX_MEMORY_S, MEMORY_CALLS = 0.2, 3.0, 10.0
"""Seconds over which the demand is averaged, and the calls that are enough."""
MAX_MISSED = 4.0
"""Calls that were to be expected in a pause, after which the demand has ended: by chance one pause in fifty is as long."""


MANY_CALLS = 4.0
"""Calls of a burst for each process, from which an idle one keeps a call."""


class Demand:
    """The demand of one limit by user: calls a second, of the last moments."""

    __slots__ = ("_at", "_missed", "_rates", "counts")

    def __init__(self, now: float) -> None:
        self._at = now
        self.counts: dict[str, float] = {}
        """Calls since the last measurement, with the rejected ones."""
        self._rates: dict[str, float] = {}
        self._missed: dict[str, float] = {}
        """Calls that were to be expected since the last one."""

    def measure(self, now: float) -> dict[str, float]:
        """Return calls a second by user."""
        elapsed = now - self._at
        if elapsed >= TICK_S / 2:
            self._at = now
            counts, rates, missed = self.counts.copy(), self._rates, self._missed
            self.counts.clear()
            for user in rates.keys() | counts.keys():
                former, latest = rates.get(user, 0.0), counts.get(user, 0.0) / elapsed
                # As long as some ten calls take: less would be noise, and more would follow the demand too late.
                keep = math.exp(-elapsed / min(MAX_MEMORY_S, max(MIN_MEMORY_S, MEMORY_CALLS / max(former, latest))))
                rate = rates[user] = former * keep + latest * (1.0 - keep)
                missed[user] = 0.0 if latest else missed[user] + former * elapsed
                if missed[user] > MAX_MISSED or rate < 1e-3:
                    del rates[user], missed[user]
        return dict(self._rates)


class FleetBucket(LeakyBucket):
    """A leaky bucket of which this process has a share.

    A lower share keeps the unused calls that still fit, and releases the others; a higher one adds none. So transfers create
    no burst. The capacity is at least one call, because a process with less could make none.

    Attributes:
        listing: see :class:`dispatch.resilience.fleet.Entry`.
        released: unused calls that were released so far in this listing.
        granted: unused calls that were received so far in this listing.
        fair: the share that this process may expect when it asks for more.
    """

    __slots__ = ("_full_rate", "fair", "granted", "listing", "released", "share")

    def __init__(self, burst: float, per_second: float, share: Share, now: float) -> None:
        super().__init__(burst, per_second)
        self._full_rate = per_second
        self.share = share.part
        self.fair = max(share.fair, 1e-9)
        self.listing = 0 if share.entry is None else share.entry.listing
        self.released, self.granted = 0.0, share.granted
        self.max_rate = max(1.0, self.share * burst)
        self._rate_per_sec = max(self.share * per_second, 1e-9)
        # A limit that is listed is in use, and the calls of its burst are elsewhere.
        self._level = self.max_rate - (0.0 if share.entry is not None else self.share * burst)
        self._last_check = now

    def fill_until(self, empty_at: float, now: float) -> None:
        """Be empty at ``empty_at`` at the earliest."""
        self._level = min(self.max_rate, max(self._level, (empty_at - now) * self._rate_per_sec))

    def set_share(self, share: float, now: float) -> None:
        """Apply another share, from 0 to 1."""
        if share == self.share:
            return
        unused = self.max_rate - self.level(now)
        self.share = share
        self.max_rate = max(1.0, share * self.burst)
        self._rate_per_sec = max(share * self._full_rate, 1e-9)
        # An idle process keeps a call, so that its next one need not wait; of small bursts, it would keep too much.
        kept = self.max_rate if self.fair * self.burst >= MANY_CALLS else share * self.burst
        if unused > kept:
            self.released += unused - kept
            unused = kept
        self._set_level(self.max_rate - unused, now)

    def add_unused(self, granted: float, now: float) -> None:
        """Receive unused calls; ``granted``: all that were received so far."""
        if granted > self.granted:
            level = self.level(now) - (granted - self.granted)
            self.granted = granted
            self.released += max(0.0, -level)
            self._set_level(max(0.0, level), now)

    def _set_level(self, level: float, now: float) -> None:
        self._level = level
        self._last_check = self._low_at = now
        self._least = math.inf

    def time_until_fits(self, cost: float, now: float) -> float:
        excess = self.level(now) + cost - self.max_rate
        if excess <= 0.0:
            return 0.0
        wait = excess / self._rate_per_sec
        return min(wait, LAG_S + excess / (self._full_rate * self.fair)) if self.fair > self.share else wait


class QuotaBucket:
    """Calls of a quota that this process may still make. See :class:`dispatch.resilience.rate_limit.Bucket`.

    Attributes:
        granted, used, released: calls of this period.
        exhausted: the fleet has no further calls.
        ends_at: end of the period, on the fleet's clock.
        renew: called after that end, in a process without a fleet.
    """

    __slots__ = ("ends_at", "exhausted", "granted", "period", "released", "renew", "used")

    def __init__(self) -> None:
        self.ends_at = 0.0
        self.renew: Callable[[float], object] | None = None
        self.start("")

    def start(self, period: str) -> None:
        """Begin a period."""
        self.period = period
        self.granted = self.used = self.released = 0.0
        self.exhausted = False

    @property
    def unused(self) -> float:
        """Calls that may be made at once."""
        return self.granted - self.released - self.used

    def try_add(self, cost: float, now: float) -> bool:
        if self.renew is not None and now >= self.ends_at:
            self.renew(now)
        if self.unused < cost:
            return False
        self.used += cost
        return True

    def give_back(self, cost: float, added_at: float, now: float) -> None:
        self.used = max(0.0, self.used - cost)

    def time_until_fits(self, cost: float, now: float) -> float:
        if self.unused >= cost or (self.renew is not None and now >= self.ends_at):
            return 0.0
        return max(LAG_S, self.ends_at - now) if self.exhausted else LAG_S


class FleetRateLimiter(RateLimiter):
    """A rate limiter that counts the demand: ``counts`` of each limit that is shared. ``quota``: None: it has none.
    ``leased``: the bucket of the tool's rate, if that is shared."""

    __slots__ = ("__weakref__", "counts", "leased", "quota")

    counts: tuple[dict[str, float], ...]
    quota: QuotaBucket | None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.leased: FleetBucket | None = None

    def admit(self, user: str, deadline: float) -> Any:
        for each in self.counts:
            each[user] = each.get(user, 0.0) + 1.0
        return super().admit(user, deadline)

    def _adjust(self, estimate: float, by: str, user: str, own: Bucket | None) -> float:
        bucket = self.leased if by == BY_TOOL else own
        is_shared = isinstance(bucket, FleetBucket) and bucket.share < 1.0
        is_spent = self.quota is not None and self.quota.exhausted
        waits = user in self._queue._flows or user in self._user_queues
        # One call of each user waits for what other processes do not use.
        return min(estimate, LAG_S) if is_shared and not is_spent and not waits else estimate

    def _refuse(self, reason: str, retry_after: float | None, by: str = BY_TOOL) -> Rejection:
        quota = self.quota
        if quota is not None and quota.exhausted and quota.unused < 1.0 and reason == "too-late":
            reason = "quota"
        return super()._refuse(reason, retry_after, by)

    def waiting_by_user(self) -> dict[str, int]:
        """Return the number of waiting calls by user."""
        return {name: flow.places for name, flow in self._queue._flows.items()}

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Divide the rate among the users that wait by other weights."""
        self._queue._weights = dict(weights)
        for name, flow in self._queue._flows.items():
            flow.weight = weights.get(name, 1.0)

    def admit_earlier(self) -> None:
        """The rate or the unused calls, of the tool or of users, have grown."""
        if self._expiries:
            now = self.clock()
            for user in self._user_queues:
                self._place(user, now)
            self._on_earlier()


class RateLease:
    """The lease of a tool's rate. See :class:`dispatch.resilience.fleet.Leases`.

    Args:
        key: of the limit.
        per_second, burst: of the whole fleet.
        weights: of users; may be set in use.

    Attributes:
        limiter: whose calls wait for the rate, from :meth:`attach` on, which comes before all that follows.
    """

    limiter: FleetRateLimiter

    def __init__(
        self, key: str, per_second: float, burst: float, weights: Mapping[str, float], share: Share, now: float
    ) -> None:
        self.key = key
        self.limit = per_second
        self.weights = weights
        self.demand = Demand(now)
        self.bucket = FleetBucket(burst, per_second, share, now)
        self._users: dict[str, float] = {}

    def attach(self, limiter: FleetRateLimiter) -> None:
        """Admit the waiting calls of ``limiter`` when the lease grows."""
        self.limiter = limiter
        limiter.leased = self.bucket

    def read(self, now: float, listed: Collection[str]) -> Iterator[tuple[str, Need, bool]]:
        """See :meth:`dispatch.resilience.fleet.Leases.read`."""
        users, bucket = self.demand.measure(now), self.bucket
        waiting = self.limiter.waiting_by_user()
        for user, count in waiting.items():
            users[user] = users.get(user, 0.0) + count / BACKLOG_S
        self._users = users
        weights = {user: self.weights[user] for user in users if user in self.weights}
        if len(users) > MAX_USERS:
            users, weights = _merge(users, weights)
        demands = {user: round(demand, 3) for user, demand in users.items()}
        need = Need(self.limit, demands, weights, bucket.share, round(bucket.released, 3))
        yield self.key, need, bool(waiting) or need.demand > PRESSED * bucket.share * self.limit

    def apply(self, find: FindShare, keys: Collection[str] | None, now: float) -> None:
        """See :meth:`dispatch.resilience.fleet.Leases.apply`."""
        share = find(self.key, self.limit)
        apply_rate(self.bucket, share, now)
        ratios = {} if share.entry is None else share.entry.ratios
        if ratios:
            parts = {user: ratio * self._users.get(user, 0.0) for user, ratio in ratios.items()}
            usual = max(parts.values()) or 1.0
            self.limiter.set_weights({user: max(part / usual, 1e-3) for user, part in parts.items() if part})
        else:
            self.limiter.set_weights(self.weights)
        self.limiter.admit_earlier()


def apply_rate(bucket: FleetBucket, share: Share, now: float) -> None:
    """Apply the lease of a rate."""
    if share.entry is not None and share.entry.listing != bucket.listing:
        bucket.listing = share.entry.listing
        bucket.released = bucket.granted = 0.0
    bucket.fair = max(share.fair, 1e-9)
    bucket.set_share(share.part, now)
    bucket.add_unused(share.granted, now)


def _merge(users: Mapping[str, float], weights: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Name the users with the largest demand, and merge the others."""
    named = sorted(users, key=lambda user: (-users[user], user))[: MAX_USERS - 1]
    others = users.keys() - set(named)
    found = {user: users[user] for user in named}
    found[OTHERS] = found.get(OTHERS, 0.0) + sum(users[user] for user in others)
    kept = {user: weights[user] for user in named if user in weights}
    kept[OTHERS] = sum(weights.get(user, 1.0) for user in others | ({OTHERS} & set(named)))
    return found, kept


class UserLeases(UserBuckets[FleetBucket]):
    """The buckets of users, each with a lease of its own. See :class:`dispatch.resilience.fleet.Leases`.

    Args:
        key: of the limit; that of a user has the user's name behind it.
        per_second, burst: of each user, over the whole fleet.
    """

    __slots__ = ("_burst", "_fleet", "demand", "key", "limit", "limiters")

    def __init__(self, key: str, per_second: float, burst: float, fleet: Fleet) -> None:
        super().__init__(self._new)
        self.key = f"{key}:"
        self.limit = per_second
        self._burst = burst
        self._fleet = fleet
        self.demand = Demand(fleet.clock())
        self.limiters: WeakSet[FleetRateLimiter] = WeakSet()
        """Whose calls wait for these buckets."""

    def attach(self, limiter: FleetRateLimiter) -> None:
        """Admit the waiting calls of ``limiter`` when leases grow."""
        self.limiters.add(limiter)

    def _new(self, empty_at: float) -> FleetBucket:
        fleet = self._fleet
        now, share = fleet.clock(), fleet.share_of(self.key, self.limit)
        bucket = FleetBucket(self._burst, self.limit, share, now)
        bucket.fill_until(empty_at, now)
        return bucket

    def _add(self, user: str, now: float) -> FleetBucket:
        bucket = super()._add(user, now)
        share = self._fleet.share_of(self.key + user, self.limit)
        if share.entry is not None:
            self._buckets[user] = bucket = FleetBucket(self._burst, self.limit, share, now)
        return bucket

    def read(self, now: float, listed: Collection[str]) -> Iterator[tuple[str, Need, bool]]:
        """See :meth:`dispatch.resilience.fleet.Leases.read`."""
        demands = self.demand.measure(now)
        waiting: dict[str, float] = {}
        for limiter in self.limiters:
            for user, count in limiter.waiting_by_user().items():
                waiting[user] = waiting.get(user, 0.0) + count / BACKLOG_S
        for user in {*demands, *waiting, *self._users_of(listed)}:
            bucket = self._buckets.get(user)
            if bucket is not None:
                waits = waiting.get(user, 0.0)
                demand = demands.get(user, 0.0) + waits
                need = Need(self.limit, {OTHERS: round(demand, 3)}, {}, bucket.share, round(bucket.released, 3))
                yield self.key + user, need, waits > 0 or demand > PRESSED * bucket.share * self.limit

    def _users_of(self, keys: Collection[str]) -> list[str]:
        return [key[len(self.key) :] for key in keys if key.startswith(self.key)]

    def apply(self, find: FindShare, keys: Collection[str] | None, now: float) -> None:
        """See :meth:`dispatch.resilience.fleet.Leases.apply`."""
        users = list(self._buckets) if keys is None else self._users_of(keys)
        for user in users:
            if (bucket := self._buckets.get(user)) is not None:
                apply_rate(bucket, find(self.key + user, self.limit), now)
        if users:
            for limiter in self.limiters:
                limiter.admit_earlier()


class SlotsLease:
    """The lease of places in a bulkhead. See :class:`dispatch.resilience.fleet.Leases`."""

    def __init__(self, key: str, guard: BulkheadGuard, now: float) -> None:
        self.key = key
        self._guard = guard
        self._peak = 0.0
        self._found_full = 0
        self._at = now

    @property
    def limit(self) -> float:
        """Places of the whole fleet."""
        return float(self._guard.settings.max_concurrent_calls)

    def read(self, now: float, listed: Collection[str]) -> Iterator[tuple[str, Need, bool]]:
        """See :meth:`dispatch.resilience.fleet.Leases.read`."""
        guard = self._guard
        wanted = float(guard.in_flight + guard.waiting)
        if guard.settings.max_wait == 0 and guard.found_full > self._found_full:
            wanted = wanted * 1.5 + 1.0  # how many calls were rejected says nothing: they may be repeated
        self._found_full = guard.found_full
        self._peak = max(wanted, self._peak * math.exp((self._at - now) / BACKLOG_S))
        self._at = now
        if self._peak < 0.5:
            self._peak = 0.0
        need = Need(self.limit, {OTHERS: round(self._peak, 1)}, {}, max(guard.in_flight, guard.limit))
        yield self.key, need, wanted > PRESSED * guard.limit

    def apply(self, find: FindShare, keys: Collection[str] | None, now: float) -> None:
        """See :meth:`dispatch.resilience.fleet.Leases.apply`."""
        self._guard.set_limit(int(find(self.key, self.limit).part))


class QuotaLease:
    """The lease of calls of a quota. See :class:`dispatch.resilience.fleet.Leases`.

    Args:
        key: of the limit.
        limit: calls of a period.
        per: ``day`` or ``month``.
        time_of_day: seconds since the epoch.
        now: on the fleet's clock.

    Attributes:
        limiter: whose calls wait for the quota, from :meth:`attach` on.
    """

    limiter: FleetRateLimiter

    def __init__(self, key: str, limit: float, per: str, time_of_day: Clock, now: float) -> None:
        self.key = key
        self.limit = limit
        self._per = per
        self._time_of_day = time_of_day
        self.bucket = QuotaBucket()
        self.demand = Demand(now)
        self._called_at = now

    def set_limit(self, limit: float) -> None:
        """Apply another number of calls. Those of this period count."""
        self.limit = limit
        if self.bucket.renew is not None:
            self.bucket.granted = limit

    def attach(self, limiter: FleetRateLimiter) -> None:
        """Admit the waiting calls of ``limiter`` when the lease grows."""
        self.limiter = limiter

    def read(self, now: float, listed: Collection[str]) -> Iterator[tuple[str, Need, bool]]:
        """See :meth:`dispatch.resilience.fleet.Leases.read`."""
        bucket = self.bucket
        demand = sum(self.demand.measure(now).values()) + self.limiter.waiting / BACKLOG_S
        if demand:
            self._called_at = now
        elif now - self._called_at > IDLE_S and bucket.unused > 0.0:
            bucket.released += bucket.unused
        users = {OTHERS: round(demand, 3)}
        need = Need(self.limit, users, {}, bucket.granted, bucket.released, bucket.used, bucket.period)
        yield self.key, need, demand > 0.0

    def apply(self, find: FindShare, keys: Collection[str] | None, now: float) -> None:
        """See :meth:`dispatch.resilience.fleet.Leases.apply`."""
        share, bucket = find(self.key, self.limit), self.bucket
        _, remaining = period_of(self._per, self._time_of_day())
        bucket.ends_at = now + remaining
        if share.entry is not None:
            if share.entry.period != bucket.period:
                bucket.start(share.entry.period)
            bucket.exhausted = share.entry.limit - share.entry.reserved < 1.0
        bucket.granted = max(share.part + share.extra, bucket.used + bucket.released)
        self.limiter.admit_earlier()

    def be_local(self, now: float) -> None:
        """Grant the whole quota to this process, which belongs to no fleet, once in a period: clocks may be set back."""
        bucket = self.bucket
        period, remaining = period_of(self._per, self._time_of_day())
        if period != bucket.period:
            bucket.start(period)
            bucket.granted = self.limit
            bucket.exhausted = True
        bucket.ends_at = now + remaining
        bucket.renew = self.be_local
