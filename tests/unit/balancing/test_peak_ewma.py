"""The one that will probably answer sooner."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatch.balancing.balancer import UNKNOWN, PeakEwma
from tests.helpers.balancers import START, in_turn, states


def load(now: float = START, **values: Any) -> float:
    return PeakEwma(in_turn().__next__, 10.0).load(
        states("a", **{key: (value,) for key, value in values.items()})[0], now
    )


def of_two(now: float = START, **values: Any) -> str:
    """Who is picked of a and b, in both orders of drawing."""
    found = {PeakEwma(in_turn(number).__next__, 10.0).pick(states("ab", **values), now).id for number in (0.25, 0.75)}
    assert len(found) == 1
    return found.pop()


def test_the_load_is_how_long_each_call_takes_times_the_calls() -> None:
    assert load(cost=0.2) == pytest.approx(0.2)
    assert load(cost=0.2, in_flight=4) == pytest.approx(1.0)
    assert load(cost=0.2, in_flight=4, weight=2.0) == pytest.approx(0.5)


def test_what_is_known_fades() -> None:
    assert load(START + 10, cost=0.2) == pytest.approx(0.2 / math.e)
    assert load(START + 1e9, cost=0.2) == 0.0


def test_calls_of_others_count_and_fade_too() -> None:
    assert load(cost=0.2, in_flight=1, others=3) == pytest.approx(1.0)
    assert load(START + 10, cost=0.2, others=2, stamp=START + 10) == pytest.approx(0.2 * (1 + 2 / math.e))


def test_of_an_unknown_instance_one_call_is_enough_for_a_start() -> None:
    assert load() == 0.0
    assert load(in_flight=2, weight=5.0) == 2 * UNKNOWN
    assert of_two(cost=(0.0, 0.1)) == "a"
    assert of_two(cost=(0.0, 100.0), in_flight=(1, 200)) == "b"


def test_the_one_that_will_answer_sooner_is_picked() -> None:
    assert of_two(cost=(0.1, 0.3), in_flight=(1, 0), order=(2, 1)) == "a"
    assert of_two(cost=(0.1, 0.3), in_flight=(3, 0), order=(1, 2)) == "b"


def test_of_equals_the_one_that_has_waited_longer() -> None:
    assert of_two(cost=(0.1, 0.1), order=(5, 4)) == "b"
    assert of_two(cost=(0.1, 0.1), order=(4, 5)) == "a"
    same = states("ab")
    assert PeakEwma(in_turn(0.0).__next__, 10.0).pick(same, START) is same[0]


def test_it_follows_a_rise_at_once() -> None:
    assert PeakEwma.peaks
