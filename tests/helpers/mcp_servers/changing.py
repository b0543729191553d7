"""An MCP server of the SDK's low-level kind whose tools change: ``changing.py [silent] [ttl=MS] [http=PORT]``.

``silent``: it announces no changes. The tool ``change`` adds tools one by one, ``remove`` removes them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress

import uvicorn
from mcp import types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged

PAGE = 50
OPTIONS = dict(option.partition("=")[::2] for option in sys.argv[1:])
IS_SILENT = "silent" in OPTIONS

tools = [f"tool-{number}" for number in range(120)] + ["change", "remove", "break", "ask"]
added: dict[str, float] = {}
bus = InMemorySubscriptionBus()
sessions: set[ServerSession] = set()
changing: set[asyncio.Task[None]] = set()


def describe(name: str) -> str:
    """The description of a new tool is when it was added: seconds on the clock that all processes share."""
    return str(added[name]) if name in added else f"Tool {name}."


async def list_tools(ctx: ServerRequestContext, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    start = int(params.cursor) if params is not None and params.cursor else 0
    names = tools[start : start + PAGE]
    end = start + PAGE
    found = [types.Tool(name=name, description=describe(name), input_schema={"type": "object"}) for name in names]
    return types.ListToolsResult(tools=found, next_cursor=str(end) if end < len(tools) else None)


async def announce() -> None:
    if IS_SILENT:
        return
    await bus.publish(ToolsListChanged())
    for session in sessions:
        with suppress(Exception):  # of a session that has ended
            await session.send_tool_list_changed()


async def change(count: int, seconds: float) -> None:
    for number in range(count):
        await asyncio.sleep(seconds / count)
        added[f"new-{number}"] = time.monotonic()
        tools.append(f"new-{number}")
        await announce()


def ask(params: types.CallToolRequestParams) -> types.CallToolResult | types.InputRequiredResult:
    if not params.input_responses:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        question = types.ElicitRequestFormParams(message="Your name?", requested_schema=schema)
        return types.InputRequiredResult(input_requests={"name": types.ElicitRequest(params=question)})
    return types.CallToolResult(content=[types.TextContent(type="text", text=str(params.input_responses["name"]))])


async def call_tool(
    ctx: ServerRequestContext, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    sessions.add(ctx.session)
    given = params.arguments or {}
    if params.name == "change":
        changing.add(asyncio.create_task(change(given["count"], given["seconds"])))
    elif params.name == "remove":
        tools.remove(given["name"])
        await announce()
    elif params.name == "ask":
        return ask(params)
    elif params.name == "break":
        raise MCPError(given["code"], "it broke")
    elif params.name not in tools:
        raise MCPError(types.METHOD_NOT_FOUND, f"no tool {params.name}")
    return types.CallToolResult(content=[types.TextContent(type="text", text=params.name)])


server = Server(
    "changing",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_subscriptions_listen=None if IS_SILENT else ListenHandler(bus),
    cache_hints={"tools/list": CacheHint(ttl_ms=int(OPTIONS["ttl"]))} if "ttl" in OPTIONS else None,
)


async def serve_stdio() -> None:
    async with stdio_server() as (read, write):
        notifications = NotificationOptions(tools_changed=not IS_SILENT)
        await server.run(read, write, server.create_initialization_options(notifications))


if "http" in OPTIONS:
    app = server.streamable_http_app()
    uvicorn.run(app, host="127.0.0.1", port=int(OPTIONS["http"]), log_level="warning")
else:
    asyncio.run(serve_stdio())
