"""Suites, their order and the estimate of their duration."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.harness.plan import (
    BASIC,
    DEFAULT,
    DELIVERY,
    LEVELS,
    QUICK,
    SUITES,
    Settings,
    chosen,
    estimated_seconds,
    rotated,
)


def test_every_round_begins_with_another() -> None:
    assert [rotated("ABC", number) for number in range(4)] == [list("ABC"), list("BCA"), list("CAB"), list("ABC")]
    assert rotated([], 3) == []


def test_over_as_many_rounds_as_contenders_each_has_been_everywhere() -> None:
    for suite in SUITES:
        orders = [rotated(suite.contenders, number) for number in range(len(suite.contenders))]
        for position in range(len(suite.contenders)):
            assert {order[position] for order in orders} == set(suite.contenders)


def test_the_plan_is_whole() -> None:
    assert LEVELS == (1, 16, 64, 256)
    for suite in SUITES:
        assert len({c.name for c in suite.contenders}) == len(suite.contenders)
        for contender in suite.contenders:
            assert (contender.service is None) == (suite.shared_service is not None)
            for module in (contender.client, contender.service, suite.shared_service):
                assert module is None or importlib.util.find_spec(f"benchmarks.workers.{module}") is not None


def test_everything_is_chosen_by_default_and_one_of_them_by_name() -> None:
    assert chosen([]) == SUITES
    (services,) = chosen(["services"])
    assert services is SUITES[1] or services == SUITES[1]
    (clients,) = chosen(["clients/dispatch", "clients/bare"])
    assert [c.name for c in clients.contenders] == ["bare", "dispatch"]
    assert [suite.name for suite in chosen(["topics", "clients/bare"])] == ["clients", "topics"]
    assert chosen(["clients/bare", "clients"]) == SUITES[:1]


@pytest.mark.parametrize("name", ["client", "clients/unknown", "", "services/bare"])
def test_an_unknown_name_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"there is no '.*'; choose from: clients, services, topics, guards, telemetry, answers-120, .*, clients/bare",
    ):
        chosen([name])


def test_shorter_measurements_shorten_the_rest() -> None:
    short = DEFAULT.lasting(0.1)
    assert short == Settings(rounds=5, seconds=0.1, ramp=0.033, warm_up=0.1, warm_broker=2.0, timeout=2.0)
    assert DEFAULT.lasting(DEFAULT.seconds) == DEFAULT
    assert DEFAULT.lasting(10.0).ramp == DEFAULT.ramp


def test_the_estimates_keep_to_what_is_promised() -> None:
    # With half a minute left for a broker that starts slowly and for lost calls, and ten seconds in a quick run.
    assert 600 < estimated_seconds(SUITES, DEFAULT) <= 930
    assert estimated_seconds(BASIC, QUICK) <= 50


def test_what_is_lost_is_measured_once_it_is_as_much_as_ever() -> None:
    for suite in DELIVERY:
        assert suite.ramp_stretch * DEFAULT.ramp >= DEFAULT.timeout
        assert suite.rounds_of(DEFAULT) == 2
        assert suite.rounds_of(QUICK) == 1
    assert {suite.answer for suite in BASIC} == {120}
    assert estimated_seconds(SUITES[:1], QUICK) < estimated_seconds(SUITES, QUICK)
