"""Figures of a case, computed from the records of its calls and the journals of its instances. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.incidents.cases import Case
from benchmarks.incidents.figures import (
    CIRCUIT_OPEN,
    RIGHT,
    Call,
    Figure,
    Value,
    begun,
    common_failures,
    first_right,
)

BULKHEAD_FULL = "bulkhead-full"
SETTLE_S = 1.0
"""Seconds within which calls must succeed again."""
UNITS = {
    "failed": "%",
    "from then on": "%",
    "late": "%",
    "busiest": "%",
    "back": "s",
    "released": "s",
    "slowest": "s",
    "wall": "s",
    "memory": "MiB",
}
SHOWN = ("calls", "failed", "from then on", "bulkhead-full", "twice", "slowest", "failures")
"""Figures that a table has beside those with limits."""
TIMED = frozenset({"late", "back", "released", "slowest", "wall", "memory"})
"""Figures that depend on how busy the machine is: tests do not check them."""


@dataclass(frozen=True)
class Record(Call):
    """One call of a case.

    Attributes:
        number: as in the journals.
        tool: name of the tool.
        is_refused: the error says that the tool was certainly not executed.
    """

    number: int
    tool: str
    is_refused: bool


@dataclass(frozen=True)
class Played:
    """What happened in one case.

    Attributes:
        began: when the load began, on the machine's monotonic clock.
        over: when the incident was over.
        records: the calls, and how they ended.
        journals: numbers of the executed calls, in order, by number of the instance.
        memory: greatest growth of an instance's memory, in MiB.
    """

    began: float
    over: float
    records: Sequence[Record]
    journals: Mapping[int, Sequence[int]]
    memory: float = 0.0


def figures_of(case: Case, played: Played, tool: str | None = None) -> list[Figure]:
    """The figures of a case, with what is wanted of them; ``tool``: of the calls of this tool alone.

    - ``calls``; ``failed``: share of all that did not succeed;
    - ``back``: seconds from the end of the incident until the first success of a call that began after it;
    - ``from then on``: share that failed of the calls that began after that success, or after :data:`SETTLE_S`;
    - ``late``: share of the same calls that took longer than ``case.late_s`` or failed;
    - ``released``: seconds from the end of the incident until the end of the last call that began before it;
    - ``elsewhere``: failed calls that were refused, or that an instance executed to which nothing happened;
    - ``bulkhead-full``, ``circuit-open``: calls that were refused for this reason;
    - ``busiest``: share of the executions at the busiest instance;
    - ``slowest``: the longest call; ``wall``: from the first call's beginning to the last one's end;
    - ``twice``, ``repeated``: calls of tools that must not be repeated, and of others, that were executed more than once;
    - ``untrue``: calls whose error says that they were not executed, and which were;
    - ``memory``: growth of the instance with the greatest growth; ``failures``: the most frequent ones.
    """
    counted = {each.name for each in case.tools if each.is_counted and tool in (None, each.name)}
    records = [record for record in played.records if record.tool in counted]
    first = first_right(records, played.over)
    back = None if first is None else first - played.over
    later = begun(records, played.over + (SETTLE_S if back is None else min(back, SETTLE_S)))
    earlier = begun(records, 0, played.over)
    executions = Counter(number for journal in played.journals.values() for number in journal)
    hurt = {event.instance for event in case.events if event.do != "serve"}
    repeatable = {each.name for each in case.tools if each.is_repeatable}
    repeated = [record for record in records if executions[record.number] > 1]
    well = {number for name, journal in played.journals.items() if name not in hurt for number in journal}
    values: dict[str, Value] = {
        "calls": len(records),
        "failed": _failed(records),
        "from then on": _failed(later),
        "elsewhere": sum(each.kind != RIGHT and (each.is_refused or each.number in well) for each in records),
        **{kind: sum(each.kind == kind for each in records) for kind in (BULKHEAD_FULL, CIRCUIT_OPEN)},
        "late": _share(later, [each.kind != RIGHT or each.ended - each.began > case.late_s for each in later]),
        "busiest": max(map(len, played.journals.values()), default=0) / max(1, executions.total()),
        "back": back,
        "released": max((each.ended for each in earlier), default=played.over) - played.over,
        "slowest": max((each.ended - each.began for each in records), default=None),
        "wall": max((each.ended for each in records), default=played.began) - played.began,
        "twice": sum(each.tool not in repeatable for each in repeated),
        "repeated": sum(each.tool in repeatable for each in repeated),
        "untrue": sum(each.is_refused and executions[each.number] > 0 for each in records),
        "memory": played.memory,
        "failures": common_failures(records),
    }
    return [_figure(case, name, value) for name, value in values.items()]


def _figure(case: Case, name: str, value: Value) -> Figure:
    unit, limit = UNITS.get(name, ""), case.limits.get(name)
    wanted = "" if limit is None else _limit_text(limit, unit)
    return Figure(f"{case.label}: {name}", value, unit, wanted, limit)


def _limit_text(limit: float, unit: str) -> str:
    sign = "≤ " if limit else ""
    return f"{sign}{100 * limit:g} %" if unit == "%" else f"{sign}{limit:g} {unit}".rstrip()


def _share(records: Sequence[Record], hits: Sequence[bool]) -> float | None:
    return sum(hits) / len(records) if records else None


def _failed(records: Sequence[Record]) -> float | None:
    return _share(records, [each.kind != RIGHT for each in records])


def by_second(case: Case, played: Played) -> list[str]:
    """A line for each second of the load: how the calls ended that began in it."""
    seconds: dict[int, Counter[str]] = {}
    for each in played.records:
        seconds.setdefault(int(each.began - played.began), Counter())[each.kind] += 1
    return [
        f"{second:4} s  " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        for second, kinds in sorted(seconds.items())
    ]
