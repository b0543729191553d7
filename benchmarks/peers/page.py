"""The page of a run: ``python -m benchmarks.peers.page benchmarks/results/peers-DATE.json``.

It replaces the generated part of ``docs/explanation/peers.md``, draws ``docs/images/peers.png``, and records the medians
that other pages quote in ``benchmarks/peers/recorded.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.plan import LEVELS, Suite
from benchmarks.harness.plots import draw_by_size
from benchmarks.harness.programs import read_runs, write_page
from benchmarks.harness.report import markdown_table, number
from benchmarks.harness.results import Results
from benchmarks.peers.suites import OFFERS, TARGETS
from benchmarks.suites.docs_page import render_setting, render_targets
from benchmarks.suites.target_ratios import find

PAGE = Path("docs/explanation/peers.md")
PICTURE = Path("docs/images/peers.png")
RECORDED = Path("benchmarks/peers/recorded.json")
LEVEL = 64
"""The level of which processor time is shown."""
NOT_DRAWN = ("unguarded",)


def render(results: Results) -> str:
    """Return the Markdown of a run."""
    tables = "\n\n".join(_table(suite, results) for suite in results.suites)
    targets = render_targets([find(ratio, results) for ratio in TARGETS])
    return f"{render_setting(results)}\n\n{_offers(results)}\n\n{tables}\n\n{targets}"


def _offers(results: Results) -> str:
    contenders = {each.name: each for suite in results.suites for each in suite.contenders}.values()
    rows = [[contender.label, OFFERS[contender.name]] for contender in contenders]
    return (
        f"What each does beside the exchange of a request and a reply:\n\n{markdown_table(['system', 'offers'], rows)}"
    )


def _table(suite: Suite, results: Results) -> str:
    rows = []
    level = LEVEL if LEVEL in suite.levels else suite.levels[-1]
    for contender in suite.contenders:
        summaries = [results.summary(suite.name, contender.name, level) for level in suite.levels]
        cells = []
        for each in summaries:
            rate, p50 = each.figures["calls_per_second"], each.figures["p50_ms"]
            lost = f"; {100 * each.lost / each.calls:.2g} % lost" if each.lost else ""
            times = "no reply" if p50 is None else number(p50.median)
            cells.append("-" if rate is None else f"{number(rate.median)} ({times}{lost})")
        figures = results.summary(suite.name, contender.name, level).figures
        parts = (figures[f"{role}cpu_us_per_call"] for role in ("", "service_", "broker_"))
        cells.append(" + ".join("-" if part is None else number(part.median) for part in parts))
        rows.append([contender.label, *cells])
    header = ["system", *(f"{level:,} in flight" for level in suite.levels), f"CPU at {level}"]
    return (
        f"{suite.title}: calls per second (p50 in ms; share of the calls without a reply in 2 s), and processor time of "
        f"client + service + broker or server per call in µs:\n\n{markdown_table(header, rows)}"
    )


def medians(results: Results) -> dict[str, Any]:
    """Return the medians that other pages quote: by suite, contender and level."""
    others = results.other_processors
    found: dict[str, Any] = {
        "date": results.setting.date[:10],
        "other_processors": None if others is None else others.median,
    }
    for each in results.summaries():
        figures = {name: each.figures[name] for name in ("calls_per_second", "p50_ms", "cpu_us_per_call")}
        cell = {name: None if value is None else round(value.median, 3) for name, value in figures.items()}
        found.setdefault(each.suite, {}).setdefault(each.contender, {})[str(each.level)] = cell
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, the picture and the record. Return the exit code."""
    (run,), root = read_runs("benchmarks.peers.page", __doc__, arguments)
    results = Results.from_dict(json.loads(run.read_text()))
    write_page(root / PAGE, render(results))
    drawn = [
        replace(each, contenders=tuple(one for one in each.contenders if one.name not in NOT_DRAWN))
        for each in results.suites
        if each.levels == LEVELS
    ]
    draw_by_size(results, root / PICTURE, drawn)
    (root / RECORDED).write_text(json.dumps(medians(results), indent=1) + "\n")
    print(f"written: {root / PAGE}, {root / PICTURE}, {root / RECORDED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
