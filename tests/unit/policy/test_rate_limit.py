"""Rates as they are written: what is read, what is refused with which words, and that what is printed is read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.policy import MAX_SECONDS, PolicyError, RateLimit, parse_rate_limit


@pytest.mark.parametrize(
    ("text", "per_second", "capacity"),
    [
        ("100/s", 100.0, 100.0),
        ("5/s", 5.0, 5.0),
        ("10/m", 1 / 6, 10.0),
        ("1000/h", 1000 / 3600, 1000.0),
        ("864/d", 0.01, 864.0),
        ("0.5/s", 0.5, 1.0),
        ("1000000/s", 1e6, 1e6),
    ],
)
def test_a_rate_is_calls_by_a_unit_of_time(text: str, per_second: float, capacity: float) -> None:
    rate = parse_rate_limit(text)
    assert rate.per_second == pytest.approx(per_second)
    assert rate.capacity == capacity
    assert str(rate) == text
    assert rate == RateLimit(text)


def test_the_defaults_are_those_that_are_written_down() -> None:
    rate = RateLimit("100/s")
    assert (rate.burst, rate.max_wait, rate.weights) == (None, 1.0, ())


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("0100/s", "100/s"),
        ("2.50/m", "2.5/m"),
        ("7.0/h", "7/h"),
        ("1.0/d", "1/d"),
        ("0.0000123456789/s", "0.0000123456789/s"),
    ],
)
def test_a_rate_is_the_same_however_its_number_is_written(text: str, plain: str) -> None:
    assert RateLimit(text) == RateLimit(plain)
    assert RateLimit(text).rate == plain


def test_an_object_says_the_rest() -> None:
    raw = {"rate": "100/s", "burst": 20, "max-wait": 0.5, "weights": {"batch": 0.5, "ann": 4}}
    rate = parse_rate_limit(raw)
    assert rate == RateLimit("100/s", burst=20, max_wait=0.5, weights={"ann": 4.0, "batch": 0.5})
    assert rate.capacity == 20.0
    assert rate.weights == (("ann", 4.0), ("batch", 0.5))
    assert rate.as_document() == raw
    assert str(rate) == ('{"rate":"100/s","burst":20,"max-wait":0.5,"weights":{"ann":4.0,"batch":0.5}}')
    assert parse_rate_limit(str(rate)) == rate
    assert parse_rate_limit(rate) is rate


def test_what_is_as_by_default_is_not_printed() -> None:
    assert str(parse_rate_limit({"rate": "5/s", "max-wait": 1})) == "5/s"
    assert str(parse_rate_limit({"rate": "5/s", "max-wait": 0})) == '{"rate":"5/s","max-wait":0}'


def test_a_rate_can_be_a_key() -> None:
    assert (
        len({RateLimit("5/s", weights={"a": 1, "b": 2}), RateLimit("5/s", weights={"b": 2, "a": 1}), RateLimit("5/m")})
        == 2
    )


NUMBERS = st.one_of(st.integers(1, 10**6), st.floats(1e-4, 1e6), st.sampled_from([0.1, 0.25, 1e-7, 1e5]))


@given(
    NUMBERS,
    st.sampled_from("smhd"),
    st.none() | st.floats(1, 1e6),
    st.just(0) | st.floats(0.001, 1000),
    st.dictionaries(st.text(), st.floats(0.001, 1000), max_size=3),
)
def test_what_is_printed_is_read_back(
    number: float, unit: str, burst: float | None, max_wait: float, weights: dict[str, float]
) -> None:
    rate = RateLimit(f"{number:.12f}/{unit}", burst=burst, max_wait=max_wait, weights=weights)
    assert parse_rate_limit(str(rate)) == rate
    assert parse_rate_limit(rate.as_document()) == rate
    assert rate.per_second == pytest.approx(float(f"{number:.12f}") / {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit])


@pytest.mark.parametrize(
    "raw",
    [
        *("", "100", "100/", "/s", "100/x", "100/sec", "100 / s", " 100/s", "100/s ", "-5/s", "1e3/s", "5.", "5./s"),
        *(".5/s", "nan/s", "inf/s", "100/S", "١٠/s", "10/2s"),
    ],
)
def test_other_text_is_no_rate(raw: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rate_limit(raw)
    assert (caught.value.key, caught.value.problem) == ("rate-limit", f"{raw!r} is not a rate")
    assert caught.value.fix == 'write a number and s, m, h or d, for instance "100/s", "10/m" or "0.5/s"'


@pytest.mark.parametrize("raw", [100, 5.0, None, True, ["100/s"], b"100/s"])
def test_other_values_are_no_rate(raw: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rate_limit(raw)
    assert (caught.value.key, caught.value.problem) == ("rate-limit", f"{raw!r} is neither text nor an object")
    assert caught.value.fix == 'write "100/s" or {"rate": "100/s", "burst": 20}'


@pytest.mark.parametrize("raw", ["0/s", "0.0/h", "1000001/s", "60000001/m", "9" * 400 + "/s"])
def test_a_rate_is_more_than_nothing_and_no_more_than_can_be(raw: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rate_limit(raw)
    assert (caught.value.key, caught.value.problem) == ("rate-limit", f"{raw!r} is out of range")
    assert caught.value.fix == "give more than 0 and at most 1000000 a second; for no limit, omit the key"


BURST_FIX = "give the calls that are admitted at once, from 1 (evenly spaced) to 1000000"
SECONDS_FIX = "give seconds from 0 and at most 604800 (a week)"


@pytest.mark.parametrize(
    ("key", "value", "problem", "fix"),
    [
        *[
            ("burst", value, "{!r} is not a number from 1", BURST_FIX)
            for value in (0, 0.99, 1e6 + 1, True, "5", float("nan"))
        ],
        *[
            ("max-wait", value, "{!r} is out of range", SECONDS_FIX)
            for value in (-1.0, -1e-9, MAX_SECONDS + 1, float("inf"))
        ],
        ("max-wait", "1", "{!r} is not a number", "give seconds, for instance 10 or 0.5"),
        ("weights", 5, "{!r} is not an object", 'write {{"batch": 0.5, "ann": 4}}'),
        ("weights", ["ab", "c"], "{!r} is not an object", 'write {{"batch": 0.5, "ann": 4}}'),
        ("weights", {1: 1.0}, "1 is not a user's name", "give names as text"),
        *[
            (
                "weights",
                {"ann": value},
                f"{value!r} for 'ann' is not a number from 0.001 to 1000",
                "give 1 for an even share",
            )
            for value in (0, 0.0009, 1000.1, True, "2", float("nan"))
        ],
        ("weights", {str(n): 1.0 for n in range(10_001)}, "10001 are too many", "give at most 10000; the rest have 1"),
        ("rat", 1, "unknown key", "known keys: rate, burst, max-wait, weights, scope"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_key_and_what_can(
    key: str, value: Any, problem: str, fix: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rate_limit({"rate": "5/s", key: value})
    fix = fix.replace("{{", "{").replace("}}", "}")
    assert (caught.value.key, caught.value.problem, caught.value.fix) == (
        f"rate-limit.{key}",
        problem.format(value),
        fix,
    )


def test_the_bounds_themselves_can_be() -> None:
    for changes in (
        {"burst": 1},
        {"burst": 1_000_000},
        {"max-wait": 0},
        {"max-wait": MAX_SECONDS},
        {"weights": {"a": 0.001, "b": 1000}},
        {"weights": {str(n): 1.0 for n in range(10_000)}},
    ):
        assert parse_rate_limit({"rate": "5/s", **changes}).rate == "5/s"


def test_a_large_number_by_the_hour_needs_a_burst_of_its_own() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rate_limit("1000001/h")
    assert (caught.value.key, caught.value.fix) == ("rate-limit.burst", BURST_FIX)
    assert caught.value.problem == "it is missing, and the number in 'rate' is too large for it"
    assert parse_rate_limit({"rate": "1000001/h", "burst": 10}).capacity == 10
    assert parse_rate_limit("1000000/h").capacity == 1_000_000


def test_an_object_without_a_rate_says_so() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rate_limit({"burst": 5})
    assert (caught.value.key, caught.value.problem) == ("rate-limit.rate", "it is missing")
    assert caught.value.fix.startswith("write a number")


def test_json_that_is_none_says_so() -> None:
    with pytest.raises(PolicyError, match=r"it is not a JSON object \(.*\); write \"100/s\""):
        parse_rate_limit('{"rate": ')


def test_an_error_names_the_key_that_the_rate_was_given_under() -> None:
    for raw, key in (
        ("x", "user-rate-limit"),
        ({"rate": "5/s", "max-wait": -1}, "user-rate-limit.max-wait"),
        ({}, "user-rate-limit.rate"),
    ):
        with pytest.raises(PolicyError) as caught:
            parse_rate_limit(raw, "user-rate-limit")
        assert caught.value.key == key
        assert f"'{key}'" in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
