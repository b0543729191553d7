"""The graph of a toolkit: its methods, cascades and scores.
Packages of functions as groups of tools.
Mermaid and GraphML.
The two API tables of Chat2Graph's documentation: every row called by keyword, as its users may write it.
Chains of actions with their tools.
A toolkit over the live catalogue of a dispatcher.
The toolkit service: adds actions, tools and groups, and recommends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import io
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch import Dispatcher, Grants, RejectedError
from dispatch.toolkit import (
    Action,
    FunctionCallResult,
    FunctionCallStatus,
    Graph,
    Tool,
    ToolGroupConfig,
    ToolGroupType,
    Toolkit,
    ToolkitService,
    ToolkitWarning,
    ToolPackage,
    ToolType,
    render_graphml,
    render_mermaid,
)
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving
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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "toolkit_shop"
    (tmp_path / name / "orders").mkdir(parents=True)
    (tmp_path / name / "__init__.py").write_text("from os.path import join\n\ndef ping():\n    '''Answers pong.'''\n")
    (tmp_path / name / "orders" / "__init__.py").write_text("")
    (tmp_path / name / "orders" / "list.py").write_text(
        "class C: pass\nasync def find(order: int) -> str:\n    '''Find an order.'''\n    return f'order {order}'\n"
        "def _private(): pass\n"
    )
    (tmp_path / name / "broken.py").write_text("import does_not_exist_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield name
    for module in [each for each in sys.modules if each.split(".")[0] == name]:
        del sys.modules[module]


async def test_public_functions_of_a_package_and_its_subpackages(package: str) -> None:
    with pytest.warns(ToolkitWarning, match=r"'toolkit_shop\.broken' cannot be imported .*does_not_exist_at_all"):
        tools = await ToolPackage(package).list_tools()
    assert [(each.name, each.description) for each in tools] == [("ping", "Answers pong."), ("find", "Find an order.")]
    assert await tools[1].function(order=3) == "order 3"


async def test_public_are_the_functions_that_the_source_of_a_package_finds(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "broken.py").write_text("raise SystemExit(3)\n")
    (tmp_path / package / "_hidden.py").write_text("raise RuntimeError('not imported')\n")
    (tmp_path / package / "__main__.py").write_text("raise RuntimeError('not imported')\n")
    (tmp_path / package / "stock.py").write_text(
        f"import dispatch\nfrom {package}.orders.list import find\n__all__ = ['find', 'count']\n"
        "def count() -> int: ...\ndef not_exported(): ...\n@dispatch.tool(name='order-more')\ndef _order(): ...\n"
    )
    with pytest.warns(ToolkitWarning, match=r"broken' cannot be imported \(SystemExit: 3\)"):
        tools = {each.name: each.id.removeprefix(f"{package}.") for each in await ToolPackage(package).list_tools()}
    assert tools == {"ping": "ping", "find": "orders.list.find", "count": "stock.count", "order-more": "stock._order"}
    with pytest.warns(ToolkitWarning):
        (tool,) = await ToolPackage(package, only=["_order"]).list_tools()
    assert tool.name == "order-more"


@pytest.fixture
def service() -> ToolkitService:
    return ToolkitService()


@pytest.mark.filterwarnings("ignore::dispatch.toolkit.ToolkitWarning")
def test_a_package_is_a_group_of_the_toolkit(package: str, service: ToolkitService) -> None:
    group = ToolPackage(ToolGroupConfig(ToolGroupType.PACKAGE, package), only=["find"])
    service.chain(action(1), group)
    toolkit = service.get_toolkit()
    assert toolkit.successors(group.get_id()) == ["toolkit_shop.orders.list.find"]
    assert toolkit.get_tool_group(group.get_id()) is group
    assert (group.name, group.config.type) == (package, ToolGroupType.PACKAGE)


@pytest.mark.filterwarnings("ignore::dispatch.toolkit.ToolkitWarning")
def test_mistakes_name_their_place(package: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no public function 'fnid'"):
        asyncio.run(ToolPackage(package, only=["fnid"]).list_tools())
    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        asyncio.run(ToolPackage("no_such_package_at_all").list_tools())
    (tmp_path / package / "other.py").write_text("def find(): pass\n")
    with pytest.raises(ValueError, match=r"Two functions 'find' .* toolkit_shop\.orders\.list"):
        asyncio.run(ToolPackage(package).list_tools())


def build() -> Toolkit:
    service = ToolkitService()
    service.add_action(Action("a", 'Say "hi" `now`', "First & <last>\x00"), [], [])
    service.add_action(action(2), [], [(Action("a", "", ""), 0.25)])
    service.add_tool(tool(1), [(action(2), 0.5)])
    service.add_tool_group(Group("g", "search"), [(action(2), 1.0)])
    return service.get_toolkit()


def test_mermaid() -> None:
    lines = render_mermaid(build()).splitlines()
    assert lines[:9] == [
        "flowchart LR",
        '    v0("Say #quot;hi#quot; #96;now#96;"):::action',
        '    v1("Action 2"):::action',
        '    v2["tool_1"]:::tool',
        '    v3{{"g"}}:::group',
        '    v4["search"]:::tool',
        "    v0 ==>|0.25| v1",
        "    v3 -.->|1.00| v4",
        "    v1 -->|0.50| v2",
    ]
    assert lines[9] == "    v1 -->|1.00| v4"


@pytest.mark.filterwarnings("default")
def test_graphml_is_read_by_networkx() -> None:
    toolkit = build()
    graph = nx.parse_graphml(render_graphml(toolkit))
    assert set(graph.nodes) == set(toolkit.vertices())
    assert graph.nodes["a"] == {"kind": "action", "name": 'Say "hi" `now`', "description": "First & <last>\ufffd"}
    assert graph.nodes["group g"]["kind"] == "group"
    assert graph.edges["a", "action 2"] == {"kind": "next", "score": 0.25}
    assert graph.edges["action 2", "tool 1"] == {"kind": "call", "score": 0.5}
    assert {graph.edges[edge]["kind"] for edge in graph.edges} == {"next", "call", "group_has_tool"}


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
def test_valid_chains(items: tuple[Any, ...], edges: set[tuple[str, str]], service: ToolkitService) -> None:
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
def test_invalid_chains_add_nothing(items: tuple[Any, ...], message: str, service: ToolkitService) -> None:
    with pytest.raises(ValueError, match="^" + message):
        service.chain(*items)
    assert service.get_toolkit().vertices() == []


@pytest.mark.parametrize("item", ["action", 1, None, Tool])
def test_an_item_of_another_type(item: object, service: ToolkitService) -> None:
    with pytest.raises(TypeError, match="Invalid chain item type"):
        service.chain(A1, item)  # type: ignore[arg-type] # the mistake
    assert service.get_toolkit().vertices() == []


def test_chains_of_one_service_meet_in_shared_actions() -> None:
    service = ToolkitService().chain(A1, T1, A2).chain(A3, A2)
    edges = set(service.get_toolkit().edges())
    assert edges == {("action 1", "tool 1"), ("action 1", "action 2"), ("action 3", "action 2")}


def start_dispatcher(grants: Any = None, **tools: Any) -> Dispatcher:
    return Dispatcher(MemoryTransport(BROKER), catalog(**(tools or {"joke": {}, "poem": {}})), grants=grants)


async def test_the_tools_of_the_catalogue_are_tools_of_the_graph() -> None:
    async with serving(lambda arguments: f"about {arguments['topic']}"), start_dispatcher() as dispatcher:
        toolkit = Toolkit.of(dispatcher)
        assert sorted(toolkit.vertices()) == ["joke", "poem"]
        service = ToolkitService(toolkit)
        service.add_action(action(1), [], [])
        service.add_tool(dispatcher.tool("joke"), [(action(1), 0.9)])
        service.add_tool(dispatcher.tool("poem"), [(action(1), 0.2)])
        (joke,), _ = service.recommend_tools_actions([action(1)])
        assert (joke.name, joke.description, joke.tool_type) == ("joke", "Does joke.", ToolType.DISPATCH_TOOL)
        assert await joke.function(topic="cats") == "about cats"


async def test_the_toolkit_follows_changes_and_keeps_edges_of_a_tool_that_comes_back() -> None:
    async with start_dispatcher() as dispatcher:
        toolkit = Toolkit.of(dispatcher)
        service = ToolkitService(toolkit)
        service.add_action(action(1), [], [])
        service.add_tool(dispatcher.tool("joke"), [(action(1), 0.7)])
        await dispatcher.reload(catalog(poem={"description": "Writes verses."}, song={}))
        assert sorted(toolkit.vertices()) == ["action 1", "poem", "song"]
        poem = toolkit.get_tool("poem")
        assert poem.description == "Writes verses."
        await dispatcher.reload(catalog(joke={}))
        assert sorted(toolkit.vertices()) == ["action 1", "joke"]
        assert toolkit.get_score("action 1", "joke") == 0.7
        assert toolkit.edges() == [("action 1", "joke")]


async def test_a_tool_of_the_catalogue_remains_when_its_only_action_is_removed() -> None:
    async with start_dispatcher() as dispatcher:
        service = ToolkitService(Toolkit.of(dispatcher))
        service.add_action(action(1), [], [])
        service.add_tool(dispatcher.tool("joke"), [(action(1), 0.7)])
        service.remove_action("action 1")
        assert sorted(service.get_toolkit().vertices()) == ["joke", "poem"]


async def test_a_recommendation_has_only_tools_that_the_user_may_call() -> None:
    grants = Grants.of({"users": {"alice": ["tools:*"]}})
    tools = {"joke": {"permissions": ["tools:joke"]}, "poem": {}}
    async with serving(lambda _arguments: "ha"), start_dispatcher(grants, **tools) as dispatcher:
        service = ToolkitService(Toolkit.of(dispatcher))
        service.add_action(action(1), [], [])
        for name in tools:
            service.add_tool(dispatcher.tool(name, user="alice"), [(action(1), 1.0)])

        def names_for(user: str) -> list[str]:
            found, _ = service.recommend_tools_actions([action(1)], user=user)
            return sorted(each.name for each in found)

        assert names_for("alice") == ["joke", "poem"]
        assert names_for("bob") == names_for("") == ["poem"]
        found, _ = service.recommend_tools_actions([action(1)], user="alice")
        joke = next(each for each in found if each.name == "joke")
        assert await joke.function() == "ha"  # called as alice
        bare = service.get_toolkit().get_tool("joke")
        assert bare is not None
        with pytest.raises(RejectedError, match="permission"):
            await bare.function()


async def test_permissions_that_are_not_cached_are_an_error_and_not_a_shorter_list() -> None:
    async def ask(user: str) -> list[str]:
        return ["tools:joke"] if user == "alice" else []

    async with start_dispatcher(ask, joke={"permissions": ["tools:joke"]}) as dispatcher:
        service = ToolkitService(Toolkit.of(dispatcher))
        service.add_action(action(1), [], [])
        toolkit = service.get_toolkit()
        toolkit.add_edge("action 1", "joke")
        with pytest.raises(RejectedError) as caught:
            service.recommend_tools_actions([action(1)], user="alice")
        assert caught.value.type == "permissions-unavailable"
        await dispatcher.tools(user="alice")
        tools, _ = service.recommend_tools_actions([action(1)], user="alice")
        assert [each.name for each in tools] == ["joke"]


async def test_a_file_names_tools_of_the_catalogue(tmp_path: Path) -> None:
    async with serving(lambda _arguments: "ha"), start_dispatcher() as dispatcher:
        service = ToolkitService(Toolkit.of(dispatcher))
        service.add_action(action(1), [], [])
        service.add_tool(dispatcher.tool("joke"), [(action(1), 0.4)])
        service.get_toolkit().save(tmp_path / "t.yml")
        loaded = Toolkit.load(tmp_path / "t.yml")
        joke = loaded.get_tool("joke")
        assert joke is not None
        with pytest.raises(RuntimeError, match="does not follow a dispatcher"):
            joke.function()
        await dispatcher.reload(catalog(joke={}))
        loaded.follow(dispatcher)
        assert loaded.get_tool("poem") is None  # in the file, and no longer in the catalogue
        assert loaded.get_score("action 1", "joke") == 0.4
        joke = loaded.get_tool("joke")
        assert await joke.function() == "ha"


async def test_a_toolkit_is_freed_and_its_listener_removed() -> None:
    async with start_dispatcher() as dispatcher:
        listeners = len(dispatcher._events)
        reference = weakref.ref(Toolkit.of(dispatcher))
        gc.collect()
        assert reference() is None
        await dispatcher.reload(catalog(song={}))
        assert len(dispatcher._events) == listeners


async def test_another_dispatcher_replaces_the_first_one() -> None:
    async with start_dispatcher() as one, start_dispatcher(song={}) as two:
        toolkit = Toolkit.of(one).follow(two)
        assert toolkit.vertices() == ["song"]
        await one.reload(catalog(opera={}))
        assert toolkit.vertices() == ["song"]


async def test_a_vertex_of_another_kind_with_the_name_of_a_tool_stays(caplog: pytest.LogCaptureFixture) -> None:
    toolkit = Toolkit()
    toolkit.add_vertex("joke", data=Action("joke", "Joke", ""))
    toolkit.add_vertex("other", data=Tool("other", "", print, id="other"))
    async with start_dispatcher() as dispatcher:
        toolkit.follow(dispatcher)
    assert toolkit.get_action("joke") is not None
    assert sorted(toolkit.vertices()) == ["joke", "other", "poem"]
    assert "tool 'joke' of the catalogue is not in the toolkit" in caplog.text


def test_two_services_share_nothing() -> None:
    one, two = ToolkitService(), ToolkitService()
    one.add_action(action(1), [], [])
    assert two.get_toolkit().vertices() == []
    assert ToolkitService(one.get_toolkit()).get_action("action 1") == action(1)


def test_adding_an_existing_action_or_tool_adds_no_vertex() -> None:
    service = four_actions()
    service.add_action(action(1), next_actions=[], prev_actions=[])
    service.add_tool(tool(1), [(action(1), 0.3)])
    assert service.get_toolkit().vertices_count() == 8
    assert service.get_toolkit().get_score("action 1", "tool 1") == 0.3


def test_an_id_belongs_to_one_kind_of_vertex() -> None:
    service = four_actions()
    search = Action("search", "Search", "")
    service.add_action(search, [], [])
    with pytest.raises(ValueError, match="the id 'search' belongs to the Action 'Search'"):
        service.add_tool(Tool("find", "", print, id="search"), [(search, 1.0)])
    with pytest.raises(ValueError, match="the id 'tool 1' belongs to the Tool"):
        service.add_action(Action("tool 1", "Other", ""), [], [])


def test_next_and_previous_actions_that_are_unknown_are_ignored(service: ToolkitService) -> None:
    service.add_action(action(1), next_actions=[(action(2), 0.5)], prev_actions=[(action(3), 0.5)])
    assert service.get_toolkit().edges() == []
    assert service.get_toolkit().vertices() == ["action 1"]


def test_a_tool_that_no_known_action_calls_is_refused_with_warnings_and_no_print() -> None:
    service = four_actions()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.warns(ToolkitWarning) as warned:
        service.add_tool(tool(9), [(action(9), 0.5)])
    assert [str(each.message).split(":")[0] for each in warned] == [
        "Action 'Action 9' (action 9) of tool 'tool_9' is ignored",
        "Tool 'tool_9' is not added",
    ]
    assert {each.filename for each in warned} == {__file__}
    assert output.getvalue() == ""
    assert not service.get_toolkit().has_vertex("tool 9")


def test_a_known_tool_is_not_removed_by_adding_it_to_an_unknown_action() -> None:
    service = four_actions()
    with pytest.warns(ToolkitWarning, match="is ignored"):
        service.add_tool(tool(1), [(action(9), 0.5)])
    assert service.get_toolkit().has_vertex("tool 1")


@pytest.mark.parametrize("score", [-1, 2, float("nan")])
def test_a_wrong_score_adds_nothing(score: float) -> None:
    service = four_actions()
    with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
        service.add_tool(tool(9), [(action(1), score)])
    with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
        service.add_action(action(9), [(action(1), score)], [])
    with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
        service.add_tool_group(Group("g", "x"), [(action(1), score)])
    assert service.get_toolkit().vertices_count() == 8


def test_get_action() -> None:
    service = four_actions()
    assert service.get_action("action 2") == action(2)
    with pytest.raises(ValueError, match="Action action 9 not found in the toolkit graph"):
        service.get_action("action 9")


def names_of(service: ToolkitService, group: str) -> list[str]:
    toolkit = service.get_toolkit()
    found = [toolkit.get_tool(id) for id in toolkit.successors(group)]
    return sorted(each.name for each in found if each is not None)


async def test_a_group_is_added_while_an_event_loop_runs() -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "search", "count"), [(action(1), 0.95)])
    toolkit = service.get_toolkit()
    assert names_of(service, "group g") == ["count", "search"]
    assert toolkit.vertices_count() == 8 + 1 + 2
    assert len(toolkit.edges()) == 9 + 2 + 2
    assert all(toolkit.get_score("action 1", id) == 0.95 for id in toolkit.successors("group g"))


@pytest.mark.parametrize("caller", [1, 2])
def test_adding_a_group_again_refreshes_it_whichever_action_calls_it(caller: int) -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "old", "same"), [(action(1), 0.9)])
    toolkit = service.get_toolkit()
    same = next(id for id in toolkit.successors("group g") if toolkit.get_tool(id).name == "same")  # type: ignore[union-attr] # it is a tool
    service.add_tool_group(Group("g", "same", "new"), [(action(caller), 0.7)])
    assert names_of(service, "group g") == ["new", "same"]
    assert toolkit.vertices_count() == 8 + 1 + 2
    assert toolkit.get_score("action 1", same) == (0.7 if caller == 1 else 0.9)
    assert same in toolkit.successors(f"action {caller}")


def test_a_group_without_known_actions_or_tools_is_not_added() -> None:
    service = four_actions()
    with pytest.warns(ToolkitWarning, match="'Action 9'"), pytest.warns(ToolkitWarning, match="Group 'g' is not added"):
        service.add_tool_group(Group("g", "x"), [(action(9), 0.9)])
    with pytest.warns(ToolkitWarning, match="Group 'g' lists no tools"):
        service.add_tool_group(Group("g"), [(action(1), 0.9)])
    assert service.get_toolkit().vertices_count() == 8


def test_a_group_whose_listing_fails_stays_as_it_is() -> None:
    class Broken(Group):
        async def list_tools(self) -> list[Tool]:
            raise ConnectionError("no server")

    service = four_actions()
    service.add_tool_group(Group("g", "x"), [(action(1), 0.9)])
    with pytest.raises(ConnectionError, match="no server"):
        service.add_tool_group(Broken("g"), [(action(1), 0.9)])
    assert names_of(service, "group g") == ["x"]


def test_a_tool_of_two_groups_stays_in_the_other_one() -> None:
    class Shared(Group):
        async def list_tools(self) -> list[Tool]:
            return [Tool(name, "", query, id=name) for name in self.names]

    service = four_actions()
    service.add_tool_group(Shared("g", "a", "b"), [(action(1), 0.9)])
    service.add_tool_group(Shared("h", "a"), [(action(1), 0.9)])
    service.add_tool_group(Shared("g", "b"), [(action(1), 0.9)])
    assert names_of(service, "group h") == ["a"]
    assert names_of(service, "group g") == ["b"]


class Catalogued:
    """As :class:`dispatch.BoundTool`."""

    name, description = "tell-joke", "Tells a joke."

    async def invoke(self, **arguments: Any) -> str:
        return f"joke about {arguments['topic']}"


async def test_a_tool_of_a_dispatcher_is_accepted_and_has_its_name_as_id() -> None:
    service = four_actions()
    service.add_tool(Catalogued(), [(action(1), 0.9)])
    service.add_tool(Catalogued(), [(action(2), 0.9)])
    found = service.get_toolkit().get_tool("tell-joke")
    assert (found.name, found.description, found.tool_type) == ("tell-joke", "Tells a joke.", ToolType.DISPATCH_TOOL)
    assert await found.function(topic="cats") == "joke about cats"
    assert service.get_toolkit().predecessors("tell-joke") == ["action 1", "action 2"]
    other = Toolkit()
    other.add_vertex("j", data=Catalogued())
    assert other.get_tool("j").id == "j"  # type: ignore[union-attr] # it is a tool


@pytest.mark.parametrize(
    ("starts", "threshold", "hops", "vertices", "edges"),
    [
        ([1], 0.5, 0, {"action 1", "tool 1"}, 1),
        ([1], 0.5, 1, {"action 1", "action 2", "action 3", "tool 1", "tool 2", "tool 3"}, 6),
        ([1], 0.7, 2, {*(f"action {n}" for n in range(1, 5)), *(f"tool {n}" for n in range(1, 5))}, 8),
        ([1, 3], 0.6, 1, {*(f"action {n}" for n in range(1, 5)), *(f"tool {n}" for n in range(1, 5))}, 9),
        ([1], 0.85, 2, {"action 1", "tool 1"}, 1),
        ([9], 0.5, 2, set(), 0),
        ([4], 0.0, 9, {"action 4", "tool 4"}, 1),
    ],
)
def test_recommend_subgraph(starts: list[int], threshold: float, hops: int, vertices: set[str], edges: int) -> None:
    service = four_actions()
    found = service.recommend_subgraph([action(number) for number in starts], threshold, hops)
    assert set(found.vertices()) == vertices
    assert len(found.edges()) == edges
    assert all(found.get_score(u, v) >= threshold for u, v in found.edges())


def test_the_worked_example() -> None:
    service, one, two, three = ToolkitService(), action(1), action(2), action(3)
    for each in (two, three):
        service.add_action(each, [], [])
    service.add_action(one, [(two, 0.8), (three, 0.5)], [])
    service.add_tool(tool(1), [(one, 0.9)])
    service.add_tool(tool(2), [(two, 0.6)])
    service.add_tool(tool(3), [(two, 0.59)])
    tools, actions = service.recommend_tools_actions([one], threshold=0.6, hops=1)
    assert [each.name for each in actions] == ["Action 1", "Action 2"]
    assert [each.name for each in tools] == ["tool_1", "tool_2"]
    assert all(service.get_toolkit().has_vertex(each.id) for each in [*tools, *actions])


def test_groups_are_never_recommended_but_their_tools_are() -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "search"), [(action(1), 0.9)])
    tools, actions = service.recommend_tools_actions([action(1)])
    assert sorted(each.name for each in tools) == ["search", "tool_1"]
    assert actions == [action(1)]
    assert not service.recommend_subgraph([action(1)]).has_vertex("group g")


def test_a_recommendation_shares_nothing_with_the_toolkit() -> None:
    service = four_actions()
    found = service.recommend_subgraph([action(1)], hops=2)
    found.set_score("action 1", "action 2", 0.0)
    found.remove_vertex("action 1")
    assert service.get_toolkit().get_score("action 1", "action 2") == 0.8
    assert service.get_toolkit().vertices_count() == 8


@pytest.mark.parametrize(("threshold", "hops"), [(float("nan"), 0), (0.5, -1)])
def test_a_recommendation_without_sense_is_refused(threshold: float, hops: int) -> None:
    with pytest.raises(ValueError, match="give hops ≥ 0 and a number"):
        four_actions().recommend_subgraph([action(1)], threshold, hops)


def test_a_cycle_of_actions_ends() -> None:
    service = four_actions()
    service.add_action(action(4), next_actions=[(action(1), 1.0)], prev_actions=[])
    assert service.recommend_subgraph([action(1)], hops=1_000).vertices_count() == 8


def test_the_result_of_an_unreadable_call() -> None:
    result = FunctionCallResult.error("no JSON")
    assert result == FunctionCallResult("", {}, "", "no JSON", FunctionCallStatus.FAILED)
    assert FunctionCallResult("add", {"a": 1}, "sum", "3").status is FunctionCallStatus.SUCCEEDED


def test_an_action_copies_its_tools() -> None:
    original = Action("a", "A", "", ["b"], [tool(1)])
    copied = original.copy()
    copied.next_action_ids.append("c")
    assert (original.next_action_ids, copied.tools[0].id) == (["b"], "tool 1")


def test_arguments_of_another_type_are_named(service: ToolkitService) -> None:
    look = Action("look", "Look up", "")
    service.add_action(look, [], [])
    tool = Tool("find", "", print, id="find")
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: service.add_action("look", [], []), r"action must be an Action\(id, name, description\), not a str"),  # type: ignore[arg-type]
        (
            lambda: service.add_action(Action("b", "B", ""), [], [look]),
            r"prev_actions must be a list .* it has an Action",
        ),  # type: ignore[list-item]
        (
            lambda: service.add_tool(tool, look),
            r"connected_actions must be a list .*, such as \[\(look, 0.9\)\], not an",
        ),  # type: ignore[arg-type]
        (
            lambda: service.add_tool(tool, [(look, "0.9")]),
            "the score of action 'Look up' must be a number .* not a str",
        ),  # type: ignore[list-item]
        (lambda: service.add_tool(print, [(look, 0.9)]), r"the function print is no tool\. Fix: write Tool\("),  # type: ignore[arg-type]
        (lambda: service.recommend_subgraph(["look"]), "each of actions must be an Action, .* not a str"),  # type: ignore[list-item]
        (
            lambda: service.recommend_subgraph(look),
            r"actions must be a list of actions, such as \[look\], not an Action",
        ),  # type: ignore[arg-type]
        (lambda: ToolkitService(service), "toolkit must be a Toolkit, .* not a ToolkitService"),  # type: ignore[arg-type]
        (lambda: service.visualize(service, ""), "graph must be a Toolkit, .* not a ToolkitService"),  # type: ignore[arg-type]
        (lambda: Toolkit.of("tools/"), "dispatcher must be a dispatcher, .* not a str"),  # type: ignore[arg-type]
        (lambda: Toolkit().learn("learned.db"), "dispatcher must be a dispatcher, .* not a str"),  # type: ignore[arg-type]
        (lambda: service.recommend_subgraph([look], hops="1"), "hops must be a whole number, not a str"),  # type: ignore[arg-type]
    ]
    for make, told in mistakes:
        with pytest.raises(TypeError, match=told):
            make()
    assert service.get_toolkit().vertices() == ["look"]


def test_actions_and_scores_may_be_any_iterable(service: ToolkitService) -> None:
    look, reply = Action("look", "Look up", ""), Action("reply", "Reply", "")
    service.add_action(look, [], [])
    service.add_action(reply, iter([]), zip([look], [0.9], strict=True))  # type: ignore[arg-type]
    service.add_tool(Tool("find", "", print, id="find"), zip([look, reply], [0.8, 0.7], strict=True))  # type: ignore[arg-type]
    assert sorted(service.get_toolkit().edges()) == [("look", "find"), ("look", "reply"), ("reply", "find")]
