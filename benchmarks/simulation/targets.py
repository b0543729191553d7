"""Targets for calls under failures, and the values that a simulated run reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.simulation.record import BIN_S, Record, fullest
from benchmarks.simulation.scenarios import OVERLOAD, find

Records = Mapping[tuple[str, str], Record]
"""By scenario and contender."""

SLOT_S = 0.25
"""A twentieth of the first open duration, 5 s."""

BUDGET_S = 10.0
"""Window of the retry budget in seconds: retries and hedges are limited to a share of its calls."""


@dataclass(frozen=True)
class Goal:
    """One goal.

    Attributes:
        id: G1 to G20 of the goals table (docs/explanation/goals.md).
        text: what is measured, in what unit.
        bound: the limit, and ``most``: it is the largest allowed (else the smallest).
        needs: the runs it is read off.
        figure: reads it. None: it was not reached within the run.
    """

    id: str
    text: str
    bound: float
    most: bool
    needs: tuple[tuple[str, str], ...]
    figure: Callable[[Records], float | None]

    def met(self, figure: float | None) -> bool:
        """Return whether ``figure`` meets the goal."""
        return figure is not None and (figure <= self.bound if self.most else figure >= self.bound)


def reached(records: Records) -> list[tuple[Goal, float | None]]:
    """Return the figure of each goal whose runs are in ``records``."""
    return [(goal, goal.figure(records)) for goal in GOALS if all(need in records for need in goal.needs)]


def trouble(record: Record) -> tuple[float, float]:
    """Return start and end of the failure; the whole run if there is none."""
    since, until = find(record.scenario).trouble
    return (since, until) if until else (0.0, record.seconds)


def _amplification(name: str) -> Goal:
    def figure(records: Records) -> float:
        record = records[name, "ours"]
        starts = range(int(record.seconds - BUDGET_S) + 1)
        return max(record.amplification(since, since + BUDGET_S) for since in starts)

    return Goal(
        "G9",
        f"{name}: requests sent for each call, in the worst {BUDGET_S:g} s",
        1.2,
        True,
        ((name, "ours"),),
        figure,
    )


def _goodput(number: int) -> Goal:
    since, times = OVERLOAD[number]
    until = OVERLOAD[number + 1][0]

    def figure(records: Records) -> float:
        record = records["overload", "ours"]
        # Below the capacity every call is answered: the ratio to the offered load calibrates the capacity of this run.
        return record.answered(since, until) / (until - since) / _capacity(record)

    return Goal(
        "G12", f"overload, {times:g} times: answers, as share of capacity", 0.9, False, (("overload", "ours"),), figure
    )


def _capacity(record: Record) -> float:
    scenario = find("overload")
    return scenario.capacity * len(record.received) / scenario.instances


def _p99(records: Records) -> float | None:
    slow, well = records["slow-instance", "ours"], records["healthy", "ours"]
    since, until = trouble(slow)
    with_slow, without = slow.latency(0.99, since, until), well.latency(0.99, since, until)
    return None if with_slow is None or without is None else with_slow / without


def _slow_share(records: Records) -> float:
    record = records["slow-instance", "ours"]
    return record.load(*trouble(record), 0) / max(1, record.load(*trouble(record)))


def _failed(name: str) -> Goal:
    return Goal(
        "G14",
        f"{name}: calls that failed, in all",
        0.001,
        True,
        ((name, "ours"),),
        lambda records: 1 - records[name, "ours"].success(0, records[name, "ours"].seconds),
    )


def _left_alone(records: Records) -> float:
    """Seconds until the failing instance receives no more requests, observed for less than its first ejection."""
    record = records["failing-of-two", "ours"]
    since, _ = trouble(record)
    steps = [step for step in range(int(3 / BIN_S)) if record.load(since + step * BIN_S, since + (step + 1) * BIN_S, 0)]
    return (steps[-1] + 1) * BIN_S if steps else 0.0


def _recovery(name: str, contender: str) -> Goal:
    how = "" if contender == "ours" else " (default open and ejection times)"
    return Goal(
        "G15",
        f"{name}: seconds until 95 % of the calls succeed again{how}",
        10.0,
        True,
        ((name, contender),),
        lambda records: records[name, contender].recovery(find(name).trouble[1]),
    )


def _crowding(records: Records) -> float:
    record = records["dead-instance", "ours"]
    since = trouble(record)[1]
    each = [record.load(since, since + 10, number) for number in range(len(record.received))]
    return max(each) / (sum(each) / len(each))


def _spread(records: Records) -> float:
    record = records["herd", "ours"]
    return fullest(record.probes(*trouble(record)), SLOT_S)


def _tail_gain(records: Records) -> float | None:
    without, hedged = records["tail", "ours"], records["tail-hedged", "ours"]
    slow, quick = without.latency(0.999, 5, without.seconds), hedged.latency(0.999, 5, hedged.seconds)
    return None if slow is None or quick is None else slow / quick


def _tail_load(records: Records) -> float:
    return records["tail-hedged", "ours"].amplification(0, 60) - 1


GOALS = (
    _amplification("brown-out"),
    _amplification("retry-storm"),
    _goodput(1),
    _goodput(2),
    _goodput(3),
    Goal(
        "G13",
        "slow-instance: p99 with it ÷ p99 when all is well",
        1.5,
        True,
        (("slow-instance", "ours"), ("healthy", "ours")),
        _p99,
    ),
    Goal("G13", "slow-instance: its share of the requests", 0.03, True, (("slow-instance", "ours"),), _slow_share),
    _failed("dead-instance"),
    _failed("flapping"),
    _failed("failing-of-two"),
    Goal(
        "G14",
        "failing-of-two: seconds until the failing one gets no more requests",
        1.0,
        True,
        (("failing-of-two", "ours"),),
        _left_alone,
    ),
    Goal(
        "G15",
        "dead-instance: the busiest one's load ÷ the mean, for 10 s after its return",
        2.0,
        True,
        (("dead-instance", "ours"),),
        _crowding,
    ),
    *(
        _recovery(name, contender)
        for contender in ("ours", "ours-defaults")
        for name in ("brown-out", "retry-storm", "herd")
    ),
    Goal(
        "G16",
        f"herd: largest share of first probes within {SLOT_S:g} s, a twentieth of the open time",
        0.15,
        True,
        (("herd", "ours"),),
        _spread,
    ),
    Goal(
        "G17",
        "tail: p99.9 without hedges ÷ p99.9 with them",
        5.0,
        False,
        (("tail", "ours"), ("tail-hedged", "ours")),
        _tail_gain,
    ),
    Goal(
        "G17",
        "tail: further requests for that, as share of the calls",
        0.05,
        True,
        (("tail-hedged", "ours"),),
        _tail_load,
    ),
)
"""Goals for the behaviour under failures."""
