"""Each in turn."""

from __future__ import annotations

import pytest

from dispatch.balancing.balancer import RoundRobin
from tests.helpers.balancers import START, states


def test_each_has_its_turn_from_the_first_on() -> None:
    strategy, candidates = RoundRobin(), states("abc", weight=(1.0, 9.0, 1.0))
    assert "".join(strategy.pick(candidates, START).id for _ in range(7)) == "abcabca"


@pytest.mark.parametrize("taken_back", [False, True])
def test_one_that_is_left_out_again_and_again_gives_its_turns_to_all_others_alike(taken_back: bool) -> None:
    strategy, candidates = RoundRobin(), states("abcd")
    names = ""
    for _ in range(1200):
        picked = strategy.pick(candidates, START)
        if picked.id == "b":
            if taken_back:
                strategy.undo_pick()
            picked = strategy.pick([each for each in candidates if each.id != "b"], START)
        names += picked.id
    assert [names.count(name) for name in "abcd"] == [400, 0, 400, 400]


def test_whoever_comes_back_has_its_turn_where_it_stands() -> None:
    strategy, candidates = RoundRobin(), states("abcd")
    without = [candidates[0], candidates[2], candidates[3]]
    turns = [candidates, without, candidates, without, without, without, candidates, candidates]
    assert "".join(strategy.pick(each, START).id for each in turns) == "acdacdab"


def test_who_is_last_is_followed_by_the_first_of_any_candidates() -> None:
    strategy, candidates = RoundRobin(), states("abc")
    assert [strategy.pick(each, START).id for each in (candidates[1:], candidates[2:], candidates[:2])] == [
        "b",
        "c",
        "a",
    ]


def test_a_refused_turn_is_had_by_whoever_comes_after_the_last_that_took_one() -> None:
    strategy, candidates = RoundRobin(), states("abc")
    assert strategy.pick(candidates, START).id == "a"
    assert strategy.pick(candidates, START).id == "b"
    strategy.undo_pick()
    assert strategy.pick(candidates, START).id == "b"
    assert strategy.pick([candidates[0], candidates[2]], START).id == "c"
    strategy.undo_pick()
    assert strategy.pick(candidates, START).id == "c"
    assert strategy.pick(candidates, START).id == "a"
