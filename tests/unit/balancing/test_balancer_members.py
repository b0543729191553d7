"""Instances come and go, and what is known of them stays.

Guards against flapping membership that makes an ejection be forgotten, and against books of those that have gone.
"""

from __future__ import annotations

import math

import pytest

from dispatch.balancing.balancer import (
    MAX_FORMER,
    MAX_INSTANCES,
    NO_INSTANCE,
    Pick,
)
from dispatch.errors import Outcome
from tests.helpers.balancers import START, Stand


def test_instances_come_and_go() -> None:
    stand = Stand("ab")
    assert stand.balancer.add("c")
    assert (len(stand.balancer), "c" in stand.balancer, "d" in stand.balancer) == (3, True, False)
    assert sorted(stand.picks(3)) == ["a", "b", "c"]
    assert stand.balancer.remove("a")
    assert not stand.balancer.remove("a")
    assert sorted(stand.picks(2)) == ["b", "c"]


def test_replacing_keeps_what_is_known_of_those_that_stay() -> None:
    stand = Stand("abc")
    stand.eject("a")
    kept = stand.pick()
    stand.balancer.replace({"a": 1.0, kept.instance: 2.0, "z": 3.0})
    assert {view.id: (view.state, view.weight) for view in stand.balancer.instances()} == {
        "a": ("ejected", 1.0),
        kept.instance: ("up", 2.0),
        "z": ("up", 3.0),
    }
    assert stand.state(kept.instance).in_flight == 1
    kept.finish(Outcome.SUCCESS)
    assert stand.state(kept.instance).in_flight == 0


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf])
def test_a_weight_is_above_0_and_a_wrong_one_changes_nothing(weight: float) -> None:
    stand = Stand("ab")
    with pytest.raises(ValueError, match="the weight of 'c' must be a number above 0"):
        stand.balancer.add("c", weight)
    with pytest.raises(ValueError, match="the weight of 'c'"):
        stand.balancer.replace({"x": 1.0, "c": weight})
    assert [view.id for view in stand.balancer.instances()] == ["a", "b"]


def test_a_new_weight_is_used_from_the_next_pick_on() -> None:
    stand = Stand({"a": 1.0, "b": 1.0}, "weighted")
    stand.picks(2)
    assert stand.balancer.add("a", 3.0)
    assert sorted(stand.picks(8)) == ["a"] * 6 + ["b"] * 2


def test_there_are_never_more_instances_than_allowed() -> None:
    stand = Stand([f"i{number}" for number in range(MAX_INSTANCES + 5)])
    assert len(stand.balancer) == MAX_INSTANCES
    assert not stand.balancer.add("more")
    assert stand.balancer.add("i0", 5.0), "a known one may change"
    stand.balancer.remove("i0")
    assert stand.balancer.add("more")


def test_one_that_comes_and_goes_stays_ejected() -> None:
    stand = Stand("ab", panic_threshold=0)
    stand.eject("a")
    stand.balancer.remove("a")
    assert stand.balancer._detector.ejected == 0
    stand.wait(10)
    stand.balancer.add("a")
    assert stand.balancer._detector.ejected == 1
    assert stand.picks(3) == "bbb"
    stand.wait(20)
    assert "a" in stand.picks(2)
    assert stand.changes == [("a", "ejected", "failures"), ("a", "returned", "over")]


def test_one_that_comes_back_after_its_ejection_has_ended_returns_in_proper_form() -> None:
    stand = Stand("ab")
    stand.eject("a")
    stand.balancer.remove("a")
    stand.wait(40)
    stand.balancer.add("a")
    stand.pick()
    assert stand.changes[1:] == [("a", "returned", "over")]
    assert (stand.state("a").times, stand.balancer._detector.ejected) == (1, 0)


def test_one_that_was_gone_for_long_starts_afresh() -> None:
    for gone, remembered in ((599.9, 1), (600, 0)):
        stand = Stand("ab")
        stand.eject("a")
        stand.balancer.remove("a")
        stand.wait(gone)
        stand.balancer.add("a")
        assert stand.state("a").ejections == remembered


def test_what_ends_after_its_instance_has_gone_is_booked_and_ejects_nobody() -> None:
    stand = Stand("abc")
    picks = [stand.pick() for _ in range(18)]
    mine = [pick for pick in picks if pick.instance == "a"]
    state = stand.state("a")
    stand.balancer.remove("a")
    for pick in mine:
        pick.finish(Outcome.TIMEOUT)
    assert (state.in_flight, state.failures, stand.changes) == (0, 6, [])
    stand.balancer.add("a", 2.0)
    assert stand.state("a") is state
    stand.end("a", Outcome.TIMEOUT)
    assert stand.changes == [("a", "ejected", "failures")]


def test_an_answer_of_one_that_was_ejected_and_has_gone_changes_no_books() -> None:
    stand = Stand("ab")
    stand.eject("a")
    state = stand.state("a")
    late = Pick("a", START, True, stand.balancer, state, state.epoch)
    state.in_flight += 1
    stand.balancer.remove("a")
    late.finish(Outcome.SUCCESS)
    assert stand.balancer._detector.ejected == 0
    assert state.ejected_until == START + 30
    assert len(stand.changes) == 1


def test_former_instances_are_remembered_in_bounds_the_latest_ones() -> None:
    stand = Stand("ab")
    for number in range(MAX_FORMER + 50):
        stand.balancer.add(f"i{number}")
        stand.balancer.remove(f"i{number}")
    assert list(stand.balancer._former) == [f"i{number}" for number in range(50, MAX_FORMER + 50)]


def test_a_new_life_begins_afresh_and_slowly() -> None:
    stand = Stand("ab", warm=False)
    stand.wait(60.0)
    stand.eject("a")
    late = stand.state("a")
    stand.balancer.reset_instance("a")
    fresh = stand.state("a")
    assert fresh is not late
    assert (fresh.failures, fresh.ejected_until, fresh.ejections) == (0, None, 0)
    assert {each.id: each.state for each in stand.balancer.instances()} == {"a": "warming", "b": "up"}
    stand.balancer.reset_instance("nobody")
    assert set(stand.balancer._members) == {"a", "b"}


def test_one_instance_and_no_other_can_be_asked_for_whoever_is_due() -> None:
    stand = Stand("ab")
    picked = stand.balancer.pick_instance("b")
    assert isinstance(picked, Pick)
    assert picked.instance == "b"
    again = stand.balancer.pick_instance("b")
    assert isinstance(again, Pick)
    assert stand.state("b").in_flight == 2
    assert stand.balancer.pick_instance("nobody") is NO_INSTANCE


def test_a_glimpse_says_what_is_and_works_nothing_out() -> None:
    stand = Stand("ab", base_ejection_time=1.0)
    stand.eject("a")
    assert [each.state for each in stand.balancer.peek_instances()] == ["ejected", "up"]
    stand.wait(2.0)
    told = len(stand.changes)
    assert [each.state for each in stand.balancer.peek_instances()] == ["ejected", "up"]
    assert len(stand.changes) == told
    assert [each.state for each in stand.balancer.instances()] == ["up", "up"]


def test_when_nobody_is_admitted_everybody_is_asked_all_the_same() -> None:
    stand = Stand("ab", admits=lambda _: False)
    assert stand.pick("a").instance == "b"
    picked = stand.pick("a", "b")
    assert picked.panic
    assert picked.instance in "ab"
