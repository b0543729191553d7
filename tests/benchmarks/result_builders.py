"""Builders of results."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.environment import Setting
from benchmarks.harness.plan import DEFAULT, Suite
from benchmarks.harness.results import Measurement, Results
from benchmarks.suites.definitions import CLIENTS

SETTING = Setting(
    date="2025-01-02T03:04:05+00:00",
    machine={
        "processors": 2,
        "kind": "Some Processor",
        "memory_gib": 4.0,
        "system": "Linux x86_64",
        "load_before": 0.1,
    },
    versions={"python": "CPython 3.11.7", "dispatch": "0.1.0", "pulsar-client": "3.13.0"},
    broker={"version": "4.0.6", "started_for_this_run": True},
)


def measurement(contender: str, level: int = 1, round: int = 1, suite: str = "clients", **figures: Any) -> Measurement:
    """Build a measurement with default values for all other fields."""
    values: dict[str, Any] = {
        "position": 1,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "p999_ms": 3.0,
        "calls_per_second": 1_000.0,
        "cpu_us_per_call": 100.0,
        "service_cpu_us_per_call": 50.0,
        "broker_cpu_us_per_call": 25.0,
        "other_processors": 0.1,
        "seconds": 1.0,
        "calls": 1_200,
        "answered": 1_200,
        "lost": 0,
        "errors": {},
    }
    return Measurement(suite=suite, contender=contender, level=level, round=round, **(values | figures))


def results(*measurements: Measurement, suites: tuple[Suite, ...] = (CLIENTS,)) -> Results:
    """Build the results of a run with these measurements."""
    return Results(SETTING, DEFAULT, suites, measurements)
