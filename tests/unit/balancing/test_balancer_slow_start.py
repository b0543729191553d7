"""Newcomers, and those who come back, get their share bit by bit, whatever the strategy.

Guards against the herd that an idle newcomer draws, and against the neighbour that gets two shares meanwhile.
"""

from __future__ import annotations

import pytest

from dispatch.balancing.balancer import (
    MOST_CREDIT,
)
from dispatch.policy import STRATEGIES
from tests.helpers.balancers import Stand


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_when_all_are_new_nobody_is_held_back(strategy: str) -> None:
    stand = Stand("abcd", strategy, warm=False)
    names = stand.picks(400)
    assert all(names.count(name) == pytest.approx(100, abs=35) for name in "abcd")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("waited", [0, 15])
def test_a_newcomer_gets_its_part_of_a_share_and_the_others_share_the_rest_alike(strategy: str, waited: float) -> None:
    stand = Stand("abcd", strategy, warm=False)
    stand.wait(100)
    stand.balancer.add("e")
    stand.wait(waited)
    names = stand.picks(2000)
    part = 0.1 if not waited else 0.5
    assert names.count("e") == pytest.approx(400 * part, abs=3)
    assert all(names.count(name) == pytest.approx((2000 - 400 * part) / 4, rel=0.1) for name in "abcd")
    stand.wait(30)
    names = stand.picks(2000)
    assert all(names.count(name) == pytest.approx(400, rel=0.15) for name in "abcde")


def test_the_part_of_a_newcomer_is_of_its_weight() -> None:
    stand = Stand({"a": 1.0, "b": 2.0}, "weighted", warm=False)
    stand.wait(100)
    stand.balancer.add("c", 5.0)
    assert stand.picks(8000).count("c") == pytest.approx(8000 * 0.1 * 5 / 8, abs=2)
    stand = Stand({"a": 1.0, "b": 2.0}, "round-robin", warm=False)
    stand.wait(100)
    stand.balancer.add("c", 5.0)
    assert stand.picks(3000).count("c") == pytest.approx(100, abs=2)


def test_among_newcomers_the_warmest_is_not_held_back() -> None:
    stand = Stand("a", warm=False, slow_start_window=20)
    stand.wait(10)
    stand.balancer.add("b")
    assert stand.picks(1000).count("b") == pytest.approx(100, abs=1)
    assert (stand.state("a").level, stand.state("b").level) == (0.5, 0.1)


def test_a_retry_that_must_take_a_newcomer_is_booked_and_not_without_end() -> None:
    stand = Stand("a", warm=False)
    stand.wait(100)
    stand.balancer.add("b")
    for _ in range(50):
        assert stand.pick("a").instance == "b"
    assert stand.state("b").credit == pytest.approx(-MOST_CREDIT, abs=0.06)
    assert stand.picks(59).count("b") == 0
    assert stand.picks(10).count("b") == 1


def test_turns_that_a_newcomer_did_not_take_are_not_saved_without_end() -> None:
    stand = Stand("a", "least-request", warm=False)
    stand.wait(100)
    stand.balancer.add("b")
    stand.state("b").in_flight = 10**6
    stand.picks(500)
    assert stand.state("b").credit == MOST_CREDIT
    stand.state("b").in_flight = 0
    assert stand.picks(20).count("b") in (2, 3)


def test_a_refused_warm_one_makes_way_for_a_newcomer() -> None:
    stand = Stand("a", warm=False, admits=lambda id: id != "a")
    stand.wait(100)
    stand.balancer.add("b")
    assert stand.picks(5) == "bbbbb"


def test_in_panic_nobody_is_held_back() -> None:
    stand = Stand("abcd", warm=False)
    stand.wait(100)
    stand.eject("a")
    stand.eject("b")
    stand.balancer.replace("abe")
    assert sorted(stand.pick().instance for _ in range(3)) == ["a", "b", "e"]


def test_a_new_weight_changes_a_newcomers_part_at_once() -> None:
    stand = Stand({"a": 1.0}, "weighted", warm=False)
    stand.wait(100)
    stand.balancer.add("b", 1.0)
    stand.pick()
    assert stand.state("b").gain == pytest.approx(0.1 / 2)
    stand.balancer.add("b", 3.0)
    stand.pick()
    assert stand.state("b").gain == pytest.approx(0.1 * 3 / 4)
