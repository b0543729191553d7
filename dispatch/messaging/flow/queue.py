"""Where messages wait in front of a publisher: a bounded fair queue, whose emptiness can be waited for."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from dispatch._internal.fair_queue import FairQueue, QueueFullError
from dispatch.errors import TransportError
from dispatch.transports.errors import closed, publish_queue_full


class Waits(Protocol):
    """A message that waits."""

    def fail(self, error: TransportError) -> None:
        """It will not be sent."""


T = TypeVar("T", bound=Waits)

MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 256 * 1024 * 1024
RETRY_AFTER_S = 1.0


class WaitingRoom(FairQueue[T]):
    """The messages to one topic that may not go yet.

    Args:
        topic: for what is told to whoever finds it full.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(MAX_QUEUED, MAX_QUEUED_BYTES)
        self._topic = topic
        self._waiters: list[tuple[str | None, asyncio.Future[None]]] = []

    def enter(self, flow: str, item: T, size: int) -> None:
        """Add ``item`` at the end of its flow.

        Raises:
            TransportError: there is no room; the item was not taken.
        """
        try:
            self.put(flow, item, size)
        except QueueFullError:
            raise publish_queue_full(len(self), topic=self._topic, retry_after=RETRY_AFTER_S) from None

    async def left(self, flow: str | None = None) -> None:
        """Wait until nothing of ``flow`` waits here any more; None: nothing at all. Whoever owns the room calls :meth:`tell`
        when something has left it."""
        if self._occupied(flow):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((flow, waiter))
            await waiter

    def close(self) -> None:
        """Fail what waits: the connection is being closed."""
        error = closed()
        for each in self.clear():
            each.fail(error)
        self.tell()

    def tell(self) -> None:
        """Something has left: wake those who waited for that."""
        if not self._waiters:
            return
        waiting = []
        for flow, waiter in self._waiters:
            if waiter.done():
                continue
            if self._occupied(flow):
                waiting.append((flow, waiter))
            else:
                waiter.set_result(None)
        self._waiters = waiting

    def _occupied(self, flow: str | None) -> bool:
        return len(self) > 0 if flow is None else self.has_flow(flow)
