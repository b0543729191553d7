"""Failure rules of a circuit breaker: when recent outcomes open it (consecutive failures, failure rate, slow calls)."""

from __future__ import annotations

from dispatch.resilience.breaker.rules import BreakerRules
from dispatch.resilience.breaker.windows import FAILED, SLOW, CountWindow, TimeWindow

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
