"""The parts of a toolkit: its directed graph, actions, tools, and groups of tools, with the names of Chat2Graph."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from types import UnionType
from typing import Any, Final, Protocol
from uuid import uuid4

import networkx as nx

from dispatch._internal import describe_type, read_text, type_name, yield_to_others
from dispatch.calling import CallableTool
from dispatch.functions import PackagedFunction, find_functions

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

    def is_vertex(self, id: str, kind: type | UnionType) -> bool:
        """Return whether there is such a vertex and its data is a ``kind``."""
        return id in self._graph and isinstance(self._graph.nodes[id].get(DATA), kind)

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


# Tools of a toolkit, with the names of Chat2Graph.


class ToolType(Enum):
    """How a tool is executed."""

    LOCAL_TOOL = "LOCAL_TOOL"
    """A Python function."""
    MCP_TOOL = "MCP_TOOL"
    """A tool of an MCP server."""
    DISPATCH_TOOL = "DISPATCH_TOOL"
    """A tool of a dispatcher's catalogue. Not in Chat2Graph."""


class Tool:
    """A function that a model may call.

    Args:
        name: name for the model.
        description: text by which the model chooses the tool.
        function: called with named arguments; sync or async.
        tool_type: how it is executed.
        id: id of its vertex; None: a new one.
    """

    def __init__(
        self,
        name: str,
        description: str,
        function: Callable[..., Any],
        tool_type: ToolType = ToolType.LOCAL_TOOL,
        *,
        id: str | None = None,
    ) -> None:
        self.id = str(uuid4()) if id is None else id
        self.name = name
        self.description = description
        self.function = function
        self.tool_type = tool_type

    @classmethod
    def of(cls, tool: Tool | CallableTool) -> Tool:
        """Return ``tool`` itself, or the vertex of a :class:`dispatch.BoundTool`: its id is the name of the tool.

        Raises:
            TypeError: it is no tool.
        """
        if isinstance(tool, Tool):
            return tool
        if not isinstance(getattr(tool, "name", None), str) or not callable(getattr(tool, "invoke", None)):
            fix = 'write Tool("find_order", "Find an order.", find_order), or give dispatcher.tool(NAME)'
            raise TypeError(f"{describe_type(tool)} is no tool. Fix: {fix}.")
        return Tool(tool.name, tool.description, tool.invoke, ToolType.DISPATCH_TOOL, id=tool.name)

    def copy(self) -> Tool:
        """Return a copy with the same id."""
        return copy.copy(self)

    def with_id(self, id: str) -> Tool:
        """Return a copy with another id."""
        copied = self.copy()
        copied.id = id
        return copied

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


# Actions of a toolkit: the decision points of an agent.


@dataclass
class Action:
    """A state or decision point of an agent.

    Attributes:
        id: id of its vertex.
        name: name for the model.
        description: text by which the model recognizes the action.
        next_action_ids: ids of actions that follow. For the user's own purposes, as in Chat2Graph: the graph has the edges.
        tools: tools of the action. For the user's own purposes, too.
    """

    id: str
    name: str
    description: str
    next_action_ids: list[str] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)

    def copy(self) -> Action:
        """Return a copy with the same id."""
        tools = [tool.copy() for tool in self.tools]
        return Action(self.id, self.name, self.description, list(self.next_action_ids), tools)


# Groups of tools: an MCP server, or a Python package.


class ToolkitWarning(UserWarning):
    """A part of a toolkit was ignored; the message says which one and why."""


class ToolGroupType(Enum):
    """The kinds of groups."""

    MCP = "MCP"
    PACKAGE = "PACKAGE"


@dataclass
class ToolGroupConfig:
    """Kind and name of a group.

    Attributes:
        name: of a package: its name for ``import``.
    """

    type: ToolGroupType
    name: str


class ToolConnection(Protocol):
    """A connection to the server of a group."""

    async def call(self, tool_name: str, /, **kwargs: Any) -> Any:
        """Call a tool of the group."""

    async def list_tools(self) -> list[Any]:
        """List the tools: objects with ``name`` and ``description``."""

    async def close(self) -> None:
        """Close the connection."""


class ToolGroup(ABC):
    """Tools that belong together.

    Args:
        tool_group_config: kind and name.
        id: id of its vertex; None: a new one.
    """

    def __init__(self, tool_group_config: ToolGroupConfig, *, id: str | None = None) -> None:
        self._id = str(uuid4()) if id is None else id
        self._tool_group_config = tool_group_config

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._tool_group_config.name

    @property
    def config(self) -> ToolGroupConfig:
        """Kind, name and settings."""
        return self._tool_group_config

    def get_id(self) -> str:
        """Return the id of the vertex."""
        return self._id

    @abstractmethod
    async def list_tools(self) -> list[Tool]:
        """List the tools of the group."""


class ToolPackage(ToolGroup):
    """The public functions of a Python package and its subpackages as tools: those of :class:`dispatch.ToolPackage`.

    Args:
        package: name of the package, or a configuration with that name.
        only: names of functions or of their tools; empty: all public ones.
        id: id of its vertex; None: a new one.
    """

    def __init__(self, package: str | ToolGroupConfig, only: Collection[str] = (), *, id: str | None = None) -> None:
        config = ToolGroupConfig(ToolGroupType.PACKAGE, package) if isinstance(package, str) else package
        super().__init__(config, id=id)
        self._only = frozenset(only)

    async def list_tools(self) -> list[Tool]:
        """Import the package and list its functions: the name of a tool is that of its function, or the one given with
        :func:`dispatch.tool`, its description the docstring. A subpackage or module that cannot be imported is reported with
        a warning; the others are listed.

        Raises:
            ImportError: the package itself cannot be imported.
            ValueError: two functions have the same name, or one of ``only`` does not exist.
        """
        await yield_to_others()
        found: dict[str, PackagedFunction] = {}
        for each in find_functions(importlib.import_module(self.name), _warn_of_module):
            if self._only and not self._only & each.names:
                continue
            if each.tool_name in found:
                places = f"{found[each.tool_name].function.__module__} and {each.function.__module__}"
                raise ValueError(
                    f"Two functions {each.tool_name!r} in package {self.name!r}: in {places}. Rename one, or select with "
                    "'only'."
                )
            found[each.tool_name] = each
        if missing := self._only.difference(*(each.names for each in found.values())):
            raise ValueError(f"Package {self.name!r} has no public function {sorted(missing)[0]!r}. Correct 'only'.")
        return [
            Tool(name, inspect.getdoc(each.function) or "", each.function, id=f"{each.function.__module__}.{each.name}")
            for name, each in found.items()
        ]


def _warn_of_module(module: str, error: BaseException) -> None:
    reason = f"{type_name(error)}: {read_text(error)}"
    warnings.warn(
        f"Module {module!r} cannot be imported ({reason}); its tools are missing.", ToolkitWarning, stacklevel=2
    )


# MCP servers as groups of tools.


class McpTransportType(Enum):
    """The transports of MCP."""

    STDIO = "STDIO"
    SSE = "SSE"
    STREAMABLE_HTTP = "STREAMABLE_HTTP"


@dataclass
class McpTransportConfig:
    """How an MCP server is reached. The defaults are those of Chat2Graph.

    Attributes:
        transport_type: the transport.
        url: of the server; for SSE and STREAMABLE_HTTP.
        command, args, env: process to start; for STDIO.
        headers: of HTTP requests.
        timeout: seconds for the connection.
        sse_read_timeout: seconds for an event.
    """

    transport_type: McpTransportType
    url: str = "http://localhost:8931"
    command: str = "npx"
    args: list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    timeout: float = 5.0
    sse_read_timeout: float = 300.0

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> McpTransportConfig:
        """Return the configuration of an object ``mcp_transport_config``; unknown keys are ignored.

        Raises:
            ValueError: there is no such transport.
        """
        known = {name: config[name] for name in cls.__dataclass_fields__ if config.get(name) is not None}
        return cls(**{**known, "transport_type": McpTransportType(known.get("transport_type", "STDIO"))})

    def to_dict(self) -> dict[str, Any]:
        """Return the object ``mcp_transport_config``."""
        return {**asdict(self), "transport_type": self.transport_type.value}


@dataclass
class McpConfig(ToolGroupConfig):
    """Name and transport of an MCP server."""

    transport_config: McpTransportConfig


ConnectMcp = Callable[[McpConfig], Awaitable[ToolConnection]]
"""Opens a connection to an MCP server."""


class McpService(ToolGroup):
    """An MCP server. It is contacted to list its tools and to call one, never before.

    Args:
        mcp_config: how it is reached.
        connect: opens a connection, which is closed after its use; None: with MCP's SDK (extra ``mcp``).
        id: id of its vertex; None: a new one.
    """

    def __init__(self, mcp_config: McpConfig, connect: ConnectMcp | None = None, *, id: str | None = None) -> None:
        super().__init__(mcp_config, id=id)
        self.transport_config = mcp_config.transport_config
        self._mcp_config = mcp_config
        self._connect = connect

    @classmethod
    def of(cls, name: str, transport: McpTransportConfig, connect: ConnectMcp | None, id: str) -> McpService:
        """Return the server ``name``."""
        return cls(McpConfig(ToolGroupType.MCP, name, transport), connect, id=id)

    async def create_connection(self, tool_call_ctx: object = None) -> ToolConnection:
        """Open a connection.

        Args:
            tool_call_ctx: the call that needs it, as in Chat2Graph, which shares a connection between the calls of one
                context. Here each connection is the caller's own, so that it has no effect.

        Raises:
            ImportError: MCP's SDK is needed and not installed; the message names the extra.
            Exception: the server cannot be reached.
        """
        connect = self._connect
        if connect is None:
            from dispatch.mcp.sources import connect_server

            return await connect_server(self._mcp_config.name, **self.transport_config.to_dict())
        return await connect(self._mcp_config)

    async def list_tools(self) -> list[Tool]:
        """List the tools of the server."""
        connection = await self.create_connection()
        try:
            listed = await connection.list_tools()
        finally:
            await connection.close()
        return [McpTool(each.name, _describe(each), self, id=f"{self.get_id()}/{each.name}") for each in listed]

    async def call(self, tool_name: str, /, **arguments: Any) -> Any:
        """Call a tool of the server."""
        connection = await self.create_connection()
        try:
            return await connection.call(tool_name, **arguments)
        finally:
            await connection.close()


class McpTool(Tool):
    """A tool of an MCP server.

    Args:
        name: name at the server; None as ``tool_name``: the server as a whole, whose tools are not listed yet; its function
            has the parameter ``tool_name``.
    """

    def __init__(self, name: str, description: str, tool_group: McpService, *, id: str, is_whole: bool = False) -> None:
        async def call_tool(**arguments: Any) -> Any:
            return await tool_group.call(name, **arguments)

        async def call_any(tool_name: str, **arguments: Any) -> Any:
            return await tool_group.call(tool_name, **arguments)

        function = call_any if is_whole else call_tool
        super().__init__(name, description, function, ToolType.MCP_TOOL, id=id)
        self._tool_group = tool_group
        self.is_whole = is_whole

    def get_tool_group(self) -> McpService:
        """Return the server."""
        return self._tool_group


def _describe(tool: Any) -> str:
    """Return the description of a listed tool with its schema, as Chat2Graph shows it to the model."""
    schema = getattr(tool, "input_schema", None) or getattr(tool, "inputSchema", None)
    text = getattr(tool, "description", None) or ""
    return f"{text}\n\tInput Schema (Args):\n{json.dumps(schema, indent=4)}".lstrip("\n") if schema else text
