"""What a promise comes to: which calls are good, how long is too long, in words and in buckets."""

from __future__ import annotations

from bisect import bisect_left

from dispatch.errors import Outcome
from dispatch.policy import Slo
from dispatch.telemetry.names import DURATION_BUCKETS

BAD = (Outcome.TIMEOUT, Outcome.TRANSPORT, Outcome.REJECTED, Outcome.THROTTLED)
"""Calls that got no answer. A tool's own error, and the refusal of wrong arguments, are answers: good, as far as what
carries them is concerned."""
NEITHER = Outcome.CANCELLED
"""Nobody knows how it would have ended: not counted at all."""


def latency_bound(seconds: float) -> float:
    """The bound of the histogram that a promised latency is measured at: the least that is not below it, so that no call
    that kept the promise counts as slow.

    Raises:
        ValueError: it is beyond the largest.
    """
    at = bisect_left(DURATION_BUCKETS, seconds)
    if at == len(DURATION_BUCKETS):
        raise ValueError(f"{seconds!r} s is more than the largest bucket, {DURATION_BUCKETS[-1]:g} s")
    return DURATION_BUCKETS[at]


def percent(share: float) -> str:
    """``0.999`` as ``99.9 %``."""
    return f"{round(share * 100, 6):g} %"


def promise(slo: Slo | None) -> str:
    """What ``slo`` promises, in words; "": nothing."""
    said: list[str] = []
    if slo is not None and slo.availability is not None:
        said.append(f"{percent(slo.availability)} of calls are good")
    if slo is not None and slo.latency is not None:
        bound = latency_bound(slo.latency)
        measured = "" if bound == slo.latency else f", measured at {bound:g} s"
        said.append(f"{percent(slo.latency_share)} of successes within {slo.latency:g} s{measured}")
    return "; ".join(said)
