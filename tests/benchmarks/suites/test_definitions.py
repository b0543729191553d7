"""The suites and their choice by name."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.harness.plan import DEFAULT, QUICK, estimated_seconds, rotated
from benchmarks.suites.definitions import (
    CLIENTS,
    FAN_IN,
    FLEETS,
    LOSSES,
    QUICK_SUITES,
    SUITES,
    SYSTEMS,
    chosen,
    without_former,
)


def test_over_as_many_rounds_as_contenders_each_has_been_everywhere() -> None:
    for suite in SUITES:
        orders = [rotated(suite.contenders, number) for number in range(len(suite.contenders))]
        for position in range(len(suite.contenders)):
            assert {order[position] for order in orders} == set(suite.contenders)


def test_the_plan_is_whole() -> None:
    assert len({suite.name for suite in SUITES}) == len(SUITES)
    for suite in SUITES:
        assert len({c.name for c in suite.contenders}) == len(suite.contenders)
        for contender in suite.contenders:
            assert (contender.service is None) == (suite.shared_service is not None)
            for module in (contender.client, contender.service, suite.shared_service):
                assert module is None or importlib.util.find_spec(f"benchmarks.workers.{module}") is not None


def test_four_systems_at_every_size_and_level() -> None:
    assert [suite.answer for suite in SYSTEMS] == [120, 10_000, 100_000, 1_000_000]
    for suite in SYSTEMS:
        assert [c.name for c in suite.contenders] == ["bare", "trustgraph", "before", "dispatch"]
        assert suite.levels == (1, 16, 64, 256)
        assert suite.shared_service is None
        # By then the number of lost calls that wait for their timeout is steady.
        assert suite.ramp_stretch * DEFAULT.ramp >= DEFAULT.timeout


def test_only_the_release_before_runs_its_code() -> None:
    former = {(suite.name, c.name) for suite in SUITES for c in suite.contenders if c.is_former}
    assert all(contender.startswith("before") for _, contender in former)
    assert {suite.name for suite in SUITES if any(c.is_former for c in suite.contenders)} >= {"systems-120", "open"}
    left = without_former(SUITES)
    assert not any(c.is_former for suite in left for c in suite.contenders)
    assert [suite.name for suite in left] == [suite.name for suite in SUITES]
    (only,) = chosen(["open/before"])
    assert without_former([only]) == ()


def test_many_instances_and_many_dispatchers() -> None:
    assert {c.services * c.instances for c in FAN_IN.contenders} == {20}
    assert FAN_IN.levels == (20,)
    assert {(c.clients, c.services) for c in FLEETS.contenders} == {(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)}
    assert all(suite.drop == 0.05 and suite.is_counting for suite in LOSSES)


def test_everything_is_chosen_by_default_and_one_of_them_by_name() -> None:
    assert chosen([]) == SUITES
    assert chosen([], QUICK_SUITES) == QUICK_SUITES
    (clients,) = chosen(["clients/dispatch", "clients/bare"])
    assert [c.name for c in clients.contenders] == ["bare", "dispatch"]
    assert [suite.name for suite in chosen(["topics", "clients/bare"])] == ["clients", "topics"]
    assert chosen(["clients/bare", "clients"]) == (CLIENTS,)


@pytest.mark.parametrize("name", ["client", "clients/unknown", "", "systems-120/none"])
def test_an_unknown_name_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"there is no '.*'; choose from: systems-120, .*, clients, topics, .*, clients/bare"
    ):
        chosen([name])


def test_the_estimates_are_within_the_times_of_the_help() -> None:
    # The rest of half an hour and of three minutes is for the timeouts of lost calls and a broker that starts slowly.
    assert 900 < estimated_seconds(SUITES, DEFAULT) <= 1_380
    assert estimated_seconds(QUICK_SUITES, QUICK) <= 130
    assert {suite.name for suite in QUICK_SUITES} <= {suite.name for suite in SUITES}
