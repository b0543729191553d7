"""FastMCP over HTTP: its server in Uvicorn workers, stateless as its page on deployment says, and its client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import fastmcp
from fastmcp.exceptions import McpError, ToolError

from benchmarks.peers.system import SERVICE, Call, Failure, Place, Tool
from benchmarks.peers.systems.http import serve_app, url_of

LABEL: Final = "FastMCP over HTTP"
OFFERS: Final = "schemas checked, MCP sessions; no guards, no retries, at most once"
SERVER: Final[Literal["http"]] = "http"


@asynccontextmanager
async def serve(place: Place, instance: int, tool: Tool) -> AsyncIterator[None]:
    """Serve as one worker."""
    server = fastmcp.FastMCP(SERVICE)

    @server.tool(name=SERVICE)
    async def run(arguments: dict[str, Any]) -> str:
        return await tool(arguments)

    async with serve_app(place, server.http_app(stateless_http=True)):
        yield


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Connect a client; another one is connected after the session of the former has ended."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(fastmcp.Client(url_of(place)))

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            nonlocal client
            if not client.is_connected():
                client = await fastmcp.Client(url_of(place)).__aenter__()
            result = await client.call_tool(SERVICE, {"arguments": arguments}, timeout=place.timeout)
            return str(result.data)

        yield call


def read_failure(error: Exception) -> Failure:
    """The class of the error, with the code of an MCP error."""
    if isinstance(error, ToolError):
        return Failure("ToolError")
    if isinstance(error, McpError):
        return Failure(f"McpError {error.error.code}")
    return Failure(type(error).__name__)
