"""Policies: every key, and every mistake with its key and its fix."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.policy import (
    DEFAULT_POLICY,
    MAX_SECONDS,
    Balancing,
    Breaker,
    Bulkhead,
    OutlierDetection,
    Policy,
    PolicyError,
    RateLimit,
    Retry,
    Slo,
    check_seconds,
    parse_policy,
)

KEYS = (
    "timeout",
    "attempt-timeout",
    "stream-timeout",
    "stream-idle-timeout",
    "max-response-bytes",
    "max-request-bytes",
    "known-instances-only",
)
PARTS = (
    "retry",
    "hedging",
    "breaker",
    "bulkhead",
    "rate-limit",
    "user-rate-limit",
    "shared-user-rate-limit",
    "quota",
    "balancing",
    "outlier-detection",
    "single-flight",
    "slo",
    "check-arguments",
    "max-result-chars",
)


def test_the_defaults_are_those_that_are_documented() -> None:
    assert Policy() == DEFAULT_POLICY
    assert (DEFAULT_POLICY.timeout, DEFAULT_POLICY.attempt_timeout) == (30.0, None)
    assert (DEFAULT_POLICY.stream_timeout, DEFAULT_POLICY.stream_idle_timeout) == (300.0, 30.0)
    assert DEFAULT_POLICY.max_response_bytes == 64 * 1024 * 1024
    assert DEFAULT_POLICY.max_request_bytes == 64 * 1024 * 1024


def test_every_key_is_read() -> None:
    raw = dict(zip(KEYS, (1, 2.5, 3, 4, 6, 9, True), strict=True))
    assert parse_policy(raw) == Policy(1, 2.5, 3, 4, 6, 9, True)
    assert Policy.__struct_encode_fields__ == KEYS + PARTS


def test_every_part_is_read_and_laid_over_what_is_in_force() -> None:
    service = parse_policy(
        {
            "retry": {"max-attempts": 2, "max-backoff": 1},
            "hedging": 0.2,
            "breaker": {"open-duration": 1},
            "bulkhead": {"max-wait": 3},
            "rate-limit": "10/s",
            "user-rate-limit": {"rate": "1/s", "burst": 2},
            "shared-user-rate-limit": "5/m",
            "balancing": "least-request",
            "outlier-detection": {"consecutive-failures": 9},
            "slo": 0.99,
        }
    )
    assert service == Policy(
        retry=Retry(max_attempts=2, max_backoff=1),
        hedging=0.2,
        breaker=Breaker(open_duration=1),
        bulkhead=Bulkhead(max_wait=3),
        rate_limit=RateLimit("10/s"),
        user_rate_limit=RateLimit("1/s", burst=2),
        shared_user_rate_limit=RateLimit("5/m"),
        balancing=Balancing("least-request"),
        outlier_detection=OutlierDetection(consecutive_failures=9),
        slo=Slo(availability=0.99),
    )
    tool = service.merged(
        {
            "retry": 4,
            "hedging": "p99",
            "breaker": {"half-open-calls": 1},
            "bulkhead": 5,
            "rate-limit": "2/s",
            "balancing": {"choice-count": 3},
            "outlier-detection": {"panic-threshold": 0.2},
            "slo": {"latency": 2},
        }
    )
    assert tool.retry == Retry(max_attempts=4, max_backoff=1)
    assert tool.hedging == "p99"
    assert tool.breaker == Breaker(open_duration=1, half_open_calls=1)
    assert tool.bulkhead == Bulkhead(max_wait=3, max_concurrent_calls=5)
    assert tool.rate_limit == RateLimit("2/s")
    assert tool.balancing == Balancing("least-request", choice_count=3)
    assert tool.outlier_detection == OutlierDetection(consecutive_failures=9, panic_threshold=0.2)
    assert tool.slo == Slo(availability=0.99, latency=2)
    assert tool.user_rate_limit == service.user_rate_limit


def test_null_switches_a_part_off() -> None:
    service = Policy(hedging="p95", rate_limit=RateLimit("1/s"), slo=Slo(0.9))
    off = service.merged(
        dict.fromkeys(
            ("hedging", "breaker", "bulkhead", "rate-limit", "user-rate-limit", "shared-user-rate-limit", "slo")
        )
    )
    assert off.slo is None
    assert (off.hedging, off.breaker, off.bulkhead, off.rate_limit, off.user_rate_limit) == (None,) * 5
    assert off.merged({"breaker": {"half-open-calls": 2}, "bulkhead": 3, "hedging": "p95"}) == Policy(
        breaker=Breaker(half_open_calls=2), bulkhead=Bulkhead(max_concurrent_calls=3), hedging="p95"
    )
    off = Policy(balancing=Balancing("least-request"), single_flight=True).merged(
        dict.fromkeys(("retry", "balancing", "outlier-detection", "single-flight"))
    )
    assert (off.retry, off.balancing, off.outlier_detection, off.single_flight) == (None, Balancing(), None, False)


def test_in_python_parts_may_be_written_as_in_a_descriptor() -> None:
    made = Policy(retry=2, hedging="p95", rate_limit="3/s", slo=0.9)  # type: ignore[arg-type] # a convenience at run time
    assert made == Policy(retry=Retry(max_attempts=2), hedging="p95", rate_limit=RateLimit("3/s"), slo=Slo(0.9))
    assert Policy().merged({"retry": Retry(max_attempts=5)}) == Policy(retry=Retry(max_attempts=5))
    with pytest.raises(PolicyError, match="policy key 'user-rate-limit'"):
        Policy(user_rate_limit="many")  # type: ignore[arg-type] # likewise


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"retry": {"attemps": 2}}, "retry.attemps"),
        ({"breaker": {"failure-rate": 2}}, "breaker.failure-rate"),
        ({"breaker": 5}, "breaker"),
        ({"bulkhead": 0}, "bulkhead.max-concurrent-calls"),
        ({"concurrency": 3}, "concurrency"),
        ({"user-rate-limit": "5"}, "user-rate-limit"),
        ({"shared-user-rate-limit": {"rate": "5/s", "burst": 0}}, "shared-user-rate-limit.burst"),
        ({"balancing": "round"}, "balancing.strategy"),
        ({"single-flight": 1}, "single-flight"),
        ({"slo": 99}, "slo.availability"),
        ({"slo": {}}, "slo"),
    ],
)
def test_a_part_that_cannot_be_names_its_key(raw: dict[str, object], key: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(raw)
    assert caught.value.key == key


def test_what_is_not_said_stays_as_the_base_has_it() -> None:
    base = Policy(timeout=7, max_response_bytes=9)
    merged = base.merged({"max-response-bytes": 3})
    assert merged == Policy(timeout=7, max_response_bytes=3)
    assert base == Policy(timeout=7, max_response_bytes=9)
    assert base.merged({}) is base


def test_an_attempts_limit_can_be_taken_away_again() -> None:
    assert Policy(attempt_timeout=2).merged({"attempt-timeout": None}).attempt_timeout is None


@pytest.mark.parametrize("raw", [None, "fast", 5, [("timeout", 5)]])
def test_a_policy_is_an_object(raw: object) -> None:
    with pytest.raises(PolicyError, match=r"'policy'.*not an object; write \{\"timeout\": 10\}"):
        parse_policy(raw)


def test_any_mapping_will_do() -> None:
    assert parse_policy(MappingProxyType({"timeout": 5})).timeout == 5


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("timeuot", "timeout"),
        ("stream_idle_timeout", "stream-idle-timeout"),
        ("max-response-byte", "max-response-bytes"),
    ],
)
def test_a_key_slightly_wrong_is_told_with_the_right_one(key: str, meant: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy({key: 5})
    assert caught.value.key == key
    assert caught.value.problem == "unknown key"
    assert f"did you mean '{meant}'?" in caught.value.fix
    assert all(known in caught.value.fix for known in KEYS)


def test_a_key_like_nothing_is_told_with_all_that_there_are() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy({"qzqzqz": 5})
    assert caught.value.fix == f"known keys: {', '.join(KEYS + PARTS)}"


def test_a_key_that_is_no_text_is_told() -> None:
    with pytest.raises(PolicyError, match="policy key '5': unknown key"):
        parse_policy({5: 5})


@pytest.mark.parametrize("key", KEYS[:4])
@pytest.mark.parametrize("value", [0, -1, -0.0, math.inf, -math.inf, math.nan, MAX_SECONDS * 1.001, 10**400])
def test_a_time_out_of_range_names_key_and_range(key: str, value: float) -> None:
    with pytest.raises(PolicyError, match="seconds above 0 and at most 604800") as caught:
        parse_policy({key: value})
    assert caught.value.key == key


@pytest.mark.parametrize("key", KEYS[:4])
@pytest.mark.parametrize("value", ["10", True, False, [10], {}])
def test_a_time_that_is_no_number_names_key_and_form(key: str, value: object) -> None:
    with pytest.raises(PolicyError, match="is not a number; give seconds") as caught:
        parse_policy({key: value})
    assert caught.value.key == key


@pytest.mark.parametrize("key", ["timeout", "stream-timeout", "stream-idle-timeout"])
def test_only_an_attempt_may_be_without_a_limit(key: str) -> None:
    with pytest.raises(PolicyError):
        parse_policy({key: None})


@pytest.mark.parametrize("key", KEYS[4:5])
@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "10", True, None])
def test_a_count_that_is_none_names_key_and_form(key: str, value: object) -> None:
    with pytest.raises(PolicyError, match="whole number ≥ 1") as caught:
        parse_policy({key: value})
    assert caught.value.key == key


def test_the_bounds_themselves_are_allowed() -> None:
    assert MAX_SECONDS == 604_800, "a week"
    assert check_seconds(MAX_SECONDS) == MAX_SECONDS
    assert check_seconds(5e-324) > 0
    assert parse_policy({"max-response-bytes": 1, "max-request-bytes": 1}) == Policy(
        max_response_bytes=1, max_request_bytes=1
    )


def test_seconds_come_back_as_a_float() -> None:
    assert isinstance(check_seconds(5), float)
    with pytest.raises(PolicyError, match="policy key 'timeout'"):
        check_seconds("5")
    with pytest.raises(PolicyError, match="policy key 'idle-timeout'"):
        check_seconds("5", "idle-timeout")


def test_a_policy_made_in_code_is_checked_too() -> None:
    with pytest.raises(PolicyError, match="'timeout'"):
        Policy(timeout=0)
    with pytest.raises(PolicyError, match="'stream-idle-timeout'"):
        Policy(stream_idle_timeout=-1)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        DEFAULT_POLICY.timeout = 5  # type: ignore[misc]


json_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), json_values, max_size=4))
def test_any_object_is_a_policy_or_a_policy_error(raw: dict[str, Any]) -> None:
    mistakes: list[PolicyError] = []
    try:
        policy = parse_policy(raw)
    except PolicyError as error:
        mistakes.append(error)
    else:
        assert parse_policy(msgspec.to_builtins(policy)) == policy
    assert all(mistake.key in raw and mistake.fix for mistake in mistakes)
