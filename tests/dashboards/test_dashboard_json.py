from __future__ import annotations

import pytest

from dashboards.dashboard_json import find_variables, interpolate, load_dashboards

OVERVIEW = load_dashboards()["dispatch-overview"]
TOOL = load_dashboards()["dispatch-tool"]


def test_all_is_everything_and_several_are_one_of_them() -> None:
    assert interpolate('{tool=~"$tool"}', OVERVIEW, {}, "4s") == '{tool=~".+"}'
    assert interpolate('{tool=~"$tool"}', OVERVIEW, {"tool": ["a", "b"]}, "4s") == '{tool=~"(a|b)"}'


def test_where_several_can_be_picked_a_name_is_no_pattern() -> None:
    assert interpolate('{tool=~"$tool"}', OVERVIEW, {"tool": "a.b"}, "4s") == r'{tool=~"a\\.b"}'
    assert interpolate('{tool="$tool"}', TOOL, {"tool": "a.b"}, "4s") == '{tool="a.b"}'


def test_the_interval_and_what_is_picked_at_first() -> None:
    assert interpolate("rate(x[$__rate_interval]) / (1 - $objective)", OVERVIEW, {}, "4s") == "rate(x[4s]) / (1 - 0.99)"


def test_a_variable_that_there_is_not() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        interpolate("$nowhere", OVERVIEW, {}, "4s")


def test_variables_in_a_text() -> None:
    assert find_variables("$a ${b} ${c:queryparam} ${__field.labels.tool}") == {"a", "b", "c", "__field"}
