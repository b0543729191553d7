"""The circuit breaker: rejects calls of a failing service, and probes it with a few half-open calls before it closes again.

Every permit carries the epoch (gobreaker's generation) in which it was granted; the epoch changes with every transition and
every reset. An outcome of an earlier epoch is counted as stale and changes no state: a call that was admitted before the
circuit opened is no evidence about the service afterwards. There is no timer: ``admit`` applies every change that is due.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from dispatch._internal.permit import Clock, Randomness, Rejection
from dispatch.errors import Outcome
from dispatch.policy.breaker import Breaker
from dispatch.resilience.breaker.failure_rules import FailureRules
from dispatch.resilience.breaker.half_open import RECOVERED, HalfOpenCalls
from dispatch.resilience.breaker.open_duration import OpenDuration
from dispatch.resilience.breaker.rules import complete_rules


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
_NEVER = float("-inf")
_OPERATOR_STATES = (_FORCED_OPEN, _DISABLED, _METRICS_ONLY)


class BreakerPermit(msgspec.Struct, gc=False, eq=False):
    """The permit of one attempt. Only its caller refers to it, so that it needs no garbage collection."""

    breaker: CircuitBreaker
    epoch: int
    started: float
    probe: int = 0

    def finish(self, outcome: Outcome, *, retry_after: float | None = None, now: float | None = None) -> None:
        """Record the outcome; see :mod:`dispatch._internal.permit`. The breaker measures the duration itself.

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
        "_failure_rules",
        "_half_open_calls",
        "_lost",
        "_may_reject",
        "_on_recovery",
        "_open_duration",
        "_opened_at",
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
        self._opened_at = 0.0
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
