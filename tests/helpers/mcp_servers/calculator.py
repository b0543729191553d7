"""An MCP server of the SDK's high-level kind: ``calculator.py [stdio | http PORT | sse PORT]``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("calculator", log_level="WARNING")


@server.tool(annotations=ToolAnnotations(read_only_hint=True, destructive_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(name="text.upper", structured_output=False)
def upper(text: str) -> str:
    """Write a text in upper case."""
    return text.upper()


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no such order")


def _write(path: str, text: str) -> None:
    if path:
        Path(path).write_text(text)


_waiting = 0


@server.tool()
async def wait(seconds: float, path: str = "") -> str:
    """Wait; write to a file when the call is cancelled."""
    global _waiting
    _waiting += 1
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _write(path, "cancelled")
        raise
    finally:
        _waiting -= 1
    return "waited"


@server.tool()
def waiting() -> int:
    """Return how many calls of ``wait`` run."""
    return _waiting


@server.tool()
def picture() -> list[str | Image]:
    """Return a picture with a text."""
    return ["a cat", Image(data=b"\x89PNG", format="png")]


@server.tool()
def pid() -> int:
    """Return the id of the process."""
    return os.getpid()


class Answer(BaseModel):
    """What the user answers."""

    name: str


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask the user for a name."""
    answer = await ctx.elicit("Your name?", Answer)
    return str(answer)


@server.tool(structured_output=False)
def log(text: str, lines: int = 1) -> str:
    """Write to stderr."""
    sys.stderr.write(f"{text}\n" * lines)
    sys.stderr.flush()
    return "written"


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    elif sys.argv[1:2] == ["sse"]:
        server.run("sse", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run()
