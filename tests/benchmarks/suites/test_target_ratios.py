"""Ratios and their targets."""

from __future__ import annotations

from dataclasses import fields

import pytest

from benchmarks.harness.results import Measurement
from benchmarks.harness.statistics import Spread
from benchmarks.suites.definitions import SUITES
from benchmarks.suites.target_ratios import FOR_THE_RECORD, TARGETS, Ratio, find
from tests.benchmarks.harness.result_builders import measurement, results


@pytest.mark.parametrize("ratio", [*TARGETS, *FOR_THE_RECORD], ids=lambda ratio: ratio.text)
def test_each_ratio_is_of_something_that_is_measured(ratio: Ratio) -> None:
    suite = next(suite for suite in SUITES if suite.name == ratio.suite)
    names = {contender.name for contender in suite.contenders}
    assert {ratio.over, ratio.under} - {None} <= names
    assert (ratio.over, ratio.figure) != (ratio.under, ratio.under_figure or ratio.figure)
    assert ratio.level in suite.levels
    assert {ratio.figure, ratio.under_figure or ratio.figure} <= {field.name for field in fields(Measurement)}


def test_the_targets_of_the_project() -> None:
    assert [(r.suite, r.under, r.figure, r.level, r.bound, r.limit) for r in TARGETS] == [
        ("systems-120", "bare", "p50_ms", 1, "at most", 1.1),
        ("systems-120", "bare", "calls_per_second", 16, "at least", 2.2),
        ("systems-120", "bare", "calls_per_second", 64, "at least", 4.0),
        ("systems-120", "bare", "calls_per_second", 256, "at least", 4.0),
        ("systems-120", "bare", "p50_ms", 64, "at most", 0.4),
        ("systems-10k", "bare", "calls_per_second", 64, "at least", 5.0),
        ("systems-100k", "bare", "calls_per_second", 64, "at least", 3.0),
        ("systems-100k", "dispatch", "p999_ms", 64, "at most", 3.0),
        ("systems-1M", "before", "calls_per_second", 64, "at least", 1.0),
        ("systems-120", "trustgraph", "calls_per_second", 64, "at least", 100.0),
        ("systems-120", None, "cpu_us_per_call", 64, "at most", 28),
        ("systems-120", None, "service_cpu_us_per_call", 64, "at most", 25),
        *((f"systems-{size}", None, "lost", 64, "at most", 0) for size in ("120", "10k", "100k", "1M")),
        ("open", None, "lost", 15_000, "at most", 0),
        ("open", None, "p99_ms", 15_000, "at most", 10),
        *(
            (f"loss-{size}", None, figure, 64, "at most", limit)
            for size, p999 in (("120", 20), ("100k", 60))
            for figure, limit in (("lost", 0), ("repeated", 0), ("p999_ms", p999))
        ),
        ("beside", None, "p99_ms", 8, "at most", 10),
        ("fan-in", None, "lost", 20, "at most", 0),
        ("fan-in", None, "retransmitted", 20, "at most", 0.01),
        ("clients", "trustgraph", "p50_ms", 1, "at most", 0.08),
        ("clients", "trustgraph", "calls_per_second", 64, "at least", 2.0),
        ("clients", "bare", "calls_per_second", 64, "at least", 0.9),
        ("clients", "bare", "p50_ms", 1, "at most", 1.25),
        ("guards", "unguarded", "calls_per_second", 64, "at least", 0.9),
        ("telemetry", "silent", "calls_per_second", 64, "at least", 0.95),
        ("telemetry", "silent", "calls_per_second", 64, "at least", 0.93),
    ]
    assert {r.over for r in TARGETS if r.suite != "telemetry"} == {"dispatch"}
    assert [r.over for r in TARGETS if r.suite == "telemetry"] == ["metrics", "sampled"]


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


def test_a_figure_itself_may_have_a_target() -> None:
    tail = Ratio("p99", "clients", "dispatch", None, "p99_ms", 1, 10.0)
    found = find(tail, results(measurement("dispatch", p99_ms=8.0), measurement("dispatch", round=2, p99_ms=30.0)))
    assert (found.rounds, found.met) == ({1: 8.0, 2: 30.0}, False)


def test_a_lost_call_in_one_of_three_rounds_misses_the_target() -> None:
    lost = Ratio("lost", "clients", "dispatch", None, "lost", 1, 0)
    found = find(lost, results(*(measurement("dispatch", round=number, lost=number // 3) for number in (1, 2, 3))))
    assert found.spread == Spread(0, 0, 1)
    assert found.met is False
