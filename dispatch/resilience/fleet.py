"""Limits that the dispatchers of one fleet share by demand: members, leases and quotas. Sans-I/O.

Each member reports its demand. One of them, the leader, divides every limit, and its table has the lease of each member: a
share of a rate, a number of places in a bulkhead, or calls of a quota. A call needs no message: it uses the lease of its own
process.

A limit is never exceeded by a transfer: a share is raised only by what other members have confirmed to have lowered. A
member that receives no table has an equal share instead of its lease, and says in its reports what it has. The leader
assumes the larger one of both until the member has confirmed a table that was sent since.
Messages may be lost, duplicated and late, because each has the whole state and a number. Unused calls of a burst move with a
share: the member that lowers it reports what it has released, and the leader grants that to others. Both are counters, which
only grow. Times are seconds on the member's own monotonic clock; none is sent to others, so that steps of clocks change
nothing. Only the calendar of quotas asks for the time of day: the median of the members' clocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Final, Protocol

import msgspec

from dispatch._internal import Clock

TICK_S: Final = 0.1
"""Seconds between two calls of :meth:`Fleet.tick`."""
REPORT_S: Final = 0.5
"""Seconds between two messages of a member without a change."""
LEADER_LOST_S: Final = 3.0
"""Seconds without a table after which another member leads: six tables. Each further member waits a second longer."""
MEMBER_LOST_S: Final = 4.0
"""Seconds without a report after which a member's leases are divided among the others."""
BLIND_S: Final = 1.5
"""Seconds without its own messages after which a member takes the topic for unreachable, and declares no other dead."""
KEEP_S: Final = 4.0
"""Seconds for which a member without a table keeps its leases. Then it has an equal share."""
RAISE_AFTER_S: Final = 2.0
"""Seconds later a member raises a smaller lease to that share: the others have lowered theirs by then."""
PAUSE_S: Final = 0.3
"""Seconds between two ticks, beyond the usual ones, after which this process was stopped rather than others silent."""
JOIN_S: Final = 1.2
"""Seconds in which a new member waits for a table before it leads."""
JOIN_STEP_S: Final = 0.3
"""Each further new member waits so much longer."""
RESERVE: Final = 0.02
"""Share of a rate that is divided equally while the demand exceeds it, so that an idle member can begin."""
LAG_S: Final = 0.3
"""Seconds in which a lease follows the demand."""
BACKLOG_S: Final = 1.0
"""Seconds in which the calls that wait are to be admitted: they count as demand."""
PRESSED: Final = 0.7
"""Share of its lease from which a member reports its demand; below it equal shares suffice."""
CALM_S: Final = 5.0
"""Seconds of equal shares after which a limit is not listed any more."""
MAX_USERS: Final = 16
"""Users of a limit that a member reports by name; the others are one."""
MAX_NEEDS: Final = 200
"""Limits that a member reports."""
LEAST_CHANGE: Final = 0.005
"""Share of a limit below which a lease is not changed."""
CHUNK_S: Final = 2.0
"""Seconds of demand for which a member receives calls of a quota."""
TURN_S: Final = 2.0
"""Seconds for which a member has a place of which there are fewer than members that call: several times as long as it takes
to pass it on."""
IDLE_S: Final = 5.0
"""Seconds without demand after which a member releases its calls of a quota."""
OTHERS: Final = ""
"""The name of all users that are not named."""
MAX_BYTES: Final = 1024 * 1024

RATE, SLOTS, QUOTA = "rate", "slots", "quota"
"""Kinds of limits: the first part of a key, such as ``rate:joke``."""


class Need(msgspec.Struct, array_like=True, frozen=True):
    """The demand of a member for one limit.

    Attributes:
        limit: calls a second, places or calls of a period, by the member's policy.
        users: demand in the same unit by user, with the calls that wait or were rejected.
        weights: of those users that have another than 1.
        held: the share of a rate that the member has, its places or as many as it still uses, or the calls of the quota that
            were granted.
        released: unused calls that this member has released so far.
        used: calls of the quota so far.
        period: of the quota.
    """

    limit: float
    users: dict[str, float]
    weights: dict[str, float] = {}
    held: float = 0.0
    released: float = 0.0
    used: float = 0.0
    period: str = ""

    @property
    def demand(self) -> float:
        """The demand of all users."""
        return sum(self.users.values())


class Report(msgspec.Struct, tag_field="fleet", tag="report", frozen=True, omit_defaults=True):
    """The state of a member.

    Attributes:
        member: its id, unique to its run.
        number: increases with each message.
        seen: term, leader and version of the table in force.
        name: of the dispatcher.
        clock: time of day, in seconds since the epoch.
        needs: by key.
        open: circuits whose half-open calls have failed lately, and how many seconds they stay open, by the tool's label.
        closed: labels of tools whose circuits have closed lately.
        leaving: the member ends.
    """

    member: str
    number: int
    seen: tuple[int, str, int] = (0, "", 0)
    name: str = ""
    clock: float = 0.0
    needs: dict[str, Need] = {}
    open: dict[str, float] = {}
    closed: tuple[str, ...] = ()
    leaving: bool = False


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """The leases of one limit. Lists are in the order of the table's members.

    Attributes:
        limit: by the policies of the members; the smallest.
        shares: of a rate or places; calls of a quota so far.
        granted: unused calls that members have received from others so far.
        ratios: share of each user's demand that can be served, while the demand exceeds the limit.
        reserved: calls of the quota that members have used or may use.
        period: of the quota.
        listing: differs from that of an earlier listing of the limit: what members have released and received counts from
            its begin.
    """

    limit: float
    shares: list[float]
    granted: list[float]
    ratios: dict[str, float] = {}
    reserved: float = 0.0
    period: str = ""
    listing: int = 0

    def differs(self, other: Entry | None) -> bool:
        """Whether leases differ."""
        if other is None:
            return True
        return (self.shares, self.granted, self.period) != (other.shares, other.granted, other.period)


class Table(msgspec.Struct, tag_field="fleet", tag="table", frozen=True):
    """The leases of all members. A limit that is not listed is divided equally.

    Attributes:
        leader: the member that divides.
        term: increases with each leader.
        version: increases with each table of a leader.
        members: ids.
        joining: those of them that have no lease yet.
        entries: by key.
    """

    leader: str
    term: int
    version: int
    members: list[str]
    joining: list[str] = []
    entries: dict[str, Entry] = {}

    def is_after(self, other: Table | None) -> bool:
        """Whether this table replaces ``other``: of two leaders of one term, the one with the lower id counts."""
        if other is None or self.term != other.term:
            return other is None or self.term > other.term
        return self.version > other.version if self.leader == other.leader else self.leader < other.leader


class Ask(msgspec.Struct, tag_field="fleet", tag="ask", frozen=True):
    """Asks all members to report every limit."""


Message = Report | Table | Ask
_decoder = msgspec.json.Decoder(Message)


def decode(payload: bytes) -> Message | None:
    """Return the message; None: it is none."""
    if len(payload) > MAX_BYTES:
        return None
    try:
        message: Message = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    return message


# Division of a limit.


def fill(demands: Mapping[str, float], weights: Mapping[str, float], limit: float) -> dict[str, float]:
    """Divide ``limit`` among demands: weighted max-min fairness."""
    rest, weight = limit, sum(weights.get(each, 1.0) for each in demands)
    found = {}
    for each in sorted(demands, key=lambda name: (demands[name] / weights.get(name, 1.0), name)):
        own = weights.get(each, 1.0)
        found[each] = min(demands[each], max(0.0, rest) * own / weight)
        rest -= found[each]
        weight = max(weight - own, 1e-12)
    return found


def divide(
    limit: float, needs: Mapping[str, Need], members: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Divide ``limit`` among ``members`` by demand: first among users, whose part is divided by where they call. What nobody
    asks for is divided equally.

    Returns:
        The part of each member, and the share of each user's demand that can be served; empty: all of it.
    """
    demands: dict[str, float] = {}
    weights: dict[str, float] = {}
    for need in needs.values():
        for user, demand in need.users.items():
            demands[user] = demands.get(user, 0.0) + demand
        weights.update(need.weights)
    total = sum(demands.values())
    if total <= limit:
        ratios, rest = dict.fromkeys(demands, 1.0), limit - total
    else:
        filled = fill(demands, weights, limit * (1.0 - RESERVE))
        ratios, rest = {user: filled[user] / demands[user] for user in demands if demands[user]}, limit * RESERVE
    equal = rest / len(members)
    parts = dict.fromkeys(members, equal)
    for member, need in needs.items():
        parts[member] += sum(demand * ratios.get(user, 0.0) for user, demand in need.users.items())
    return parts, ratios if total > limit else {}


def round_parts(parts: Mapping[str, float], limit: int) -> dict[str, float]:
    """Return whole numbers near ``parts`` whose sum is ``limit``: the largest remainders are rounded up."""
    found = {each: math.floor(part + 1e-9) for each, part in parts.items()}
    order = sorted(parts, key=lambda each: (found[each] - parts[each], each))
    for each in order[: max(0, limit - sum(found.values()))]:
        found[each] += 1
    return {each: float(number) for each, number in found.items()}


def equal_share(kind: str, limit: float, members: Sequence[str], member: str) -> float:
    """Return the lease of a member of a limit that is not listed."""
    if kind == RATE:
        return 1.0 / len(members)
    if kind == SLOTS:
        return round_parts(dict.fromkeys(members, limit / len(members)), int(limit))[member]
    return 0.0


def period_of(per: str, clock: float) -> tuple[str, float]:
    """Return the calendar day or month (UTC) of a time of day, and the seconds until its end."""
    now = datetime.fromtimestamp(clock, UTC)
    start = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if per == "day":
        return start.strftime("%Y-%m-%d"), 86400.0 - (now - start).total_seconds()
    start = start.replace(day=1)
    end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start.strftime("%Y-%m"), (end - now).total_seconds()


# The members, and the leader's division.


class Share(msgspec.Struct, frozen=True):
    """The lease of this process of one limit.

    Attributes:
        part: of a rate, from 0 to 1; places; calls of a quota so far in the period.
        fair: the part that an equal division gives.
        granted: see :class:`Entry`.
        entry: None: the limit is not listed.
        extra: calls of a quota without a table, in addition to those granted.
    """

    part: float
    fair: float
    granted: float = 0.0
    entry: Entry | None = None
    extra: float = 0.0


FindShare = Callable[[str, float], Share]
"""Returns the share of a key with a limit."""


class Leases(Protocol):
    """Limits of this process that have leases.

    Attributes:
        key: of the limit; where each user has one, what is before the user's name: it ends with a colon.
        limit: by the policy of this process.
    """

    @property
    def key(self) -> str: ...
    @property
    def limit(self) -> float: ...

    def read(self, now: float, listed: Collection[str]) -> Iterable[tuple[str, Need, bool]]:
        """Return key and demand of each limit that is called or ``listed``, and whether its lease is nearly used up."""

    def apply(self, find: FindShare, keys: Collection[str] | None, now: float) -> None:
        """Apply the lease: of users, those that are among ``keys``; None: all."""


class Peer(msgspec.Struct):
    """A member as another one knows it.

    Attributes:
        report: the last one.
        heard_at: when it came.
        lag: seconds by which the member's clock is ahead.
    """

    report: Report
    heard_at: float
    lag: float


class _Division:
    """The leases of one limit, as the leader accounts for them.

    Attributes:
        shares: by member, as in the next table.
        bounds: the most that each member may still use, by its last confirmed table.
        lowered: version of the table after whose confirmation the bound is the share.
        granted, released, used: see :class:`Need` and :class:`Entry`.
        pool: released calls that no member has a claim to.
        claims: by member, what it was to have of released calls less what it was granted of them.
        listing: see :class:`Entry`.
        since: version of the table that has listed the limit; what members released before counts no more.
        calm_since: since when all shares are equal.
        turn: number of the present turn, where there are fewer places than callers.
        chosen: the callers that have a place in it.
        turns: by caller, the number of turns with a place; a new caller begins with the fewest of the others.
    """

    def __init__(self, key: str, limit: float, listing: int, since: int = 0) -> None:
        self.kind = key.partition(":")[0]
        self.limit = limit
        self.listing = listing
        self.since = since
        self.shares: dict[str, float] = {}
        self.bounds: dict[str, float] = {}
        self.lowered: dict[str, int] = {}
        self.granted: dict[str, float] = {}
        self.released: dict[str, float] = {}
        self.ratios: dict[str, float] = {}
        self.pool = 0.0
        self.claims: dict[str, float] = {}
        self.calm_since: float | None = None
        self.turn = -1.0
        self.chosen: list[str] = []
        self.turns: dict[str, int] = {}
        self.period = ""
        self.reserved = 0.0

    def drop(self, members: Collection[str]) -> None:
        """Forget all but ``members``, and begin with nothing for new ones."""
        for counts in (self.shares, self.bounds, self.lowered, self.granted, self.released, self.claims):
            for gone in counts.keys() - members:
                del counts[gone]
        for each in members:
            self.shares.setdefault(each, 0.0)
            self.bounds.setdefault(each, 0.0)
            self.granted.setdefault(each, 0.0)

    def confirm(self, member: str, version: int, need: Need | None) -> None:
        """``member`` has applied the table of that version, and has what ``need`` says."""
        if member not in self.shares:
            return
        held = 0.0 if need is None else need.held
        is_lowered = version >= self.lowered.get(member, 0)
        self.bounds[member] = max(self.shares[member] if is_lowered else self.bounds[member], held)
        if need is not None and self.kind == RATE and version >= self.since:
            self.pool += max(0.0, need.released - self.released.get(member, need.released))
            self.released[member] = need.released

    def assume_equal(self, member: str, equal: float, version: int) -> None:
        """``member`` may have an equal share by now. The table ``version`` does not raise it: that would be at once, while
        others still have theirs."""
        if self.shares[member] > equal:
            self.shares[member] = equal
            self.lowered[member] = version
        if self.bounds[member] < equal:
            self.bounds[member] = equal
            self.lowered[member] = version

    def update(
        self, needs: Mapping[str, Need], members: Sequence[str], alone: Mapping[str, float], version: int, now: float
    ) -> None:
        """Divide the limit anew, for the table ``version``: members that are ``alone`` have those shares."""
        limit = self.limit
        equal = {each: limit / len(members) for each in members}
        parts, self.ratios = divide(limit, needs, members)
        is_calm = all(need.demand <= PRESSED * equal[each] for each, need in needs.items())
        if is_calm:
            parts = equal
        least = 1e-9 if is_calm or alone else LEAST_CHANGE
        if self.kind == SLOTS:
            parts = round_parts(parts, int(limit))
            callers = [each for each in members if each in needs and needs[each].demand >= 1.0]
            if len(callers) > limit:
                chosen = self._choose(callers, int(limit), now // TURN_S)
                parts = {each: float(each in chosen) for each in members}
                callers = []
            for each in callers:  # a member that calls has a place
                if parts[each] < 1.0:
                    parts[each] += 1.0
                    parts[max(parts, key=lambda other: (parts[other], other))] -= 1.0
        else:
            parts = {each: part / limit for each, part in parts.items()}
        whole: float = math.floor(limit) if self.kind == SLOTS else 1.0
        if alone:
            others = {each: part for each, part in parts.items() if each not in alone}
            scale = (whole - sum(alone.values())) / (sum(others.values()) or 1.0)
            others = {each: part * min(1.0, scale) for each, part in others.items()}
            if self.kind == SLOTS:
                others = round_parts(others, math.floor(sum(others.values()) + 1e-9))
            parts = {**alone, **others}
        wanted: dict[str, float] = {}
        for each in members:
            share, part = self.shares[each], parts[each]
            if part < share - least:
                self.shares[each] = part
                self.lowered[each] = version
            elif part > share + least:
                wanted[each] = part - share
        free = whole - sum(max(self.bounds[each], self.shares[each]) for each in members)
        raised = self._raise(wanted, free) if free > -1e-9 else {}
        if any(wanted.values()) or not is_calm:
            self.calm_since = None
        elif self.calm_since is None and self.shares == self.bounds:
            self.calm_since = now
        if self.pool:
            hungry = {each: max(0.0, need.demand - raised.get(each, 0.0) * limit) for each, need in needs.items()}
            hungry = {each: part for each, part in hungry.items() if part > self.shares[each] * limit}
            if receivers := hungry or raised:
                self._grant(receivers)

    def _grant(self, receivers: Mapping[str, float]) -> None:
        """Grant the released calls to ``receivers``, by what each of them wants: whole calls, and the rest to one of them,
        which may have the other part of a call. In equal parts it would admit no call anywhere."""
        total, claims = sum(receivers.values()), self.claims
        for each, part in receivers.items():
            claims[each] = claims.get(each, 0.0) + self.pool * part / total
        for each in receivers:
            calls = float(max(0, math.floor(claims[each])))
            self.granted[each] += calls
            claims[each] -= calls
            self.pool -= calls
        while self.pool > 1e-9:
            calls = min(1.0, self.pool)
            first = max(receivers, key=lambda each: claims[each])
            self.granted[first] += calls
            claims[first] -= calls
            self.pool -= calls
        self.pool = 0.0

    def _choose(self, callers: Sequence[str], places: int, turn: float) -> list[str]:
        """Return the callers that have a place in this turn: those that had the fewest."""
        if turn != self.turn:
            self.turn, self.chosen = turn, []
        fewest = min((self.turns[each] for each in callers if each in self.turns), default=0)
        self.turns = {each: self.turns.get(each, fewest) for each in callers}
        self.chosen = [each for each in self.chosen if each in self.turns][:places]
        others = sorted(set(callers) - set(self.chosen), key=lambda each: (self.turns[each], each))
        for each in others[: places - len(self.chosen)]:
            self.chosen.append(each)
            self.turns[each] += 1
        return self.chosen

    def _raise(self, wanted: Mapping[str, float], free: float) -> dict[str, float]:
        """Raise shares by what is free, and by what each member may still use beyond its share."""
        raised = {}
        own = {each: min(more, max(0.0, self.bounds[each] - self.shares[each])) for each, more in wanted.items()}
        rest = {each: more - own[each] for each, more in wanted.items()}
        scale = min(1.0, max(0.0, free) / total) if (total := sum(rest.values())) > 0.0 else 0.0
        for each, more in sorted(rest.items(), key=lambda item: -item[1]):
            give = own[each] + more * scale
            if self.kind == SLOTS:
                give = own[each] + min(float(math.ceil(more * scale)), float(math.floor(max(0.0, free))))
                free -= give - own[each]
            if give > 0.0:
                self.shares[each] += give
                self.bounds[each] = max(self.bounds[each], self.shares[each])
                raised[each] = give
        return raised

    def start(self, period: str, reserved: float = 0.0) -> None:
        """Begin a period of the quota."""
        self.period, self.reserved = period, reserved
        self.shares = dict.fromkeys(self.shares, 0.0)
        self.released = {}

    def update_quota(self, needs: Mapping[str, Need], members: Sequence[str], period: str) -> None:
        """Grant calls of the quota for :data:`CHUNK_S` of each member's demand."""
        if period != self.period:
            self.start(period)
        for each, need in needs.items():
            if need.period != period:
                continue
            self.reserved -= need.released - self.released.get(each, 0.0)
            self.released[each] = need.released
            beyond = max(need.held, need.used + need.released) - self.shares[each]
            if beyond > 0.0:  # calls that a former leader granted, or that were made without a table
                self.shares[each] += beyond
                self.reserved += beyond
        remaining = math.floor(self.limit - self.reserved)
        for each, need in sorted(needs.items()):
            if not need.demand or need.period not in ("", period):
                continue
            want = max(1, min(math.ceil(need.demand * CHUNK_S), remaining // (2 * len(members))))
            unused = self.shares[each] - self.released.get(each, 0.0) - (need.used if need.period else 0.0)
            if unused <= want / 2 and remaining >= 1:
                give = min(want - math.floor(unused), remaining)
                self.shares[each] += give
                self.reserved += give
                remaining -= give

    def entry(self, members: Sequence[str]) -> Entry:
        """Return the entry of the table."""
        digits = 6 if self.kind == RATE else 3
        return Entry(
            self.limit,
            [math.floor(self.shares[each] * 10**digits) / 10**digits for each in members],
            [round(self.granted[each], 3) for each in members],
            {user: round(ratio, 4) for user, ratio in self.ratios.items()},
            self.reserved,
            self.period,
            self.listing,
        )


class Record(msgspec.Struct, tag_field="fleet", tag="record", frozen=True):
    """Calls of a quota that its fleet has used or may use: what survives the end of all members."""

    key: str
    period: str
    reserved: float


class FleetFigures(msgspec.Struct, frozen=True):
    """What metrics show of a fleet.

    Attributes:
        name: of the fleet.
        members: in the table in force.
        is_reachable: messages pass.
        shares: of this dispatcher, from 0 to 1, by kind of limit and tool.
        quotas: calls used or handed out, and all calls, by tool and ``day`` or ``month``.
    """

    name: str
    members: int
    is_reachable: bool
    shares: Mapping[tuple[str, str], float]
    quotas: Mapping[tuple[str, str], tuple[float, float]]


class Fleet:
    """One member of a fleet. Its owner calls :meth:`tick` every :data:`TICK_S`, publishes what it returns, and passes each
    message of the topic to :meth:`receive`, those of this member included: they show that the topic is reachable.

    Args:
        member: its id, unique to this run.
        clock: monotonic seconds.
        time_of_day: seconds since the epoch, for the calendar of quotas.
        name: for people.

    Attributes:
        leases: limits of this process.
        table: in force.
        peers: members by id, this one included.
        leads: whether this member divides.
        open, closed: hints for others, see :class:`Report`.
        hints: reports of other members with hints, which the owner removes.
        stored: the records that were read; None: they were not.
        is_urgent: others wait for a message of this member: :meth:`tick` is due.
    """

    def __init__(self, member: str, clock: Clock, time_of_day: Clock, name: str = "") -> None:
        self.member = member
        self.clock = clock
        self._time_of_day = time_of_day
        self._name = name
        self.leases: list[Leases] = []
        self.peers: dict[str, Peer] = {}
        self.table: Table | None = None
        self._former: Table | None = None
        self.leads = False
        self.open: dict[str, float] = {}
        self.closed: tuple[str, ...] = ()
        self.hints: list[Report] = []
        self.stored: dict[str, Record] | None = None
        now = clock()
        self._started_at = now
        self._echo_at = -math.inf
        self._ticked_at = now
        self._table_at = now
        self._table_sent_at = self._reported_at = -math.inf
        self._number = 0
        self._term = self._version = 0
        self._members: list[str] = []
        self._joining: set[str] = set()
        self._joined_version = 0
        self._divisions: dict[str, _Division] = {}
        self._ended: dict[str, int] = {}
        """Since which table a limit is not listed, of the last seconds: members may still report it because it was."""
        self._sent_at: dict[int, float] = {}
        """When each table of the last seconds was sent, by version."""
        self._confirmed_at: dict[str, float] = {}
        """When the last table that each member has confirmed was sent."""
        self.is_urgent = True
        self._reports_all = False
        self._is_changed = False
        self._alone = 0
        """Without a table for long: 1: leases of more than an equal share are lowered to it; 2: all are equal."""
        self._reported: dict[str, float] = {}
        self._written: dict[str, Record] = {}

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def is_reachable(self) -> bool:
        """Whether this member receives its own messages."""
        return self.clock() - self._echo_at <= BLIND_S

    @property
    def has_lease(self) -> bool:
        """Whether this member may use its limits."""
        table = self.table
        return self._alone == 2 or (
            table is not None and self.member in table.members and self.member not in table.joining
        )

    @property
    def wants_records(self) -> bool:
        """Whether this member leads, and needs the stored records of quotas."""
        return self.leads and self.stored is None and any(each.kind == QUOTA for each in self._divisions.values())

    @property
    def size(self) -> int:
        """The number of members, as known last."""
        return 1 if self.table is None else max(1, len(self.table.members))

    def share_of(self, key: str, limit: float) -> Share:
        """Return the share of this process."""
        kind, table, member = key.partition(":")[0], self.table, self.member
        if table is None:
            part = {RATE: 1.0, SLOTS: limit, QUOTA: 0.0}[kind] if self._alone == 2 else 0.0
            return Share(part, 1.0 if kind == RATE else limit, extra=limit if self._alone and kind == QUOTA else 0.0)
        entry = table.entries.get(key)
        if member not in table.members:
            size = len(table.members) + 1
            return Share(0.0, 1.0 / size if kind == RATE else limit / size)
        at = table.members.index(member)
        equal = equal_share(kind, limit, table.members, member)
        if entry is None:
            return Share(0.0 if member in table.joining else equal, equal)
        part, extra = max(0.0, entry.shares[at]), 0.0
        if kind == RATE:
            least = min(1.0, entry.limit / limit)  # of members with another policy: the smallest limit holds
            part, equal = min(1.0, part) * least, equal * least
        elif kind == SLOTS:
            part = min(part, math.floor(limit))
        if self._alone and kind == QUOTA:
            extra = max(0.0, entry.limit - entry.reserved) / len(table.members)
        elif self._alone == 1:
            part = min(part, equal)
        elif self._alone == 2:
            part = equal
        return Share(part, equal, entry.granted[at], entry, extra)

    def find_smaller(self) -> dict[str, tuple[float, float]]:
        """Return the limits of which another member has a smaller number, by key: that number, and this process's."""
        entries = {} if self.table is None else self.table.entries
        smaller = {}
        for each in self.leases:
            keys = [key for key in entries if key.startswith(each.key)] if each.key.endswith(":") else [each.key]
            smallest = min((entries[key].limit for key in keys if key in entries), default=math.inf)
            if smallest < each.limit:
                smaller[each.key] = smallest, each.limit
        return smaller

    def add(self, leases: Leases) -> None:
        """Share further limits."""
        self.leases.append(leases)
        leases.apply(self.share_of, None, self.clock())

    def remove(self, leases: Leases) -> None:
        """Share these limits no longer."""
        if leases in self.leases:
            self.leases.remove(leases)

    # -- messages -------------------------------------------------------------------------------------------------

    def receive(self, payload: bytes) -> None:
        """Process a message of the topic."""
        message = decode(payload)
        now = self.clock()
        if type(message) is Report:
            self._receive_report(message, now)
        elif type(message) is Table:
            self._receive_table(message, now)
        elif type(message) is Ask:
            self.is_urgent = self._reports_all = True

    @property
    def is_due(self) -> bool:
        """Whether others wait for a message of this member, before the next :data:`TICK_S`."""
        return self.is_urgent or (self.leads and self._is_changed)

    def _receive_report(self, report: Report, now: float) -> None:
        if report.member == self.member:
            if now - self._echo_at > BLIND_S:
                self._see_again(now)
            self._echo_at = now
        known = self.peers.get(report.member)
        if known is not None and report.number <= known.report.number:
            return
        if report.leaving:
            self.peers.pop(report.member, None)
            if self.leads:
                self._confirm(report)
            elif self.table is not None and self.table.leader == report.member:
                self._table_at = min(self._table_at, now - LEADER_LOST_S)
            self._is_changed = True
            return
        if known is None:
            self.is_urgent = True  # so that it knows this one
        self.peers[report.member] = Peer(report, now, report.clock - self._time_of_day())
        self._is_changed = True
        if self.leads:
            self._confirm(report)
        if report.member != self.member and (report.open or report.closed):
            self.hints.append(report)

    def _see_again(self, now: float) -> None:
        """The topic is reachable again. No member was heard during the outage, so none counts as lost."""
        for peer in self.peers.values():
            peer.heard_at = now
        self._table_at = now
        self.is_urgent = True

    def _receive_table(self, table: Table, now: float) -> None:
        if table.leader == self.member:
            return
        if any(
            len(each.shares) != len(table.members) or len(each.granted) != len(each.shares)
            for each in table.entries.values()
        ):
            return
        if table.is_after(self.table):
            self.leads = False
            self.stored = None  # another leader writes them now
            self._table_at = now
            self._put_in_force(table, now)
        elif self.table is not None and (table.term, table.leader) == (self.table.term, self.table.leader):
            self._table_at = now  # a duplicate

    def _put_in_force(self, table: Table, now: float) -> None:
        former, self.table = self.table, table
        keys = None
        if former is not None:
            self._former = former
            if not self._alone and (former.members, former.joining) == (table.members, table.joining):
                keys = former.entries.keys() | table.entries.keys()
        self._alone = 0
        self._apply(keys, now)
        if former is None or keys is None or any(self._is_lowered(key, former, table) for key in keys):
            self.is_urgent = True  # others wait for the confirmation

    def _is_lowered(self, key: str, former: Table, table: Table) -> bool:
        before, after = former.entries.get(key), table.entries.get(key)
        if before is None or after is None or self.member not in table.members:
            return True
        at = table.members.index(self.member)
        return after.shares[at] < before.shares[at]

    def _apply(self, keys: Collection[str] | None, now: float) -> None:
        for each in self.leases:
            # Of a lease for users some of the keys may be meant.
            if keys is None or each.key in keys or each.key.endswith(":"):
                each.apply(self.share_of, keys, now)

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self) -> list[bytes | Record]:
        """Return the messages to publish, records before all others."""
        now = self.clock()
        self._allow_for_pause(now)
        messages: list[Message] = []
        is_reachable = now - self._echo_at <= BLIND_S
        if is_reachable:
            self._elect(now)
        table_at = self._table_at
        if self.leads and not is_reachable:  # members may have no later table than the one that they have confirmed
            others = (id for id in self._members if id != self.member)
            table_at = min([table_at, *(self._confirmed_at.get(id, now) for id in others)])
        if now - table_at > KEEP_S or (self.table is None and not is_reachable and now - self._started_at > BLIND_S):
            self._be_alone(now)
        needs = self._read_needs(now)
        if self.is_urgent or now - self._reported_at >= REPORT_S:
            messages.append(self._report(needs, now))
        records: list[Record] = []
        if self.leads and is_reachable:
            self.peers[self.member] = Peer(self._as_report(needs, self._number), now, 0.0)
            table = self._divide(now)
            if table is not None:
                messages.append(table)
                records = [each for each in self._list_records() if self._written.get(each.key) != each]
                self._written.update({each.key: each for each in records})
        return [*records, *(msgspec.json.encode(each) for each in messages)]

    def _allow_for_pause(self, now: float) -> None:
        """A process that was stopped, or had no processor time, has read no message meanwhile: it says nothing of others."""
        pause = now - self._ticked_at - 2 * TICK_S
        self._ticked_at = now
        if pause > PAUSE_S:
            self._echo_at = min(now, self._echo_at + pause)
            self._table_at = min(now, self._table_at + pause)
            for peer in self.peers.values():
                peer.heard_at = min(now, peer.heard_at + pause)

    def leave(self) -> list[bytes | Record]:
        """Return the last messages: this member ends, and its unused calls belong to others."""
        now = self.clock()
        self._number += 1
        report = msgspec.structs.replace(self._as_report(self._read_needs(now), self._number), leaving=True)
        if self.leads:
            self._confirm(report)
        records = self._list_records() if self.leads else []
        return [*records, msgspec.json.encode(report)]

    def _list_records(self) -> list[Record]:
        return [Record(key, each.period, each.reserved) for key, each in self._divisions.items() if each.kind == QUOTA]

    def _be_alone(self, now: float) -> None:
        level = 2 if self.table is None or now - self._table_at > KEEP_S + RAISE_AFTER_S else 1
        if level > self._alone:
            self._alone = level
            self._apply(None, now)

    def _read_needs(self, now: float) -> dict[str, Need]:
        """Return the needs to report, and find whether they have changed."""
        listed = self.table.entries if self.table is not None else {}
        found: list[tuple[str, Need, bool]] = []
        for leases in self.leases:
            for key, need, is_pressed in leases.read(now, listed):
                if is_pressed or key in listed or self._reports_all:
                    found.append((key, need, is_pressed))
        if len(found) > MAX_NEEDS:
            found.sort(key=lambda each: (not each[2], -each[1].demand / each[1].limit))
        needs = {key: need for key, need, _ in found[:MAX_NEEDS]}
        for key, need in needs.items():
            before, demand = self._reported.get(key, 0.0), need.demand
            if abs(demand - before) > 0.3 * max(demand, before) and max(demand, before) > 0.02 * need.limit:
                self.is_urgent = True
        return needs

    def _as_report(self, needs: dict[str, Need], number: int) -> Report:
        table = self.table
        seen = (0, "", 0) if table is None else (table.term, table.leader, table.version)
        return Report(self.member, number, seen, self._name, self._time_of_day(), needs, self.open, self.closed)

    def _report(self, needs: dict[str, Need], now: float) -> Report:
        self._number += 1
        self.is_urgent = self._reports_all = False
        self._is_changed = True
        self._reported_at = now
        self._reported = {key: need.demand for key, need in needs.items()}
        return self._as_report(needs, self._number)

    def _elect(self, now: float) -> None:
        """Lead, if no other member does."""
        if self.leads or (self.table is not None and now - self._table_at <= LEADER_LOST_S):
            return
        live = sorted(id for id, peer in self.peers.items() if now - peer.heard_at <= LEADER_LOST_S)
        if self.member not in live:
            return
        if self.table is None:
            is_due = now - self._started_at > JOIN_S + JOIN_STEP_S * live.index(self.member)
        else:
            # Members that know the last table come first: its shares are what all members may have.
            table, others = self.table, [id for id in live if id != self.table.leader]
            others.sort(key=lambda id: (self._is_behind(id, live, table), id))
            is_due = now - self._table_at > LEADER_LOST_S + others.index(self.member)
        if is_due:
            self._lead(now)

    def _is_behind(self, member: str, live: Collection[str], table: Table) -> bool:
        """Whether another member has confirmed a later table than ``member``; this one has ``table``."""
        seen = {id: self.peers[id].report.seen for id in live}
        seen[self.member] = table.term, table.leader, table.version
        term, leader, version = seen[member]
        return any(of > term or (of == term and by == leader and last > version) for of, by, last in seen.values())

    def _lead(self, now: float) -> None:
        """Become the leader, with the leases of the former one.

        The first table raises no member above what it has: each has its former lease, or a smaller one that it reported. And
        until it has confirmed that table, it may still have the largest one that is possible.
        """
        table, former = self.table, self._former
        self.leads = True
        self._version = 0
        self._table_sent_at = -math.inf
        self._divisions = {}
        self._ended = {}
        self._sent_at = {}
        self._confirmed_at = {}
        self._members = sorted({self.member, *(() if table is None else table.members)})
        self._joining = set() if table is None else {*table.joining, *({self.member} - set(table.members))}
        self._joined_version = 1
        self._is_changed = True
        if table is None:
            self._term = 1
            return
        self._term = table.term + 1
        heard = {id: peer.report.needs for id, peer in self.peers.items() if now - peer.heard_at <= BLIND_S}
        self._confirmed_at = dict.fromkeys(self._members, now - LEADER_LOST_S)
        for key, entry in table.entries.items():
            division = self._divisions[key] = _Division(key, entry.limit, entry.listing)
            division.shares = dict(zip(table.members, entry.shares, strict=True))
            division.granted = dict(zip(table.members, entry.granted, strict=True))
            division.bounds = dict(division.shares)
            if former is not None and key in former.entries:
                for each, share in zip(former.members, former.entries[key].shares, strict=True):
                    if each in division.bounds:
                        division.bounds[each] = max(division.bounds[each], share)
            division.lowered = dict.fromkeys(table.members, 1)
            division.reserved, division.period = entry.reserved, entry.period
            division.drop(self._members)
            for each in self._members if division.kind != QUOTA else ():
                equal = self._equal_share(division, each)
                need = heard.get(each, {}).get(key)
                has = equal if need is None else need.held
                division.shares[each] = min(division.shares[each], has)
                division.bounds[each] = max(division.bounds[each], equal, has)

    def _equal_share(self, division: _Division, member: str) -> float:
        """Return the most that ``member`` has without a table: not all members may know those that are joining."""
        known = [each for each in self._members if each == member or each not in self._joining]
        return equal_share(division.kind, division.limit, known, member)

    def _confirm(self, report: Report) -> None:
        """Account for what a member has confirmed."""
        term, leader, version = report.seen
        sent_at = self._sent_at.get(version) if (term, leader) == (self._term, self.member) else None
        if sent_at is None:
            version = -1  # of another leader, or so old that an equal share may have replaced it
        else:
            self._confirmed_at[report.member] = sent_at
        for key, division in self._divisions.items():
            division.confirm(report.member, version, report.needs.get(key))
            if report.leaving and division.kind == QUOTA and (need := report.needs.get(key)) is not None:
                unused = division.shares.get(report.member, 0.0) - need.used - need.released
                division.reserved -= max(0.0, unused)

    @property
    def _is_joined(self) -> bool:
        """Whether all members know the number of members."""
        others = [each for each in self._members if each not in self._joining and each != self.member]
        seen = [self.peers[each].report.seen for each in others]
        return all((*of, version) >= (self._term, self.member, self._joined_version) for *of, version in seen)

    def _divide(self, now: float) -> Table | None:
        """Return the next table; None: nothing has changed, and the last one is recent."""
        is_due = now - self._table_sent_at >= REPORT_S
        if not is_due and not self._is_changed:
            return None
        self._is_changed = False
        version = self._version + 1
        for id, peer in list(self.peers.items()):
            if now - peer.heard_at > MEMBER_LOST_S and id != self.member:
                del self.peers[id]
        new = sorted(self.peers.keys() - set(self._members))
        for id in new:
            if self.peers[id].report.seen[0] == 0:
                self._confirmed_at[id] = now  # it had no table so far
        self._members = sorted((set(self._members) & self.peers.keys()) | set(new))
        self._joining = (self._joining & self.peers.keys()) | set(new)
        if new:
            self._joined_version = version
        if not new and self._is_joined:
            self._joining.clear()
        self._sent_at = {of: at for of, at in self._sent_at.items() if now - at <= KEEP_S}
        self._ended = {key: of for key, of in self._ended.items() if of == version or of in self._sent_at}
        self._divide_limits(version, now)
        table = Table(
            self.member,
            self._term,
            version,
            self._members,
            sorted(self._joining),
            {key: each.entry(self._members) for key, each in self._divisions.items()},
        )
        if not is_due and self.table is not None and self.table.leader == self.member:
            former = self.table
            if (former.members, former.joining) == (table.members, table.joining) and not any(
                each.differs(former.entries.get(key)) for key, each in table.entries.items()
            ):
                return None
        self._version = version
        self._table_sent_at = self._sent_at[version] = now
        self._table_at = self._echo_at  # only tables until the last echo are known to have been received
        self._put_in_force(table, now)
        for key, division in self._divisions.items():
            need = self.peers[self.member].report.needs.get(key)
            if need is not None and division.since == version:
                need = msgspec.structs.replace(need, released=0.0)  # it was reported before the listing
            division.confirm(self.member, version, need)
        return table

    def _divide_limits(self, version: int, now: float) -> None:
        reports = {id: self.peers[id].report for id in self._members}
        confirmed_at = self._confirmed_at | {self.member: -math.inf if self._alone else now}
        unsure = [id for id in self._members if now - confirmed_at.get(id, -math.inf) > KEEP_S]
        heard = [id for id in unsure if now - self.peers[id].heard_at <= BLIND_S]  # others are soon no members
        if self._is_joined:
            for report in reports.values():
                for key, need in report.needs.items():
                    if key not in self._divisions and need.limit > 0.0 and not self._is_stale(key, report):
                        self._begin(key, need.limit, version)
        for key, division in list(self._divisions.items()):
            division.drop(self._members)
            needs = {id: report.needs[key] for id, report in reports.items() if key in report.needs}
            needs = {id: need for id, need in needs.items() if need.limit > 0.0}
            division.limit = min((need.limit for need in needs.values()), default=division.limit)
            if division.kind == QUOTA:
                if self.stored is not None:
                    self._load(self.stored.pop(key, None), division)
                    division.update_quota(needs, self._members, self._period(key))
                continue
            for id in unsure:
                division.assume_equal(id, self._equal_share(division, id), version)
            alone = {id: self._equal_share(division, id) for id in heard}
            division.update(needs, self._members, alone, version, now)
            if division.calm_since is not None and now - division.calm_since > CALM_S and not self._joining:
                del self._divisions[key]
                self._ended[key] = version

    def _is_stale(self, key: str, report: Report) -> bool:
        """Whether a member may report the limit only because it does not know yet that it is not listed any more."""
        return key in self._ended and report.seen < (self._term, self.member, self._ended[key])

    def _begin(self, key: str, limit: float, version: int) -> None:
        division = self._divisions[key] = _Division(key, limit, self._term << 32 | version, version)
        for each in self._members:
            if each not in self._joining:
                division.shares[each] = division.bounds[each] = equal_share(division.kind, limit, self._members, each)
        division.drop(self._members)
        division.released = dict.fromkeys(self._members, 0.0)

    def _load(self, record: Record | None, division: _Division) -> None:
        if record is not None and record.period >= division.period:
            if record.period > division.period:
                division.start(record.period, record.reserved)
            else:
                division.reserved = max(division.reserved, record.reserved)

    def _period(self, key: str) -> str:
        """Return the period of a quota: no earlier one than before, whatever clocks do."""
        clock = self._time_of_day() + median(peer.lag for peer in self.peers.values())
        period, _ = period_of(key.rpartition(":")[2], clock)
        return max(period, self._divisions[key].period)
