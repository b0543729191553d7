"""The picture: for each suite, latency and throughput over calls in flight, with losses written beside the points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.plan import Suite
from benchmarks.results import Results

# Told apart by people who see colours differently too (Okabe and Ito), and by the markers without any.
COLOURS = {
    "dispatch": "#0072B2",
    "non-persistent": "#0072B2",
    "trustgraph": "#D55E00",
    "bare": "#444444",
    "bare-asyncio": "#E69F00",
    "persistent": "#CC79A7",
}
MARKERS = {
    "dispatch": "o",
    "non-persistent": "o",
    "trustgraph": "s",
    "bare": "^",
    "bare-asyncio": "v",
    "persistent": "D",
}
PANELS = (("p50_ms", "p50 latency, ms"), ("calls_per_second", "calls per second"))


def draw(results: Results, path: Path) -> None:
    """Write the picture of ``results`` as PNG.

    Raises:
        OSError: it cannot be written there.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = len(results.suites)
    figure, grid = pyplot.subplots(rows, 2, figsize=(11, 3.6 * rows + 0.9), squeeze=False)
    try:
        for suite, panels in zip(results.suites, grid, strict=True):
            for axes, (figure_name, label) in zip(panels, PANELS, strict=True):
                _panel(axes, suite, results, figure_name)
                axes.set_ylabel(label)
            panels[0].set_title(suite.title, loc="left", fontsize=10, fontweight="bold")
            panels[0].legend(fontsize=8, framealpha=0.9)
        setting = results.setting
        figure.suptitle(
            f"dispatch {setting.versions['dispatch']} · Pulsar {setting.broker['version']} · pulsar-client "
            f"{setting.versions['pulsar-client']} · {setting.machine['processors']} processors · {setting.date[:10]}\n"
            f"median of {results.settings.rounds} round(s), bars from least to greatest; answers of 120 characters",
            fontsize=9,
        )
        figure.tight_layout(rect=(0, 0, 1, 0.985))
        figure.savefig(path, dpi=130)
    finally:
        pyplot.close(figure)


def _panel(axes: Any, suite: Suite, results: Results, figure_name: str) -> None:
    axes.set_xscale("log", base=2)
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
    axes.set_xticks(suite.levels, [str(level) for level in suite.levels])
    axes.set_xlabel("calls in flight")
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,.10g}")
    axes.grid(visible=True, which="both", alpha=0.25, linewidth=0.6)
    axes.set_xlim(suite.levels[0] / 1.4, suite.levels[-1] * 1.9)  # room for what is written beside the last points
    if ends:
        axes.set_ylim(min(ends) / 1.5, max(ends) * 1.5)
