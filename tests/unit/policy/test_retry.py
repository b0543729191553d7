"""The settings of retries and hedges: every key, its bounds exactly, and every mistake with its key and its fix."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatch.policy import MAX_ATTEMPTS, MAX_SECONDS, PolicyError, Retry, check_hedging, hedging_quantile, parse_retry


def test_the_defaults_are_those_that_are_documented() -> None:
    assert Retry() == Retry(
        max_attempts=3, initial_backoff=0.05, max_backoff=2.0, budget_ratio=0.2, retryable_errors=()
    )


def test_every_key_is_read() -> None:
    raw = {
        "max-attempts": 2,
        "initial-backoff": 0.1,
        "max-backoff": 1,
        "budget-ratio": 0.5,
        "retryable-errors": ["busy", "locked"],
    }
    assert parse_retry(raw) == Retry(2, 0.1, 1, 0.5, ("busy", "locked"))


def test_a_bare_number_is_the_attempts() -> None:
    assert parse_retry(5) == Retry(max_attempts=5)
    assert parse_retry(1).max_attempts == 1


def test_null_switches_retries_off() -> None:
    assert parse_retry(None, Retry(max_attempts=5)) is None


def test_what_is_not_said_stays_as_the_base_has_it() -> None:
    base = Retry(max_attempts=5, max_backoff=9)
    assert parse_retry({"max-attempts": 2}, base) == Retry(max_attempts=2, max_backoff=9)
    assert parse_retry(4, base) == Retry(max_attempts=4, max_backoff=9)
    assert parse_retry({}, base) == base


@pytest.mark.parametrize("raw", [True, False, "3", 3.0, [3]])
def test_retries_are_a_number_or_an_object(raw: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_retry(raw)
    assert caught.value.key == "retry"
    assert caught.value.problem == f"{raw!r} is neither a number of attempts nor an object"
    assert caught.value.fix == 'write 3, {"max-attempts": 3}, or null for no retry'


@pytest.mark.parametrize("attempts", [1, MAX_ATTEMPTS])
def test_attempts_up_to_the_bounds(attempts: int) -> None:
    assert Retry(max_attempts=attempts).max_attempts == attempts


@pytest.mark.parametrize("attempts", [0, -1, MAX_ATTEMPTS + 1, 2.0, True, "3", None])
def test_attempts_that_cannot_be(attempts: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        Retry(max_attempts=attempts)
    assert caught.value.key == "retry.max-attempts"
    assert caught.value.problem == f"{attempts!r} is not a whole number from 1 to 10"
    assert caught.value.fix == "give 3, or 1 for no retry"


@pytest.mark.parametrize("part", ["initial-backoff", "max-backoff"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, MAX_SECONDS + 1, "1", True, None])
def test_a_wait_that_cannot_be(part: str, value: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_retry({part: value})
    assert caught.value.key == f"retry.{part}"


def test_a_cap_may_be_the_base_and_not_less() -> None:
    assert Retry(initial_backoff=0.5, max_backoff=0.5).max_backoff == 0.5
    with pytest.raises(PolicyError) as caught:
        Retry(initial_backoff=0.5, max_backoff=0.49)
    assert caught.value.key == "retry.max-backoff"
    assert caught.value.problem == "0.49 is less than 'initial-backoff' (0.5)"
    assert caught.value.fix == "give the longest wait, for instance 2"


@pytest.mark.parametrize(
    ("key", "good", "bad", "text", "fix"),
    [
        ("budget-ratio", (0, 0.5, 1), (-0.01, 1.01, math.nan), "0 to 1", "give the share of calls, for instance 0.2"),
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
        parse_retry({"retryable-errors": errors})
    assert caught.value.key == "retry.retryable-errors"
    assert caught.value.problem.endswith("is not a list of error types")
    assert caught.value.fix == 'give their names, for instance ["busy"]'


@pytest.mark.parametrize(
    ("text", "share"), [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("p97.25", 0.9725)]
)
def test_percentiles(text: str, share: float) -> None:
    check_hedging(text)
    assert hedging_quantile(text) == pytest.approx(share)


@pytest.mark.parametrize(
    "text", ["p49.999", "p99.901", "p100", "p5", "95", "P95", "p95%", "", "p", "p9.5", "p95.", "p٩٥", "p95\n", "fast"]
)
def test_what_is_no_percentile(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        check_hedging(text)
    assert caught.value.key == "hedging"
    assert caught.value.problem == f"{text!r} is not a percentile from p50 to p99.9"
    assert caught.value.fix == 'give "p95", or seconds'


@pytest.mark.parametrize("delay", [0, -0.1, math.nan, MAX_SECONDS + 1, True, None, [1], b"p95"])
def test_a_hedging_delay_is_seconds_or_a_percentile(delay: object) -> None:
    with pytest.raises(PolicyError) as caught:
        check_hedging(delay)
    assert caught.value.key == "hedging"


def test_a_hedging_delay_in_seconds_has_no_quantile() -> None:
    check_hedging(0.2)
    assert hedging_quantile(0.2) is None


@pytest.mark.parametrize(
    ("key", "meant"),
    [("max-atempts", "max-attempts"), ("budget_ratio", "budget-ratio"), ("retryable-error", "retryable-errors")],
)
def test_a_key_slightly_wrong_is_told_with_the_right_one(key: str, meant: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_retry({key: 1})
    assert caught.value.key == f"retry.{key}"
    assert caught.value.problem == "unknown key"
    known = "max-attempts, initial-backoff, max-backoff, budget-ratio, retryable-errors"
    assert caught.value.fix == f"did you mean '{meant}'? known keys: {known}"


def test_a_key_like_nothing_is_told_with_all_that_there_are() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_retry({5: 1})
    assert caught.value.key == "retry.5"
    assert caught.value.fix.startswith("known keys: max-attempts, initial-backoff")
