"""A toolkit as Mermaid and as GraphML."""

from __future__ import annotations

import html

import networkx as nx

from dispatch.toolkit.action import Action
from dispatch.toolkit.tool import Tool
from dispatch.toolkit.toolkit import Toolkit, Vertex


def render_mermaid(graph: Toolkit) -> str:
    """Return a flowchart for Mermaid: actions rounded, tools rectangular, groups hexagonal, edges with their scores."""
    lines = ["flowchart LR"]
    numbers: dict[str, str] = {}
    for id, properties in graph.vertices_data():
        data = properties["data"]
        numbers[id] = f"v{len(numbers)}"
        first, last = {"action": ("(", ")"), "tool": ("[", "]")}.get(_kind(data), ("{{", "}}"))
        label = html.escape(" ".join(data.name.split())).replace("&#x27;", "'").replace("&", "#").replace("`", "#96;")
        lines.append(f'    {numbers[id]}{first}"{label}"{last}:::{_kind(data)}')
    for u, v in graph.edges():
        if u in numbers and v in numbers:
            arrow = "-.->" if graph.is_tool_group(u) else "==>" if graph.is_action(v) else "-->"
            lines.append(f"    {numbers[u]} {arrow}|{graph.get_score(u, v):.2f}| {numbers[v]}")
    lines += [
        "    classDef action fill:#cfe3f7,stroke:#2b6cb0",
        "    classDef tool fill:#d5f0d5,stroke:#2f855a",
        "    classDef group fill:#fde7c8,stroke:#b7791f,stroke-dasharray:4",
    ]
    return "\n".join(lines) + "\n"


def render_graphml(graph: Toolkit) -> str:
    """Return the toolkit as GraphML: vertices with ``kind``, ``name`` and ``description``, edges with ``kind`` and
    ``score``."""
    plain: nx.DiGraph[str] = nx.DiGraph()
    for id, properties in graph.vertices_data():
        data = properties["data"]
        description = data.description if isinstance(data, Action | Tool) else ""
        plain.add_node(id, kind=_kind(data), name=_keep_xml(data.name), description=_keep_xml(description))
    for u, v in graph.edges():
        if u in plain and v in plain:
            kind = "group_has_tool" if graph.is_tool_group(u) else "next" if graph.is_action(v) else "call"
            plain.add_edge(u, v, kind=kind, score=graph.get_score(u, v))
    return "\n".join(nx.generate_graphml(plain)) + "\n"


def _kind(data: Vertex) -> str:
    return "action" if isinstance(data, Action) else "tool" if isinstance(data, Tool) else "group"


def _keep_xml(text: str) -> str:
    """Replace characters that XML cannot hold."""
    return "".join(c if c in "\t\n\r" or (c >= " " and c not in "\ufffe\uffff") else "\ufffd" for c in text)
