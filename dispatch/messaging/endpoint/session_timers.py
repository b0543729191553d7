"""Timers of many sessions behind one timer of the event loop. Pure.

A timer that moves to a later time costs nothing: the earlier entry expires, and its session says when it is due next. So a
turn of the event loop costs nothing for a session that is idle.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class SessionTimers(Generic[T]):
    """The times at which sessions are due. A session may be reported earlier than it is due, never later; one that is
    reported has to be scheduled again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._pending: dict[T, list[float]] = {}
        """Entries of each session in the heap, the earliest last."""
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due(self) -> float:
        """When the first session is due; ``math.inf``: none is."""
        return self._heap[0][0] if self._heap else math.inf

    def schedule(self, session: T, at: float) -> None:
        """Report ``session`` at ``at`` or earlier; ``math.inf``: not at all."""
        pending = self._pending.get(session)
        if pending is None:
            pending = self._pending[session] = []
        if at < (pending[-1] if pending else math.inf):
            pending.append(at)
            heappush(self._heap, (at, next(self._order), session))

    def pop_due(self, now: float) -> list[T]:
        """Return the sessions that are due."""
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            session = heappop(heap)[2]
            pending = self._pending.get(session)
            if pending:
                pending.pop()
                due.append(session)
        return due

    def discard(self, session: T) -> None:
        """Report ``session`` no more; for good. Its entries in the heap expire."""
        self._pending.pop(session, None)

    def clear(self) -> None:
        """Report no session any more."""
        self._heap.clear()
        self._pending.clear()
