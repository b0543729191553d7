"""The least busy of all that are compared, and the weight of a slow instance's calls."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from dispatch.balancing.balancer import FALL, MUCH_SLOWER, RISE, LeastRequest
from dispatch.errors import Outcome
from tests.helpers.balancers import START, in_turn, states


def picked(names: str = "abc", now: float = START, **values: Any) -> str:
    return LeastRequest(in_turn().__next__, 8).pick(states(names, **values), now).id


def test_the_least_busy_of_all_is_picked_wherever_it_stands() -> None:
    assert picked(in_flight=(1, 2, 3)) == "a"
    assert picked(in_flight=(2, 1, 3)) == "b"
    assert picked(in_flight=(3, 2, 1)) == "c"


def test_calls_count_for_the_weight() -> None:
    assert picked(in_flight=(1, 5, 1), weight=(1.0, 4.0, 1.0)) == "b"
    assert picked(in_flight=(1, 5, 1), weight=(5.0, 4.0, 1.0)) == "a"


def test_of_equals_the_one_that_has_waited_longest() -> None:
    assert picked(order=(5, 3, 4)) == "b"
    assert picked(order=(3, 4, 5)) == "a"
    assert picked(order=(5, 4, 3)) == "c"
    assert picked() == "a"


def test_a_much_slower_one_has_to_be_much_less_busy_as_long_as_that_is_fresh() -> None:
    slow: dict[str, Any] = {"in_flight": (0, 1, 2), "brake": (4.0, 1.0, 1.0)}
    assert picked(**slow) == "b"
    assert picked(now=START + 9.99, **slow) == "b"
    assert picked(now=START + 10, **slow) == "a"
    last: dict[str, Any] = {"in_flight": (2, 1, 0), "brake": (1.0, 1.0, 4.0)}
    assert picked(**last) == "b"
    assert picked(now=START + 9.99, **last) == "b"
    assert picked(now=START + 10, **last) == "c"


def test_as_many_choices_as_instances_compare_all_and_fewer_are_drawn() -> None:
    eight = states("abcdefgh", in_flight=(9, 9, 9, 9, 9, 9, 9, 0))
    chance = random.Random(1).random
    assert {LeastRequest(chance, 8).pick(eight, START).id for _ in range(200)} == {"h"}
    assert len({LeastRequest(chance, 7).pick(eight, START).id for _ in range(200)}) > 1


@pytest.mark.parametrize("count", [3, 5])
def test_so_many_different_instances_are_drawn_each_equally_often(count: int) -> None:
    """The least busy of eight is picked exactly as often as it is among those drawn."""
    eight, chance = states("abcdefgh", in_flight=(9, 9, 9, 0, 9, 9, 9, 9)), random.Random(3).random
    drawn = Counter(LeastRequest(chance, count).pick(eight, START).id for _ in range(4_000))
    assert drawn["d"] == pytest.approx(4_000 * count / 8, rel=0.06)
    assert [len({each.id for each in LeastRequest(chance, count)._draw(eight, count)}) for _ in range(50)] == [
        count
    ] * 50


def of_two(now: float = START, **values: Any) -> str:
    """The instance picked of a and b."""
    return LeastRequest(in_turn().__next__, 2).pick(states("ab", **values), now).id


def test_the_less_busy_one_is_picked() -> None:
    assert of_two(in_flight=(3, 4), order=(9, 1)) == "a"
    assert of_two(in_flight=(4, 3), order=(1, 9)) == "b"


def test_of_two_calls_count_for_the_weight() -> None:
    assert of_two(in_flight=(5, 2), weight=(3.0, 1.0)) == "a"  # 6/3 against 3/1
    assert of_two(in_flight=(5, 0), weight=(3.0, 1.0)) == "b"


def test_of_equals_the_one_that_has_waited_longer() -> None:
    assert of_two(order=(7, 3)) == "b"
    assert of_two(order=(3, 7)) == "a"
    same = states("ab")
    assert LeastRequest(in_turn().__next__, 2).pick(same, START) is same[0]


def test_calls_of_a_much_slower_one_count_for_more_as_long_as_that_is_fresh() -> None:
    slow = {"in_flight": (0, 3), "brake": (5.0, 1.0), "stamp": (START, START)}
    assert of_two(now=START + 9.99, **slow) == "b"
    assert of_two(now=START + 10, **slow) == "a"
    assert of_two(in_flight=(0, 5), brake=(5.0, 1.0)) == "a"


def told(*calls: tuple[int, float]) -> tuple[LeastRequest, list[Any]]:
    """A strategy that was told of answers: which instance, and after how long. All at the same moment, far apart."""
    strategy, made = LeastRequest(random.Random(1).random, 2, 1.0), states("ab")
    for number, (index, seconds) in enumerate(calls):
        strategy.learn(made[index], Outcome.SUCCESS, seconds, None, START + 1e6 * number)
    return strategy, made


def test_what_is_usual_is_what_the_first_answer_took() -> None:
    strategy, made = told((0, 2.0))
    assert (strategy.usual, made[0].brake) == (2.0, 1.0)


def test_what_is_usual_rises_slowly_and_falls_faster_and_never_passes_what_was_seen() -> None:
    assert told((0, 2.0), (1, 3.0))[0].usual == 2.0 * RISE
    assert told((0, 2.0), (1, 2.01))[0].usual == 2.01
    assert told((0, 2.0), (1, 1.0))[0].usual == 2.0 * FALL
    assert told((0, 2.0), (1, 1.99))[0].usual == 1.99
    assert RISE < 2 - FALL, "it settles where the faster ones are"


def test_one_much_slower_than_usual_is_braked_as_many_times_as_it_is_slower() -> None:
    strategy, made = told((0, 1.0), (1, 10.1))
    assert made[1].brake == pytest.approx(10.1 / RISE)
    strategy.learn(made[1], Outcome.SUCCESS, 1.0, None, START + 1e9)
    assert made[1].brake == 1.0


def test_twice_as_slow_is_not_yet_much_slower() -> None:
    strategy, made = told((0, 1.0))
    strategy.learn(made[1], Outcome.SUCCESS, MUCH_SLOWER * RISE, None, START)
    assert made[1].brake == 1.0
    strategy, made = told((0, 1.0))
    strategy.learn(made[1], Outcome.SUCCESS, MUCH_SLOWER * RISE * 1.001, None, START)
    assert made[1].brake == pytest.approx(2.002)


def test_failures_of_an_instance_of_which_nothing_is_known_teach_nothing() -> None:
    strategy, made = told()
    strategy.learn(made[0], Outcome.TRANSPORT, 1.0, None, START)
    assert (strategy.usual, made[0].brake) == (0.0, 1.0)


def test_of_many_only_two_are_compared() -> None:
    drawn = Counter(
        LeastRequest(random.Random(seed).random, 2).pick(states("abcdefgh", in_flight=range(8)), START).id
        for seed in range(2000)
    )
    assert "h" not in drawn, "the busiest of all loses against anyone"
    assert drawn["a"] == pytest.approx(2000 / 4, rel=0.2), "the least busy one is drawn in a quarter of all pairs"
