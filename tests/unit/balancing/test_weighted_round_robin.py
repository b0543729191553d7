"""Smooth weighted round-robin."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.balancing.balancer import SmoothWeighted
from tests.helpers.balancers import START, states
from tests.helpers.run_profile import examples


def picked(count: int, *weights: float) -> str:
    strategy, candidates = SmoothWeighted(), states("abcdefgh"[: len(weights)], weight=weights)
    return "".join(strategy.pick(candidates, START).id for _ in range(count))


def test_the_heavy_one_is_mixed_evenly_with_the_light_ones() -> None:
    assert picked(14, 5.0, 1.0, 1.0) == "aabacaa" * 2


def test_equal_weights_take_turns() -> None:
    assert picked(6, 2.0, 2.0, 2.0) == "abcabc"


@given(st.lists(st.integers(1, 9), min_size=2, max_size=8))
@settings(max_examples=examples(50), deadline=None)
def test_in_each_round_everyone_gets_exactly_its_weight(weights: list[int]) -> None:
    total = sum(weights)
    names = picked(2 * total, *map(float, weights))
    assert names[:total] == names[total:]
    assert [names[:total].count(name) for name, _ in zip("abcdefgh", weights, strict=False)] == weights


def test_one_that_is_left_out_for_a_while_does_not_make_up_for_it() -> None:
    strategy, candidates = SmoothWeighted(), states("abc")
    for _ in range(300):
        strategy.pick(candidates[1:], START)
    names = "".join(strategy.pick(candidates, START).id for _ in range(30))
    assert [names.count(name) for name in "abc"] == [10, 10, 10]
