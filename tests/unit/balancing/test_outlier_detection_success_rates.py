"""Outliers by success rate.

Guards against percentage rules that eject nobody in a small cluster, against deviations that several bad instances hide in,
and against a bad past that outweighs a good present.
"""

from __future__ import annotations

from dispatch.balancing.instances import EjectionRules, outliers
from dispatch.errors import Outcome
from tests.helpers.balancers import START, Stand


def test_the_deviation_rule_speaks_from_five_on() -> None:
    alone = EjectionRules(success_rate_pair_gap=1.0)
    for good in range(1, 4):
        assert outliers([1.0] * good + [0.0], alone) == []
    assert outliers([1.0] * 4 + [0.0], alone) == [4]
    assert outliers([1.0, 0.0, 1.0, 1.0, 1.0], alone) == [1]


def test_sigma_and_gap_are_exact() -> None:
    # Mean 0.875, deviation 0.217 (one of four at 0.5): 1.732 deviations below.
    rates = [1.0, 1.0, 1.0, 0.5]
    assert outliers(rates, EjectionRules(success_rate_stdev_factor=1.73, success_rate_pair_gap=1.0)) == [3]
    assert outliers(rates, EjectionRules(success_rate_stdev_factor=1.74, success_rate_pair_gap=1.0)) == []
    assert (
        outliers(rates, EjectionRules(success_rate_stdev_factor=0.1, success_rate_gap=0.375, success_rate_pair_gap=1.0))
        == []
    )
    assert outliers(
        rates, EjectionRules(success_rate_stdev_factor=0.1, success_rate_gap=0.374, success_rate_pair_gap=1.0)
    ) == [3]


def test_one_unlucky_failure_among_perfect_ones_is_no_outlier() -> None:
    assert outliers([1.0] * 9 + [0.98], EjectionRules()) == []


def test_of_two_the_much_worse_one_stands_out() -> None:
    assert outliers([1.0, 0.75], EjectionRules(success_rate_pair_gap=0.25)) == []
    assert outliers([0.74, 1.0], EjectionRules(success_rate_pair_gap=0.25)) == [0]


def test_bad_ones_cannot_hide_each_other() -> None:
    assert outliers([1.0, 0.1, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0], EjectionRules()) == [4, 1]


def test_nobody_stands_out_alone_or_when_all_are_bad_or_when_nobody_looks() -> None:
    assert outliers([], EjectionRules()) == []
    assert outliers([0.0], EjectionRules()) == []
    assert outliers([0.0, 0.0, 0.0], EjectionRules()) == []
    assert outliers([1.0, 0.0], EjectionRules(success_rate_stdev_factor=None)) == []


def flaky(stand: Stand, id: str, good: int, bad: int) -> None:
    """Calls at ``id``, so many of each kind, never five failures in a row."""
    for number in range(good + bad):
        failed = (number + 1) * bad // (good + bad) > number * bad // (good + bad)
        stand.end(id, Outcome.TIMEOUT if failed else Outcome.SUCCESS)


def test_an_instance_that_fails_half_its_calls_is_ejected_at_the_next_look_even_of_two() -> None:
    stand = Stand("ab")
    flaky(stand, "a", 25, 25)
    flaky(stand, "b", 50, 0)
    stand.wait(9.999)
    stand.pick()
    assert stand.changes == []
    stand.wait(0.001)
    stand.pick()
    assert stand.changes == [("a", "ejected", "success-rate")]
    assert stand.state("a").ejected_until == START + 40


def test_too_few_calls_are_not_judged_and_older_ones_count_half() -> None:
    stand = Stand("ab")
    for calls, judged in ((49, False), (25, False), (32, True)):  # 49; 25 and 24.5; 32 and 24.75
        flaky(stand, "a", calls - calls // 2, calls // 2)
        flaky(stand, "b", 60, 0)
        stand.wait(10)
        stand.pick()
        assert bool(stand.changes) == judged, calls
    assert stand.changes == [("a", "ejected", "success-rate")]


def test_a_bad_past_that_was_judged_does_not_outweigh_the_present() -> None:
    stand = Stand("ab", consecutive_failures=None)
    flaky(stand, "a", 0, 5000)
    stand.wait(10)
    stand.pick()
    assert stand.changes == [], "nothing to compare it with"
    flaky(stand, "a", 50, 0)
    flaky(stand, "b", 50, 0)
    stand.wait(10)
    stand.pick()
    assert stand.changes == []


def test_the_worst_go_first_and_no_more_than_may() -> None:
    stand = Stand("abcd", max_ejection_ratio=0.25)
    flaky(stand, "a", 24, 26)
    flaky(stand, "b", 22, 28)
    for name in "cd":
        flaky(stand, name, 50, 0)
    stand.wait(10)
    stand.pick()
    assert stand.changes == [("b", "ejected", "success-rate")]
    assert stand.balancer._detector.ejected == 1


def test_ejected_ones_are_not_judged() -> None:
    stand = Stand("abcd")
    for name in "bcd":
        flaky(stand, name, 50, 0)
    stand.eject("a")
    stand.end("a", Outcome.TIMEOUT, 60)
    stand.wait(10)
    stand.pick()
    assert stand.changes == [("a", "ejected", "failures")]


def test_looking_goes_on_every_interval() -> None:
    stand = Stand("ab", interval=5)
    for _ in range(3):
        stand.wait(5)
        stand.pick()
    flaky(stand, "a", 25, 25)
    flaky(stand, "b", 50, 0)
    stand.wait(4.9)
    stand.pick()
    assert stand.changes == []
    stand.wait(0.1)
    stand.pick()
    assert stand.changes == [("a", "ejected", "success-rate")]
