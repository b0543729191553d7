"""Admission of one attempt by its tool's guards: a breaker · b rate limit · c bulkhead. Every permit is returned.

The breaker's permit is released before queueing and acquired again afterwards: the breaker may open meanwhile, and a
half-open call must not hold its place while it waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dispatch._internal.permit import Rejection
from dispatch.calls.tool_guards import ToolGuards
from dispatch.errors import Outcome
from dispatch.resilience.breaker.breaker import BreakerPermit
from dispatch.resilience.bulkhead.bulkhead import BulkheadGuard, BulkheadPermit
from dispatch.resilience.rate_limit.limiter import RatePermit, Waiter

_SUCCESS = Outcome.SUCCESS
_CANCELLED = Outcome.CANCELLED
_REJECTED = Outcome.REJECTED
_TIMEOUT = Outcome.TIMEOUT
_TOOL_ERROR = Outcome.TOOL_ERROR

OCCUPIED_AFTER_S = 1.0
"""Seconds after the end of a call from which a thread that still executes its tool counts as hanging. Until then other calls
wait for its place."""


class _OccupiedPlace:
    """A place in a bulkhead that a thread has after the end of its call."""

    def __init__(self, guard: BulkheadGuard) -> None:
        self._guard = guard
        self._is_counted = False

    def begin(self) -> None:
        """Count the place."""
        self._is_counted = True
        self._guard.occupied += 1

    def end(self, timer: asyncio.TimerHandle) -> None:
        """Count the place no longer; ``timer`` would begin it."""
        timer.cancel()
        if self._is_counted:
            self._guard.occupied -= 1


class Admission(msgspec.Struct, eq=False):
    """The permits of one attempt: :meth:`try_acquire`; then, if ``must_wait``, :meth:`wait` or :meth:`withdraw`; in any
    case :meth:`finish`.

    Attributes:
        must_wait: the rate limit or the bulkhead has no place now.
    """

    _guards: ToolGuards
    _breaker: BreakerPermit | None = None
    _rate: RatePermit | None = None
    _place: BulkheadPermit | None = None
    _waiter: Waiter | None = None
    must_wait: bool = False

    @property
    def place(self) -> BulkheadPermit | None:
        """The permit of the bulkhead; None: it has none."""
        return self._place

    def try_acquire(self, user: str, deadline: float, now: float) -> Rejection | None:
        """Acquire the permits as far as possible without waiting. None: admitted, unless ``must_wait``.

        Args:
            user: on whose behalf the call is made.
            deadline: of the whole call, on the guards' clock.
            now: the current time on that clock. perf: one reading for all guards.
        """
        guards = self._guards
        breaker = guards.breaker
        if breaker is not None:
            answer = breaker.admit(now)
            pool = guards.pool
            if type(answer) is Rejection and pool is not None and breaker.expect_recovery(pool.returned_at):
                answer = breaker.admit(now)  # an instance has come to a service that had none
            if type(answer) is Rejection:
                return answer
            self._breaker = answer  # type: ignore[assignment] # a permit
        rates = guards.rates
        if rates is not None:
            may = rates.admit(user, deadline)
            if type(may) is Rejection:
                return may
            if type(may) is Waiter:
                self._waiter = may
                self._release_breaker()
                return None
            self._rate = may  # type: ignore[assignment] # likewise
        bulkhead = guards.bulkhead
        if bulkhead is not None:
            place = bulkhead.guard.admit(now)
            if type(place) is Rejection:
                if place.reason != "full":
                    return place
                self._release_breaker()
                return None
            self._place = place  # type: ignore[assignment] # likewise
        return None

    def _release_breaker(self) -> None:
        """Return the breaker's permit before a wait."""
        self.must_wait = True
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker.finish(_CANCELLED)

    async def wait(self, deadline: float, priority: str | None) -> Rejection | None:
        """Wait for the permits that were not available. None: admitted."""
        self.must_wait = False
        waiter, self._waiter = self._waiter, None
        guards = self._guards
        if waiter is not None:
            assert guards.rates is not None
            may = await guards.rates.wait(waiter)
            if isinstance(may, Rejection):
                return may
            self._rate = may
        if guards.bulkhead is not None:
            place = await guards.bulkhead.acquire(deadline=deadline, priority=priority)
            if isinstance(place, Rejection):
                return place
            self._place = place
        breaker = guards.breaker
        if breaker is not None:
            answer = breaker.admit()
            if isinstance(answer, Rejection):
                return answer
            self._breaker = answer
        return None

    def release(self) -> None:
        """Return the permits before anything was sent, so that they can be acquired again."""
        self.finish(_CANCELLED, sent=False)
        self._breaker = self._rate = self._place = None

    def withdraw(self) -> None:
        """Leave the queue instead of waiting."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            assert self._guards.rates is not None
            self._guards.rates.leave(waiter)

    def record_first_chunk(self) -> None:
        """A stream has begun: the breaker counts a success now, because the stream may last longer than the lease of a
        half-open call."""
        if self._breaker is not None:
            self._breaker.finish(_SUCCESS)

    def keep_place(self, until: asyncio.Future[Any]) -> None:
        """Keep the place in the bulkhead until the future is done: the tool goes on after its attempt."""
        place, self._place = self._place, None
        if place is not None:
            until.add_done_callback(lambda _: place.finish(_CANCELLED))

    def mark_occupied(self, until: asyncio.Future[Any]) -> None:
        """Count the place in the bulkhead as occupied until the future is done, by a thread that cannot be stopped; from
        :data:`OCCUPIED_AFTER_S` on."""
        bulkhead = self._guards.bulkhead
        if bulkhead is not None:
            count = _OccupiedPlace(bulkhead.guard)
            timer = until.get_loop().call_later(OCCUPIED_AFTER_S, count.begin)
            until.add_done_callback(lambda _: count.end(timer))

    def finish(
        self,
        outcome: Outcome,
        *,
        sent: bool,
        retry_after: float | None = None,
        counts: bool = True,
        now: float | None = None,
    ) -> None:
        """Return every permit with the outcome of the attempt; a second call does nothing.

        Args:
            outcome: of the attempt.
            sent: the request was sent, or may have been; otherwise the rate limit's permit is given back.
            retry_after: seconds that the service asked for before the next request.
            counts: the breaker counts the outcome; otherwise its permit is only returned.
            now: the current time on the guards' clock, if it is known.
        """
        # Each permit counts its first outcome only.
        if self._breaker is not None:
            self._breaker.finish(outcome if counts else _CANCELLED, retry_after=retry_after, now=now)
        if self._place is not None:
            self._place.finish(outcome, now=now)
        if self._rate is not None:
            self._rate.finish(outcome if sent else _REJECTED)
