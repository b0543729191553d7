"""The directed graph below a toolkit: vertices by id, edges with a score."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import networkx as nx

DEFAULT_SCORE: Final = 1.0
"""Score of an edge without a written one."""
DEFAULT_THRESHOLD: Final = 0.5
"""Smallest score of an edge for recommendations, as in Chat2Graph."""
DEFAULT_HOPS: Final = 0
"""Steps along Next edges for recommendations, as in Chat2Graph: the tools of the actions alone."""
DATA: Final = "data"
"""Attribute of a vertex in the networkx graph."""
SCORE: Final = "score"
"""Attribute of an edge in the networkx graph. The score disappears with its edge."""


class Graph:
    """A directed graph of vertex ids over a :class:`networkx.DiGraph`.

    Args:
        graph: used as it is, not copied; None: an empty one.
    """

    def __init__(self, graph: nx.DiGraph[str] | None = None) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph() if graph is None else graph

    def add_edge(self, u_of_edge: str, v_of_edge: str) -> None:
        """Add an edge; an existing one keeps its score.

        Raises:
            ValueError: one of the vertices does not exist.
        """
        for vertex in (u_of_edge, v_of_edge):
            if vertex not in self._graph:
                raise ValueError(f"The edge cannot be added: there is no vertex {vertex!r}. Add the vertex first.")
        self._graph.add_edge(u_of_edge, v_of_edge)

    def has_vertex(self, id: str) -> bool:
        """Return whether the vertex exists."""
        return id in self._graph

    def vertices(self) -> list[str]:
        """Return the vertices in topological order; as stored if there is a cycle."""
        try:
            return list(nx.topological_sort(self._graph))
        except nx.NetworkXUnfeasible:
            return list(self._graph)

    def edges(self) -> list[tuple[str, str]]:
        """Return the edges in the topological order of their first vertices; as stored if there is a cycle."""
        adjacent = self._graph.adj
        return [(u, v) for u in self.vertices() for v in adjacent[u]]

    def predecessors(self, id: str) -> list[str]:
        """Return the vertices with an edge to ``id``. Raises networkx.NetworkXError: there is no such vertex."""
        return list(self._graph.predecessors(id))

    def successors(self, id: str) -> list[str]:
        """Return the vertices with an edge from ``id``. Raises networkx.NetworkXError: there is no such vertex."""
        return list(self._graph.successors(id))

    def out_degree(self, vertex: str) -> int:
        """Return the number of edges from ``vertex``."""
        return len(self._graph.adj[vertex])

    def vertices_count(self) -> int:
        """Return the number of vertices."""
        return len(self._graph)

    def get_graph(self) -> nx.DiGraph[str]:
        """Return the networkx graph itself: changes of it are changes of this graph."""
        return self._graph

    def get_score(self, u: str, v: str) -> float:
        """Return the score of an edge; 1.0 without a written one, or without the edge."""
        score: float = self._graph.get_edge_data(u, v, {}).get(SCORE, DEFAULT_SCORE)
        return score

    def set_score(self, u: str, v: str, score: float) -> None:
        """Set the score of an edge.

        Raises:
            ValueError: the edge does not exist, or the score is not in [0, 1].
        """
        if not 0 <= score <= 1:
            raise ValueError(f"The score {score!r} of the edge from {u!r} to {v!r} is not in [0, 1]. Give one that is.")
        if not self._graph.has_edge(u, v):
            raise ValueError(f"There is no edge from {u!r} to {v!r} that could have a score. Add the edge first.")
        self._graph.adj[u][v][SCORE] = float(score)

    def remove_vertex(self, id: str) -> None:
        """Remove a vertex with its edges; an unknown id is ignored."""
        if id in self._graph:
            self._graph.remove_node(id)

    def remove_vertices(self, ids: Iterable[str]) -> None:
        """Remove several vertices, each as :meth:`remove_vertex` does."""
        for id in list(ids):
            self.remove_vertex(id)

    def remove_edge(self, u_of_edge: str, v_of_edge: str) -> None:
        """Remove an edge and its score. Raises networkx.NetworkXError: there is no such edge."""
        self._graph.remove_edge(u_of_edge, v_of_edge)

    def to_json_str(self) -> str:
        """Return vertices and edges as JSON: ``{"vertices": [{"id"}], "edges": [{"source", "target", "score"}]}``."""
        document = {
            "vertices": [self._describe_vertex(vertex) for vertex in self._graph],
            "edges": [{"source": u, "target": v, "score": self.get_score(u, v)} for u, v in self._graph.edges],
        }
        return json.dumps(document, indent=4, ensure_ascii=False)

    @classmethod
    def from_json_str(cls, json_str: str) -> Any:
        """Return the graph of a JSON text in the form of :meth:`to_json_str`; a missing score is 1.0.

        Raises:
            ValueError: not JSON, or a score is not in [0, 1].
            KeyError: a key is missing.
        """
        document = json.loads(json_str)
        graph = cls()
        for vertex in document["vertices"]:
            graph._restore_vertex(vertex)
        for edge in document["edges"]:
            graph.add_edge(edge["source"], edge["target"])
            graph.set_score(edge["source"], edge["target"], edge.get("score", DEFAULT_SCORE))
        return graph

    def _describe_vertex(self, id: str) -> dict[str, Any]:
        return {"id": id}

    def _restore_vertex(self, vertex: dict[str, Any]) -> None:
        self._graph.add_node(vertex["id"])
