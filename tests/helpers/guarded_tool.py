"""The tool ``work`` with guards: its catalogue, work that waits, and a service whose replies a test writes by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from dispatch import Catalog, Dispatcher
from tests.helpers.dispatcher_and_service import Peer, catalog, dispatching


def tools(**keys: Any) -> Catalog:
    """Return a catalogue of ``work`` with these further keys (``_`` for ``-``)."""
    return catalog(work={key.replace("_", "-"): value for key, value in keys.items()})


class Gate:
    """Work that waits until it is let go."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.running = 0
        self.most = 0

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.event.wait()
        finally:
            self.running -= 1
        return "done"


@contextlib.asynccontextmanager
async def deaf(**keys: Any) -> AsyncIterator[tuple[Dispatcher, Peer]]:
    """A dispatcher of ``work`` with these further keys, and a service that replies only as the test says."""
    async with Peer.as_service() as peer, dispatching(tools(**keys)) as dispatcher:
        yield dispatcher, peer
