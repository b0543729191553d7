"""Recommendation: the actions and tools that are within reach of given actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import networkx as nx

from dispatch.toolkit.graph import DEFAULT_SCORE, SCORE
from dispatch.toolkit.toolkit import Toolkit


def recommend_subgraph(
    toolkit: Toolkit,
    action_ids: Iterable[str],
    threshold: float,
    hops: int,
    is_visible: Callable[[str], bool] = lambda _tool: True,
) -> Toolkit:
    """Return the part of ``toolkit`` within reach of given actions, as a new toolkit.

    Starting with the actions that exist, Next edges with a score ≥ ``threshold`` are followed for ``hops`` steps; then the
    tools are added that one of these actions calls with a score ≥ ``threshold``. The result has the edges between them with
    a score ≥ ``threshold``. The cost depends on the size of the result and not on that of the toolkit.

    Args:
        is_visible: whether the result may contain the tool of this id.

    Raises:
        ValueError: ``hops`` is negative, or ``threshold`` is not a number.
    """
    if hops < 0 or threshold != threshold:
        raise ValueError(f"hops {hops!r} and threshold {threshold!r}: give hops ≥ 0 and a number as the threshold.")
    graph = toolkit.get_graph()
    adjacent = graph.adj
    is_action, is_tool = toolkit.is_action, toolkit.is_tool
    kept = {id: None for id in action_ids if is_action(id)}
    newest = list(kept)
    for _ in range(hops):
        reached = []
        for action in newest:
            for id, edge in adjacent[action].items():
                if id not in kept and edge.get(SCORE, DEFAULT_SCORE) >= threshold and is_action(id):
                    kept[id] = None
                    reached.append(id)
        newest = reached
        if not newest:
            break
    hidden: set[str] = set()
    edges = []
    for action in list(kept):
        for id, edge in adjacent[action].items():
            if edge.get(SCORE, DEFAULT_SCORE) < threshold or id in hidden:
                continue
            if id not in kept:
                if not is_tool(id):
                    continue
                if not is_visible(id):
                    hidden.add(id)
                    continue
                kept[id] = None
            edges.append((action, id, edge))
    result: nx.DiGraph[str] = nx.DiGraph()
    nodes = graph.nodes
    result.add_nodes_from((id, nodes[id]) for id in kept)
    result.add_edges_from(edges)
    return Toolkit(result)
