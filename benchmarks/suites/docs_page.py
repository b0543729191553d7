"""The figures of a run in the documentation.

``python -m benchmarks.suites.docs_page benchmarks/results/DATE.json`` replaces the generated part of
``docs/explanation/benchmarks.md`` and draws ``docs/images/systems.png``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.harness.plan import LEVEL_NAMES, Contender, Suite
from benchmarks.harness.plots import draw_systems
from benchmarks.harness.programs import read_runs, write_page
from benchmarks.harness.report import markdown_table, number, shown
from benchmarks.harness.results import Results, Summary
from benchmarks.suites.definitions import BESIDE, FAN_IN, FLEETS, LAYERS, LOSSES, OPEN, SYSTEMS
from benchmarks.suites.target_ratios import TARGETS, Found, find

PAGE = Path("docs/explanation/benchmarks.md")
PICTURE = Path("docs/images/systems.png")
ABSENT = "-"
CPU = ("cpu_us_per_call", "service_cpu_us_per_call", "broker_cpu_us_per_call")


def render_figures(results: Results) -> str:
    """Return the Markdown of a run: its setting, the four systems, the loads that make trouble, and the targets."""
    parts = [render_setting(results)]
    if any(suite.name == SYSTEMS[0].name for suite in results.suites):
        parts += [_systems(results), _processor_time(results)]
    parts += [_loads(results), render_targets([find(ratio, results) for ratio in TARGETS])]
    return "\n\n".join(parts)


def render_setting(results: Results) -> str:
    """Return what was measured, when and where."""
    setting, machine = results.setting, results.setting.machine
    rounds = sorted({suite.rounds_of(results.settings) for suite in results.suites})
    return (
        f"One run on {setting.date[:10]}: {' or '.join(map(str, rounds))} rotated rounds, {machine['processors']} "
        f"processors that clients, services and the broker share, Pulsar {setting.broker['version']}, pulsar-client "
        f"{setting.versions['pulsar-client']}, {setting.versions['python']}. The machine's load before the run was "
        f"{machine['load_before']}; other programs used {shown(results.other_processors)} processors during the "
        "measurements. Medians of the rounds."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _lost(summary: Summary) -> str:
    return f"; {_percent(summary.lost / summary.calls)} lost" if summary.lost else ""


def _cell(summary: Summary, *latencies: str) -> str:
    """Return ``calls/s (latencies; lost)``."""
    rate = summary.figures["calls_per_second"]
    if rate is None:
        return ABSENT
    known = [spread for name in latencies if (spread := summary.figures[name]) is not None]
    times = " / ".join(number(spread.median) for spread in known) or "no reply"
    return f"{number(rate.median)} ({times}{_lost(summary)})"


def _systems(results: Results) -> str:
    suites = [suite for suite in results.suites if suite.name in {each.name for each in SYSTEMS}]
    contenders = suites[0].contenders
    rows = [
        [
            f"{suite.title.rpartition(' of ')[2]}, {level}",
            *(_cell(results.summary(suite.name, c.name, level), "p50_ms", "p999_ms") for c in contenders),
        ]
        for suite in suites
        for level in suite.levels
    ]
    header = ["replies, in flight", *(contender.label for contender in contenders)]
    title = "Calls per second (p50 / p99.9 in ms; share of the calls without a reply in 2 s):"
    return f"{title}\n\n{markdown_table(header, rows)}"


def _processor_time(results: Results) -> str:
    suites = [suite for suite in results.suites if suite.name in {each.name for each in SYSTEMS}]
    level = 64 if 64 in suites[0].levels else suites[0].levels[-1]

    def cell(suite: Suite, contender: Contender) -> str:
        figures = results.summary(suite.name, contender.name, level).figures
        return " + ".join(ABSENT if (part := figures[name]) is None else number(part.median) for name in CPU)

    header = [f"replies, {level} in flight", *(contender.label for contender in suites[0].contenders)]
    rows = [[suite.title.rpartition(" of ")[2], *(cell(suite, c) for c in suite.contenders)] for suite in suites]
    return f"Processor time of client + service + broker per answered call, µs:\n\n{markdown_table(header, rows)}"


def _loads(results: Results) -> str:
    names = {suite.name for suite in (LAYERS, OPEN, *LOSSES, BESIDE, FAN_IN, FLEETS)}
    rows = []
    for suite in results.suites:
        if suite.name not in names:
            continue
        for level in suite.levels:
            for contender in suite.contenders:
                summary = results.summary(suite.name, contender.name, level)
                retransmitted = summary.figures["retransmitted"]
                rows.append(
                    [
                        f"{suite.title}; {level:,} {LEVEL_NAMES[suite.mode]}",
                        contender.label,
                        _cell(summary, "p50_ms", "p99_ms", "p999_ms"),
                        ABSENT if summary.repeated is None else f"{summary.repeated:,}",
                        ABSENT if retransmitted is None else _percent(retransmitted.median),
                    ]
                )
    header = ["load", "system", "calls/s (p50 / p99 / p99.9 ms)", "executed twice", "sent again"]
    return f"Other loads:\n\n{markdown_table(header, rows)}"


def render_targets(found: Iterable[Found]) -> str:
    """Return the table of targets that were measured."""
    rows = [
        [
            one.ratio.text,
            f"{'≤' if one.ratio.bound == 'at most' else '≥'} {one.ratio.limit:g}",
            shown(one.spread),
            "reached" if one.met else "**missed**",
        ]
        for one in found
        if one.met is not None
    ]
    return f"Targets (ratios formed within a round):\n\n{markdown_table(['', 'target', 'measured', ''], rows)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and the picture. Return the exit code."""
    (run,), root = read_runs("benchmarks.suites.docs_page", __doc__, arguments)
    results = Results.from_dict(json.loads(run.read_text()))
    write_page(root / PAGE, render_figures(results))
    draw_systems(results, root / PICTURE)
    print(f"written: {root / PAGE}, {root / PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
