"""The verdict on a fleet: which share of its limit must be used when."""

from __future__ import annotations

import pytest

from benchmarks.fleet import __main__ as programme
from benchmarks.fleet.__main__ import Period, tabulate

EVENTS = ("demand", "demand", "one killed", "demand", "demand", "broker restarted", "demand", "demand", "demand")
PERIODS = [Period(event, 10.0 * number, 10.0 * number + 10.0, 60.0) for number, event in enumerate(EVENTS)]


@pytest.mark.parametrize(
    ("changed", "is_met"),
    [
        ({}, True),
        ({2: 0.5}, True),
        ({2: 0.5, 3: 0.65}, False),  # the whole limit is back within ten seconds
        ({5: 0.6, 6: 0.7}, True),
        ({5: 0.5}, False),  # without the broker each keeps its share, and then has an equal one
        ({0: 0.95, 1: 0.95, 3: 0.96, 4: 0.95, 7: 0.95, 8: 0.95}, True),
        ({4: 0.65}, False),
        ({2: 1.2}, False),  # the limit is not exceeded while there are faults
    ],
)
def test_the_limit_is_used_except_in_faults(changed: dict[int, float], is_met: bool) -> None:
    gaps = {number: 0.01 / changed.get(number, 1.0) for number in range(len(PERIODS))}
    admitted = [
        (period.begin + step * gaps[number], "ann")
        for number, period in enumerate(PERIODS)
        for step in range(round(10.0 / gaps[number]))
    ]
    table, found = tabulate(admitted, PERIODS)
    assert found == is_met, f"\n{table}"


def test_the_cost_of_a_call_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programme ended with "no running event loop" before it measured anything."""
    monkeypatch.setattr(programme, "CALLS", 100)
    assert min(programme.measure_cost()) > 0.0
