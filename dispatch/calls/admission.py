"""One attempt's way through its tool's guards: a breaker · b limiter · c bulkhead; and out again, whatever happened.

Nothing is waited for unless it has to be. Who has to wait gives the breaker's permit back and asks again afterwards, because
the breaker may have opened meanwhile, and because a probe's place must not be held by one that waits.
"""

from __future__ import annotations

import msgspec

from dispatch._internal.permit import Rejection
from dispatch.calls.tool_guards import ToolGuards
from dispatch.errors import Outcome
from dispatch.resilience.breaker.breaker import BreakerPermit
from dispatch.resilience.bulkhead.bulkhead import BulkheadPermit
from dispatch.resilience.rate_limit.limiter import RatePermit, Waiter

_SUCCESS = Outcome.SUCCESS
_CANCELLED = Outcome.CANCELLED
_REJECTED = Outcome.REJECTED


class Admission(msgspec.Struct, eq=False):
    """Ask with :meth:`enter`; when ``waits`` is set then, go on with :meth:`wait` or :meth:`give_up`; in any case
    :meth:`finish`.

    Attributes:
        waits: there is no room at once.
    """

    _guards: ToolGuards
    _breaker: BreakerPermit | None = None
    _rate: RatePermit | None = None
    _place: BulkheadPermit | None = None
    _waiter: Waiter | None = None
    waits: bool = False

    def enter(self, user: str, deadline: float) -> Rejection | None:
        """As far as it goes without waiting. None: it is in, unless ``waits``.

        Args:
            user: whose call it is.
            deadline: of the whole call, on the guards' clock.
        """
        guards = self._guards
        breaker = guards.breaker
        if breaker is not None:
            answer = breaker.admit()
            if type(answer) is Rejection:
                return answer
            self._breaker = answer  # type: ignore[assignment] # what is left
        rates = guards.rates
        if rates is not None:
            may = rates.admit(user, deadline)
            if type(may) is Rejection:
                return may
            if type(may) is Waiter:
                self._waiter = may
                self._stand_by()
                return None
            self._rate = may  # type: ignore[assignment] # likewise
        bulkhead = guards.bulkhead
        if bulkhead is not None:
            place = bulkhead.guard.admit()
            if type(place) is Rejection:
                if place.reason != "full":
                    return place
                self._stand_by()
                return None
            self._place = place  # type: ignore[assignment] # likewise
        return None

    def _stand_by(self) -> None:
        """There is a wait ahead."""
        self.waits = True
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker.finish(_CANCELLED)

    async def wait(self, deadline: float, priority: str | None) -> Rejection | None:
        """Wait for what was not there at once. None: it is admitted."""
        self.waits = False
        waiter, self._waiter = self._waiter, None
        guards = self._guards
        if waiter is not None:
            assert guards.rates is not None
            may = await guards.rates.wait(waiter)
            if isinstance(may, Rejection):
                return may
            self._rate = may
        if guards.bulkhead is not None:
            place = await guards.bulkhead.enter(deadline=deadline, priority=priority)
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

    def give_up(self) -> None:
        """Do not wait."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            assert self._guards.rates is not None
            self._guards.rates.leave(waiter)

    def record_first_chunk(self) -> None:
        """A stream has begun: the breaker counts it as a success now, because it may last longer than a probe's lease."""
        if self._breaker is not None:
            self._breaker.finish(_SUCCESS)

    def finish(self, outcome: Outcome, *, sent: bool, retry_after: float | None = None, counts: bool = True) -> None:
        """The attempt has ended. Every permit it has gets its outcome; a second call does nothing.

        Args:
            outcome: how it ended.
            sent: the request left, or may have: what was not used of a rate goes back otherwise.
            retry_after: seconds that the service asked to be left alone for.
            counts: the breaker counts it; otherwise it only takes its permit back.
        """
        # Each permit counts its first end only.
        if self._breaker is not None:
            self._breaker.finish(outcome if counts else _CANCELLED, retry_after=retry_after)
        if self._place is not None:
            self._place.finish(outcome)
        if self._rate is not None:
            self._rate.finish(outcome if sent else _REJECTED)
