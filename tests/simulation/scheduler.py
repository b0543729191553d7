"""Virtual time of a story: actions in the order of their instants."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

START_S = 1_000.0
"""Not 0, where a forgotten addition of ``now`` goes unnoticed."""


class Scheduler:
    """Runs actions at their instants. Actions of one instant run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = START_S
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def schedule(self, delay: float, action: Callable[..., object], *arguments: Any) -> None:
        assert delay >= 0.0
        heapq.heappush(self._heap, (self.now + delay, next(self._order), action, arguments))

    def run_until(self, instant: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= instant:
            self.now, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
        self.now = instant
