"""dispatch's own MCP server in front of its services on Pulsar, called over HTTP by FastMCP's client."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import fastmcp
from fastmcp.exceptions import ToolError

from benchmarks.peers.system import Call, Failure, Place
from benchmarks.peers.systems import dispatch_pulsar, fastmcp_http
from benchmarks.peers.systems.http import START_S, url_of
from dispatch.devtools.localbroker import find_free_ports

LABEL: Final = "dispatch's MCP server"
OFFERS: Final = f"over MCP: {dispatch_pulsar.OFFERS}"
ARGUMENTS: Final = [{"name": "call", "type": "number", "description": "Number of the call", "required": True}]
RUN: Final = """
import ctypes, signal, sys
from dispatch.cli import main
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: the client's process may be killed
sys.exit(main(sys.argv[1:]))
"""
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
        words = ("-c", RUN, "mcp", "--http", address, "--catalog", str(folder), "--broker", place.url)
        null = asyncio.subprocess.DEVNULL
        server = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=null, stdout=null, stderr=null)
        stack.callback(server.kill)
        client = await stack.enter_async_context(await _first_client(url_of(place)))

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            nonlocal client
            if not client.is_connected():
                client = await fastmcp.Client(url_of(place)).__aenter__()
            name = "read" if repeatable else "write"
            result = await client.call_tool(name, arguments, timeout=place.timeout + 1)
            return "".join(getattr(each, "text", "") for each in result.content)

        yield call


async def _first_client(url: str) -> fastmcp.Client[Any]:
    """Wait until the server answers."""
    async with asyncio.timeout(START_S):
        while True:
            client = fastmcp.Client(url)
            try:
                async with client:
                    return fastmcp.Client(url)
            except RuntimeError:
                await asyncio.sleep(0.1)


def read_failure(error: Exception) -> Failure:
    """The text of a tool error says whether the tool was executed; other errors are FastMCP's own."""
    if isinstance(error, ToolError):
        return Failure("ToolError", "not executed" in str(error))
    return fastmcp_http.read_failure(error)
