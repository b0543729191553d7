"""Percentiles, spreads over rounds, and ratios formed within a round."""

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
    """Return the percentile by nearest rank; ``ordered`` is sorted, ``fraction`` is in (0, 1].

    Raises:
        ValueError: there are no values, or ``fraction`` is not above 0 and at most 1.
    """
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction above 0 and at most 1, not {fraction}")
    return ordered[math.ceil(fraction * len(ordered)) - 1]


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and greatest of the rounds that have the figure; None if none has."""
    there = [value for value in values if value is not None]
    return Spread(statistics.median(there), min(there), max(there)) if there else None


def ratios(over: Mapping[int, float | None], under: Mapping[int, float | None]) -> dict[int, float]:
    """Return ``over`` / ``under`` for each round that has both: drift between rounds cancels out."""
    formed = {}
    for number, value in over.items():
        divisor = under.get(number)
        if value is not None and divisor:
            formed[number] = value / divisor
    return formed
