"""Hedging decision: whether and when a second attempt runs beside a slow first attempt. Sans-I/O.

Hedged requests as in "The Tail at Scale" (Dean and Barroso 2013): the second attempt starts when the first is slower than
nearly all attempts, so that it adds little load, and uses another instance, the usual cause of the delay.
"""

from __future__ import annotations

from enum import StrEnum

from dispatch._internal.permit import Clock
from dispatch.errors import Outcome
from dispatch.policy.hedging import hedging_quantile
from dispatch.resilience.latency_histogram import LatencyHistogram, Quantile
from dispatch.resilience.retry.budget import RetryBudget

MAX_HEDGE_RATIO = 0.05
"""Hedges as a share of the tool's calls over the last 10 s: what "p95" amounts to, and with a delay in seconds the limit
when every attempt is slow. Hedges count against the retry budget as well."""
MIN_DELAY_S = 0.001
"""Shortest delay: below it, scheduling jitter of the machine dominates (as in Finagle's ``BackupRequestFilter``)."""
FLOOR = 0.5
"""Hedges a second in addition to the share: 5 in 10 s, so that a tool called once a second can be hedged."""
ANSWERED = frozenset({Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS})
"""The outcomes that end a hedged call: the service has answered. After any other outcome, the other attempt continues."""
_TIMED = ANSWERED | {Outcome.TIMEOUT}


class NoHedgeReason(StrEnum):
    """Why no second attempt was started, for metrics."""

    ALONE = "alone"
    """There is no other instance."""
    TOO_LATE = "too-late"
    """It could not finish before the deadline."""
    BUDGET = "budget"
    """The hedging or retry budget of the tool is exhausted."""


class Hedging:
    """Decides about the hedges of one tool, which must be declared read-only or idempotent. Sans-I/O.

    Args:
        delay: seconds, or a percentile, after which the second attempt starts (policy ``hedging``).
        budget: of the tool, shared with its retries.
        durations: recent durations of the tool's attempts; recorded by :meth:`record_first`.
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

    def start_first(self, now: float, deadline: float) -> float | None:
        """Count a first attempt and return the seconds after which a second one is due; None: there is none."""
        self._own.record_call()
        delay = self._fixed if self._after is None else self._after.value(now)
        if delay is None:
            return None
        delay = max(delay, MIN_DELAY_S)
        return delay if now + delay < deadline else None

    def admit(self, now: float, deadline: float, *, has_other_instance: bool) -> NoHedgeReason | None:
        """Decide about the second attempt when the delay is over. None: start it; it has been withdrawn from both budgets,
        and :meth:`refund` returns it if it is not sent.

        Args:
            has_other_instance: there is an instance that was not tried.
        """
        if not has_other_instance:
            return NoHedgeReason.ALONE
        remaining = deadline - now
        if remaining <= 0 or remaining < (self._median.value(now) or 0.0):
            return NoHedgeReason.TOO_LATE
        if not self._own.withdraw():
            return NoHedgeReason.BUDGET
        if not self._budget.withdraw():
            self._own.refund()
            return NoHedgeReason.BUDGET
        return None

    def refund(self) -> None:
        """Return an admitted second attempt that was not sent to both budgets."""
        self._own.refund()
        self._budget.refund()

    def record_first(self, seconds: float, outcome: Outcome) -> None:
        """Record the duration of a first attempt. An attempt that timed out, or was cancelled because the second was faster
        (reported as TIMEOUT), took at least that long and counts: without the slow attempts, the delay would shrink with
        every hedge. Second attempts are not recorded, because only the fast ones complete; nor are rejected or unsent
        attempts, whose duration is not the tool's."""
        if outcome in _TIMED:
            self._durations.record(seconds)
