"""The least busy of a few; of many, of two."""

from __future__ import annotations

import random
from typing import Any

from dispatch.balancing.least_request import LeastRequest
from tests.helpers.balancers import START, in_turn, states


def picked(names: str = "abc", now: float = START, **values: Any) -> str:
    return LeastRequest(in_turn().__next__, 10.0, 8).pick(states(names, **values), now).id


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


def test_up_to_the_scan_all_are_looked_at_and_beyond_it_two() -> None:
    eight = states("abcdefgh", in_flight=(9, 9, 9, 9, 9, 9, 9, 0))
    chance = random.Random(1).random
    assert {LeastRequest(chance, 10.0, 8).pick(eight, START).id for _ in range(200)} == {"h"}
    assert len({LeastRequest(chance, 10.0, 7).pick(eight, START).id for _ in range(200)}) == 8
