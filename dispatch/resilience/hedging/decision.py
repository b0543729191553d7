"""Is a second attempt to run beside a slow first one, and from when on?

Hedged requests after "The Tail at Scale" (Dean and Barroso 2013): the second one starts when the first is slower than
nearly all are, so that it costs little, and goes to another instance, since the reason is mostly there.
"""

from __future__ import annotations

from enum import StrEnum

from dispatch._internal.permit import Clock
from dispatch.errors import Outcome
from dispatch.policy.hedging import hedging_quantile
from dispatch.resilience.latency_histogram import LatencyHistogram, Quantile
from dispatch.resilience.retry.budget import RetryBudget

MAX_HEDGE_RATIO = 0.05
"""Hedges as a share of the tool's calls over the last 10 s: what "p95" comes to; for a delay in seconds, the bound when
every attempt is slow. They count against the retry budget as well."""
MIN_DELAY_S = 0.001
"""However fast a tool is: below this the machine's own hiccups decide (Finagle's ``BackupRequestFilter`` has the same)."""
FLOOR = 0.5
"""Hedges a second that need no calls: 5 in 10 s, so that a tool called once a second has hedges at all."""
ANSWERED = frozenset({Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS})
"""The outcomes that end a hedged call: the service has answered. Anything else, and the other attempt may do better."""
_TIMED = ANSWERED | {Outcome.TIMEOUT}


class NoHedgeReason(StrEnum):
    """Why no second attempt was begun: a word for metrics."""

    ALONE = "alone"
    """There is no other instance."""
    TOO_LATE = "too-late"
    """It could not be finished in the time left."""
    BUDGET = "budget"
    """Too many of the tool's calls are hedged or retried already."""


class Hedging:
    """Decides about the hedges of one tool, which must be declared read-only or idempotent. Pure.

    Args:
        delay: seconds, or a percentile, after which the second attempt starts (policy ``hedging``).
        budget: the tool's, shared with its retries.
        durations: how long the tool's attempts take; told here (:meth:`learn`).
        clock: seconds.
        ratio: hedges as a share of calls.
    """

    __slots__ = ("_after", "_budget", "_durations", "_fixed", "_median", "_own", "clock")

    def __init__(
        self,
        delay: float | str,
        *,
        budget: RetryBudget,
        durations: LatencyHistogram,
        clock: Clock,
        ratio: float = MAX_HEDGE_RATIO,
    ) -> None:
        self.clock = clock
        self._budget = budget
        self._own = RetryBudget(ratio, FLOOR, clock)
        self._durations = durations
        share = hedging_quantile(delay)
        self._after = None if share is None else Quantile(durations, share)
        self._fixed = None if isinstance(delay, str) else delay
        self._median = Quantile(durations, 0.5)

    def begin(self, now: float, deadline: float) -> float | None:
        """A first attempt begins. After how many seconds is a second one to be thought of? None: not at all."""
        self._own.called()
        delay = self._fixed if self._after is None else self._after.value(now)
        if delay is None:
            return None
        delay = max(delay, MIN_DELAY_S)
        return delay if now + delay < deadline else None

    def admit(self, now: float, deadline: float, *, others: bool) -> NoHedgeReason | None:
        """The delay is over. None: begin the second attempt; it is paid for (if it is not sent: :meth:`refund`).

        Args:
            others: there is an instance that was not tried.
        """
        if not others:
            return NoHedgeReason.ALONE
        left = deadline - now
        if left <= 0 or left < (self._median.value(now) or 0.0):
            return NoHedgeReason.TOO_LATE
        if not self._own.withdraw():
            return NoHedgeReason.BUDGET
        if not self._budget.withdraw():
            self._own.refund()
            return NoHedgeReason.BUDGET
        return None

    def refund(self) -> None:
        """A second attempt that was admitted was not sent."""
        self._own.refund()
        self._budget.refund()

    def learn(self, seconds: float, outcome: Outcome) -> None:
        """A first attempt ended. What timed out, or was cancelled because the second was faster (told as a TIMEOUT), took at
        least that long, and counts: without the slow ones, the delay would become ever shorter. Second attempts are not
        told: of those only the fast ones are seen to their end. What was refused, or never arrived, says nothing."""
        if outcome in _TIMED:
            self._durations.learn(seconds)
