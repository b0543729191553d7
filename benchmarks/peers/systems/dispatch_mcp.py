"""dispatch's own MCP server in front of its services on Pulsar, called over HTTP by FastMCP's client."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from fastmcp.exceptions import ToolError

from benchmarks.peers.system import Call, Failure, Place
from benchmarks.peers.systems import dispatch_pulsar, fastmcp_http
from benchmarks.peers.systems.http import url_of
from benchmarks.peers.systems.mcp_client import connected, running
from dispatch.devtools.localbroker import find_free_ports

LABEL: Final = "dispatch's MCP server"
OFFERS: Final = f"over MCP: {dispatch_pulsar.OFFERS}"
ARGUMENTS: Final = [{"name": "call", "type": "number", "description": "Number of the call", "required": True}]
SERVER: Final[Literal["pulsar"]] = "pulsar"

serve = dispatch_pulsar.serve


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Start the MCP server, which has the connection to the broker, and connect a client."""
    place = replace(place, ports=tuple(find_free_ports(1)))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services, tools = dispatch_pulsar.describe(place)
        described = [{**tool, "arguments": ARGUMENTS} for tool in tools]
        for kind, items in (("tool-service", services), ("tool", described)):
            (folder / kind).mkdir()
            for item in items:
                (folder / kind / f"{item.get('name', item.get('id'))}.json").write_text(json.dumps(item))
        address = f"127.0.0.1:{place.ports[0]}"
        words = ("-m", "dispatch", "mcp", "--http", address, "--catalog", str(folder), "--broker", place.url)
        await stack.enter_async_context(running(sys.executable, *words))
        call_tool = await stack.enter_async_context(connected(url_of(place)))

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            return await call_tool("read" if repeatable else "write", arguments, timeout=place.timeout + 1)

        yield call


def read_failure(error: Exception) -> Failure:
    """The text of a tool error says whether the tool was executed; other errors are FastMCP's own."""
    if isinstance(error, ToolError):
        return Failure("ToolError", "not executed" in str(error))
    return fastmcp_http.read_failure(error)
