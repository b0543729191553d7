"""Ratios and their targets."""

from __future__ import annotations

from dataclasses import fields

import pytest

from benchmarks.harness.plan import SUITES
from benchmarks.harness.results import Measurement
from benchmarks.harness.statistics import Spread
from benchmarks.harness.target_ratios import FOR_THE_RECORD, PROMISES, Ratio, find
from tests.benchmarks.harness.result_builders import measurement, results


@pytest.mark.parametrize("ratio", [*PROMISES, *FOR_THE_RECORD], ids=lambda ratio: ratio.text)
def test_each_ratio_is_of_something_that_is_measured(ratio: Ratio) -> None:
    suite = next(suite for suite in SUITES if suite.name == ratio.suite)
    names = {contender.name for contender in suite.contenders}
    assert {ratio.over, ratio.under} <= names
    assert (ratio.over, ratio.figure) != (ratio.under, ratio.under_figure or ratio.figure)
    assert ratio.in_flight in suite.levels
    assert {ratio.figure, ratio.under_figure or ratio.figure} <= {field.name for field in fields(Measurement)}


def test_what_the_project_promises() -> None:
    assert [(r.suite, r.under, r.figure, r.in_flight, r.bound, r.limit) for r in PROMISES] == [
        ("clients", "trustgraph", "p50_ms", 1, "at most", 0.08),
        ("clients", "trustgraph", "calls_per_second", 64, "at least", 2.0),
        ("clients", "bare", "calls_per_second", 64, "at least", 0.9),
        ("clients", "bare", "p50_ms", 1, "at most", 1.25),
        ("services", "trustgraph", "p50_ms", 1, "at most", 0.04),
        ("services", "trustgraph", "calls_per_second", 64, "at least", 40.0),
        ("guards", "unguarded", "calls_per_second", 64, "at least", 0.9),
        ("telemetry", "silent", "calls_per_second", 64, "at least", 0.95),
        ("telemetry", "silent", "calls_per_second", 64, "at least", 0.93),
        ("answers-100k", "bare", "calls_per_second", 64, "at least", 1.5),
        *(
            (f"answers-{size}", "without-credit", "p50_ms", 1, "at most", 1.3)
            for size in ("120", "1k", "10k", "100k", "1M")
        ),
        *((f"answers-{size}", "dispatch", "p999_ms", 64, "at most", 10) for size in ("1k", "10k", "100k", "1M")),
        ("answers-120", "without-credit", "calls_per_second", 64, "at least", 0.95),
    ]
    assert {r.over for r in PROMISES if r.suite != "telemetry"} == {"dispatch"}
    assert [r.over for r in PROMISES if r.suite == "telemetry"] == ["metrics", "sampled"]


P50 = Ratio("p50", "clients", "dispatch", "bare", "p50_ms", 1, 1.25)
RATE = Ratio("rate", "clients", "dispatch", "bare", "calls_per_second", 64, 0.9, "at least")


def test_the_median_of_the_rounds_counts() -> None:
    found = find(
        P50,
        results(
            *(measurement("dispatch", round=number, p50_ms=p50) for number, p50 in enumerate((1.0, 9.0, 1.2), 1)),
            *(measurement("bare", round=number, p50_ms=1.0) for number in (1, 2, 3)),
        ),
    )
    assert found.rounds == {1: 1.0, 2: 9.0, 3: 1.2}
    assert found.spread == Spread(1.2, 1.0, 9.0)
    assert found.met is True


@pytest.mark.parametrize(("rate", "met"), [(900.0, True), (899.0, False), (5_000.0, True)])
def test_at_least_is_at_least(rate: float, met: bool) -> None:
    made = results(measurement("dispatch", 64, calls_per_second=rate), measurement("bare", 64))
    assert find(RATE, made).met is met


@pytest.mark.parametrize(("p50", "met"), [(1.25, True), (1.26, False), (0.1, True)])
def test_at_most_is_at_most(p50: float, met: bool) -> None:
    assert find(P50, results(measurement("dispatch", p50_ms=p50), measurement("bare"))).met is met


def test_what_was_not_measured_is_neither_kept_nor_missed() -> None:
    assert find(P50, results(measurement("dispatch"))).met is None
    assert find(P50, results(measurement("dispatch", p50_ms=None), measurement("bare"))).spread is None
    assert find(P50, results(measurement("dispatch"), measurement("bare", 64))).spread is None


def test_a_ratio_for_the_record_promises_nothing() -> None:
    ratio = Ratio("p50", "clients", "dispatch", "bare", "p50_ms", 1)
    found = find(ratio, results(measurement("dispatch", p50_ms=3.0), measurement("bare")))
    assert (found.spread, found.met) == (Spread(3.0, 3.0, 3.0), None)


def test_a_figure_may_be_divided_by_another_one_of_the_same() -> None:
    tail = Ratio("tail", "clients", "dispatch", "dispatch", "p999_ms", 1, 10.0, under_figure="p50_ms")
    found = find(tail, results(measurement("dispatch", p50_ms=2.0, p999_ms=30.0)))
    assert found.spread == Spread(15.0, 15.0, 15.0)
    assert found.met is False
