"""FastMCP's proxy over HTTP in front of FastMCP's workers: ``fastmcp run URL``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.peers.system import SERVICE, Call, Place
from benchmarks.peers.systems import fastmcp_http
from benchmarks.peers.systems.http import url_of
from benchmarks.peers.systems.mcp_client import connected, running
from dispatch.devtools.localbroker import find_free_ports

LABEL: Final = "FastMCP's proxy"
OFFERS: Final = fastmcp_http.OFFERS
SERVER: Final[Literal["http"]] = "http"

serve, read_failure = fastmcp_http.serve, fastmcp_http.read_failure


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Start the proxy, and connect a client."""
    front = replace(place, ports=tuple(find_free_ports(1)))
    program = str(Path(sys.executable).with_name("fastmcp"))
    words = ("run", url_of(place), "--transport", "http", "--port", str(front.ports[0]), "--no-banner")
    async with running(sys.executable, program, *words), connected(url_of(front)) as call_tool:

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            return await call_tool(SERVICE, {"arguments": arguments}, timeout=place.timeout)

        yield call
