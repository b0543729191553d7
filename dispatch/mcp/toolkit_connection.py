"""Connections to the MCP servers of a toolkit file: one session for one use."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from dispatch._internal.version import __version__

if TYPE_CHECKING:
    from mcp import Client

    from dispatch.toolkit.mcp_service import McpConfig, McpTransportConfig


class ToolkitConnection:
    """A session with one server, for :class:`dispatch.toolkit.McpService`. The task that opens it must close it.

    Args:
        client: of the session.
        stack: closes the session.
    """

    def __init__(self, client: Client, stack: AsyncExitStack) -> None:
        self._client = client
        self._stack = stack

    async def call(self, tool_name: str, **arguments: Any) -> str:
        """Call a tool and return its result as text.

        Raises:
            ToolError: the tool's own error.
        """
        from mcp import types

        from dispatch.mcp.client.results import error_from_input_required, read_result

        result = await self._client.call_tool(tool_name, arguments)
        if isinstance(result, types.InputRequiredResult):
            raise error_from_input_required(tool_name, result)
        return read_result(result, "").text

    async def list_tools(self) -> list[Any]:
        """List the tools of the server, from all pages."""
        from mcp import types

        from dispatch.mcp.client.tool_list import ToolList

        return [tool for tool in await ToolList(poll=False).read(self._client) if isinstance(tool, types.Tool)]

    async def close(self) -> None:
        """End the session, and the process of the server."""
        await self._stack.aclose()


async def connect_mcp(config: McpConfig) -> ToolkitConnection:
    """Open a connection to an MCP server of a toolkit.

    Raises:
        ImportError: MCP's SDK is not installed; the message names the extra.
        Exception: of the SDK: the server cannot be reached.
    """
    from mcp import Client, types

    async with AsyncExitStack() as stack:
        client = Client(
            _open_transport(config.name, config.transport_config),
            mode="auto",
            client_info=types.Implementation(name="dispatch", version=__version__),
        )
        await stack.enter_async_context(client)
        return ToolkitConnection(client, stack.pop_all())


def _open_transport(name: str, config: McpTransportConfig) -> Any:
    from dispatch.mcp.client.transports.http import HttpTransport, check_headers
    from dispatch.mcp.client.transports.stdio import StdioTransport

    headers = {key: str(value) for key, value in config.headers.items()}
    match config.transport_type.value:
        case "STDIO":
            return StdioTransport(name, config.command, config.args or (), config.env, None)
        case "SSE":
            from mcp.client.sse import sse_client

            return sse_client(
                config.url, check_headers(headers), timeout=config.timeout, sse_read_timeout=config.sse_read_timeout
            )
    return HttpTransport(config.url, headers)
