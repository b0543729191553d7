"""The settings of retries and hedges: every key, its bounds exactly, and every mistake with its key and its fix."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatch.policy import MAX_SECONDS, PolicyError
from dispatch.policy.retry import (
    MAX_ATTEMPTS,
    MAX_FLOOR,
    Hedge,
    Retry,
    check_percentile,
    parse_hedge,
    parse_retry,
)


def test_the_defaults_are_those_that_are_documented() -> None:
    assert Retry() == Retry(attempts=3, base=0.05, cap=2.0, budget_ratio=0.2, budget_floor=3.0, errors=())
    assert Hedge() == Hedge(after="p95", load=0.05)
    assert Hedge().quantile == 0.95


def test_every_key_is_read() -> None:
    raw = {"attempts": 2, "base": 0.1, "cap": 1, "budget-ratio": 0.5, "budget-floor": 7, "errors": ["busy", "locked"]}
    assert parse_retry(raw) == Retry(2, 0.1, 1, 0.5, 7, ("busy", "locked"))
    assert parse_hedge({"after": 0.3, "load": 0.1}) == Hedge(0.3, 0.1)


def test_a_bare_number_is_the_attempts() -> None:
    assert parse_retry(5) == Retry(attempts=5)
    assert parse_retry(1).attempts == 1


@pytest.mark.parametrize("after", ["p99", 0.2, 2])
def test_a_bare_moment_is_when_to_hedge(after: float | str) -> None:
    assert parse_hedge(after) == Hedge(after=after)


def test_null_switches_retries_off() -> None:
    assert parse_retry(None, Retry(attempts=5)) is None


def test_null_takes_a_hedge_away_again() -> None:
    assert parse_hedge(None, Hedge()) is None


def test_what_is_not_said_stays_as_the_base_has_it() -> None:
    base = Retry(attempts=5, cap=9)
    assert parse_retry({"attempts": 2}, base) == Retry(attempts=2, cap=9)
    assert parse_retry(4, base) == Retry(attempts=4, cap=9)
    assert parse_retry({}, base) == base
    assert parse_hedge({"load": 0.2}, Hedge(after=3)) == Hedge(after=3, load=0.2)
    assert parse_hedge("p90", Hedge(load=0.2)) == Hedge(after="p90", load=0.2)


@pytest.mark.parametrize("raw", [True, False, "3", 3.0, [3]])
def test_retries_are_a_number_or_an_object(raw: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_retry(raw)
    assert caught.value.key == "retry"
    assert caught.value.problem == f"{raw!r} is neither a number of attempts nor an object"
    assert caught.value.fix == 'write 3, {"attempts": 3}, or null for never'


@pytest.mark.parametrize("raw", [True, False, [1], b"p95"])
def test_a_hedge_is_a_moment_or_an_object(raw: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_hedge(raw)
    assert caught.value.key == "hedge"
    assert caught.value.problem == f"{raw!r} is neither a moment nor an object"
    assert caught.value.fix == 'write "p95", seconds, {"after": "p95"}, or null for off'


@pytest.mark.parametrize("attempts", [1, MAX_ATTEMPTS])
def test_attempts_up_to_the_bounds(attempts: int) -> None:
    assert Retry(attempts=attempts).attempts == attempts


@pytest.mark.parametrize("attempts", [0, -1, MAX_ATTEMPTS + 1, 2.0, True, "3", None])
def test_attempts_that_cannot_be(attempts: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        Retry(attempts=attempts)
    assert caught.value.key == "retry.attempts"
    assert caught.value.problem == f"{attempts!r} is not a whole number from 1 to 10"
    assert caught.value.fix == "give 3, or 1 for never again"


@pytest.mark.parametrize("part", ["base", "cap"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, MAX_SECONDS + 1, "1", True, None])
def test_a_wait_that_cannot_be(part: str, value: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_retry({part: value})
    assert caught.value.key == f"retry.{part}"


def test_a_cap_may_be_the_base_and_not_less() -> None:
    assert Retry(base=0.5, cap=0.5).cap == 0.5
    with pytest.raises(PolicyError) as caught:
        Retry(base=0.5, cap=0.49)
    assert caught.value.key == "retry.cap"
    assert caught.value.problem == "0.49 is less than 'base' (0.5)"
    assert caught.value.fix == "give the longest wait, for instance 2"


@pytest.mark.parametrize(
    ("key", "good", "bad", "text", "fix"),
    [
        ("budget-ratio", (0, 0.5, 1), (-0.01, 1.01, math.nan), "0 to 1", "give the share of calls, for instance 0.2"),
        (
            "budget-floor",
            (0, MAX_FLOOR),
            (-0.01, MAX_FLOOR + 1, math.inf),
            "0 to 1000",
            "give retries a second, for instance 3",
        ),
    ],
)
def test_a_budget_within_its_bounds(key: str, good: tuple[float], bad: tuple[float], text: str, fix: str) -> None:
    for value in good:
        assert getattr(parse_retry({key: value}), key.replace("-", "_")) == value
    for value in (*bad, True, "0.2", None):
        with pytest.raises(PolicyError) as caught:
            parse_retry({key: value})
        assert (caught.value.key, caught.value.fix) == (f"retry.{key}", fix)
        is_number = value in bad and value is not True
        expected = f"{value!r} is not from {text}" if is_number else f"{value!r} is not a number"
        assert caught.value.problem == expected


@pytest.mark.parametrize("errors", ["busy", [""], [5], {"busy": 1}, None])
def test_error_types_are_a_list_of_names(errors: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_retry({"errors": errors})
    assert caught.value.key == "retry.errors"
    assert caught.value.problem.endswith("is not a list of error types")
    assert caught.value.fix == 'give their names, for instance ["busy"]'


@pytest.mark.parametrize(
    ("text", "share"), [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("p97.25", 0.9725)]
)
def test_percentiles(text: str, share: float) -> None:
    assert check_percentile(text, "hedge.after") == pytest.approx(share)
    assert Hedge(after=text).quantile == pytest.approx(share)


@pytest.mark.parametrize(
    "text", ["p49.999", "p99.901", "p100", "p5", "95", "P95", "p95%", "", "p", "p9.5", "p95.", "p٩٥", "p95\n", "fast"]
)
def test_what_is_no_percentile(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_hedge(text)
    assert caught.value.key == "hedge.after"
    assert caught.value.problem == f"{text!r} is not a percentile from p50 to p99.9"
    assert caught.value.fix == 'give "p95", or seconds as a number'


@pytest.mark.parametrize("after", [0, -0.1, math.nan, MAX_SECONDS + 1])
def test_seconds_that_cannot_be(after: float) -> None:
    with pytest.raises(PolicyError) as caught:
        Hedge(after=after)
    assert caught.value.key == "hedge.after"


def test_a_hedge_after_seconds_has_no_quantile() -> None:
    assert Hedge(after=0.2).quantile is None


def test_the_load_of_hedges_is_above_nothing_and_up_to_all_calls() -> None:
    assert Hedge(load=1).load == 1
    assert Hedge(load=0.001).load == 0.001
    for bad in (-0.1, 1.01, "5%"):
        with pytest.raises(PolicyError) as caught:
            parse_hedge({"load": bad})
        assert caught.value.key == "hedge.load"
        assert caught.value.fix == "give the share of calls, for instance 0.05"
    with pytest.raises(PolicyError) as caught:
        Hedge(load=0)
    assert (caught.value.key, caught.value.problem) == ("hedge.load", "0 allows no hedge")
    assert caught.value.fix == "leave 'hedge' out, or give for instance 0.05"


@pytest.mark.parametrize(
    ("key", "meant"), [("atempts", "attempts"), ("budget_ratio", "budget-ratio"), ("error", "errors")]
)
def test_a_key_slightly_wrong_is_told_with_the_right_one(key: str, meant: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_retry({key: 1})
    assert caught.value.key == f"retry.{key}"
    assert caught.value.problem == "unknown key"
    known = "attempts, base, cap, budget-ratio, budget-floor, errors"
    assert caught.value.fix == f"did you mean '{meant}'? known keys: {known}"


def test_a_key_like_nothing_is_told_with_all_that_there_are() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_hedge({5: 1})
    assert (caught.value.key, caught.value.fix) == ("hedge.5", "known keys: after, load")
