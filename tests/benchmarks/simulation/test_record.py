"""Figures of a simulated run."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.simulation.record import BIN_S, Made, Record, fullest


def record(*calls: Made, seconds: float = 10.0) -> Record:
    return Record("healthy", "ours", seconds, calls=list(calls), received=[Counter(), Counter()])


def test_calls_are_counted_where_they_begin_and_answers_where_they_end() -> None:
    made = record(Made(0.5, 1.5, True, 1), Made(0.9, 1.1, False, 3), Made(1.5, 1.6, True, 2))
    assert (made.offered(0, 1), made.offered(1, 2)) == (2, 1)
    assert (made.answered(0, 1), made.answered(1, 2)) == (0, 2)
    assert (made.success(0, 1), made.success(1, 2), made.success(5, 6)) == (0.5, 1.0, 1.0)
    assert (made.amplification(0, 1), made.amplification(1, 2), made.amplification(5, 6)) == (2.0, 2.0, 0.0)


def test_latency_is_that_of_answers() -> None:
    made = record(*(Made(0.0, n / 100, True, 1) for n in range(1, 101)), Made(0.0, 9.0, False, 1))
    assert made.latency(0.5, 0, 1) == pytest.approx(0.51)
    assert made.latency(0.99, 0, 1) == pytest.approx(1.0)
    assert made.latency(1.0, 0, 1) == pytest.approx(1.0)
    assert made.latency(0.5, 1, 2) is None


def test_load_is_that_of_all_instances_or_one() -> None:
    made = record()
    made.received[0].update({0: 3, 4: 5})
    made.received[1].update({3: 7})
    assert made.load(0, 1) == 10
    assert made.load(0, 1, 0) == 3
    assert made.load(1, 1 + BIN_S) == 5


def test_well_again_is_when_it_stays_well() -> None:
    def at(*good: bool) -> Record:
        return record(*(Made(second + 0.5, second + 0.6, ok, 1) for second, ok in enumerate(good)), seconds=len(good))

    assert at(*[True] * 10).recovery(4) == 0
    assert at(*[True] * 4, False, True, False, True, True, True, True).recovery(4) == 3
    assert at(*[True] * 4, *[False] * 6).recovery(4) is None


def test_a_probe_is_the_first_request_after_quiet() -> None:
    made = record()
    made.begun = [(5.0, 1), (5.1, 2), (5.4, 1), (8.0, 2), (8.1, 1), (8.2, 1), (11.0, 1), (30.0, 2)]
    assert made.probes(5, 15) == [8.0, 8.1]


def test_the_fullest_slot() -> None:
    assert fullest([], 1.0) == 0.0
    assert fullest([1.0, 2.0, 3.0, 4.0], 1.0) == 0.25
    assert fullest([1.0, 1.9, 2.5, 2.8], 1.0) == 0.75
