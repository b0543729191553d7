"""One member of a fleet, exactly: what it publishes, and which share it has, at each moment.

The other members are messages that the test writes. Whole fleets on a bad topic are in tests/model/test_fleet.py.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
import pytest

from dispatch.resilience.fleet import (
    MAX_BYTES,
    MAX_NEEDS,
    Ask,
    Entry,
    FindShare,
    Fleet,
    Need,
    Record,
    Report,
    Share,
    Table,
    decode,
    divide,
    equal_share,
    fill,
    period_of,
    round_parts,
)

EPOCH = 1_793_000_000.0
"""The time of day at the begin: 2026-10-26, in UTC."""
START = 4096.0
"""The monotonic clock at the begin."""
MONTH = "2026-10"
TICK_S = 0.25
"""Seconds between two ticks: longer ones than in use, but their sums are exact."""
RATE, SLOTS, QUOTA = "rate:work", "slots:work", "quota:work:month"


def approx(value: Any) -> Any:
    """Compare with the precision of tables."""
    return pytest.approx(value, abs=2e-6)


class Limit:
    """A limit of the member, whose demand the test sets."""

    def __init__(self, key: str, limit: float = 100.0, demand: float = 0.0, *, is_pressed: bool | None = None) -> None:
        self.key = key
        self.limit = limit
        self.users = {"ann": demand}
        self.weights: dict[str, float] = {}
        self.is_pressed = bool(demand) if is_pressed is None else is_pressed
        self.share = Share(0.0, 0.0)
        self.released = self.used = 0.0
        self.period = ""
        self.held: float | None = None
        self.applied: list[Collection[str] | None] = []
        """The keys of each call of :meth:`apply`."""
        self.at = 0.0
        """When it was read or applied last."""

    def read(self, now: float, listed: Collection[str]) -> Iterable[tuple[str, Need, bool]]:
        self.at = max(self.at, now)
        held = self.share.part if self.held is None else self.held
        need = Need(self.limit, self.users, self.weights, held, self.released, self.used, self.period)
        yield self.key, need, self.is_pressed

    def apply(self, find: FindShare, keys: Collection[str] | None, now: float) -> None:
        self.at = max(self.at, now)
        self.applied.append(keys)
        self.share = find(self.key, self.limit)
        if self.share.entry is not None:
            self.period = self.share.entry.period


class Stand:
    """A member on its topic, which delivers at once.

    Attributes:
        is_cut: the topic is out of reach.
        others: needs of the other members, which report at each tick and confirm each table at once.
        seen: of those that confirm another table instead.
        table: the last one that the member published.
    """

    def __init__(self, name: str = "a", *leases: Limit, others: Iterable[str] = ()) -> None:
        self.now = 0.0
        self.ahead: dict[str, float] = {}
        """Seconds by which the clock of a member is ahead."""
        self.core = Fleet(
            name, lambda: START + self.now, lambda: EPOCH + self.now + self.ahead.get(name, 0.0), f"shop-{name}"
        )
        self.is_cut = False
        self.others: dict[str, dict[str, Need]] = {each: {} for each in others}
        self.seen: dict[str, tuple[int, str, int]] = {}
        self.table: Table | None = None
        self._numbers: Counter[str] = Counter()
        for each in leases:
            self.core.add(each)

    def tick(self) -> list[Any]:
        """Return the messages that the member publishes."""
        return [self._publish(each) for each in self.core.tick()]

    def _publish(self, message: bytes | Record) -> Any:
        if isinstance(message, Record):
            return message
        if not self.is_cut:
            self.core.receive(message)
        decoded = decode(message)
        if isinstance(decoded, Table):
            self.table = decoded
        return decoded

    def run(self, seconds: float) -> list[Any]:
        """Let time pass, and return all that the member publishes."""
        sent = []
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_S
            if not self.is_cut:
                for other, needs in self.others.items():
                    self.hear(other, needs, seen=self.seen.get(other))
            sent += self.tick()
        return sent

    def hear(
        self,
        member: str,
        needs: Mapping[str, Need] | None = None,
        *,
        seen: tuple[int, str, int] | None = None,
        **more: Any,
    ) -> None:
        """Receive a report of another member."""
        self._numbers[member] += 1
        if seen is None:
            seen = (0, "", 0) if self.table is None else (self.table.term, self.table.leader, self.table.version)
        clock = EPOCH + self.now + self.ahead.get(member, 0.0)
        report = Report(member, self._numbers[member], seen, clock=clock, needs=dict(needs or {}), **more)
        self.core.receive(msgspec.json.encode(report))

    def hear_table(
        self,
        version: int = 1,
        entries: Mapping[str, Entry] | None = None,
        *,
        leader: str = "a",
        term: int = 1,
        members: Iterable[str] = ("a", "b"),
        joining: Iterable[str] = (),
    ) -> None:
        """Receive a table of another leader."""
        table = Table(leader, term, version, [*members], [*joining], dict(entries or {}))
        self.core.receive(msgspec.json.encode(table))

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """The shares in the last table that the member published: by limit and member."""
        assert self.table is not None
        entries = self.table.entries
        return {key: dict(zip(self.table.members, each.shares, strict=True)) for key, each in entries.items()}

    @property
    def granted(self) -> dict[str, float]:
        """The calls of the rate that each member has received, by the last table."""
        assert self.table is not None
        return dict(zip(self.table.members, self.table.entries[RATE].granted, strict=True))


def lead(*leases: Limit, others: Iterable[str] = ("b",)) -> Stand:
    """Return the leader of a fleet, all of whose members have joined. The limits are those of the leader."""
    stand = Stand("a", others=others)
    stand.run(2.0)
    for each in leases:
        stand.core.add(each)
    return stand


def follow(*leases: Limit, entries: Mapping[str, Entry] | None = None) -> Stand:
    """Return the second one of two members, at the time 0 with a table of the first one."""
    stand = Stand("b", *leases)
    stand.tick()
    stand.hear("a")
    stand.hear_table(1, entries)
    return stand


def rate(demand: float, held: float, released: float = 0.0, limit: float = 100.0) -> dict[str, Need]:
    """Return the needs of a member that calls at a rate."""
    return {RATE: Need(limit, {"ann": demand}, {}, held, released)}


# Division of a limit.


@pytest.mark.parametrize(
    ("demands", "weights", "limit", "expected"),
    [
        ({"ann": 10.0, "bob": 30.0}, {}, 100.0, {"ann": 10.0, "bob": 30.0}),
        ({"ann": 100.0, "bob": 10.0, "eve": 100.0}, {}, 100.0, {"ann": 45.0, "bob": 10.0, "eve": 45.0}),
        ({"ann": 100.0, "bob": 10.0, "eve": 100.0}, {"ann": 2.0}, 100.0, {"ann": 60.0, "bob": 10.0, "eve": 30.0}),
        ({"ann": 30.0, "bob": 30.0}, {"ann": 4.0}, 40.0, {"ann": 30.0, "bob": 10.0}),
        ({"ann": 20.0, "bob": 10.0}, {"ann": 3.0}, 28.0, {"ann": 20.0, "bob": 8.0}),
        ({"ann": 5.0, "bob": 5.0}, {}, 0.0, {"ann": 0.0, "bob": 0.0}),
        ({}, {}, 10.0, {}),
    ],
)
def test_a_limit_is_divided_among_users_by_weighted_max_min_fairness(
    demands: dict[str, float], weights: dict[str, float], limit: float, expected: dict[str, float]
) -> None:
    assert fill(demands, weights, limit) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("limit", "needs", "parts", "ratios"),
    [
        # The rest of the limit, which exceeds the demand, is divided equally.
        (100.0, {"a": {"ann": 60.0}, "b": {"ann": 10.0}}, {"a": 75.0, "b": 25.0}, {}),
        (100.0, {"a": {"ann": 80.0}, "b": {"bob": 20.0}}, {"a": 80.0, "b": 20.0}, {}),
        (100.0, {"a": {"ann": 60.0}}, {"a": 80.0, "b": 20.0}, {}),
        # More than the limit: 2 % are divided equally, and 98 % by demand.
        (100.0, {"a": {"ann": 147.0}, "b": {"ann": 49.0}}, {"a": 74.5, "b": 25.5}, {"ann": 0.5}),
        (
            100.0,
            {"a": {"ann": 120.0}, "b": {"ann": 36.0, "bob": 20.0, "eve": 0.0}},
            {"a": 61.0, "b": 39.0},
            {"ann": 0.5, "bob": 1.0},
        ),
    ],
)
def test_the_part_of_a_member_is_what_its_users_may_call_there(
    limit: float, needs: dict[str, dict[str, float]], parts: dict[str, float], ratios: dict[str, float]
) -> None:
    found = divide(limit, {id: Need(limit, users) for id, users in needs.items()}, ["a", "b"])
    assert found[0] == pytest.approx(parts)
    assert found[1] == pytest.approx(ratios)


def test_a_user_with_a_weight_has_a_larger_part_at_every_member() -> None:
    needs = {"a": Need(100.0, {"ann": 98.0}, {"ann": 3.0}), "b": Need(100.0, {"bob": 98.0})}
    parts, ratios = divide(100.0, needs, ["a", "b"])
    assert parts == pytest.approx({"a": 74.5, "b": 25.5})
    assert ratios == pytest.approx({"ann": 0.75, "bob": 0.25})


@pytest.mark.parametrize(
    ("parts", "limit", "expected"),
    [
        ({"a": 1.5, "b": 1.5}, 3, {"a": 2.0, "b": 1.0}),
        ({"a": 1.2, "b": 1.8}, 3, {"a": 1.0, "b": 2.0}),
        ({"a": 2.6, "b": 0.7, "c": 0.7}, 4, {"a": 2.0, "b": 1.0, "c": 1.0}),
        ({"a": 0.9999999999, "b": 1.0000000001}, 2, {"a": 1.0, "b": 1.0}),
        ({"a": 2.0, "b": 2.0}, 3, {"a": 2.0, "b": 2.0}),
    ],
)
def test_places_are_whole(parts: dict[str, float], limit: int, expected: dict[str, float]) -> None:
    assert round_parts(parts, limit) == expected


@pytest.mark.parametrize(
    ("kind", "expected"), [("rate", [0.25] * 4), ("slots", [3.0, 3.0, 2.0, 2.0]), ("quota", [0.0] * 4)]
)
def test_a_limit_that_is_not_listed_is_divided_equally(kind: str, expected: list[float]) -> None:
    assert [equal_share(kind, 10.0, ["a", "b", "c", "d"], each) for each in "abcd"] == expected


@pytest.mark.parametrize(
    ("per", "clock", "expected"),
    [
        ("day", 1_798_757_998.25, ("2026-12-31", 3601.75)),
        ("day", 1_798_761_600.0, ("2027-01-01", 86400.0)),
        ("month", 1_798_757_998.25, ("2026-12", 3601.75)),
        ("month", EPOCH, (MONTH, 1_793_491_200.0 - EPOCH)),
    ],
)
def test_a_period_is_a_calendar_day_or_month(per: str, clock: float, expected: tuple[str, float]) -> None:
    assert period_of(per, clock) == expected


def test_a_period_does_not_depend_on_the_time_zone_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XST-5")
        time.tzset()
        assert period_of("day", 1_798_757_998.25) == ("2026-12-31", 3601.75)
    time.tzset()


# Messages.


def padded(size: int) -> bytes:
    return msgspec.json.encode(Ask()).ljust(size)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", None),
        (b"{}", None),
        (b'{"fleet":"other"}', None),
        (b'{"fleet":"ask","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
        (padded(MAX_BYTES), Ask()),
        (padded(MAX_BYTES + 1), None),
        (b'{"fleet":"report","member":"a","number":7}', Report("a", 7)),
    ],
    ids=["empty", "no kind", "unknown kind", "deep", "large", "too large", "report"],
)
def test_only_messages_of_a_fleet_are_decoded(payload: bytes, expected: object) -> None:
    assert decode(payload) == expected


def test_bytes_that_are_no_message_change_nothing() -> None:
    stand = follow()
    stand.run(1.0)
    before = stand.core.table
    stand.core.receive(b"?")
    assert (stand.core.table, stand.core.is_due, [*stand.core.peers]) == (before, False, ["b", "a"])


@pytest.mark.parametrize(
    ("term", "leader", "version", "is_after"),
    [
        (3, "a", 1, True),
        (1, "z", 9, False),
        (2, "m", 6, True),
        (2, "m", 5, False),
        (2, "m", 4, False),
        (2, "a", 1, True),
        (2, "z", 9, False),
    ],
)
def test_of_two_tables_the_later_term_counts_then_the_lower_leader(
    term: int, leader: str, version: int, is_after: bool
) -> None:
    former = Table("m", 2, 5, ["m"])
    assert Table(leader, term, version, ["m"]).is_after(former) is is_after
    assert Table(leader, term, version, ["m"]).is_after(None)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, False),
        ({"reserved": 5.0, "ratios": {"ann": 0.5}, "limit": 9.0}, False),
        ({"shares": [0.25, 0.75]}, True),
        ({"granted": [0.0, 1.0]}, True),
        ({"period": MONTH}, True),
    ],
)
def test_entries_differ_where_leases_do(change: dict[str, Any], differs: bool) -> None:
    entry = Entry(100.0, [0.5, 0.5], [0.0, 0.0])
    assert msgspec.structs.replace(entry, **change).differs(entry) is differs
    assert entry.differs(None)


# A member without a table.


def test_a_new_member_waits_for_its_leases() -> None:
    core = Stand("b").core
    assert (core.has_lease, core.size, core.is_reachable, core.leads) == (False, 1, False, False)
    assert core.share_of(RATE, 100.0) == Share(0.0, 1.0)
    assert core.share_of(SLOTS, 20.0) == Share(0.0, 20.0)
    assert core.share_of(QUOTA, 300.0) == Share(0.0, 300.0)


def test_a_member_that_never_reached_the_topic_has_the_whole_limits() -> None:
    limits = [Limit(RATE), Limit(SLOTS, 20.0), Limit(QUOTA, 300.0)]
    stand = Stand("b", *limits)
    stand.is_cut = True
    stand.run(1.5)
    assert not stand.core.has_lease
    assert [each.share.part for each in limits] == [0.0, 0.0, 0.0]
    stand.run(TICK_S)
    assert stand.core.has_lease
    assert [each.share for each in limits] == [Share(1.0, 1.0), Share(20.0, 20.0), Share(0.0, 300.0, extra=300.0)]
    stand.run(10.0)
    assert [len(each.applied) for each in limits] == [2, 2, 2], "when it was added, and once after the wait"


def test_a_member_that_reaches_the_topic_has_no_limit_before_the_first_table() -> None:
    limit = Limit(RATE)
    stand = Stand("c", limit, others=["a", "b"])
    stand.run(1.75)
    assert not stand.core.has_lease
    assert limit.share.part == 0.0


@pytest.mark.parametrize(("others", "waits"), [((), 1.25), (("a",), 1.75), (("a", "b"), 2.0), (("d", "e"), 1.25)])
def test_the_first_of_new_members_leads_and_each_further_one_waits_longer(
    others: tuple[str, ...], waits: float
) -> None:
    stand = Stand("c", others=others)
    sent = stand.run(waits - TICK_S)
    assert not any(isinstance(each, Table) for each in sent)
    assert not stand.core.leads
    stand.run(TICK_S)
    assert stand.core.leads
    assert stand.table == Table("c", 1, 1, sorted({"c", *others}), sorted(others))
    assert stand.core.has_lease


# A member with the table of another one.


@pytest.mark.parametrize(
    ("key", "limit", "entry", "expected"),
    [
        (RATE, 100.0, None, Share(0.5, 0.5)),
        (SLOTS, 5.0, None, Share(2.0, 2.0)),
        (QUOTA, 300.0, None, Share(0.0, 0.0)),
        (RATE, 100.0, Entry(100.0, [0.25, 0.75], [1.0, 2.0]), Share(0.75, 0.5, 2.0)),
        (RATE, 100.0, Entry(100.0, [0.0, 1.5], [0.0, 0.0]), Share(1.0, 0.5)),
        (RATE, 100.0, Entry(100.0, [0.0, -1.0], [0.0, 0.0]), Share(0.0, 0.5)),
        # Another member has a smaller limit, or a larger one.
        (RATE, 100.0, Entry(40.0, [0.25, 0.75], [0.0, 0.0]), Share(0.3, 0.2)),
        (RATE, 100.0, Entry(400.0, [0.25, 0.75], [0.0, 0.0]), Share(0.75, 0.5)),
        (SLOTS, 20.0, Entry(20.0, [5.0, 15.0], [0.0, 0.0]), Share(15.0, 10.0)),
        (SLOTS, 7.0, Entry(20.0, [5.0, 15.0], [0.0, 0.0]), Share(7.0, 3.0)),
        (QUOTA, 300.0, Entry(300.0, [5.0, 15.0], [0.0, 0.0], reserved=20.0), Share(15.0, 0.0)),
    ],
)
def test_a_member_has_what_the_table_says(key: str, limit: float, entry: Entry | None, expected: Share) -> None:
    lease = Limit(key, limit)
    stand = follow(lease, entries={} if entry is None else {key: entry})
    assert stand.core.has_lease
    assert stand.core.size == 2
    assert (lease.share.part, lease.share.fair) == pytest.approx((expected.part, expected.fair))
    assert (lease.share.granted, lease.share.entry, lease.share.extra) == (expected.granted, entry, 0.0)


@pytest.mark.parametrize(
    ("members", "joining", "size", "parts"),
    [
        # The table has a member, but it has no lease yet.
        (["a", "b", "c", "d"], ["b"], 4, {RATE: (0.0, 0.25), SLOTS: (0.0, 3.0)}),
        # The table does not know it yet.
        (["a", "c", "d"], [], 3, {RATE: (0.0, 0.25), SLOTS: (0.0, 2.5)}),
        ([], [], 1, {RATE: (0.0, 1.0), SLOTS: (0.0, 10.0)}),
    ],
)
def test_a_member_that_joins_has_no_lease_yet(
    members: list[str], joining: list[str], size: int, parts: dict[str, tuple[float, float]]
) -> None:
    stand = Stand("b")
    stand.hear_table(members=members, joining=joining)
    assert not stand.core.has_lease
    assert stand.core.size == size
    shares = {key: stand.core.share_of(key, 10.0) for key in parts}
    assert {key: (each.part, each.fair) for key, each in shares.items()} == parts
    assert [each.entry for each in shares.values()] == [None, None]


def test_a_member_without_tables_keeps_its_leases_and_then_has_equal_ones() -> None:
    """A larger lease is lowered first, and a smaller one raised two seconds later. Of a quota, it has a part of the rest."""
    large, small = Limit(RATE), Limit("rate:other")
    slots, quota, spent = Limit(SLOTS, 20.0), Limit(QUOTA, 300.0), Limit("quota:other:day", 9.0)
    entries = {
        RATE: Entry(100.0, [0.25, 0.75], [0.0, 3.0]),
        "rate:other": Entry(100.0, [0.75, 0.25], [0.0, 0.0]),
        SLOTS: Entry(20.0, [5.0, 15.0], [0.0, 0.0]),
        QUOTA: Entry(300.0, [10.0, 20.0], [0.0, 0.0], reserved=30.0, period=MONTH),
        "quota:other:day": Entry(9.0, [5.0, 7.0], [0.0, 0.0], reserved=12.0, period="2026-10-26"),
    }
    stand = follow(large, small, slots, quota, spent)
    stand.run(1.0)
    stand.hear_table(2, entries)
    stand.is_cut = True

    def parts() -> list[float]:
        return [each.share.part for each in (large, small, slots)]

    stand.run(4.0)
    assert parts() == [0.75, 0.25, 15.0]
    assert (quota.share.part, quota.share.extra) == (20.0, 0.0)
    stand.run(TICK_S)
    assert parts() == [0.5, 0.25, 10.0]
    assert (quota.share.part, quota.share.extra) == (20.0, 135.0)
    assert (spent.share.part, spent.share.extra) == (7.0, 0.0)
    assert large.share.granted == 3.0
    stand.run(1.75)
    assert parts() == [0.5, 0.25, 10.0]
    stand.run(TICK_S)
    assert parts() == [0.5, 0.5, 10.0]
    assert (quota.share.part, quota.share.extra) == (20.0, 135.0)
    assert stand.core.has_lease
    stand.hear_table(3, entries)
    assert parts() == [0.75, 0.25, 15.0]
    assert quota.share.extra == 0.0


def test_a_member_is_out_of_reach_when_it_does_not_receive_its_own_reports() -> None:
    stand = Stand("b")
    stand.tick()
    assert stand.core.is_reachable
    stand.is_cut = True
    stand.run(1.5)
    assert stand.core.is_reachable
    stand.run(TICK_S)
    assert not stand.core.is_reachable


def test_a_member_that_is_reachable_again_starts_to_wait_anew_for_tables_and_members() -> None:
    limit = Limit(RATE)
    stand = follow(limit, entries={RATE: Entry(100.0, [0.25, 0.75], [0.0, 0.0])})
    stand.is_cut = True
    stand.run(3.5)
    stand.is_cut = False
    while not stand.core.is_reachable and stand.now < 9.0:
        stand.run(TICK_S)
    assert stand.core.is_due, "others hear of it at once"
    stand.run(2.5)
    assert limit.share.part == 0.75, "six seconds after the table"
    assert not stand.core.leads
    stand.run(1.0)
    assert stand.core.leads, "the former leader is silent"
    assert stand.table is not None
    assert stand.table.members == ["a", "b"]


def test_a_member_that_was_stopped_takes_no_other_for_silent() -> None:
    limit = Limit(RATE)
    stand = follow(limit, entries={RATE: Entry(100.0, [0.25, 0.75], [0.0, 0.0])})
    stand.now += 100.0
    stand.tick()
    assert stand.core.is_reachable
    assert not stand.core.leads
    assert limit.share.part == 0.75
    stand.run(2.5)
    assert not stand.core.leads
    stand.run(1.0)
    assert stand.core.leads, "the usual time after the stop"


@pytest.mark.parametrize(("gap", "is_reachable"), [(0.5, False), (0.75, True)])
def test_a_pause_between_ticks_counts_as_a_stop_from_half_a_second(gap: float, is_reachable: bool) -> None:
    stand = Stand("b")
    stand.tick()
    stand.is_cut = True
    stand.run(1.25)
    stand.now += gap
    stand.tick()
    assert stand.core.is_reachable is is_reachable


# Reports.


def reports(sent: Iterable[Any]) -> list[Report]:
    return [each for each in sent if isinstance(each, Report)]


def tables(sent: Iterable[Any]) -> list[Table]:
    return [each for each in sent if isinstance(each, Table)]


def test_a_report_has_the_state_of_its_member() -> None:
    limit = Limit(RATE, 100.0, 60.0)
    stand = Stand("b", limit)
    assert stand.tick() == [
        Report("b", 1, (0, "", 0), "shop-b", EPOCH, {RATE: Need(100.0, {"ann": 60.0})}),
    ]
    stand.hear_table(7, term=3, leader="z")
    stand.core.open, stand.core.closed = {"work": 20.0}, ("other",)
    stand.now = 0.25
    assert stand.tick() == [
        Report(
            "b",
            2,
            (3, "z", 7),
            "shop-b",
            EPOCH + 0.25,
            {RATE: Need(100.0, {"ann": 60.0}, held=0.5)},
            {"work": 20.0},
            ("other",),
        )
    ]


def test_a_member_reports_every_half_second() -> None:
    stand = Stand("b")
    sent = []
    for _ in range(5):
        sent.append(len(stand.tick()))
        stand.now += TICK_S
    assert sent == [1, 1, 0, 1, 0], "the second one is an answer: a member, itself, was heard for the first time"


@pytest.mark.parametrize(
    ("before", "after", "is_urgent"),
    [
        (100.0, 131.0, False),
        (100.0, 144.0, True),
        (100.0, 70.0, False),
        (100.0, 69.0, True),
        (0.0, 2.0, False),
        (0.0, 2.5, True),
        (2.5, 0.0, True),
        (2.0, 0.0, False),
    ],
)
def test_a_change_of_demand_is_reported_at_once(before: float, after: float, is_urgent: bool) -> None:
    limit = Limit(RATE, 100.0, before, is_pressed=True)
    stand = follow(limit)
    stand.run(1.0)
    limit.users = {"ann": after}
    stand.now += 0.125
    assert bool(stand.tick()) is is_urgent


def test_a_report_names_the_limits_that_are_pressed_or_listed() -> None:
    pressed, listed, calm = (
        Limit(RATE, 100.0, 90.0),
        Limit("rate:listed"),
        Limit("rate:calm", 100.0, 10.0, is_pressed=False),
    )
    stand = follow(pressed, listed, calm, entries={"rate:listed": Entry(100.0, [0.5, 0.5], [0.0, 0.0])})
    (report,) = stand.tick()
    assert report.needs.keys() == {RATE, "rate:listed"}


def test_every_limit_is_reported_once_when_a_member_asks() -> None:
    stand = follow(Limit(RATE, 100.0, 10.0, is_pressed=False))
    stand.run(1.0)
    assert not stand.core.is_due
    stand.core.receive(msgspec.json.encode(Ask()))
    assert stand.core.is_due
    (report,) = stand.tick()
    assert report.needs == {RATE: Need(100.0, {"ann": 10.0}, held=0.5)}
    assert not stand.core.is_due
    assert [each.needs for each in reports(stand.run(0.5))] == [{}]


def test_of_too_many_limits_those_are_reported_that_are_pressed_and_then_called_most() -> None:
    calm = [Limit(f"rate:calm{number}", 100.0, float(number), is_pressed=False) for number in range(MAX_NEEDS)]
    pressed = Limit(RATE, 1000.0, 1.0)
    large = Limit("rate:large", 1000.0, 300.0, is_pressed=False)
    listed = {each.key: Entry(each.limit, [0.5, 0.5], [0.0, 0.0]) for each in (*calm, large)}
    stand = follow(*calm, large, pressed, entries=listed)
    (report,) = stand.tick()
    assert len(report.needs) == MAX_NEEDS
    assert report.needs.keys() == {each.key for each in (pressed, large, *calm[2:])}


def test_as_many_limits_as_fit_are_reported_in_their_order() -> None:
    limits = [Limit(f"rate:{number}", 100.0, float(number)) for number in range(1, MAX_NEEDS + 1)]
    (report,) = Stand("b", *limits).tick()
    assert list(report.needs) == [each.key for each in limits]


def test_a_new_member_is_answered_at_once_and_a_known_one_is_not() -> None:
    stand = follow()
    stand.run(1.0)
    stand.hear("a")
    assert not stand.core.is_due
    stand.hear("c")
    assert stand.core.is_due
    assert len(reports(stand.tick())) == 1


def test_of_a_member_only_later_reports_count() -> None:
    stand = Stand("b")
    for number, clock in ((2, 30.0), (2, 20.0), (1, 10.0)):
        stand.core.receive(msgspec.json.encode(Report("a", number, clock=EPOCH + clock)))
        stand.now += 1.0
    assert (stand.core.peers["a"].report.number, stand.core.peers["a"].heard_at) == (2, START)
    assert stand.core.peers["a"].lag == 30.0


def test_hints_of_other_members_are_for_the_owner() -> None:
    stand = Stand("b")
    stand.core.open = {"work": 20.0}
    stand.tick()
    stand.hear("a")
    stand.hear("a", open={"work": 5.0})
    stand.hear("c", closed=("work",))
    stand.hear("d", open={"work": 5.0}, leaving=True)
    assert [(each.member, each.open, each.closed) for each in stand.core.hints] == [
        ("a", {"work": 5.0}, ()),
        ("c", {}, ("work",)),
    ]


# Tables.


@pytest.mark.parametrize(
    ("entry", "is_valid"),
    [
        (Entry(1.0, [0.5, 0.5], [0.0, 0.0]), True),
        (Entry(1.0, [0.5], [0.0, 0.0]), False),
        (Entry(1.0, [0.5], [0.0]), False),
        (Entry(1.0, [0.5, 0.5], [0.0]), False),
    ],
)
def test_a_table_with_lists_of_other_lengths_is_ignored(entry: Entry, is_valid: bool) -> None:
    stand = Stand("b")
    stand.hear_table(entries={"rate:other": Entry(1.0, [0.5, 0.5], [0.0, 0.0]), RATE: entry})
    assert (stand.core.table is not None) is is_valid


@pytest.mark.parametrize(
    ("leader", "term", "version", "alone_at"),
    [
        ("a", 2, 1, 6.25),  # the next one
        ("a", 1, 5, 6.25),  # a duplicate: its leader lives
        ("a", 1, 3, 6.25),
        ("c", 1, 5, 4.25),  # of a leader that no longer counts
        ("a", 0, 9, 4.25),
        ("b", 9, 1, 4.25),  # it claims to be of this member
    ],
)
def test_a_member_keeps_its_leases_while_tables_of_its_leader_arrive(
    leader: str, term: int, version: int, alone_at: float
) -> None:
    limit = Limit(RATE)
    entries = {RATE: Entry(100.0, [0.25, 0.75], [0.0, 0.0])}
    stand = Stand("b", limit)
    stand.hear_table(5, entries)
    stand.is_cut = True
    stand.run(2.0)
    stand.hear_table(version, entries, leader=leader, term=term)
    stand.run(alone_at - TICK_S - stand.now)
    assert limit.share.part == 0.75
    stand.run(TICK_S)
    assert limit.share.part == 0.5


@pytest.mark.parametrize(
    ("entries", "members", "is_urgent"),
    [
        ({RATE: Entry(100.0, [0.5, 0.5], [0.0, 0.0])}, "ab", False),
        ({RATE: Entry(100.0, [0.25, 0.75], [0.0, 0.0])}, "ab", False),
        ({RATE: Entry(100.0, [0.75, 0.25], [0.0, 0.0])}, "ab", True),
        ({}, "ab", True),
        ({RATE: Entry(100.0, [0.5, 0.5], [0.0, 0.0]), SLOTS: Entry(9.0, [4.0, 5.0], [0.0, 0.0])}, "ab", True),
        ({RATE: Entry(100.0, [0.0, 0.5, 0.5], [0.0, 0.0, 0.0])}, "abc", True),
    ],
    ids=["same", "higher", "lower", "not listed", "newly listed", "other members"],
)
def test_a_member_confirms_at_once_a_table_for_which_others_may_wait(
    entries: dict[str, Entry], members: str, is_urgent: bool
) -> None:
    stand = follow(Limit(RATE), entries={RATE: Entry(100.0, [0.5, 0.5], [0.0, 0.0])})
    stand.run(1.0)
    assert not stand.core.is_due
    stand.hear_table(2, entries, members=members)
    assert stand.core.is_due is is_urgent


def test_a_table_without_this_member_is_confirmed_at_once() -> None:
    stand = Stand("z")
    stand.hear_table(1, {RATE: Entry(100.0, [0.5, 0.5], [0.0, 0.0])})
    stand.run(1.0)
    stand.hear_table(2, {RATE: Entry(100.0, [0.5, 0.5], [0.0, 0.0])})
    assert stand.core.is_due


def test_only_limits_that_tables_list_are_applied_again() -> None:
    listed, former, other, users = Limit(RATE), Limit("rate:former"), Limit("rate:other"), Limit("rate:users:")
    entry = Entry(100.0, [0.25, 0.75], [0.0, 0.0])
    stand = follow(listed, former, other, users, entries={"rate:former": entry})
    limits = (listed, former, other, users)
    for each in limits:
        each.applied.clear()
    stand.hear_table(2, {RATE: entry})
    keys = {RATE, "rate:former"}
    assert [each.applied for each in limits] == [[keys], [keys], [], [keys]]
    assert (listed.share.part, former.share.part) == (0.75, 0.5)
    stand.hear_table(3, {RATE: entry}, joining="b")
    assert [each.applied[-1:] for each in limits] == [[None]] * 4, "not before: other members joined"
    assert [each.share.part for each in (former, other)] == [0.0, 0.0]


# Limits of this process.


def test_a_limit_has_its_share_from_when_it_is_added_until_it_is_removed() -> None:
    stand = follow(entries={RATE: Entry(100.0, [0.25, 0.75], [0.0, 0.0])})
    limit, other = Limit(RATE, 100.0, 60.0), Limit("rate:other", 100.0, 60.0)
    stand.core.add(limit)
    stand.core.add(other)
    assert limit.share.part == 0.75
    (report,) = stand.tick()
    assert report.needs.keys() == {RATE, "rate:other"}
    stand.core.remove(limit)
    stand.core.remove(limit)  # a second time: nothing
    stand.hear_table(2, {RATE: Entry(100.0, [0.5, 0.5], [0.0, 0.0])})
    assert limit.share.part == 0.75
    (report,) = stand.tick()
    assert report.needs.keys() == {"rate:other"}


def test_smaller_limits_of_other_members_are_found() -> None:
    shares = [0.5, 0.5], [0.0, 0.0]
    limits = [
        Limit(RATE),
        Limit("rate:same"),
        Limit("rate:larger"),
        Limit("rate:absent"),
        Limit("rate:users:", 50.0),
        Limit("rate:others:", 50.0),
    ]
    entries = {
        RATE: Entry(40.0, *shares),
        "rate:same": Entry(100.0, *shares),
        "rate:larger": Entry(101.0, *shares),
        "rate:users:ann": Entry(30.0, *shares),
        "rate:users:bob": Entry(20.0, *shares),
        "rate:others:ann": Entry(50.0, *shares),
        "rate:work:users": Entry(1.0, *shares),
    }
    assert Stand("b", *limits).core.find_smaller() == {}
    assert follow(*limits, entries=entries).core.find_smaller() == {RATE: (40.0, 100.0), "rate:users:": (20.0, 50.0)}


# The election of a leader.


def leads_at(stand: Stand, until: float = 20.0) -> float | None:
    """Return when the member begins to lead; None: never."""
    while stand.now < until:
        stand.run(TICK_S)
        if stand.core.leads:
            return stand.now
    return None


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, 3.25),
        ({"c": (1, "a", 5)}, 3.25),
        # Another member with a lower id is first.
        ({"aa": (1, "a", 5)}, 4.25),
        ({"aa": (1, "a", 5), "ab": (1, "a", 5)}, 5.25),
        # It has an older table than this one, or none.
        ({"aa": (1, "a", 4)}, 3.25),
        ({"aa": (0, "", 0)}, 3.25),
        # It has the table of another leader of the same term: neither is behind.
        ({"aa": (1, "z", 4)}, 4.25),
        # Others have a later table than this one.
        ({"c": (1, "a", 6)}, 4.25),
        ({"c": (2, "a", 1)}, 4.25),
        ({"c": (1, "0", 6)}, 3.25),
    ],
)
def test_the_next_leader_is_the_first_member_with_the_last_table(
    others: dict[str, tuple[int, str, int]], expected: float
) -> None:
    """After three seconds without a table, and each further member a second later."""
    stand = Stand("b", others=others)
    stand.seen = others
    stand.tick()
    stand.hear("a")
    stand.hear_table(5)
    assert leads_at(stand) == expected


def test_a_leader_that_leaves_is_followed_at_once() -> None:
    stand = follow()
    stand.run(1.0)
    stand.hear("a", leaving=True)
    assert leads_at(stand) == 1.25
    assert stand.table is not None
    assert (stand.table.term, stand.table.leader, stand.table.members) == (2, "b", ["b"])


def test_another_member_that_leaves_changes_no_leader() -> None:
    stand = follow()
    stand.hear("c")
    stand.run(1.0)
    stand.hear("c", leaving=True)
    assert "c" not in stand.core.peers
    assert leads_at(stand) == 3.25


def test_a_member_that_leaves_does_not_lead() -> None:
    stand = follow()
    stand.run(1.0)
    (message,) = stand.core.leave()
    assert decode(message) == Report("b", 4, (1, "a", 1), "shop-b", EPOCH + 1.0, leaving=True)  # type: ignore[arg-type]
    stand.core.receive(message)  # type: ignore[arg-type]
    assert "b" not in stand.core.peers
    stand.hear("a", leaving=True)
    stand.now += 0.25
    stand.core.tick()
    assert not stand.core.leads


def test_a_leader_yields_to_a_later_table() -> None:
    limit = Limit(RATE, 100.0, 60.0)
    stand = lead(limit, Limit(QUOTA, 300.0, 10.0))
    stand.run(0.5)
    stand.core.stored = {}
    stand.hear_table(1, leader="z")
    assert stand.core.leads, "of the same term, the lower id counts"
    stand.hear_table(1, {RATE: Entry(100.0, [0.25, 0.75], [0.0, 0.0])}, leader="b", term=2)
    assert not stand.core.leads
    assert stand.core.stored is None
    assert limit.share.part == 0.25
    assert tables(stand.run(3.0)) == []
    assert len(stand.core.leave()) == 1, "no record of a quota: the other leader writes them"


# The leader's division.


def test_a_share_is_raised_by_what_another_member_has_confirmed_to_have_lowered() -> None:
    limit = Limit(RATE, 100.0, 60.0)
    stand = lead(limit)
    stand.others["b"] = rate(10.0, 0.5)
    stand.seen["b"] = (1, "a", 3)
    stand.run(1.0)
    assert stand.shares[RATE] == {"a": 0.5, "b": 0.25}
    assert stand.table is not None
    stand.seen["b"] = (1, "a", stand.table.version)
    stand.others["b"] = rate(10.0, 0.375)  # it still has more than the table says
    stand.run(TICK_S)
    assert stand.shares[RATE] == {"a": 0.625, "b": 0.25}
    stand.others["b"] = rate(10.0, 0.25)
    stand.run(TICK_S)
    assert stand.shares[RATE] == {"a": 0.75, "b": 0.25}
    assert limit.share == Share(0.75, 0.5, 0.0, stand.table.entries[RATE])


def test_a_member_that_reports_no_demand_has_its_share_until_it_confirms() -> None:
    stand = lead(Limit(RATE, 100.0, 60.0))
    stand.seen["b"] = (1, "a", 3)
    stand.run(1.0)
    assert stand.shares[RATE] == {"a": 0.5, "b": 0.2}
    stand.seen.clear()
    stand.run(TICK_S)
    assert stand.shares[RATE] == {"a": 0.8, "b": 0.2}


def test_a_table_has_rounded_numbers_and_no_larger_shares() -> None:
    limit = Limit(RATE, 100.0, 100.0)
    stand = lead(limit, others="bc")
    stand.others = {"b": rate(25.0, 0.17), "c": rate(25.0, 0.17)}
    stand.run(1.0)
    stand.others["b"] = rate(25.0, 0.17, 0.12345)
    stand.run(0.5)
    assert stand.table is not None
    entry = stand.table.entries[RATE]
    # 98 % by demand, and a third of 2 %: 0.66 and twice 0.17.
    assert entry.shares == approx([0.66, 0.17, 0.17])
    assert entry.ratios == {"ann": 0.6533}
    assert entry.granted == [0.123, 0.0, 0.0]
    limit.users, stand.others = {"ann": 10.0}, {each: rate(10.0, 0.3) for each in "bc"}
    stand.run(1.0)
    assert stand.table.entries[RATE].shares == [0.333333, 0.333333, 0.333333]


def test_small_changes_of_demand_change_no_lease() -> None:
    limit = Limit(RATE, 100.0, 60.0)
    stand = lead(limit)
    stand.others["b"] = rate(10.0, 0.25)
    stand.run(1.0)
    limit.users = {"ann": 60.9}
    stand.run(1.0)
    assert stand.shares[RATE] == {"a": 0.75, "b": 0.25}
    limit.users = {"ann": 61.25}
    stand.others["b"] = rate(10.0, 0.24375)
    stand.run(1.0)
    assert stand.shares[RATE] == approx({"a": 0.75625, "b": 0.24375})


def test_shares_are_equal_when_all_are_calm() -> None:
    """A small difference is none to keep: the limit is to be listed no more."""
    limit = Limit(RATE, 100.0, 60.0)
    stand = lead(limit)
    for own, other, expected in ((60.0, 10.0, 0.75), (40.8, 40.0, 0.504), (10.0, 10.0, 0.5)):
        limit.users = {"ann": own}
        stand.others["b"] = rate(other, 1.0 - expected)
        stand.run(1.5)
        assert stand.shares[RATE] == approx({"a": expected, "b": 1.0 - expected})


def test_a_table_has_the_part_of_each_user_that_can_be_served() -> None:
    limit = Limit(RATE, 100.0)
    limit.users, limit.is_pressed = {"ann": 98.0, "bob": 49.0}, True
    limit.weights = {"ann": 3.0}
    stand = lead(limit)
    stand.others["b"] = {RATE: Need(100.0, {"ann": 49.0}, {}, 0.255)}
    stand.run(1.0)
    assert stand.table is not None
    assert stand.table.entries[RATE].ratios == {"ann": 0.5, "bob": 0.5}
    assert stand.shares[RATE] == approx({"a": 0.745, "b": 0.255})
    limit.users = {"ann": 80.0}
    stand.others["b"] = {RATE: Need(100.0, {"ann": 20.0}, {}, 0.2)}
    stand.run(1.0)
    assert stand.table.entries[RATE].ratios == {}


def test_the_smallest_limit_of_all_members_is_divided() -> None:
    stand = lead(Limit(RATE, 100.0, 30.0))
    stand.others["b"] = rate(5.0, 0.25, limit=50.0)
    stand.run(1.0)
    assert stand.table is not None
    assert stand.table.entries[RATE].limit == 50.0
    assert stand.shares[RATE] == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize(("demand", "share"), [(35.0, 0.5), (35.5, 0.625)])
def test_below_seven_tenths_of_an_equal_share_all_have_equal_ones(demand: float, share: float) -> None:
    stand = lead(Limit(RATE, 100.0, demand))
    stand.others["b"] = rate(10.5, 1.0 - share)
    stand.run(1.0)
    assert stand.shares[RATE] == {"a": share, "b": 1.0 - share}


@pytest.mark.parametrize("others", ["b", "bc"])
def test_a_limit_with_equal_shares_for_five_seconds_is_not_listed_any_more(others: str) -> None:
    """Other members report it until they have the table without it, and that lists it no further time."""
    size = len(others) + 1
    limit = Limit(RATE, 100.0, 60.0)
    stand = lead(limit, others=others)
    stand.others = {each: rate(10.0, 20.0 / 100.0) for each in others}
    stand.run(1.0)
    limit.users, limit.is_pressed = {"ann": 5.0}, False
    stand.others = {each: rate(5.0, 1.0 / size) for each in others}
    stand.run(1.0)
    assert stand.shares[RATE] == approx(dict.fromkeys(["a", *others], 1.0 / size))
    assert stand.table is not None
    while RATE in stand.shares and stand.now < 20.0:
        seen = 1, "a", stand.table.version
        stand.run(TICK_S)
    assert stand.now == 9.5, "the shares are equal since 4.25"
    assert limit.share == Share(1.0 / size, 1.0 / size)
    without = 1, "a", stand.table.version
    stand.seen = dict.fromkeys(others, seen)
    stand.run(2.0)
    assert stand.shares == {}
    stand.seen = dict.fromkeys(others, without)
    stand.run(TICK_S)
    assert RATE in stand.shares, "they have that table: this demand is a new one"
    assert stand.table.entries[RATE].listing == 1 << 32 | stand.table.version


def test_released_calls_are_granted_to_those_that_want_more() -> None:
    """Whole calls by what each wants, and a part of one to one of them: nothing is lost, and nothing is granted twice."""
    limit = Limit(RATE, 100.0, 60.0)
    stand = lead(limit, others="bc")
    stand.others = {"b": rate(10.0, 0.2, 1.0), "c": rate(10.0, 0.2, 2.0)}
    stand.run(1.0)
    assert stand.shares[RATE]["a"] == approx(0.6)
    assert stand.granted == {"a": 3.0, "b": 0.0, "c": 0.0}
    # The demand of none is above its share.
    stand.others["b"] = rate(10.0, 0.2, 3.5)
    stand.run(TICK_S)
    assert stand.granted == {"a": 3.0, "b": 0.0, "c": 0.0}
    limit.users = {"ann": 95.0}
    stand.others = {"b": rate(10.0, 0.1, 6.25), "c": rate(30.0, 0.2, 2.0)}
    stand.run(TICK_S)
    assert stand.granted == {"a": 7.0, "b": 0.25, "c": 1.0}
    stand.others["b"] = rate(10.0, 0.1, 9.25)
    stand.run(TICK_S)
    assert stand.granted == {"a": 9.0, "b": 0.25, "c": 2.0}
    stand.others["b"] = rate(10.0, 0.1, 9.0)  # a counter grows only
    stand.run(TICK_S)
    assert stand.granted == {"a": 9.0, "b": 0.25, "c": 2.0}


def test_parts_of_calls_that_are_released_go_to_those_in_turn_that_want_more() -> None:
    limit = Limit(RATE, 100.0, 90.0)
    stand = lead(limit, others="bcd")
    stand.others = {"b": rate(45.0, 0.25), "c": rate(45.0, 0.25), "d": rate(0.0, 0.25)}
    stand.run(1.0)
    granted = []
    for number in range(1, 9):
        stand.others["d"] = rate(0.0, 0.25, number / 2)
        stand.run(TICK_S)
        granted.append(tuple(stand.granted.values()))
    assert granted == [
        (0.5, 0.0, 0.0, 0.0),
        (0.5, 0.5, 0.0, 0.0),
        (0.5, 0.5, 0.5, 0.0),
        (1.0, 0.5, 0.5, 0.0),
        (1.5, 0.5, 0.5, 0.0),
        (1.5, 1.0, 0.5, 0.0),
        (1.5, 1.0, 1.0, 0.0),
        (2.0, 1.0, 1.0, 0.0),
    ]


def test_calls_that_were_released_before_the_limit_was_listed_are_not_granted() -> None:
    limit = Limit(RATE, 100.0, 60.0)
    limit.released = 5.0
    stand = lead(limit)
    stand.others["b"] = rate(10.0, 0.5, 7.0)
    stand.seen["b"] = (1, "a", 3)
    stand.run(TICK_S)
    limit.released = 0.0
    stand.run(TICK_S)
    assert stand.granted == {"a": 0.0, "b": 0.0}
    del stand.seen["b"]
    stand.others["b"] = rate(10.0, 0.25, 2.0)
    stand.run(TICK_S)
    assert stand.granted == {"a": 2.0, "b": 0.0}


def places(demand: float, held: float, limit: float = 10.0) -> dict[str, Need]:
    """Return the needs of a member that calls a tool with a bulkhead."""
    return {SLOTS: Need(limit, {"ann": demand}, {}, held)}


@pytest.mark.parametrize(
    ("demands", "expected"),
    [
        ((6.0, 2.0, 0.0), (7.0, 2.0, 1.0)),
        ((9.0, 2.0, 1.0), (7.0, 2.0, 1.0)),
        ((100.0, 1.0, 1.0), (8.0, 1.0, 1.0)),  # a member that calls has a place
        ((100.0, 1.0, 0.9), (9.0, 1.0, 0.0)),
        ((1.0, 1.0, 1.0), (4.0, 3.0, 3.0)),
    ],
)
def test_places_are_divided_by_demand(demands: tuple[float, ...], expected: tuple[float, ...]) -> None:
    stand = lead(Limit(SLOTS, 10.0, demands[0]), others="bc")
    for _ in range(3):
        held = stand.shares.get(SLOTS, {"b": 3.0, "c": 3.0})
        stand.others = {"b": places(demands[1], held["b"]), "c": places(demands[2], held["c"])}
        stand.run(1.0)
    assert tuple(stand.shares[SLOTS].values()) == expected


def test_a_place_is_passed_on_when_it_is_free() -> None:
    stand = lead(Limit(SLOTS, 10.0, 9.0))
    stand.others["b"] = places(1.0, 4.0)  # four calls are still in flight
    stand.run(1.0)
    assert stand.shares[SLOTS] == {"a": 6.0, "b": 1.0}
    stand.others["b"] = places(1.0, 3.0)
    stand.run(TICK_S)
    assert stand.shares[SLOTS] == {"a": 7.0, "b": 1.0}
    stand.others["b"] = places(1.0, 2.0)
    stand.run(TICK_S)
    assert stand.shares[SLOTS] == {"a": 8.0, "b": 1.0}


def test_free_places_belong_first_to_the_member_that_lacks_most() -> None:
    stand = lead(Limit(SLOTS, 10.0, 5.0), others="bc")
    shares = []
    for held in (3.0, 2.0, 1.0, 0.0):
        stand.others = {"b": places(5.0, stand.shares.get(SLOTS, {"b": 3.0})["b"]), "c": places(0.0, held)}
        stand.run(0.5)
        shares.append(tuple(stand.shares[SLOTS].values()))
    assert shares == [(4.0, 3.0, 0.0), (4.0, 4.0, 0.0), (5.0, 4.0, 0.0), (5.0, 5.0, 0.0)]


def test_free_places_are_divided_by_what_members_lack() -> None:
    stand = lead(Limit(SLOTS, 20.0, 12.0), others="bc")
    stand.others = {"b": places(8.0, 7.0, 20.0), "c": places(0.0, 6.0, 20.0)}
    stand.run(0.5)
    assert stand.shares[SLOTS] == {"a": 7.0, "b": 7.0, "c": 0.0}
    stand.others["c"] = places(0.0, 3.0, 20.0)
    stand.run(TICK_S)
    assert stand.shares[SLOTS] == {"a": 10.0, "b": 7.0, "c": 0.0}
    stand.others["c"] = places(0.0, 0.0, 20.0)
    stand.run(TICK_S)
    assert stand.shares[SLOTS] == {"a": 12.0, "b": 8.0, "c": 0.0}


def test_as_many_callers_as_places_have_one_each_for_good() -> None:
    stand = lead(Limit(SLOTS, 3.0, 5.0), others="bc")
    stand.others = {each: places(5.0, 1.0, 3.0) for each in "bc"}
    for _ in range(10):
        stand.run(0.5)
        assert stand.shares[SLOTS] == {"a": 1.0, "b": 1.0, "c": 1.0}


@pytest.mark.parametrize(
    ("limit", "turns"),
    [
        (1.0, ["a", "b", "c", "a", "b", "c"]),
        (2.0, ["ab", "ac", "bc", "ab", "ac", "bc"]),
    ],
)
def test_of_fewer_places_than_callers_each_has_as_many_turns(limit: float, turns: list[str]) -> None:
    stand = lead(Limit(SLOTS, limit, 3.0), others="bc")
    holders = []
    for _ in range(24):
        held = stand.shares.get(SLOTS, {"b": 0.0, "c": 0.0})
        stand.others = {"b": places(3.0, held["b"], limit), "c": places(1.0, held["c"], limit)}
        stand.run(0.5)
        holders.append("".join(each for each, part in stand.shares[SLOTS].items() if part))
    whole = [holder for holder in holders if len(holder) == limit]
    assert [each for each, _ in itertools.groupby(whole)] == turns
    assert len(whole) >= 16, "between turns a place is passed on"


@pytest.mark.parametrize(("waiting", "new"), [("b", "c"), ("c", "b")])
def test_a_new_caller_of_few_places_waits_as_long_as_one_that_had_none(waiting: str, new: str) -> None:
    stand = lead(Limit(SLOTS, 1.0, 3.0), others="bc")
    stand.others = {waiting: places(3.0, 0.0, 1.0), new: {}}
    stand.run(0.5)
    assert stand.shares[SLOTS] == {"a": 1.0, "b": 0.0, "c": 0.0}
    stand.others[new] = places(1.0, 0.0, 1.0)
    stand.run(2.5)
    assert stand.shares[SLOTS] == {"a": 0.0, "b": 1.0, "c": 0.0}


def test_a_member_that_is_silent_for_four_seconds_is_lost() -> None:
    stand = lead(Limit(RATE, 100.0, 60.0))
    stand.others["b"] = rate(10.0, 0.25)
    stand.run(1.0)
    del stand.others["b"]
    stand.run(4.25)  # it was heard last at 3.0, and tables are due every half second
    assert stand.table is not None
    assert stand.shares[RATE] == {"a": 0.75, "b": 0.25}
    assert stand.table.members == ["a", "b"]
    stand.run(TICK_S)
    assert stand.shares[RATE] == {"a": 1.0}
    assert stand.table.members == ["a"]


def test_the_share_of_a_member_that_leaves_belongs_to_the_others_at_once() -> None:
    stand = lead(Limit(RATE, 100.0, 60.0))
    stand.others["b"] = rate(10.0, 0.25)
    stand.run(1.0)
    del stand.others["b"]
    stand.hear("b", leaving=True)
    assert stand.core.is_due
    stand.tick()
    assert stand.shares[RATE] == {"a": 1.0}


def test_a_member_that_confirms_no_table_has_an_equal_share_after_four_seconds() -> None:
    """Its own lease is not raised: it may take the equal one by itself."""
    stand = lead(Limit(RATE, 100.0, 60.0), others="bc")
    stand.others = {"b": rate(10.0, 0.2), "c": rate(0.0, 0.1)}
    stand.run(1.0)
    assert stand.shares[RATE] == approx({"a": 0.7, "b": 0.2, "c": 0.1})
    assert stand.table is not None
    stand.seen["c"] = (1, "a", stand.table.version)
    stand.run(4.0)
    assert stand.shares[RATE] == approx({"a": 0.7, "b": 0.2, "c": 0.1})
    stand.run(TICK_S)
    assert stand.shares[RATE] == approx({"a": 0.7 * 20 / 27, "b": 0.2 * 20 / 27, "c": 0.1})
    del stand.seen["c"]
    stand.run(1.0)
    assert stand.shares[RATE] == approx({"a": 0.7, "b": 0.2, "c": 0.1})


@pytest.mark.parametrize(
    ("key", "limit", "demands", "before", "alone"),
    [
        (RATE, 90.0, (9.0, 54.0, 9.0), (1 / 6, 2 / 3, 1 / 6), (1 / 6, 1 / 3, 1 / 6)),
        (SLOTS, 9.0, (1.0, 9.0, 1.0), (1.0, 7.0, 1.0), (1.0, 3.0, 1.0)),
        (SLOTS, 9.0, (9.0, 0.0, 4.0), (6.0, 0.0, 3.0), (4.0, 0.0, 2.0)),
    ],
)
def test_the_lease_of_a_member_that_confirms_no_table_is_an_equal_share_at_most(
    key: str, limit: float, demands: tuple[float, ...], before: tuple[float, ...], alone: tuple[float, ...]
) -> None:
    """What the others lose or receive meanwhile, they have again when it confirms a table."""
    stand = lead(Limit(key, limit, demands[0]), others="bc")

    def run(seconds: float, **held: float) -> tuple[float, ...]:
        for each, demand in zip("bc", demands[1:], strict=True):
            own = stand.shares.get(key, {}).get(each, 0.0)
            stand.others[each] = {key: Need(limit, {"ann": demand}, {}, held.get(each, own))}
        stand.run(seconds)
        return tuple(stand.shares[key].values())

    run(0.5)
    run(0.5)
    assert run(1.0) == approx(before)
    assert stand.table is not None
    stand.seen["b"] = (1, "a", stand.table.version)
    assert run(3.5) == approx(before)
    assert run(1.0) == approx(alone)
    equal = equal_share(key.partition(":")[0], limit, "abc", "b")
    assert run(2.0, b=equal) == approx((alone[0], equal, alone[2])), "it has taken its equal share"
    del stand.seen["b"]
    run(0.5)
    run(0.5)
    assert run(1.0) == approx(before)


def test_a_leader_out_of_reach_lowers_its_share_as_others_do_and_raises_it_when_they_have_confirmed() -> None:
    limit = Limit(RATE, 100.0, 60.0)
    stand = lead(limit)
    stand.others["b"] = rate(10.0, 0.25)
    stand.run(1.0)
    stand.is_cut = True
    stand.run(3.5)  # the other one had confirmed a table half a second before
    assert limit.share.part == 0.75
    stand.run(TICK_S)
    assert limit.share.part == 0.5
    stand.run(3.75)
    assert limit.share.part == 0.5
    assert stand.table is not None
    stand.seen["b"] = (1, "a", stand.table.version)
    stand.others["b"] = rate(10.0, 0.5)
    stand.is_cut = False
    stand.run(0.75)
    assert stand.shares[RATE] == {"a": 0.5, "b": 0.25}
    stand.run(TICK_S)
    assert stand.shares[RATE] == {"a": 0.5, "b": 0.5}
    stand.others["b"] = rate(10.0, 0.25)
    stand.seen.clear()
    stand.run(1.0)
    assert stand.shares[RATE] == {"a": 0.75, "b": 0.25}
    assert limit.share.part == 0.75


def test_a_member_that_does_not_know_a_new_one_may_have_an_equal_share_without_it() -> None:
    stand = lead(Limit(RATE, 100.0, 60.0), others="bc")
    stand.others = {"b": rate(10.0, 0.2), "c": rate(0.0, 0.1)}
    stand.run(1.0)
    assert stand.table is not None
    stand.seen["c"] = (1, "a", stand.table.version)
    for _ in range(12):
        stand.others |= {each: rate(10.0, stand.shares[RATE].get(each, 0.0)) for each in "bd"}
        stand.run(0.5)
    assert stand.table.joining == ["d"]
    assert sum(stand.shares[RATE][each] for each in "abd") == approx(2 / 3)


def test_a_new_member_has_a_share_from_when_all_others_know_it() -> None:
    stand = lead(Limit(RATE, 100.0, 60.0))
    stand.others["b"] = rate(10.0, 0.25)
    stand.run(1.0)
    assert stand.table is not None
    stand.seen = {"b": (1, "a", stand.table.version), "c": (0, "", 0)}
    stand.others["c"] = {}
    stand.run(TICK_S)
    assert stand.shares[RATE] == approx({"a": 0.7, "b": 0.2, "c": 0.0})
    stand.run(0.75)
    assert stand.table.members == ["a", "b", "c"]
    assert stand.table.joining == ["c"]
    stand.others["c"] = rate(5.0, 0.0)
    stand.others["b"] = rate(10.0, 0.18)
    stand.seen.clear()
    stand.run(1.0)
    assert stand.table.joining == []
    assert stand.shares[RATE] == approx({"a": 0.6 + 0.25 / 3, "b": 0.1 + 0.25 / 3, "c": 0.05 + 0.25 / 3})


def test_a_limit_that_a_new_member_reports_first_is_divided_among_all() -> None:
    """The others have equal shares of those that joined before, and each lowers its own first."""
    stand = lead()
    stand.others["c"] = rate(80.0, 0.0)
    stand.seen["b"] = (1, "a", 3)
    stand.run(TICK_S)
    assert stand.shares == {}
    del stand.seen["b"]
    stand.run(1.0)
    assert stand.shares[RATE] == approx({"a": 0.2 / 3, "b": 0.2 / 3, "c": 0.8 + 0.2 / 3})


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_of_nothing_is_not_divided(limit: float) -> None:
    stand = lead()
    stand.others["b"] = rate(10.0, 0.5, limit=limit)
    stand.run(1.0)
    assert stand.shares == {}
    stand.core.add(Limit(RATE, 100.0, 60.0))
    stand.run(1.0)
    assert stand.shares[RATE] == {"a": 0.5, "b": 0.2}, "what it has counts: five tenths"


@pytest.mark.parametrize(
    ("last", "held", "expected"),
    [
        # Each has its last lease or a smaller one: the silent former leader may have an equal share by now.
        ([0.5, 0.25, 0.25], 0.25, [1 / 3, 0.17, 0.17]),
        ([0.25, 0.25, 0.5], 0.5, [0.25, 0.17, 0.17]),
        # What another one reports to have.
        ([0.625, 0.125, 0.25], 0.125, [1 / 3, 0.125, 0.125]),
        ([0.75, 0.125, 0.125], 0.25, [1 / 3, 0.125, 0.125]),
    ],
)
def test_a_new_leader_raises_no_share(last: list[float], held: float, expected: list[float]) -> None:
    stand = Stand("b", Limit(RATE, 100.0, 30.0), others="ac")
    stand.tick()
    stand.hear_table(1, {RATE: Entry(100.0, last, [0.0, 3.0, 2.0], listing=7)}, members="abc")
    stand.seen = {"a": (1, "a", 1), "c": (1, "a", 1)}
    stand.others = {"a": rate(120.0, last[0]), "c": rate(30.0, held)}
    stand.run(1.0)
    del stand.others["a"]
    stand.run(2.25)
    assert stand.table is not None
    assert (stand.table.leader, stand.table.term, stand.table.version) == ("b", 2, 1)
    assert list(stand.shares[RATE].values()) == approx(expected)
    assert stand.table.entries[RATE].granted == [0.0, 3.0, 2.0]
    assert stand.table.entries[RATE].listing == 7
    stand.run(0.5)
    assert list(stand.shares[RATE].values()) == approx(expected), "the other one has confirmed no table of this leader"


def test_a_limit_of_a_new_member_is_divided_while_it_joins_a_single_one() -> None:
    stand = lead(others="")
    assert stand.core.share_of(RATE, 100.0) == Share(1.0, 1.0)
    stand.others["c"] = rate(80.0, 0.0)
    stand.run(TICK_S)
    assert stand.table is not None
    assert stand.table.joining == ["c"]
    assert stand.shares[RATE] == {"a": 0.1, "c": 0.5}
    stand.run(1.0)
    assert stand.shares[RATE] == approx({"a": 0.1, "c": 0.9})


def test_a_new_leader_divides_no_share_that_a_silent_member_may_still_have() -> None:
    """It has not confirmed the table that lowers it."""
    limit = Limit(RATE, 100.0, 90.0)
    stand = Stand("b", limit, others="ac")
    stand.tick()
    stand.hear_table(5, {RATE: Entry(100.0, [0.25, 0.125, 0.5, 0.125], [0.0] * 4)}, members="abcd")
    last = Entry(100.0, [0.25, 0.125, 0.25], [0.0] * 3)
    stand.hear_table(6, {RATE: last, "rate:new": last}, members="abc")
    stand.seen = {"a": (1, "a", 6), "c": (1, "a", 5)}
    stand.run(1.5)
    stand.others.clear()
    stand.run(3.75)
    assert stand.core.leads
    assert limit.share.part == approx(1 / 6), "what is beyond the half of one and the equal share of the other"
    stand.run(0.75)
    assert stand.shares[RATE] == {"b": 1.0}, "both are lost"


@pytest.mark.parametrize(
    ("members", "joining", "expected"),
    [("abc", "", []), ("abc", "c", ["c"]), ("ac", "", ["b"]), ("ac", "c", ["b", "c"])],
)
def test_members_that_join_a_new_leader_join_until_all_know_them(
    members: str, joining: str, expected: list[str]
) -> None:
    stand = Stand("b", others="ac")
    stand.tick()
    stand.hear_table(1, members=members, joining=joining)
    stand.seen = {"a": (1, "a", 1), "c": (1, "a", 1)}
    stand.run(2.0)
    while not stand.core.leads and stand.now < 9.0:
        stand.run(TICK_S)
    assert stand.table is not None
    assert (stand.table.members, stand.table.joining) == (["a", "b", "c"], expected)
    stand.seen = {"a": (2, "b", 1), "c": (2, "b", 1)}
    stand.run(0.5)
    assert stand.table.joining == []


def test_a_new_leader_gives_no_place_twice() -> None:
    stand = Stand("b", Limit(SLOTS, 20.0, 5.0), others="ac")
    stand.tick()
    stand.hear_table(1, {SLOTS: Entry(20.0, [10.0, 5.0, 5.0], [0.0] * 3)}, members="abc")
    stand.seen = {"a": (1, "a", 1), "c": (1, "a", 1)}
    stand.others = {"a": places(12.0, 10.0, 20.0), "c": places(3.0, 5.0, 20.0)}
    stand.run(1.0)
    del stand.others["a"]
    stand.run(2.25)
    assert stand.shares[SLOTS] == {"a": 7.0, "b": 5.0, "c": 3.0}, (
        "the former leader has an equal share, of 20 for three"
    )
    stand.others["c"] = places(3.0, 3.0, 20.0)
    stand.seen.clear()
    stand.run(0.5)
    assert stand.shares[SLOTS] == {"a": 12.0, "b": 5.0, "c": 3.0}


def test_a_member_that_hears_nothing_of_a_new_leader_has_an_equal_share_soon() -> None:
    """Its last table was one of the former leader, four seconds ago."""
    stand = Stand("b", Limit(RATE, 100.0, 60.0), others="c")
    stand.tick()
    stand.hear("a")
    stand.hear_table(1, {RATE: Entry(100.0, [0.2, 0.6, 0.2], [0.0] * 3)}, members="abc")
    stand.others["c"] = rate(10.0, 0.2)
    stand.seen["c"] = (1, "a", 1)
    stand.run(4.25)
    assert stand.shares[RATE] == approx({"b": 2 / 3, "c": 0.25})
    stand.run(0.5)
    assert stand.shares[RATE] == approx({"b": 0.5, "c": 0.25})


# Quotas.


def quota(
    demand: float,
    held: float = 0.0,
    used: float = 0.0,
    released: float = 0.0,
    period: str = MONTH,
    limit: float = 300.0,
) -> dict[str, Need]:
    """Return the needs of a member that calls a tool with a quota."""
    return {QUOTA: Need(limit, {"": demand}, {}, held, released, used, period)}


def spend(limit: Limit, *, stored: Mapping[str, Record] | None = None) -> Stand:
    """Return the leader of two members, which has read the records."""
    stand = lead(limit)
    stand.run(0.5)
    assert stand.core.wants_records
    stand.core.stored = dict(stored or {})
    assert not stand.core.wants_records
    return stand


def reserved(stand: Stand) -> float:
    assert stand.table is not None
    return stand.table.entries[QUOTA].reserved


def test_no_call_of_a_quota_is_granted_before_the_records_are_read() -> None:
    limit = Limit(QUOTA, 300.0, 10.0)
    stand = lead()
    assert not stand.core.wants_records
    stand.core.add(Limit(RATE, 100.0, 60.0))
    stand.run(0.5)
    assert not stand.core.wants_records, "there is no quota"
    stand.core.add(limit)
    stand.run(2.0)
    assert stand.core.wants_records
    assert stand.shares[QUOTA] == {"a": 0.0, "b": 0.0}
    follower = follow(Limit(QUOTA, 300.0, 10.0))
    follower.run(1.0)
    assert not follower.core.wants_records


def test_a_member_receives_calls_of_a_quota_for_two_seconds_of_its_demand() -> None:
    limit = Limit(QUOTA, 300.0, 10.0)
    stand = spend(limit)
    assert stand.run(0.5)[0] == Record(QUOTA, MONTH, 20.0)
    assert stand.shares[QUOTA] == {"a": 20.0, "b": 0.0}
    stand.others["b"] = quota(3.6, used=5.0, period="")  # in no period
    assert stand.run(0.5)[0] == Record(QUOTA, MONTH, 28.0)
    assert stand.shares[QUOTA] == {"a": 20.0, "b": 8.0}
    # A member with more than half of it receives none.
    limit.used = 9.0
    stand.others["b"] = quota(3.6, 8.0, 3.0)
    sent = stand.run(1.0)
    assert not any(isinstance(each, Record) for each in sent)
    assert stand.shares[QUOTA] == {"a": 20.0, "b": 8.0}
    limit.used = 10.0
    stand.others["b"] = quota(3.6, 8.0, 4.0)
    stand.run(0.5)
    assert stand.shares[QUOTA] == {"a": 30.0, "b": 12.0}
    assert reserved(stand) == 42.0


def test_the_last_calls_of_a_quota_are_handed_out_in_small_parts() -> None:
    limit = Limit(QUOTA, 21.0, 100.0)
    stand = spend(limit)
    granted = []
    for _ in range(15):
        stand.run(0.5)
        granted.append(stand.shares[QUOTA]["a"])
        limit.used = limit.share.part
    assert granted == [5.0, 9.0, 12.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 21.0, 21.0, 21.0, 21.0]
    assert reserved(stand) == 21.0


def test_of_few_calls_that_are_left_members_receive_what_others_do_not() -> None:
    stand = spend(Limit(QUOTA, 3.0, 100.0))
    stand.others = {"b": quota(100.0, limit=3.0), "c": quota(100.0, limit=3.0), "d": quota(100.0, limit=3.0)}
    stand.run(0.5)
    assert stand.shares[QUOTA] == {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}
    assert reserved(stand) == 3.0


def test_a_quota_that_no_member_reports_any_more_stays_listed() -> None:
    limit = Limit(QUOTA, 300.0, 10.0)
    stand = spend(limit)
    stand.run(0.5)
    stand.core.remove(limit)
    stand.run(10.0)
    assert stand.table is not None
    assert (stand.table.entries[QUOTA].limit, reserved(stand)) == (300.0, 20.0)


def test_of_different_quotas_the_smallest_holds() -> None:
    limit = Limit(QUOTA, 300.0, 100.0)
    stand = spend(limit)
    stand.others["b"] = quota(0.0, limit=8.0)
    stand.run(0.5)
    assert stand.shares[QUOTA] == {"a": 2.0, "b": 0.0}


def test_calls_that_a_member_releases_can_be_granted_again() -> None:
    limit = Limit(QUOTA, 300.0, 0.0, is_pressed=True)
    stand = spend(limit)
    stand.others["b"] = quota(10.0)
    stand.run(0.5)
    assert reserved(stand) == 20.0
    stand.others["b"] = quota(0.0, 20.0, 4.0, 16.0)
    stand.run(1.0)
    assert reserved(stand) == 4.0
    stand.others["b"] = quota(2.0, 20.0, 4.0, 16.0)
    stand.run(0.5)
    assert stand.shares[QUOTA] == {"a": 0.0, "b": 24.0}
    assert reserved(stand) == 8.0


def test_calls_without_a_table_count() -> None:
    limit = Limit(QUOTA, 300.0, 0.0, is_pressed=True)
    stand = spend(limit)
    stand.others["b"] = quota(0.0, 12.0, 7.0)  # granted by a former leader
    stand.run(0.5)
    assert (stand.shares[QUOTA]["b"], reserved(stand)) == (12.0, 12.0)
    stand.others["b"] = quota(0.0, 12.0, 13.0, 2.0)
    stand.run(0.5)
    assert (stand.shares[QUOTA]["b"], reserved(stand)) == (15.0, 13.0)
    stand.others["b"] = quota(0.0, 12.0, 14.0, 2.0)
    stand.run(0.5)
    assert (stand.shares[QUOTA]["b"], reserved(stand)) == (16.0, 14.0)
    stand.others["b"] = quota(0.0, 99.0, 99.0, period="2026-09")
    stand.others["c"] = quota(0.0, 5.0)
    stand.run(0.5)
    assert (stand.shares[QUOTA], reserved(stand)) == ({"a": 0.0, "b": 16.0, "c": 5.0}, 19.0)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (None, 20.0),
        (Record(QUOTA, MONTH, 100.0), 120.0),
        (Record(QUOTA, "2026-09", 100.0), 20.0),
        (Record("quota:other:month", MONTH, 100.0), 20.0),
    ],
)
def test_calls_of_earlier_fleets_in_this_period_count(record: Record | None, expected: float) -> None:
    stand = spend(Limit(QUOTA, 300.0, 10.0), stored={} if record is None else {record.key: record})
    stand.run(0.5)
    assert reserved(stand) == expected


@pytest.mark.parametrize(
    ("period", "stored", "expected"),
    [(MONTH, 100.0, 100.0), (MONTH, 20.0, 50.0), ("2026-09", 100.0, 50.0), ("2026-11", 100.0, 100.0)],
)
def test_a_new_leader_goes_on_with_the_larger_one_of_table_and_record(
    period: str, stored: float, expected: float
) -> None:
    limit = Limit(QUOTA, 300.0, 0.0, is_pressed=True)
    stand = follow(limit, entries={QUOTA: Entry(300.0, [30.0, 20.0], [0.0, 0.0], reserved=50.0, period=MONTH)})
    stand.run(3.25)
    assert stand.shares[QUOTA] == {"a": 30.0, "b": 20.0}
    stand.run(TICK_S)
    assert stand.core.wants_records
    stand.core.stored = {QUOTA: Record(QUOTA, period, stored)}
    stand.run(0.5)
    assert stand.table is not None
    assert stand.shares[QUOTA]["b"] == (20.0 if period <= MONTH else 0.0)
    assert reserved(stand) == expected
    assert stand.table.entries[QUOTA].period == max(period, MONTH)


def test_a_quota_begins_anew_with_its_period() -> None:
    """By the median of the members' clocks; and it is not the former one again when a clock is set back."""
    limit = Limit(QUOTA, 300.0, 10.0)
    stand = spend(limit)
    stand.others["c"] = {}
    stand.others["b"] = quota(2.0, 4.0, 4.0)
    stand.run(1.0)
    assert stand.shares[QUOTA] == {"a": 20.0, "b": 8.0, "c": 0.0}
    limit.used = 5.0
    end = 1_793_491_200.0 - EPOCH - stand.now
    assert stand.table is not None
    stand.ahead["b"] = end
    stand.run(0.5)
    assert stand.table.entries[QUOTA].period == MONTH
    stand.ahead["c"] = end
    sent = stand.run(TICK_S)
    assert stand.table.entries[QUOTA].period == "2026-11"
    # Of the other member's demand, the calls count no more; it receives new ones when it knows the new period.
    assert stand.shares[QUOTA] == {"a": 0.0, "b": 0.0, "c": 0.0}
    assert sent[0] == Record(QUOTA, "2026-11", 0.0)
    limit.used = 0.0
    stand.ahead.clear()
    stand.others["b"] = quota(2.0, period="2026-11")
    stand.run(0.5)
    assert stand.shares[QUOTA] == {"a": 20.0, "b": 4.0, "c": 0.0}
    assert stand.table.entries[QUOTA].period == "2026-11"


def test_a_quota_of_a_day_begins_anew_every_day() -> None:
    key = "quota:work:day"
    stand = lead(Limit(key, 300.0, 10.0), Limit(RATE, 100.0, 60.0))
    stand.core.stored = {}
    stand.run(1.0)
    assert stand.shares == {key: {"a": 20.0, "b": 0.0}, RATE: {"a": 0.8, "b": 0.2}}
    assert stand.table is not None
    assert stand.table.entries[key].period == "2026-10-26"
    stand.ahead = {"a": 86400.0, "b": 86400.0}
    stand.run(1.0)
    assert stand.table.entries[key].period == "2026-10-27"


def test_calls_that_a_leaving_member_has_not_used_can_be_granted_again() -> None:
    stand = spend(Limit(QUOTA, 300.0, 0.0, is_pressed=True))
    stand.others["b"] = quota(10.0)
    stand.run(0.5)
    assert reserved(stand) == 20.0
    del stand.others["b"]
    stand.hear("b", quota(10.0, 20.0, 7.0, 2.0), leaving=True)
    stand.tick()
    assert reserved(stand) == 9.0
    stand.hear("c", quota(0.0), leaving=True)  # unknown until now
    stand.run(1.0)
    assert reserved(stand) == 9.0


def test_a_leader_that_leaves_returns_its_unused_calls() -> None:
    limit = Limit(QUOTA, 300.0, 10.0)
    stand = spend(limit)
    stand.run(0.5)
    limit.used = 8.0
    stand.now += 1.0
    record, report = stand.core.leave()
    assert limit.at == START + stand.now
    assert record == Record(QUOTA, MONTH, 8.0)
    assert isinstance(report, bytes)
    decoded = decode(report)
    assert isinstance(decoded, Report)
    assert decoded.leaving
    assert decoded.needs[QUOTA].used == 8.0
