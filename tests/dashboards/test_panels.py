"""What holds for every panel, and for the ways from one dashboard to another."""

from __future__ import annotations

import json
import re
from itertools import combinations
from urllib.parse import unquote

import pytest

from dashboards.dashboard_json import Json, find_variables, get_variables, iter_panels, list_queries, load_dashboards

DASHBOARDS = load_dashboards()
PANELS = [
    pytest.param(uid, panel, id=f"{uid}/{panel['title']}")
    for uid, dashboard in DASHBOARDS.items()
    for panel in iter_panels(dashboard)
]
EVERY = pytest.mark.parametrize("uid", DASHBOARDS)
GRAFANAS_OWN = {"__all", "__rate_interval", "__url_time_range", "__field", "__from", "__to"}


def test_addresses_that_people_keep_stay() -> None:
    assert list(DASHBOARDS) == ["dispatch-instances", "dispatch-overview", "dispatch-tool"]


@pytest.mark.parametrize(("uid", "panel"), PANELS)
def test_every_panel_says_what_it_shows_and_in_which_unit(uid: str, panel: Json) -> None:
    assert panel["title"]
    assert len(panel["description"]) > 20
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    asked = list_queries(panel)
    assert asked
    for query in asked:
        assert query["expr"]
        assert query["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({query["refId"] for query in asked}) == len(asked)
    names = [query.get("legendFormat") for query in asked]
    assert panel["type"] == "stat" or all(names), "Grafana would show the labels"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("uid", "panel"), PANELS)
def test_rates_are_over_the_interval_that_is_drawn(uid: str, panel: Json) -> None:
    windows = {window for query in list_queries(panel) for window in re.findall(r"\[([^]]+)\]", query["expr"])}
    if "burn" in panel["title"]:
        assert windows <= {"5m", "1h", "6h"}, "the windows of the alerts"
    else:
        assert windows <= {"$__rate_interval"}


@EVERY
def test_no_two_panels_stand_in_one_place(uid: str) -> None:
    everything = DASHBOARDS[uid]["panels"]
    for panel in everything:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
    for one, other in combinations(everything, 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (one["title"], other["title"])
    ids = [panel["id"] for panel in everything]
    assert len(set(ids)) == len(ids)


@EVERY
def test_no_row_has_a_hole(uid: str) -> None:
    everything = [panel["gridPos"] for panel in DASHBOARDS[uid]["panels"]]
    covered = sum(at["w"] * at["h"] for at in everything)
    assert covered == 24 * max(at["y"] + at["h"] for at in everything)


@EVERY
def test_data_sources_are_picked_and_never_named(uid: str) -> None:
    text = json.dumps(DASHBOARDS[uid])
    assert set(re.findall(r'"uid": "([^"]*)"', text)) <= {uid, "${datasource}"}
    kinds = {
        name: each["query"] for name, each in get_variables(DASHBOARDS[uid]).items() if each["type"] == "datasource"
    }
    assert kinds == {"datasource": "prometheus"} | ({"traces": "tempo"} if uid == "dispatch-tool" else {})


@EVERY
def test_variables_are_there_and_each_is_of_use(uid: str) -> None:
    dashboard = DASHBOARDS[uid]
    known = get_variables(dashboard)
    asked = find_variables(json.dumps(dashboard)) - GRAFANAS_OWN
    assert asked == set(known)
    asked_of = {name: find_variables(str(each["query"])) for name, each in known.items()}
    assert asked_of["dispatcher"] == {"job"}, "each narrows those after it"
    order = list(known)
    for name, before in asked_of.items():
        assert all(order.index(each) < order.index(name) for each in before)
        assert known[name]["label"]
        assert known[name]["description"]


def test_one_tool_or_all_of_them() -> None:
    assert get_variables(DASHBOARDS["dispatch-overview"])["tool"]["includeAll"]
    assert not get_variables(DASHBOARDS["dispatch-tool"])["tool"].get("includeAll")
    assert get_variables(DASHBOARDS["dispatch-instances"])["service"]["includeAll"]


def _links(dashboard: Json) -> set[str]:
    found = {link["url"] for link in dashboard["links"]}
    for panel in iter_panels(dashboard):
        found |= {link["url"] for link in panel["fieldConfig"]["defaults"].get("links", ())}
    return found


@EVERY
def test_links_lead_to_a_dashboard_and_set_variables_that_it_has(uid: str) -> None:
    for url in _links(DASHBOARDS[uid]):
        if url.startswith("/explore"):
            continue
        found = re.fullmatch(r"/d/([\w-]+)/\1\?(.*)", url)
        assert found is not None, url
        target = get_variables(DASHBOARDS[found[1]])
        assert "${__url_time_range}" in found[2]
        for name in re.findall(r"\$\{(\w+):queryparam\}|var-(\w+)=", found[2]):
            assert (name[0] or name[1]) in target


def test_ways_from_the_overview_by_tool_to_the_instances() -> None:
    def leads(start: str, to: str) -> bool:
        return any(
            f"/d/{to}/" in link["url"]
            for panel in iter_panels(DASHBOARDS[start])
            for link in panel["fieldConfig"]["defaults"].get("links", ())
        )

    assert leads("dispatch-overview", "dispatch-tool")
    assert leads("dispatch-tool", "dispatch-instances")


def test_durations_have_exemplars_and_a_way_to_traces() -> None:
    shown = {panel["title"]: panel for panel in iter_panels(DASHBOARDS["dispatch-tool"])}
    for title in ("Call durations", "Duration quantiles", "Time to first chunk"):
        assert any(query.get("exemplar") for query in list_queries(shown[title]))
        (link,) = shown[title]["fieldConfig"]["defaults"]["links"]
        panes = json.loads(unquote(link["url"].partition("panes=")[2]))
        (query,) = panes["t"]["queries"]
        assert query["query"] == '{name="execute_tool ${tool}"}'
        assert query["datasource"]["uid"] == panes["t"]["datasource"] == "${traces}"


def test_each_state_of_a_circuit_has_its_colour() -> None:
    from dashboards.colours import CIRCUIT_STATES
    from dispatch.resilience.breaker import State

    assert set(CIRCUIT_STATES) == {str(state) for state in State}
