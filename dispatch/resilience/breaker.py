"""Circuit breaker."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from enum import StrEnum

import msgspec

from dispatch._internal import Clock, Randomness, Rejection
from dispatch.errors import Outcome
from dispatch.policy import WINDOW_CALLS, Breaker

# Sliding windows over calls: calls, failures and slow calls of the last N calls or seconds. Adding a call is O(1).
#
# Ring buffers with running totals, from which the oldest entry is subtracted (as in resilience4j). Plain calls, nearly all,
# are added in batches, so that the breaker only counts them.


PLAIN = 0
"""A fast success."""
FAILED = 1
SLOW = 2
"""``FAILED | SLOW``: a call that failed and was slow."""

SLOTS = 10
"""Slices of a time window, as in Hystrix and Polly: finer ones cost memory without benefit."""
_STEP = 3  # counters of a slice: calls, failures, slow calls
_EMPTY = array("Q", bytes(SLOTS * _STEP * 8))
_PLACES = tuple(range(0, SLOTS * _STEP, _STEP)) * 2  # offsets of the slices, twice around the ring


class CountWindow:
    """The last ``size`` calls.

    Args:
        size: calls, at least 1. Each takes one byte.

    Attributes:
        calls: calls in the window, at most ``size``.
        failures: calls that failed.
        slow: slow calls.
    """

    __slots__ = ("_at", "_ring", "calls", "failures", "size", "slow")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"the window size must be at least 1 call, not {size}")
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self._ring = bytearray(self.size)  # unused entries are PLAIN: add_plain relies on it
        self._at = self.calls = self.failures = self.slow = 0

    def add(self, kind: int) -> None:
        """Add a call; ``kind`` is PLAIN, FAILED, SLOW or ``FAILED | SLOW``."""
        at = self._at
        ring = self._ring
        if self.calls < self.size:
            self.calls += 1
        elif oldest := ring[at]:
            self.failures -= oldest & FAILED
            self.slow -= oldest >> 1
        ring[at] = kind
        if kind:
            self.failures += kind & FAILED
            self.slow += kind >> 1
        at += 1
        self._at = at if at < self.size else 0

    def add_plain(self, count: int) -> None:
        """Add ``count`` plain calls, at least 0, in one step."""
        size = self.size
        if count >= size:
            self.clear()
            self.calls = size
            return
        at = self._at
        self.calls = min(self.calls + count, size)
        self._at = (at + count) % size
        if self.failures or self.slow:
            beyond = max(0, at + count - size)
            self._clear_range(at, at + count - beyond)
            self._clear_range(0, beyond)

    def _clear_range(self, first: int, end: int) -> None:
        ring = self._ring
        both = ring.count(FAILED | SLOW, first, end)
        self.failures -= ring.count(FAILED, first, end) + both
        self.slow -= ring.count(SLOW, first, end) + both
        ring[first:end] = bytes(end - first)


class TimeWindow:
    """The calls of the last ``span`` seconds, in ten slices: the oldest slice expires as a whole, so that the window covers
    between 0.9 times ``span`` and ``span``.

    Args:
        span: seconds, above 0.

    Attributes:
        calls: calls in the window, as of the last ``add`` or ``advance``.
        failures: calls that failed.
        slow: slow calls.
        slice_end: when the current slice ends.
    """

    __slots__ = ("_counts", "_slot", "_tick", "_width", "calls", "failures", "slice_end", "slow")

    def __init__(self, span: float) -> None:
        if not span > 0:
            raise ValueError(f"the span of a window must be above 0 s, not {span}")
        self._width = span / SLOTS
        self._slot = self._tick = 0
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.calls = self.failures = self.slow = 0
        self._counts = _EMPTY[:]
        self.slice_end = float("-inf")  # the next call determines the slice

    def add_plain(self, count: int) -> None:
        """Add ``count`` plain calls that ended before ``slice_end`` and not before the last ``advance``."""
        self.calls += count
        self._counts[self._slot] += count

    def add(self, kind: int, now: float) -> None:
        """Add a call that ended at ``now``, not before any earlier one; ``kind`` as for :meth:`CountWindow.add`."""
        if now >= self.slice_end:
            self.advance(now)
        slot = self._slot
        counts = self._counts
        self.calls += 1
        counts[slot] += 1
        if kind:
            failed = kind & FAILED
            slow = kind >> 1
            self.failures += failed
            self.slow += slow
            counts[slot + 1] += failed
            counts[slot + 2] += slow

    def advance(self, now: float) -> None:
        """Remove the slices that are too old at ``now``."""
        tick = int(now // self._width)
        if tick - self._tick >= SLOTS:
            self.clear()
        else:
            counts = self._counts
            first = (self._tick + 1) % SLOTS
            for slot in _PLACES[first : first + tick - self._tick]:
                if calls := counts[slot]:
                    self.calls -= calls
                    counts[slot] = 0
                    if self.failures or self.slow:
                        self.failures -= counts[slot + 1]
                        self.slow -= counts[slot + 2]
                        counts[slot + 1] = counts[slot + 2] = 0
        self._tick = tick
        self._slot = tick % SLOTS * _STEP
        self.slice_end = (tick + 1) * self._width


# Complete rules of a circuit breaker: a policy's settings, and the constants that no policy sets.


class BreakerRules(Breaker, frozen=True, rename="kebab"):
    """A policy's breaker settings with the constants beside them. The constants are right for any tool, or cannot be chosen
    sensibly by a user; tests give others. Times are in seconds.

    Attributes:
        window_calls: The count window; see :data:`dispatch.policy.WINDOW_CALLS`.
        window_duration: The time window, in ten slices. 30 (Polly): at low rates, half a minute of failures counts although
            a hundred successes of the last hour outnumber it.
        slow_call_rate: Share of slow calls that opens, in either window. 0.8: most calls, not merely a slow tail.
        no_success_duration: Only failures for this long, counted from the first of them, open the circuit; None: no such
            rule. 60: the failure of a tool that is called twice a minute would otherwise be detected only after minutes.
        no_success_failures: Minimum number of failures for this rule. 3: two may be one transient failure and its retry.
        jitter: Share by which an open duration is made shorter or longer at random. 0.5: dispatchers that observed the same
            failure must not all resume at the same moment.
        decay_duration: Seconds in the closed state that undo one doubling of the open duration (gRPC A50). 30: the open
            durations of a service that fails every twenty seconds grow; those of one that works for minutes start again at
            the shortest.
        half_open_rounds: Rounds of half-open calls, each with twice as many as the one before; after the last the breaker
            closes. 3 (3, 6, 12 calls by default): a service with cold caches does not receive the whole load at once.
        half_open_lease: Seconds after which an unfinished half-open call is lost: its permit is free and its outcome is
            ignored. 60: twice the default timeout of a call, so that a running call is not counted as lost.
        max_retry_after: Longest pause, in seconds, that a service may ask for. 3,600: one call an hour costs nothing, and a
            wrong unit in a retry-after must not disable a tool permanently.
    """

    window_calls: int = WINDOW_CALLS
    window_duration: float = 30.0
    slow_call_rate: float = 0.8
    no_success_duration: float | None = 60.0
    no_success_failures: int = 3
    jitter: float = 0.5
    decay_duration: float = 30.0
    half_open_rounds: int = 3
    half_open_lease: float = 60.0
    max_retry_after: float = 3600.0


def complete_rules(settings: Breaker) -> BreakerRules:
    """Return the complete rules of a policy's settings."""
    return settings if isinstance(settings, BreakerRules) else BreakerRules(**msgspec.structs.asdict(settings))


# Half-open calls: the few calls that probe whether a service has recovered. Sans-I/O.
#
# Permits limit the calls *in flight*, so that a slow call does not delay the decision of the others. Each permit is a
# lease: it expires by the clock even if the call is never finished.


RECOVERED = "recovered"
"""The last round succeeded: the breaker closes."""
PROBE_FAILED = "probe-failed"
PROBE_SLOW = "probe-slow"


class HalfOpenCalls:
    """One half-open period: rounds of N, 2N, 4N … calls, each complete after as many results. A lease can be shortened but
    not extended: an expired lease stays expired, whether or not the expiry has been noticed.

    In the first round one failure opens the circuit again: a service that fails one of its first three calls has not
    recovered. In later rounds the failure rate decides, as in the closed state; otherwise a service with one failure in ten,
    which does not open a closed circuit, would rarely pass 21 calls, and the breaker would flap. Slow calls are judged by
    their rate in every round.

    Attributes:
        round: number of the current round, from 0.
        lost: calls whose lease expired.
    """

    __slots__ = ("_failures", "_leases", "_results", "_serial", "_slow", "lost", "round")

    def __init__(self) -> None:
        self.round = 0
        self.lost = 0
        self._results = self._failures = self._slow = 0
        self._serial = 0
        self._leases: dict[int, tuple[float, float]] = {}  # start and end, by the number of the call

    @property
    def in_use(self) -> int:
        """Permits in use."""
        return len(self._leases)

    def has_free_permit(self, now: float, settings: BreakerRules) -> bool:
        """Whether another call may start. Frees the permits of calls whose lease has expired."""
        leases = self._leases
        for number in [number for number, (_, end) in leases.items() if now >= end]:
            del leases[number]
            self.lost += 1
        return len(leases) < settings.half_open_calls << self.round

    def start_call(self, now: float, settings: BreakerRules) -> int:
        """Start a call, after :meth:`has_free_permit`. Returns its number, from 1."""
        self._serial += 1
        self._leases[self._serial] = now, now + settings.half_open_lease
        return self._serial

    def shorten_leases(self, lease: float) -> None:
        """Shorten leases in progress to ``lease`` seconds; shorter ones stay as they are."""
        self._leases = {number: (start, min(end, start + lease)) for number, (start, end) in self._leases.items()}

    def end_call(self, number: int, now: float) -> bool:
        """Free the permit of a call. False: its lease had expired, and its outcome must be ignored."""
        lease = self._leases.pop(number, None)
        if lease is None:
            return False
        if now >= lease[1]:
            self.lost += 1
            return False
        return True

    def judge_result(self, failed: bool, slow: bool, settings: BreakerRules) -> str | None:
        """Record the result of a call. Returns a reason to open again, RECOVERED, or None to continue probing."""
        size = settings.half_open_calls << self.round
        self._results += 1
        self._failures += failed
        self._slow += slow
        if failed and (self.round == 0 or self._failures / size >= settings.failure_rate):
            return PROBE_FAILED
        if slow and self._slow / size >= settings.slow_call_rate:
            return PROBE_SLOW
        if self._results < size:
            return None
        if self.round + 1 >= settings.half_open_rounds:
            return RECOVERED
        self.round += 1
        self._results = self._failures = self._slow = 0
        return None


# Open duration of a circuit: exponential backoff over openings, which decays while the circuit is closed. Sans-I/O.


class OpenDuration:
    """Computes the next open duration from the recent openings.

    ``open_duration`` doubles with every opening (Finagle's failure accrual), and one doubling is undone for every
    ``decay_duration`` spent closed (gRPC A50's decay). So the open durations of a breaker that flaps grow; a breaker that
    started again at the shortest duration after each success would flap permanently.

    Args:
        randomness: jitter, so that breakers that open together do not close together.

    Attributes:
        doublings: doublings of the next open duration, before the decay since the last opening.
    """

    __slots__ = ("_closed_at", "_randomness", "doublings")

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self.clear()

    def clear(self) -> None:
        """Forget all openings."""
        self.doublings = 0
        self._closed_at: float | None = None

    def start_healthy_period(self, now: float) -> None:
        """Record that the circuit closed at ``now``: the decay begins."""
        self._closed_at = now

    def end_healthy_period(self, now: float, settings: BreakerRules) -> None:
        """Apply the decay of the time spent closed, if the circuit was closed."""
        if self._closed_at is not None:
            self.doublings = max(0, self.doublings - int((now - self._closed_at) / settings.decay_duration))
            self._closed_at = None

    def record_opening(self, now: float, asked: float, settings: BreakerRules) -> float:
        """Record an opening and return its duration in seconds.

        Args:
            asked: seconds of pause that the service itself asked for (retry-after), or 0.
        """
        self.end_healthy_period(now, settings)
        # The base stays below the maximum by the jitter: clipping jittered values at the maximum would synchronize breakers.
        longest = settings.max_open_duration / (1 + settings.jitter)
        base = settings.open_duration * 2.0**self.doublings
        if base < longest:  # doublings without an effect would only delay the decay
            self.doublings += 1
        else:
            base = longest
        chance = self._randomness()
        drawn = base * (1 - settings.jitter + 2 * settings.jitter * chance)
        # Not before the time that the service asked for, and with jitter after it. Without a retry-after, `drawn` is larger.
        return max(drawn, asked + settings.open_duration * settings.jitter * chance)


# Failure rules of a circuit breaker: when recent outcomes open it (consecutive failures, failure rate, slow calls).


CONSECUTIVE_FAILURES = "consecutive-failures"
FAILURE_RATE = "failure-rate"
SLOW_CALL_RATE = "slow-call-rate"
NO_SUCCESS = "no-success"

_NEVER = float("-inf")
_ALWAYS = float("inf")


class FailureRules:
    """The statistics of one breaker's recent calls, and the rules over them.

    Nearly every call is a success that took less than ``slow_after``. The breaker counts those in ``pending_successes``
    while the clock is before ``slice_end``, or after :meth:`advance`; all other outcomes go through :meth:`add`.

    Attributes:
        pending_successes: successes that are not in the windows yet, all after the last failure and before ``slice_end``.
        slice_end: the end of the current slice of the time window, on the breaker's clock; minus infinity while no calls are
            counted.
        slow_after: seconds from which a call is slow; infinite when none is.
    """

    __slots__ = (
        "_by_count",
        "_by_time",
        "_run",
        "_run_since",
        "_settings",
        "pending_successes",
        "slice_end",
        "slow_after",
    )

    def __init__(self, settings: BreakerRules) -> None:
        self._by_count = CountWindow(settings.window_calls)
        self._by_time = TimeWindow(settings.window_duration)
        self.clear()
        self._set(settings)

    def clear(self) -> None:
        """Forget all calls."""
        self._by_count.clear()
        self._by_time.clear()
        self._run = 0
        """Failures since the last success."""
        self._run_since = _NEVER
        self.pending_successes = 0
        self.slice_end = _NEVER

    def stop(self) -> None:
        """Stop counting until :meth:`clear`; the rates stay readable."""
        self._record_pending()
        self.slice_end = _NEVER

    def reconfigure(self, settings: BreakerRules) -> None:
        """Apply new settings. A window of another size starts empty."""
        self._record_pending()
        if settings.window_calls != self._settings.window_calls:
            self._by_count = CountWindow(settings.window_calls)
        if settings.window_duration != self._settings.window_duration:
            self._by_time = TimeWindow(settings.window_duration)
            self.slice_end = _NEVER  # its first call determines the slice
        self._set(settings)

    def add(self, failed: bool, slow: bool, now: float) -> None:
        """Record a call that ended at ``now``."""
        self._record_pending()
        kind = failed * FAILED | slow * SLOW
        self._by_count.add(kind)
        self._by_time.add(kind, now)
        self.slice_end = self._by_time.slice_end
        if not failed:
            self._run = 0
            return
        if not self._run:
            self._run_since = now
        self._run += 1

    def advance(self, now: float) -> bool:
        """Start the slice of the time window that contains ``now``.

        Returns:
            False: calls are not counted now, or no call has been counted yet.
        """
        if self.slice_end == _NEVER:
            return False
        self._record_pending()
        self._by_time.advance(now)
        self.slice_end = self._by_time.slice_end
        return True

    def find_violation(self, failed: bool, slow: bool, now: float) -> str | None:
        """Return the rule that is violated after such a call, or None. A fast success violates none, whatever is in the
        windows."""
        settings = self._settings
        if failed:
            if settings.consecutive_failures is not None and self._run >= settings.consecutive_failures:
                return CONSECUTIVE_FAILURES
            rate = self.failure_rate()
            if rate is not None and rate >= settings.failure_rate:
                return FAILURE_RATE
            if (
                settings.no_success_duration is not None
                and self._run >= settings.no_success_failures
                and now - self._run_since >= settings.no_success_duration
            ):
                return NO_SUCCESS
        if slow:
            rate = self.slow_call_rate()
            if rate is not None and rate >= settings.slow_call_rate:
                return SLOW_CALL_RATE
        return None

    def refresh(self, now: float) -> None:
        """Move the time window to ``now``, if calls are counted."""
        if self.slice_end > _NEVER:
            self._record_pending()
            self._by_time.advance(now)
            self.slice_end = self._by_time.slice_end

    def failure_rate(self) -> float | None:
        """Return the share of failures, of the window in which it is higher; None when both have too few calls."""
        return self._higher(self._by_count.failures, self._by_time.failures)

    def slow_call_rate(self) -> float | None:
        """Return the share of slow calls, of the window in which it is higher; None when both have too few calls."""
        return self._higher(self._by_count.slow, self._by_time.slow)

    def _higher(self, by_count: int, by_time: int) -> float | None:
        least = self._settings.min_calls
        calls = self._by_count.calls
        rate = by_count / calls if calls >= least else None
        calls = self._by_time.calls
        if calls < least:
            return rate
        other = by_time / calls
        return other if rate is None or other > rate else rate

    def _set(self, settings: BreakerRules) -> None:
        self._settings = settings
        self.slow_after = _ALWAYS if settings.slow_call_duration is None else settings.slow_call_duration

    def _record_pending(self) -> None:
        pending_successes = self.pending_successes
        if pending_successes:
            self.pending_successes = 0
            self._run = 0
            self._by_count.add_plain(pending_successes)
            self._by_time.add_plain(pending_successes)


# The circuit breaker: rejects calls of a failing service, and probes it with a few half-open calls before it closes again.
#
# Every permit carries the epoch (gobreaker's generation) in which it was granted; the epoch changes with every transition
# and every reset. An outcome of an earlier epoch is counted as stale and changes no state: a call that was admitted before
# the circuit opened is no evidence about the service afterwards. There is no timer: ``admit`` applies every change that is
# due.


class State(StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    """All calls are admitted."""
    OPEN = "open"
    """All calls are rejected until the open duration is over. The first call after it makes the circuit half-open."""
    HALF_OPEN = "half-open"
    """A few calls at a time are admitted as probes."""
    FORCED_OPEN = "forced-open"
    """All calls are rejected until an operator sets another state."""
    DISABLED = "disabled"
    """All calls are admitted, and none is counted."""
    METRICS_ONLY = "metrics-only"
    """All calls are admitted and counted; the circuit never opens."""


Listener = Callable[[State, State, str], None]
"""Called at a transition with the old state, the new state and the reason."""

# Looked up once: access to a member of an enumeration costs as much as the rest of a check.
_SUCCESS = Outcome.SUCCESS
_CLOSED = State.CLOSED
_OPEN = State.OPEN
_HALF_OPEN = State.HALF_OPEN
_FORCED_OPEN = State.FORCED_OPEN
_DISABLED = State.DISABLED
_METRICS_ONLY = State.METRICS_ONLY

_FORCED = Rejection("breaker", "forced-open")
_PROBING = Rejection("breaker", "probing")  # without retry_after: the duration of the probes is unknown
_DONE = -1
_OPERATOR_STATES = (_FORCED_OPEN, _DISABLED, _METRICS_ONLY)


class BreakerPermit(msgspec.Struct, gc=False, eq=False):
    """The permit of one attempt. Only its caller refers to it, so that it needs no garbage collection."""

    breaker: CircuitBreaker
    epoch: int
    started: float
    probe: int = 0

    def finish(self, outcome: Outcome, *, retry_after: float | None = None, now: float | None = None) -> None:
        """Record the outcome; see :mod:`dispatch._internal`. The breaker measures the duration itself.

        Args:
            now: the current time, if it is known.
        """
        epoch = self.epoch
        breaker = self.breaker
        if epoch == breaker.epoch:
            self.epoch = _DONE
            if now is None:
                now = breaker._clock()
            rules = breaker._failure_rules
            if (
                outcome is _SUCCESS
                and now - self.started < rules.slow_after
                and (now < rules.slice_end or rules.advance(now))
            ):
                rules.pending_successes += 1
            else:
                breaker._finish(self.probe, outcome, now - self.started, now, retry_after)
        elif epoch != _DONE:
            self.epoch = _DONE
            breaker.stale += 1

    def cede(self) -> Rejection | None:
        """Return the half-open permit of a call that ends too early to tell whether the service has recovered, if another
        call has one: those that can tell would find none. None: it is kept."""
        probing = self.breaker._half_open_calls
        if probing is None or probing.in_use <= 1:
            return None
        self.finish(Outcome.CANCELLED)
        return _PROBING


class CircuitBreaker:
    """The circuit breaker of a tool, or of a tool at one instance.

    Args:
        settings: when it opens, for how long, and how it closes.
        clock: measures calls and open durations, in seconds.
        randomness: jitter of the open durations.
        on_transition: called with the old state, the new state and the reason once the new state is in force. An exception
            of it propagates to the caller whose ``admit`` or ``finish`` caused the transition.
        on_recovery: called when the last round of half-open calls has succeeded.

    Attributes:
        state: the current :class:`State`.
        settings: the complete rules in force.
        epoch: number of transitions and resets so far.
        stale: outcomes of an earlier epoch or of a half-open call whose lease had expired; they changed no state.
        lost: half-open calls whose lease expired.
        on_transition: may be set and cleared at any time.
    """

    __slots__ = (
        "_clock",
        "_delayed_at",
        "_failure_rules",
        "_half_open_calls",
        "_lost",
        "_may_reject",
        "_on_recovery",
        "_open_duration",
        "_opened_at",
        "_paused_at",
        "_reason",
        "_rejects_until",
        "epoch",
        "on_transition",
        "settings",
        "stale",
        "state",
    )

    def __init__(
        self,
        settings: Breaker,
        *,
        clock: Clock,
        randomness: Randomness,
        on_transition: Listener | None = None,
        on_recovery: Callable[[], object] | None = None,
    ) -> None:
        self.settings = rules = complete_rules(settings)
        self._on_recovery = on_recovery
        self.on_transition = on_transition
        self.state = _CLOSED
        self.epoch = 0
        self.stale = 0
        self._clock = clock
        self._open_duration = OpenDuration(randomness)
        self._failure_rules = FailureRules(rules)
        self._half_open_calls: HalfOpenCalls | None = None
        self._lost = 0
        self._opened_at = self._paused_at = _NEVER
        self._delayed_at = _NEVER
        self._rejects_until = _NEVER  # the end of the open duration, or of a pause that the service asked for
        self._may_reject = False  # False: admit needs no further check
        self._reason = "paused"

    @property
    def lost(self) -> int:
        probing = self._half_open_calls
        return self._lost if probing is None else self._lost + probing.lost

    @property
    def retry_after(self) -> float | None:
        """Seconds until a call may be admitted: the rest of the open duration or of a pause. None: at once, or unknown."""
        remaining = self._rejects_until - self._clock()
        return remaining if remaining > 0 else None

    @property
    def failure_rate(self) -> float | None:
        """The share of failures, of the window in which it is higher; None below ``min_calls``. While the circuit is open:
        the rate with which it opened."""
        self._failure_rules.refresh(self._clock())
        return self._failure_rules.failure_rate()

    @property
    def slow_call_rate(self) -> float | None:
        """The share of slow calls, in the same way as :attr:`failure_rate`."""
        self._failure_rules.refresh(self._clock())
        return self._failure_rules.slow_call_rate()

    def admit(self, now: float | None = None) -> BreakerPermit | Rejection:
        """Return a permit for one attempt, or a rejection by ``breaker`` with the reason ``open``, ``paused`` (the service
        asked for a pause), ``probing`` (all half-open permits are in use) or ``forced-open``.

        Args:
            now: the current time, if it is known.
        """
        if now is None:
            now = self._clock()
        if not self._may_reject:
            return BreakerPermit(self, self.epoch, now)
        if now < self._rejects_until:
            return Rejection("breaker", self._reason, self._rejects_until - now)
        return self._admit_gated(now)

    def can_admit(self) -> bool:
        """Whether ``admit`` would return a permit now. Changes no state; the balancer asks it of each candidate."""
        if not self._may_reject:
            return True
        now = self._clock()
        if self.state is _FORCED_OPEN or now < self._rejects_until:
            return False
        return self._half_open_calls is None or self._half_open_calls.has_free_permit(now, self.settings)

    def open_until(self, instant: float, reason: str = "asked") -> None:
        """Open the circuit at least until ``instant`` on the breaker's clock: the service has announced that it cannot serve
        calls earlier, for example because a quota is exhausted. At most ``max_retry_after`` from now. Later open durations
        do not grow. Does nothing if the instant has passed, or in a state that an operator has set."""
        now = self._clock()
        if self.state in _OPERATOR_STATES or not instant > now:
            return
        self._rejects_until = max(self._rejects_until, min(instant, now + self.settings.max_retry_after))
        if self.state is not _OPEN:
            self._opened_at = now
            self._open_duration.end_healthy_period(now, self.settings)
            self._transition_to(_OPEN, reason)

    def expect_recovery(self, since: float) -> bool:
        """End the open duration early, once: something that happened at ``since``, on the breaker's clock, suggests that the
        service has recovered, and half-open calls show whether it has. Return False where the circuit is not open, or was
        opened later."""
        if self.state is not _OPEN or since <= self._opened_at:
            return False
        self._opened_at = since
        self._rejects_until = _NEVER
        return True

    def delay_half_open(self, instant: float, since: float) -> bool:
        """Stay open until ``instant``, once for each opening and for at most another open duration: the half-open calls of
        another dispatcher failed at ``since``, on the breaker's clock. Return False where the circuit is not open, was
        opened later, or was delayed before."""
        if self.state is not _OPEN or not self._delayed_at < self._opened_at < since:
            return False
        self._delayed_at = since
        self._rejects_until = max(self._rejects_until, min(instant, since + self.settings.open_duration))
        return True

    def end_pause(self, since: float) -> bool:
        """End a pause early that was asked for before ``since``, on the breaker's clock: another instance is known since
        then, which has asked for none. Return False where there is no such pause; an open circuit is none."""
        if self.state is _OPEN or since <= self._paused_at or self._rejects_until <= since:
            return False
        self._rejects_until = _NEVER
        return True

    def force_open(self) -> None:
        """Reject every call until :meth:`reset`, :meth:`disable` or :meth:`metrics_only`."""
        self._set_operator_state(_FORCED_OPEN, "forced")

    def disable(self) -> None:
        """Admit every call and count none, until :meth:`reset` or another of these methods."""
        self._set_operator_state(_DISABLED, "disabled")

    def metrics_only(self) -> None:
        """Admit and count every call, so that the rates can be observed, until :meth:`reset` or another of these methods."""
        self._set_operator_state(_METRICS_ONLY, "metrics-only")

    def reset(self) -> None:
        """Close the circuit as if it were new: outcomes of calls in flight are ignored, former openings are forgotten."""
        self._open_duration.clear()
        self._rejects_until = _NEVER
        self._transition_to(_CLOSED, "reset")

    def reconfigure(self, settings: Breaker) -> None:
        """Apply new settings. State, open duration, half-open calls and calls in flight stay; a window of another size
        starts empty."""
        self.settings = rules = complete_rules(settings)
        self._failure_rules.reconfigure(rules)
        if self._half_open_calls is not None:
            self._half_open_calls.shorten_leases(rules.half_open_lease)

    def _admit_gated(self, now: float) -> BreakerPermit | Rejection:
        state = self.state
        if state is _FORCED_OPEN:
            return _FORCED
        if state is _OPEN:
            self._transition_to(_HALF_OPEN, "open-time-over")
            return self.admit(now)  # again from the start: the listener may have set another state
        probing = self._half_open_calls
        if probing is None:  # closed, and the pause is over
            self._may_reject = False
            return BreakerPermit(self, self.epoch, now)
        if probing.has_free_permit(now, self.settings):
            return BreakerPermit(self, self.epoch, now, probing.start_call(now, self.settings))
        return _PROBING

    def _finish(self, probe: int, outcome: Outcome, took: float, now: float, retry_after: float | None) -> None:
        """Record an outcome of the current epoch."""
        if self.state is _DISABLED:
            return
        settings = self.settings
        probing = self._half_open_calls
        if probing is not None and not probing.end_call(probe, now):
            self.stale += 1
            return
        if outcome is Outcome.THROTTLED:
            asked = self._limit_retry_after(retry_after)
            if asked and self.state is not _METRICS_ONLY:
                self._rejects_until = max(self._rejects_until, now + asked)
                self._paused_at = now
                self._may_reject = True
            return
        if outcome is Outcome.CANCELLED or outcome is Outcome.REJECTED:
            return
        failed = (
            outcome is Outcome.TIMEOUT
            or outcome is Outcome.TRANSPORT
            or (outcome is Outcome.TOOL_ERROR and settings.count_tool_errors)
        )
        slow = took >= self._failure_rules.slow_after
        if probing is not None:
            verdict = probing.judge_result(failed, slow, settings)
            if verdict is RECOVERED:
                self._open_duration.start_healthy_period(now)
                self._transition_to(_CLOSED, verdict)
                if self._on_recovery is not None:
                    self._on_recovery()
            elif verdict is not None:
                self._open(now, verdict, retry_after)
            return
        self._failure_rules.add(failed, slow, now)
        if self.state is _CLOSED:
            reason = self._failure_rules.find_violation(failed, slow, now)
            if reason is not None:
                self._open(now, reason, retry_after)

    def _limit_retry_after(self, retry_after: float | None) -> float:
        # The value comes from the service and may be NaN, which is not above 0.
        return min(retry_after, self.settings.max_retry_after) if retry_after is not None and retry_after > 0 else 0.0

    def _open(self, now: float, reason: str, retry_after: float | None) -> None:
        self._opened_at = now
        seconds = self._open_duration.record_opening(now, self._limit_retry_after(retry_after), self.settings)
        self._rejects_until = max(self._rejects_until, now + seconds)  # an earlier pause stays in force
        self._transition_to(_OPEN, reason)

    def _set_operator_state(self, state: State, reason: str) -> None:
        if self.state is not state:
            self._rejects_until = _NEVER
            self._transition_to(state, reason)

    def _transition_to(self, new: State, reason: str) -> None:
        old, self.state = self.state, new
        self.epoch += 1
        self._lost = self.lost
        self._half_open_calls = HalfOpenCalls() if new is _HALF_OPEN else None
        # A pause stays in force across the transition from half-open to closed; admit notices its end.
        self._may_reject = new is not _DISABLED and new is not _METRICS_ONLY
        self._reason = "open" if new is _OPEN else "paused"
        if new is _CLOSED or new is _METRICS_ONLY:
            self._failure_rules.clear()
        else:
            self._failure_rules.stop()
        if self.on_transition is not None and new is not old:
            self.on_transition(old, new, reason)
