"""Two drawn at random, never the same twice.

Guards against drawing with replacement, which takes the busier of two instances once in four times.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dispatch.balancing.instances import draw_two
from tests.helpers.balancers import in_turn, states


def test_every_pair_is_drawn_equally_often_and_none_with_itself() -> None:
    candidates = states("abcd")
    pairs = Counter(
        tuple(each.id for each in draw_two(candidates, in_turn((number + 0.5) / 12).__next__)) for number in range(12)
    )
    assert pairs == {(one, other): 1 for one in "abcd" for other in "abcd" if one != other}


@pytest.mark.parametrize("count", [2, 3, 17, 256])
def test_the_ends_of_chance_are_within(count: int) -> None:
    candidates = states("x" * count)
    for number in (0.0, 1 - 2**-53):
        one, other = draw_two(candidates, in_turn(number).__next__)
        assert one is not other
