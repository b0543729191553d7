"""A bounded fair queue: first in, first out within a flow, and round-robin between flows. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueFullError(Exception):
    """The queue is full, in items or in bytes."""


class FairQueue(Generic[T]):
    """Items with sizes, in flows that are served round-robin.

    Args:
        max_items: largest number of items.
        max_bytes: largest sum of their sizes, in bytes.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.bytes = 0
        self._items = 0
        # OrderedDict, not dict: repeated removal at the front of a dict scans its deleted entries.
        self._flows: OrderedDict[str, OrderedDict[T, int]] = OrderedDict()

    def __len__(self) -> int:
        return self._items

    def put(self, flow: str, item: T, size: int) -> None:
        """Add ``item`` of ``size`` bytes at the end of its flow.

        Raises:
            QueueFullError: the queue is full; the item was not added.
        """
        if self._items >= self.max_items or self.bytes + size > self.max_bytes:
            raise QueueFullError
        queued = self._flows.get(flow)
        if queued is None:
            queued = self._flows[flow] = OrderedDict()
        queued[item] = size
        self._items += 1
        self.bytes += size

    def pop(self) -> T | None:
        """Remove and return the next item; None: the queue is empty."""
        if not self._flows:
            return None
        flow, queued = self._flows.popitem(last=False)
        item, size = queued.popitem(last=False)
        if queued:
            self._flows[flow] = queued  # to the end: the other flows are next
        self._items -= 1
        self.bytes -= size
        return item

    def remove(self, flow: str, item: T) -> bool:
        """Remove an item. Return False if it is not in the queue."""
        queued = self._flows.get(flow)
        if queued is None or item not in queued:
            return False
        self.bytes -= queued.pop(item)
        self._items -= 1
        if not queued:
            del self._flows[flow]
        return True

    def has_flow(self, flow: str) -> bool:
        """Return whether an item of ``flow`` is queued."""
        return flow in self._flows

    def clear(self) -> list[T]:
        """Empty the queue and return its items."""
        items = [item for queued in self._flows.values() for item in queued]
        self._flows.clear()
        self._items = self.bytes = 0
        return items
