"""Dashboards drew success magenta and refusals green, a tool had another colour in each panel, and the legend left out
``_OTHER``. A colour has one meaning everywhere, a name one colour, and each series its entry in the legend."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from matplotlib.colors import to_hex

from dashboards.dashboard_json import Json, iter_panels, list_queries, load_dashboards
from dashboards.plots import PanelData, plot_dashboard
from dispatch.errors import Outcome
from dispatch.messaging.request import Disposition
from dispatch.messaging.wire import Refusal
from dispatch.resilience.breaker import State
from dispatch.telemetry.call_metrics import REJECTED_BY
from dispatch.telemetry.gauges import END_REASONS, REJECTIONS, RESULTS
from dispatch.telemetry.observers import REFUSED

DASHBOARDS = load_dashboards()
LINES = [
    pytest.param(panel, id=f"{uid}/{panel['title']}")
    for uid, dashboard in DASHBOARDS.items()
    for panel in iter_panels(dashboard)
    if panel["type"] == "timeseries"
]
OUTCOMES = {
    "success": "green",
    "tool_error": "orange",
    "invalid_arguments": "yellow",
    "timeout": "red",
    "transport": "dark-red",
    "rejected": "blue",
    "throttled": "light-blue",
    "refused": "dark-purple",
    "cancelled": "gray",
}
MEANINGS: dict[str, set[str]] = {
    "{{outcome}}": {*map(str, Outcome), REFUSED},
    "{{by}}": set(REJECTED_BY),
    "{{disposition}}": {str(each) for each in Disposition},
    "{{reason}}": {"first", "retry", "hedge"},
    "{{scope}}": {"tool", "user"},
    "{{to}}": {str(each) for each in State},
    "{{service}} {{state}}": {"up", "warming", "paused", "ejected"},
    "{{service}} {{disposition}}": {str(each) for each in Disposition},
    "{{service}} {{result}}": set(RESULTS),
    "{{service}} {{reason}}": {value for name, value in vars(Refusal).items() if name.isupper()},
    "{{source}} {{result}}": {"ok", "failed"},
    "{{role}} {{reason}}": set(END_REASONS),
    "{{role}}, {{reason}}": set(REJECTIONS),
}
"""The values of labels with a meaning, by the legends of the panels that show them."""
WITH_MEANING = [
    each for each in LINES if {query["legendFormat"] for query in list_queries(each.values[0])} & set(MEANINGS)
]
TOOLS = ["_OTHER", "appraise", "forecast", "look-up"]


def colours(panel: Json) -> dict[str, str]:
    found = {}
    for override in panel["fieldConfig"].get("overrides") or ():
        for each in override["properties"]:
            if each["id"] == "color":
                found[override["matcher"]["options"].strip("/").removesuffix("$").strip()] = each["value"]["fixedColor"]
    return found


def test_outcomes_have_the_same_colours_wherever_they_are_shown() -> None:
    shown = [
        panel for dashboard in DASHBOARDS.values() for panel in iter_panels(dashboard) if panel["title"] == "Outcomes"
    ]
    assert len(shown) == 2
    assert len(WITH_MEANING) == 15
    for panel in shown:
        assert colours(panel) == OUTCOMES


@pytest.mark.parametrize("panel", WITH_MEANING)
def test_every_value_with_a_meaning_has_a_colour(panel: Json) -> None:
    (legend,) = {query["legendFormat"] for query in list_queries(panel)}
    assert set(colours(panel)) == MEANINGS[legend]


@pytest.mark.parametrize("panel", LINES)
def test_what_has_no_meaning_is_coloured_by_name(panel: Json) -> None:
    assert panel["fieldConfig"]["defaults"]["color"]["mode"] == "palette-classic-by-name"


def test_a_word_has_one_colour_in_all_panels() -> None:
    found: dict[str, set[str]] = {}
    for dashboard in DASHBOARDS.values():
        for panel in iter_panels(dashboard):
            for name, colour in colours(panel).items():
                found.setdefault(name, set()).add(colour)
    assert {name: each for name, each in found.items() if len(each) > 1} == {}


def drawn(label: str, values: dict[str, float]) -> list[tuple[dict[str, Any], list[tuple[float, float]]]]:
    return [({label: name}, [(0.0, value), (1.0, value)]) for name, value in values.items()]


@cache
def overview() -> dict[str, dict[str, str]]:
    """The legend of each panel of lines: the colour of each name, as it is drawn."""
    dashboard = DASHBOARDS["dispatch-overview"]
    shown = {}
    for panel in iter_panels(dashboard):
        label = "outcome" if panel["title"] == "Outcomes" else "tool"
        names = list(OUTCOMES) if label == "outcome" else TOOLS[panel["id"] % 3 :]  # not all tools in every panel
        shown[panel["id"]] = PanelData([drawn(label, dict.fromkeys(names, 1.0)) for _ in list_queries(panel)])
    made = plot_dashboard(dashboard, shown, 0.0, 1.0)
    legends = {}
    for axes in made.axes:
        legend = axes.get_legend()
        if legend is not None:
            handles = [
                to_hex(each.get_facecolor() if hasattr(each, "get_facecolor") else each.get_color())
                for each in legend.legend_handles
            ]
            names = [text.get_text() for text in legend.get_texts()]
            legends[axes.get_title(loc="left")] = dict(zip(names, handles, strict=True))
    return legends


def test_drawn_panels_give_a_tool_one_colour_and_the_legend_every_series() -> None:
    legends = overview()
    assert set(legends["Outcomes"]) == set(OUTCOMES)
    by_tool: dict[str, set[str]] = {}
    for title in ("Calls by tool", "Failed calls by tool", "p95 duration by tool", "Rejections by tool"):
        for name, colour in legends[title].items():
            by_tool.setdefault(name, set()).add(colour)
    assert set(by_tool) == set(TOOLS)
    assert {len(each) for each in by_tool.values()} == {1}
    assert len(set.union(*by_tool.values())) == len(TOOLS)


def test_a_drawn_success_is_green_and_a_refusal_blue() -> None:
    outcomes = overview()["Outcomes"]

    def strongest(name: str) -> int:
        parts = [int(outcomes[name][at : at + 2], 16) for at in (1, 3, 5)]
        return parts.index(max(parts))

    assert (strongest("success"), strongest("timeout"), strongest("transport")) == (1, 0, 0)
    assert (strongest("rejected"), strongest("throttled")) == (2, 2)
