from __future__ import annotations

import pytest

from dashboards.reading import filled, load, used

OVERVIEW = load()["dispatch-overview"]
TOOL = load()["dispatch-tool"]


def test_all_is_everything_and_several_are_one_of_them() -> None:
    assert filled('{tool=~"$tool"}', OVERVIEW, {}, "4s") == '{tool=~".+"}'
    assert filled('{tool=~"$tool"}', OVERVIEW, {"tool": ["a", "b"]}, "4s") == '{tool=~"(a|b)"}'


def test_where_several_can_be_picked_a_name_is_no_pattern() -> None:
    assert filled('{tool=~"$tool"}', OVERVIEW, {"tool": "a.b"}, "4s") == r'{tool=~"a\\.b"}'
    assert filled('{tool="$tool"}', TOOL, {"tool": "a.b"}, "4s") == '{tool="a.b"}'


def test_the_interval_and_what_is_picked_at_first() -> None:
    assert filled("rate(x[$__rate_interval]) / (1 - $objective)", OVERVIEW, {}, "4s") == "rate(x[4s]) / (1 - 0.99)"


def test_a_variable_that_there_is_not() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        filled("$nowhere", OVERVIEW, {}, "4s")


def test_variables_in_a_text() -> None:
    assert used("$a ${b} ${c:queryparam} ${__field.labels.tool}") == {"a", "b", "c", "__field"}
