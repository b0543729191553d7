"""The queue of messages in front of a publisher: bounded, fair between flows, and its emptiness can be awaited."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from dispatch._internal.fair_queue import FairQueue, QueueFullError
from dispatch.errors import TransportError
from dispatch.transports.errors import closed, publish_queue_full


class QueuedMessage(Protocol):
    """A message in the queue."""

    def fail(self, error: TransportError) -> None:
        """The message will not be sent."""


T = TypeVar("T", bound=QueuedMessage)

MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 256 * 1024 * 1024
RETRY_AFTER_S = 1.0


class SendQueue(FairQueue[T]):
    """The messages to one topic that cannot be sent yet.

    Args:
        topic: for the error when the queue is full.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(MAX_QUEUED, MAX_QUEUED_BYTES)
        self._topic = topic
        self._waiters: list[tuple[str | None, asyncio.Future[None]]] = []

    def enter(self, flow: str, item: T, size: int) -> None:
        """Add ``item`` at the end of its flow.

        Raises:
            TransportError: the queue is full.
        """
        try:
            self.put(flow, item, size)
        except QueueFullError:
            raise publish_queue_full(len(self), topic=self._topic, retry_after=RETRY_AFTER_S) from None

    async def wait_empty(self, flow: str | None = None) -> None:
        """Wait until the queue has no message of ``flow``; None: no message. The owner of the queue calls
        :meth:`wake_waiters` after it removed one."""
        if self._occupied(flow):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((flow, waiter))
            await waiter

    def close(self) -> None:
        """Fail the queued messages: the connection is being closed."""
        error = closed()
        for each in self.clear():
            each.fail(error)
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake the callers of :meth:`wait_empty` whose messages have left the queue."""
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
