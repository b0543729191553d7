"""The ``mcp`` SDK over HTTP: its low-level server in Uvicorn workers, and its client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from mcp import Client
from mcp.server import Server, ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent
from mcp_types import Tool as McpTool

from benchmarks.peers.system import SERVICE, Call, Failure, Place, Tool
from benchmarks.peers.systems.http import serve_app, url_of

LABEL: Final = "MCP SDK over HTTP"
OFFERS: Final = "MCP sessions; no guards, no retries, at most once"
SERVER: Final[Literal["http"]] = "http"


@asynccontextmanager
async def serve(place: Place, instance: int, tool: Tool) -> AsyncIterator[None]:
    """Serve as one worker."""

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[McpTool(name=SERVICE, input_schema={"type": "object"})])

    async def call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=await tool(params.arguments or {}))])

    server: Server[Any] = Server(SERVICE, on_list_tools=list_tools, on_call_tool=call_tool)
    async with serve_app(place, server.streamable_http_app(stateless_http=True)):
        yield


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Connect a client."""
    async with Client(url_of(place)) as client:

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            result = await client.call_tool(SERVICE, arguments, read_timeout_seconds=place.timeout)
            return str(result.content[0].text)

        yield call


def read_failure(error: Exception) -> Failure:
    """The class of the error."""
    return Failure(type(error).__name__)
