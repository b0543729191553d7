"""Plots of dashboards with matplotlib, from the same queries as Grafana: for the documentation's pictures."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dashboards.colours import HEX
from dashboards.dashboard_json import Json, iter_panels, list_queries
from dashboards.prometheus_api import Sample

mpl.use("Agg")

COLUMN_IN, LINE_IN = 0.78, 0.36
"""Size of a cell of Grafana's grid, in inches."""
DPI = 80
ABOVE, BELOW = 0.12, 0.28
"""Shares of a panel's height for its title and its legend."""
PALETTE = (
    *("#2aa6b8", "#8c6d46", "#b04ab5", "#6b8e23", "#4a4e8c", "#e58fb1", "#3f4a54"),
    *("#c9a46c", "#12766b", "#a3586d", "#7b68c8", "#a9c09a", "#5d2e46", "#83c5be"),
)
"""Colours by name of tools, instances and processes: none of the colours that have a meaning."""
LIGHTEN = 0.28
"""Share of white added to each further series of the same meaning."""

NamedSeries = Sequence[tuple[str, Sample]]
"""Series by name."""
Point = tuple[float, float]


class PanelData:
    """Data of one panel.

    Attributes:
        series: by query.
        exemplars: single calls, as (Unix time in seconds, duration in seconds).
        note: text appended to the title.
    """

    def __init__(self, series: Sequence[Sequence[Sample]], exemplars: Sequence[Point] = (), note: str = "") -> None:
        self.series = series
        self.exemplars = exemplars
        self.note = note

    @property
    def has_values(self) -> bool:
        """Return whether any value is not 0."""
        return any(value for series in self.series for _, values in series for _, value in values)

    def name_series(self, panel: Json) -> NamedSeries:
        """Name the series of a panel that are not constantly 0."""
        return [
            (_format_legend(query.get("legendFormat") or panel["title"], labels), (labels, values))
            for query, series in zip(list_queries(panel), self.series, strict=True)
            for labels, values in series
            if any(value for _, value in values)
        ]


def plot_dashboard(dashboard: Json, shown: Mapping[int, PanelData], start: float, end: float) -> Figure:
    """Plot a dashboard.

    Args:
        shown: data by panel id.
        start, end: time range, in Unix seconds.
    """
    everything = dashboard["panels"]
    plain = _assign_colours(dashboard, shown)
    height = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in everything)
    made = Figure(figsize=(24 * COLUMN_IN, height * LINE_IN + 0.6), dpi=DPI, facecolor="white")
    top = 1 - 0.6 / made.get_figheight()
    made.text(0.012, 1 - 0.3 / made.get_figheight(), dashboard["title"], fontsize=16, weight="bold", va="center")
    made.text(
        0.988, 1 - 0.3 / made.get_figheight(), "time in seconds", fontsize=9, va="center", ha="right", color="#555"
    )
    for panel in everything:
        at = panel["gridPos"]
        left, upper = at["x"] / 24, top * (1 - at["y"] / height)
        width, tall = at["w"] / 24, top * at["h"] / height
        if panel["type"] == "row":
            made.text(0.012, upper - tall / 2, panel["title"], fontsize=12, weight="bold", color="#555", va="center")
            continue
        axes = made.add_axes((left + 0.034, upper - tall * (1 - BELOW), width - 0.045, tall * (1 - ABOVE - BELOW)))
        what = shown[panel["id"]]
        title = panel["title"] + (f"  ({what.note})" if what.note else "")
        axes.set_title(title, loc="left", fontsize=10, weight="bold", pad=4)
        if panel["type"] == "timeseries":
            _plot_lines(axes, panel, what, plain, start, end)
        else:
            _PLOTS[panel["type"]](axes, panel, what, start, end)
    return made


def _assign_colours(dashboard: Json, shown: Mapping[int, PanelData]) -> dict[str, str]:
    """Assign a colour to each series without a meaning, the same in every panel."""
    names = {
        name
        for panel in iter_panels(dashboard)
        if panel["type"] == "timeseries"
        for name, _ in shown[panel["id"]].name_series(panel)
        if _find_override(panel, name) is None
    }
    return {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(sorted(names))}


def _find_override(panel: Json, name: str) -> tuple[str, str] | None:
    """Return the colour override that matches the series, and its colour name."""
    for override in panel["fieldConfig"].get("overrides") or ():
        matcher, (chosen, *_) = override["matcher"], override["properties"]
        wanted = matcher["options"]
        matches = re.search(wanted.strip("/"), name) if matcher["id"] == "byRegexp" else wanted == name
        if matches and chosen["id"] == "color":
            return wanted, chosen["value"]["fixedColor"]
    return None


def _series_colours(panel: Json, names: Sequence[str], plain: Mapping[str, str]) -> list[str]:
    """Return a colour per series: by meaning, lighter for each further series of that meaning; else by name."""
    found, seen = [], Counter[str]()
    for name in names:
        meaning = _find_override(panel, name)
        if meaning is None:
            found.append(plain[name])
            continue
        wanted, colour = meaning
        white = 1 - (1 - LIGHTEN) ** seen[wanted]
        seen[wanted] += 1
        found.append(to_hex([part + (1 - part) * white for part in to_rgb(HEX[colour])]))
    return found


def _plot_lines(axes: Axes, panel: Json, what: PanelData, plain: Mapping[str, str], start: float, end: float) -> None:
    custom = panel["fieldConfig"]["defaults"]["custom"]
    series = what.name_series(panel)
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    bars = custom.get("drawStyle") == "bars"
    moments = _evaluation_times(series, start, end)
    x = [at - start for at in moments]
    step = moments[1] - moments[0]
    below = [0.0] * len(moments)
    drawn: list[Any] = []
    colours = _series_colours(panel, [name for name, _ in series], plain)
    for colour, (_, (_, values)) in zip(colours, series, strict=True):
        known = {round(at, 3): value for at, value in values}
        if not stacked:
            drawn += axes.plot(x, [known.get(at, math.nan) for at in moments], color=colour, lw=1.4)
            continue
        heights = [known.get(at, 0.0) for at in moments]
        above = [low + y for low, y in zip(below, heights, strict=True)]
        if bars:
            drawn.append(axes.bar(x, heights, bottom=below, color=colour, width=-0.9 * step, align="edge"))
        else:
            drawn.append(axes.fill_between(x, below, above, color=colour, alpha=0.85, lw=0))
        below = above
    _plot_exemplars(axes, what, start)
    _format_axes(axes, panel, start, end)
    axes.set_ylim(bottom=0)
    for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ()):
        if step["value"] is not None and custom.get("thresholdsStyle"):
            axes.axhline(step["value"], color=HEX[step["color"]], ls="--", lw=1)
    if series:
        widest = max(len(name) for name, _ in series)
        columns = min(6, max(1, 13 * panel["gridPos"]["w"] // (widest + 6)))
        numbers = [str(number) for number in range(len(series))]
        legend = axes.legend(
            drawn, numbers, fontsize=7, loc="upper left", bbox_to_anchor=(-0.02, -0.09), ncols=columns, **_LEGEND
        )
        for text, (name, _) in zip(legend.get_texts(), series, strict=True):
            text.set_text(name)  # set after creation: matplotlib omits labels that begin with "_", such as _OTHER


_LEGEND: Mapping[str, Any] = {"frameon": False, "handlelength": 1, "columnspacing": 1, "handletextpad": 0.4}


def _evaluation_times(series: NamedSeries, start: float, end: float) -> list[float]:
    """Return the evaluation times; a series may lack samples at some of them."""
    there = sorted({at for _, (_, values) in series for at, _ in values})
    if len(there) < 2:
        return [start, end]
    step = min(after - before for before, after in pairwise(there))
    return [round(there[0] + number * step, 3) for number in range(round((there[-1] - there[0]) / step) + 1)]


def _plot_exemplars(axes: Axes, what: PanelData, start: float) -> None:
    if what.exemplars:
        x, y = [at - start for at, _ in what.exemplars], [value for _, value in what.exemplars]
        axes.scatter(x, y, s=9, marker="D", color="#111", alpha=0.55, lw=0, zorder=5)


def _plot_stat(axes: Axes, panel: Json, what: PanelData, start: float, end: float) -> None:
    axes.set_axis_off()
    values = [value for _, series in what.name_series(panel) for _, value in series[1]]
    ends = [series[1][-1][1] for each in what.series for series in each if series[1]]
    if not ends:
        return
    defaults = panel["fieldConfig"]["defaults"]
    colour = "green"
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or ends[-1] >= step["value"]:
            colour = step["color"]
    text = _format_value(ends[-1], defaults["unit"])
    for mapping in defaults.get("mappings", ()):
        found = mapping["options"].get(f"{ends[-1]:g}")
        if found is not None:
            text, colour = found["text"], found["color"]
    if len(values) > 1:
        line = axes.inset_axes((0.0, 0.0, 1.0, 0.38))
        line.set_axis_off()
        line.fill_between(range(len(values)), values, color=HEX[colour], alpha=0.2, lw=0)
    axes.text(0.5, 0.62, text, fontsize=20, ha="center", va="center", color=HEX[colour], weight="bold")


def _plot_heatmap(axes: Axes, panel: Json, what: PanelData, start: float, end: float) -> None:
    found = sorted(((float(labels["le"]), dict(values)) for labels, values in what.series[0]), key=lambda each: each[0])
    bounds = [bound for bound, _ in found if math.isfinite(bound)]
    moments = sorted({at for _, values in found for at in values})
    if not bounds or len(moments) < 2:
        return
    lower = dict.fromkeys(moments, 0.0)
    cells = []
    for bound, values in found:
        if math.isfinite(bound):
            cells.append([max(values.get(at, 0.0) - lower[at], 0.0) or math.nan for at in moments])
            lower = {at: values.get(at, 0.0) for at in moments}
    edges = [bounds[0] / 2.5, *bounds]
    step = moments[1] - moments[0]
    x = [at - start - step / 2 for at in moments] + [moments[-1] - start + step / 2]
    drawn = axes.pcolormesh(x, edges, cells, cmap="Oranges", vmin=0)
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.01, fraction=0.03)
    bar.ax.tick_params(labelsize=7)
    axes.set_yscale("log")
    _plot_exemplars(axes, what, start)
    _format_axes(axes, panel, start, end)
    used = [bound for bound, row in zip(bounds, cells, strict=True) if any(value == value for value in row)]
    axes.set_ylim(min(used) / 2.5, max(used) * 1.2)


def _plot_states(axes: Axes, panel: Json, what: PanelData, start: float, end: float) -> None:
    colours = {
        each["matcher"]["options"]: each["properties"][0]["value"][1]["options"]["result"]["color"]
        for each in panel["fieldConfig"]["overrides"]
    }
    values = {labels["state"]: dict(values) for labels, values in what.series[0]}
    moments = sorted({at for known in values.values() for at in known})
    step = min((after - before for before, after in pairwise(moments)), default=0.0)
    names = list(reversed(colours))
    for line, state in enumerate(names):
        there = [(at - start - step / 2, step) for at, value in values.get(state, {}).items() if value]
        axes.broken_barh(there, (line - 0.4, 0.8), color=HEX[colours[state]], lw=0)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlim(0, end - start)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(axis="x", alpha=0.3)


_PLOTS: Mapping[str, Callable[[Axes, Json, PanelData, float, float], None]] = {
    "stat": _plot_stat,
    "heatmap": _plot_heatmap,
    "state-timeline": _plot_states,
}


def _format_axes(axes: Axes, panel: Json, start: float, end: float) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.set_xlim(0, end - start)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _format_value(value, unit)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _format_value(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("decbytes", "Bps"):
        return _format_bytes(value) + ("/s" if unit == "Bps" else "")
    return f"{value:.3g}/s" if unit in ("reqps", "pps") else f"{value:.3g}"


def _format_bytes(value: float) -> str:
    for prefix, factor in (("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}B"
    return f"{value:.3g} B"


def _format_legend(legend: str, labels: Mapping[str, Any]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: str(labels.get(found[1], "")), legend)
