"""mcp-proxy as a client's stdio server in front of FastMCP's workers: ``mcp-proxy --transport streamablehttp URL``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from fastmcp.client.transports import StdioTransport

from benchmarks.peers.system import SERVICE, Call, Place
from benchmarks.peers.systems import fastmcp_http
from benchmarks.peers.systems.http import url_of
from benchmarks.peers.systems.mcp_client import DIES_WITH_PARENT, connected, proxy_command

LABEL: Final = "mcp-proxy"
OFFERS: Final = "MCP over stdio in front of HTTP; no guards, no retries"
SERVER: Final[Literal["http"]] = "http"

serve, read_failure = fastmcp_http.serve, fastmcp_http.read_failure


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Start the proxy as the client's server."""
    python, launcher = DIES_WITH_PARENT
    words = [*proxy_command("mcp-proxy"), "--log-level", "ERROR"]
    transport = StdioTransport(python, [launcher, *words, "--transport", "streamablehttp", url_of(place)])
    async with connected(transport) as call_tool:

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            return await call_tool(SERVICE, {"arguments": arguments}, timeout=place.timeout)

        yield call
