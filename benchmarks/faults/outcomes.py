"""Figures of a case, computed from the records of its calls and the journals of its instances. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.faults.faults import BEGIN_S, Fault
from benchmarks.faults.roles.caller import CANCELLED, HUNG, Row
from benchmarks.harness.statistics import percentile
from benchmarks.incidents.figures import RIGHT, Call, begun

QUIET_S = 1.0
"""Seconds in which no call may fail for the system to be right again."""


@dataclass(frozen=True)
class Record(Call):
    """One call.

    Attributes:
        number: as in the journals.
        is_repeatable: it may be executed twice.
        is_refused: its error says that the tool was certainly not executed.
    """

    number: int
    is_repeatable: bool
    is_refused: bool


@dataclass(frozen=True)
class Outcome:
    """The figures of one fault and one system.

    Attributes:
        rate: calls per second before the fault.
        calls: those that their caller did not cancel.
        right: of these, answered rightly.
        failed: not answered; with ``kinds``, by kind of error.
        refused: failed calls whose error says that the tool was not executed.
        untrue: of these, executed all the same.
        executed: failed calls that were executed: their answer is lost, or came too late.
        hung: failed calls that ended later than 2 s after their deadline, or never.
        twice: calls that must not be repeated and were executed more than once.
        repeated: other calls that were executed more than once.
        failed_wait_s: median seconds until a failed call ended.
        p99_ms: of the calls that were right and began during the fault, or within 2 s of one that lasts no time.
        back_s: seconds from the end of the fault until no call fails for a second; None: not within the load.
        cancelled: calls that their caller cancelled; ``stopped``: of these, whose tool was stopped or did not begin.
        cpu_us: processor time of client and instances per call, without the server, in microseconds.
        memory_mib: resident memory of client and instances at the end.
    """

    fault: str
    system: str
    seed: int
    rate: float
    calls: int
    right: int
    failed: int
    kinds: dict[str, int]
    refused: int
    untrue: int
    executed: int
    hung: int
    twice: int
    repeated: int
    failed_wait_s: float | None
    p99_ms: float | None
    back_s: float | None
    cancelled: int
    stopped: int
    cpu_us: float | None
    memory_mib: float | None


def records_of(rows: Iterable[Row], began: float) -> list[Record]:
    """Return the calls with times in seconds since the load began."""
    return [Record(start - began, end - began, *rest) for start, end, *rest in rows]


def seconds_until_right(records: Sequence[Record], over: float, end: float) -> float | None:
    """Return the seconds from ``over`` until no call that begins within :data:`QUIET_S` fails; None: not before ``end``."""
    failed = sorted(each.began for each in records if each.kind not in (RIGHT, CANCELLED) and each.began >= over)
    since = over
    for moment in failed:
        if moment - since >= QUIET_S:
            break
        since = moment
    later = [each.ended for each in records if each.began > since and each.kind == RIGHT]
    if since > end - QUIET_S or not later:
        return None
    return 0.0 if since == over else min(later) - over


def judge(
    fault: Fault,
    system: str,
    seed: int,
    records: Sequence[Record],
    journals: Iterable[Sequence[int]],
    stopped: Iterable[int],
    *,
    over: float,
    rate: float,
    cpu_s: float | None,
    memory_mib: float | None,
) -> Outcome:
    """Return the figures of a case; ``over``: when its fault was over, ``stopped``: executions that were cancelled."""
    executions = Counter(number for journal in journals for number in journal)
    counted = [each for each in records if each.kind != CANCELLED]
    cancelled = [each for each in records if each.kind == CANCELLED]
    failed = [each for each in counted if each.kind != RIGHT]
    during = begun(counted, BEGIN_S, max(over, BEGIN_S + 2.0))
    times = sorted(each.ended - each.began for each in during if each.kind == RIGHT)
    waits = sorted(each.ended - each.began for each in failed)
    again = [each for each in records if executions[each.number] > 1]
    ended_early = set(stopped)
    return Outcome(
        fault=fault.name,
        system=system,
        seed=seed,
        rate=rate,
        calls=len(counted),
        right=len(counted) - len(failed),
        failed=len(failed),
        kinds=dict(Counter(each.kind for each in failed).most_common()),
        refused=sum(each.is_refused for each in failed),
        untrue=sum(each.is_refused and executions[each.number] > 0 for each in failed),
        executed=sum(executions[each.number] > 0 for each in failed),
        hung=sum(each.kind == HUNG for each in failed),
        twice=sum(not each.is_repeatable for each in again),
        repeated=sum(each.is_repeatable for each in again),
        failed_wait_s=percentile(waits, 0.5) if waits else None,
        p99_ms=percentile(times, 0.99) * 1e3 if times else None,
        back_s=seconds_until_right(counted, over, fault.seconds + max(0.0, over - fault.over)),
        cancelled=len(cancelled),
        stopped=sum(each.number in ended_early or not executions[each.number] for each in cancelled),
        cpu_us=None if cpu_s is None or not records else cpu_s / len(records) * 1e6,
        memory_mib=memory_mib,
    )
