"""Waiting for a place in a bulkhead: the side of :mod:`dispatch.resilience.bulkhead.bulkhead` that knows the loop."""

from __future__ import annotations

import asyncio

from dispatch._internal.clock import loop_clock
from dispatch._internal.permit import Rejection
from dispatch.errors import Outcome
from dispatch.policy.bulkhead import Bulkhead
from dispatch.resilience.bulkhead.bulkhead import BulkheadGuard, BulkheadPermit, QueueLimits


class WaitingBulkhead:
    """A tool's bulkhead, on the loop that runs when it is made. One timer at most, and none while nobody waits.

    Args:
        settings: see :class:`dispatch.policy.bulkhead.Bulkhead`.
        limits: see :class:`BulkheadGuard`.

    Attributes:
        guard: the bookkeeping. ``guard.admit()`` takes a place without waiting (a hedge does that).
    """

    __slots__ = ("_loop", "_timer", "guard")

    def __init__(self, settings: Bulkhead, limits: QueueLimits | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.guard = BulkheadGuard(settings, loop_clock(), limits)

    async def enter(self, *, deadline: float | None = None, priority: str | None = None) -> BulkheadPermit | Rejection:
        """A place, or a rejection; waits for one as long as the settings and ``deadline`` let it.

        A place that was granted to a caller who was cancelled in the same turn goes to the next in line.

        Args:
            deadline: the instant at which the call ends, on the loop's clock.
            priority: one of the settings' priorities; None: the most urgent.
        """
        guard = self.guard
        if guard.in_flight < guard.limit:
            return guard.admit()
        decided: asyncio.Future[BulkheadPermit | Rejection] = self._loop.create_future()

        def decide(answer: BulkheadPermit | Rejection) -> bool:
            if decided.done():
                return False  # cancelled, and its task has not been told yet
            decided.set_result(answer)
            return True

        waiter = guard.join(decide, deadline=deadline, priority=priority)
        if isinstance(waiter, BulkheadPermit | Rejection):
            return waiter
        self._watch(waiter.expires)
        try:
            return await decided
        except asyncio.CancelledError:
            if not guard.leave(waiter) and not decided.cancelled():
                answer = decided.result()
                if isinstance(answer, BulkheadPermit):
                    answer.finish(Outcome.CANCELLED)
            raise
        finally:
            if not guard.waiting:
                self._unwatch()

    def _watch(self, expires: float) -> None:
        timer = self._timer
        if timer is not None:
            if timer.when() <= expires:
                return
            timer.cancel()
        self._timer = self._loop.call_at(expires, self._expire, expires)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, due: float) -> None:
        self._timer = None
        # A loop may call a hair too early; without ``due`` that would turn it round and round.
        self.guard.expire(max(due, self._loop.time()))
        expires = self.guard.next_expiry()
        if expires is not None:
            self._watch(expires)

    def reconfigure(self, settings: Bulkhead) -> None:
        """Take other settings; what is in flight and what waits stays."""
        self.guard.reconfigure(settings)

    def close(self) -> None:
        """Refuse what waits and what comes; what is in flight goes on."""
        self.guard.close()
        self._unwatch()
