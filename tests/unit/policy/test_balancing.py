"""Settings of balancing and of outlier detection: every key, every default, every mistake with its key and its fix."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatch.balancing.instances import NO_EJECTION, EjectionRules, complete_rules
from dispatch.policy import (
    MAX_CHOICES,
    MAX_CONSECUTIVE_FAILURES,
    MAX_EJECTION_S,
    MAX_SECONDS,
    STRATEGIES,
    Balancing,
    OutlierDetection,
    PolicyError,
    parse_balancing,
    parse_outlier_detection,
)

PART = "outlier-detection"
EVERY_KEY = {
    "consecutive-failures": 3,
    "base-ejection-time": 7,
    "max-ejection-ratio": 0.25,
    "panic-threshold": 0.3,
    "slow-start-window": 12,
    "count-tool-errors": True,
}


def test_the_defaults_are_those_that_are_documented() -> None:
    assert Balancing() == Balancing(strategy="round-robin", choice_count=2)
    assert OutlierDetection() == OutlierDetection(
        consecutive_failures=5,
        base_ejection_time=30.0,
        max_ejection_ratio=0.5,
        panic_threshold=0.5,
        slow_start_window=30.0,
        count_tool_errors=False,
    )
    assert complete_rules(OutlierDetection()) == EjectionRules(
        max_ejection_time=300.0,
        success_rate_stdev_factor=1.9,
        success_rate_gap=0.1,
        success_rate_pair_gap=0.3,
        success_rate_min_calls=50,
        interval=10.0,
        slow_start_from=0.1,
    )


def test_a_text_alone_is_the_strategy() -> None:
    assert STRATEGIES == ("round-robin", "weighted", "least-request", "peak-ewma")
    for name in STRATEGIES:
        assert parse_balancing(name) == Balancing(strategy=name)


def test_every_key_is_read() -> None:
    assert parse_balancing({"strategy": "least-request", "choice-count": 4}) == Balancing("least-request", 4)
    assert parse_outlier_detection(EVERY_KEY) == OutlierDetection(3, 7, 0.25, 0.3, 12, True)
    assert set(EVERY_KEY) == set(OutlierDetection.__struct_encode_fields__)


def test_what_is_not_said_stays_as_the_base_has_it() -> None:
    base = Balancing("least-request", 4)
    assert parse_balancing("weighted", base) == Balancing("weighted", 4)
    assert parse_balancing({"choice-count": 5}, base) == Balancing("least-request", 5)
    assert parse_balancing({}, base) is base
    strict = OutlierDetection(consecutive_failures=2)
    read = parse_outlier_detection({"panic-threshold": 0.2}, strict)
    assert read == OutlierDetection(consecutive_failures=2, panic_threshold=0.2)
    assert parse_outlier_detection({}, strict) is strict
    assert parse_outlier_detection({}) == OutlierDetection()


def test_rules_can_be_left_out() -> None:
    made = parse_outlier_detection({"consecutive-failures": None, "slow-start-window": None, "panic-threshold": 0})
    assert made is not None
    assert (made.consecutive_failures, made.slow_start_window, made.panic_threshold) == (None, None, 0)


def test_null_is_round_robin_and_no_ejection() -> None:
    assert parse_balancing(None, Balancing("least-request", 4)) == Balancing()
    assert parse_outlier_detection(None, OutlierDetection(consecutive_failures=2)) is None
    assert complete_rules(None) is NO_EJECTION
    assert not NO_EJECTION.ejects
    assert NO_EJECTION.slow_start_window is None
    assert EjectionRules(consecutive_failures=None).ejects
    assert EjectionRules(success_rate_stdev_factor=None).ejects


def test_a_policys_settings_are_completed_and_complete_ones_stay() -> None:
    rules = EjectionRules(consecutive_failures=9, interval=1.0)
    assert complete_rules(rules) is rules
    assert complete_rules(OutlierDetection(base_ejection_time=7)) == EjectionRules(base_ejection_time=7)


@pytest.mark.parametrize("raw", [5, [("choice-count", 5)]])
def test_what_is_no_object_is_refused_with_an_example(raw: object) -> None:
    with pytest.raises(PolicyError, match="is not an object") as caught:
        parse_balancing(raw)
    assert (caught.value.key, caught.value.fix) == ("balancing", 'write "peak-ewma", or null for round-robin')
    with pytest.raises(PolicyError, match=f"{type(raw).__name__} is not an object") as caught:
        parse_outlier_detection(raw)
    assert (caught.value.key, caught.value.fix) == (PART, 'write {"consecutive-failures": 3}, or null for off')


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_balancing({"strategie": "weighted"})
    assert (caught.value.key, caught.value.problem) == ("balancing.strategie", "unknown key")
    assert caught.value.fix == "did you mean 'strategy'? known keys: strategy, choice-count"
    with pytest.raises(PolicyError) as caught:
        parse_outlier_detection({1: 2})
    assert caught.value.key == f"{PART}.1"
    assert caught.value.fix.startswith("known keys: consecutive-failures, base-ejection-time,")


def test_an_unknown_strategy_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_balancing("peak_ewma")
    assert (caught.value.key, caught.value.problem) == ("balancing.strategy", "'peak_ewma' is unknown")
    assert caught.value.fix == "did you mean 'peak-ewma'? known: round-robin, weighted, least-request, peak-ewma"
    with pytest.raises(PolicyError) as caught:
        parse_balancing({"strategy": 7})
    assert caught.value.fix.startswith("known: round-robin")


@pytest.mark.parametrize("key", ["base-ejection-time", "slow-start-window"])
@pytest.mark.parametrize("value", [0, -1, MAX_SECONDS + 1, math.inf, math.nan, True, "5"])
def test_times_are_seconds(key: str, value: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_outlier_detection({key: value})
    assert caught.value.key == f"{PART}.{key}"


def test_consecutive_failures_are_whole_and_bounded() -> None:
    for value in (1, MAX_CONSECUTIVE_FAILURES):
        parse_outlier_detection({"consecutive-failures": value})
    for value in (0, MAX_CONSECUTIVE_FAILURES + 1, 1.5, True, "5"):
        with pytest.raises(PolicyError, match="is not a whole number from 1 to 100000") as caught:
            parse_outlier_detection({"consecutive-failures": value})
        assert caught.value.key == f"{PART}.consecutive-failures"


def test_a_choice_count_is_whole_and_bounded() -> None:
    for value in (2, MAX_CHOICES):
        assert parse_balancing({"choice-count": value}).choice_count == value
    for value in (1, MAX_CHOICES + 1, 2.5, True, None):
        with pytest.raises(PolicyError) as caught:
            parse_balancing({"choice-count": value})
        assert caught.value.key == "balancing.choice-count"
        assert caught.value.fix == "give 2, or the number of instances to compare all"


@pytest.mark.parametrize(
    ("key", "good", "bad", "fix"),
    [
        ("max-ejection-ratio", (0.001, 1), (0, 1.001, math.nan), "give a share above 0 and at most 1"),
        ("panic-threshold", (0, 1), (-0.1, 1.1, math.nan), "give a share from 0 to 1; 0: only when all fail"),
    ],
)
def test_shares_within_their_bounds(key: str, good: tuple[float, ...], bad: tuple[float, ...], fix: str) -> None:
    for value in good:
        assert getattr(parse_outlier_detection({key: value}), key.replace("-", "_")) == value
    for value in bad:
        with pytest.raises(PolicyError) as caught:
            parse_outlier_detection({key: value})
        assert (caught.value.key, caught.value.fix) == (f"{PART}.{key}", fix)
        assert caught.value.problem == f"{value!r} is out of range"
    for value in (True, "1", None):
        with pytest.raises(PolicyError, match=r"is not a number; give a number, for instance 0\.5"):
            parse_outlier_detection({key: value})


def test_the_first_ejection_is_not_longer_than_the_longest() -> None:
    assert OutlierDetection(base_ejection_time=MAX_EJECTION_S).base_ejection_time == 300
    with pytest.raises(PolicyError) as caught:
        OutlierDetection(base_ejection_time=301)
    assert (caught.value.key, caught.value.fix) == (f"{PART}.base-ejection-time", "give at most 300")
    assert caught.value.problem == "301 is more than the longest ejection"


@pytest.mark.parametrize("value", [1, "yes", None])
def test_tool_errors_are_true_or_false(value: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_outlier_detection({"count-tool-errors": value})
    assert (caught.value.key, caught.value.fix) == (f"{PART}.count-tool-errors", "give true or false")
