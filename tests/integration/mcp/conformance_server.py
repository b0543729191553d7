"""The tools that MCP's conformance suite expects, over HTTP: ``python -m tests.integration.mcp.conformance_server``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import dispatch
from dispatch.mcp import McpServer
from dispatch.mcp.server import serve_http
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, serving

BROKER = "memory://stand"
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
SERVICE = {"id": "lab", "request-queue": REQUESTS, "response-queue": RESPONSES}
TOOL = {
    "type": "tool-service",
    "name": "json_schema_2020_12_tool",
    "description": "Tool with JSON Schema 2020-12 features",
    "service": "lab",
    "input-schema": SCHEMA,
}


@dispatch.tool(name="test_simple_text")
async def simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@dispatch.tool(name="test_error_handling")
async def error_handling() -> str:
    """Fail."""
    raise dispatch.ToolError("intended", "This tool intentionally returns an error for testing")


@dispatch.tool(name="test_tool_with_progress")
async def with_progress() -> AsyncIterator[str]:
    """Reply in three chunks."""
    for chunk in ("0", "50", "100"):
        yield chunk
        await asyncio.sleep(0.05)


async def main() -> None:
    """Serve until the process is stopped."""
    sources = [dispatch.Functions(simple_text, error_handling, with_progress), dispatch.Catalog.of([SERVICE], [TOOL])]
    async with serving(lambda _: "done"), dispatch.connect(BROKER, sources) as dispatcher:
        await serve_http(McpServer(dispatcher), "127.0.0.1", 0, on_ready=lambda url: print(url, flush=True))  # noqa: T201 - what the parent waits for


if __name__ == "__main__":
    asyncio.run(main())
