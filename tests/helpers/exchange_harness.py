"""An exchange on a bench: requests as tasks, a publisher in the hand, and replies that are counted while one looks on."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatch.messaging.rpc.correlation import Correlator, read_properties
from dispatch.messaging.rpc.exchange_outcome import Disposition, Settled
from dispatch.messaging.rpc.pending import ReplyStream
from dispatch.messaging.wire.properties import Property
from tests.helpers.clock import idle
from tests.helpers.fakes import FakePublisher


class Bench:
    """An exchange, a publisher in the hand, and requests as tasks."""

    def __init__(self, **options: Any) -> None:
        self.exchange = Correlator(**options)
        self.publisher = FakePublisher()

    async def ask(
        self, *, limit: float = 30.0, max_bytes: int = 1_000, **options: Any
    ) -> tuple[str, asyncio.Task[Settled]]:
        exchange = self.exchange
        id = exchange.new_id()
        deadline = exchange.loop.time() + limit
        task = asyncio.create_task(
            exchange.request(
                id,
                self.publisher,
                b"?",
                {Property.ID: id},
                flow="tool",
                deadline=deadline,
                max_bytes=max_bytes,
                **options,
            )
        )
        await idle()
        return id, task

    def open(self, *, limit: float = 30.0, max_bytes: int = 1_000) -> ReplyStream:
        """Open a stream."""
        id = self.exchange.new_id()
        return self.exchange.stream(
            id,
            self.publisher,
            b"?",
            {Property.ID: id},
            flow="tool",
            deadline=self.exchange.loop.time() + limit,
            idle=300.0,
            max_bytes=max_bytes,
            max_buffer=100,
        )

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
