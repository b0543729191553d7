"""When the requests of a table are to be looked at: one heap for all of them, so that a loop needs one timer, not many.

Of ten thousand calls all but a few end long before their deadline. A timer of asyncio for each, made and cancelled,
costs several microseconds a call; an entry here that its request outlives, one.
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heappush

SLACK = 1_024
"""Entries of requests that have ended which may stay, beside as many as there are live ones. A clean-up looks at every
entry, so that this keeps it rare."""


class Deadlines:
    """Instants by id. Entries of ids that are no longer ``live`` are dropped as they are met.

    Args:
        live: the ids that still count, for instance the table itself.
    """

    __slots__ = ("_heap", "_limit", "_live")

    def __init__(self, live: Container[str]) -> None:
        self._live = live
        self._heap: list[tuple[float, str]] = []
        self._limit = SLACK

    def __len__(self) -> int:
        """Entries held, those of ended ids included."""
        return len(self._heap)

    def add(self, when: float, id: str) -> None:
        """``id``, which is live, is due at ``when``."""
        heap = self._heap
        heappush(heap, (when, id))
        if len(heap) > self._limit:
            live = self._live
            heap[:] = [entry for entry in heap if entry[1] in live]
            heapify(heap)
            self._limit = 2 * len(heap) + SLACK

    def due(self, now: float) -> list[tuple[float, str]]:
        """Take out the live entries whose instant is not after ``now``, the earliest first."""
        heap, live = self._heap, self._live
        entries = []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if entry[1] in live:
                entries.append(entry)
        return entries

    def next(self) -> float | None:
        """The earliest instant of a live id."""
        heap, live = self._heap, self._live
        while heap and heap[0][1] not in live:
            heappop(heap)
        return heap[0][0] if heap else None
