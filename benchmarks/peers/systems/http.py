"""Uvicorn's side of systems over HTTP: its workers accept from one socket, as with ``--workers``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import uvicorn

from benchmarks.peers.system import Place

START_S: Final = 30.0


def url_of(place: Place) -> str:
    """Return the URL of the server."""
    return f"http://127.0.0.1:{place.ports[0]}/mcp"


@asynccontextmanager
async def serve_app(place: Place, app: Any) -> AsyncIterator[None]:
    """Serve an application as one worker; leaving stops it gracefully."""
    opened = place.listener
    if opened < 0:
        opened = socket.create_server(("127.0.0.1", place.ports[0]), backlog=1_024).detach()
    # From its descriptor: asyncio sets TCP_NODELAY only where the protocol is known, which socket.create_server omits.
    listener = socket.socket(fileno=opened)
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    async with asyncio.timeout(START_S):
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.02)
    try:
        yield
    finally:
        server.should_exit = True
        await serving
