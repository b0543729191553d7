"""TrustGraph's configuration on the embedded broker, with a source that is followed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import dispatch
from dispatch.catalog.items import Item
from dispatch.transports.memory import MemoryTransport
from dispatch.trustgraph.config import ConfigBroker, ConfigServiceError
from tests.helpers.clock import idle
from tests.helpers.config_service import ConfigService, ConfigStore, config_service

URL = "memory://config"
SERVICE = {"id": "joke-service", "request-queue": "request:tg:joke", "response-queue": "response:tg:joke"}
TOOL = {"type": "tool-service", "name": "tell-joke", "description": "Tell a joke", "service": "joke-service"}


class Follower:
    """Follows a source as the registry does: an iteration over its changes, and a fetch after each."""

    def __init__(self, source: dispatch.TrustGraphConfig) -> None:
        self.source = source
        self.items: list[Item] = []
        self.fetches = 0
        self.errors: list[Exception] = []
        self._changed = asyncio.Event()
        self._changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._iterate())
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self.discover()

    async def discover(self) -> None:
        try:
            self.items = list(await self.source.discover())
        except (ConfigServiceError, dispatch.TransportError) as error:
            self.errors.append(error)
        self.fetches += 1

    async def _iterate(self) -> None:
        async for _ in self.source.changes():
            self._changed.set()

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [(item.kind, item.key) for item in self.items]


class Setting(NamedTuple):
    service: ConfigService
    store: ConfigStore
    source: dispatch.TrustGraphConfig
    follower: Follower


async def settle() -> None:
    """Let the fetch that is due end; a fetch reads its items in a thread."""
    for _ in range(5):
        await idle()
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def following(*, is_running: bool = True, **options: Any) -> AsyncIterator[Setting]:
    """A source that is followed, with a service whose store has one service and one tool."""
    store = ConfigStore()
    store.write("tool-service", "joke-service", SERVICE)
    store.write("tool", "tell-joke", TOOL)
    transport = MemoryTransport(URL)
    await transport.start()
    broker = ConfigBroker(transport, "d1")
    source = dispatch.TrustGraphConfig(**{"randomness": lambda: 0.5} | options)
    source.connect(broker)
    async with config_service(URL, store) as service:
        if not is_running:
            await service.stop()
        follower = Follower(source)
        task = asyncio.create_task(follower.run())
        await settle()
        try:
            yield Setting(service, store, source, follower)
        finally:
            task.cancel()
            await asyncio.wait([task])
            await source.close()
            await broker.close()
            await transport.close()
