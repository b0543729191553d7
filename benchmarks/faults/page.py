"""The page of a run: ``python -m benchmarks.faults.page benchmarks/results/faults/DATE.json …``.

It replaces the generated part of ``docs/explanation/faults.md``, draws ``docs/images/faults.png`` from the records beside
the file, and records the figures in ``benchmarks/faults/recorded.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.faults import BEGIN_S, FAULTS
from benchmarks.faults.outcomes import Outcome
from benchmarks.faults.systems import SYSTEMS
from benchmarks.harness.plots import style_of
from benchmarks.harness.programs import picture, read_runs, write_page
from benchmarks.harness.report import markdown_table, number
from benchmarks.incidents.figures import RIGHT

PAGE = Path("docs/explanation/faults.md")
PICTURE = Path("docs/images/faults.png")
RECORDED = Path("benchmarks/faults/recorded.json")
COLUMNS = 3
BIN_S = 0.5
"""Calls are drawn in steps of their beginnings."""
Run = Mapping[str, Any]
"""Date, machine and outcomes of a run."""


def outcomes_of(run: Run) -> dict[tuple[str, str], Outcome]:
    """Return the outcomes by fault and system."""
    return {(each["fault"], each["system"]): Outcome(**each) for each in run["outcomes"]}


def render(run: Run) -> str:
    """Return the Markdown of a run."""
    outcomes = outcomes_of(run)
    systems = [name for name in SYSTEMS if any(system == name for _, system in outcomes)]
    machine = run["machine"]
    setting = (
        f"{run['date'][:10]}: {machine['processors']} processors that all processes share, "
        f"load before the run {machine['load_before']}."
    )
    offers = [[SYSTEMS[name].label, SYSTEMS[name].offers] for name in systems]
    return "\n\n".join(
        (
            setting,
            markdown_table(["system", "offers"], offers),
            "Calls that failed; **twice**: calls that must not be repeated and were executed twice; **hung**: calls that "
            "ended later than 2 s after their deadline of 5 s:",
            _table(outcomes, systems, _failed),
            "p99 of the calls that were answered during the fault, in ms; seconds from its end until no call fails for "
            "a second (never: not within 5 s):",
            _table(outcomes, systems, _times),
            "Failed calls whose error says that the tool was not executed, of all that failed; calls that failed although "
            "the tool was executed; median wait of a failed call:",
            _table(outcomes, systems, _errors),
            "Processor time of client and instances per call in µs; their memory in MiB:",
            _table(outcomes, systems, _costs),
        )
    )


def _table(outcomes: Mapping[tuple[str, str], Outcome], systems: Sequence[str], cell: Any) -> str:
    rows = []
    for fault in FAULTS:
        found = [outcomes.get((fault.name, system)) for system in systems]
        rows.append([fault.title, *("n/a" if each is None else cell(each) for each in found)])
    return markdown_table(["fault", *(SYSTEMS[name].short for name in systems)], rows)


def _failed(each: Outcome) -> str:
    share = each.failed / max(1, each.calls)
    parts = [
        "0" if not each.failed else f"{each.failed} ({100 * share:.2g} %)" if share < 0.1 else f"{100 * share:.0f} %"
    ]
    parts += [f"**{each.twice} twice**"] if each.twice else []
    parts += [f"**{each.hung} hung**"] if each.hung else []
    parts += [f"{each.stopped} of {each.cancelled} cancelled tools stopped"] if each.cancelled else []
    return ", ".join(parts)


def _times(each: Outcome) -> str:
    p99 = "-" if each.p99_ms is None else number(each.p99_ms)
    return f"{p99}; {'never' if each.back_s is None else f'{each.back_s:.1f} s'}"


def _errors(each: Outcome) -> str:
    if not each.failed:
        return "-"
    wait = "" if each.failed_wait_s is None else f"; {each.failed_wait_s:.1f} s"
    untrue = f" (**{each.untrue} untrue**)" if each.untrue else ""
    return f"{each.refused} of {each.failed}{untrue}; {each.executed} executed{wait}"


def _costs(each: Outcome) -> str:
    return " / ".join("-" if value is None else number(value) for value in (each.cpu_us, each.memory_mib))


def draw(run: Run, folder: Path, path: Path) -> None:
    """Write the plot: for each fault, the share of right calls over time."""
    rows = -(-len(FAULTS) // COLUMNS)
    outcomes = outcomes_of(run)
    with picture(path, rows, COLUMNS, size=(15, 2.5 * rows + 0.8), dpi=100) as (_, grid):
        cells = [axes for line in grid for axes in line]
        for axes, fault in zip(cells, FAULTS, strict=False):
            axes.axvspan(BEGIN_S, max(fault.over, BEGIN_S + 0.1), color="#B00020", alpha=0.08)
            for name, system in SYSTEMS.items():
                if (fault.name, name) in outcomes:
                    calls = json.loads((folder / f"{fault.name}-{name}.json").read_text())["calls"]
                    style = {**style_of(name), "markersize": 3, "linewidth": 1.2}
                    axes.plot(*right_over_time(calls), label=system.short, **style)
            axes.set_title(fault.title, loc="left", fontsize=9, fontweight="bold")
            axes.set_ylim(-4, 104)
            axes.grid(visible=True, alpha=0.25, linewidth=0.6)
            axes.set_xlabel("seconds", fontsize=8)
            axes.set_ylabel("right, %", fontsize=8)
        for axes in cells[len(FAULTS) :]:
            axes.axis("off")
        cells[-1].legend(*cells[0].get_legend_handles_labels(), loc="center", fontsize=9)


def right_over_time(calls: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Return times and the percentage of the calls begun in each step that were right; cancelled ones do not count."""
    bins: dict[int, list[bool]] = {}
    for call in calls:
        if call["kind"] != "cancelled":
            bins.setdefault(int(call["began"] / BIN_S), []).append(call["kind"] == RIGHT)
    ordered = sorted(bins.items())
    return [(step + 0.5) * BIN_S for step, _ in ordered], [100 * sum(each) / len(each) for _, each in ordered]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, the picture and the record. Return the exit code."""
    runs, root = read_runs("benchmarks.faults.page", __doc__, arguments, nargs="+")
    run = json.loads(runs[0].read_text())
    cases = {}
    for path in runs:
        cases |= {(each["fault"], each["system"]): each for each in json.loads(path.read_text())["outcomes"]}
    run["outcomes"] = list(cases.values())
    write_page(root / PAGE, render(run))
    draw(run, runs[0].parent, root / PICTURE)
    (root / RECORDED).write_text(json.dumps(run, separators=(",", ":")).replace('{"fault"', '\n{"fault"') + "\n")
    print(f"written: {root / PAGE}, {root / PICTURE}, {root / RECORDED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
