"""A retry budget: repeats are a bounded share of a tool's calls, so that a service in trouble is not buried in them.

A ratio of calls over a moving window with a floor, as Finagle's ``RetryBudget`` and Envoy's ``retry_budget`` have it. Not
a bucket that successes fill (gRPC's and the AWS SDKs'): that one stays empty for a tool that seldom succeeds, however
little it is called.
"""

from __future__ import annotations

from dispatch._internal.permit import Clock

MIN_REPEATS_PER_S = 3.0
"""Retries and hedges a second that any tool may make, so that a tool that is seldom called can be retried (as in Envoy and
failsafe-go)."""
WINDOW_S = 10.0
"""As Finagle's: long enough for the ratio to mean something, short enough that a quiet hour buys no storm."""
BUCKETS = 10
"""The window moves by a tenth of itself: it covers the last 9 to 10 s."""
BUCKET_S = WINDOW_S / BUCKETS
_FIELDS = 3
"""Of a former bucket: its number, its calls, its repeats."""
EPSILON = 1e-9
"""29 % of 100 calls are 29, although their product as floating-point numbers is a little less."""


class RetryBudget:
    """What a tool's retries and hedges are paid from; one for both, or each would add its own share.

    In any ten buckets, the repeats are at most ``ratio`` times the calls, and ``floor`` times 10 s. Everything is O(1), and
    what nearly every call does, to count itself, has no loop: a tool that is called once a second begins a bucket with each
    call.

    Args:
        ratio: repeats for each call, 0.2 for one in five.
        floor: repeats a second that need no calls.
        clock: seconds.

    Attributes:
        ratio, floor: may be set while it is in use, when a policy changes.
    """

    __slots__ = ("_calls", "_clock", "_former", "_number", "_spent", "_turn_at", "floor", "ratio")

    def __init__(self, ratio: float, floor: float, clock: Clock) -> None:
        self.ratio = ratio
        self.floor = floor
        self._clock = clock
        self._turn_at = clock() + BUCKET_S
        # The current bucket is held apart, so that to count a call is one addition.
        self._number = BUCKETS
        self._calls = 0
        self._spent = 0
        self._former = [0] * (
            BUCKETS * _FIELDS
        )  # bucket n at n modulo BUCKETS; older ones stay there until overwritten

    @property
    def left(self) -> int:
        """Repeats that may be made now."""
        now = self._clock()
        if now >= self._turn_at:
            self._turn(now)
        former, oldest = self._former, self._number - BUCKETS
        calls, spent = self._calls, self._spent
        for at in range(0, BUCKETS * _FIELDS, _FIELDS):
            if former[at] > oldest:
                calls += former[at + 1]
                spent += former[at + 2]
        return max(0, int(self.ratio * calls + self.floor * WINDOW_S + EPSILON) - spent)

    def called(self) -> None:
        """A call came in: a whole one, however many attempts it will have."""
        now = self._clock()
        if now >= self._turn_at:
            self._turn(now)
        self._calls += 1

    def withdraw(self) -> bool:
        """Pay for one repeat. False: there must be none."""
        if self.left < 1:
            return False
        self._spent += 1
        return True

    def refund(self) -> None:
        """A repeat that was paid for was not made after all. If that was too long ago to matter, nothing happens."""
        if self._spent:  # the newest one; wherever the window is by now, it leaves it together with its bucket
            self._spent -= 1
            return
        former = self._former
        for number in range(self._number - 1, self._number - BUCKETS, -1):
            at = number % BUCKETS * _FIELDS
            if former[at] == number and former[at + 2]:
                former[at + 2] -= 1
                return

    def _turn(self, now: float) -> None:
        """Begin the bucket of ``now``, because the current one has ended."""
        turns = int((now - self._turn_at) / BUCKET_S) + 1
        self._turn_at += turns * BUCKET_S
        number = self._number
        at = number % BUCKETS * _FIELDS
        self._former[at : at + _FIELDS] = number, self._calls, self._spent
        self._number = number + turns
        self._calls = self._spent = 0
