"""Streamable HTTP with the headers of a server's configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from mcp.client.streamable_http import streamable_http_client

CONNECT_S: Final = 5.0
"""Seconds to connect to a server. There is no limit of the time between two parts of a reply: the calls have deadlines."""


@asynccontextmanager
async def http_transport(url: str, headers: Mapping[str, str]) -> AsyncIterator[object]:
    """A transport of :class:`mcp.Client`."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    async with (
        httpx2.AsyncClient(
            headers=dict(headers), timeout=httpx2.Timeout(None, connect=CONNECT_S), limits=limits
        ) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams
