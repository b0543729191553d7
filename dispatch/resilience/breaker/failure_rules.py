"""What recent calls say of a service, and whether that is trouble: windows, a run of failures, and the rules over them."""

from __future__ import annotations

from dispatch.resilience.breaker.rules import BreakerRules
from dispatch.resilience.breaker.windows import FAILED, SLOW, CountWindow, TimeWindow

CONSECUTIVE_FAILURES = "consecutive-failures"
FAILURE_RATE = "failure-rate"
SLOW_CALL_RATE = "slow-call-rate"
NO_SUCCESS = "no-success"

_NEVER = float("-inf")
_ALWAYS = float("inf")


class Tally:
    """The figures of one breaker.

    Nearly every call is a success that took less than ``usual``. The breaker counts those in ``plain`` while the clock is
    before ``ends``, or after :meth:`turn`; all others go through :meth:`add`.

    Attributes:
        plain: successes that the windows do not have yet, all of them after the last failure and before ``ends``.
        ends: an instant on the breaker's clock; before any while nothing is counted.
        usual: seconds from which a call is slow; infinite when none is.
    """

    __slots__ = ("_by_count", "_by_time", "_run", "_run_since", "_settings", "ends", "plain", "usual")

    def __init__(self, settings: BreakerRules) -> None:
        self._by_count = CountWindow(settings.window_calls)
        self._by_time = TimeWindow(settings.window_duration)
        self.clear()
        self._set(settings)

    def clear(self) -> None:
        """Start from nothing."""
        self._by_count.clear()
        self._by_time.clear()
        self._run = 0
        """Failures since the last success."""
        self._run_since = _NEVER
        self.plain = 0
        self.ends = _NEVER

    def stop(self) -> None:
        """Nothing is counted from now on, until :meth:`clear`; the figures stay to be looked at."""
        self._take_over()
        self.ends = _NEVER

    def reconfigure(self, settings: BreakerRules) -> None:
        """Other settings. A window of another size is empty."""
        self._take_over()
        if settings.window_calls != self._settings.window_calls:
            self._by_count = CountWindow(settings.window_calls)
        if settings.window_duration != self._settings.window_duration:
            self._by_time = TimeWindow(settings.window_duration)
            self.ends = _NEVER  # its first call finds its part by the clock
        self._set(settings)

    def add(self, failed: bool, slow: bool, now: float) -> None:
        """A call ended at ``now``."""
        self._take_over()
        kind = failed * FAILED | slow * SLOW
        self._by_count.add(kind)
        self._by_time.add(kind, now)
        self.ends = self._by_time.ends
        if not failed:
            self._run = 0
            return
        if not self._run:
            self._run_since = now
        self._run += 1

    def turn(self, now: float) -> bool:
        """Begin the part of the time window that ``now`` is in, because the current one has ended.

        Returns:
            False: calls are not counted, or none has been.
        """
        if self.ends == _NEVER:
            return False
        self._take_over()
        self._by_time.advance(now)
        self.ends = self._by_time.ends
        return True

    def trouble(self, failed: bool, slow: bool, now: float) -> str | None:
        """Which rule is broken after such a call, or None. A call that was well breaks none, whatever the windows hold."""
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

    def look(self, now: float) -> None:
        """Bring the figures up to ``now``, if calls are counted at all."""
        if self.ends > _NEVER:
            self._take_over()
            self._by_time.advance(now)
            self.ends = self._by_time.ends

    def failure_rate(self) -> float | None:
        """The share of failures, of the window in which it is higher; None when both have too few calls."""
        return self._higher(self._by_count.failures, self._by_time.failures)

    def slow_call_rate(self) -> float | None:
        """The share of slow calls, likewise."""
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
        self.usual = _ALWAYS if settings.slow_call_duration is None else settings.slow_call_duration

    def _take_over(self) -> None:
        plain = self.plain
        if plain:
            self.plain = 0
            self._run = 0
            self._by_count.add_plain(plain)
            self._by_time.add_plain(plain)
