"""Deadlines of many things: one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from dispatch._internal.clock import loop_clock

T = TypeVar("T")

GRANULARITY_S = 0.005
"""Seconds between two checks at least, because each reads the deadlines of all things."""
GRANULARITY_OF_EACH_S = 1e-6
"""The same for each of the things: a check takes less than a tenth of the time, however many there are."""


class DeadlineTimer(Generic[T]):
    """Calls ``on_deadline`` for each thing whose deadline has passed, at the deadline, or after :data:`GRANULARITY_S` where
    another one has just passed.

    The timer is armed for a lower bound of all deadlines, so that a thing costs one comparison: almost all end long before
    their deadline.

    Args:
        things: those with a deadline.
        deadline_of: the deadline of one, on the loop's clock; infinite: none.
        on_deadline: removes the thing, or changes its deadline.
    """

    def __init__(
        self, things: Collection[T], deadline_of: Callable[[T], float], on_deadline: Callable[[T], object]
    ) -> None:
        self._things = things
        self._deadline_of = deadline_of
        self._on_deadline = on_deadline
        self._loop = asyncio.get_running_loop()
        self._now = loop_clock()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    @property
    def is_armed(self) -> bool:
        """Whether a check is due at some time."""
        return self._timer is not None

    def watch(self, deadline: float) -> None:
        """Watch a thing with this deadline, which was added."""
        if deadline < self._timer_at:
            self.close()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._check)

    def _check(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now, deadline_of = self._now(), self._deadline_of
        for thing in sorted((each for each in self._things if deadline_of(each) <= now), key=deadline_of):
            if deadline_of(thing) <= now:  # the end of an earlier one may have changed it
                self._on_deadline(thing)
        earliest = min(map(deadline_of, self._things), default=math.inf)
        if earliest < math.inf:
            self.watch(max(earliest, now + GRANULARITY_S + len(self._things) * GRANULARITY_OF_EACH_S))

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
