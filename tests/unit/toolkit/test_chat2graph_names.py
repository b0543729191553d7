"""The two API tables of Chat2Graph's documentation: every row called by keyword, as its users may write it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dispatch.toolkit import Toolkit, ToolkitService
from tests.unit.toolkit.samples import Group, action, four_actions, tool

TOOLKIT = {
    "add_vertex": ("id", "properties"),
    "vertices_data": (),
    "update": ("other",),
    "subgraph": ("ids",),
    "remove_vertex": ("id",),
    "get_action": ("id",),
    "get_tool": ("id",),
    "get_tool_group": ("id",),
    "get_score": ("u", "v"),
    "set_score": ("u", "v", "score"),
    "add_edge": ("u_of_edge", "v_of_edge"),
    "has_vertex": ("id",),
    "vertices": (),
    "edges": (),
    "predecessors": ("id",),
    "successors": ("id",),
    "out_degree": ("vertex",),
    "vertices_count": (),
    "get_graph": (),
    "remove_vertices": ("ids",),
    "remove_edge": ("u_of_edge", "v_of_edge"),
    "to_json_str": (),
    "from_json_str": ("json_str",),
}
SERVICE: dict[str, tuple[str, ...]] = {
    "get_toolkit": (),
    "add_tool": ("tool", "connected_actions"),
    "add_tool_group": ("tool_group", "connected_actions"),
    "add_action": ("action", "next_actions", "prev_actions"),
    "get_action": ("action_id",),
    "remove_tool": ("tool_id",),
    "remove_action": ("action_id",),
    "recommend_subgraph": ("actions", "threshold", "hops"),
    "recommend_tools_actions": ("actions", "threshold", "hops"),
    "visualize": ("graph", "title", "show"),
}


@pytest.mark.parametrize(
    ("kind", "method", "names"),
    [(kind, *row) for kind, table in ((Toolkit, TOOLKIT), (ToolkitService, SERVICE)) for row in table.items()],
)
def test_parameters_have_the_names_of_chat2graph(kind: type, method: str, names: tuple[str, ...]) -> None:
    parameters = inspect.signature(getattr(kind, method)).parameters.values()
    ours = [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert tuple(name for name in ours if name != "self") == names
    assert all(each.default is not inspect.Parameter.empty for each in parameters if each.kind.name == "KEYWORD_ONLY")


def test_defaults_are_those_of_chat2graph() -> None:
    for method in ("recommend_subgraph", "recommend_tools_actions"):
        parameters = inspect.signature(getattr(ToolkitService, method)).parameters
        assert (parameters["threshold"].default, parameters["hops"].default) == (0.5, 0)
    assert inspect.signature(ToolkitService.visualize).parameters["show"].default is False


def test_every_row_of_the_toolkit_table() -> None:
    toolkit = Toolkit()
    assert toolkit.add_vertex(id="a", data=action(1)) is None  # type: ignore[func-returns-value]  # as the table states
    toolkit.add_vertex(id="t", data=tool(1))
    toolkit.add_vertex(id="g", data=Group("g"))
    toolkit.add_edge(u_of_edge="a", v_of_edge="t")
    toolkit.add_edge(u_of_edge="g", v_of_edge="t")
    toolkit.set_score(u="a", v="t", score=0.5)
    assert (toolkit.get_score(u="a", v="t"), toolkit.get_score(u="t", v="a")) == (0.5, 1.0)
    kinds: dict[str, Any] = {id: type(properties["data"]).__name__ for id, properties in toolkit.vertices_data()}
    assert kinds == {"a": "Action", "t": "Tool", "g": "Group"}
    assert [toolkit.get_action(id=each) is None for each in "atgx"] == [False, True, True, True]
    assert [toolkit.get_tool(id=each) is None for each in "atgx"] == [True, False, True, True]
    assert [toolkit.get_tool_group(id=each) is None for each in "atgx"] == [True, True, False, True]
    part = toolkit.subgraph(ids=["a", "t", "x"])
    assert (part.vertices(), part.edges(), part.get_score("a", "t")) == (["a", "t"], [("a", "t")], 0.5)
    other = Toolkit()
    other.update(other=toolkit)
    assert other.edges() == toolkit.edges()
    toolkit.remove_vertex(id="t")
    assert toolkit.vertices() == ["a"]  # the group had no other tool


def test_every_row_of_the_service_table() -> None:
    service = four_actions()
    one, two = action(1), action(2)
    service.add_action(action=action(5), next_actions=[(one, 0.5)], prev_actions=[(two, 0.6)])
    service.add_tool(tool=tool(5), connected_actions=[(action(5), 0.7)])
    service.add_tool_group(tool_group=Group("g", "search"), connected_actions=[(action(5), 0.4)])
    assert service.get_action(action_id="action 5") == action(5)
    found = service.recommend_subgraph(actions=[action(5)], threshold=0.5, hops=0)
    assert sorted(found.vertices()) == ["action 5", "tool 5"]
    tools, actions = service.recommend_tools_actions(actions=[action(5)], threshold=0.4, hops=1)
    assert {each.name for each in tools} == {"tool_5", "search", "tool_1"}
    assert {each.id for each in actions} == {"action 5", "action 1"}
    figure = service.visualize(graph=found, title="Recommended", show=False)
    assert "Recommended" in [text.get_text() for text in figure.axes[0].texts]
    service.remove_tool(tool_id="tool 5")
    service.remove_action(action_id="action 5")
    toolkit = service.get_toolkit()
    # A grouped tool stays: its group points to it.
    assert sorted(toolkit.vertices())[-1:] == ["tool 4"]
    assert toolkit.has_vertex(id="group g")
    assert not toolkit.has_vertex(id="action 5")
