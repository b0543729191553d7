"""Deadlines of running requests: one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection

from dispatch.serving.inbound_request import InboundRequest

GRANULARITY_S = 0.005
"""Seconds between two looks at the running requests, at least: each look reads all of them."""


class RequestDeadlines:
    """Calls ``on_deadline`` for each running request whose ``stop_at`` has passed, at most :data:`GRANULARITY_S` late.

    The timer is armed for a lower bound of all deadlines, so that a request costs one comparison: almost all end long before
    their deadline.

    Args:
        running: the requests to watch.
        now: the loop's clock.
        on_deadline: sets the request's ``stop_at`` anew.
    """

    def __init__(
        self,
        running: Collection[InboundRequest],
        now: Callable[[], float],
        on_deadline: Callable[[InboundRequest], None],
    ) -> None:
        self._running = running
        self._now = now
        self._on_deadline = on_deadline
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def watch(self, stop_at: float) -> None:
        """Watch a request that begins to run, until it no longer runs."""
        if stop_at < self._timer_at:
            self._arm(stop_at)

    def _arm(self, when: float) -> None:
        self.close()
        self._timer_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._check)

    def _check(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self._now()
        for work in tuple(self._running):
            if work.stop_at <= now:
                self._on_deadline(work)
        earliest = min((work.stop_at for work in self._running), default=math.inf)
        if earliest < self._timer_at:
            self._arm(max(earliest, now + GRANULARITY_S))

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
