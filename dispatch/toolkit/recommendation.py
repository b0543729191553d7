"""Recommendation: the actions and tools that are within reach of given actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import networkx as nx

from dispatch.toolkit.action import Action
from dispatch.toolkit.graph import DATA, DEFAULT_SCORE, SCORE
from dispatch.toolkit.tool import Tool
from dispatch.toolkit.toolkit import Toolkit

ReadScores = Callable[[str, Mapping[str, dict[str, Any]]], Mapping[str, float]]
"""From the id of an action and its edges (attributes by target) to learned scores by target, of some of these edges."""


def recommend_subgraph(
    toolkit: Toolkit,
    action_ids: Iterable[str],
    threshold: float,
    hops: int,
    is_visible: Callable[[str], bool] = lambda _tool: True,
    read_scores: ReadScores | None = None,
) -> Toolkit:
    """Return the part of ``toolkit`` within reach of given actions, as a new toolkit.

    Starting with the actions that exist, Next edges with a score ≥ ``threshold`` are followed for ``hops`` steps; then the
    tools are added that one of these actions calls with a score ≥ ``threshold``. The result has the edges between them with
    a score ≥ ``threshold``. The cost depends on the size of the result and not on that of the toolkit.

    Args:
        is_visible: whether the result may contain the tool of this id.
        read_scores: returns scores that are used instead of the written ones, also in the result; None: the written ones.

    Raises:
        ValueError: ``hops`` is negative, or ``threshold`` is not a number.
    """
    if hops < 0 or threshold != threshold:
        raise ValueError(f"hops {hops!r} and threshold {threshold!r}: give hops ≥ 0 and a number as the threshold.")
    # The dictionaries behind the views of networkx, which its type stubs omit: a view costs an object and two calls for each
    # edge that is read.
    raw: Any = toolkit.get_graph()
    adjacent, nodes = raw._adj, raw._node
    no_scores: Mapping[str, float] = {}

    def read_edges(action: str) -> list[tuple[str, dict[str, Any], float]]:
        """Return targets, attributes and scores of the edges with a score ≥ ``threshold``."""
        edges_of = adjacent[action]
        learned = no_scores if read_scores is None else read_scores(action, edges_of)
        if not learned:
            return [
                (id, edge, score)
                for id, edge in edges_of.items()
                if (score := edge.get(SCORE, DEFAULT_SCORE)) >= threshold
            ]
        return [
            (id, edge, score)
            for id, edge in edges_of.items()
            if (score := learned[id] if id in learned else edge.get(SCORE, DEFAULT_SCORE)) >= threshold
        ]

    kept = {id: None for id in action_ids if id in nodes and isinstance(nodes[id].get(DATA), Action)}
    newest = list(kept)
    followed = {}
    for _ in range(hops):
        reached = []
        for action in newest:
            followed[action] = read_edges(action)
            for id, _edge, _score in followed[action]:
                if id not in kept and isinstance(nodes[id].get(DATA), Action):
                    kept[id] = None
                    reached.append(id)
        newest = reached
        if not newest:
            break
    hidden: set[str] = set()
    edges = []
    for action in list(kept):
        for id, edge, score in followed[action] if action in followed else read_edges(action):
            if id not in kept:
                if id in hidden or not isinstance(nodes[id].get(DATA), Tool):
                    continue
                if not is_visible(id):
                    hidden.add(id)
                    continue
                kept[id] = None
            edges.append((action, id, edge, score))
    return Toolkit(_build_graph(kept, edges, nodes))


def _build_graph(
    ids: Iterable[str], edges: Iterable[tuple[str, str, dict[str, Any], float]], nodes: Mapping[str, dict[str, Any]]
) -> nx.DiGraph[str]:
    """Return a new graph. ``add_nodes_from`` and ``add_edges_from`` check every vertex and edge, and take three times as
    long."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    raw: Any = graph
    own_nodes, successors, predecessors = raw._node, raw._adj, raw._pred
    for id in ids:
        own_nodes[id] = nodes[id].copy()
        successors[id] = {}
        predecessors[id] = {}
    for u, v, attributes, score in edges:
        successors[u][v] = predecessors[v][u] = copied = attributes.copy()
        copied[SCORE] = score
    return graph
