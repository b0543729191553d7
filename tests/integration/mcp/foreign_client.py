"""A client of another library, in an environment of its own: ``python foreign_client.py v1|fastmcp URL|-- COMMAND …``.

It needs nothing of this checkout, and prints what it saw as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


async def use(call: Any, list_names: Any) -> dict[str, Any]:
    """List the tools, and call them as the test expects."""
    long = await call("broken", {"topic": "x" * 60_000})
    handle = long[0].rpartition('handle="')[2].partition('"')[0]
    return {
        "names": await list_names(),
        "success": await call("work", {"topic": "größe 🦊\u2028"}),
        "structured": await call("city", {"city": "Köln"}),
        "tool error": await call("broken", {}),
        "bad arguments": await call("work", {}),
        "unknown tool": await call("wrok", {}),
        "rest of a large result": await call("read_result", {"handle": handle, "offset": 60_000}),
    }


async def use_v1(target: list[str]) -> dict[str, Any]:
    """The SDK before 2.0."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamablehttp_client

    connection: Any = (
        stdio_client(StdioServerParameters(command=target[1], args=target[2:]))
        if target[0] == "--"
        else streamablehttp_client(target[0])
    )
    chunks: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        chunks.append(message)

    async with connection as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()

        async def call(name: str, arguments: dict[str, Any]) -> tuple[str, bool, Any]:
            result = await session.call_tool(name, arguments)
            return result.content[0].text, result.isError, result.structuredContent

        async def list_names() -> list[str]:
            return [tool.name for tool in (await session.list_tools()).tools]

        seen = await use(call, list_names)
        await session.call_tool("work", {"topic": "cats", "chunks": True}, progress_callback=on_progress)
        return seen | {"progress": chunks}


async def use_fastmcp(target: list[str]) -> dict[str, Any]:
    """FastMCP's client."""
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    chunks: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        chunks.append(message)

    transport: Any = StdioTransport(command=target[1], args=target[2:]) if target[0] == "--" else target[0]
    async with Client(transport) as client:

        async def call(name: str, arguments: dict[str, Any]) -> tuple[str, bool, Any]:
            result = await client.call_tool(name, arguments, raise_on_error=False)
            return result.content[0].text, result.is_error, result.structured_content

        async def list_names() -> list[str]:
            return [tool.name for tool in await client.list_tools()]

        seen = await use(call, list_names)
        await client.call_tool("work", {"topic": "cats", "chunks": True}, progress_handler=on_progress)
        return seen | {"progress": chunks}


if __name__ == "__main__":
    found = asyncio.run({"v1": use_v1, "fastmcp": use_fastmcp}[sys.argv[1]](sys.argv[2:]))
    print(json.dumps(found))  # noqa: T201 - what the parent reads
