"""How long an instance takes, as strategies learn it.

Guards against the black hole: an instance that fails at once looks like the fastest of all and gets every call.
"""

from __future__ import annotations

import math

import pytest

from dispatch.balancing.instances import LEAST_S, MOST_OTHERS, NEVER, InstanceState, Learning, Strategy
from dispatch.errors import Outcome
from tests.helpers.balancers import START


class Peaks(Learning):
    peaks = True


def test_of_a_new_instance_nothing_is_known() -> None:
    made = InstanceState("a", 2.0, START)
    assert {name: getattr(made, name) for name in InstanceState.__slots__} == {
        **dict.fromkeys(("in_flight", "order", "place", "cost", "others", "current", "failures", "good", "bad"), 0),
        **dict.fromkeys(
            (
                "times",
                "timed",
                "slowness",
                "spread",
                "ejections",
                "epoch",
                "paused_until",
                "gain",
                "credit",
                "answered",
            ),
            0,
        ),
        **dict.fromkeys(("stamp", "others_at", "well_since", "warm_from", "joined"), START),
        "id": "a",
        "weight": 2.0,
        "brake": 1.0,
        "probe_at": NEVER,
        "level": 1.0,
        "ejected_until": None,
        "is_held": False,
        "sick": False,
        "member": True,
    }


def state(cost: float = 0.0) -> InstanceState:
    made = InstanceState("a", 1.0, START)
    made.cost = cost
    return made


@pytest.mark.parametrize("how", [Learning, Peaks])
@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.TOOL_ERROR])
def test_the_first_answer_says_how_long_it_takes(how: type[Learning], outcome: Outcome) -> None:
    made = state()
    how(10.0).learn(made, outcome, 0.5, None, START + 3)
    assert (made.cost, made.stamp) == (0.5, START + 3)


@pytest.mark.parametrize("how", [Learning, Peaks])
def test_an_answer_that_took_no_time_is_known_all_the_same(how: type[Learning]) -> None:
    made = state()
    how(10.0).learn(made, Outcome.SUCCESS, 0.0, None, START)
    assert made.cost == LEAST_S
    made.cost = 1.0
    how(10.0).learn(made, Outcome.SUCCESS, 0.0, None, START + 1e6)
    assert made.cost == LEAST_S


@pytest.mark.parametrize("how", [Learning, Peaks])
def test_a_fall_is_followed_as_time_passes(how: type[Learning]) -> None:
    made = state(cost=1.0)
    how(10.0).learn(made, Outcome.SUCCESS, 0.2, None, START + 10)
    assert made.cost == pytest.approx(1.0 / math.e + 0.2 * (1 - 1 / math.e))
    assert made.stamp == START + 10


def test_a_rise_is_followed_as_time_passes_by_an_average() -> None:
    made = state(cost=1.0)
    Learning(5.0).learn(made, Outcome.SUCCESS, 2.0, None, START + 5)
    assert made.cost == pytest.approx(1.0 / math.e + 2.0 * (1 - 1 / math.e))


def test_a_rise_is_followed_at_once_by_a_peak() -> None:
    made = state(cost=1.0)
    Peaks(5.0).learn(made, Outcome.SUCCESS, 2.0, None, START + 5)
    assert (made.cost, made.stamp) == (2.0, START + 5)
    Peaks(5.0).learn(made, Outcome.SUCCESS, 2.0, None, START + 7)
    assert (made.cost, made.stamp) == (2.0, START + 7)


@pytest.mark.parametrize("how", [Learning, Peaks])
@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CANCELLED])
def test_what_ended_without_an_answer_took_so_long_at_least(how: type[Learning], outcome: Outcome) -> None:
    made = state(cost=1.0)
    how(10.0).learn(made, outcome, 1.0, None, START)
    assert (made.cost, made.stamp) == (1.0, START)
    how(10.0).learn(made, outcome, 0.3, None, START + 10)  # 1.0 has faded to 0.37
    assert (made.cost, made.stamp) == (1.0, START)
    how(10.0).learn(made, outcome, 0.4, None, START + 10)
    assert (made.cost, made.stamp) == (0.4, START + 10)


@pytest.mark.parametrize("outcome", [Outcome.TRANSPORT, Outcome.THROTTLED, Outcome.REJECTED, Outcome.INVALID_ARGUMENTS])
def test_what_was_refused_says_nothing_of_how_long_an_answer_takes(outcome: Outcome) -> None:
    for cost in (0.0, 1.0):
        made = state(cost=cost)
        Peaks(10.0).learn(made, outcome, 5.0, None, START + 10)
        assert (made.cost, made.stamp) == (cost, START)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_any_reply_tells_how_many_calls_the_instance_has_from_others(outcome: Outcome) -> None:
    made = state()
    made.in_flight = 2
    Learning(10.0).learn(made, outcome, 1.0, 8, START + 1)
    assert (made.others, made.others_at) == (5, START + 1)
    Learning(10.0).learn(made, outcome, 1.0, None, START + 2)
    assert (made.others, made.others_at) == (5, START + 1)
    Learning(10.0).learn(made, outcome, 1.0, 4, START + 3)
    assert (made.others, made.others_at) == (1, START + 3)
    Learning(10.0).learn(made, outcome, 1.0, 1, START + 4)
    assert (made.others, made.others_at) == (0, START + 4)


def test_a_count_that_cannot_be_is_not_believed() -> None:
    made = state()
    Learning(10.0).learn(made, Outcome.SUCCESS, 1.0, 10**400, START)
    assert made.others == MOST_OTHERS
    Learning(10.0).learn(made, Outcome.SUCCESS, 1.0, -5, START)
    assert made.others == 0


def test_who_needs_to_know_nothing_learns_nothing() -> None:
    made = state()
    assert not Strategy.learns
    Strategy().learn(made, Outcome.SUCCESS, 1.0, 9, START + 1)
    assert (made.cost, made.others, made.stamp) == (0.0, 0, START)
