"""Builders of panels, one per panel type, with the options that all panels of the type share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.colours import GOOD
from dashboards.variables import METRICS, TAG

WIDTH = 24
"""Columns of Grafana's grid."""

Panel = timeseries.Panel | heatmap.Panel | statetimeline.Panel | stat.Panel
Links = Iterable[build.DashboardLink]


def query(expr: str, legend: str = "", *, exemplars: bool = False, instant: bool = False) -> prometheus.Dataquery:
    """Build one query of a panel.

    Args:
        expr: PromQL.
        legend: name of a series, with placeholders ``{{label}}``.
        exemplars: also show single calls, with links to their traces.
        instant: query the current value only.
    """
    made = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(METRICS)
    if exemplars:
        made.exemplar(True)
    return made.instant() if instant else made.range()


def line_panel(
    title: str,
    description: str,
    unit: str,
    *queries: prometheus.Dataquery,
    links: Links = (),
    stacked: bool = False,
    bars: bool = False,
    colours: Mapping[str, str] | None = None,
    thresholds: Mapping[float, str] | None = None,
    maximum: float | None = None,
) -> timeseries.Panel:
    """Build a time series panel.

    Args:
        stacked: stack the series.
        bars: draw bars, one per interval.
        colours: colours of series with a meaning, by name; or by a regular expression between slashes, with shades of the
            colour for the matching series. Other series are coloured by name, the same in every panel.
        thresholds: horizontal lines: value to colour.
        maximum: upper end of the axis.
    """
    made = _common(timeseries.Panel(), title, description, unit, queries, links)
    made.color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    for name, colour in (colours or {}).items():
        shades = name.startswith("/")
        value = {"mode": "shades" if shades else "fixed", "fixedColor": colour}
        override = made.override_by_regexp if shades else made.override_by_name
        override(name, [model.DynamicConfigValue("color", value)])
    made.min(0).line_width(1).show_points(looks.VisibilityMode.NEVER).fill_opacity(60 if stacked or bars else 8)
    made.legend(
        common.VizLegendOptions()
        .display_mode(looks.LegendDisplayMode.TABLE)
        .placement(looks.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    made.tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    if stacked:
        made.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A"))
    if bars:
        made.draw_style(looks.GraphDrawStyle.BARS).interval(
            "1m"
        )  # events near a boundary would count in two bars of shorter intervals
    if maximum is not None:
        made.max(maximum)
    if thresholds is not None:
        made.thresholds(_steps("transparent", thresholds))
        made.thresholds_style(common.GraphThresholdsStyleConfig().mode(looks.GraphTresholdsStyleMode.DASHED))
    return made


def stat_panel(
    title: str,
    description: str,
    unit: str,
    asked: prometheus.Dataquery,
    *,
    colours: Mapping[float, str] | None = None,
    links: Links = (),
    base: str = GOOD,
) -> stat.Panel:
    """Build a panel with one number, the value at the end of the time range.

    Args:
        colours: colours from these values on; below them, ``base``.
    """
    made = _common(stat.Panel(), title, description, unit, (asked,), links).height(4).span(4)
    made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    made.graph_mode(looks.BigValueGraphMode.AREA).color_mode(looks.BigValueColorMode.VALUE)
    return made.thresholds(_steps(base, colours or {}))


def heatmap_panel(
    title: str, description: str, unit: str, asked: prometheus.Dataquery, *, links: Links = ()
) -> heatmap.Panel:
    """Build a histogram over time, with exemplars of single calls as points."""
    asked.format(PromQueryFormat.HEATMAP)
    made = _common(heatmap.Panel(), title, description, unit, (asked,), links)
    made.calculate(False).cell_gap(1).show_tooltip().show_legend().exemplars_color("rgba(255,0,255,0.8)")
    made.filter_values(heatmap.FilterValueRange().le(1e-9))  # hides empty cells
    made.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(looks.AxisPlacement.LEFT))
    return made.color(
        heatmap.HeatmapColorOptions()
        .mode(heat.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .scale(heat.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .fill("dark-orange")
        .steps(64)
    )


def state_timeline_panel(
    title: str,
    description: str,
    unit: str,
    asked: prometheus.Dataquery,
    colours: Mapping[str, str],
    *,
    links: Links = (),
) -> statetimeline.Panel:
    """Build a state timeline: one row per state, drawn while the count of the state is not 0, labelled with the count.

    Args:
        colours: by state.
    """
    made = _common(statetimeline.Panel(), title, description, unit, (asked,), links)
    made.show_value(looks.VisibilityMode.AUTO).row_height(0.85).merge_values(True).fill_opacity(80).line_width(0)
    made.legend(common.VizLegendOptions().show_legend(False).display_mode(looks.LegendDisplayMode.HIDDEN))
    nothing = model.ValueMap({"0": model.ValueMappingResult(text=" ", color="transparent", index=0)})
    for state, colour in colours.items():
        some = model.RangeMap(
            model.DashboardRangeMapOptions(from_val=1, result=model.ValueMappingResult(color=colour, index=1))
        )
        made.override_by_name(state, [model.DynamicConfigValue("mappings", [nothing, some])])
    return made


def _common(made: Any, title: str, description: str, unit: str, queries: Iterable[Any], links: Links) -> Any:
    made.title(title).description(description).unit(unit).datasource(METRICS).height(8).span(8)
    for letter, asked in zip(ascii_uppercase, queries, strict=False):
        made.with_target(asked.ref_id(letter))
    there = list(links)
    return made.data_links(there) if there else made


def _steps(base: str, colours: Mapping[float, str]) -> build.ThresholdsConfig:
    steps = [model.Threshold(None, base), *(model.Threshold(value, colour) for value, colour in colours.items())]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def assemble_dashboard(
    uid: str,
    title: str,
    description: str,
    variables: Iterable[Any],
    links: Links,
    rows: Mapping[str, Iterable[Panel]],
) -> build.Dashboard:
    """Build a dashboard from rows of panels, placed in order."""
    made = (
        build.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .links(list(links))
        .variables(list(variables))
    )
    numbers = iter(range(1, 1_000))
    for name, panels in rows.items():
        made.with_row(build.Row(name).id(next(numbers)))
        for panel in panels:
            made.with_panel(panel.id(next(numbers)))
    return made
