"""A server of the SDK's former line, for :mod:`tests.helpers.mcp_servers.v1_environment`: ``v1_server.py [PORT]``."""

import asyncio
import sys
from pathlib import Path

from mcp.server.fastmcp import Context, FastMCP  # type: ignore[import-not-found] # of another environment

server = FastMCP("former", port=int(sys.argv[1]) if sys.argv[1:] else 8000, log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no such order")


@server.tool()
async def wait(seconds: float, path: str) -> str:
    """Wait; write to a file when the call is cancelled."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        Path(path).write_text("cancelled")  # noqa: ASYNC240 - the call is over
        raise
    return "waited"


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool."""
    server.add_tool(lambda: "new", name="new", description="New.")
    await ctx.session.send_tool_list_changed()
    return "grown"


server.run("streamable-http" if sys.argv[1:] else "stdio")
