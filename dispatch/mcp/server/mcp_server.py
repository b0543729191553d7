"""An MCP server over the tools of a dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from mcp.server import Server, ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from dispatch._internal.version import __version__
from dispatch.mcp.server.stdio_streams import open_stdio
from dispatch.mcp.server.tool_calls import ToolCalls
from dispatch.mcp.server.tool_listing import describe_tool, page_of

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher

UserOf = Callable[[ServerRequestContext[Any]], str]


class McpServerOptions(TypedDict, total=False):
    """Settings of an :class:`McpServer`."""

    user: str | UserOf
    name: str


class McpServer:
    """Serves the tools of a dispatcher to MCP clients of both protocol generations.

    Args:
        dispatcher: started before the first request.
        user: on whose behalf tools are listed and called: a name, or a function of the request.
        name: of the server, for clients.

    Attributes:
        sdk_server: the low-level server of MCP's SDK.
    """

    def __init__(self, dispatcher: Dispatcher, *, user: str | UserOf = "", name: str = "dispatch") -> None:
        self._dispatcher = dispatcher
        self._user = user
        self._calls = ToolCalls(dispatcher)
        self.sdk_server: Server[Any] = Server(
            name,
            version=__version__,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def serve_stdio(self) -> None:
        """Serve one client on stdin and stdout until it closes stdin."""
        async with open_stdio() as (reading, writing):
            await self.sdk_server.run(reading, writing, self.sdk_server.create_initialization_options())

    def _user_of(self, context: ServerRequestContext[Any]) -> str:
        return self._user(context) if callable(self._user) else self._user

    async def _list_tools(
        self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        tools = await self._dispatcher.tools(user=self._user_of(context))
        described = sorted((describe_tool(tool) for tool in tools), key=lambda each: each.name)
        return page_of(described, None if params is None else params.cursor)

    async def _call_tool(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        return await self._calls.call(context, params.name, params.arguments or {}, self._user_of(context))
