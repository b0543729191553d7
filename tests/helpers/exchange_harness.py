"""The plain exchange with a recording publisher: requests as tasks, and replies with the disposition they are counted as."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatch.messaging.plain import Correlator, read_properties
from dispatch.messaging.request import Disposition, Request, Settled, Tally
from dispatch.messaging.wire import Property
from tests.helpers.clock import idle
from tests.helpers.fakes import FakePublisher


async def request(exchange: Correlator, publisher: Any, **options: Any) -> Settled:
    """Send a request and wait for its whole reply, as a call does."""
    return await create_request(exchange, publisher, **options)


def create_request(
    exchange: Correlator,
    publisher: Any,
    *,
    id: str | None = None,
    seconds: float = 30.0,
    limit_name: str = "call",
    idle: float | None = None,
    max_bytes: int = 1_000,
    tally: Tally | None = None,
) -> Request:
    """Send a request."""
    request = Request(exchange.loop.time() + seconds, max_bytes, limit_name=limit_name, tally=tally, idle=idle)
    request.id, request.tool, request.payload = id or exchange.new_id(), "tool", b"?"
    exchange.send(request, publisher, {Property.ID: request.id})
    return request


def stream(exchange: Correlator, publisher: Any, *, idle: float = 300.0, **options: Any) -> Request:
    """Open a stream."""
    return create_request(exchange, publisher, limit_name="stream", idle=idle, **options)


class Bench:
    """An exchange, its publisher, and requests as tasks."""

    def __init__(self, *, max_buffer: int = 10_000, **options: Any) -> None:
        self.exchange = Correlator(max_buffer=max_buffer, **options)
        self.publisher = FakePublisher()

    async def ask(self, *, limit: float = 30.0, **options: Any) -> tuple[str, asyncio.Task[Settled]]:
        id = self.exchange.new_id()
        task = asyncio.create_task(request(self.exchange, self.publisher, id=id, seconds=limit, **options))
        await idle()
        return id, task

    def open(self, *, limit: float = 30.0, **options: Any) -> Request:
        """Open a stream."""
        return stream(self.exchange, self.publisher, seconds=limit, **options)

    def take(self, message: Any, *, is_shared: bool = False) -> Disposition:
        """Hand over one reply: it must be counted exactly once. Returns as what."""
        before = dict(self.exchange.replies)
        self.exchange.receive(message, read_properties(message), is_shared=is_shared)
        changed = [what for what, count in self.exchange.replies.items() if count != before[what]]
        assert len(changed) == 1, f"a reply was counted as {changed}"
        assert self.exchange.replies[changed[0]] == before[changed[0]] + 1
        return changed[0]


async def read(stream: Request) -> list[str]:
    """Return the chunks of a stream, when it has ended."""
    return [chunk async for chunk in stream]
