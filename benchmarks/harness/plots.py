"""Plots: of each suite, latency and throughput over its levels with losses beside the points; of the systems, throughput and
latency by size of the replies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.plan import LEVEL_NAMES, Suite
from benchmarks.harness.programs import picture
from benchmarks.harness.results import Results
from benchmarks.suites.definitions import SYSTEMS

# The colour-blind safe palette of Okabe and Ito; markers distinguish the contenders without colours.
COLOURS = {
    "dispatch": "#0072B2",
    "before": "#56B4E9",
    "non-persistent": "#0072B2",
    "session": "#009E73",
    "trustgraph": "#D55E00",
    "bare": "#444444",
    "bare-asyncio": "#E69F00",
    "persistent": "#CC79A7",
    "unguarded": "#444444",
    "silent": "#444444",
    "metrics": "#009E73",
    "sampled": "#0072B2",
    "defaults": "#009E73",
    "trustgraph-client": "#882255",
    "trustgraph-service": "#999933",
    "nats": "#009E73",
    "grpc": "#CC79A7",
    "fastmcp": "#E69F00",
    "mcp": "#F0E442",
    "taskiq": "#8C510A",
    "dispatch-mcp": "#56B4E9",
    "fastmcp-proxy": "#882255",
    "mcp-proxy": "#999933",
    "contextforge": "#332288",
}
MARKERS = {
    "dispatch": "o",
    "before": "v",
    "non-persistent": "o",
    "session": "D",
    "trustgraph": "s",
    "bare": "^",
    "bare-asyncio": "v",
    "persistent": "D",
    "unguarded": "^",
    "silent": "^",
    "metrics": "D",
    "sampled": "o",
    "defaults": "D",
    "trustgraph-client": "<",
    "trustgraph-service": ">",
    "nats": "D",
    "grpc": "v",
    "fastmcp": "P",
    "mcp": "X",
    "taskiq": "*",
    "dispatch-mcp": "h",
    "fastmcp-proxy": "s",
    "mcp-proxy": ">",
    "contextforge": "P",
}
LINES = {"1x1": "-", "2x1": "--", "1x2": ":", "2x2": "-.", "1x4": (0, (1, 3))}
"""Of contenders that differ in the number of their processes."""
PANELS = (
    ("calls_per_second", "calls per second"),
    ("p50_ms", "p50 latency, ms"),
    ("p999_ms", "p99.9 latency, ms"),
)


def draw(results: Results, path: Path) -> None:
    """Write the plot of ``results`` as PNG: a row for each suite except the systems; throughput, p50 and p99.9.

    Raises:
        OSError: it cannot be written there.
    """
    suites = [suite for suite in results.suites if suite.name not in _system_names()]
    size = (15, 3.4 * len(suites) + 0.9)
    with _grid(results, suites, path, len(suites), len(PANELS), size, "none") as grid:
        for suite, row in zip(suites, grid, strict=True):
            for axes, (name, label) in zip(row, PANELS, strict=True):
                if len(suite.levels) > 1:
                    _limit(axes, _panel(axes, suite, results, name))
                    axes.set_ylabel(label)
                else:
                    _bars(axes, suite, results, name)
                    axes.set_xlabel(label)
            row[0].set_title(suite.title, loc="left", fontsize=10, fontweight="bold")
            if len(suite.levels) > 1:
                row[0].legend(fontsize=8, framealpha=0.9)


def draw_systems(results: Results, path: Path) -> None:
    """Write the plot of the systems as PNG: a column for each size of the replies; throughput, p50 and p99.9.

    Raises:
        OSError: it cannot be written there.
    """
    draw_by_size(results, path, [suite for suite in results.suites if suite.name in _system_names()])


def draw_by_size(results: Results, path: Path, suites: Sequence[Suite]) -> None:
    """Write such a plot of any suites that differ in the size of the replies."""
    size = (4.2 * len(suites) + 0.6, 3.1 * len(PANELS) + 0.9)
    with _grid(results, suites, path, len(PANELS), len(suites), size, "row") as grid:
        for row, (name, label) in zip(grid, PANELS, strict=True):
            ends = [_panel(axes, suite, results, name) for axes, suite in zip(row, suites, strict=True)]
            _limit(row[0], [value for values in ends for value in values])
            row[0].set_ylabel(label)
        for axes, suite in zip(grid[0], suites, strict=True):
            axes.set_title(suite.title.rpartition(", ")[2], loc="left", fontsize=10, fontweight="bold")
        lines, names = grid[0][0].get_legend_handles_labels()
        grid[0][0].figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 4), fontsize=9)


def _system_names() -> set[str]:
    return {suite.name for suite in SYSTEMS}


@contextlib.contextmanager
def _grid(
    results: Results,
    suites: Sequence[Suite],
    path: Path,
    rows: int,
    columns: int,
    size: tuple[float, float],
    sharey: str,
) -> Iterator[Any]:
    """Provide a grid of axes, with the setting of the run as its title, and write it as PNG."""
    setting = results.setting
    rounds = sorted({suite.rounds_of(results.settings) for suite in suites})
    answers = sorted({suite.answer for suite in suites})
    with picture(path, rows, columns, size=size, dpi=110, sharey=sharey) as (figure, grid):
        figure.suptitle(
            f"dispatch {setting.versions['dispatch']} · Pulsar {setting.broker['version']} · pulsar-client "
            f"{setting.versions['pulsar-client']} · {setting.machine['processors']} processors · {setting.date[:10]}\n"
            f"median of {' or '.join(map(str, rounds))} round(s), bars from least to greatest"
            + (f"; replies of {answers[0]} characters" if len(answers) == 1 else ""),
            fontsize=9,
        )
        yield grid


def style_of(contender: str) -> dict[str, Any]:
    """Return colour, marker and line of a contender; ``dispatch-2x1`` is drawn as ``dispatch`` with another line."""
    name, _, shape = contender.partition("-") if contender not in COLOURS else (contender, "", "")
    return {
        "color": COLOURS[name],
        "marker": MARKERS[name],
        "linestyle": LINES.get(shape, "-"),
        "markersize": 5,
        "linewidth": 1.6,
    }


def _levels(axes: Any, suite: Suite) -> None:
    axes.set_xlim(suite.levels[0] / 1.4, suite.levels[-1] * 1.9)  # space for the labels beside the last points
    axes.set_xscale("log", base=2)
    axes.set_xticks(suite.levels, [f"{level:,}" for level in suite.levels])
    axes.set_xticks([], minor=True)
    name = LEVEL_NAMES[suite.mode]
    axes.set_xlabel(f"calls {name}" if suite.mode == "closed" else name)
    axes.grid(visible=True, which="both", alpha=0.25, linewidth=0.6)


def _bars(axes: Any, suite: Suite, results: Results, figure_name: str) -> None:
    """Draw the only level of a suite: a bar for each contender."""
    level = suite.levels[0]
    summaries = [results.summary(suite.name, contender.name, level) for contender in suite.contenders]
    for position, (contender, summary) in enumerate(zip(suite.contenders, summaries, strict=True)):
        spread = summary.figures[figure_name]
        if spread is None:
            continue
        error = [[spread.median - spread.min], [spread.max - spread.median]]
        color = style_of(contender.name)["color"]
        axes.barh(position, spread.median, xerr=error, color=color, height=0.6, alpha=0.8, capsize=3)
        if summary.lost:
            axes.annotate(f"{summary.lost:,} lost", (0, position), (4, 0), textcoords="offset points", fontsize=7)
    axes.set_yticks(range(len(suite.contenders)), [contender.label for contender in suite.contenders], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(visible=True, axis="x", alpha=0.25, linewidth=0.6)


def _panel(axes: Any, suite: Suite, results: Results, figure_name: str) -> list[float]:
    """Draw a figure over the levels of a suite, and return the values that must be within the limits."""
    _levels(axes, suite)
    axes.set_ylim(1, 10)
    axes.set_yscale("log")
    axes.autoscale(enable=False)  # it warns of a row that shares its scale and has one value in all cells
    ends: list[float] = []
    for contender in suite.contenders:
        levels, medians, below, above = [], [], [], []
        for level in suite.levels:
            summary = results.summary(suite.name, contender.name, level)
            spread = summary.figures[figure_name]
            if spread is None or spread.median <= 0:
                continue
            levels.append(level)
            medians.append(spread.median)
            below.append(spread.median - spread.min)
            above.append(spread.max - spread.median)
            ends += [max(spread.min, spread.median / 10), spread.max]
            if summary.lost:
                axes.annotate(
                    f"{summary.lost:,} lost",
                    (level, spread.median),
                    textcoords="offset points",
                    xytext=(4, -11),
                    fontsize=7,
                    color="#B00020",
                )
        axes.errorbar(
            levels, medians, yerr=(below, above), label=contender.label, capsize=3, **style_of(contender.name)
        )
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.10g}")
    axes.yaxis.set_minor_formatter("")  # a scale of less than a decade adds powers of ten otherwise
    return ends


def _limit(axes: Any, ends: Sequence[float]) -> None:
    if ends:
        axes.set_ylim(min(ends) / 1.5, max(ends) * 1.5)
