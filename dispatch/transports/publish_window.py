"""The publish window: a limit on publishes in flight to the broker, with a bounded fair queue in front of it. Pure.

It limits bursts to the broker and the number of publishes in doubt when the connection is lost. Thousands of slow calls can
still wait, because the window counts publishes and not calls.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from dispatch._internal.fair_queue import FairQueue, QueueFullError

__all__ = ["PublishWindow", "QueueFullError"]

T = TypeVar("T")


class PublishWindow(Generic[T]):
    """At most ``size`` items in flight; further ones are queued, first in first out in a flow, round-robin over flows.

    Args:
        size: items in flight.
        max_queued: queued items.
        max_queued_bytes: queued bytes.
    """

    def __init__(self, size: int, max_queued: int, max_queued_bytes: int) -> None:
        if size < 1:
            raise ValueError(f"a publish window needs at least one message, not {size}")
        self.size = size
        self.outstanding = 0
        self._queue: FairQueue[T] = FairQueue(max_queued, max_queued_bytes)

    @property
    def queued(self) -> int:
        """Queued items."""
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Queued bytes."""
        return self._queue.bytes

    def offer(self, flow: str, item: T, size: int) -> bool:
        """Return True if ``item`` is in flight now and must be sent, False if it was queued.

        Raises:
            QueueFullError: the queue is full; the item was not added.
        """
        if self.outstanding < self.size and not len(self._queue):
            self.outstanding += 1
            return True
        self._queue.put(flow, item, size)
        return False

    def hold(self, flow: str, item: T, size: int) -> None:
        """Queue ``item`` although the window is not full (the connection is down).

        Raises:
            QueueFullError: the queue is full; the item was not added.
        """
        self._queue.put(flow, item, size)

    def settle(self, count: int = 1) -> None:
        """Record the receipts of ``count`` items."""
        if count > self.outstanding:
            raise ValueError(f"{count} settled, but only {self.outstanding} outstanding")
        self.outstanding -= count

    def pop_queued(self) -> T | None:
        """Remove and return the next queued item, now in flight; None when the queue is empty or the window is full."""
        if self.outstanding >= self.size:
            return None
        item = self._queue.pop()
        if item is not None:
            self.outstanding += 1
        return item

    def withdraw(self, flow: str, item: T) -> bool:
        """Withdraw a queued item. Return whether it was still queued."""
        return self._queue.remove(flow, item)

    def waiting(self, flow: str) -> bool:
        """Return whether ``flow`` has queued items."""
        return self._queue.has_flow(flow)

    def drain(self) -> list[T]:
        """Empty the queue and return its items."""
        return self._queue.clear()
