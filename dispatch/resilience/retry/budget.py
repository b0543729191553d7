"""Retry budget: retries and hedges are a bounded share of a tool's calls, which prevents retry storms.

A ratio of the calls in a moving window with a floor, as Finagle's ``RetryBudget`` and Envoy's ``retry_budget``. Not a token
bucket that successes fill (gRPC, AWS SDKs): it stays empty for a tool that rarely succeeds, even at a low rate of calls.
"""

from __future__ import annotations

from dispatch._internal.permit import Clock

MIN_REPEATS_PER_S = 3.0
"""Retries and hedges a second that every tool has, so that a rarely called tool can be retried (as in Envoy and
failsafe-go)."""
WINDOW_S = 10.0
"""As in Finagle: long enough for a meaningful ratio, and short enough that calls of the past hour permit no retry storm."""
BUCKETS = 10
"""The window moves by a tenth of its length: it covers the last 9 to 10 s."""
BUCKET_S = WINDOW_S / BUCKETS
_FIELDS = 3
"""Fields of a former bucket: number, calls, repeats."""
EPSILON = 1e-9
"""29 % of 100 calls is 29, although the floating-point product is slightly less."""


class RetryBudget:
    """The common budget of a tool's retries and hedges.

    In any ten buckets, the repeats are at most ``ratio`` times the calls plus ``floor`` times 10 s. Every operation is O(1),
    and counting a call, the hot path, has no loop.

    Args:
        ratio: repeats per call; 0.2 is one in five.
        floor: repeats a second in addition.
        clock: seconds.

    Attributes:
        ratio, floor: may be set in use, when a policy changes.
    """

    __slots__ = ("_calls", "_clock", "_former", "_number", "_spent", "_turn_at", "floor", "ratio")

    def __init__(self, ratio: float, floor: float, clock: Clock) -> None:
        self.ratio = ratio
        self.floor = floor
        self._clock = clock
        self._turn_at = clock() + BUCKET_S
        # The current bucket is separate from the former ones, so that counting a call is one addition.
        self._number = BUCKETS
        self._calls = 0
        self._spent = 0
        self._former = [0] * (
            BUCKETS * _FIELDS
        )  # bucket n at n modulo BUCKETS; older ones stay there until overwritten

    @property
    def remaining(self) -> int:
        """Repeats that are available now."""
        now = self._clock()
        if now >= self._turn_at:
            self._advance(now)
        former, oldest = self._former, self._number - BUCKETS
        calls, spent = self._calls, self._spent
        for at in range(0, BUCKETS * _FIELDS, _FIELDS):
            if former[at] > oldest:
                calls += former[at + 1]
                spent += former[at + 2]
        return max(0, int(self.ratio * calls + self.floor * WINDOW_S + EPSILON) - spent)

    def record_call(self, now: float | None = None) -> None:
        """Count a call, once for all its attempts.

        Args:
            now: the current time, if it is known.
        """
        if now is None:
            now = self._clock()
        if now >= self._turn_at:
            self._advance(now)
        self._calls += 1

    def withdraw(self) -> bool:
        """Withdraw one repeat. False: the budget is exhausted."""
        if self.remaining < 1:
            return False
        self._spent += 1
        return True

    def refund(self) -> None:
        """Return a repeat that was withdrawn but not made. Does nothing if its bucket is outside the window."""
        if self._spent:  # the newest withdrawal; it expires together with its bucket
            self._spent -= 1
            return
        former = self._former
        for number in range(self._number - 1, self._number - BUCKETS, -1):
            at = number % BUCKETS * _FIELDS
            if former[at] == number and former[at + 2]:
                former[at + 2] -= 1
                return

    def _advance(self, now: float) -> None:
        """Start the bucket of ``now``: the current one has ended."""
        turns = int((now - self._turn_at) / BUCKET_S) + 1
        self._turn_at += turns * BUCKET_S
        number = self._number
        at = number % BUCKETS * _FIELDS
        self._former[at : at + _FIELDS] = number, self._calls, self._spent
        self._number = number + turns
        self._calls = self._spent = 0
