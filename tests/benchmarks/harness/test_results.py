"""Raw figures, summaries, JSON."""

from __future__ import annotations

import json

import pytest

from benchmarks.harness.results import Results
from benchmarks.harness.statistics import Spread
from benchmarks.suites.definitions import CLIENTS
from benchmarks.suites.target_ratios import TARGETS, find
from tests.benchmarks.harness.result_builders import measurement, results

RUN = results(
    measurement("bare", 1, 1, p50_ms=1.0, calls=100, lost=2, errors={"TimeoutError": 2}),
    measurement("bare", 1, 2, p50_ms=3.0, calls=100, lost=1, errors={"TimeoutError": 1}),
    measurement("bare", 16, 1, p50_ms=50.0),
    measurement("dispatch", 1, 1, p50_ms=None, calls_per_second=0.0, cpu_us_per_call=None, answered=0),
    measurement("bare", 1, 1, suite="topics", p50_ms=99.0),
)


def test_a_summary_is_of_one_cell_over_its_rounds() -> None:
    summary = RUN.summary("clients", "bare", 1)
    assert summary.figures["p50_ms"] == Spread(2.0, 1.0, 3.0)
    assert (summary.calls, summary.lost) == (200, 3)


def test_a_cell_without_an_answer_has_a_rate_and_no_latency() -> None:
    figures = RUN.summary("clients", "dispatch", 1).figures
    assert figures["p50_ms"] is None
    assert figures["cpu_us_per_call"] is None
    assert figures["calls_per_second"] == Spread(0.0, 0.0, 0.0)


def test_repeated_executions_are_summed_where_they_are_counted() -> None:
    assert RUN.summary("clients", "bare", 1).repeated is None
    run = results(measurement("bare", 1, 1, repeated=0), measurement("bare", 1, 2, repeated=3))
    assert run.summary("clients", "bare", 1).repeated == 3


def test_the_disturbance_by_other_programs_is_of_the_whole_run() -> None:
    run = results(*(measurement("bare", 1, number, other_processors=0.1 * number) for number in (1, 2, 4)))
    assert run.other_processors == Spread(0.2, 0.1, 0.4)


def test_figures_by_round() -> None:
    assert RUN.figure("clients", "bare", 1, "p50_ms") == {1: 1.0, 2: 3.0}
    assert RUN.figure("clients", "bare", 64, "p50_ms") == {}


def test_every_cell_of_the_plan_is_summarised() -> None:
    cells = [(s.suite, s.contender, s.level) for s in RUN.summaries()]
    assert cells == [("clients", c.name, level) for c in CLIENTS.contenders for level in CLIENTS.levels]


def test_the_json_can_be_read_back() -> None:
    assert Results.from_dict(json.loads(json.dumps(RUN.as_dict([])))) == RUN


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="results of format 1 are not readable; run the benchmarks again"):
        Results.from_dict({"format": 1})


def test_the_json_has_everything() -> None:
    read = json.loads(json.dumps(RUN.as_dict([find(ratio, RUN) for ratio in TARGETS])))
    assert read["format"] == 2
    assert read["date"] == "2025-01-02T03:04:05+00:00"
    assert read["machine"]["processors"] == 2
    assert read["versions"]["pulsar-client"] == "3.13.0"
    assert read["broker"]["version"] == "4.0.6"
    assert read["settings"]["rounds"] == 5
    assert len(read["measurements"]) == 5
    assert read["measurements"][1] == {
        "suite": "clients",
        "contender": "bare",
        "level": 1,
        "round": 2,
        "position": 1,
        "p50_ms": 3.0,
        "p99_ms": 2.0,
        "p999_ms": 3.0,
        "calls_per_second": 1000.0,
        "cpu_us_per_call": 100.0,
        "service_cpu_us_per_call": 50.0,
        "broker_cpu_us_per_call": 25.0,
        "other_processors": 0.1,
        "seconds": 1.0,
        "calls": 100,
        "answered": 1200,
        "lost": 1,
        "repeated": None,
        "retransmitted": None,
        "errors": {"TimeoutError": 1},
    }
    assert read["summary"][0]["figures"]["p50_ms"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert [r["ratio"]["text"] for r in read["ratios"]] == [ratio.text for ratio in TARGETS]
