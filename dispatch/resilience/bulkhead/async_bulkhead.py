"""The asyncio adapter of :mod:`dispatch.resilience.bulkhead.bulkhead`: a wait is a future, one timer per bulkhead."""

from __future__ import annotations

import asyncio
import math

from dispatch._internal.clock import loop_clock
from dispatch._internal.permit import Rejection
from dispatch.errors import Outcome
from dispatch.policy.bulkhead import Bulkhead
from dispatch.resilience.bulkhead.bulkhead import BulkheadGuard, BulkheadPermit, BulkheadWaiter, QueueLimits


class AsyncBulkhead:
    """A tool's bulkhead on the event loop that runs when it is constructed. It has at most one timer, and none while the
    wait queue is empty.

    Args:
        settings: see :class:`dispatch.policy.bulkhead.Bulkhead`.
        limits: see :class:`BulkheadGuard`.

    Attributes:
        guard: the sans-I/O core. ``guard.admit()`` acquires a permit without waiting, as hedges do.
    """

    __slots__ = ("_loop", "_timer", "guard")

    def __init__(self, settings: Bulkhead, limits: QueueLimits | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.guard = BulkheadGuard(settings, loop_clock(), limits)

    async def acquire(
        self, *, deadline: float | None = None, priority: str | None = None
    ) -> BulkheadPermit | Rejection:
        """Return a permit or a rejection; waits for at most ``max_wait``, or as long as the call can still end by
        ``deadline``.

        A permit that was granted to a caller that is cancelled in the same turn of the loop goes to the next waiter.

        Args:
            deadline: when the call ends, on the loop's clock.
            priority: one of the settings' priorities; None: the most urgent.
        """
        guard = self.guard
        if guard.in_flight < guard.limit:
            return guard.admit()
        decided: asyncio.Future[BulkheadPermit | Rejection] = self._loop.create_future()

        def decide(answer: BulkheadPermit | Rejection) -> bool:
            if decided.done():
                return False  # cancelled, but its task has not run since
            decided.set_result(answer)
            return True

        waiter = guard.enqueue(decide, deadline=deadline, priority=priority)
        if type(waiter) is not BulkheadWaiter:
            return waiter  # type: ignore[return-value] # a permit or a rejection
        self._set_timer(waiter.expires)
        try:
            return await decided
        except asyncio.CancelledError:
            if not guard.cancel_wait(waiter) and not decided.cancelled():
                answer = decided.result()
                if isinstance(answer, BulkheadPermit):
                    answer.finish(Outcome.CANCELLED)
            raise
        finally:
            if not guard.waiting:
                self._cancel_timer()

    def _set_timer(self, expires: float) -> None:
        timer = self._timer
        if timer is not None:
            if timer.when() <= expires:
                return
            timer.cancel()
        if expires < math.inf:
            self._timer = self._loop.call_at(expires, self._expire, expires)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, due: float) -> None:
        self._timer = None
        # A timer may fire slightly early; without ``due`` it would be set again for the same instant, in a busy loop.
        self.guard.expire(max(due, self._loop.time()))
        expires = self.guard.next_expiry()
        if expires is not None:
            self._set_timer(expires)

    def reconfigure(self, settings: Bulkhead) -> None:
        """Apply other settings; calls in flight and waiting calls stay."""
        self.guard.reconfigure(settings)

    def close(self) -> None:
        """Reject waiting and later calls; calls in flight continue."""
        self.guard.close()
        self._cancel_timer()
