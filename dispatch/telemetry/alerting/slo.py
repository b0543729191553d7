"""Meaning of a service-level objective in metrics: which outcomes are bad, and which histogram bound measures a latency."""

from __future__ import annotations

from bisect import bisect_left

from dispatch.errors import Outcome
from dispatch.policy import Slo
from dispatch.telemetry.names import DURATION_BUCKETS

BAD_OUTCOMES = (Outcome.TIMEOUT, Outcome.TRANSPORT, Outcome.REJECTED, Outcome.THROTTLED)
"""Calls without a reply from the tool. A tool's own error and the rejection of invalid arguments are replies: they count as
good, because dispatch and the service worked. Throttled calls at their user's own rate limit are excluded."""
UNCOUNTED_OUTCOME = Outcome.CANCELLED
"""Excluded from both sides of the ratio: a cancelled call has no known result."""


def latency_bound(seconds: float) -> float:
    """Return the histogram bound at which a latency objective is measured, in seconds: the smallest bound that is not below
    ``seconds``, so that no call within the objective counts as slow.

    Raises:
        ValueError: ``seconds`` is above the largest bound.
    """
    at = bisect_left(DURATION_BUCKETS, seconds)
    if at == len(DURATION_BUCKETS):
        raise ValueError(f"{seconds!r} s is above the largest histogram bound, {DURATION_BUCKETS[-1]:g} s")
    return DURATION_BUCKETS[at]


def format_percent(share: float) -> str:
    """Format ``0.999`` as ``99.9 %``."""
    return f"{round(share * 100, 6):g} %"


def describe_slo(slo: Slo | None) -> str:
    """Describe an SLO for people; "": it has no objective."""
    objectives: list[str] = []
    if slo is not None and slo.availability is not None:
        objectives.append(f"{format_percent(slo.availability)} of calls are good")
    if slo is not None and slo.latency is not None:
        bound = latency_bound(slo.latency)
        measured = "" if bound == slo.latency else f", measured at {bound:g} s"
        objectives.append(f"{format_percent(slo.latency_share)} of successes within {slo.latency:g} s{measured}")
    return "; ".join(objectives)
