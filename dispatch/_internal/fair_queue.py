"""A bounded queue that is fair between flows: first in first out within one, taking turns over all. Pure bookkeeping."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueFullError(Exception):
    """There is no room, in items or in bytes."""


class FairQueue(Generic[T]):
    """Holds items of a size each, in flows that take turns.

    Args:
        max_items: items at most.
        max_bytes: bytes at most, over all items.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.bytes = 0
        self._items = 0
        # OrderedDict, not dict: taking from the front of a dict again and again scans its holes.
        self._flows: OrderedDict[str, OrderedDict[T, int]] = OrderedDict()

    def __len__(self) -> int:
        return self._items

    def put(self, flow: str, item: T, size: int) -> None:
        """Add ``item`` at the end of its flow.

        Raises:
            QueueFullError: there is no room; the item was not taken.
        """
        if self._items >= self.max_items or self.bytes + size > self.max_bytes:
            raise QueueFullError
        waiting = self._flows.get(flow)
        if waiting is None:
            waiting = self._flows[flow] = OrderedDict()
        waiting[item] = size
        self._items += 1
        self.bytes += size

    def take(self) -> T | None:
        """Remove and return the next item; None when there is none."""
        if not self._flows:
            return None
        flow, waiting = self._flows.popitem(last=False)
        item, size = waiting.popitem(last=False)
        if waiting:
            self._flows[flow] = waiting  # to the back: the other flows' turn
        self._items -= 1
        self.bytes -= size
        return item

    def withdraw(self, flow: str, item: T) -> bool:
        """Remove an item. False when it is not here (any more)."""
        waiting = self._flows.get(flow)
        if waiting is None or item not in waiting:
            return False
        self.bytes -= waiting.pop(item)
        self._items -= 1
        if not waiting:
            del self._flows[flow]
        return True

    def holds(self, flow: str) -> bool:
        """Does anything of ``flow`` wait?"""
        return flow in self._flows

    def clear(self) -> list[T]:
        """Empty the queue and return what was in it."""
        items = [item for waiting in self._flows.values() for item in waiting]
        self._flows.clear()
        self._items = self.bytes = 0
        return items
