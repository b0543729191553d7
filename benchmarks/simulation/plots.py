"""One plot for each scenario: answers, latency and load on the service over time, with a summary in its title."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.simulation.record import BIN_S, Record
from benchmarks.simulation.scenarios import Scenario, find
from benchmarks.simulation.targets import trouble

# The colour-blind safe palette of Okabe and Ito; line styles distinguish the contenders without colours.
COLOURS = {"unguarded": "#444444", "naive": "#D55E00", "ours": "#0072B2", "ours-defaults": "#56B4E9"}
STYLES = {"unguarded": (0, (4, 2)), "naive": (0, (1, 1)), "ours": "solid", "ours-defaults": (0, (6, 1, 1, 1))}
WIDTHS = {"unguarded": 1.3, "naive": 1.6, "ours": 2.0, "ours-defaults": 1.4}
LABELS = {
    "unguarded": "unguarded",
    "naive": "naive guards",
    "ours": "dispatch",
    "ours-defaults": "dispatch, default open and ejection times",
}
STEP_S = 1.0


def draw(records: Sequence[Record], path: Path) -> None:
    """Write the figure of one scenario, played by several contenders, as PNG.

    Raises:
        OSError: it cannot be written there.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    scenario = find(records[0].scenario)
    figure, panels = pyplot.subplots(3, 1, figsize=(9, 8.2), sharex=True, layout="constrained")
    try:
        for record in records:
            _lines(panels, record)
        _frame(panels, scenario, records)
        figure.suptitle(f"{scenario.name}: {scenario.title}\n{seen(records)}", fontsize=10)
        drawn = BytesIO()
        figure.savefig(drawn, dpi=80)
        # A palette of 64 colours: a quarter of the size without a visible difference.
        Image.open(drawn).convert("RGB").quantize(64).save(path, "PNG", optimize=True)
    finally:
        pyplot.close(figure)


def seen(records: Sequence[Record]) -> str:
    """Summarize the plot: share of answered calls and requests per call during the failure."""
    parts = []
    for record in records:
        since, until = trouble(record)
        parts.append(
            f"{record.contender} {100 * record.success(since, until):.3g} % ({record.amplification(since, until):.2f})"
        )
    return "answered during the trouble (requests sent for each call):\n" + ", ".join(parts)


def _lines(panels: Any, record: Record) -> None:
    name = record.contender
    look = {"color": COLOURS[name], "linestyle": STYLES[name], "linewidth": WIDTHS[name]}
    starts = [STEP_S * step for step in range(int(record.seconds / STEP_S))]
    middles = [since + STEP_S / 2 for since in starts]
    answers, latency, load = panels
    answers.plot(middles, [record.answered(s, s + STEP_S) / STEP_S for s in starts], label=LABELS[name], **look)
    for share, alpha in ((0.99, 1.0), (0.5, 0.45)):
        found = [record.latency(share, s, s + STEP_S) for s in starts]
        latency.plot(middles, [None if each is None else 1000 * each for each in found], alpha=alpha, **look)
    # Finer steps: a herd lasts for less than a second.
    step = BIN_S if find(record.scenario).in_step else STEP_S
    fine = [step * number for number in range(int(record.seconds / step))]
    load.plot([s + step / 2 for s in fine], [record.load(s, s + step) / step for s in fine], **look)


def _frame(panels: Any, scenario: Scenario, records: Sequence[Record]) -> None:
    from matplotlib.ticker import LogLocator

    answers, latency, load = panels
    since, until = scenario.trouble
    for axes in panels:
        axes.axvspan(since, until, color="#F0E442", alpha=0.18, linewidth=0)
        axes.grid(visible=True, alpha=0.25, linewidth=0.6)
        axes.set_xlim(0, scenario.seconds)
    starts = [STEP_S * step for step in range(int(scenario.seconds / STEP_S))]
    offered = [records[0].offered(s, s + STEP_S) / STEP_S for s in starts]
    middles = [s + STEP_S / 2 for s in starts]
    most = max(record.answered(s, s + STEP_S) / STEP_S for record in records for s in starts)
    answers.plot(middles, offered, color="#999999", linewidth=0.8, label="calls made", zorder=0)
    load.plot(middles, offered, color="#999999", linewidth=0.8, zorder=0)
    answers.set_ylim(0, 1.4 * most)  # the offered load may be many times the capacity
    answers.set_ylabel("answers a second")
    answers.set_title("Answers", loc="left", fontsize=9)
    answers.legend(fontsize=8, ncols=3, loc="upper right", framealpha=0.9)
    latency.set_yscale("log")
    latency.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    latency.yaxis.set_major_formatter(lambda value, _position: f"{value:,.10g}")
    latency.yaxis.set_minor_formatter("")
    latency.set_ylabel("milliseconds")
    latency.set_title("How long answers took: p99, and p50 in pale", loc="left", fontsize=9)
    load.set_ylabel("requests a second")
    load.set_ylim(bottom=0)
    load.set_title("Requests that reached the service", loc="left", fontsize=9)
    load.set_xlabel("seconds; shaded: the trouble")
