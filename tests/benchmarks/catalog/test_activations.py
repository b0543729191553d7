"""Over many activations the memory, the tasks and the threads of a dispatcher stay constant, and no call fails."""

from __future__ import annotations

import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from benchmarks.catalog.activations import GROWTH_KIB, ActivationFigures, describe_activations, measure_activations
from tests.helpers.run_profile import by_profile

ACTIVATIONS = by_profile(short=400, long=10_000)


@pytest.mark.long
def test_nothing_grows_over_many_activations() -> None:
    # In a process of its own: what other tests have left in this one can grow during the measurement.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=logging.disable) as processes:
        figures = processes.submit(measure_activations, ACTIVATIONS).result()
    report = describe_activations(figures)
    assert figures.activations == ACTIVATIONS
    assert figures.failed_calls == 0, report
    assert len({*figures.tasks}) == len({*figures.threads}) == 1, report
    assert figures.growth_kib <= GROWTH_KIB, report


def test_the_report_says_what_grows() -> None:
    figures = ActivationFigures(4, [100.0, 100.0, 100.0, 180.0], [4] * 4, [2] * 4, 1)
    text = describe_activations(figures)
    assert "growth 80.0 KiB; promised ≤ 64.0 KiB: MISSED" in text
    assert "1 calls failed" in text
    assert "MISSED" not in describe_activations(ActivationFigures(4, [100.0] * 4, [4] * 4, [2] * 4))
