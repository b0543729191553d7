"""Bulkhead: bounded concurrency with a bounded wait."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from operator import itemgetter

import msgspec

from dispatch._internal import Clock, Rejection
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead

# Wait queue of a bulkhead: by priority, bounded, fair to users, FIFO in a burst and LIFO under overload (adaptive LIFO).
# Sans-I/O.
#
# Within a priority, the users' waiting calls (a line for each user) are served round-robin (J. Nagle, RFC 970), and a full
# queue drops from the longest line, as far as it is known without a search (B. Suter et al. 1999, "approximated longest
# queue drop"): many calls of one user delay only the calls of that user. Within a line:
#
# A burst drains: however long its queue is, fewer calls arrive than are served. A standing queue does not: calls arrive
# faster than they are served, over several rounds of all permits. The longest waiting call is then the least likely to have
# time left when it is served: the newest is served first, and the oldest are rejected (CoDel, K. Nichols and V. Jacobson
# 2012; adaptive LIFO, B. Maurer, "Fail at Scale", 2015). Operations are O(1) or O(log n) per waiter.


SLACK = 16
"""Stale entries that the expiry heap may contain, beyond one for each waiter."""


Decide = Callable[["BulkheadPermit | Rejection"], bool]
"""Called once with the decision of a wait, from within the guard's method that decided it; it must not raise. False: the
waiting caller has been cancelled, and the permit goes to the next waiter."""


class BulkheadWaiter(msgspec.Struct, eq=False):
    """A waiting call, until ``decide`` is called or the wait is cancelled.

    Attributes:
        rank: number of its priority; 0 is the most urgent.
        user: on whose behalf.
        since: when it was added.
        latest: when ``max_wait`` has passed; infinite without one.
        deadline: of the call; infinite: none.
        decide: see :data:`Decide`.
        expires: when its waiting time ends, or is decided anew.
        serial: number in order of arrival.
        is_waiting: whether it is in the queue.
    """

    rank: int
    user: str
    since: float
    latest: float
    deadline: float
    decide: Decide
    expires: float = 0.0
    serial: int = 0
    is_waiting: bool = False


INTERVALS = 3
"""Intervals in which more calls arrive than are served, beyond the number of the others, after which the queue stands. One
burst adds one."""


class LoadTrend:
    """Whether calls arrive faster than they are served while the queue is never empty, by interval.

    An interval lasts until ``min_served`` waiters have been served and ``min_s`` seconds have passed: at least one duration
    of the tool, fast or slow, and no interval ends while nothing completes. The first one gives no verdict: it contains the
    burst that the queue began with.

    Attributes:
        arrived, served: in the current interval; calls that were refused are among those that arrived.
        is_overloaded: the queue stands: since :data:`INTERVALS` were counted, until the count is 0 again.
    """

    __slots__ = ("_count", "_is_first", "_since", "arrived", "is_overloaded", "served")

    def __init__(self, now: float) -> None:
        self._since = now
        self._is_first = True
        self._count = 0
        self.arrived = self.served = 0
        self.is_overloaded = False

    def review(self, now: float, min_served: float, min_s: float) -> None:
        """End the interval if it is complete."""
        if self.served < min_served or now - self._since < min_s:
            return
        if self._is_first:
            self._is_first = False
        elif self.arrived > self.served:
            self._count = min(INTERVALS, self._count + 1)
        else:
            self._count = max(0, self._count - 1)
        if self._count in (0, INTERVALS):
            self.is_overloaded = self._count == INTERVALS
        self._since = now
        self.arrived = self.served = 0


class _Priority:
    """The waiters of one priority.

    Attributes:
        waiting: all of them, in order of arrival.
        lines: those of each user, the user whose turn is next first.
        longest: user of the longest line, when a waiter was last added to it.
    """

    __slots__ = ("lines", "longest", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[BulkheadWaiter, None] = OrderedDict()
        self.lines: OrderedDict[str, OrderedDict[BulkheadWaiter, None]] = OrderedDict()
        self.longest = ""

    def length_of(self, user: str) -> int:
        line = self.lines.get(user)
        return 0 if line is None else len(line)

    def add(self, waiter: BulkheadWaiter) -> None:
        self.waiting[waiter] = None
        line = self.lines.setdefault(waiter.user, OrderedDict())
        line[waiter] = None
        if len(line) >= self.length_of(self.longest):
            self.longest = waiter.user

    def remove(self, waiter: BulkheadWaiter) -> None:
        del self.waiting[waiter]
        line = self.lines[waiter.user]
        del line[waiter]
        if not line:
            del self.lines[waiter.user]

    def pop_next(self, newest: bool) -> BulkheadWaiter:
        user, line = next(iter(self.lines.items()))
        self.lines.move_to_end(user)
        waiter = next(reversed(line) if newest else iter(line))
        self.remove(waiter)
        return waiter

    def find_last(self, newest: bool) -> BulkheadWaiter:
        """Return the waiter of the longest line that is served last."""
        line = self.lines.get(self.longest, self.waiting)
        return next(iter(line) if newest else reversed(line))


class WaitQueue:
    """The wait queue of one bulkhead.

    Args:
        ranks: number of priorities.
        capacity: maximum number of waiters.

    Attributes:
        length: number of waiters.
        trend: of the load since the queue was last empty.
    """

    __slots__ = ("_expiries", "_ranks", "_serial", "capacity", "length", "trend")

    def __init__(self, ranks: int, capacity: int) -> None:
        self.capacity = capacity
        self._ranks = tuple(_Priority() for _ in range(ranks))
        self.length = 0
        self.trend = LoadTrend(0.0)
        self._serial = 0
        # Entries of removed waiters are dropped when they reach the top, or all at once when there are too many.
        self._expiries: list[tuple[float, int, BulkheadWaiter]] = []

    @property
    def is_full(self) -> bool:
        return self.length >= self.capacity

    @property
    def is_overloaded(self) -> bool:
        """Whether the queue stands: the newest waiter of a line is served first."""
        return self.length > 0 and self.trend.is_overloaded

    def count_ahead(self, rank: int, user: str) -> int:
        """Count the waiters that would be served before a newcomer of ``rank`` and ``user``, at most: each other user has a
        turn before each turn of this one."""
        own = self._ranks[rank]
        mine = 0 if self.is_overloaded else own.length_of(user)
        others = len(own.lines) - (user in own.lines)
        count = min(len(own.waiting), mine + (mine + 1) * others)
        for urgent in self._ranks[:rank]:
            count += len(urgent.waiting)
        return count

    def add(self, waiter: BulkheadWaiter, now: float) -> None:
        """Add a waiter that was never in this queue. The caller checks :attr:`is_full` first."""
        if not self.length:
            self.trend = LoadTrend(now)
        self._ranks[waiter.rank].add(waiter)
        self.length += 1
        waiter.is_waiting = True
        self._serial = waiter.serial = self._serial + 1
        if len(self._expiries) > 2 * self.length + SLACK:
            self._expiries = [entry for entry in self._expiries if entry[2].is_waiting]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (waiter.expires, waiter.serial, waiter))

    def remove(self, waiter: BulkheadWaiter) -> bool:
        """Remove a waiter. False if it is not in the queue (any more)."""
        if not waiter.is_waiting:
            return False
        self._ranks[waiter.rank].remove(waiter)
        waiter.is_waiting = False
        self.length -= 1
        return True

    def pop_next(self) -> BulkheadWaiter | None:
        """Remove and return the waiter to serve next; None when the queue is empty."""
        newest = self.is_overloaded
        for own in self._ranks:
            if own.waiting:
                waiter = own.pop_next(newest)
                waiter.is_waiting = False
                self.length -= 1
                return waiter
        return None

    def displace(self, rank: int, user: str = "") -> BulkheadWaiter | None:
        """Remove and return the waiter that a newcomer of ``rank`` and ``user`` displaces: the last of the longest line of a
        less urgent priority; within its own, of a line that is longer than the newcomer's will be, or under overload the
        oldest. None: there is no such waiter."""
        newest = self.is_overloaded
        for least in range(len(self._ranks) - 1, rank - 1, -1):
            own = self._ranks[least]
            if not own.waiting:
                continue
            waiter = own.find_last(newest)
            if least == rank and own.length_of(own.longest) <= own.length_of(user) + 1:
                if not newest:
                    return None
                waiter = next(iter(own.waiting))
            self.remove(waiter)
            return waiter
        return None

    def pop_last(self) -> BulkheadWaiter | None:
        """Remove and return a waiter that would be served late; None when the queue is empty."""
        return self.displace(-1)

    def pop_stale(self, now: float, age: float) -> BulkheadWaiter | None:
        """Remove and return a waiter that has waited for ``age`` seconds; None when there is none."""
        for own in self._ranks:
            if own.waiting:
                waiter = next(iter(own.waiting))
                if now - waiter.since >= age:
                    self.remove(waiter)
                    return waiter
        return None

    def pop_due(self, now: float) -> BulkheadWaiter | None:
        """Return a waiter whose ``expires`` has come by ``now``; None when there is none. The caller removes it
        (:meth:`remove`) or lets it wait on (:meth:`extend`)."""
        expires = self.next_expiry()
        if expires is None or expires > now:
            return None
        return heapq.heappop(self._expiries)[2]

    def extend(self, waiter: BulkheadWaiter, expires: float) -> None:
        """Let a waiter from :meth:`pop_due` wait until ``expires``."""
        waiter.expires = expires
        heapq.heappush(self._expiries, (expires, waiter.serial, waiter))

    def next_expiry(self) -> float | None:
        """Return when the next waiting time ends; None when the queue is empty."""
        expiries = self._expiries
        while expiries:
            expires, _, waiter = expiries[0]
            if waiter.is_waiting:
                return expires
            heapq.heappop(expiries)
        return None

    def clear(self) -> list[BulkheadWaiter]:
        """Remove and return all waiters, in order of arrival."""
        waiting = [entry[2] for entry in sorted(self._expiries, key=itemgetter(1)) if entry[2].is_waiting]
        for waiter in waiting:
            self.remove(waiter)
        return waiting


# The bulkhead of one tool: bounded concurrency, a bounded wait queue and a bounded waiting time. Sans-I/O.
#
# :meth:`BulkheadGuard.admit` acquires a free permit; :meth:`BulkheadGuard.enqueue` waits for one, and a callback reports
# the decision. ``granted - released == in_flight`` holds after any order of events: a released permit goes to the next
# waiter in the same step, so that no newcomer overtakes it and no permit is lost if that waiter has just been cancelled.


BY = "bulkhead"
RECENT = 0.1
"""Weight of the newest service time in the moving average, which covers some ten to twenty calls."""
MARGIN = 4.0
"""A call is rejected at once when its estimated wait exceeds ``max_wait`` by this factor; below it the call waits, up to
``max_wait``. The average of so few calls is noisy: after a burst it was measured 2.5 times too high."""
DEADLINE_MARGIN = 2.0
"""The same for the time in which the call must start to end by its deadline, without a ``max_wait``. It is smaller because
such a wait may be long, and few averages of long calls are so wrong."""
RESERVE = 4
"""Waiting calls per permit that overload never sheds: so many permits may come free before the next call arrives."""
STALLED_AFTER = 10.0
"""The tool stalls when no permit was granted for so many of its durations while calls wait for one: further calls are
rejected at once. Those that wait already may have come with the burst that the tool works on."""
STALLED_LEAST_S = 1.0
"""The least such time, in seconds: a fast tool that pauses for less is not refused."""
LEAST_S = 0.001
"""Least duration of a call, in seconds, where none has ended yet."""

_SUCCESS = Outcome.SUCCESS  # access to the member of an enumeration costs as much as the rest of finish()
_SERVED = frozenset({Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS, Outcome.TIMEOUT, Outcome.TRANSPORT})
"""Outcomes besides success whose duration is a service time. CANCELLED measures the caller's patience; after THROTTLED and
REJECTED nothing was executed."""
_UNANSWERED = frozenset({Outcome.TIMEOUT, Outcome.TRANSPORT})
"""Of those, the outcomes after which the duration of an answer is unknown."""


class QueueLimits(msgspec.Struct, frozen=True):
    """Limits of the wait queue that no policy sets: they are right for fast and slow tools alike, because they bound waiting
    time and memory, not calls.

    Attributes:
        max_length: Waiting calls. 10,000: a bound on memory (some kilobytes each), not on bursts. A longer queue is useless:
            at 1,000 calls a second its last call would wait for 10 s.
        interval_rounds: Waiters served for each permit, and
        interval_s: seconds, both of which each interval lasts in which arrivals are compared with served calls. In
            overload, when more calls arrived in three intervals after the first
            (:class:`dispatch.resilience.bulkhead.LoadTrend`), the newest call is served first, because it has
            the most time left. 1 and 0.5: overload takes four durations of the tool, and 2 s for fast tools, so that a
            machine which is busy for a second refuses none; one burst, however large, is never overload.
        shed_after: Seconds of waiting after which a call is rejected under overload, when a permit goes to another. 0.25: an
            eighth of the time to overload; CoDel's target is a twentieth of its interval (RFC 8289). It is at least one
            duration of the tool, in which every permit comes free, perhaps all at one moment; and more where permits come
            free more seldom, so that none stays unused.
    """

    max_length: int = 10_000
    interval_rounds: int = 1
    interval_s: float = 0.5
    shed_after: float = 0.25


QUEUE_LIMITS = QueueLimits()


class BulkheadPermit(msgspec.Struct, eq=False, gc=False):
    """The permit of one attempt; see :mod:`dispatch._internal`. Only its caller refers to it, so that it
    needs no garbage collection."""

    _guard: BulkheadGuard | None
    since: float
    _is_suspended: bool = False
    _is_measured: bool = True
    """How long it is held is a service time."""

    def suspend(self) -> None:
        """Let another call have the place: this one is at an instance that cannot be reached. Idempotent."""
        guard = self._guard
        if guard is not None and not self._is_suspended:
            self._is_suspended = True
            self._is_measured = False
            guard.suspended += 1
            guard.in_flight -= 1
            if guard._queue.length:
                guard._grant_permits(guard._clock())

    def pause(self) -> None:
        """Let another call have the place, while the tool waits for a reader that has paused: as long as no more than half
        of the places are suspended, so that a tool with one place never runs twice at once. Idempotent."""
        guard = self._guard
        if guard is not None and 2 * (guard.suspended + 1) <= guard.limit:
            self.suspend()

    def resume(self) -> None:
        """Count the call again, perhaps beyond the limit: its instance can be reached, or its reader reads. Idempotent."""
        guard = self._guard
        if guard is not None and self._is_suspended:
            self._is_suspended = False
            guard.suspended -= 1
            guard.in_flight += 1

    def restart(self, now: float) -> None:
        """Measure the service time from now on: another instance gets the request."""
        self.resume()
        self.since = now
        self._is_measured = True

    def finish(self, outcome: Outcome, *, retry_after: float | None = None, now: float | None = None) -> None:
        """Release the permit, which goes to the next waiter at once. A second call does nothing.

        Args:
            now: the current time, if it is known.
        """
        guard = self._guard
        if guard is None:
            return
        self._guard = None
        if now is None:
            now = guard._clock()
        if self._is_measured and (outcome is _SUCCESS or outcome in _SERVED):
            elapsed = now - self.since
            mean = guard.service_s
            guard.service_s = elapsed if mean is None else mean + RECENT * (elapsed - mean)
            if outcome is _SUCCESS or outcome not in _UNANSWERED:
                answer_s = guard._answer_s
                if answer_s is None:
                    guard._answer_s = elapsed
                else:
                    error = elapsed - answer_s
                    guard._answer_s = answer_s + RECENT * error
                    guard._answer_spread_s += RECENT * (abs(error) - guard._answer_spread_s)
        if self._is_suspended:
            guard.suspended -= 1
            return
        guard.in_flight -= 1
        if guard._queue.length:
            guard._grant_permits(now)


class BulkheadGuard:
    """The bulkhead of one tool.

    Args:
        settings: see :class:`dispatch.policy.Bulkhead`.
        clock: seconds, the clock of deadlines.
        limits: of the wait queue; None: :data:`QUEUE_LIMITS`.

    Attributes:
        settings: those in force.
        limit: maximum number of calls in flight.
        limits: of the wait queue.
        granted: permits granted so far.
        in_flight: calls in flight, without suspended ones.
        suspended: calls in flight that hold no place: at instances that cannot be reached, or with readers that have paused.
        found_full: calls so far that found no free permit.
        granted_at: when the newest permit was granted.
        service_s: moving average of recent service times, in seconds; None before the first call has ended.
        occupied: those of them whose callers have gone, while a thread, which cannot be stopped, still executes the tool.

    Without a ``max_wait`` a call waits as long as it can still end by its deadline: at the durations of the calls that were
    answered, and no sooner than the calls in flight, all of which run for longer than no permit was granted. Where a fleet
    has fewer places than processes, none may be in flight here.

    Rejections have the reasons ``full`` (no permit, and this call does not wait), ``occupied`` (no permit, and when one
    becomes free is unknown, because threads without callers have all of them), ``queue-full``, ``too-late`` (the call
    cannot end by its deadline any more), ``too-long`` (the wait would exceed, or has exceeded, ``max-wait``), ``stalled``
    (no call has ended for many durations of the tool), ``overload`` (calls with more time left were served first), and
    ``closed``.
    """

    __slots__ = (
        "_answer_s",
        "_answer_spread_s",
        "_clock",
        "_closed",
        "_queue",
        "_ranks",
        "found_full",
        "granted",
        "granted_at",
        "in_flight",
        "limit",
        "limits",
        "occupied",
        "service_s",
        "settings",
        "suspended",
    )

    def __init__(self, settings: Bulkhead, clock: Clock, limits: QueueLimits | None = None) -> None:
        self._clock = clock
        self._closed = False
        self.service_s: float | None = None
        self._answer_s: float | None = None
        self._answer_spread_s = 0.0
        self.granted_at = clock()
        self.limits = QUEUE_LIMITS if limits is None else limits
        self.granted = self.found_full = 0
        self.in_flight = 0
        self.suspended = 0
        self.occupied = 0
        self.limit = settings.max_concurrent_calls
        self._apply(settings)
        self._queue = self._new_queue()

    def _apply(self, settings: Bulkhead) -> None:
        self.settings = settings
        if settings.scope == "process":
            self.limit = settings.max_concurrent_calls
        self._ranks: dict[str, int] = {name: rank for rank, name in enumerate(settings.priorities)}

    def _new_queue(self) -> WaitQueue:
        return WaitQueue(len(self.settings.priorities), self.limits.max_length)

    @property
    def released(self) -> int:
        """Permits released so far."""
        return self.granted - self.in_flight - self.suspended

    @property
    def waiting(self) -> int:
        """Waiting calls."""
        return self._queue.length

    @property
    def is_overloaded(self) -> bool:
        """Whether the wait queue stands, because calls arrive faster than they end: the newest call is served first."""
        return self._queue.is_overloaded

    def retry_after(self) -> float | None:
        """Estimate the seconds until all waiting calls have been served, from recent service times; None when unknown."""
        return None if self.service_s is None else (self._queue.length + 1) * self.service_s / max(1, self.limit)

    def _rejection(self, reason: str) -> Rejection:
        return Rejection(BY, reason, self.retry_after())

    def admit(self, now: float | None = None) -> BulkheadPermit | Rejection:
        """Return a permit if one is free, or a rejection.

        Args:
            now: the current time, if it is known.
        """
        if self.in_flight < self.limit and not self._closed:
            self.granted += 1
            self.in_flight += 1
            self.granted_at = since = self._clock() if now is None else now
            return BulkheadPermit(self, since)
        if self._closed:
            return Rejection(BY, "closed")
        if self._is_occupied:
            return Rejection(BY, "occupied")
        self.found_full += 1
        return self._rejection("full")

    @property
    def _is_occupied(self) -> bool:
        """Threads without callers have every place."""
        return self.occupied >= self.limit > 0

    def enqueue(
        self, decide: Decide, *, user: str = "", deadline: float | None = None, priority: str | None = None
    ) -> BulkheadPermit | BulkheadWaiter | Rejection:
        """Return a permit if one is free; otherwise a waiter, or a rejection if the queue is full or the wait would be too
        long.

        Args:
            decide: called with the permit or a rejection when the wait ends, except by :meth:`cancel_wait`.
            user: on whose behalf: waiting calls of different users are served in turn.
            deadline: when the call ends, on the guard's clock.
            priority: one of the settings' priorities; None: the most urgent. One that a reload has removed is the least
                urgent.
        """
        if self._closed or self.in_flight < self.limit or self._is_occupied:
            return self.admit()
        now = self._clock()
        queue = self._queue
        rank = 0 if priority is None else self._ranks.get(priority, len(self._ranks) - 1)
        patience = self.settings.max_wait
        if patience == 0:
            return self._rejection("full")
        if deadline is not None and deadline <= now:
            return self._rejection("too-late")
        queue.trend.arrived += 1
        if (reason := self._refusal(queue.count_ahead(rank, user), deadline, now)) is not None:
            return self._rejection(reason)
        loser = None
        if queue.is_full:
            loser = queue.displace(rank, user)
            if loser is None:
                return self._rejection("queue-full")
        latest = math.inf if patience is None else now + patience
        waiter = BulkheadWaiter(rank, user, now, latest, math.inf if deadline is None else deadline, decide)
        waiter.expires = self._expiry(waiter)
        queue.add(waiter, now)
        if loser is not None:
            loser.decide(self._rejection("queue-full"))
        if queue.is_overloaded:
            self._shed()
        return waiter

    def _shed(self) -> None:
        """Reject the waiters that had waited too long when the newest permit went to another call. Only here, when a call
        comes: permits come free many at once, and the next one may be theirs. And only after a permit was granted: while no
        call finishes, an old waiter has not been overtaken."""
        service_s = self.service_s
        if service_s is not None:
            age = max(self.limits.shed_after, service_s, RESERVE * service_s / max(1, self.limit))
            while (waiter := self._queue.pop_stale(self.granted_at, age)) is not None:
                waiter.decide(self._rejection("overload"))

    def _refusal(self, ahead: int, deadline: float | None, now: float) -> str | None:
        """Return why a call with ``ahead`` calls before it is not queued at all; None: it is."""
        service_s = self.service_s
        if service_s is None:
            return None
        patience = self.settings.max_wait
        # A permit comes free every service_s / limit seconds; on average half of that has passed already.
        wait = (ahead + 0.5) * service_s / max(1, self.limit)
        if patience is not None:
            if deadline is not None and wait > deadline - now:
                return "too-late"
            return "too-long" if wait > MARGIN * patience else None
        usual = self._usual_s()
        if deadline is not None and wait > DEADLINE_MARGIN * (deadline - now - usual):
            return "too-late"
        has_stalled = now - self.granted_at > max(STALLED_LEAST_S, STALLED_AFTER * usual)
        return "stalled" if has_stalled and self.in_flight else None

    @property
    def answer_s(self) -> float | None:
        """Seconds that an answered call usually needs: the mean and the mean deviation; None: none was answered yet."""
        return None if self._answer_s is None else max(LEAST_S, self._answer_s + self._answer_spread_s)

    def _usual_s(self) -> float:
        """Return the seconds that a call usually needs."""
        answer_s = self.answer_s
        if answer_s is not None:
            return answer_s
        return LEAST_S if self.service_s is None else max(LEAST_S, self.service_s)

    def _expiry(self, waiter: BulkheadWaiter) -> float:
        """Return when ``waiter`` is to be rejected, unless a call ends before."""
        latest, deadline = waiter.latest, waiter.deadline
        if latest < math.inf:  # a policy's max-wait
            return min(latest, deadline)
        if not self.in_flight:  # the last call has just ended, or the fleet has lent its places to other processes
            return deadline - self._usual_s()
        # All calls in flight have run since the newest permit was granted: one that starts at a time t cannot be expected to
        # end before t plus that.
        return min(deadline - self._usual_s(), (deadline + self.granted_at) / 2)

    def cancel_wait(self, waiter: BulkheadWaiter) -> bool:
        """Remove a waiter from the queue. False if its wait had been decided: a permit that it got must then be finished."""
        return self._queue.remove(waiter)

    def next_expiry(self) -> float | None:
        """Return when :meth:`expire` must be called next; None when the queue is empty, infinite when no waiter has a
        deadline."""
        return self._queue.next_expiry()

    def expire(self, now: float) -> None:
        """Reject the waiters whose waiting time has ended by ``now``."""
        queue = self._queue
        while (waiter := queue.pop_due(now)) is not None:
            expires = self._expiry(waiter)
            if expires > now:  # calls have ended since
                queue.extend(waiter, expires)
            else:
                queue.remove(waiter)
                waiter.decide(self._rejection("too-long" if waiter.latest < waiter.deadline else "too-late"))

    def _grant_permits(self, now: float) -> None:
        """Grant free permits to waiters."""
        queue, limits = self._queue, self.limits
        self.expire(now)  # the timer may be late, and an expired call must not get a permit
        usual = self._usual_s() if self.settings.max_wait is None else 0.0
        while self.in_flight < self.limit and (waiter := queue.pop_next()) is not None:
            if waiter.deadline - usual <= now:  # calls take longer than they did when it came
                waiter.decide(self._rejection("too-late"))
                continue
            self.granted += 1
            self.in_flight += 1
            self.granted_at = now
            permit = BulkheadPermit(self, now)
            if not waiter.decide(permit):
                permit._guard = None
                self.in_flight -= 1
                continue
            trend = queue.trend
            trend.served += 1
            trend.review(now, limits.interval_rounds * self.limit, limits.interval_s)

    def reconfigure(self, settings: Bulkhead) -> None:
        """Apply other settings. Calls in flight stay; waiting calls stay, and keep their time limit. A lower limit is
        reached as calls end. Waiting calls of a removed priority become the least urgent, unless they were the most
        urgent."""
        names = self.settings.priorities
        waiting, trend = self._queue.clear(), self._queue.trend
        self._apply(settings)
        queue = self._queue = self._new_queue()
        for waiter in waiting:
            waiter.rank = self._ranks.get(names[waiter.rank], len(self._ranks) - 1 if waiter.rank else 0)
            queue.add(waiter, waiter.since)
        queue.trend = trend
        self._grant_permits(self._clock())

    def set_limit(self, limit: int) -> None:
        """Apply the places of this process of a limit that a fleet shares. A lower number is reached as calls end."""
        self.limit = limit
        if self._queue.length:
            self._grant_permits(self._clock())

    def close(self) -> None:
        """Reject waiting and later calls; calls in flight continue."""
        self._closed = True
        while (waiter := self._queue.pop_last()) is not None:
            waiter.decide(Rejection(BY, "closed"))
