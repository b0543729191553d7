"""Tables of the simulation, and the same as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness.report import aligned
from benchmarks.simulation.record import Record
from benchmarks.simulation.scenarios import find
from benchmarks.simulation.targets import Goal, Records, reached, trouble

HEAD = ("scenario", "contender", "answered", "… in trouble", "p50 ms", "p99 ms", "sent ÷ calls", "well again after")


def figures(record: Record) -> dict[str, Any]:
    """Return the figures of one run: times in seconds, of the calls that began during the failure."""
    since, until = trouble(record)
    return {
        "scenario": record.scenario,
        "contender": record.contender,
        "calls": len(record.calls),
        "answered": record.success(0, record.seconds),
        "answered_in_trouble": record.success(since, until),
        "p50": record.latency(0.5, since, until),
        "p99": record.latency(0.99, since, until),
        "amplification": record.amplification(since, until),
        "recovery": record.recovery(until) if find(record.scenario).trouble[1] else None,
        "failures": dict(sorted(record.failures.items())),
        "received": [sum(each.values()) for each in record.received],
    }


def as_dict(records: Records, *, seed: int, short: bool) -> dict[str, Any]:
    """Return all figures, for ``--json``."""
    return {
        "format": 1,
        "seed": seed,
        "quick": short,
        "runs": [figures(record) for record in records.values()],
        "goals": [
            {
                "id": goal.id,
                "text": goal.text,
                "goal": goal.bound,
                "at": "most" if goal.most else "least",
                "figure": figure,
                "met": goal.met(figure),
            }
            for goal, figure in reached(records)
        ],
    }


def runs_table(records: Records) -> str:
    """One line a run."""
    rows: list[tuple[str, ...]] = [HEAD]
    for record in records.values():
        figure = figures(record)
        rows.append(
            (
                record.scenario,
                record.contender,
                f"{100 * figure['answered']:.2f} %",
                f"{100 * figure['answered_in_trouble']:.2f} %",
                _milliseconds(figure["p50"]),
                _milliseconds(figure["p99"]),
                f"{figure['amplification']:.2f}",
                _recovery(record, figure["recovery"]),
            )
        )
    return "Runs (p50 and p99 of the answers, and requests sent, for calls that began in the trouble)\n" + aligned(
        rows, left=(0, 1)
    )


def goals_table(found: Sequence[tuple[Goal, float | None]]) -> str:
    """Return the table of goals and reached values."""
    rows: list[tuple[str, ...]] = [("", "goal", "wanted", "reached", "")]
    for goal, figure in found:
        rows.append(
            (
                goal.id,
                goal.text,
                f"{'≤' if goal.most else '≥'} {goal.bound:g}",
                "not in the run" if figure is None else f"{figure:.3g}",
                "ok" if goal.met(figure) else "MISSED",
            )
        )
    return "Goals\n" + aligned(rows, left=(0, 1, 4))


def report(records: Records) -> str:
    """Return the whole report."""
    found = reached(records)
    return "\n\n".join([runs_table(records), *([goals_table(found)] if found else [])])


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.0f}"


def _recovery(record: Record, seconds: float | None) -> str:
    if not find(record.scenario).trouble[1]:
        return ""
    return "not in the run" if seconds is None else f"{seconds:.0f} s"
