"""Figures of several calling processes."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness.merging import merge_answers, merge_reports


def answer(*, counted: int = 1_000, **values: Any) -> dict[str, Any]:
    """What one calling process answers."""
    return {
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "p999_ms": 3.0,
        "seconds": 2.0,
        "counted": counted,
        "cpu_seconds": 2.0,
        "cpu_counted": counted,
        "cpu_s": {"client": 0.2, "service": 0.1, "broker": 0.05, "machine": 0.75},
        "calls": 1_201,
        "answered": 1_200,
        "lost": 1,
        "errors": {"TimeoutError": 1},
        **values,
    }


def test_one_process() -> None:
    figures = merge_answers([answer()])
    assert figures["calls_per_second"] == 500
    assert figures["cpu_us_per_call"] == pytest.approx(200)
    assert figures["service_cpu_us_per_call"] == pytest.approx(100)
    assert figures["broker_cpu_us_per_call"] == pytest.approx(50)
    assert figures["other_processors"] == pytest.approx(0.2)
    assert (figures["calls"], figures["answered"], figures["lost"]) == (1_201, 1_200, 1)


def test_rates_add_up_and_the_slowest_latency_counts() -> None:
    cpu = {"client": 0.4, "service": 0.3, "broker": 0.05, "machine": 1.0}
    figures = merge_answers([answer(), answer(p50_ms=4.0, p999_ms=None, counted=3_000, cpu_s=cpu)])
    assert figures["calls_per_second"] == 2_000
    assert (figures["p50_ms"], figures["p99_ms"], figures["p999_ms"]) == (4.0, 2.0, 3.0)
    # The clients' own times are added; that of the service is read by both.
    assert figures["cpu_us_per_call"] == pytest.approx(0.6 / 4_000 * 1e6)
    assert figures["service_cpu_us_per_call"] == pytest.approx(0.2 / 4_000 * 1e6)
    assert figures["errors"] == {"TimeoutError": 2}


def test_unknown_times_stay_unknown() -> None:
    figures = merge_answers([answer(cpu_s={"client": 0.2, "service": None, "machine": None})])
    assert figures["cpu_us_per_call"] == pytest.approx(200)
    for name in ("service_cpu_us_per_call", "broker_cpu_us_per_call", "other_processors"):
        assert figures[name] is None


def test_a_stalled_client_does_not_know_what_others_used() -> None:
    assert merge_answers([answer(cpu_seconds=0.01)])["other_processors"] is None
    assert merge_answers([answer(cpu_seconds=0.01)])["calls_per_second"] == 500


def test_processor_time_is_not_divided_where_other_calls_share_it_or_none_was_answered() -> None:
    assert merge_answers([answer()], has_cpu=False)["cpu_us_per_call"] is None
    assert merge_answers([answer(counted=0)])["cpu_us_per_call"] is None
    assert merge_answers([answer(p50_ms=None)])["p50_ms"] is None


def test_services_report_the_difference_of_their_counters() -> None:
    before = [
        {"repeated": 1, "packets": 100, "retransmissions": 5},
        {"repeated": 0, "packets": 50, "retransmissions": 0},
    ]
    after = [
        {"repeated": 3, "packets": 200, "retransmissions": 6},
        {"repeated": 1, "packets": 150, "retransmissions": 1},
    ]
    assert merge_reports(before, after) == {"repeated": 3, "retransmitted": 0.01}


def test_services_without_counters_have_no_figures() -> None:
    assert merge_reports([{}], [{}]) == {"repeated": None, "retransmitted": None}
    assert merge_reports([{"packets": 7, "retransmissions": 0}], [{"packets": 7, "retransmissions": 0}]) == {
        "repeated": None,
        "retransmitted": None,
    }
