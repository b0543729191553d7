"""The suites of the peers, their goals, and the page of a run."""

from __future__ import annotations

from benchmarks.harness.environment import Setting
from benchmarks.harness.plan import LEVELS, Settings
from benchmarks.harness.results import Measurement, Results
from benchmarks.peers.page import medians, render
from benchmarks.peers.suites import BY_SIZE, OFFERS, SUITES, TARGETS

SETTING = Setting(
    date="2026-11-26T12:00:00+00:00",
    machine={"processors": 2, "load_before": 0.1},
    versions={"python": "CPython 3.11", "pulsar-client": "3.13.0"},
    broker={"version": "4.0.6"},
)
RUN = Results(
    SETTING,
    Settings(rounds=1),
    SUITES,
    tuple(
        Measurement(
            suite.name, each.name, level, 1, 1, 1.0, 2.0, 3.0, 100.0 * level, 10.0, 5.0, None, 0.0, 1.0, 9, 9, 0
        )
        for suite in SUITES
        for each in suite.contenders
        for level in suite.levels
    ),
)


def test_goals_are_of_contenders_that_are_measured() -> None:
    known = {(suite.name, contender.name) for suite in SUITES for contender in suite.contenders}
    for ratio in TARGETS:
        assert {(ratio.suite, name) for name in (ratio.over, ratio.under) if name is not None} <= known


def test_each_contender_says_what_it_offers() -> None:
    assert {contender.name for suite in SUITES for contender in suite.contenders} == set(OFFERS)


def test_the_page_has_a_row_for_each_system() -> None:
    lines = render(RUN).splitlines()
    cells = " | ".join(f"{100 * level:,} (1.00)" for level in LEVELS)
    assert sum(line.startswith(f"| NATS, nats-py | {cells} | ") for line in lines) == len(BY_SIZE)
    assert medians(RUN)["peers-120"]["nats"]["64"]["calls_per_second"] == 6_400
