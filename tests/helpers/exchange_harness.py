"""An exchange on a bench: requests as tasks, a publisher in the hand, and replies that are counted while one looks on."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatch.messaging.plain import Correlator, ReplyStream, Single, read_properties
from dispatch.messaging.request import Disposition, Settled, Tally
from dispatch.messaging.wire import Property
from tests.helpers.clock import idle
from tests.helpers.fakes import FakePublisher


async def request(
    exchange: Correlator,
    publisher: Any,
    *,
    id: str,
    seconds: float = 30.0,
    clock: str = "call",
    max_bytes: int = 1_000,
    tally: Tally | None = None,
) -> Settled:
    """Send a request and wait for its whole answer, as a call does."""
    waiter = exchange.loop.create_future()
    single = Single(exchange, id, exchange.loop.time() + seconds, clock, max_bytes, tally, waiter=waiter)
    exchange.send(single, publisher, b"?", {Property.ID: id}, "tool")
    try:
        return await waiter
    except asyncio.CancelledError:
        single.abandon()
        raise


def stream(
    exchange: Correlator,
    publisher: Any,
    *,
    id: str | None = None,
    seconds: float = 30.0,
    idle: float = 300.0,
    max_bytes: int = 1_000,
    max_buffer: int = 10_000,
    tally: Tally | None = None,
) -> ReplyStream:
    """Open a stream."""
    id = id or exchange.new_id()
    made = ReplyStream(
        exchange, id, exchange.loop.time() + seconds, "stream", max_bytes, tally, idle=idle, max_buffer=max_buffer
    )
    exchange.send(made, publisher, b"?", {Property.ID: id}, "tool")
    return made


class Bench:
    """An exchange, a publisher in the hand, and requests as tasks."""

    def __init__(self, **options: Any) -> None:
        self.exchange = Correlator(**options)
        self.publisher = FakePublisher()

    async def ask(self, *, limit: float = 30.0, **options: Any) -> tuple[str, asyncio.Task[Settled]]:
        id = self.exchange.new_id()
        task = asyncio.create_task(request(self.exchange, self.publisher, id=id, seconds=limit, **options))
        await idle()
        return id, task

    def open(self, *, limit: float = 30.0, **options: Any) -> ReplyStream:
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


async def read(stream: ReplyStream) -> list[str]:
    """Return the chunks of a stream, when it has ended."""
    return [chunk async for chunk in stream]
