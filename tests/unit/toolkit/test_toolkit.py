"""The graph of a toolkit: its methods, cascades and scores."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.toolkit import Action, Graph, Tool, Toolkit
from tests.unit.toolkit.samples import Group, action, four_actions, query, tool


def test_every_method_of_the_graph() -> None:
    toolkit = four_actions().get_toolkit()
    assert isinstance(toolkit, Graph)
    assert type(toolkit.get_graph()) is nx.DiGraph
    assert toolkit.vertices_count() == len(toolkit.vertices()) == 8
    assert len(toolkit.edges()) == 9
    assert toolkit.has_vertex("action 1")
    assert not toolkit.has_vertex("action 9")
    assert sorted(toolkit.predecessors("action 3")) == ["action 1", "action 2"]
    assert sorted(toolkit.successors("action 3")) == ["action 4", "tool 3"]
    assert toolkit.out_degree("action 1") == 3
    toolkit.remove_edge("action 1", "action 3")
    assert not toolkit.get_graph().has_edge("action 1", "action 3")
    toolkit.remove_vertices({"tool 1", "tool 2", "unknown"})
    assert toolkit.vertices_count() == 6


def test_vertices_and_edges_are_in_topological_order() -> None:
    toolkit = Toolkit()
    for name in "cab":
        toolkit.add_vertex(name, data=Action(name, name, ""))
    toolkit.add_edge("a", "b")
    toolkit.add_edge("b", "c")
    assert toolkit.vertices() == ["a", "b", "c"]
    assert toolkit.edges() == [("a", "b"), ("b", "c")]
    toolkit.add_edge("c", "a")
    assert toolkit.vertices() == ["c", "a", "b"]  # as stored
    assert set(toolkit.edges()) == {("a", "b"), ("b", "c"), ("c", "a")}


def test_a_vertex_is_found_again_by_the_id_of_its_copy() -> None:
    toolkit = four_actions().get_toolkit()
    copied = toolkit.get_tool("tool 1")
    assert copied is not None
    assert copied.id == "tool 1"
    assert toolkit.get_action("action 1") == action(1)
    assert toolkit.get_action("tool 1") is toolkit.get_tool("action 1") is toolkit.get_tool_group("tool 1") is None


def test_a_copy_that_a_subclass_creates_has_the_id_of_the_vertex() -> None:
    class Query(Tool):
        def __init__(self) -> None:
            super().__init__("query", "Query.", query)

        def copy(self) -> Query:
            return Query()

    toolkit, original = Toolkit(), Query()
    toolkit.add_vertex(original.id, data=original)
    copied = toolkit.get_tool(original.id)
    assert isinstance(copied, Query)
    assert copied.id == original.id


def test_changes_of_a_copy_do_not_change_the_toolkit() -> None:
    toolkit = four_actions().get_toolkit()
    copied = toolkit.get_action("action 1")
    assert copied is not None
    copied.tools.append(tool(1))
    copied.name = "other"
    assert toolkit.get_action("action 1") == action(1)


def test_scores() -> None:
    toolkit = four_actions().get_toolkit()
    assert toolkit.get_score("action 1", "action 2") == 0.8
    assert toolkit.get_score("action 4", "action 1") == 1.0  # no such edge
    toolkit.set_score("action 1", "action 2", 0.1)
    assert toolkit.get_score("action 1", "action 2") == 0.1


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan")])
def test_a_score_outside_0_to_1_is_refused(score: float) -> None:
    toolkit = four_actions().get_toolkit()
    with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
        toolkit.set_score("action 1", "action 2", score)
    assert toolkit.get_score("action 1", "action 2") == 0.8


def test_a_score_needs_an_edge_and_an_edge_needs_vertices() -> None:
    toolkit = four_actions().get_toolkit()
    with pytest.raises(ValueError, match="no edge from 'action 4' to 'action 1'"):
        toolkit.set_score("action 4", "action 1", 0.5)
    with pytest.raises(ValueError, match="no vertex 'action 9'"):
        toolkit.add_edge("action 1", "action 9")
    assert toolkit.vertices_count() == 8


@pytest.mark.parametrize("how", ["edge", "vertex", "networkx"])
def test_a_new_edge_does_not_get_the_score_of_a_removed_one(how: str) -> None:
    toolkit = four_actions().get_toolkit()
    if how == "edge":
        toolkit.remove_edge("action 1", "action 2")
    elif how == "vertex":
        toolkit.remove_vertex("action 2")
        toolkit.add_vertex("action 2", data=action(2))
    else:
        toolkit.get_graph().remove_edge("action 1", "action 2")
    toolkit.add_edge("action 1", "action 2")
    assert toolkit.get_score("action 1", "action 2") == 1.0


def test_an_action_is_removed_with_the_tools_that_it_alone_calls() -> None:
    service = four_actions()
    service.add_tool(tool(2), [(action(1), 0.5)])
    toolkit = service.get_toolkit()
    toolkit.remove_vertex("action 1")
    assert not toolkit.has_vertex("tool 1")
    assert toolkit.has_vertex("tool 2")  # action 2 calls it
    toolkit.remove_vertex("action 2")
    assert not toolkit.has_vertex("tool 2")


def test_a_tool_of_a_group_stays_when_its_last_action_is_removed() -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "search", "count"), [(action(1), 0.9)])
    toolkit = service.get_toolkit()
    tools = toolkit.successors("group g")
    service.remove_action("action 1")
    assert toolkit.successors("group g") == tools
    assert all(toolkit.get_tool(id) for id in tools)


def test_a_group_is_removed_with_its_last_tool() -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "search", "count"), [(action(1), 0.9)])
    toolkit = service.get_toolkit()
    first, second = toolkit.successors("group g")
    service.remove_tool(first)
    assert toolkit.get_tool_group("group g") is not None
    service.remove_tool(second)
    assert toolkit.get_tool_group("group g") is None
    assert toolkit.vertices_count() == 8


def test_a_group_is_removed_with_its_tools() -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "search", "count"), [(action(1), 0.9)])
    toolkit = service.get_toolkit()
    toolkit.remove_vertex("group g")
    assert toolkit.vertices_count() == 8


def test_vertices_data_has_every_kind() -> None:
    service = four_actions()
    group = Group("g", "search")
    service.add_tool_group(group, [(action(1), 0.9)])
    data = dict(service.get_toolkit().vertices_data())
    assert data["action 1"] == {"data": action(1)}
    assert data["group g"] == {"data": group}
    found = data["tool 1"]["data"]
    assert isinstance(found, Tool)
    assert found.id == "tool 1"
    assert len(data) == 10


def test_update_adds_what_is_new_and_keeps_existing_scores() -> None:
    toolkit, other = four_actions().get_toolkit(), Toolkit()
    for id, data in (("action 1", action(1)), ("action 2", action(2)), ("action 9", action(9))):
        other.add_vertex(id, data=data)
    other.add_edge("action 1", "action 2")
    other.set_score("action 1", "action 2", 0.3)
    other.add_edge("action 2", "action 9")
    other.set_score("action 2", "action 9", 0.4)
    toolkit.update(other)
    assert toolkit.vertices_count() == 9
    assert toolkit.get_score("action 1", "action 2") == 0.8
    assert toolkit.get_score("action 2", "action 9") == 0.4
    toolkit.set_score("action 2", "action 9", 0.9)
    assert other.get_score("action 2", "action 9") == 0.4  # nothing is shared
    with pytest.raises(TypeError, match="not from Graph"):
        toolkit.update(Graph())


def test_a_subgraph_has_the_edges_and_scores_between_its_vertices() -> None:
    toolkit = four_actions().get_toolkit()
    part = toolkit.subgraph(["action 1", "action 2", "tool 2", "unknown"])
    assert part.edges() == [("action 1", "action 2"), ("action 2", "tool 2")]
    assert part.get_score("action 1", "action 2") == 0.8
    part.set_score("action 1", "action 2", 0.2)
    part.remove_vertex("tool 2")
    assert toolkit.get_score("action 1", "action 2") == 0.8
    assert toolkit.has_vertex("tool 2")


def test_a_vertex_needs_data() -> None:
    with pytest.raises(ValueError, match="must be an Action, Tool or ToolGroup"):
        Toolkit().add_vertex("x", data="action")
    with pytest.raises(ValueError, match="must be an Action, Tool or ToolGroup"):
        Toolkit().add_vertex("x")


def test_json_holds_actions_tools_and_scores() -> None:
    toolkit = four_actions().get_toolkit()
    restored = Toolkit.from_json_str(toolkit.to_json_str())
    assert isinstance(restored, Toolkit)
    assert restored.edges() == toolkit.edges()
    assert [restored.get_score(*edge) for edge in restored.edges()] == [toolkit.get_score(*e) for e in toolkit.edges()]
    assert restored.get_action("action 1") == action(1)
    found = restored.get_tool("tool 1")
    assert found is not None
    assert (found.name, found.description) == ("tool_1", "Tool number 1")
    with pytest.raises(RuntimeError, match="'tool_1' was not executed"):
        found.function(text="x")


def test_json_of_chat2graph_is_read() -> None:
    graph = Graph.from_json_str('{"vertices": [{"id": "a"}, {"id": "b"}], "edges": [{"source": "a", "target": "b"}]}')
    assert graph.edges() == [("a", "b")]
    assert graph.get_score("a", "b") == 1.0


Edges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0, 1)), max_size=40)


@given(Edges)
def test_json_round_trip(edges: list[tuple[int, int, float]]) -> None:
    toolkit = Toolkit()
    for number in range(10):
        toolkit.add_vertex(f"action {number}", data=action(number))
    for u, v, score in edges:
        toolkit.add_edge(f"action {u}", f"action {v}")
        toolkit.set_score(f"action {u}", f"action {v}", score)
    restored = Toolkit.from_json_str(toolkit.to_json_str())
    assert restored.vertices_data() == toolkit.vertices_data()
    assert {(u, v): restored.get_score(u, v) for u, v in restored.edges()} == {
        (u, v): toolkit.get_score(u, v) for u, v in toolkit.edges()
    }


@given(st.lists(st.tuples(st.sampled_from("atg"), st.integers(0, 5)), max_size=12))
def test_after_any_removals_no_group_is_empty_and_no_edge_dangles(removals: list[tuple[str, int]]) -> None:
    service = four_actions()
    for number in range(3):
        service.get_toolkit().add_vertex(f"group {number}", data=Group(str(number), "x"))
        service.get_toolkit().add_edge(f"group {number}", f"tool {number + 1}")
        service.get_toolkit().add_edge(f"group {number}", f"tool {number + 2}")
    toolkit = service.get_toolkit()
    for kind, number in removals:
        toolkit.remove_vertex({"a": "action", "t": "tool", "g": "group"}[kind] + f" {number}")
        for id, data in toolkit.vertices_data():
            assert not isinstance(data["data"], Group) or toolkit.out_degree(id)
