"""Plots: for each suite, latency and throughput over calls in flight, with losses beside the points; for delivery
suites, losses and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.plan import DELIVERY, Suite
from benchmarks.harness.results import Results

# The colour-blind safe palette of Okabe and Ito; markers distinguish the contenders without colours.
COLOURS = {
    "dispatch": "#0072B2",
    "non-persistent": "#0072B2",
    "trustgraph": "#D55E00",
    "bare": "#444444",
    "bare-asyncio": "#E69F00",
    "persistent": "#CC79A7",
    "without-credit": "#56B4E9",
    "unguarded": "#444444",
    "silent": "#444444",
    "metrics": "#009E73",
    "sampled": "#0072B2",
    "defaults": "#009E73",
}
MARKERS = {
    "dispatch": "o",
    "non-persistent": "o",
    "trustgraph": "s",
    "bare": "^",
    "bare-asyncio": "v",
    "persistent": "D",
    "without-credit": "v",
    "unguarded": "^",
    "silent": "^",
    "metrics": "D",
    "sampled": "o",
    "defaults": "D",
}
LOST = "lost"
PANELS = (("p50_ms", "p50 latency, ms"), ("calls_per_second", "calls per second"))
DELIVERY_PANELS = ((LOST, "calls without an answer, %"), ("calls_per_second", "calls per second"))


def draw(results: Results, path: Path) -> None:
    """Write the plot of ``results`` as PNG: latency and throughput of all suites except delivery.

    Raises:
        OSError: it cannot be written there.
    """
    _draw(results, [suite for suite in results.suites if suite not in DELIVERY], PANELS, path)


def draw_delivery(results: Results, path: Path) -> None:
    """Write the plot of losses and throughput by reply size.

    Raises:
        OSError: it cannot be written there.
    """
    _draw(results, [suite for suite in results.suites if suite in DELIVERY], DELIVERY_PANELS, path)


def _draw(results: Results, suites: Sequence[Suite], columns: Sequence[tuple[str, str]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        len(suites), len(columns), figsize=(11, 3.6 * len(suites) + 0.9), squeeze=False, layout="constrained"
    )
    try:
        for suite, panels in zip(suites, grid, strict=True):
            for axes, (figure_name, label) in zip(panels, columns, strict=True):
                if figure_name == LOST:
                    _lost_panel(axes, suite, results)
                else:
                    _panel(axes, suite, results, figure_name, losses=suite not in DELIVERY)
                axes.set_ylabel(label)
            panels[0].set_title(suite.title, loc="left", fontsize=10, fontweight="bold")
            panels[0].legend(fontsize=8, framealpha=0.9)
        setting = results.setting
        rounds = sorted({suite.rounds_of(results.settings) for suite in suites})
        answers = sorted({suite.answer for suite in suites})
        figure.suptitle(
            f"dispatch {setting.versions['dispatch']} · Pulsar {setting.broker['version']} · pulsar-client "
            f"{setting.versions['pulsar-client']} · {setting.machine['processors']} processors · {setting.date[:10]}\n"
            f"median of {' or '.join(map(str, rounds))} round(s), bars from least to greatest"
            + (f"; replies of {answers[0]} characters" if len(answers) == 1 else ""),
            fontsize=9,
        )
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def _lost_panel(axes: Any, suite: Suite, results: Results) -> None:
    for contender in suite.contenders:
        summaries = [results.summary(suite.name, contender.name, level) for level in suite.levels]
        measured = [(summary.in_flight, 100 * summary.lost / summary.calls) for summary in summaries if summary.calls]
        axes.plot(
            [level for level, _ in measured],
            [share for _, share in measured],
            label=contender.label,
            color=COLOURS[contender.name],
            marker=MARKERS[contender.name],
            markersize=5,
            linewidth=1.6,
        )
    _levels(axes, suite)
    axes.set_yscale("symlog", linthresh=0.01)  # shows zero and one in ten thousand
    axes.set_ylim(-0.002, 100)
    axes.set_yticks([0, 0.01, 0.1, 1, 10, 100], ["0", "0.01", "0.1", "1", "10", "100"])


def _levels(axes: Any, suite: Suite) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(suite.levels, [str(level) for level in suite.levels])
    axes.set_xlabel("calls in flight")
    axes.grid(visible=True, which="both", alpha=0.25, linewidth=0.6)
    axes.set_xlim(suite.levels[0] / 1.4, suite.levels[-1] * 1.9)  # space for the labels beside the last points


def _panel(axes: Any, suite: Suite, results: Results, figure_name: str, *, losses: bool) -> None:
    axes.set_yscale("log")
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
            if summary.lost and losses:
                axes.annotate(
                    f"{summary.lost:,} lost",
                    (level, spread.median),
                    textcoords="offset points",
                    xytext=(4, -11),
                    fontsize=7,
                    color="#B00020",
                )
        axes.errorbar(
            levels,
            medians,
            yerr=(below, above),
            label=contender.label,
            color=COLOURS[contender.name],
            marker=MARKERS[contender.name],
            markersize=5,
            capsize=3,
            linewidth=1.6,
        )
    _levels(axes, suite)
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.10g}")
    axes.yaxis.set_minor_formatter("")  # a scale of less than a decade adds powers of ten otherwise
    if ends:
        axes.set_ylim(min(ends) / 1.5, max(ends) * 1.5)
