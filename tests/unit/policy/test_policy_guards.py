"""Settings of balancing and of outlier detection: every key, every default, every mistake with its key and its fix.
A breaker's settings: every default, every mistake with its key and its fix.
The bulkhead's settings: defaults, what can be, and how a descriptor says it.
Rates as they are written: what is read, what is refused with which words, and that what is printed is read back.
The settings of retries and hedges: every key, its bounds exactly, and every mistake with its key and its fix.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.balancing.instances import NO_EJECTION, EjectionRules, complete_rules
from dispatch.policy import (
    DEFAULT_POLICY,
    MAX_SECONDS,
    STRATEGIES,
    Balancing,
    Breaker,
    Bulkhead,
    OutlierDetection,
    Policy,
    PolicyError,
    RateLimit,
    Retry,
    hedging_quantile,
    parse_policy,
    parse_rate_limit,
)

EVERY_KEY = {
    "consecutive-failures": 3,
    "base-ejection-time": 7,
    "max-ejection-ratio": 0.25,
    "panic-threshold": 0.3,
    "slow-start-window": 12,
    "count-tool-errors": True,
}


def read_part(key: str, raw: object, base: Any = None) -> Any:
    """Return a part of a policy, merged over ``base``; None: over the defaults."""
    field = key.replace("-", "_")
    policy = DEFAULT_POLICY if base is None else Policy(**{field: base})
    return getattr(parse_policy({key: raw}, policy), field)


def test_a_text_alone_is_the_strategy() -> None:
    assert STRATEGIES == ("round-robin", "weighted", "least-request", "peak-ewma")
    for name in STRATEGIES:
        assert read_part("balancing", name) == Balancing(strategy=name)


def test_every_key_is_read() -> None:
    assert read_part("balancing", {"strategy": "least-request", "choice-count": 4}) == Balancing("least-request", 4)
    assert read_part("outlier-detection", EVERY_KEY) == OutlierDetection(3, 7, 0.25, 0.3, 12, True)
    assert set(EVERY_KEY) == set(OutlierDetection.__struct_encode_fields__)


def test_what_is_not_said_stays_as_the_base_has_it() -> None:
    base = Balancing("least-request", 4)
    assert read_part("balancing", "weighted", base) == Balancing("weighted", 4)
    assert read_part("balancing", {"choice-count": 5}, base) == Balancing("least-request", 5)
    assert read_part("balancing", {}, base) is base
    strict = OutlierDetection(consecutive_failures=2)
    read = read_part("outlier-detection", {"panic-threshold": 0.2}, strict)
    assert read == OutlierDetection(consecutive_failures=2, panic_threshold=0.2)
    assert read_part("outlier-detection", {}, strict) is strict
    assert read_part("outlier-detection", {}) == OutlierDetection()


def test_rules_can_be_left_out() -> None:
    made = read_part(
        "outlier-detection", {"consecutive-failures": None, "slow-start-window": None, "panic-threshold": 0}
    )
    assert made is not None
    assert (made.consecutive_failures, made.slow_start_window, made.panic_threshold) == (None, None, 0)


def test_null_is_round_robin_and_no_ejection() -> None:
    assert read_part("balancing", None, Balancing("least-request", 4)) == Balancing()
    assert read_part("outlier-detection", None, OutlierDetection(consecutive_failures=2)) is None
    assert complete_rules(None) is NO_EJECTION
    assert not NO_EJECTION.ejects
    assert NO_EJECTION.slow_start_window is None
    assert EjectionRules(consecutive_failures=None).ejects
    assert EjectionRules(success_rate_stdev_factor=None).ejects


def test_a_policys_settings_are_completed_and_complete_ones_stay() -> None:
    rules = EjectionRules(consecutive_failures=9, interval=1.0)
    assert complete_rules(rules) is rules
    assert complete_rules(OutlierDetection(base_ejection_time=7)) == EjectionRules(base_ejection_time=7)


def kebab(key: str) -> str:
    return f"breaker.{key.replace('_', '-')}"


def test_settings_read_from_a_descriptor_are_the_same() -> None:
    raw = msgspec.to_builtins(Breaker(min_calls=50, slow_call_duration=2.5, count_tool_errors=True))
    assert msgspec.convert(raw, Breaker) == Breaker(min_calls=50, slow_call_duration=2.5, count_tool_errors=True)


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


def test_a_bare_number_is_the_limit_of_calls() -> None:
    base = Bulkhead(max_wait=7)
    assert read_part("bulkhead", 16, base) == Bulkhead(max_concurrent_calls=16, max_wait=7)
    assert read_part("bulkhead", 16) == Bulkhead(max_concurrent_calls=16)
    with pytest.raises(PolicyError, match=r"bulkhead\.max-concurrent-calls.*0\.5"):
        read_part("bulkhead", 0.5)


def test_an_object_is_laid_over_the_base() -> None:
    base = Bulkhead(max_wait=7, max_concurrent_calls=3)
    assert read_part("bulkhead", {}, base) is base
    assert read_part("bulkhead", Bulkhead(max_wait=8), base) == Bulkhead(max_wait=8)
    read = read_part("bulkhead", {"max-wait": 2, "priorities": ["chat", "night"]}, base)
    assert read == Bulkhead(max_concurrent_calls=3, max_wait=2, priorities=("chat", "night"))


def test_null_is_off() -> None:
    assert read_part("bulkhead", None) is None
    assert read_part("bulkhead", None, Bulkhead(max_wait=8)) is None


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


def test_every_key_is_read_retry() -> None:
    raw = {
        "max-attempts": 2,
        "initial-backoff": 0.1,
        "max-backoff": 1,
        "budget-ratio": 0.5,
        "retryable-errors": ["busy", "locked"],
    }
    assert read_part("retry", raw) == Retry(2, 0.1, 1, 0.5, ("busy", "locked"))


def test_a_bare_number_is_the_attempts() -> None:
    assert read_part("retry", 5) == Retry(max_attempts=5)
    assert read_part("retry", 1).max_attempts == 1


def test_null_switches_retries_off() -> None:
    assert read_part("retry", None, Retry(max_attempts=5)) is None


def test_a_cap_may_be_the_base_and_not_less() -> None:
    assert Retry(initial_backoff=0.5, max_backoff=0.5).max_backoff == 0.5
    with pytest.raises(PolicyError) as caught:
        Retry(initial_backoff=0.5, max_backoff=0.49)
    assert caught.value.key == "retry.max-backoff"
    assert caught.value.problem == "0.49 is less than 'initial-backoff' (0.5)"
    assert caught.value.fix == "give the longest wait, for instance 2"


@pytest.mark.parametrize(
    ("text", "share"), [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("p97.25", 0.9725)]
)
def test_percentiles(text: str, share: float) -> None:
    assert parse_policy({"hedging": text}).hedging == text
    assert hedging_quantile(text) == pytest.approx(share)


@pytest.mark.parametrize("delay", [0, -0.1, math.nan, MAX_SECONDS + 1, True, [1], b"p95"])
def test_a_hedging_delay_is_seconds_or_a_percentile(delay: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy({"hedging": delay})
    assert caught.value.key == "hedging"


def test_a_hedging_delay_in_seconds_has_no_quantile() -> None:
    assert hedging_quantile(0.2) is None
