"""ContextForge in front of FastMCP's workers, which are registered as one of its gateways."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal

import httpx

from benchmarks.peers.system import SERVICE, Call, Place
from benchmarks.peers.systems import fastmcp_http
from benchmarks.peers.systems.http import START_S, url_of
from benchmarks.peers.systems.mcp_client import connected, proxy_command, running
from dispatch.devtools.localbroker import find_free_ports

LABEL: Final = "ContextForge"
OFFERS: Final = (
    "a catalogue, permissions, health checks of its gateways; its plugins, a breaker among them, are not set up"
)
SERVER: Final[Literal["http"]] = "http"
SETTINGS: Final = {
    "AUTH_REQUIRED": "false",
    "ALLOW_UNAUTHENTICATED_ADMIN": "true",
    "SSRF_ALLOW_LOCALHOST": "true",
    "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
    "RATE_LIMITING_ENABLED": "false",
    "CACHE_TYPE": "memory",
    "LOG_LEVEL": "ERROR",
}
"""Without authentication and its limit of 100 calls a minute, and with gateways on loopback addresses."""

serve, read_failure = fastmcp_http.serve, fastmcp_http.read_failure


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Start the gateway with a database of its own, register the services, and connect a client."""
    (port,) = find_free_ports(1)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        keys = {name: secrets.token_hex(32) for name in ("JWT_SECRET_KEY", "AUTH_ENCRYPTION_SECRET")}
        env = {**os.environ, **SETTINGS, **keys, "DATABASE_URL": f"sqlite:///{folder}/mcp.db"}
        words = (*proxy_command("mcpgateway"), "--port", str(port))
        await stack.enter_async_context(running(*words, cwd=folder, env=env))
        await _register(f"http://127.0.0.1:{port}/gateways", url_of(place))
        call_tool = await stack.enter_async_context(connected(f"http://127.0.0.1:{port}/mcp/"))

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            # Its name of a tool: the gateway's and the tool's.
            return await call_tool(f"{SERVICE}-{SERVICE}", {"arguments": arguments}, timeout=place.timeout)

        yield call


async def _register(gateways: str, url: str) -> None:
    """Register the services as soon as the gateway answers."""
    described = {"name": SERVICE, "url": url, "transport": "STREAMABLEHTTP"}
    async with asyncio.timeout(2 * START_S), httpx.AsyncClient(timeout=START_S) as client:
        while True:
            try:
                (await client.post(gateways, json=described)).raise_for_status()
            except httpx.TransportError:
                await asyncio.sleep(0.2)
            else:
                return
