"""So many calls at once, so many waiting, so long: what one slow tool can take from the others. Pure: no loop, no timer.

A free place is taken with :meth:`BulkheadGuard.admit`; who finds none may :meth:`~BulkheadGuard.join` the line and is told
later. ``granted - released == in_flight`` after any order of events: a place that comes back goes to the next in line in
the same moment, so that nobody can slip in between and none is lost when the next has just left.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dispatch._internal.permit import Clock, Rejection
from dispatch.errors import Outcome
from dispatch.policy.bulkhead import Bulkhead
from dispatch.resilience.bulkhead.wait_queue import Waiter, WaitingLine

BY = "bulkhead"
RECENT = 0.1
"""The weight of the newest service time: the mean looks back over some ten to twenty calls."""
MARGIN = 4.0
"""A call is refused at once when its wait is estimated at so many times ``max_wait``; below that it waits, and the clock
decides. The mean of so few calls is noisy: after a burst it was seen 2.5 times too high."""
RESERVE = 4
"""Places' worth of waiters that overload never sheds: so many may come free by chance before the next call arrives."""

_SUCCESS = Outcome.SUCCESS  # looking a member up in its class costs as much as all the rest of finishing
_SERVED = frozenset({Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS, Outcome.TIMEOUT, Outcome.TRANSPORT})
"""Outcomes besides success that tell how long a place is held. CANCELLED says how patient a caller was; after THROTTLED and
REJECTED nothing ran."""

Decide = Callable[["BulkheadPermit | Rejection"], bool]
"""Told, once, how a wait ended. Called from within whichever call of the guard decided it; it must not raise. False: whoever
waited has gone, so that the place goes to the next."""


class QueueLimits(msgspec.Struct, frozen=True):
    """Limits of the wait queue that no policy sets: they are right for fast and slow tools alike, because they bound waiting
    time and memory, not calls.

    Attributes:
        max_length: Waiting calls. 10,000: a bound on memory (some kilobytes each), not on bursts. A longer queue is useless:
            at 1,000 calls a second its last call would wait for 10 s.
        overload_after: Seconds for which the queue was never empty, after which the tool is overloaded: from then on the
            newest call is served first, because it has the most time left. 1, as the default ``max-wait``: a burst that is
            worked off within that time loses no call (CoDel's interval).
        shed_after: Seconds of waiting after which a call is rejected under overload, when a permit goes to another. 0.1: a
            tenth of the interval, as CoDel's target (RFC 8289). It grows where permits come free more seldom, so that none
            stays unused.
    """

    max_length: int = 10_000
    overload_after: float = 1.0
    shed_after: float = 0.1


QUEUE_LIMITS = QueueLimits()


class BulkheadPermit(msgspec.Struct, eq=False, gc=False):
    """A place. See :class:`dispatch._internal.permit.Permit`. Nothing holds on to it but its caller."""

    _guard: BulkheadGuard | None
    _since: float

    def finish(self, outcome: Outcome, *, retry_after: float | None = None) -> None:
        """Give the place back; it goes to the next in line at once. A second call does nothing."""
        guard = self._guard
        if guard is None:
            return
        self._guard = None
        now = guard._clock()
        if outcome is _SUCCESS or outcome in _SERVED:
            elapsed = now - self._since
            mean = guard._service_s
            guard._service_s = elapsed if mean is None else mean + RECENT * (elapsed - mean)
        guard.in_flight -= 1
        if guard._line.length:
            guard._fill(now)


class BulkheadWaiter(Waiter):
    """One that waits for a place, until ``decide`` is called or it leaves."""

    __slots__ = ("deadline", "decide")

    def __init__(self, rank: int, since: float, expires: float, deadline: float | None, decide: Decide) -> None:
        super().__init__(rank, since, expires)
        self.deadline = deadline
        self.decide = decide


class BulkheadGuard:
    """The bulkhead of one tool.

    Args:
        settings: see :class:`dispatch.policy.bulkhead.Bulkhead`.
        clock: the clock that deadlines are read on, too.
        limits: of the wait queue; None: :data:`QUEUE_LIMITS`.

    Attributes:
        settings: those in force.
        limit: calls in flight at most.
        limits: of the wait queue.
        granted: places given since the start.
        in_flight: places taken.

    Rejections have the reasons ``full`` (no place, and this call does not wait), ``queue-full``, ``too-late`` (the wait
    would outlive, or has outlived, the call's deadline), ``too-long`` (the same, of ``max-wait``), ``overload`` (others
    that have more time left went first), and ``closed``.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_line",
        "_ranks",
        "_service_s",
        "granted",
        "in_flight",
        "limit",
        "limits",
        "settings",
    )

    def __init__(self, settings: Bulkhead, clock: Clock, limits: QueueLimits | None = None) -> None:
        self._clock = clock
        self._closed = False
        self._service_s: float | None = None
        self.limits = QUEUE_LIMITS if limits is None else limits
        self.granted = 0
        self.in_flight = 0
        self._apply(settings)
        self._line = self._new_line()

    def _apply(self, settings: Bulkhead) -> None:
        self.settings = settings
        self.limit = settings.max_concurrent_calls
        self._ranks: dict[str, int] = {name: rank for rank, name in enumerate(settings.priorities)}

    def _new_line(self) -> WaitingLine[BulkheadWaiter]:
        return WaitingLine(len(self.settings.priorities), self.limits.max_length, self.limits.overload_after)

    @property
    def released(self) -> int:
        """Places given back since the start."""
        return self.granted - self.in_flight

    @property
    def waiting(self) -> int:
        """Calls in line."""
        return len(self._line)

    @property
    def overloaded(self) -> bool:
        """The line has stood for too long: the newest is served first."""
        return self._line.overloaded(self._clock())

    @property
    def service_s(self) -> float | None:
        """How long calls took lately, on average, in seconds; None before the first has ended."""
        return self._service_s

    def retry_after(self) -> float | None:
        """Seconds until all that wait now should have been served, judged by recent service times; None when unknown."""
        return None if self._service_s is None else (len(self._line) + 1) * self._service_s / self.limit

    def _rejection(self, reason: str) -> Rejection:
        return Rejection(BY, reason, self.retry_after())

    def admit(self) -> BulkheadPermit | Rejection:
        """A place, if one is free now."""
        if self.in_flight < self.limit and not self._closed:
            self.granted += 1
            self.in_flight += 1
            return BulkheadPermit(self, self._clock())
        return Rejection(BY, "closed") if self._closed else self._rejection("full")

    def join(
        self, decide: Decide, *, deadline: float | None = None, priority: str | None = None
    ) -> BulkheadPermit | BulkheadWaiter | Rejection:
        """A place, or one in the line, or a rejection at once: the line is full, or the wait would take too long.

        Args:
            decide: called with the place, or with a rejection, when the wait ends otherwise than by :meth:`leave`.
            deadline: the instant at which the call ends anyhow, on the guard's clock.
            priority: one of the settings' priorities; None: the most urgent. One that a reload has removed is the least
                urgent.
        """
        if self._closed or self.in_flight < self.limit:
            return self.admit()
        now = self._clock()
        line = self._line
        rank = 0 if priority is None else self._ranks.get(priority, len(self._ranks) - 1)
        patience = self.settings.max_wait
        if not patience:
            return self._rejection("full")
        if deadline is not None and deadline <= now:
            return self._rejection("too-late")
        if self._service_s is not None:
            # A place comes free each service_s / limit seconds; half of that, on average, has passed already.
            wait = (line.ahead(rank, now) + 0.5) * self._service_s / self.limit
            if deadline is not None and wait > deadline - now:
                return self._rejection("too-late")
            if wait > MARGIN * patience:
                return self._rejection("too-long")
        loser = None
        if line.full:
            loser = line.displace(rank, now)
            if loser is None:
                return self._rejection("queue-full")
        expires = now + patience
        if deadline is not None and deadline < expires:
            expires = deadline
        waiter = BulkheadWaiter(rank, now, expires, deadline, decide)
        line.join(waiter, now)
        if loser is not None:
            loser.decide(self._rejection("queue-full"))
        return waiter

    def leave(self, waiter: BulkheadWaiter) -> bool:
        """Wait no longer. False when it was decided already: a place it got must be finished, then."""
        return self._line.leave(waiter)

    def next_expiry(self) -> float | None:
        """The instant at which :meth:`expire` has something to do; None when nobody waits."""
        return self._line.next_expiry()

    def expire(self, now: float) -> None:
        """Reject those whose time to wait has ended by ``now``."""
        while (waiter := self._line.expired(now)) is not None:
            self._refuse_expired(waiter)

    def _refuse_expired(self, waiter: BulkheadWaiter) -> None:
        late = waiter.deadline is not None and waiter.expires >= waiter.deadline
        waiter.decide(self._rejection("too-late" if late else "too-long"))

    def _fill(self, now: float) -> None:
        """Give free places to those in line, and shed whom overload has made hopeless."""
        line = self._line
        self.expire(now)  # a timer may be late; a place must not go to a call that has ended
        age = None
        while self.in_flight < self.limit and (waiter := line.take(now)) is not None:
            self.granted += 1
            self.in_flight += 1
            permit = BulkheadPermit(self, now)
            if not waiter.decide(permit):
                permit._guard = None
                self.in_flight -= 1
            elif self._service_s is not None:
                age = max(self.limits.shed_after, RESERVE * self._service_s / self.limit)
        # Only after others were served: where nothing moves, those who wait have lost nothing yet.
        while age is not None and (waiter := line.stale(now, age)) is not None:
            waiter.decide(self._rejection("overload"))

    def reconfigure(self, settings: Bulkhead) -> None:
        """Apply other settings. Calls in flight stay; waiting calls stay, and keep their time limit. A lower limit is
        reached as calls end. Waiting calls of a removed priority become the least urgent, unless they were the most
        urgent."""
        names = self.settings.priorities
        waiting, standing_since = self._line.clear(), self._line.standing_since
        self._apply(settings)
        line = self._line = self._new_line()
        for waiter in waiting:
            waiter.rank = self._ranks.get(names[waiter.rank], len(self._ranks) - 1 if waiter.rank else 0)
            line.join(waiter, standing_since)
        self._fill(self._clock())

    def close(self) -> None:
        """Refuse what waits and what comes; what is in flight goes on."""
        self._closed = True
        while (waiter := self._line.last(self._clock())) is not None:
            waiter.decide(Rejection(BY, "closed"))
