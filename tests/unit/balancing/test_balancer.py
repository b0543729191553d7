"""Who gets the next call: retries, breakers, panic, and the pick as a permit.

Guards against all instances being ejected with nobody left to ask, against a repeated finish that leaks a place, against
a retry that goes where the first attempt failed.
"""

from __future__ import annotations

import random
import tracemalloc

import pytest

from dispatch._internal import Rejection
from dispatch.balancing.balancer import (
    NO_INSTANCE,
    Balancer,
    LeastRequest,
    PeakEwma,
    Pick,
    RoundRobin,
    SmoothWeighted,
    make_strategy,
)
from dispatch.balancing.instances import DECAY_S, EjectionRules
from dispatch.errors import Outcome
from dispatch.policy import STRATEGIES, Balancing
from tests.helpers.balancers import START, Stand


def test_every_strategy_is_made_with_its_settings() -> None:
    kinds = {name: make_strategy(Balancing(strategy=name, choice_count=3), random.random) for name in STRATEGIES}
    assert {name: type(kind) for name, kind in kinds.items()} == {
        "round-robin": RoundRobin,
        "weighted": SmoothWeighted,
        "least-request": LeastRequest,
        "peak-ewma": PeakEwma,
    }
    for name in ("least-request", "peak-ewma"):
        assert kinds[name].decay == DECAY_S  # type: ignore[attr-defined]
    assert kinds["least-request"]._choice_count == 3  # type: ignore[attr-defined]
    assert [name for name in STRATEGIES if kinds[name].weighs] == ["weighted", "least-request", "peak-ewma"]
    assert [name for name in STRATEGIES if kinds[name].learns] == ["least-request", "peak-ewma"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_instance_gets_everything(strategy: str) -> None:
    assert Stand("a", strategy).picks(5) == "aaaaa"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_any_instance_there_is_a_rejection_that_retains_nothing(strategy: str) -> None:
    stand = Stand("", strategy)
    rejected = stand.balancer.pick()
    assert rejected == Rejection(by="balancer", reason="no-instance", retry_after=None)
    assert stand.balancer.pick(frozenset("x")) is rejected is NO_INSTANCE
    tracemalloc.start()
    try:
        stand.balancer.pick()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            stand.balancer.pick()
        assert tracemalloc.get_traced_memory()[0] - before < 500
    finally:
        tracemalloc.stop()


def test_the_pick_says_who_and_when() -> None:
    stand = Stand("a")
    pick = stand.pick()
    assert (pick.instance, pick.started, pick.panic) == ("a", START, False)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_pick_holds_its_place_until_it_is_finished_and_finishing_counts_once(outcome: Outcome) -> None:
    stand = Stand("ab")
    pick = stand.pick()
    assert stand.state("a").in_flight == 1
    pick.finish(outcome)
    counts = (stand.state("a").good, stand.state("a").bad)
    for _ in range(9):
        pick.finish(outcome)
        pick.finish(Outcome.TIMEOUT)
    assert stand.state("a").in_flight == 0
    assert (stand.state("a").good, stand.state("a").bad) == counts
    assert (stand.changes, stand.balancer.stale) == ([], 0)


def test_how_long_it_took_is_read_off_the_clock() -> None:
    stand = Stand("ab", "peak-ewma")
    pick = stand.pick()
    stand.wait(0.25)
    pick.finish(Outcome.SUCCESS, in_flight=7)
    assert stand.state(pick.instance).cost == 0.25
    assert stand.state(pick.instance).others == 6
    assert {view.id: view.latency for view in stand.balancer.instances()}[pick.instance] == 0.25
    assert None in {view.latency for view in stand.balancer.instances()}


# Retries and hedges


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_tried_is_left_out(strategy: str) -> None:
    stand = Stand("abc", strategy)
    for _ in range(20):
        assert stand.pick("a").instance in "bc"
        assert stand.pick("a", "c").instance == "b"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_tried_is_used_again_when_there_is_no_other(strategy: str) -> None:
    stand = Stand("ab", strategy)
    assert stand.pick("a", "b").instance in "ab"
    stand.eject("b")
    pick = stand.pick("a")
    assert (pick.instance, pick.panic) == ("a", False), "better than one that is ejected"


def test_a_throttled_one_is_other_enough_but_of_the_tried_ones_it_is_the_last() -> None:
    stand = Stand("ab")
    stand.end("a", Outcome.THROTTLED, retry_after=10)
    assert stand.pick("b").instance == "a"
    assert [stand.pick("a", "b").instance for _ in range(3)] == ["b"] * 3


# Requests that only some instances can serve


def test_only_capable_instances_are_picked_in_the_order_of_the_strategy() -> None:
    stand = Stand("abcd")
    picks = [stand.balancer.pick(capable=frozenset("bd")) for _ in range(4)]
    assert [pick.instance for pick in picks if isinstance(pick, Pick)] == ["b", "d", "b", "d"]
    assert stand.balancer.pick(capable=frozenset("x")) is NO_INSTANCE
    assert stand.balancer.pick(capable=frozenset()) is NO_INSTANCE


def test_of_the_capable_ones_the_tried_and_the_ejected_come_last() -> None:
    stand = Stand("abcd")
    capable = frozenset("bcd")

    def pick(*tried: str) -> tuple[str, bool]:
        pick = stand.balancer.pick(frozenset(tried), capable)
        assert isinstance(pick, Pick)
        return pick.instance, pick.panic

    stand.end("b", Outcome.THROTTLED, retry_after=10)
    stand.eject("c")
    assert {pick() for _ in range(3)} == {("d", False)}
    assert {pick("d") for _ in range(3)} == {("b", False)}
    assert {pick("d", "b") for _ in range(3)} == {("d", False)}
    capable = frozenset("c")
    assert {pick() for _ in range(3)} == {("c", True)}, "although another one is well"


# Other guards


def test_one_that_its_own_breaker_refuses_is_skipped() -> None:
    shut = {"b"}
    stand = Stand("abc", admits=lambda id: id not in shut)
    assert stand.picks(6) == "acacac"
    shut.clear()
    assert sorted(stand.picks(3)) == ["a", "b", "c"]


def test_a_tried_one_is_better_than_one_that_is_refused() -> None:
    stand = Stand("ab", admits=lambda id: id == "a")
    pick = stand.pick("a")
    assert (pick.instance, pick.panic) == ("a", False)


def test_a_throttled_one_is_better_than_one_that_is_refused() -> None:
    stand = Stand("ab", admits=lambda id: id == "a")
    stand.end("a", Outcome.THROTTLED, retry_after=10)
    pick = stand.pick()
    assert (pick.instance, pick.panic) == ("a", False)
    assert stand.pick("a").instance == "a"


def test_when_all_are_refused_all_are_used_ejected_ones_too() -> None:
    stand = Stand("abc", admits=lambda id: False)
    stand.eject("c")
    picks = [stand.pick() for _ in range(30)]
    assert {pick.instance for pick in picks} == set("abc")
    assert all(pick.panic for pick in picks)
    assert [[pick.instance for pick in picks].count(name) for name in "abc"] == [10, 10, 10]
    assert {stand.pick("a", "b").instance for _ in range(5)} == {"c"}
    assert {stand.pick("a", "b", "c").instance for _ in range(9)} == set("abc")
    assert stand.pick("a").panic


# Panic


def test_panic_begins_below_its_share_and_not_at_it() -> None:
    stand = Stand("abcd")
    stand.eject("a")
    stand.eject("b")
    assert sorted(stand.picks(4)) == ["c", "c", "d", "d"]
    stand.balancer.remove("d")
    picks = [stand.pick() for _ in range(3)]
    assert sorted(pick.instance for pick in picks) == ["a", "b", "c"]
    assert all(pick.panic for pick in picks)
    assert stand.pick("c").panic


def test_panic_can_be_left_out_but_not_when_nothing_is_left() -> None:
    stand = Stand("abcd", panic_threshold=0)
    stand.eject("a")
    stand.eject("b")
    stand.balancer.remove("d")
    assert stand.picks(3) == "ccc"
    stand.balancer.remove("c")
    assert sorted(stand.pick().instance for _ in range(2)) == ["a", "b"]


def test_when_all_that_are_left_fail_the_ejected_ones_are_asked_too_and_one_that_answers_is_back() -> None:
    stand = Stand("ab")
    stand.eject("a")
    stand.end("b", Outcome.TIMEOUT, 4)
    assert not stand.pick().panic
    stand.end("b", Outcome.TIMEOUT)
    assert sorted(stand.picks(2)) == ["a", "b"], "both answer"
    assert stand.changes[1:] == [("a", "returned", "answered")]
    assert not stand.pick().panic


def test_one_that_is_well_again_ends_the_panic() -> None:
    stand = Stand("ab")
    stand.eject("a")
    stand.end("b", Outcome.TIMEOUT, 5)
    assert stand.pick().panic
    stand.end("b", Outcome.SUCCESS)
    assert stand.picks(3) == "bbb"


def test_one_that_is_not_well_but_may_not_go_is_no_reason_for_panic_while_others_are() -> None:
    stand = Stand("abc")
    stand.eject("a")
    stand.end("b", Outcome.TIMEOUT, 5)
    assert sorted(stand.picks(4)) == ["b", "b", "c", "c"]


def test_one_that_was_ejected_for_its_success_rate_comes_back_with_its_first_answer_too() -> None:
    stand = Stand("ab", consecutive_failures=None, success_rate_min_calls=4)
    for outcome in (Outcome.TIMEOUT, Outcome.TIMEOUT, Outcome.TIMEOUT, Outcome.SUCCESS):
        stand.end("a", outcome)
    stand.end("b", Outcome.SUCCESS, 4)
    stand.wait(10)
    stand.pick()
    assert (stand.changes, stand.state("a").failures) == ([("a", "ejected", "success-rate")], 0)
    stand.end("a", Outcome.SUCCESS)
    assert stand.changes[1:] == [("a", "returned", "answered")]


# Settings, views


def test_a_change_of_settings_keeps_what_is_known() -> None:
    stand = Stand("ab")
    stand.eject("a")
    open_picks = [stand.pick() for _ in range(3)]
    stand.balancer.configure(
        Balancing(strategy="least-request"), EjectionRules(consecutive_failures=2, slow_start_window=None)
    )
    assert isinstance(stand.balancer._strategy, LeastRequest)
    assert stand.picks(3) == "bbb"
    assert stand.state("b").in_flight == 3
    for pick in open_picks:
        pick.finish(Outcome.SUCCESS)
    assert (stand.state("b").in_flight, stand.state("b").good) == (0, 6)
    stand.wait(30)
    stand.pick()
    assert stand.changes[1:] == [("a", "returned", "over")]
    stand.end("a", Outcome.SUCCESS)
    stand.end("a", Outcome.TIMEOUT, 2)
    assert stand.changes[-1] == ("a", "ejected", "failures")


def test_the_same_strategy_goes_on_where_it_was() -> None:
    stand = Stand("ab")
    strategy = stand.balancer._strategy
    stand.picks(1)
    stand.balancer.configure(Balancing(), EjectionRules(interval=1, slow_start_window=None))
    assert stand.balancer._strategy is strategy
    assert stand.picks(1) == "b"
    assert stand.balancer._detector._judge_at == START + 1
    stand.balancer.configure(Balancing(), EjectionRules(interval=100, slow_start_window=None))
    assert stand.balancer._detector._judge_at == START + 1
    stand.wait(1)
    stand.pick()
    assert stand.balancer._detector._judge_at == START + 101


def test_a_change_of_settings_counts_at_once() -> None:
    stand = Stand("abcd")
    stand.eject("a")
    stand.eject("b")
    stand.picks(1)
    stand.balancer.configure(Balancing(), EjectionRules(panic_threshold=0.6))
    assert stand.pick().panic


def test_each_instance_can_be_looked_at() -> None:
    stand = Stand({"a": 1.0, "b": 2.0, "c": 1.0}, warm=False)
    stand.wait(50)
    stand.balancer.add("d")
    stand.eject("a")
    stand.end("c", Outcome.THROTTLED, retry_after=7)
    stand.end("b", Outcome.TIMEOUT)
    stand.pick()
    stand.wait(2)
    seen = {
        view.id: (view.state, view.weight, view.in_flight, view.seconds_left, view.failures, view.ejections)
        for view in stand.balancer.instances()
    }
    assert seen == {
        "a": ("ejected", 1.0, 0, 28.0, 5, 1),
        "b": ("up", 2.0, 1, None, 1, 0),
        "c": ("paused", 1.0, 0, 5.0, 0, 0),
        "d": ("warming", 1.0, 0, None, 0, 0),
    }
    stand.wait(5)
    assert stand.kinds()["c"] == "up"
    assert {view.latency for view in stand.balancer.instances()} == {None}


def test_nobody_needs_to_listen() -> None:
    balancer = Balancer(
        "ab", balancing=Balancing(), outlier_detection=EjectionRules(), clock=lambda: 1.0, randomness=random.random
    )
    for _ in range(20):
        pick = balancer.pick()
        assert isinstance(pick, Pick)
        pick.finish(Outcome.TIMEOUT if pick.instance == "a" else Outcome.SUCCESS)
    assert [view.state for view in balancer.instances()] == ["ejected", "warming"]
