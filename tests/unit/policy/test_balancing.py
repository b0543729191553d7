"""Settings of balancing and of health: every key, every default, every mistake with its key and its fix."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatch.policy import MAX_SECONDS, PolicyError
from dispatch.policy.balancing import (
    MAX_CALLS,
    MAX_SCAN,
    MAX_SIGMA,
    NO_HEALTH,
    STRATEGIES,
    Balancing,
    Health,
    parse_balancing,
    parse_health,
)

HEALTH = {
    "consecutive": 3,
    "sigma": 2.5,
    "gap": 0.2,
    "pair-gap": 0.4,
    "volume": 20,
    "interval": 5,
    "eject-for": 7,
    "eject-max": 70,
    "eject-share": 0.25,
    "panic": 0.3,
    "slow-start": 12,
    "slow-start-from": 0.2,
    "tool-errors": True,
}


def test_the_defaults_are_those_that_are_documented() -> None:
    assert Balancing() == Balancing(strategy="round-robin", scan=8, decay=10.0)
    assert Health() == Health(
        consecutive=5,
        sigma=1.9,
        gap=0.1,
        pair_gap=0.3,
        volume=50,
        interval=10.0,
        eject_for=30.0,
        eject_max=300.0,
        eject_share=0.5,
        panic=0.5,
        slow_start=30.0,
        slow_start_from=0.1,
        tool_errors=False,
    )


def test_a_text_alone_is_the_strategy() -> None:
    assert STRATEGIES == ("round-robin", "weighted", "least-request", "p2c", "peak-ewma")
    for name in STRATEGIES:
        assert parse_balancing(name) == Balancing(strategy=name)


def test_every_key_is_read() -> None:
    assert parse_balancing({"strategy": "p2c", "scan": 4, "decay": 3}) == Balancing("p2c", 4, 3)
    assert parse_health(HEALTH) == Health(3, 2.5, 0.2, 0.4, 20, 5, 7, 70, 0.25, 0.3, 12, 0.2, True)
    assert set(HEALTH) == set(Health.__struct_encode_fields__)


def test_what_is_not_said_stays_as_the_base_has_it() -> None:
    base = Balancing("p2c", 4, 3)
    assert parse_balancing("weighted", base) == Balancing("weighted", 4, 3)
    assert parse_balancing({"scan": 5}, base) == Balancing("p2c", 5, 3)
    assert parse_balancing({}, base) is base
    ill = Health(consecutive=2)
    assert parse_health({"volume": 9}, ill) == Health(consecutive=2, volume=9)
    assert parse_health({}, ill) is ill
    assert parse_health({}) == Health()


def test_rules_can_be_left_out() -> None:
    made = parse_health({"consecutive": None, "sigma": None, "slow-start": None, "panic": 0})
    assert (made.consecutive, made.sigma, made.slow_start, made.panic) == (None, None, None, 0)


def test_null_is_round_robin_and_no_health_checks() -> None:
    assert parse_balancing(None, Balancing("p2c", 4, 3)) == Balancing()
    assert parse_health(None, Health(consecutive=2)) is None
    assert not NO_HEALTH.ejects
    assert NO_HEALTH.slow_start is None
    assert Health(consecutive=None).ejects
    assert Health(sigma=None).ejects


@pytest.mark.parametrize("raw", [5, [("scan", 5)]])
def test_what_is_no_object_is_refused_with_an_example(raw: object) -> None:
    with pytest.raises(PolicyError, match="is not an object") as caught:
        parse_balancing(raw)
    assert (caught.value.key, caught.value.fix) == ("balancing", 'write "peak-ewma", or null for round-robin')
    with pytest.raises(PolicyError, match=f"{type(raw).__name__} is not an object") as caught:
        parse_health(raw)
    assert (caught.value.key, caught.value.fix) == ("health", 'write {"consecutive": 3}, or null for off')


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_balancing({"strategie": "p2c"})
    assert (caught.value.key, caught.value.problem) == ("balancing.strategie", "unknown key")
    assert caught.value.fix == "did you mean 'strategy'? known keys: strategy, scan, decay"
    with pytest.raises(PolicyError) as caught:
        parse_health({1: 2})
    assert caught.value.key == "health.1"
    assert caught.value.fix.startswith("known keys: consecutive, sigma, gap, pair-gap,")


def test_an_unknown_strategy_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_balancing("peak_ewma")
    assert (caught.value.key, caught.value.problem) == ("balancing.strategy", "'peak_ewma' is unknown")
    assert caught.value.fix == ("did you mean 'peak-ewma'? known: round-robin, weighted, least-request, p2c, peak-ewma")
    with pytest.raises(PolicyError) as caught:
        parse_balancing({"strategy": 7})
    assert caught.value.fix.startswith("known: round-robin")


@pytest.mark.parametrize("key", ["interval", "eject-for", "eject-max", "slow-start"])
@pytest.mark.parametrize("value", [0, -1, MAX_SECONDS + 1, math.inf, math.nan, True, "5"])
def test_times_are_seconds(key: str, value: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_health({key: value})
    assert caught.value.key == f"health.{key}"


@pytest.mark.parametrize("value", [0, math.nan, "5", None])
def test_decay_is_seconds(value: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_balancing({"decay": value})
    assert caught.value.key == "balancing.decay"


@pytest.mark.parametrize(("key", "most"), [("consecutive", MAX_CALLS), ("volume", MAX_CALLS)])
def test_counts_are_whole_and_bounded(key: str, most: int) -> None:
    for value in (1, most):
        parse_health({key: value})
    for value in (0, most + 1, 1.5, True, "5"):
        with pytest.raises(PolicyError, match=f"is not a whole number from 1 to {most}") as caught:
            parse_health({key: value})
        assert (caught.value.key, caught.value.fix) == (f"health.{key}", f"give a whole number ≥ 1 and ≤ {most}")


def test_a_scan_is_whole_and_bounded() -> None:
    for value in (1, MAX_SCAN):
        assert parse_balancing({"scan": value}).scan == value
    for value in (0, MAX_SCAN + 1, 1.5, True, None):
        with pytest.raises(PolicyError) as caught:
            parse_balancing({"scan": value})
        assert caught.value.key == "balancing.scan"


@pytest.mark.parametrize("key", ["gap", "pair-gap", "eject-share", "slow-start-from"])
def test_shares_are_above_0_and_at_most_1(key: str) -> None:
    parse_health({key: 1})
    for value, problem in (
        (0, "0 is out of range"),
        (1.001, "1.001 is out of range"),
        (math.nan, "nan is out of range"),
        (True, "True is not a number"),
        ("1", "'1' is not a number"),
        (None, "None is not a number"),
    ):
        with pytest.raises(PolicyError) as caught:
            parse_health({key: value})
        assert (caught.value.key, caught.value.problem) == (f"health.{key}", problem)
        assert caught.value.fix in (
            "give a share above 0 and at most 1",
            "give a number, for instance 0.5",
        )


def test_panic_is_a_share_and_may_be_0() -> None:
    for value in (0, 1):
        assert parse_health({"panic": value}).panic == value
    for value in (-0.1, 1.1, math.nan, True, None):
        with pytest.raises(PolicyError) as caught:
            parse_health({"panic": value})
        assert caught.value.key == "health.panic"


def test_sigma_is_above_0_and_no_slip() -> None:
    assert parse_health({"sigma": MAX_SIGMA}).sigma == MAX_SIGMA
    for value, fix in (
        (0, "give more than 0 and at most 10"),
        (10.1, "give more than 0 and at most 10"),
        (math.nan, "give more than 0 and at most 10"),
        (True, "give a number, for instance 1.9"),
        ("1.9", "give a number, for instance 1.9"),
    ):
        with pytest.raises(PolicyError) as caught:
            parse_health({"sigma": value})
        assert (caught.value.key, caught.value.fix) == ("health.sigma", fix)


def test_the_first_ejection_is_not_longer_than_the_longest() -> None:
    assert Health(eject_for=300).eject_for == 300
    with pytest.raises(PolicyError) as caught:
        Health(eject_for=301)
    assert (caught.value.key, caught.value.fix) == ("health.eject-for", "give at most that")
    assert caught.value.problem == "301 is more than 'eject-max', 300.0"


@pytest.mark.parametrize("value", [1, "yes", None])
def test_tool_errors_are_true_or_false(value: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_health({"tool-errors": value})
    assert (caught.value.key, caught.value.fix) == ("health.tool-errors", "give true or false")
    assert "is not true or false" in caught.value.problem
