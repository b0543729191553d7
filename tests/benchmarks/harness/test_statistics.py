"""Percentiles, spreads, ratios within rounds."""

from __future__ import annotations

import pytest

from benchmarks.harness.statistics import Spread, percentile, ratios, spread


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [
        ([7.0], 0.5, 7.0),
        ([7.0], 0.01, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 201)], 0.99, 198.0),
        ([1.0, 2.0, 3.0], 1.0, 3.0),
    ],
)
def test_a_percentile_is_a_value_that_was_there(values: list[float], fraction: float, expected: float) -> None:
    assert percentile(values, fraction) == expected


@pytest.mark.parametrize(("values", "fraction"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_no_percentile_of_nothing_nor_outside(values: list[float], fraction: float) -> None:
    with pytest.raises(ValueError, match=r"percentile|fraction"):
        percentile(values, fraction)


def test_a_spread_leaves_out_the_rounds_that_have_nothing() -> None:
    assert spread([3.0, None, 1.0, 2.0]) == Spread(median=2.0, min=1.0, max=3.0)
    assert spread([4.0, 1.0]) == Spread(median=2.5, min=1.0, max=4.0)
    assert spread([None]) is None
    assert spread([]) is None


def test_a_ratio_is_formed_within_a_round() -> None:
    # A machine that becomes three times as slow moves both: neither the ratio of medians nor that of means says 2.
    over = {1: 2.0, 2: 6.0, 3: 20.0}
    under = {1: 1.0, 2: 3.0, 3: 2.0}
    assert ratios(over, under) == {1: 2.0, 2: 2.0, 3: 10.0}


def test_a_round_without_both_figures_has_no_ratio() -> None:
    assert ratios({1: 1.0, 2: None, 3: 5.0, 4: 1.0}, {1: 2.0, 2: 1.0, 3: 0.0}) == {1: 0.5}
