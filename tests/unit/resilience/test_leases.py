"""The limits of a process that a fleet shares: which calls it admits with its share of a rate, a quota or a bulkhead, and
what it reports of its demand."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead
from dispatch.resilience.bulkhead import BulkheadGuard, BulkheadPermit
from dispatch.resilience.fleet import (
    BACKLOG_S,
    IDLE_S,
    LAG_S,
    MAX_USERS,
    OTHERS,
    PRESSED,
    TICK_S,
    Entry,
    FindShare,
    Fleet,
    Need,
    Share,
    Table,
)
from dispatch.resilience.leases import (
    MANY_CALLS,
    MAX_MEMORY_S,
    MAX_MISSED,
    MEMORY_CALLS,
    MIN_MEMORY_S,
    Demand,
    FleetBucket,
    FleetRateLimiter,
    QuotaBucket,
    QuotaLease,
    RateLease,
    SlotsLease,
    UserLeases,
    apply_rate,
)
from dispatch.resilience.rate_limit import MAX_USERS as MAX_BUCKETS
from dispatch.resilience.rate_limit import SCAN_LIMIT, Bucket, CombinedBucket, LeakyBucket, RatePermit, Waiter

NOW = 1_000.0
FAR = 1e12
NOON = datetime(2026, 10, 26, 12, tzinfo=UTC).timestamp()


def entry(*, listing: int = 1, **values: Any) -> Entry:
    """What the table has of a listed limit."""
    return Entry(**{"limit": 10.0, "shares": [], "granted": [], "listing": listing, **values})


def give(share: Share) -> FindShare:
    """What a table says of every limit."""
    return lambda _key, _limit: share


def spend(bucket: Bucket, now: float = NOW) -> int:
    """How many calls the bucket admits at once."""
    count = 0
    while bucket.try_add(1.0, now):
        count += 1
    return count


class Bench:
    """A limiter of a leased bucket on a clock of its own, with a ``max_wait`` of 1 s unless another is given; ``admitted``
    has whose waiting calls were admitted, in order."""

    def __init__(self, bucket: Bucket | None = None, quota: QuotaBucket | None = None, **options: Any) -> None:
        self.now = NOW
        self.admitted = ""
        self.signals = 0
        self.limiter = FleetRateLimiter(lambda: self.now, bucket=bucket, on_earlier=self._admit_waiters, **options)
        self.limiter.quota = quota
        self.limiter.counts = ()

    def attach(self, lease: RateLease | UserLeases | QuotaLease) -> None:
        lease.attach(self.limiter)
        self.limiter.counts = (*self.limiter.counts, lease.demand.counts)

    def _admit_waiters(self) -> None:
        self.signals += 1
        for waiter in self.limiter.admit_waiters():
            if isinstance(waiter.answer, RatePermit):
                self.admitted += waiter.user

    def call(self, users: str, deadline: float = FAR) -> list[str]:
        """How the calls of users with these letters are answered."""
        return [self.answer(user, deadline) for user in users]

    def answer(self, user: str, deadline: float = FAR) -> str:
        answer = self.limiter.admit(user, deadline)
        return answer.reason if isinstance(answer, Rejection) else type(answer).__name__

    def serve(self, seconds: float, step: float = 0.125) -> str:
        """Admit waiting calls while time passes; whose they were."""
        self.admitted = ""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += step
            self._admit_waiters()
        return self.admitted


ADMITTED, WAITS = RatePermit.__name__, Waiter.__name__


# -- demand ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("calls", "elapsed", "memory"),
    [(5.0, TICK_S / 2, 0.2), (100.0, 1.0, 0.2), (50.0, 1.0, 0.2), (20.0, 1.0, 0.5), (5.0, 1.0, 2.0), (1.0, 1.0, 3.0)],
)
def test_demand_is_averaged_over_the_time_of_ten_calls_within_bounds(
    calls: float, elapsed: float, memory: float
) -> None:
    assert (MIN_MEMORY_S, MAX_MEMORY_S, MEMORY_CALLS) == (0.2, 3.0, 10.0)
    demand = Demand(0.0)
    demand.counts["ann"] = calls
    rate = calls / elapsed * (1.0 - math.exp(-elapsed / memory))
    assert demand.measure(elapsed) == {"ann": pytest.approx(rate)}


def test_demand_of_two_measurements_counts_the_later_one_more() -> None:
    demand = Demand(0.0)
    demand.counts["ann"] = 4_000.0
    assert demand.measure(1_000.0) == {"ann": 4.0}, "so long that nothing before counts"
    demand.counts["ann"] = 2.0
    keep = math.exp(-1.0 / 2.5)
    assert demand.measure(1_001.0) == {"ann": pytest.approx(4.0 * keep + 2.0 * (1.0 - keep))}


def test_demand_is_measured_in_spans_of_half_a_tick_at_least() -> None:
    demand = Demand(0.0)
    demand.counts["ann"] = 50.0
    assert demand.measure(0.049) == {}
    first = demand.measure(1_000.0)
    assert first == {"ann": 0.05}
    demand.counts["ann"] = 7.0
    assert demand.measure(1_000.049) == first
    assert demand.counts == {"ann": 7.0}, "they count in the next measurement"
    first["bob"] = 1.0
    assert demand.measure(1_000.049) == {"ann": 0.05}


def test_demand_ends_when_four_expected_calls_have_not_come() -> None:
    assert MAX_MISSED == 4.0
    demand = Demand(0.0)
    demand.counts.update(ann=2_000.0, bob=2_000.0)
    assert demand.measure(1_000.0) == {"ann": 2.0, "bob": 2.0}
    demand.counts["bob"] = 1.0
    found = demand.measure(1_002.0)
    assert found["ann"] == pytest.approx(2.0 * math.exp(-2.0 / 3.0)), (
        "four calls were to be expected, and it may be chance"
    )
    found = demand.measure(1_002.125)
    assert found.keys() == {"bob"}
    demand.counts["ann"] = 1.0
    assert demand.measure(1_003.0).keys() == {"ann", "bob"}
    assert demand.measure(1_004.0).keys() == {"ann", "bob"}, "of ann one call was missed since"


def test_demand_of_less_than_a_call_in_a_thousand_seconds_is_none() -> None:
    demand = Demand(0.0)
    demand.counts["ann"] = 1.0
    assert demand.measure(1_000.0) == {"ann": 0.001}
    demand = Demand(0.0)
    demand.counts["ann"] = 1.0
    assert demand.measure(1_001.0) == {}


# -- the bucket of a rate ----------------------------------------------------------------------------------------------
def fleet_bucket(part: float, fair: float | None = None, *, listed: bool = False, granted: float = 0.0) -> FleetBucket:
    """A bucket of 2 calls a second and a burst of 10 over the fleet."""
    share = Share(part, part if fair is None else fair, granted, entry(listing=7) if listed else None)
    return FleetBucket(10.0, 2.0, share, NOW)


@pytest.mark.parametrize(
    ("part", "listed", "calls", "wait"),
    [
        (1.0, False, 10, 0.5),
        (0.5, False, 5, 1.0),
        (0.1, False, 1, 5.0),
        (0.05, False, 0, 5.0),  # half a call of the burst, and one must be whole
        (0.5, True, 0, 1.0),  # the burst is elsewhere
        (0.05, True, 0, 10.0),
    ],
)
def test_a_process_has_its_share_of_rate_and_burst(part: float, listed: bool, calls: int, wait: float) -> None:
    bucket = fleet_bucket(part, listed=listed)
    assert (bucket.share, bucket.fair, bucket.listing, bucket.released) == (part, part, 7 if listed else 0, 0.0)
    assert spend(bucket) == calls
    assert bucket.time_until_fits(1.0, NOW) == pytest.approx(wait)
    assert bucket.time_until_fits(1.0, NOW + wait + 1e-6) == 0.0
    assert not bucket.try_add(1.0, NOW + wait - 1e-6)
    assert bucket.try_add(1.0, NOW + wait + 1e-6)


@pytest.mark.parametrize(("fair", "wait"), [(0.25, LAG_S + 2.0), (0.0, 5e8)])
def test_a_process_without_a_share_waits_for_an_equal_one(fair: float, wait: float) -> None:
    bucket = fleet_bucket(0.0, fair)
    assert spend(bucket) == 0
    assert bucket.time_until_fits(1.0, NOW) == pytest.approx(wait)
    bucket.set_share(0.5, NOW)
    assert bucket.time_until_fits(1.0, NOW) == 1.0
    bucket.set_share(0.0, NOW)
    assert bucket.time_until_fits(1.0, NOW) == pytest.approx(wait)


@pytest.mark.parametrize(
    ("part", "fair", "cost", "wait"),
    [
        (0.1, 0.5, 1.0, LAG_S + 1.0),  # five seconds by its own share, one by an equal one
        (0.1, 0.5, 0.01, 0.05),
        (0.1, 0.1, 1.0, 5.0),
        (0.5, 0.1, 1.0, 1.0),
        (0.5, 0.5, 0.0, 0.0),
    ],
)
def test_a_call_waits_no_longer_than_a_larger_share_takes(part: float, fair: float, cost: float, wait: float) -> None:
    assert LAG_S == 0.3
    bucket = fleet_bucket(part, fair, listed=True)
    assert bucket.time_until_fits(cost, NOW) == pytest.approx(wait)


def test_a_lower_share_keeps_the_unused_calls_that_fit_and_releases_the_others() -> None:
    bucket = fleet_bucket(0.5, 0.25)
    assert bucket.try_add(2.0, NOW)
    bucket.set_share(0.5, NOW + 100.0)
    assert bucket.released == 0.0
    bucket.set_share(0.25, NOW)
    assert (bucket.share, bucket.released) == (0.25, 0.5), "three were unused, and 2.5 fit"
    assert spend(bucket) == 2
    assert bucket.time_until_fits(1.0, NOW) == 1.0, "half a call, at half a call a second"
    bucket.set_share(0.2, NOW)
    assert bucket.released == 0.5
    bucket.set_share(0.1, NOW + 100.0)
    assert bucket.released == 1.5


def test_a_higher_share_adds_no_unused_calls() -> None:
    bucket = fleet_bucket(0.5)
    assert bucket.try_add(2.0, NOW)
    bucket.set_share(0.75, NOW + 1.0)
    assert bucket.released == 0.0
    assert spend(bucket, NOW + 1.0) == 4, "three were unused, and one more came free"
    assert bucket.time_until_fits(7.5, NOW + 1.0) == pytest.approx(5.0), "it grows to 7.5 calls, at 1.5 a second"


@pytest.mark.parametrize(("fair", "released"), [(0.4, 4.0), (0.399, 4.5)])
def test_an_idle_process_keeps_a_call_of_a_large_burst_only(fair: float, released: float) -> None:
    assert MANY_CALLS == 4.0
    bucket = fleet_bucket(0.5, fair)
    bucket.set_share(0.05, NOW)
    assert bucket.released == pytest.approx(released)
    assert spend(bucket) == (released == 4.0)


def test_granted_calls_fill_the_burst_and_those_that_do_not_fit_are_released() -> None:
    bucket = fleet_bucket(0.5, granted=1.0)
    assert bucket.try_add(2.0, NOW)
    bucket.add_unused(1.0, NOW)
    assert bucket.time_until_fits(4.0, NOW) == 1.0, "it had that one when it began"
    bucket.add_unused(2.0, NOW)
    bucket.add_unused(1.5, NOW)
    assert (bucket.granted, bucket.released) == (2.0, 0.0)
    assert bucket.time_until_fits(4.0, NOW) == 0.0
    bucket.add_unused(4.5, NOW)
    assert (bucket.granted, bucket.released) == (4.5, 1.5)
    assert spend(bucket) == 5


def test_a_call_from_before_a_change_of_the_share_returns_nothing_that_has_drained() -> None:
    bucket = fleet_bucket(0.5)
    assert spend(bucket) == 5
    bucket.set_share(0.6, NOW + 1.0)
    bucket.give_back(1.0, NOW, NOW + 2.0)
    assert bucket.level(NOW + 2.0) == pytest.approx(3.8), "it has drained: 2.4 calls could have"
    bucket.give_back(1.0, NOW + 1.0, NOW + 2.0)
    assert bucket.level(NOW + 2.0) == pytest.approx(2.8)


def test_a_table_that_changes_nothing_lets_calls_be_returned_whole() -> None:
    bucket = fleet_bucket(0.5, granted=1.0)
    assert spend(bucket) == 5
    apply_rate(bucket, Share(0.5, 0.5, 1.0), NOW + 1.0)
    bucket.give_back(1.0, NOW, NOW + 1.0)
    assert bucket.level(NOW + 1.0) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("listed", "empty_in", "calls"), [(False, 3.0, 2), (False, -1.0, 5), (False, 99.0, 0), (True, 3.0, 0)]
)
def test_a_bucket_that_replaces_another_is_empty_no_sooner(listed: bool, empty_in: float, calls: int) -> None:
    bucket = fleet_bucket(0.5, listed=listed)
    bucket.fill_until(NOW + empty_in, NOW)
    assert spend(bucket) == calls
    assert bucket.level(NOW) <= bucket.max_rate


def test_a_new_listing_counts_released_and_granted_calls_anew() -> None:
    bucket = fleet_bucket(0.5, 0.4)
    assert bucket.try_add(1.0, NOW)
    apply_rate(bucket, Share(0.1, 0.3, 0.0, entry(listing=8)), NOW)
    assert (bucket.listing, bucket.share, bucket.fair, bucket.released) == (8, 0.1, 0.3, 3.0)
    apply_rate(bucket, Share(0.1, 0.3, 0.5, entry(listing=8)), NOW)
    assert (bucket.released, bucket.granted) == (3.5, 0.5), "of the former listing nothing; in this one it does not fit"
    apply_rate(bucket, Share(0.1, 0.0), NOW)
    assert (bucket.listing, bucket.released, bucket.granted) == (8, 3.5, 0.5), "without a table nothing begins anew"
    assert bucket.fair == pytest.approx(1e-9)
    apply_rate(bucket, Share(0.1, 0.3, 0.25, entry(listing=9)), NOW)
    assert (bucket.listing, bucket.released, bucket.granted) == (9, 0.25, 0.25)


# -- the limiter -------------------------------------------------------------------------------------------------------
def rate_bench(
    part: float, fair: float | None = None, *, per_second: float = 1.0, burst: float = 2.0, **options: Any
) -> tuple[Bench, RateLease]:
    """A limiter with a share of a rate, by default of one call a second and a burst of 2."""
    share = Share(part, part if fair is None else fair)
    lease = RateLease("rate:t", per_second, burst, options.get("weights", {}), share, NOW)
    bench = Bench(lease.bucket, **options)
    bench.attach(lease)
    return bench, lease


def test_one_call_of_each_user_waits_for_what_other_processes_do_not_use() -> None:
    bench, _ = rate_bench(0.5)
    assert bench.call("aaabab") == [ADMITTED, WAITS, "too-late", WAITS, "too-late", "too-late"]
    assert bench.limiter.waiting_by_user() == {"a": 1, "b": 1}
    assert bench.limiter.admit("a", FAR) == Rejection("rate-limit", "too-late", 6.0), "two wait already"


@pytest.mark.parametrize(
    ("part", "max_wait", "deadline", "answer"),
    [
        (0.5, LAG_S, FAR, WAITS),
        (0.5, LAG_S - 0.01, FAR, "too-late"),
        (0.5, 1.0, NOW + LAG_S, "too-late"),
        (0.5, 1.0, NOW + LAG_S + 0.01, WAITS),
        (1.0, 0.9, FAR, "too-late"),  # no other process has any of it
        (1.0, 1.0, FAR, WAITS),
    ],
)
def test_call_waits_if_a_larger_share_can_come_in_time(
    part: float, max_wait: float, deadline: float, answer: str
) -> None:
    bench, _ = rate_bench(part, burst=1.0 / part, max_wait=max_wait)
    assert bench.call("a") == [ADMITTED]
    assert bench.call("b", deadline) == [answer]


def test_short_wait_for_the_own_share_is_no_longer_than_it_is() -> None:
    bench, _ = rate_bench(0.5, per_second=10.0)
    assert bench.call("a") == [ADMITTED]
    assert bench.call("b", NOW + 0.21) == [WAITS]


def test_spent_quota_lets_no_call_wait_for_a_larger_share_of_the_rate() -> None:
    bench, lease = rate_bench(0.5)
    bench.limiter.quota = quota = QuotaBucket()
    assert bench.call("aa") == [ADMITTED, WAITS], "the quota is not spent"
    quota.exhausted = True
    assert bench.call("b") == ["quota"]
    quota.granted = 1.0
    assert bench.call("b") == ["too-late"], "it has a call; the rate has none"
    assert lease.demand.counts == {"a": 2.0, "b": 2.0}


def test_call_beyond_the_quota_is_rejected_until_its_end_when_the_fleet_has_none_either() -> None:
    quota = QuotaBucket()
    quota.granted, quota.ends_at = 1.0, NOW + 60.0
    bench = Bench(quota, quota)
    assert bench.call("aa") == [ADMITTED, WAITS], "the fleet may grant more"
    quota.exhausted = True
    assert bench.limiter.admit("a", FAR) == Rejection("rate-limit", "quota", 60.0)
    bench.now = NOW + 59.9
    assert bench.call("a") == [WAITS], "the next period is near"
    assert bench.limiter.refused == 1


def test_full_queue_is_no_spent_quota() -> None:
    quota = QuotaBucket()
    quota.exhausted, quota.ends_at = True, NOW + 0.5
    assert Bench(quota, quota, max_queue=0).call("a") == ["queue-full"]


def test_larger_rate_admits_waiting_calls_and_signals_nothing_else() -> None:
    bench, lease = rate_bench(0.5)
    bench.limiter.admit_earlier()
    assert bench.signals == 0, "no call waits"
    assert bench.call("aa") == [ADMITTED, WAITS]
    lease.apply(lambda key, limit: {("rate:t", 1.0): Share(1.0, 1.0, granted=1.0)}[key, limit], None, NOW)
    assert (bench.signals, bench.admitted) == (1, "a")
    assert (lease.bucket.share, lease.bucket.granted) == (1.0, 1.0)


def test_weights_that_are_set_count_for_users_that_wait_and_for_later_ones() -> None:
    bench, _ = rate_bench(1.0, burst=1.0, max_wait=20.0, weights={"b": 1.0})
    assert bench.call("aab") == [ADMITTED, WAITS, WAITS]
    bench.limiter.set_weights({"b": 4.0, "c": 4.0})
    assert bench.call("abbbccc") == [WAITS] * 7
    assert bench.serve(9.5) == "cccabbbba", "turns that were assigned stay"


# -- the lease of a rate -----------------------------------------------------------------------------------------------
def read_one(lease: RateLease | SlotsLease | QuotaLease, now: float) -> tuple[Need, bool]:
    [(key, need, is_pressed)] = lease.read(now, ())
    assert key == lease.key
    return need, is_pressed


def test_rate_reports_the_demand_and_the_weights_of_its_users() -> None:
    bench, lease = rate_bench(0.5, per_second=100.0, burst=20.0, weights={"a": 3.0, "c": 2.0})
    lease.demand.counts.update(a=20_004.0, b=10_000.0)
    lease.bucket.released = 1.23456
    assert read_one(lease, NOW + 1_000.0) == (Need(100.0, {"a": 20.004, "b": 10.0}, {"a": 3.0}, 0.5, 1.235), False)
    assert bench.limiter.waiting == 0


@pytest.mark.parametrize(("calls", "is_pressed"), [(35_000.0, False), (35_001.0, True)])
def test_rate_is_pressed_from_seven_tenths_of_its_share(calls: float, is_pressed: bool) -> None:
    assert PRESSED == 0.7
    _, lease = rate_bench(0.5, per_second=100.0)
    lease.demand.counts["a"] = calls
    assert read_one(lease, NOW + 1_000.0) == (Need(100.0, {"a": calls / 1_000.0}, {}, 0.5), is_pressed)


def test_waiting_calls_count_as_demand_of_a_second() -> None:
    assert BACKLOG_S == 1.0
    bench, lease = rate_bench(0.5, per_second=1_000.0, burst=2.0)
    assert bench.call("abb") == [ADMITTED, WAITS, WAITS]
    for _ in range(2):
        need, is_pressed = read_one(lease, NOW + 0.01)
        assert (need.users, is_pressed) == ({"b": 2.0}, True), "its calls were not measured yet"


def test_users_beyond_sixteen_are_reported_as_one() -> None:
    assert MAX_USERS == 16
    names = [f"u{number:02}" for number in range(16)]
    _, lease = rate_bench(1.0, per_second=1_000.0, weights={"u15": 3.0, "u00": 5.0, "u16": 2.0, "u17": 0.25})
    lease.demand.counts.update({name: 20_000.0 - 1_000.0 * number for number, name in enumerate(names)})
    need, _ = read_one(lease, NOW + 1_000.0)
    assert need.users == {name: 20.0 - number for number, name in enumerate(names)}, "sixteen have names"
    assert need.weights == {"u15": 3.0, "u00": 5.0}


def test_merged_users_have_the_sum_of_their_demands_and_weights() -> None:
    _, lease = rate_bench(1.0, per_second=1_000.0, weights={"u03": 5.0, "u15": 3.0, "u17": 0.25})
    names = [f"u{number:02}" for number in range(18)]
    lease.demand.counts.update(dict.fromkeys(names, 2_000.0))
    need, _ = read_one(lease, NOW + 1_000.0)
    assert need.users == {**dict.fromkeys(names[:15], 2.0), OTHERS: 6.0}, "of equal demands those of the first names"
    assert need.weights == {"u03": 5.0, OTHERS: 3.0 + 1.0 + 0.25}


def test_merged_users_join_the_user_without_a_name() -> None:
    _, lease = rate_bench(1.0, per_second=1_000.0, weights={OTHERS: 7.0, "u00": 2.0})
    names = [f"u{number:02}" for number in range(16)]
    lease.demand.counts.update({**dict.fromkeys(names, 2_000.0), OTHERS: 9_000.0})
    need, _ = read_one(lease, NOW + 1_000.0)
    assert need.users == {**dict.fromkeys(names[:14], 2.0), OTHERS: 9.0 + 4.0}
    assert need.weights == {"u00": 2.0, OTHERS: 7.0 + 1.0 + 1.0}


@pytest.mark.parametrize(
    ("ratios", "weights", "demand", "order"),
    [
        ({}, {}, 10.0, "bababa"),
        ({}, {"a": 4.0}, 10.0, "aaabbb"),
        ({"a": 0.5, "b": 0.5}, {"a": 4.0}, 10.0, "bababa"),
        ({"a": 0.5, "b": 0.5}, {}, 2.5, "aaabbb"),  # its calls are made elsewhere
        ({"a": 1.0, "b": 0.25}, {}, 10.0, "aaabbb"),
        ({"a": 0.5, "b": 0.24}, {}, 10.0, "aababb"),
        ({"a": 0.0, "b": 0.0}, {"a": 4.0}, 10.0, "bababa"),
        ({"a": 0.5, "b": 0.0, "c": 0.1}, {}, 10.0, "bababa"),
        ({"a": 0.5, "c": 0.1}, {"b": 0.01}, 10.0, "bababa"),
    ],
)
def test_waiting_users_are_admitted_by_what_the_fleet_can_serve_of_their_demand(
    ratios: dict[str, float], weights: dict[str, float], demand: float, order: str
) -> None:
    """Ann has a demand of 10 calls a second here, and bob of ``demand``."""
    bench, lease = rate_bench(1.0, burst=1.0, max_wait=20.0, weights=weights)
    lease.demand.counts.update(a=10_000.0, b=1_000.0 * demand)
    read_one(lease, NOW + 1_000.0)
    for each in ({"a": 0.01, "b": 1.0}, ratios):  # those of a former table are forgotten
        lease.apply(give(Share(1.0, 1.0, 0.0, entry(ratios=each))), None, NOW)
    bench.now += 1_000.0
    assert bench.call("xbbbaaa") == [ADMITTED, *[WAITS] * 6]
    assert bench.serve(6.0) == order


# -- the leases of users -----------------------------------------------------------------------------------------------
class UserBench(Bench):
    """A process of two, with limits of 2 calls a second and a burst of 10 for each user over the fleet."""

    def __init__(self, entries: dict[str, Entry] | None = None, **options: Any) -> None:
        self.now = NOW
        fleet = Fleet("me", lambda: self.now, lambda: NOON)
        self.fleet = fleet
        self.tables = 0
        self.set_table(entries or {})
        self.leases = UserLeases("rate:t", 2.0, 10.0, fleet)
        super().__init__(users=self.leases.get, **options)
        self.attach(self.leases)
        fleet.add(self.leases)

    def set_table(self, entries: dict[str, Entry]) -> None:
        self.tables += 1
        self.fleet.receive(msgspec.json.encode(Table("it", 1, self.tables, ["it", "me"], [], entries)))

    def read(self, now: float, *listed: str) -> dict[str, tuple[Need, bool]]:
        return {key: (need, is_pressed) for key, need, is_pressed in self.leases.read(now, listed)}


def user_entry(mine: float, granted: float = 0.0, listing: int = 1) -> Entry:
    return entry(limit=2.0, shares=[1.0 - mine, mine], granted=[0.0, granted], listing=listing)


def test_each_user_has_an_equal_share_in_each_process_until_it_is_listed() -> None:
    bench = UserBench({"rate:t:b": user_entry(0.25), "rate:other:c": user_entry(0.25)})
    assert (bench.leases.key, bench.leases.limit) == ("rate:t:", 2.0)
    assert bench.call("aaaaa") == [ADMITTED] * 5
    assert bench.call("ccccc") == [ADMITTED] * 5
    assert bench.call("bb") == [WAITS, "too-late"], "other processes have the burst of a user who is listed"
    assert bench.leases.get("b", NOW) is bench.leases.get("b", NOW)
    assert bench.leases.get("b", NOW).share == 0.25
    assert bench.limiter.admit("b", FAR) == Rejection("user-rate-limit", "too-late", LAG_S + 2.0)


def test_tables_change_the_shares_of_users_that_call_here() -> None:
    bench = UserBench()
    assert bench.call("aaaaaa") == [ADMITTED] * 5 + [WAITS]
    assert bench.call("b") == [ADMITTED]

    def shares() -> list[float]:
        return [bench.leases.get(user, bench.now).share for user in "ab"]

    assert shares() == [0.5, 0.5]
    bench.set_table({"rate:t:a": user_entry(0.9, granted=1.0), "rate:t:z": user_entry(0.9)})
    assert shares() == [0.9, 0.5]
    assert bench.admitted == "a"
    assert len(bench.leases) == 2, "z has not called here"
    bench.set_table({"rate:t:b": user_entry(0.25, listing=2)})
    assert shares() == [0.5, 0.25], "a is not listed any more"


def test_call_of_a_user_is_admitted_when_its_share_grows_before_its_wait_ends() -> None:
    bench = UserBench({"rate:t:a": user_entry(0.05)})
    assert bench.call("a") == [WAITS]
    bench.now += 0.25
    bench.set_table({"rate:t:a": user_entry(1.0)})
    assert bench.limiter.next_at() == pytest.approx(NOW + 0.25 + 0.4875), "a fortieth of a call has drained so far"
    assert bench.serve(0.75) == "a"


def test_only_tables_with_users_of_the_limit_admit_their_waiting_calls() -> None:
    bench = UserBench()
    assert bench.call("aaaaaa") == [ADMITTED] * 5 + [WAITS]
    find = bench.fleet.share_of
    bench.leases.apply(find, ("rate:other:a",), NOW)
    assert bench.signals == 0
    bench.leases.apply(find, ("rate:t:zed",), NOW)
    assert bench.signals == 1
    bench.leases.apply(find, None, NOW)
    assert bench.signals == 2


def test_users_that_call_wait_or_are_listed_are_reported() -> None:
    bench = UserBench()
    for user in "abcd":
        bench.leases.get(user, NOW)
    bench.leases.get("b", NOW).released = 1.23456
    bench.leases.demand.counts.update(a=700.0, b=710.0, gone=5.0)
    found = bench.read(NOW + 1_000.0, "rate:t:c", "rate:t:zed", "rate:other:d")
    assert found == {
        "rate:t:a": (Need(2.0, {OTHERS: 0.7}, {}, 0.5), False),
        "rate:t:b": (Need(2.0, {OTHERS: 0.71}, {}, 0.5, 1.235), True),
        "rate:t:c": (Need(2.0, {OTHERS: 0.0}, {}, 0.5), False),
    }


def test_waiting_calls_of_a_user_at_several_tools_count_together() -> None:
    bench = UserBench(max_wait=10.0)
    other = Bench(users=bench.leases.get, max_wait=10.0)
    other.attach(bench.leases)
    assert bench.call("aaaaaaa") == [ADMITTED] * 5 + [WAITS] * 2
    assert other.call("a") == [WAITS]
    assert bench.read(NOW) == {"rate:t:a": (Need(2.0, {OTHERS: 3.0}, {}, 0.5), True)}
    bench.leases.demand.counts["a"] = 100.0
    assert bench.read(NOW + 1_000.0) == {"rate:t:a": (Need(2.0, {OTHERS: 3.1}, {}, 0.5), True)}


def test_user_beyond_those_remembered_begins_with_the_least_debt_of_a_forgotten_one() -> None:
    bench = UserBench()
    most = MAX_BUCKETS + MAX_BUCKETS // SCAN_LIMIT
    for number in range(most + 1):
        bench.leases.get(str(number), NOW).try_add(2.0, NOW)
    assert spend(bench.leases.get("new", NOW)) == 3, "five less two"
    assert len(bench.leases) == most


def test_users_wait_for_the_limit_that_holds_them_up() -> None:
    """The rate of the tool is of this process alone, and no other process can lend it any."""
    bench = UserBench(bucket=LeakyBucket(1.0, 0.5))
    assert bench.call("ab") == [ADMITTED, "too-late"]
    assert bench.limiter.leased is None


# -- the lease of places -----------------------------------------------------------------------------------------------
def slots(**settings: Any) -> tuple[BulkheadGuard, SlotsLease]:
    guard = BulkheadGuard(Bulkhead(**{"max_concurrent_calls": 10, "scope": "fleet", **settings}), lambda: NOW)
    return guard, SlotsLease("slots:t", guard, NOW)


def hold(guard: BulkheadGuard, count: int) -> list[BulkheadPermit]:
    permits = [guard.admit() for _ in range(count)]
    return [permit for permit in permits if isinstance(permit, BulkheadPermit)]


def test_bulkhead_reports_the_calls_in_flight_and_those_that_wait() -> None:
    guard, lease = slots()
    lease.apply(lambda key, limit: {("slots:t", 10.0): Share(3.7, 2.5)}[key, limit], None, NOW)
    assert guard.limit == 3, "whole places"
    assert read_one(lease, NOW) == (Need(10.0, {OTHERS: 0.0}, {}, 3), False)
    hold(guard, 2)
    assert read_one(lease, NOW) == (Need(10.0, {OTHERS: 2.0}, {}, 3), False)
    hold(guard, 1)
    for _ in range(2):
        guard.enqueue(lambda _answer: True)
    assert read_one(lease, NOW) == (Need(10.0, {OTHERS: 5.0}, {}, 3), True)
    lease.apply(give(Share(1.0, 2.5)), None, NOW)
    assert read_one(lease, NOW) == (Need(10.0, {OTHERS: 5.0}, {}, 3), True), "it still uses three"


@pytest.mark.parametrize(("in_flight", "is_pressed"), [(7, False), (8, True)])
def test_bulkhead_is_pressed_from_seven_tenths_of_its_places(in_flight: int, is_pressed: bool) -> None:
    guard, lease = slots()
    hold(guard, in_flight)
    assert read_one(lease, NOW) == (Need(10.0, {OTHERS: float(in_flight)}, {}, 10), is_pressed)


def test_demand_for_places_falls_with_a_time_constant_of_a_second() -> None:
    guard, lease = slots()
    permits = hold(guard, 8)
    read_one(lease, NOW)
    for permit in permits:
        permit.finish(Outcome.SUCCESS)
    found = [read_one(lease, NOW + seconds) for seconds in (0.5, 1.0, 2.0, 2.7, 2.8)]
    assert [need.users[OTHERS] for need, _ in found] == [4.9, 2.9, 1.1, 0.5, 0.0]
    assert not any(is_pressed for _, is_pressed in found)
    hold(guard, 1)
    assert read_one(lease, NOW + 3.0)[0].users == {OTHERS: 1.0}


def test_half_a_place_is_a_demand_and_less_is_none() -> None:
    guard, lease = slots()
    [permit] = hold(guard, 1)
    read_one(lease, NOW)
    permit.finish(Outcome.SUCCESS)
    assert read_one(lease, NOW + math.log(2.0) - 0.001)[0].users == {OTHERS: 0.5}
    assert read_one(lease, NOW + math.log(2.0) + 0.001)[0].users == {OTHERS: 0.0}
    assert read_one(lease, NOW + math.log(2.0) - 0.1)[0].users == {OTHERS: 0.0}, "it does not come back"


@pytest.mark.parametrize(("max_wait", "wanted"), [(0, 4.0), (1.0, 2.0), (None, 2.0)])
def test_rejected_calls_raise_the_demand_where_none_waits(max_wait: float | None, wanted: float) -> None:
    guard, lease = slots(max_wait=max_wait)
    guard.set_limit(2)
    hold(guard, 2)
    for seconds in (0.0, 10.0):
        assert isinstance(guard.admit(), Rejection)
        assert read_one(lease, NOW + seconds) == (Need(10.0, {OTHERS: wanted}, {}, 2), True)
    assert read_one(lease, NOW + 20.0)[0].users == {OTHERS: 2.0}, "they were counted"


# -- the lease of a quota ----------------------------------------------------------------------------------------------
class QuotaBench(Bench):
    """A quota of 10 calls a day, at noon unless another time of day is given."""

    def __init__(self, per: str = "day", limit: float = 10.0, time_of_day: float = NOON) -> None:
        self.now = NOW
        self.time_of_day = time_of_day
        self.lease = QuotaLease(f"quota:t:{per}", limit, per, lambda: self.time_of_day, NOW)
        super().__init__(self.lease.bucket, self.lease.bucket)
        self.attach(self.lease)
        self.bucket = self.lease.bucket

    def grant(self, part: float, period: str = "2026-10-26", *, extra: float = 0.0, reserved: float = 0.0) -> None:
        """Apply a table that grants so many calls of the period so far."""
        share = Share(part, 5.0, 0.0, entry(reserved=reserved, period=period), extra)
        shares = {("quota:t:day", 10.0): share}
        self.lease.apply(lambda key, limit: shares[key, limit], None, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.time_of_day += seconds


def test_process_makes_the_calls_that_the_fleet_has_granted() -> None:
    bench = QuotaBench()
    assert bench.call("a") == [WAITS], "none yet"
    bench.grant(3.0)
    assert bench.admitted == "a"
    assert bench.call("bcd") == [ADMITTED, ADMITTED, WAITS]
    assert (bench.bucket.used, bench.bucket.unused, bench.bucket.period) == (3.0, 0.0, "2026-10-26")
    bench.grant(3.0, extra=1.0)
    assert bench.admitted == "ad"
    assert read_one(bench.lease, NOW) == (
        Need(10.0, {OTHERS: 0.0}, {}, held=4.0, used=4.0, period="2026-10-26"),
        False,
    )


@pytest.mark.parametrize(("reserved", "answer"), [(9.0, WAITS), (9.001, "quota")])
def test_quota_is_spent_when_the_fleet_has_less_than_a_call(reserved: float, answer: str) -> None:
    bench = QuotaBench()
    bench.grant(1.0, reserved=reserved)
    assert bench.call("ab") == [ADMITTED, answer]
    retry_after = bench.bucket.time_until_fits(1.0, NOW)
    assert retry_after == (LAG_S if answer == WAITS else 12 * 3600.0)


def test_spent_quota_is_near_its_end_for_the_time_of_a_message() -> None:
    bench = QuotaBench(time_of_day=NOON + 12 * 3600.0 - 0.1)
    bench.grant(0.0, reserved=10.0)
    assert bench.bucket.time_until_fits(1.0, NOW) == LAG_S
    assert bench.bucket.time_until_fits(0.0, NOW) == 0.0


def test_new_period_begins_with_its_own_calls() -> None:
    bench = QuotaBench()
    bench.grant(2.0, reserved=10.0)
    assert bench.call("aa") == [ADMITTED, ADMITTED]
    bench.bucket.released = 1.0
    bench.grant(1.0, "2026-10-27")
    bucket = bench.bucket
    assert (bucket.period, bucket.used, bucket.released, bucket.exhausted) == ("2026-10-27", 0.0, 0.0, False)
    assert bench.call("aa") == [ADMITTED, WAITS]


def test_calls_that_were_made_without_a_table_are_not_granted_again() -> None:
    bench = QuotaBench()
    bench.grant(2.0, extra=3.0)
    assert bench.call("aaaa") == [ADMITTED] * 4
    bench.bucket.released = 0.5
    bench.grant(2.0)
    assert (bench.bucket.granted, bench.bucket.unused) == (4.5, 0.0)
    bench.lease.apply(give(Share(0.0, 5.0)), None, NOW)
    assert (bench.bucket.granted, bench.bucket.period) == (4.5, "2026-10-26"), "no table: the period goes on"


def test_quota_reports_calls_and_those_that_wait_as_demand() -> None:
    bench = QuotaBench()
    bench.grant(1.0)
    bench.lease.demand.counts.update(a=3_000.4, b=1_000.0)
    assert read_one(bench.lease, NOW + 1_000.0)[0].users == {OTHERS: 4.0}
    assert bench.call("abc") == [ADMITTED, WAITS, WAITS]
    need, is_pressed = read_one(bench.lease, NOW + 1_000.01)
    assert (need.users, is_pressed) == ({OTHERS: 6.0}, True)


def test_process_without_calls_returns_its_part_of_the_quota_after_five_seconds() -> None:
    assert IDLE_S == 5.0
    bench = QuotaBench()
    bench.grant(3.0)
    assert bench.call("a") == [ADMITTED]
    bench.lease.demand.counts.clear()
    need, is_pressed = read_one(bench.lease, NOW + 5.0)
    assert (need.released, is_pressed) == (0.0, False)
    need, _ = read_one(bench.lease, NOW + 5.1)
    assert need == Need(10.0, {OTHERS: 0.0}, {}, 3.0, 2.0, 1.0, "2026-10-26")
    bench.grant(3.5)
    assert read_one(bench.lease, NOW + 5.2)[0].released == 2.5, "and what comes later"
    assert bench.call("a") == [WAITS]
    assert read_one(bench.lease, NOW + 5.3) == (
        Need(10.0, {OTHERS: 1.952}, {}, 3.5, 2.5, 1.0, "2026-10-26"),
        True,
    )


def test_last_call_delays_the_return_of_a_quota() -> None:
    bench = QuotaBench()
    bench.grant(3.0)
    bench.lease.demand.counts["a"] = 1.0
    assert read_one(bench.lease, NOW + 4.0)[1]
    bench.lease.demand.counts["a"] = 0.0
    released = [read_one(bench.lease, NOW + seconds)[0].released for seconds in (400.0, 404.0, 405.1)]
    assert released == [3.0, 3.0, 3.0]


def test_changed_quota_of_a_fleet_is_granted_by_the_fleet() -> None:
    bench = QuotaBench()
    bench.lease.set_limit(7.0)
    assert bench.bucket.granted == 0.0, "the fleet grants"
    assert read_one(bench.lease, NOW) == (Need(7.0, {OTHERS: 0.0}), False)


def test_returned_calls_may_be_made_again_but_not_those_of_a_former_period() -> None:
    bucket = QuotaBucket()
    bucket.granted = 2.0
    assert spend(bucket) == 2
    bucket.give_back(1.0, NOW, NOW)
    assert bucket.unused == 1.0
    bucket.start("2026-10-27")
    bucket.granted = 2.0
    bucket.give_back(1.0, NOW, NOW)
    assert spend(bucket) == 2


# -- a quota without a fleet -------------------------------------------------------------------------------------------
def local_quota(per: str = "day", limit: float = 3.0, time_of_day: float = NOON) -> QuotaBench:
    bench = QuotaBench(per, limit, time_of_day)
    bench.lease.be_local(bench.now)
    return bench


@pytest.mark.parametrize(
    ("per", "period", "following", "seconds"),
    [("day", "2026-10-26", "2026-10-27", 12 * 3600.0), ("month", "2026-10", "2026-11", 5.5 * 86400.0)],
)
def test_process_without_a_fleet_has_the_whole_quota_in_each_period(
    per: str, period: str, following: str, seconds: float
) -> None:
    bench = local_quota(per)
    assert bench.call("aaa") == [ADMITTED] * 3
    assert bench.bucket.period == period
    assert bench.limiter.admit("a", FAR) == Rejection("rate-limit", "quota", seconds)
    bench.pass_time(seconds - 0.001)
    assert bench.bucket.time_until_fits(1.0, bench.now) == LAG_S
    assert not bench.bucket.try_add(1.0, bench.now)
    bench.pass_time(0.001)
    assert bench.bucket.time_until_fits(1.0, bench.now) == 0.0
    assert bench.call("aaaa") == [ADMITTED] * 3 + ["quota"]
    assert bench.bucket.period == following


def test_clock_that_is_set_back_grants_no_quota_twice() -> None:
    bench = local_quota()
    assert bench.call("aaa") == [ADMITTED] * 3
    bench.now += 12 * 3600.0
    bench.time_of_day = NOON + 11 * 3600.0
    assert not bench.bucket.try_add(1.0, bench.now)
    assert bench.limiter.admit("a", FAR) == Rejection("rate-limit", "quota", 3600.0)
    bench.pass_time(3600.0)
    assert bench.call("aaaa") == [ADMITTED] * 3 + ["quota"]


@pytest.mark.parametrize(("limit", "calls"), [(5.0, 2), (3.0, 0), (2.0, 0)])
def test_changed_quota_counts_the_calls_of_this_period(limit: float, calls: int) -> None:
    bench = local_quota()
    assert spend(bench.bucket) == 3
    bench.lease.set_limit(limit)
    assert spend(bench.bucket) == calls
    bench.pass_time(12 * 3600.0)
    assert spend(bench.bucket, bench.now) == limit


def test_call_needs_both_the_rate_and_the_quota() -> None:
    quota = local_quota()
    bench = Bench(CombinedBucket(LeakyBucket(2.0, 1.0), quota.bucket), quota.bucket)
    assert bench.call("aaa") == [ADMITTED, ADMITTED, WAITS]
    assert bench.serve(1.0) == "a"
    assert bench.call("a") == ["quota"]
