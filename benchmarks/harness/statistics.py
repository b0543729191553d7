"""The little statistics there is: percentiles, spreads over rounds, ratios formed within a round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds."""

    median: float
    min: float
    max: float


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that at least ``fraction`` of all are not above (nearest rank). ``ordered`` is sorted.

    Raises:
        ValueError: there are no values, or ``fraction`` is not above 0 and at most 1.
    """
    if not ordered:
        raise ValueError("no values, no percentile")
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction above 0 and at most 1, not {fraction}")
    return ordered[math.ceil(fraction * len(ordered)) - 1]


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and greatest of the rounds that have the figure; None if none has."""
    there = [value for value in values if value is not None]
    return Spread(statistics.median(there), min(there), max(there)) if there else None


def ratios(over: Mapping[int, float | None], under: Mapping[int, float | None]) -> dict[int, float]:
    """``over`` / ``under`` for each round that has both: what drifts in between drifts in both."""
    formed = {}
    for number, value in over.items():
        divisor = under.get(number)
        if value is not None and divisor:
            formed[number] = value / divisor
    return formed
