"""A breaker's settings: every default, every mistake with its key and its fix."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.policy.breaker import MAX_BREAKER_WINDOW, MAX_PROBES, MAX_RAMP, MIN_OPEN_SECONDS, Breaker
from dispatch.policy.validation import MAX_SECONDS, PolicyError

SECONDS = ("window_time", "open_for", "open_max", "forget_after", "probe_lease", "retry_after_max")
SECONDS_OR_NONE = ("slow_after", "no_success_for")
COUNTS = {
    "window": MAX_BREAKER_WINDOW,
    "min_calls": MAX_BREAKER_WINDOW,
    "no_success_failures": MAX_BREAKER_WINDOW,
    "failures_in_a_row": MAX_BREAKER_WINDOW,
    "probes": MAX_PROBES,
    "ramp": MAX_RAMP,
}
SHARES = ("failure_rate", "slow_rate")
TRUTHS = ("tool_errors", "invalid_arguments")


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
        "window": 100,
        "window-time": 30.0,
        "slow-after": None,
        "slow-rate": 0.8,
        "failures-in-a-row": 10,
        "no-success-for": 60.0,
        "no-success-failures": 3,
        "open-for": 5.0,
        "open-max": 300.0,
        "jitter": 0.5,
        "forget-after": 30.0,
        "probes": 3,
        "ramp": 3,
        "probe-lease": 60.0,
        "retry-after-max": 3600.0,
        "tool-errors": False,
        "invalid-arguments": False,
    }


def test_every_default_is_explained() -> None:
    text = Breaker.__doc__ or ""
    assert [key for key in Breaker.__struct_fields__ if f"        {key}: " not in text] == []


def test_settings_read_from_a_descriptor_are_the_same() -> None:
    raw = msgspec.to_builtins(Breaker(window=50, slow_after=2.5, tool_errors=True))
    assert msgspec.convert(raw, Breaker) == Breaker(window=50, slow_after=2.5, tool_errors=True)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Breaker().window = 5  # type: ignore[misc]


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
    settings = Breaker(slow_after=None, no_success_for=None, failures_in_a_row=None)
    assert (settings.slow_after, settings.no_success_for, settings.failures_in_a_row) == (None, None, None)


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
    rest: dict[str, Any] = {"window": most} if key == "min_calls" else {}
    assert getattr(Breaker(**rest, **{key: most}), key) == most
    assert mistake(**{key: most + 1}).key == kebab(key)


def test_the_bounds_are_as_documented() -> None:
    assert (MAX_BREAKER_WINDOW, MAX_PROBES, MAX_RAMP, MIN_OPEN_SECONDS) == (100_000, 100, 8, 0.001)
    least = Breaker(window=1, min_calls=1, no_success_failures=1, failures_in_a_row=1, probes=1, ramp=1)
    assert (least.window, least.min_calls, least.failures_in_a_row, least.probes, least.ramp) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("key", SHARES)
@pytest.mark.parametrize("value", [0, -0.1, 1.0001, 50, math.nan, math.inf])
def test_a_share_out_of_range_names_its_key(key: str, value: float) -> None:
    error = mistake(**{key: value})
    assert error.key == kebab(key)
    assert error.problem == f"{value!r} is out of range"
    assert error.fix == "give a share above 0 and at most 1, for instance 0.5"


@pytest.mark.parametrize("key", [*SHARES, "jitter"])
@pytest.mark.parametrize("value", ["0.5", True, None])
def test_a_share_that_is_no_number_names_its_key(key: str, value: object) -> None:
    error = mistake(**{key: value})
    assert error.key == kebab(key)
    assert error.problem == f"{value!r} is not a number"
    assert error.fix == "give a share, for instance 0.5"


def test_a_share_may_be_all_or_nearly_nothing() -> None:
    assert Breaker(failure_rate=1, slow_rate=1e-9) == Breaker(failure_rate=1.0, slow_rate=1e-9)


@pytest.mark.parametrize("value", [-0.001, 1, 1.5, math.nan])
def test_jitter_takes_no_whole_open_time_away(value: float) -> None:
    error = mistake(jitter=value)
    assert (error.key, error.problem) == ("breaker.jitter", f"{value!r} is out of range")
    assert error.fix == "give at least 0 and less than 1"


def test_jitter_may_be_nothing() -> None:
    assert Breaker(jitter=0).jitter == 0
    assert Breaker(jitter=0.999).jitter == 0.999


@pytest.mark.parametrize("key", TRUTHS)
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_truth_is_true_or_false(key: str, value: object) -> None:
    error = mistake(**{key: value})
    assert error.key == kebab(key)
    assert error.problem == f"{value!r} is not true or false"
    assert error.fix == "give true or false"


def test_a_volume_that_the_window_never_holds_is_a_mistake() -> None:
    assert Breaker(window=20, min_calls=20).window == 20
    error = mistake(window=19)
    assert error.key == "breaker.min-calls"
    assert error.problem == "20 is more than the window of 19 calls ever holds"
    assert error.fix == "give at most 'window'"


def test_an_open_time_is_neither_nothing_nor_beyond_the_longest() -> None:
    assert Breaker(open_for=MIN_OPEN_SECONDS).open_for == MIN_OPEN_SECONDS
    assert Breaker(open_for=300, open_max=300).open_for == 300
    error = mistake(open_for=0.0009)
    assert error.key == "breaker.open-for"
    assert (error.problem, error.fix) == ("0.0009 is too short", "give 0.001 or more, for instance 5")
    error = mistake(open_for=301)
    assert error.key == "breaker.open-for"
    assert (error.problem, error.fix) == ("301 is more than 'open-max', 300.0", "give at most that")


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(st.dictionaries(st.sampled_from(Breaker.__struct_fields__), values, max_size=4))
def test_any_values_are_settings_or_a_mistake_that_names_one_of_them(raw: dict[str, Any]) -> None:
    mistakes: list[PolicyError] = []
    try:
        Breaker(**raw)
    except PolicyError as error:
        mistakes.append(error)
    related = {"breaker.min-calls", "breaker.open-for"}  # may be at odds with a value that was given
    assert all(each.key in related | {kebab(key) for key in raw} and each.fix for each in mistakes)
