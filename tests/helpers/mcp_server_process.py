"""An MCP server on stdin and stdout with a tool service in the same process: ``python -m`` this."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from typing import Any

from dispatch import Policy, ToolError
from dispatch.mcp import McpServer
from tests.helpers.dispatcher_and_service import catalog, stand

TOPIC = {"name": "topic", "type": "string", "description": "What about.", "required": True}
CITY = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS = catalog(
    work={"arguments": [TOPIC], "read-only": True, "idempotent": True, "destructive": False},
    broken={"input-schema": {"type": "object", "properties": {}, "additionalProperties": True}},
    city={"output-schema": CITY, "destructive": True, "description": "Names a city: größe 🦊."},
)


async def tell(topic: str) -> AsyncIterator[str]:
    """Do it in chunks."""
    yield "about "
    yield topic


async def work(arguments: dict[str, Any]) -> str | AsyncIterator[str]:
    """Do what the arguments say."""
    if "print" in arguments:
        print("stray output")  # noqa: T201 - it must not reach the protocol
        await asyncio.to_thread(subprocess.run, ["echo", "stray output of a child"], check=True)
        os.write(1, b"stray bytes\n")
    if "city" in arguments:
        return f'{{"name": "{arguments["city"]}"}}'
    if "topic" not in arguments:
        raise ToolError("no-topic", "there is no topic")
    return tell(arguments["topic"]) if "chunks" in arguments else f"about {arguments['topic']}"


async def main() -> None:
    """Serve until stdin is closed."""
    async with stand(work, TOOLS, policy=Policy()) as (dispatcher, _):
        await McpServer(dispatcher, user="alice").serve_stdio()


if __name__ == "__main__":
    asyncio.run(main())
