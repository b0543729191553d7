"""A fleet in virtual time: its members, the calls that they make, and a topic that loses, duplicates and delays messages."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from dispatch._internal import Rejection
from dispatch.policy import Bulkhead
from dispatch.resilience.bulkhead import BulkheadGuard, BulkheadPermit
from dispatch.resilience.fleet import TICK_S, Fleet, Record
from dispatch.resilience.leases import FleetRateLimiter, QuotaLease, RateLease, SlotsLease, UserLeases
from dispatch.resilience.rate_limit import RatePermit, Waiter

STEP_S = 0.02
EPOCH = 1_793_000_000.0
"""The time of day at the begin: 2026-10-26, in UTC."""
FAR = 1e12


@dataclass
class Conditions:
    """What the topic does to messages."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay: float = 0.01


@dataclass
class Limits:
    """The limits of each member; 0: none."""

    rate: float = 0.0
    burst: float = 10.0
    user_rate: float = 0.0
    slots: int = 0
    quota: int = 0
    per: str = "month"
    max_wait: float = 1.0
    weights: dict[str, float] = field(default_factory=dict)


class Node:
    """A member with its limits and its calls."""

    def __init__(self, world: World, name: str, limits: Limits) -> None:
        self.world = world
        self.name = name
        self.offset = 0.0
        """Seconds by which its clock is ahead."""
        self.is_cut = self.is_dead = False
        self.demand: dict[str, float] = {}
        self.admitted: list[tuple[float, str]] = []
        self.refused = 0
        self.core = Fleet(name, lambda: world.now, lambda: EPOCH + world.now + self.offset, name)
        self.limits = limits
        self.waiting: list[Waiter] = []
        self.leases: list[RateLease | UserLeases | QuotaLease | SlotsLease] = []
        self.limiter: FleetRateLimiter | None = None
        self.rate: RateLease | None = None
        self.quota: QuotaLease | None = None
        self.users: UserLeases | None = None
        self.guard: BulkheadGuard | None = None
        self.places: list[tuple[float, BulkheadPermit]] = []
        self._owed: dict[str, float] = {}
        self._tick_at = world.now + world.random.random() * TICK_S

    def open(self) -> None:
        """Create the limits, as the first call does."""
        limits, core, now = self.limits, self.core, self.world.now
        bucket = None
        if limits.rate:
            share = core.share_of("rate:t", limits.rate)
            self.rate = RateLease("rate:t", limits.rate, limits.burst, limits.weights, share, now)
            bucket = self.rate.bucket
            self.leases.append(self.rate)
        if limits.user_rate:
            self.users = UserLeases("rate:t", limits.user_rate, limits.burst, core)
            self.leases.append(self.users)
        if limits.quota:
            clock = lambda: EPOCH + self.world.now + self.offset  # noqa: E731 - of this node
            self.quota = QuotaLease(f"quota:t:{limits.per}", limits.quota, limits.per, clock, now)
            bucket = self.quota.bucket  # type: ignore[assignment] # of the other kind
            self.leases.append(self.quota)
        if limits.slots:
            self.guard = BulkheadGuard(Bulkhead(limits.slots, max_wait=0, scope="fleet"), lambda: self.world.now)
            self.leases.append(SlotsLease("slots:t", self.guard, now))
        else:
            self.limiter = FleetRateLimiter(
                lambda: self.world.now,
                bucket=bucket,
                users=None if self.users is None else self.users.get,
                max_wait=limits.max_wait,
                on_earlier=self._admit_waiters,
                weights=limits.weights,
            )
            shared = [each for each in self.leases if not isinstance(each, SlotsLease)]
            self.limiter.quota = None if self.quota is None else self.quota.bucket
            self.limiter.counts = tuple(each.demand.counts for each in shared)
            for each in shared:
                each.attach(self.limiter)
        for lease in self.leases:
            core.add(lease)

    def _admit_waiters(self) -> None:
        assert self.limiter is not None
        for waiter in self.limiter.admit_waiters():
            if isinstance(waiter.answer, RatePermit):
                self.admitted.append((self.world.now, waiter.user))

    def step(self) -> None:
        """Make the calls of one step, and exchange messages when it is time."""
        now = self.world.now
        if now >= self._tick_at or self.core.is_due:
            self._tick_at = now + TICK_S
            self.world.publish(self, self.core.tick())
            if self.core.wants_records:
                self.core.stored = dict(self.world.records)
        if self.limiter is None and self.guard is None:
            if not (self.demand and self.core.has_lease):  # a dispatcher waits for its leases when it starts
                return
            self.open()
        if self.guard is not None:
            self._hold_places(now)
            return
        limiter = self.limiter
        assert limiter is not None
        for user, rate in self.demand.items():
            self._owed[user] = self._owed.get(user, 0.0) + rate * STEP_S
            while self._owed[user] >= 1.0:
                self._owed[user] -= 1.0
                answer = limiter.admit(user, FAR)
                if isinstance(answer, RatePermit):
                    self.admitted.append((now, user))
                elif isinstance(answer, Rejection):
                    self.refused += 1
        if limiter.waiting:
            self._admit_waiters()

    def _hold_places(self, now: float) -> None:
        """Keep as many calls of half a second in flight as the demand says and the bulkhead admits."""
        assert self.guard is not None
        for ends_at, place in self.places:
            if ends_at <= now:
                place.finish(self.world.success)
        self.places = [each for each in self.places if each[0] > now]
        while len(self.places) < sum(self.demand.values()):
            place = self.guard.admit()
            if not isinstance(place, BulkheadPermit):
                break
            self.places.append((now + 0.5, place))

    def count(self, since: float = 0.0, until: float = FAR, user: str | None = None) -> int:
        """Return the calls that were admitted in that time."""
        return sum(since <= at < until and user in (None, who) for at, who in self.admitted)


class World:
    """Members and their topic."""

    def __init__(self, seed: int = 1, conditions: Conditions | None = None) -> None:
        from dispatch.errors import Outcome

        self.success = Outcome.SUCCESS
        self.now = 1000.0
        self.random = random.Random(seed)
        self.conditions = conditions or Conditions()
        self.is_down = False
        self.nodes: list[Node] = []
        self.records: dict[str, Record] = {}
        self.largest = 0.0
        """The largest sum of all shares of ``rate:t``, or of all places in use."""
        self._messages: list[tuple[float, int, Node, bytes]] = []
        self._number = 0

    def join(self, count: int, limits: Limits) -> list[Node]:
        """Let ``count`` members begin."""
        new = [Node(self, f"m{len(self.nodes) + number}", limits) for number in range(count)]
        self.nodes += new
        return new

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes if not node.is_dead]

    def publish(self, sender: Node, messages: list[bytes | Record]) -> None:
        for message in messages:
            if isinstance(message, Record):
                known = self.records.get(message.key)
                if known is None or known.period <= message.period:
                    self.records[message.key] = message
                continue
            if self.is_down or sender.is_cut:
                continue
            for node in self.live:
                copies = 0 if node.is_cut else 1 + (self.random.random() < self.conditions.duplicates)
                for _ in range(copies):
                    if self.random.random() >= self.conditions.loss:
                        delay = self.conditions.delay * (0.5 + self.random.random() * 5 ** self.random.random())
                        self._number += 1
                        heapq.heappush(self._messages, (self.now + delay, self._number, node, message))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += STEP_S
            while self._messages and self._messages[0][0] <= self.now:
                _, _, node, message = heapq.heappop(self._messages)
                if not (node.is_dead or node.is_cut or self.is_down):
                    node.core.receive(message)
            for node in self.live:
                node.step()
            self._measure()

    def _measure(self) -> None:
        shares = sum(node.rate.bucket.share for node in self.live if node.rate is not None)
        places = sum(node.guard.in_flight for node in self.live if node.guard is not None)
        self.largest = max(self.largest, shares, places)

    def admitted(self, since: float = 0.0, until: float = FAR, user: str | None = None) -> int:
        """Return the calls that all members, dead ones too, admitted in that time."""
        return sum(node.count(since, until, user) for node in self.nodes)

    def busiest(self, span: float) -> int:
        """Return the most calls that were admitted in any ``span`` seconds."""
        times = sorted(at for node in self.nodes for at, _ in node.admitted)
        first = most = 0
        for last, at in enumerate(times):
            while at - times[first] > span:
                first += 1
            most = max(most, last - first + 1)
        return most
