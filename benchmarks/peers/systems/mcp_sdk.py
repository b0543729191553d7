"""The ``mcp`` SDK over HTTP: its low-level server in Uvicorn workers, and its client."""

from __future__ import annotations

import asyncio
import contextlib
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
RECONNECT_S: Final = 0.1


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


class Session:
    """The client's session; another one follows when it ends, as it does with the first connection that is reset."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()

    async def keep(self) -> None:
        """Connect again and again."""
        while True:
            with contextlib.suppress(Exception):
                async with Client(self._url) as client:
                    self._client.set_result(client)
                    await asyncio.Event().wait()
            if self._client.done():
                self._client = asyncio.get_running_loop().create_future()
            await asyncio.sleep(RECONNECT_S)

    async def call(self, arguments: dict[str, Any], timeout: float) -> str:
        """Call the tool in the present session, or in the next one."""
        async with asyncio.timeout(timeout):
            client = await asyncio.shield(self._client)
            result = await client.call_tool(SERVICE, arguments, read_timeout_seconds=timeout)
        return str(result.content[0].text)


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Connect a client."""
    session = Session(url_of(place))
    keeping = asyncio.create_task(session.keep())

    async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
        return await session.call(arguments, place.timeout)

    try:
        yield call
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


def read_failure(error: Exception) -> Failure:
    """The class of the error."""
    return Failure(type(error).__name__)
