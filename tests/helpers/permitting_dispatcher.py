"""A dispatcher of tools with permissions, grants, and a transport that counts its messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any

from dispatch import Dispatcher, Grants
from dispatch.permissions import GrantsFunction
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, catalog

GRANTS = Grants.of(
    {"users": {"alice": ["tools:*"], "mallory": ["tools:*", "!tools:jokes"]}, "everyone": ["tools:time"]}
)


class SpyTransport(MemoryTransport):
    """Counts the messages that are published, and the topics that are opened for it."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.messages = 0

    async def publisher(self, *args: Any, **options: Any) -> Any:
        self.messages += 1
        return SpyPublisher(self, await super().publisher(*args, **options))


class SpyPublisher:
    """Counts its messages for a :class:`SpyTransport`."""

    def __init__(self, transport: SpyTransport, publisher: Any) -> None:
        self._transport = transport
        self._publisher = publisher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._publisher, name)

    def publish(self, *args: Any, **options: Any) -> Any:
        self._transport.messages += 1
        return self._publisher.publish(*args, **options)


class Directory:
    """A callable that counts its requests."""

    def __init__(self, grants: Collection[str] = ("tools:jokes",)) -> None:
        self.grants = grants
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.seconds = 0.0

    async def __call__(self, user: str) -> Collection[str]:
        self.asked.append(user)
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.grants


@contextlib.asynccontextmanager
async def permitting(
    grants: Grants | GrantsFunction | None, transport: MemoryTransport | None = None, **options: Any
) -> AsyncIterator[Dispatcher]:
    """A started dispatcher with two tools that require permissions, and one that requires none."""
    tools = catalog(
        jokes={"permissions": ["tools:jokes"], "tags": ["fun"]},
        time={"permissions": ["tools:time"], "tags": ["fun"]},
        jokers={"tags": ["fun"]},
    )
    async with Dispatcher(transport or MemoryTransport(BROKER), tools, grants=grants, **options) as dispatcher:
        yield dispatcher


async def read_stream(dispatcher: Dispatcher, tool: str, user: str) -> str:
    return "".join([chunk async for chunk in dispatcher.stream(tool, user=user)])
