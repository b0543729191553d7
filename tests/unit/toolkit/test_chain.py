"""Chains of actions with their tools."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.toolkit import Tool, ToolkitService
from tests.unit.toolkit.samples import Group, action, tool

A1, A2, A3 = action(1), action(2), action(3)
T1, T2 = tool(1), tool(2)


class OneTool(Group):
    """A group of one tool with a known id."""

    async def list_tools(self) -> list[Tool]:
        return [Tool("inner", "", print, id=f"{self.name}/inner")]


G = OneTool("g")
IN_G = ("group g", "g/inner")


@pytest.mark.parametrize(
    ("items", "edges"),
    [
        ((), set()),
        ((A1,), set()),
        ((A1, A2, A3), {("action 1", "action 2"), ("action 2", "action 3")}),
        ((A1, T1), {("action 1", "tool 1")}),
        ((A1, G), {("action 1", "g/inner"), IN_G}),
        ((A1, (T1, T2)), {("action 1", "tool 1"), ("action 1", "tool 2")}),
        ((A1, (T1, G)), {("action 1", "tool 1"), ("action 1", "g/inner"), IN_G}),
        (((A1, T1), A2), {("action 1", "tool 1"), ("action 1", "action 2")}),
        ((A1, T1, A2, G), {("action 1", "tool 1"), ("action 1", "action 2"), ("action 2", "g/inner"), IN_G}),
        ((A1, (T1,), A2, T2), {("action 1", "tool 1"), ("action 1", "action 2"), ("action 2", "tool 2")}),
        (((A1, T1), (A2, T1)), {("action 1", "tool 1"), ("action 1", "action 2"), ("action 2", "tool 1")}),
    ],
)
def test_valid_chains(items: tuple[Any, ...], edges: set[tuple[str, str]]) -> None:
    service = ToolkitService()
    assert service.chain(*items) is service
    toolkit = service.get_toolkit()
    assert set(toolkit.edges()) == edges
    assert all(toolkit.get_score(u, v) == 1.0 for u, v in edges)
    for item in items:
        if not isinstance(item, tuple | Tool | Group):
            assert toolkit.get_action(item.id) == item


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((T1,), "Chain must start with an Action."),
        ((G,), "Chain must start with an Action."),
        (((T1, T2), A1), "Chain must start with an Action."),
        ((A1, T1, T2), "Tool can only be followed by an Action."),
        ((A1, G, T2), "ToolGroup can only be followed by an Action."),
        ((A1, (T1, T2), T1), "A parallel connection tuple can only be followed by an Action."),
        ((A1, (T1,), (T2,)), "A parallel connection tuple can only be followed by an Action."),
        ((A1, T1, (T2,)), "Tool can only be followed by an Action."),
        ((A1, (T1, A2)), "Parallel connection tuples can only contain Tools or ToolGroups."),
    ],
)
def test_invalid_chains_add_nothing(items: tuple[Any, ...], message: str) -> None:
    service = ToolkitService()
    with pytest.raises(ValueError, match="^" + message):
        service.chain(*items)
    assert service.get_toolkit().vertices() == []


@pytest.mark.parametrize("item", ["action", 1, None, Tool])
def test_an_item_of_another_type(item: object) -> None:
    service = ToolkitService()
    with pytest.raises(TypeError, match="Invalid chain item type"):
        service.chain(A1, item)  # type: ignore[arg-type] # the mistake
    assert service.get_toolkit().vertices() == []


def test_chains_of_one_service_meet_in_shared_actions() -> None:
    service = ToolkitService().chain(A1, T1, A2).chain(A3, A2)
    assert set(service.get_toolkit().edges()) == {
        ("action 1", "tool 1"),
        ("action 1", "action 2"),
        ("action 3", "action 2"),
    }
