"""The tools that an agent is offered, by group and state, as TrustGraph's agent offers them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trustgraph.agent.tool_filter import filter_tools_by_group_and_state, validate_tool_config

from dispatch.catalog import Catalog
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE

NAMES = st.sampled_from(["default", "*", "undefined", "", "a", "b", "A", "ab"])
RAW_KEYS = st.fixed_dictionaries(
    {}, optional={"group": st.lists(NAMES, max_size=3), "applicable-states": st.lists(NAMES, max_size=3)}
)


def offered(tools: list[dict[str, Any]], groups: list[str] | None, state: str | None) -> set[str]:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"name": f"t{index}"} | raw for index, raw in enumerate(tools)])
    if groups is None and state is None:  # list() would return all tools
        return {tool.name for tool in catalog.tools.values() if tool.is_offered()}
    return {tool.name for tool in catalog.list(groups=groups, state=state)}


@given(st.lists(RAW_KEYS, max_size=6), st.none() | st.lists(NAMES, max_size=3), st.none() | NAMES)
def test_the_same_tools_as_trustgraphs_filter(
    tools: list[dict[str, Any]], groups: list[str] | None, state: str | None
) -> None:
    for raw in tools:
        validate_tool_config(raw)
    theirs = filter_tools_by_group_and_state(
        {f"t{index}": SimpleNamespace(config=raw) for index, raw in enumerate(tools)}, groups, state
    )
    assert offered(tools, groups, state) == set(theirs)


@pytest.mark.parametrize(
    ("raw", "groups", "state", "is_offered"),
    [
        ({}, ["default"], None, True),
        ({}, ["a"], None, False),
        ({}, ["a", "default"], None, True),
        ({}, ["*"], "any", True),
        ({}, [], None, False),
        ({"group": []}, ["default"], None, False),
        ({"group": []}, ["*"], None, True),
        ({"group": ["*"]}, ["a"], None, False),
        ({"group": ["a"]}, None, "s", False),
        ({"applicable-states": ["s"]}, None, "s", True),
        ({"applicable-states": ["s"]}, None, "t", False),
        ({"applicable-states": ["s"]}, ["default"], None, False),
        ({"applicable-states": ["undefined"]}, ["default"], None, True),
        ({"applicable-states": ["undefined"]}, None, "", True),
        ({"applicable-states": []}, ["*"], "s", False),
        ({"applicable-states": ["s", "*"]}, None, "t", True),
    ],
)
def test_the_rules(raw: dict[str, Any], groups: list[str] | None, state: str | None, is_offered: bool) -> None:
    assert offered([raw], groups, state) == ({"t0"} if is_offered else set())


def test_without_groups_and_state_all_tools_are_listed() -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"group": ["a"], "applicable-states": ["s"]}])
    assert len(catalog.list()) == 1
    assert not catalog.tool("tell-joke").is_offered()
    assert catalog.tool("tell-joke").is_offered(["a"], "s")


@pytest.mark.parametrize(("state", "after"), [({"state": "done"}, "done"), ({"state": ""}, None), ({}, None)])
def test_the_state_after_a_call(state: dict[str, Any], after: str | None) -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE | state])
    assert catalog.tool("tell-joke").state == after
