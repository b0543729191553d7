"""The hedging delay: when a second attempt starts beside a slow first one.

In a descriptor: ``"hedging": "p95"``, or ``"hedging": 0.2``; null: off.
"""

from __future__ import annotations

import re

from dispatch.policy.validation import PolicyError, check_seconds

MIN_PERCENT, MAX_PERCENT = 50.0, 99.9
"""Percentiles of a hedging delay: earlier than half of the replies costs too much, later than 999 of 1,000 helps no call."""

_PERCENTILE = re.compile(r"p(\d{2}(?:\.\d{1,3})?)", re.ASCII)


def check_hedging(delay: object) -> None:
    """Check a hedging delay: seconds, or a percentile of the tool's attempt durations from ``"p50"`` to ``"p99.9"``.

    Raises:
        PolicyError: it is neither.
    """
    if isinstance(delay, str):
        hedging_quantile(delay)
    else:
        check_seconds(delay, "hedging")


def hedging_quantile(delay: float | str) -> float | None:
    """The share of attempts that end before the delay: 0.95 for ``"p95"``; None for a delay in seconds.

    Raises:
        PolicyError: a text that is no percentile, or one out of range.
    """
    if not isinstance(delay, str):
        return None
    match = _PERCENTILE.fullmatch(delay)
    if match is None or not MIN_PERCENT <= float(match[1]) <= MAX_PERCENT:
        raise PolicyError("hedging", f"{delay!r} is not a percentile from p50 to p99.9", 'give "p95", or seconds')
    return float(match[1]) / 100
