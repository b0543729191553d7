"""An MCP server over HTTP as a process of its own: ``python -m benchmarks.mcp.served tools|echo``. It prints its URL."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server import Server, ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

import dispatch
from dispatch.admin.http import open_listener
from dispatch.mcp import McpServer
from dispatch.mcp.server import serve_http

BROKER = "memory://benchmark"
SERVICE = {
    "id": "echo",
    "request-queue": "non-persistent://dispatch/request/echo",
    "response-queue": "non-persistent://dispatch/response/echo",
}
ARGUMENTS = [{"name": "text", "type": "string", "description": "What to repeat.", "required": True}]
POLICY = {"bulkhead": 256, "rate-limit": "1000000/s"}
TOOL = {
    "type": "tool-service",
    "name": "echo",
    "description": "Repeat a text.",
    "service": "echo",
    "arguments": ARGUMENTS,
    "policy": POLICY,
}
TEXT = "x" * 100


class Echo(dispatch.ToolService):
    """Repeats a text."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        return str(arguments["text"])


def start() -> tuple[dispatch.ToolServer, dispatch.Dispatcher]:
    """A tool service and a dispatcher on the embedded broker, with the default telemetry."""
    server = dispatch.ToolServer(
        Echo(),
        BROKER,
        request_queue=SERVICE["request-queue"],
        response_queue=SERVICE["response-queue"],
        concurrency=256,
    )
    return server, dispatch.connect(BROKER, dispatch.Catalog.of([SERVICE], [TOOL]))


async def serve_tools(on_ready: Callable[[str], object]) -> None:
    """Serve the tool of a dispatcher."""
    service, dispatcher = start()
    async with service, dispatcher:
        await serve_http(McpServer(dispatcher), "127.0.0.1", 0, on_ready=on_ready)


async def serve_echo(on_ready: Callable[[str], object]) -> None:
    """Serve an echo of the SDK's low-level server, without dispatch."""

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="echo", input_schema={"type": "object"})])

    async def call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=(params.arguments or {})["text"])])

    server: Server[Any] = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)
    with open_listener("127.0.0.1", 0) as listener:
        on_ready(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
        config = uvicorn.Config(server.streamable_http_app(), log_config=None, access_log=False, ws="none")
        await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    asyncio.run({"tools": serve_tools, "echo": serve_echo}[sys.argv[1]](lambda url: print(url, flush=True)))
