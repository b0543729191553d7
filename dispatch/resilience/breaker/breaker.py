"""The circuit breaker: leaves a service in trouble alone, and finds out by a few calls when it is well again.

Every permit carries the epoch (gobreaker's generation) in which it was given; the epoch changes with every transition and
with nothing else. A result of an earlier epoch is counted and changes nothing, so that calls admitted before the trouble
say nothing about the time after it. No timer runs: what time brings about is seen at the next ``admit``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from dispatch._internal.permit import Clock, Randomness, Rejection
from dispatch.errors import Outcome
from dispatch.policy.breaker import Breaker
from dispatch.resilience.breaker.failure_rules import Tally
from dispatch.resilience.breaker.half_open import RECOVERED, HalfOpenCalls
from dispatch.resilience.breaker.open_duration import OpenDuration
from dispatch.resilience.breaker.rules import complete_rules


class State(StrEnum):
    """What a circuit breaker is doing."""

    CLOSED = "closed"
    """All calls go."""
    OPEN = "open"
    """None goes before ``open_until``. It stays in this state until a call comes after that and is the first probe."""
    HALF_OPEN = "half-open"
    """A few calls go, as probes."""
    FORCED_OPEN = "forced-open"
    """None goes until an operator says so."""
    DISABLED = "disabled"
    """All calls go, and nothing is counted."""
    METRICS_ONLY = "metrics-only"
    """All calls go and are counted; it never opens."""


Listener = Callable[[State, State, str], None]
"""Told of a transition: old state, new state, why in a word."""

# Looked up once: a member of an enumeration costs as much as all the rest of a check.
_SUCCESS = Outcome.SUCCESS
_CLOSED = State.CLOSED
_OPEN = State.OPEN
_HALF_OPEN = State.HALF_OPEN
_FORCED_OPEN = State.FORCED_OPEN
_DISABLED = State.DISABLED
_METRICS_ONLY = State.METRICS_ONLY

_FORCED = Rejection("breaker", "forced-open")
_PROBING = Rejection("breaker", "probing")  # nobody knows how long the probes take
_DONE = -1
_NEVER = float("-inf")
_CHOSEN = (_FORCED_OPEN, _DISABLED, _METRICS_ONLY)


class BreakerPermit(msgspec.Struct, gc=False, eq=False):
    """One call's way through a breaker. Nothing holds on to it but its caller."""

    breaker: CircuitBreaker
    epoch: int
    started: float
    probe: int = 0

    def finish(self, outcome: Outcome, *, retry_after: float | None = None) -> None:
        """How the attempt ended; see :class:`dispatch._internal.permit.Permit`. How long it took is told by the clock."""
        epoch = self.epoch
        breaker = self.breaker
        if epoch == breaker.epoch:
            self.epoch = _DONE
            now = breaker._clock()
            tally = breaker._tally
            if outcome is _SUCCESS and now - self.started < tally.usual and (now < tally.ends or tally.turn(now)):
                tally.plain += 1
            else:
                breaker._finish(self.probe, outcome, now - self.started, now, retry_after)
        elif epoch != _DONE:
            self.epoch = _DONE
            breaker.stale += 1


class CircuitBreaker:
    """A breaker for a tool, or for a tool at one instance.

    Args:
        settings: when it opens, for how long, how it closes.
        clock: tells how long calls take, and when an open time is over.
        randomness: spreads the open times of many breakers.
        on_transition: called with (old state, new state, why) as soon as the new state is in force. What it raises comes
            out of the call that brought the transition about.
        on_recovery: called when its probes have found the service well.

    Attributes:
        state: in force now. One of :class:`State`.
        settings: the complete rules in force.
        epoch: transitions (and resets) so far.
        stale: results that came after the state they belong to, or after their probe's lease; they changed nothing.
        lost: probes whose lease ran out.
        on_transition: may be set and taken away at any time.
    """

    __slots__ = (
        "_clock",
        "_gated",
        "_lost",
        "_on_recovery",
        "_open_time",
        "_probing",
        "_tally",
        "_until",
        "_why",
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
        self._open_time = OpenDuration(randomness)
        self._tally = Tally(rules)
        self._probing: HalfOpenCalls | None = None
        self._lost = 0
        self._until = _NEVER  # no call before this: the open time's end, or that of a pause a service asked for
        self._gated = False  # admit has to look closer: any state that may refuse, or a pause
        self._why = "paused"

    @property
    def lost(self) -> int:
        probing = self._probing
        return self._lost if probing is None else self._lost + probing.lost

    @property
    def retry_after(self) -> float | None:
        """Seconds until a call may go: the rest of the open time or of a pause. None: now, or nobody knows when."""
        left = self._until - self._clock()
        return left if left > 0 else None

    @property
    def failure_rate(self) -> float | None:
        """The share of failures that the rule looks at, of the window in which it is higher. None: too few calls yet. While
        open, what it was when it opened."""
        self._tally.look(self._clock())
        return self._tally.failure_rate()

    @property
    def slow_call_rate(self) -> float | None:
        """The share of slow calls, likewise."""
        self._tally.look(self._clock())
        return self._tally.slow_call_rate()

    def admit(self) -> BreakerPermit | Rejection:
        """May a call go? A rejection is by ``breaker``; its reason is ``open``, ``paused`` (the service asked for it),
        ``probing`` (all places of half-open are taken) or ``forced-open``."""
        now = self._clock()
        if not self._gated:
            return BreakerPermit(self, self.epoch, now)
        if now < self._until:
            return Rejection("breaker", self._why, self._until - now)
        return self._admit_with_care(now)

    def may_admit(self) -> bool:
        """Would ``admit`` give a permit now? For whoever picks among instances: nothing changes, no place is taken."""
        if not self._gated:
            return True
        now = self._clock()
        if self.state is _FORCED_OPEN or now < self._until:
            return False
        return self._probing is None or self._probing.room(now, self.settings)

    def open_until(self, instant: float, reason: str = "asked") -> None:
        """Open until ``instant`` on the breaker's clock, or longer if it is open for longer already: a service has said that
        it is of no use before (a quota is used up). At most ``max_retry_after`` from now. Open times do
        not grow by it. Nothing happens when the instant is past, and in states that an operator has chosen."""
        now = self._clock()
        if self.state in _CHOSEN or not instant > now:
            return
        self._until = max(self._until, min(instant, now + self.settings.max_retry_after))
        if self.state is not _OPEN:
            self._open_time.left(now, self.settings)
            self._go(_OPEN, reason)

    def force_open(self) -> None:
        """Refuse every call until :meth:`reset`, :meth:`disable` or :meth:`metrics_only`."""
        self._choose(_FORCED_OPEN, "forced")

    def disable(self) -> None:
        """Let every call go and count nothing, until :meth:`reset` or another choice."""
        self._choose(_DISABLED, "disabled")

    def metrics_only(self) -> None:
        """Let every call go and count it, to see what the figures would be, until :meth:`reset` or another choice."""
        self._choose(_METRICS_ONLY, "metrics-only")

    def reset(self) -> None:
        """Closed, as if it were new: calls in flight mean nothing to it, former openings are forgotten."""
        self._open_time.clear()
        self._until = _NEVER
        self._go(_CLOSED, "reset")

    def reconfigure(self, settings: Breaker) -> None:
        """Take new settings over. State, open time, probes and calls in flight stay; a window of another size is empty."""
        self.settings = rules = complete_rules(settings)
        self._tally.reconfigure(rules)
        if self._probing is not None:
            self._probing.shorten(rules.half_open_lease)

    def _admit_with_care(self, now: float) -> BreakerPermit | Rejection:
        state = self.state
        if state is _FORCED_OPEN:
            return _FORCED
        if state is _OPEN:
            self._go(_HALF_OPEN, "open-time-over")
            return self.admit()  # from the start: the listener may have had another idea
        probing = self._probing
        if probing is None:  # closed, and a pause is over
            self._gated = False
            return BreakerPermit(self, self.epoch, now)
        if probing.room(now, self.settings):
            return BreakerPermit(self, self.epoch, now, probing.begin(now, self.settings))
        return _PROBING

    def _finish(self, probe: int, outcome: Outcome, took: float, now: float, retry_after: float | None) -> None:
        """A result of this epoch, of whatever kind."""
        if self.state is _DISABLED:
            return
        settings = self.settings
        probing = self._probing
        if probing is not None and not probing.end(probe, now):
            self.stale += 1
            return
        if outcome is Outcome.THROTTLED:
            asked = self._asked(retry_after)
            if asked and self.state is not _METRICS_ONLY:
                self._until = max(self._until, now + asked)
                self._gated = True
            return
        if outcome is Outcome.CANCELLED or outcome is Outcome.REJECTED:
            return
        failed = (
            outcome is Outcome.TIMEOUT
            or outcome is Outcome.TRANSPORT
            or (outcome is Outcome.TOOL_ERROR and settings.count_tool_errors)
        )
        slow = took >= self._tally.usual
        if probing is not None:
            verdict = probing.judge(failed, slow, settings)
            if verdict is RECOVERED:
                self._open_time.closed(now)
                self._go(_CLOSED, verdict)
                if self._on_recovery is not None:
                    self._on_recovery()
            elif verdict is not None:
                self._open(now, verdict, retry_after)
            return
        self._tally.add(failed, slow, now)
        if self.state is _CLOSED:
            reason = self._tally.trouble(failed, slow, now)
            if reason is not None:
                self._open(now, reason, retry_after)

    def _asked(self, retry_after: float | None) -> float:
        # It comes from outside and may be anything: not a number is not above 0, and nothing is beyond our limit.
        return min(retry_after, self.settings.max_retry_after) if retry_after is not None and retry_after > 0 else 0.0

    def _open(self, now: float, reason: str, retry_after: float | None) -> None:
        seconds = self._open_time.opened(now, self._asked(retry_after), self.settings)
        self._until = max(self._until, now + seconds)  # a pause asked for before goes on
        self._go(_OPEN, reason)

    def _choose(self, state: State, reason: str) -> None:
        if self.state is not state:
            self._until = _NEVER
            self._go(state, reason)

    def _go(self, new: State, reason: str) -> None:
        old, self.state = self.state, new
        self.epoch += 1
        self._lost = self.lost
        self._probing = HalfOpenCalls() if new is _HALF_OPEN else None
        # A pause outlives the way from half-open to closed; the next admit sees when it is over.
        self._gated = new is not _DISABLED and new is not _METRICS_ONLY
        self._why = "open" if new is _OPEN else "paused"
        if new is _CLOSED or new is _METRICS_ONLY:
            self._tally.clear()
        else:
            self._tally.stop()
        if self.on_transition is not None and new is not old:
            self.on_transition(old, new, reason)
