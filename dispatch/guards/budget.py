"""A retry budget: repeats are a bounded share of a tool's calls, so that a service in trouble is not buried in them.

A ratio of calls over a moving window with a floor, as Finagle's ``RetryBudget`` and Envoy's ``retry_budget`` have it. Not
a bucket that successes fill (gRPC's and the AWS SDKs'): that one stays empty for a tool that seldom succeeds, however
little it is called.
"""

from __future__ import annotations

from dispatch.guards.base import Clock

WINDOW_S = 10.0
"""As Finagle's: long enough for the ratio to mean something, short enough that a quiet hour buys no storm."""
BUCKETS = 10
"""The window moves by a tenth of itself: it covers the last 9 to 10 s."""
BUCKET_S = WINDOW_S / BUCKETS
EPSILON = 1e-9
"""29 % of 100 calls are 29, although their product as floating-point numbers is a little less."""


class Budget:
    """What a tool's retries and hedges are paid from; one for both, or each would add its own share.

    In any ten buckets, the repeats are at most ``ratio`` times the calls, and ``floor`` times 10 s. Everything is O(1).

    Args:
        ratio: repeats for each call, 0.2 for one in five.
        floor: repeats a second that need no calls.
        clock: seconds.

    Attributes:
        ratio, floor: may be set while it is in use, when a policy changes.
    """

    __slots__ = (
        "_at",
        "_calls",
        "_clock",
        "_past_calls",
        "_past_spent",
        "_ring_calls",
        "_ring_spent",
        "_spent",
        "_turn_at",
        "floor",
        "ratio",
    )

    def __init__(self, ratio: float, floor: float, clock: Clock) -> None:
        self.ratio = ratio
        self.floor = floor
        self._clock = clock
        self._turn_at = clock() + BUCKET_S
        # The bucket of now is held apart, so that to count a call is one addition.
        self._calls = 0
        self._spent = 0
        self._past_calls = 0
        self._past_spent = 0
        self._ring_calls = [0] * BUCKETS
        self._ring_spent = [0] * BUCKETS
        self._at = 0

    @property
    def left(self) -> int:
        """Repeats that may be made now."""
        self._turn()
        allowed = self.ratio * (self._past_calls + self._calls) + self.floor * WINDOW_S
        return max(0, int(allowed + EPSILON) - self._past_spent - self._spent)

    def called(self) -> None:
        """A call came in: a whole one, however many attempts it will have."""
        if self._clock() >= self._turn_at:
            self._turn()
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
        ring = self._ring_spent
        for back in range(1, BUCKETS):
            place = self._at - back  # negative ones count from the end
            if ring[place]:
                ring[place] -= 1
                self._past_spent -= 1
                return

    def _turn(self) -> None:
        """Move the window on to now."""
        late = self._clock() - self._turn_at
        if late < 0:
            return
        turns = int(late / BUCKET_S) + 1
        self._turn_at += turns * BUCKET_S
        calls, spent, at = self._ring_calls, self._ring_spent, self._at
        calls[at], spent[at] = self._calls, self._spent
        self._past_calls += self._calls
        self._past_spent += self._spent
        self._calls = self._spent = 0
        for _ in range(min(turns, BUCKETS)):
            at = (at + 1) % BUCKETS
            self._past_calls -= calls[at]
            self._past_spent -= spent[at]
            calls[at] = spent[at] = 0
        self._at = at
