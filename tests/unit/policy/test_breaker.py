"""A breaker's settings: every default, every mistake with its key and its fix."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.policy import (
    MAX_CONSECUTIVE_FAILURES,
    MAX_HALF_OPEN_CALLS,
    MAX_SECONDS,
    MIN_OPEN_SECONDS,
    WINDOW_CALLS,
    Breaker,
    PolicyError,
)

SECONDS = ("open_duration", "max_open_duration")
SECONDS_OR_NONE = ("slow_call_duration",)
COUNTS = {
    "min_calls": WINDOW_CALLS,
    "consecutive_failures": MAX_CONSECUTIVE_FAILURES,
    "half_open_calls": MAX_HALF_OPEN_CALLS,
}
SHARES = ("failure_rate",)
TRUTHS = ("count_tool_errors",)


def kebab(key: str) -> str:
    return f"breaker.{key.replace('_', '-')}"


def mistake(**values: Any) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        Breaker(**values)
    return caught.value


def test_the_defaults_are_those_that_are_documented() -> None:
    assert msgspec.to_builtins(Breaker()) == {
        "failure-rate": 0.5,
        "min-calls": 20,
        "consecutive-failures": 10,
        "slow-call-duration": None,
        "open-duration": 5.0,
        "max-open-duration": 300.0,
        "half-open-calls": 3,
        "count-tool-errors": False,
    }


def test_every_default_is_explained() -> None:
    text = Breaker.__doc__ or ""
    assert [key for key in Breaker.__struct_fields__ if f"        {key}: " not in text] == []


def test_settings_read_from_a_descriptor_are_the_same() -> None:
    raw = msgspec.to_builtins(Breaker(min_calls=50, slow_call_duration=2.5, count_tool_errors=True))
    assert msgspec.convert(raw, Breaker) == Breaker(min_calls=50, slow_call_duration=2.5, count_tool_errors=True)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Breaker().min_calls = 5  # type: ignore[misc]


@pytest.mark.parametrize("key", [*SECONDS, *SECONDS_OR_NONE])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, MAX_SECONDS * 1.001, True, "5"])
def test_a_time_that_cannot_be_names_its_key(key: str, value: object) -> None:
    error = mistake(**{key: value})
    assert error.key == kebab(key)
    assert "give seconds" in error.fix


@pytest.mark.parametrize("key", SECONDS)
def test_a_time_must_be_given(key: str) -> None:
    assert mistake(**{key: None}).key == kebab(key)


def test_what_may_be_left_out_may_be_none() -> None:
    settings = Breaker(slow_call_duration=None, consecutive_failures=None)
    assert (settings.slow_call_duration, settings.consecutive_failures) == (None, None)


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, True, "5"])
def test_a_count_that_is_none_names_its_key_and_bounds(key: str, value: object) -> None:
    error = mistake(**{key: value})
    assert error.key == kebab(key)
    assert error.problem == f"{value!r} is not a whole number from 1 to {COUNTS[key]}"
    assert error.fix == f"give a whole number ≥ 1 and ≤ {COUNTS[key]}"


@pytest.mark.parametrize("key", COUNTS)
def test_a_count_has_an_upper_bound(key: str) -> None:
    most = COUNTS[key]
    assert getattr(Breaker(**{key: most}), key) == most
    assert mistake(**{key: most + 1}).key == kebab(key)


def test_the_bounds_are_as_documented() -> None:
    assert (WINDOW_CALLS, MAX_HALF_OPEN_CALLS, MIN_OPEN_SECONDS) == (100, 100, 0.001)
    least = Breaker(min_calls=1, consecutive_failures=1, half_open_calls=1)
    assert (least.min_calls, least.consecutive_failures, least.half_open_calls) == (1, 1, 1)


@pytest.mark.parametrize("key", SHARES)
@pytest.mark.parametrize("value", [0, -0.1, 1.0001, 50, math.nan, math.inf])
def test_a_share_out_of_range_names_its_key(key: str, value: float) -> None:
    error = mistake(**{key: value})
    assert error.key == kebab(key)
    assert error.problem == f"{value!r} is out of range"
    assert error.fix == "give a share above 0 and at most 1, for instance 0.5"


@pytest.mark.parametrize("key", SHARES)
@pytest.mark.parametrize("value", ["0.5", True, None])
def test_a_share_that_is_no_number_names_its_key(key: str, value: object) -> None:
    error = mistake(**{key: value})
    assert error.key == kebab(key)
    assert error.problem == f"{value!r} is not a number"
    assert error.fix == "give a share, for instance 0.5"


def test_a_share_may_be_all_or_nearly_nothing() -> None:
    assert Breaker(failure_rate=1e-9).failure_rate == 1e-9
    assert Breaker(failure_rate=1).failure_rate == 1


@pytest.mark.parametrize("key", TRUTHS)
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_truth_is_true_or_false(key: str, value: object) -> None:
    error = mistake(**{key: value})
    assert error.key == kebab(key)
    assert error.problem == f"{value!r} is not true or false"
    assert error.fix == "give true or false"


def test_an_open_time_is_neither_nothing_nor_beyond_the_longest() -> None:
    assert Breaker(open_duration=MIN_OPEN_SECONDS).open_duration == MIN_OPEN_SECONDS
    assert Breaker(open_duration=300, max_open_duration=300).open_duration == 300
    error = mistake(open_duration=0.0009)
    assert error.key == "breaker.open-duration"
    assert (error.problem, error.fix) == ("0.0009 is too short", "give 0.001 or more, for instance 5")
    error = mistake(open_duration=301)
    assert error.key == "breaker.open-duration"
    assert (error.problem, error.fix) == ("301 is more than 'max-open-duration', 300.0", "give at most that")


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(st.dictionaries(st.sampled_from(Breaker.__struct_fields__), values, max_size=4))
def test_any_values_are_settings_or_a_mistake_that_names_one_of_them(raw: dict[str, Any]) -> None:
    mistakes: list[PolicyError] = []
    try:
        Breaker(**raw)
    except PolicyError as error:
        mistakes.append(error)
    related = {"breaker.open-duration"}  # may be at odds with a value that was given
    assert all(each.key in related | {kebab(key) for key in raw} and each.fix for each in mistakes)
