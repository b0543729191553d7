"""The toolkit: a graph of actions, tools and groups of tools."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import networkx as nx

from dispatch._internal import check_instance
from dispatch.dispatcher import BoundTool, Dispatcher
from dispatch.errors import ErrorType, RejectedError
from dispatch.telemetry.events import CatalogChanged, Event
from dispatch.toolkit.files import Operator, ToolkitFile, read_file, refuse_calls, write_file
from dispatch.toolkit.files import Vertex as FileVertex
from dispatch.toolkit.graph import DATA, DEFAULT_SCORE, SCORE, Action, ConnectMcp, Graph, Tool, ToolGroup, ToolType
from dispatch.toolkit.learning import HALF_LIFE_DAYS, Learner

if TYPE_CHECKING:
    from dispatch.catalog import ToolDescriptor


# The tools of a dispatcher's live catalogue as tools of a toolkit.


logger = logging.getLogger("dispatch.toolkit")

_DISPATCHER: Final = "a dispatcher, as 'async with dispatch.connect(…) as dispatcher:' gives it"

MAX_WITHDRAWN: Final = 10_000
"""Removed tools whose edges are retained: names that come and go use bounded memory."""


class CatalogFollower:
    """Adds the tools of the catalogue to a toolkit, under their names as ids, and follows every change.

    A tool that leaves the catalogue leaves the toolkit; its edges are retained and come back with it. The listener at the
    dispatcher does not keep the toolkit alive.
    """

    def __init__(self, toolkit: Toolkit, dispatcher: Dispatcher) -> None:
        self._toolkit = toolkit
        self._dispatcher = dispatcher
        self._known: dict[str, ToolDescriptor] = {}
        self._withdrawn: dict[str, list[tuple[str, float]]] = {}
        """Vertices that point to a removed tool, with their scores."""
        for id, properties in toolkit.vertices_data():
            data = properties["data"]
            if (
                isinstance(data, Tool)
                and data.tool_type is ToolType.DISPATCH_TOOL
                and id not in dispatcher.catalog.tools
            ):
                self._withdraw(id)
        self.update()
        reference = weakref.ref(self)

        def on_event(event: Event) -> None:
            follower = reference()
            if follower is None:
                unsubscribe()
            elif isinstance(event, CatalogChanged) and event.ok:
                follower.update()

        unsubscribe = dispatcher.on_event(on_event)
        self._unsubscribe = unsubscribe

    def close(self) -> None:
        """Follow no further changes."""
        self._unsubscribe()

    def has_tool(self, id: str) -> bool:
        """Return whether the vertex is a tool of the catalogue."""
        return id in self._known

    def update(self) -> None:
        """Make the toolkit's tools those of the catalogue in force."""
        tools = self._dispatcher.catalog.tools
        for name in [name for name in self._known if name not in tools]:
            del self._known[name]
            self._withdraw(name)
        for name, descriptor in tools.items():
            if self._known.get(name) is descriptor:
                continue
            if self._toolkit.has_vertex(name) and not self._toolkit.is_tool(name):
                logger.warning(
                    "tool %r of the catalogue is not in the toolkit: another vertex has its name as id", name
                )
                continue
            self._known[name] = descriptor
            self._toolkit.add_vertex(name, data=self.bind_tool(name, ""))
            for id, score in self._withdrawn.pop(name, ()):
                if self._toolkit.has_vertex(id):
                    self._toolkit.add_edge(id, name)
                    self._toolkit.set_score(id, name, score)

    def bind_tool(self, id: str, user: str) -> Tool:
        """Return the tool, called on behalf of ``user``."""
        handle = BoundTool(self._dispatcher, self._known[id], user)
        return Tool(id, handle.description, handle.invoke, ToolType.DISPATCH_TOOL, id=id)

    def is_visible(self, id: str, user: str) -> bool:
        """Return whether ``user`` may call the tool; True for a vertex that is no tool of the catalogue.

        Raises:
            RejectedError: ``permissions-unavailable``: the permissions of ``user`` are not cached.
        """
        if id not in self._known:
            return True
        try:
            self._dispatcher.tool(id, user=user)
        except RejectedError as error:
            if error.type == ErrorType.PERMISSIONS_UNAVAILABLE:
                raise
            return False
        return True

    def _withdraw(self, name: str) -> None:
        toolkit = self._toolkit
        if not toolkit.has_vertex(name):
            return
        while len(self._withdrawn) >= MAX_WITHDRAWN:
            del self._withdrawn[next(iter(self._withdrawn))]
        self._withdrawn[name] = [(id, toolkit.get_score(id, name)) for id in toolkit.predecessors(name)]
        toolkit.remove_vertex(name)


Vertex = Action | Tool | ToolGroup
DEFINITION: Final = "definition"
"""Attribute of a vertex in the networkx graph: its object in the file."""


class Toolkit(Graph):
    """A directed graph with three kinds of edges, each with a score in [0, 1]:

    - Next: Action → Action
    - Call: Action → Tool
    - Group_Has_Tool: ToolGroup → Tool

    Attributes:
        operators: steps of agents that use its actions, as the file declares them; empty without a file.
        follower: the connection to a live catalogue (:meth:`follow`); None: without one.
        learner: that of :meth:`learn`; None: the written scores are used.
    """

    def __init__(self, graph: nx.DiGraph[str] | None = None) -> None:
        super().__init__(graph)
        self.operators: tuple[Operator, ...] = ()
        self._file = ToolkitFile()
        self.follower: CatalogFollower | None = None
        self.learner: Learner | None = None

    @classmethod
    def of(cls, dispatcher: Dispatcher) -> Toolkit:
        """Return a toolkit with the tools of a dispatcher's catalogue; see :meth:`follow`."""
        return cls().follow(dispatcher)

    def follow(self, dispatcher: Dispatcher) -> Toolkit:
        """Make the tools of a dispatcher's live catalogue tools of this toolkit, with their names as ids, and follow every
        change of the catalogue. Call it on the dispatcher's event loop. Returns this toolkit.

        A tool that is removed from the catalogue is removed here; when it comes back, it has its edges again. A
        recommendation contains only those that its user may call. A second dispatcher replaces the first one.
        """
        check_instance("dispatcher", dispatcher, Dispatcher, _DISPATCHER)
        if self.follower is not None:
            self.follower.close()
        self.follower = CatalogFollower(self, dispatcher)
        return self

    def learn(
        self,
        dispatcher: Dispatcher | None = None,
        *,
        store: str | Path | None = None,
        half_life_days: float = HALF_LIFE_DAYS,
        clock: Callable[[], float] | None = None,
    ) -> Learner:
        """Learn the scores of the edges from use: recommendations use learned scores from now on. The written scores,
        which :meth:`Toolkit.get_score` returns and :meth:`Toolkit.save` writes, remain.

        A second call replaces the learner: the former one is closed.

        Args:
            dispatcher: its calls are observed; None: :meth:`ToolkitService.update_action` and the methods of the learner
                record what was called.
            store: file of the evidence, which several processes may share; None: in memory alone.
            half_life_days: after which an observation counts half.
            clock: seconds since 1970; None: the time of the system.

        Raises:
            ValueError: the half-life is not positive, or the file is a database of another application.
            OSError: the folder of the file does not exist, or it cannot be read.
        """
        check_instance("dispatcher", dispatcher, (Dispatcher, NoneType), _DISPATCHER)
        learner = Learner(self, store, half_life_days=half_life_days, clock=clock)
        if self.learner is not None:
            self.learner.close()
        self.learner = learner
        if dispatcher is not None:
            learner.observe(dispatcher)
        return learner

    @classmethod
    def load(cls, file: str | Path, *, connect_mcp: ConnectMcp | None = None) -> Toolkit:
        """Read a YAML file in the form of Chat2Graph. Needs PyYAML: the extra ``yaml``.

        Each row of ``toolkit`` is a chain of its own. A tool or MCP server that several actions use is one vertex. Nothing
        is imported and no server is contacted before a tool is called: a server has one tool with its name, which stands
        for those that :meth:`ToolkitService.add_tool_group` lists later.

        Args:
            connect_mcp: opens a connection to an MCP server; None: with MCP's SDK (extra ``mcp``).

        Raises:
            CatalogError: mistakes in the file, each with its key and fix; it cannot be read; or PyYAML is missing.
        """
        content = read_file(file, connect_mcp)
        toolkit = cls()
        for vertex in content.vertices:
            toolkit.add_vertex(vertex.id, data=vertex.data)
            if vertex.definition is not None:
                toolkit._graph.nodes[vertex.id][DEFINITION] = vertex.definition
        for (u, v), score in content.scores.items():
            toolkit.add_edge(u, v)
            toolkit.set_score(u, v, score)
        toolkit.operators = tuple(content.operators)
        toolkit._file = content
        return toolkit

    def save(self, file: str | Path) -> None:
        """Write a YAML file that :meth:`load` reads as the same toolkit, and Chat2Graph without its scores. Keys of a loaded
        file that a toolkit does not use are written again.

        Raises:
            ValueError: a function or a group cannot be named in a file; the message names it.
            ImportError: PyYAML is missing.
            OSError: the file cannot be written.
        """
        vertices = [
            FileVertex(id, properties[DATA], properties.get(DEFINITION))
            for id, properties in self._graph.nodes(data=True)
            if DATA in properties
        ]
        scores = {(u, v): self.get_score(u, v) for u, v in self._graph.edges}
        write_file(file, ToolkitFile(vertices, scores, self._file.chains, [], self._file.rest))

    def add_vertex(self, id: str, **properties: Any) -> None:
        """Add a vertex, or replace the data of an existing one; its edges remain.

        Args:
            id: of the vertex.
            properties: ``data``: an Action, Tool, ToolGroup or :class:`dispatch.BoundTool`.

        Raises:
            ValueError: ``data`` is missing or of another type.
        """
        data = properties.get(DATA)
        if not isinstance(data, Action | Tool | ToolGroup):
            if data is None or not hasattr(data, "invoke"):
                raise ValueError(f"The vertex {id!r} cannot be added: 'data' must be an Action, Tool or ToolGroup.")
            data = Tool.of(data)
        self._graph.add_node(id, **{DATA: data})

    def vertices_data(self) -> list[tuple[str, dict[str, Vertex]]]:
        """Return each vertex with ``{"data": …}``, as :meth:`get_action`, :meth:`get_tool` or :meth:`get_tool_group` returns
        it. Vertices without data (from a plain networkx graph) are omitted."""
        found = ((id, self.get_data(id)) for id in self._graph)
        return [(id, {DATA: data}) for id, data in found if data is not None]

    def set_score(self, u: str, v: str, score: float) -> None:
        """Set the written score of an edge.

        Raises:
            ValueError: the edge does not exist, or the score is not in [0, 1].
        """
        super().set_score(u, v, score)
        if self.learner is not None:
            self.learner.forget_scores(u)

    def update(self, other: Graph) -> None:
        """Add the vertices and edges of another toolkit. The data of an existing vertex is replaced; an existing edge keeps
        its score.

        Raises:
            TypeError: ``other`` is no Toolkit.
        """
        if not isinstance(other, Toolkit):
            raise TypeError(f"A toolkit can be updated from a Toolkit only, not from {type(other).__name__}.")
        for id, properties in other._graph.nodes(data=True):
            self._graph.add_node(id, **properties)
        for u, v, properties in other._graph.edges(data=True):
            if not self._graph.has_edge(u, v):
                self._graph.add_edge(u, v, **properties)

    def subgraph(self, ids: Iterable[str]) -> Toolkit:
        """Return a new toolkit with those of the vertices ``ids`` that exist, and the edges between them with scores."""
        return Toolkit(self._graph.subgraph(ids).copy())

    def remove_vertex(self, id: str) -> None:
        """Remove a vertex; an unknown id is ignored.

        An Action is removed with the tools that no other vertex points to, the last tool of a group with the group, and a
        group with its tools. Tools of a live catalogue remain.
        """
        if id not in self._graph:
            return
        data = self._graph.nodes[id].get(DATA)
        successors = list(self._graph.successors(id))
        predecessors = list(self._graph.predecessors(id))
        self._graph.remove_node(id)
        if self.follower is not None:
            successors = [each for each in successors if not self.follower.has_tool(each)]
        if isinstance(data, ToolGroup):
            for tool in successors:
                self.remove_vertex(tool)
        elif isinstance(data, Action):
            for tool in successors:
                if self.is_vertex(tool, Tool) and not self._graph.in_degree(tool):
                    self.remove_vertex(tool)
        for group in predecessors:
            if self.is_vertex(group, ToolGroup) and not self._graph.out_degree(group):
                self._graph.remove_node(group)

    def get_data(self, id: str) -> Vertex | None:
        """Return what the vertex is: a copy of its Action or Tool, or its ToolGroup; None: unknown, or without data."""
        if id not in self._graph:
            return None
        data: Vertex | None = self._graph.nodes[id].get(DATA)
        if isinstance(data, Tool):
            # A subclass may create a tool with a new id in copy(), as those of Chat2Graph do.
            copied = data.copy()
            copied.id = id
            return copied
        return data.copy() if isinstance(data, Action) else data

    def get_action(self, id: str) -> Action | None:
        """Return a copy of the action; None: there is no such action."""
        data = self.get_data(id)
        return data if isinstance(data, Action) else None

    def get_tool(self, id: str) -> Tool | None:
        """Return a copy of the tool, with the id of its vertex; None: there is no such tool."""
        data = self.get_data(id)
        return data if isinstance(data, Tool) else None

    def get_tool_group(self, id: str) -> ToolGroup | None:
        """Return the group itself; None: there is no such group."""
        data = self.get_data(id)
        return data if isinstance(data, ToolGroup) else None

    def is_action(self, id: str) -> bool:
        """Return whether the vertex is an action."""
        return self.is_vertex(id, Action)

    def is_tool(self, id: str) -> bool:
        """Return whether the vertex is a tool."""
        return self.is_vertex(id, Tool)

    def is_tool_group(self, id: str) -> bool:
        """Return whether the vertex is a group."""
        return self.is_vertex(id, ToolGroup)

    def _describe_vertex(self, id: str) -> dict[str, Any]:
        data = self.get_data(id)
        if isinstance(data, Action):
            return {"id": id, "kind": "action", "name": data.name, "description": data.description}
        if isinstance(data, Tool):
            kind = data.tool_type.value
            return {"id": id, "kind": "tool", "name": data.name, "description": data.description, "type": kind}
        return {"id": id}

    def _restore_vertex(self, vertex: dict[str, Any]) -> None:
        id, kind = vertex["id"], vertex.get("kind")
        if kind == "action":
            self.add_vertex(id, data=Action(id, vertex["name"], vertex["description"]))
        elif kind == "tool":
            unbound = refuse_calls(
                vertex["name"],
                "JSON holds the graph, not the functions of its tools. Add the tool with its function (add_vertex), or "
                "store the toolkit with save().",
            )
            tool_type = ToolType(vertex["type"])
            self.add_vertex(id, data=Tool(vertex["name"], vertex["description"], unbound, tool_type, id=id))
        else:
            super()._restore_vertex(vertex)


# Recommendation: the actions and tools that are within reach of given actions.


def recommend_subgraph(toolkit: Toolkit, action_ids: Iterable[str], threshold: float, hops: int, user: str) -> Toolkit:
    """Return the part of ``toolkit`` within reach of given actions, as a new toolkit.

    Starting with the actions that exist, Next edges with a score ≥ ``threshold`` are followed for ``hops`` steps; then the
    tools are added that one of these actions calls with a score ≥ ``threshold``. The result has the edges between them with
    a score ≥ ``threshold``. The cost depends on the size of the result and not on that of the toolkit. The scores are those
    that the toolkit's learner has learned, also in the result, otherwise the written ones.

    Args:
        user: that may call the tools of a live catalogue in the result.

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
    follower, learner = toolkit.follower, toolkit.learner
    if learner is not None:
        learner.refresh()

    def read_edges(action: str) -> list[tuple[str, dict[str, Any], float]]:
        """Return targets, attributes and scores of the edges with a score ≥ ``threshold``."""
        edges_of = adjacent[action]
        learned = no_scores if learner is None else learner.read_scores(action, edges_of)
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
                if follower is not None and not follower.is_visible(id, user):
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
