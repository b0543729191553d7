"""A fleet in virtual time: limits hold and are used, whatever happens to members and messages."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch._internal import Rejection
from dispatch.policy import Bulkhead
from dispatch.resilience.bulkhead import BulkheadGuard, BulkheadPermit
from dispatch.resilience.fleet import (
    BLIND_S,
    TICK_S,
    Entry,
    Fleet,
    Need,
    Record,
    Report,
    Table,
    divide,
    equal_share,
    fill,
    period_of,
    round_parts,
)
from dispatch.resilience.leases import FleetRateLimiter, QuotaLease, RateLease, SlotsLease, UserLeases
from dispatch.resilience.rate_limit import RatePermit, Waiter
from tests.helpers.run_profile import by_profile

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


RATE = Limits(rate=100.0, burst=10.0)
BAD = Conditions(loss=0.1, duplicates=0.1, delay=0.05)
START_S = 4.0


@pytest.fixture
def world() -> World:
    return World()


def test_the_rate_follows_the_demand(world: World) -> None:
    nodes = world.join(8, RATE)
    world.run(START_S)
    begin = world.now
    for busy in (nodes[:1], nodes[1:5], nodes, nodes[7:]):
        for node in nodes:
            node.demand = {"ann": 150.0 if node in busy else 0.0}
        world.run(5.0)
        assert world.admitted(world.now - 3.0) >= 0.95 * 300
    assert world.admitted(begin) >= 0.95 * 100 * (world.now - begin)
    assert world.busiest(5.0) <= 1.1 * 500 + 10
    assert world.largest <= 1.0 + 1e-6


@pytest.mark.parametrize("smaller", [Limits(rate=20.0, burst=10.0), Limits(user_rate=20.0, burst=10.0)])
def test_of_different_limits_the_smallest_holds(smaller: Limits, world: World) -> None:
    (one,) = world.join(1, Limits(rate=smaller.rate * 5, user_rate=smaller.user_rate * 5, burst=10.0))
    (other,) = world.join(1, smaller)
    world.run(START_S)
    one.demand = {"u": 120.0}
    other.demand = {"u": 120.0}
    world.run(10)
    since = world.now
    world.run(20)
    assert world.admitted(since) == pytest.approx(20 * 20, rel=0.1)
    assert other.count(since) > 150
    other.is_dead = True
    world.run(10)
    since = world.now
    world.run(10)
    assert world.admitted(since) == pytest.approx(100 * 10, rel=0.1), "the other limit has gone"


def test_a_killed_member_returns_its_share_within_ten_seconds(world: World) -> None:
    nodes = world.join(4, RATE)
    for node in nodes:
        node.demand = {"ann": 100.0}
    world.run(START_S + 3.0)
    for killed in (nodes[0], nodes[3]):  # the leader, and another one
        killed.is_dead = True
        world.run(10.0)
        assert world.admitted(world.now - 3.0) >= 0.95 * 300
    assert world.largest <= 1.0 + 1e-6


def test_a_member_that_leaves_returns_its_share_at_once(world: World) -> None:
    nodes = world.join(2, RATE)
    for node in nodes:
        node.demand = {"ann": 100.0}
    world.run(START_S + 3.0)
    for leaver in nodes:
        if leaver.core.leads:
            world.publish(leaver, leaver.core.leave())
            leaver.is_dead = True
    world.run(2.0)
    assert world.admitted(world.now - 1.0) >= 0.95 * 100


def test_without_the_topic_each_keeps_its_share_and_then_has_an_equal_one(world: World) -> None:
    nodes = world.join(4, RATE)
    nodes[0].demand = {"ann": 200.0}
    for node in nodes[1:]:
        node.demand = {"ann": 1.0}
    world.run(START_S + 3.0)
    world.is_down = True
    world.run(BLIND_S + 0.1)  # until then the leader may not know of it, and goes on
    kept = nodes[0].rate.bucket.share  # type: ignore[union-attr] # it has called
    world.run(1.4)
    assert nodes[0].rate.bucket.share == kept > 0.9  # type: ignore[union-attr]
    world.run(6.0)
    assert [node.rate.bucket.share for node in nodes] == [0.25] * 4  # type: ignore[union-attr]
    world.is_down = False
    world.run(4.0)
    assert nodes[0].rate.bucket.share > 0.9  # type: ignore[union-attr]
    assert world.largest <= 1.0 + 1e-6


def test_others_leave_a_member_that_receives_nothing_its_equal_share(world: World) -> None:
    """Its reports still arrive: it is not lost."""
    nodes = world.join(4, RATE)
    for node in nodes:
        node.demand = {"ann": 200.0 if node is nodes[1] else 1.0}
    world.run(START_S + 3.0)
    deaf = nodes[3]
    receive = deaf.core.receive
    deaf.core.receive = lambda _payload: None  # type: ignore[method-assign]
    world.run(9.0)
    assert deaf.rate.bucket.share == 0.25  # type: ignore[union-attr] # it has called
    assert nodes[1].rate.bucket.share > 0.7  # type: ignore[union-attr]
    assert world.largest <= 1.0 + 1e-6
    nodes[0].is_dead = True  # the leader: and three equal shares are larger ones
    world.run(8.0)
    assert nodes[1].rate.bucket.share > 0.6  # type: ignore[union-attr]
    deaf.core.receive = receive  # type: ignore[method-assign]
    world.run(2.0)
    assert nodes[1].rate.bucket.share > 0.9  # type: ignore[union-attr]
    assert world.largest <= 1.0 + 1e-6


def test_a_new_leader_lowers_no_share_that_is_used(world: World) -> None:
    nodes = world.join(4, RATE)
    for node in nodes:
        node.demand = {"ann": 200.0 if node is nodes[1] else 1.0}
    world.run(START_S + 3.0)
    nodes[0].is_dead = True
    for _ in range(80):
        world.run(0.1)
        assert nodes[1].rate.bucket.share > 0.9  # type: ignore[union-attr] # it has called
    assert nodes[1].core.leads


@pytest.mark.parametrize("outage", [3.0, 5.0, 7.0, 12.0])
@pytest.mark.parametrize("limits", [RATE, Limits(slots=20)], ids=["rate", "slots"])
def test_a_leader_that_dies_in_an_outage_leaves_no_share_twice(limits: Limits, outage: float, world: World) -> None:
    nodes = world.join(4, limits)
    for node in nodes:
        node.demand = {"ann": 60.0 if node is nodes[1] else 1.0}
    world.run(START_S + 3.0)
    world.is_down = True
    world.run(1.0)
    nodes[0].is_dead = True
    world.run(outage - 1.0)
    world.is_down = False
    world.run(10.0)
    assert world.largest <= (20 if limits.slots else 1.0 + 1e-6)


def test_a_topic_that_was_never_reachable_leaves_the_whole_limit(world: World) -> None:
    world.is_down = True
    (node,) = world.join(1, RATE)
    node.demand = {"ann": 200.0}
    world.run(10.0)
    assert world.admitted(1005.0) == pytest.approx(500, rel=0.05)


def test_steps_of_a_clock_change_nothing(world: World) -> None:
    nodes = world.join(3, RATE)
    for node in nodes:
        node.demand = {"ann": 100.0}
    world.run(START_S)
    begin = world.now
    for step in (3600.0, -3600.0, 0.0):
        nodes[0].offset = step
        world.run(3.0)
    assert world.admitted(begin) == pytest.approx(900, rel=0.05)
    assert world.largest <= 1.0 + 1e-6


def test_a_limit_of_few_calls_is_at_the_member_that_calls(world: World) -> None:
    """Ten calls an hour and eight members: the calls of the idle ones are not lost."""
    nodes = world.join(8, Limits(rate=10 / 3600, burst=10.0))
    for node in nodes:
        node.demand = {"ann": 0.0}
    world.run(START_S)
    nodes[2].demand = {"ann": 2.0}
    world.run(20.0)
    assert 8 <= world.admitted() <= 11


@pytest.mark.costly
@pytest.mark.parametrize(
    ("members", "limits", "load"),
    [
        (2, Limits(rate=0.1, burst=6.0), 0.4),
        (8, Limits(rate=10 / 60), 0.8),
        (2, Limits(rate=0.05, burst=1.0), 1.0),
        (4, Limits(rate=0.1, burst=1.0), 0.9),
        (10, Limits(rate=1.0, burst=1.0), 0.8),
        (10, Limits(rate=1.0, burst=1.0), 10.0),
    ],
    ids=str,
)
def test_a_limit_of_few_calls_is_used_by_members_that_call_seldom(members: int, limits: Limits, load: float) -> None:
    world = World()
    nodes = world.join(members, limits)
    world.run(START_S)
    for number, node in enumerate(nodes):
        node.demand = {"ann": load * limits.rate / members}
        node._owed = {"ann": number / members}
    world.run(50.0)
    since = world.now
    world.run(150.0)
    assert world.admitted(since) >= 0.9 * min(1.0, load) * limits.rate * 150
    assert world.busiest(60.0) <= 1.1 * limits.rate * 60 + limits.burst
    counts = [node.count(since) for node in nodes]
    assert min(counts) >= 0.5 * sum(counts) / members


def test_users_share_the_rate_over_the_fleet(world: World) -> None:
    """One user calls everywhere, another one at one member only: each gets half."""
    nodes = world.join(4, RATE)
    for node in nodes:
        node.demand = {"ann": 300.0}
    nodes[1].demand = {"ann": 300.0, "bob": 80.0}
    world.run(START_S + 6.0)
    begin = world.now
    world.run(10.0)
    ann, bob = (world.admitted(begin, user=user) for user in ("ann", "bob"))
    assert ann + bob >= 0.95 * 1000
    assert abs(ann - bob) <= 0.1 * 1000


def test_the_rate_of_a_user_follows_the_user(world: World) -> None:
    nodes = world.join(4, Limits(user_rate=20.0, burst=4.0))
    nodes[0].demand = {"ann": 50.0, "bob": 50.0}
    nodes[1].demand = {"bob": 50.0}
    world.run(START_S + 4.0)
    begin = world.now
    world.run(10.0)
    assert world.admitted(begin, user="ann") == pytest.approx(200, rel=0.05)
    assert world.admitted(begin, user="bob") == pytest.approx(200, rel=0.05)


def test_places_of_a_bulkhead_are_never_exceeded(world: World) -> None:
    nodes = world.join(4, Limits(slots=20))
    world.run(START_S)
    for busy in (nodes[:1], nodes[2:], nodes, nodes[1:2]):
        for node in nodes:
            node.demand = {"ann": 30.0 if node in busy else 0.0}
        world.run(6.0)
        in_use = [node.guard.in_flight for node in busy]  # type: ignore[union-attr] # it has called
        assert sum(in_use) >= 19
    assert world.largest <= 20


def test_fewer_places_than_members_go_round() -> None:
    world = World(1, BAD)
    nodes = world.join(5, Limits(slots=2))
    for node in nodes:
        node.demand = {"ann": 3.0}
    world.run(START_S)
    held = dict.fromkeys(nodes, 0)
    for _ in range(400):
        world.run(0.1)
        for node in nodes:
            held[node] += node.guard.in_flight  # type: ignore[union-attr] # it has called
    assert world.largest <= 2
    assert sum(held.values()) > 0.5 * 2 * 400
    assert min(held.values()) > 0.5 * sum(held.values()) / 5


def test_a_quota_is_spent_and_not_exceeded() -> None:
    world = World(1, BAD)
    nodes = world.join(4, Limits(quota=300))
    world.run(START_S)
    for node in nodes:
        node.demand = {"ann": 20.0}
    world.run(30.0)
    assert 295 <= world.admitted() <= 300
    assert nodes[0].refused > 0


def test_a_quota_survives_the_end_of_all_members(world: World) -> None:
    for start in range(3):
        nodes = world.join(2, Limits(quota=300))
        world.run(START_S)
        for node in nodes:
            node.demand = {"ann": 20.0}
        world.run(3.0 if start < 2 else 30.0)
        for node in nodes:
            node.is_dead = True
    assert world.admitted() <= 300
    # What a killed member was granted and had not used is lost: two seconds of its demand.
    assert world.admitted() >= 300 - 4 * 45


def test_a_quota_begins_anew_with_its_period(world: World) -> None:
    nodes = world.join(3, Limits(quota=50, per="day"))
    midnight = period_of("day", EPOCH + world.now)[1]
    nodes[1].offset = 3600.0
    world.now += midnight - 30.0
    for node in nodes:
        node.core = type(node.core)(node.name, node.core.clock, node.core._time_of_day)
        node._tick_at = world.now
        node.demand = {"ann": 10.0}
    start = world.now
    world.run(25.0)
    assert world.admitted() == pytest.approx(50, abs=2)
    world.run(20.0)
    assert world.admitted(start + 30.0) == pytest.approx(50, abs=2)


chaos = st.lists(
    st.tuples(st.sampled_from(["demand", "kill", "join", "outage", "cut", "leave"]), st.integers(0, 7)), max_size=8
)


@pytest.mark.costly
@settings(max_examples=by_profile(short=4, long=40))
@given(st.integers(0, 1_000), st.floats(0.0, 0.2), chaos)
@example(0, 0.0, [("kill", 1), ("outage", 2), ("kill", 6), ("outage", 5)])
@example(103, 0.1, [("leave", 1), ("outage", 1), ("leave", 6), ("outage", 5)])
@example(5269, 0.2, [("kill", 6), ("kill", 3), ("outage", 0), ("demand", 6), ("kill", 1), ("join", 7), ("outage", 6)])
def test_the_limit_holds_whatever_happens(seed: int, loss: float, events: list[tuple[str, int]]) -> None:
    world = World(seed, Conditions(loss, loss, 0.02))
    world.join(4, RATE)
    world.run(START_S)
    for number, node in enumerate(world.nodes):
        node.demand = {"ann": 60.0 * (number % 3)}
    false_deaths = 0
    for event, which in events:
        node = world.live[which % len(world.live)]
        if event == "demand":
            node.demand = {"ann": 40.0 * which, "bob": 10.0}
        elif event == "kill" and len(world.live) > 1:
            node.is_dead = True
        elif event == "leave" and len(world.live) > 1:
            world.publish(node, node.core.leave())
            node.is_dead = True
        elif event == "join" and not world.is_down:  # alone, it would have the whole limit
            world.join(1, RATE)[0].demand = {"ann": 50.0}
        elif event == "outage":
            world.is_down = not world.is_down
        elif event == "cut":
            node.is_cut = not node.is_cut
            false_deaths += 1
        world.run(1.0 + which / 2)
    if not false_deaths:  # others divide the share of a member that is out of reach, and it cannot know
        assert world.largest <= 1.02
    world.is_down = False
    for node in world.live:
        node.is_cut = False
        node.demand = {"ann": 100.0}
    world.run(16.0)
    assert world.admitted(world.now - 4.0) >= 0.85 * 400
    shares = sum(node.rate.bucket.share for node in world.live if node.rate is not None)
    assert shares <= 1.0 + 1e-6
    assert sum(node.core.leads for node in world.live) == 1


@given(st.dictionaries(st.text(max_size=2), st.floats(0, 1e4), min_size=1, max_size=6), st.floats(0.1, 1e4))
def test_division_among_users(demands: dict[str, float], limit: float) -> None:
    found = fill(demands, {}, limit)
    assert sum(found.values()) <= limit * (1 + 1e-9) + 1e-9
    assert all(found[each] <= demands[each] + 1e-9 for each in demands)
    unserved = [found[each] for each in demands if found[each] < demands[each] - 1e-6]
    assert all(part >= max(found.values()) - 1e-6 for part in unserved)  # max-min: nobody has more than the unserved


@given(st.lists(st.floats(0, 500), min_size=1, max_size=8), st.floats(0.5, 1000))
def test_division_among_members(demands: list[float], limit: float) -> None:
    members = [f"m{number}" for number in range(len(demands))]
    needs = {id: Need(limit, {"ann": demand}) for id, demand in zip(members, demands, strict=True)}
    parts, _ = divide(limit, needs, members)
    assert sum(parts.values()) == pytest.approx(limit, rel=1e-6)
    places = int(limit)
    rounded = round_parts(divide(float(places), needs, members)[0], places)
    assert sum(rounded.values()) == places
    assert sum(equal_share("slots", places, members, each) for each in members) == places


def test_weights_of_users() -> None:
    assert fill({"ann": 100.0, "bob": 100.0}, {"ann": 3.0}, 100.0) == {"ann": 75.0, "bob": 25.0}


def test_malformed_messages_change_nothing(world: World) -> None:
    nodes = world.join(2, RATE)
    world.run(START_S)
    core = nodes[0].core
    before = core.table
    forged = Table("zz", 0, 10**6, ["zz"], [], {"rate:t": Entry(1.0, [1.0, 2.0], [0.0])})
    for payload in (b"", b"{", b'{"fleet":"table"}', b"[" * 10_000, msgspec.json.encode(forged), b"x" * (1 << 21)):
        core.receive(payload)
    assert core.table == before
    core.receive(msgspec.json.encode(Report("zz", 1, needs={"rate:t": Need(0.0, {"a": 1.0}), "odd": Need(1.0, {})})))
    world.run(10.0)
    assert all(node.core.has_lease for node in nodes)


@pytest.mark.parametrize(
    ("per", "clock", "expected"),
    [
        ("month", 1_798_761_599.0, ("2026-12", 1.0)),
        ("month", 1_798_761_600.0, ("2027-01", 31 * 86400.0)),
        ("day", 1_798_761_599.0, ("2026-12-31", 1.0)),
    ],
)
def test_periods(per: str, clock: float, expected: tuple[str, float]) -> None:
    assert period_of(per, clock) == expected
