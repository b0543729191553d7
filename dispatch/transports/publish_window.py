"""A window over publishes whose receipt is still out, with a bounded fair queue in front of it. Pure bookkeeping.

It bounds what a connection throws at the broker at once, and what can be in doubt when the connection breaks, and still
lets thousands of slow calls wait, because it is over publishes and not over calls.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from dispatch._internal.fair_queue import FairQueue, QueueFullError

__all__ = ["PublishWindow", "QueueFullError"]

T = TypeVar("T")


class PublishWindow(Generic[T]):
    """At most ``size`` items outstanding; the others wait, first in first out within a flow, round-robin over flows.

    Args:
        size: outstanding items.
        max_queued: items that may wait.
        max_queued_bytes: bytes that may wait.
    """

    def __init__(self, size: int, max_queued: int, max_queued_bytes: int) -> None:
        if size < 1:
            raise ValueError(f"a publish window needs room for one message at least, not {size}")
        self.size = size
        self.outstanding = 0
        self._queue: FairQueue[T] = FairQueue(max_queued, max_queued_bytes)

    @property
    def queued(self) -> int:
        """Items that wait."""
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait."""
        return self._queue.bytes

    def offer(self, flow: str, item: T, size: int) -> bool:
        """True: ``item`` counts as outstanding, send it now. False: it is queued.

        Raises:
            QueueFullError: there is no room; the item was not taken.
        """
        if self.outstanding < self.size and not len(self._queue):
            self.outstanding += 1
            return True
        self._queue.put(flow, item, size)
        return False

    def hold(self, flow: str, item: T, size: int) -> None:
        """Queue ``item`` even if the window has room (the connection is away).

        Raises:
            QueueFullError: there is no room; the item was not taken.
        """
        self._queue.put(flow, item, size)

    def settle(self, count: int = 1) -> None:
        """``count`` outstanding items are no longer."""
        if count > self.outstanding:
            raise ValueError(f"{count} settled, but only {self.outstanding} outstanding")
        self.outstanding -= count

    def pop_queued(self) -> T | None:
        """The next queued item, now outstanding; None when nothing waits or the window is full."""
        if self.outstanding >= self.size:
            return None
        item = self._queue.take()
        if item is not None:
            self.outstanding += 1
        return item

    def withdraw(self, flow: str, item: T) -> bool:
        """Take a queued item back. False when it is not queued (any more)."""
        return self._queue.withdraw(flow, item)

    def waiting(self, flow: str) -> bool:
        """Does anything of ``flow`` wait?"""
        return self._queue.holds(flow)

    def drain(self) -> list[T]:
        """Empty the queue and return what was in it."""
        return self._queue.clear()
