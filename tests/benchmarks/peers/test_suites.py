"""The suites of the peers, their goals, and the page of a run."""

from __future__ import annotations

from benchmarks.harness.plan import LEVELS
from benchmarks.peers.page import medians, render
from benchmarks.peers.suites import BY_SIZE, OFFERS, SUITES, TARGETS
from tests.benchmarks.result_builders import measurement, results

RUN = results(
    *(
        measurement(contender.name, level, 1, suite.name, calls_per_second=100.0 * level)
        for suite in SUITES
        for contender in suite.contenders
        for level in suite.levels
    ),
    suites=SUITES,
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
