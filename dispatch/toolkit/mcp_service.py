"""MCP servers as groups of tools."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from dispatch.toolkit.tool import Tool, ToolType
from dispatch.toolkit.tool_group import ToolConnection, ToolGroup, ToolGroupConfig, ToolGroupType


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
        self._mcp_config = mcp_config
        self._connect = connect

    @classmethod
    def of(cls, name: str, transport: McpTransportConfig, connect: ConnectMcp | None, id: str) -> McpService:
        """Return the server ``name``."""
        return cls(McpConfig(ToolGroupType.MCP, name, transport), connect, id=id)

    @property
    def transport_config(self) -> McpTransportConfig:
        """How it is reached."""
        return self._mcp_config.transport_config

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
            from dispatch.mcp.toolkit_connection import connect_mcp

            connect = connect_mcp
        return await connect(self._mcp_config)

    async def list_tools(self) -> list[Tool]:
        """List the tools of the server."""
        connection = await self.create_connection()
        try:
            listed = await connection.list_tools()
        finally:
            await connection.close()
        return [McpTool(each.name, _describe(each), self, id=f"{self.get_id()}/{each.name}") for each in listed]

    async def call(self, tool_name: str, **arguments: Any) -> Any:
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

        function = tool_group.call if is_whole else call_tool
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
