"""A window over publishes whose receipt is still out, with a bounded fair queue in front of it. Pure bookkeeping.

A broker drops non-persistent messages that come in bursts, without a word (docs/architecture.md, "The publish window").
Bounding the *unreceipted publishes* of a connection keeps bursts short and still lets thousands of slow calls wait.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueFull(Exception):
    """The queue in front of the window has no room, in messages or in bytes."""


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
        self.max_queued = max_queued
        self.max_queued_bytes = max_queued_bytes
        self.outstanding = 0
        self.queued = 0
        self.queued_bytes = 0
        # OrderedDict, not dict: taking from the front of a dict again and again scans its holes.
        self._flows: OrderedDict[str, OrderedDict[T, int]] = OrderedDict()

    def offer(self, flow: str, item: T, size: int) -> bool:
        """True: ``item`` counts as outstanding, send it now. False: it is queued.

        Raises:
            QueueFull: there is no room; the item was not taken.
        """
        if self.queued == 0 and self.outstanding < self.size:
            self.outstanding += 1
            return True
        self.hold(flow, item, size)
        return False

    def hold(self, flow: str, item: T, size: int) -> None:
        """Queue ``item`` even if the window has room (the connection is away).

        Raises:
            QueueFull: there is no room; the item was not taken.
        """
        if self.queued >= self.max_queued or self.queued_bytes + size > self.max_queued_bytes:
            raise QueueFull
        waiting = self._flows.get(flow)
        if waiting is None:
            waiting = self._flows[flow] = OrderedDict()
        waiting[item] = size
        self.queued += 1
        self.queued_bytes += size

    def settle(self, count: int = 1) -> None:
        """``count`` outstanding items are no longer."""
        if count > self.outstanding:
            raise ValueError(f"{count} settled, but only {self.outstanding} outstanding")
        self.outstanding -= count

    def take(self) -> T | None:
        """The next queued item, now outstanding; None when nothing waits or the window is full."""
        if not self._flows or self.outstanding >= self.size:
            return None
        flow, waiting = self._flows.popitem(last=False)
        item, size = waiting.popitem(last=False)
        if waiting:
            self._flows[flow] = waiting  # to the back: the other flows' turn
        self.queued -= 1
        self.queued_bytes -= size
        self.outstanding += 1
        return item

    def withdraw(self, flow: str, item: T) -> bool:
        """Take a queued item back. False when it is not queued (any more)."""
        waiting = self._flows.get(flow)
        if waiting is None or item not in waiting:
            return False
        size = waiting.pop(item)
        if not waiting:
            del self._flows[flow]
        self.queued -= 1
        self.queued_bytes -= size
        return True

    def waiting(self, flow: str) -> bool:
        """Does anything of ``flow`` wait?"""
        return flow in self._flows

    def drain(self) -> list[T]:
        """Empty the queue and return what was in it."""
        items = [item for waiting in self._flows.values() for item in waiting]
        self._flows.clear()
        self.queued = self.queued_bytes = 0
        return items
