"""Mermaid and GraphML."""

from __future__ import annotations

import networkx as nx
import pytest

from dispatch.toolkit import Action, Toolkit, ToolkitService, render_graphml, render_mermaid
from tests.unit.toolkit.samples import Group, action, tool


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
