"""Policies: every key, and every mistake with its key and its fix.
A policy in a file, and keys of a policy in code: every mistake at once.
What may be repeated. Nobody else refuses this when the configuration loads: a retried or hedged tool that changes the
world changes it twice, and nobody knows until it has.
What a tool promises: every key, its bounds exactly, and every mistake with its key and its fix.
Settings of balancing and of outlier detection: every key, every default, every mistake with its key and its fix.
A breaker's settings: every default, every mistake with its key and its fix.
The bulkhead's settings: defaults, what can be, and how a descriptor says it.
Rates as they are written: what is read, what is refused with which words, and that what is printed is read back.
The settings of retries and hedges: every key, its bounds exactly, and every mistake with its key and its fix.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping
from itertools import product
from math import inf, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dispatch
from dispatch.catalog import ToolDescriptor
from dispatch.policy import (
    DEFAULT_POLICY,
    MAX_SECONDS,
    STRATEGIES,
    UNDECLARED,
    Annotations,
    Balancing,
    Breaker,
    Bulkhead,
    Declared,
    OutlierDetection,
    Policy,
    PolicyError,
    RateLimit,
    Retry,
    Slo,
    check_repeats,
    check_seconds,
    explain_policy,
    hedging_quantile,
    parse_policy,
    parse_rate_limit,
    read_policy,
    repeatable,
)
from dispatch.resilience.instances import NO_EJECTION, EjectionRules, complete_rules

KEYS = (
    *("timeout", "attempt-timeout", "stream-timeout", "stream-idle-timeout"),
    *("max-response-bytes", "max-request-bytes", "known-instances-only"),
)
PARTS = (
    *("retry", "hedging", "breaker", "bulkhead"),
    *("rate-limit", "user-rate-limit", "shared-user-rate-limit", "quota"),
    *("balancing", "outlier-detection", "single-flight", "slo", "check-arguments", "max-result-chars"),
)


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
    parts = ("hedging", "breaker", "bulkhead", "rate-limit", "user-rate-limit", "shared-user-rate-limit", "slo")
    off = service.merged(dict.fromkeys(parts))
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
    with pytest.raises(PolicyError, match=r"retry\.attemps': unknown key; did you mean 'max-attempts'"):
        parse_policy({"retry": {"attemps": 2}})
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


SECONDS = (
    *("timeout", "attempt-timeout", "stream-timeout", "stream-idle-timeout"),
    *("retry.initial-backoff", "retry.max-backoff"),
    *("breaker.open-duration", "breaker.max-open-duration", "breaker.slow-call-duration", "slo.latency"),
    *("outlier-detection.base-ejection-time", "outlier-detection.slow-start-window"),
)
MAY_BE_NULL = ("attempt-timeout", "breaker.slow-call-duration", "outlier-detection.slow-start-window", "slo.latency")
COUNTS = {
    "breaker.min-calls": 100,
    "breaker.half-open-calls": 100,
    "breaker.consecutive-failures": 100_000,
    "outlier-detection.consecutive-failures": 100_000,
}
OUT_OF_RANGE, NOT_WHOLE = "{!r} is out of range", "{!r} is not a whole number"
NO_OBJECTS = (5, [("choice-count", 5)])
FORM_OF_SECONDS = "give seconds, for instance 10 or 0.5"
ABOVE_0 = "give seconds above 0 and at most 604800 (a week)"
FROM_0 = "give seconds from 0 and at most 604800 (a week)"
BURST_FIX = "give the calls that are admitted at once, from 1 (evenly spaced) to 1000000"
OF_ALL = "(99 % is 0.99; 1 would allow no failure at all)"
Refused = tuple[str, tuple[object, ...], str, str]


def refused_rates(key: str) -> list[Refused]:
    """Return the values of one of the keys of rates that are refused, and why."""
    unread = ("", "100", "100/", "/s", "100/x", "100/sec", "100 / s", " 100/s", "100/s ", "-5/s", "1e3/s", "5.", "5./s")
    example = 'write a number and s, m, h or d, for instance "100/s", "10/m" or "0.5/s"'
    no_weight = "not a number from 0.001 to 1000"
    many = {str(number): 1.0 for number in range(10_001)}
    weights = (0, 0.0009, 1000.1, True, "2", nan)
    return [
        (key, (*unread, ".5/s", "nan/s", "inf/s", "100/S", "١٠/s", "10/2s"), "{!r} is not a rate", example),
        (
            key,
            (100, 5.0, True, ["100/s"], b"100/s"),
            "{!r} is neither text nor an object",
            'write "100/s" or {"rate": "100/s", "burst": 20}',
        ),
        (
            key,
            ("0/s", "0.0/h", "1000001/s", "60000001/m", "9" * 400 + "/s"),
            OUT_OF_RANGE,
            "give more than 0 and at most 1000000 a second; for no limit, omit the key",
        ),
        (f"{key}.burst", (0, 0.99, 1e6 + 1, True, "5", nan), "{!r} is not a number from 1", BURST_FIX),
        (f"{key}.max-wait", (-1.0, -1e-9, MAX_SECONDS + 1, inf), OUT_OF_RANGE, FROM_0),
        (f"{key}.max-wait", ("1",), "{!r} is not a number", FORM_OF_SECONDS),
        (f"{key}.weights", (5, ["ab", "c"]), "{!r} is not an object", 'write {"batch": 0.5, "ann": 4}'),
        (f"{key}.weights", ({1: 1.0},), "1 is not a user's name", "give names as text"),
        *(
            (f"{key}.weights", ({"ann": weight},), f"{weight!r} for 'ann' is {no_weight}", "give 1 for an even share")
            for weight in weights
        ),
        (f"{key}.weights", (many,), "10001 are too many", "give at most 10000; the rest have 1"),
        (f"{key}.rat", (1,), "unknown key", "did you mean 'rate'? known keys: rate, burst, max-wait, weights, scope"),
    ]


REFUSED: list[Refused] = [
    *(
        row
        for key in SECONDS
        for row in (
            (key, (0, -1, -0.0, inf, -inf, nan, MAX_SECONDS * 1.001, 10**400), OUT_OF_RANGE, ABOVE_0),
            (key, ("10", True, False, [10], {}), "{!r} is not a number", FORM_OF_SECONDS),
        )
    ),
    *((key, (None,), "{!r} is not a number", FORM_OF_SECONDS) for key in sorted(set(SECONDS) - set(MAY_BE_NULL))),
    *(
        (
            key,
            (0, -1, 1.0, 2.5, True, "5", most + 1),
            f"{{!r}} is not a whole number from 1 to {most}",
            f"give a whole number ≥ 1 and ≤ {most}",
        )
        for key, most in COUNTS.items()
    ),
    *(
        (key, (0, 1, "true", None), "{!r} is not true or false", "give true or false")
        for key in ("breaker.count-tool-errors", "outlier-detection.count-tool-errors")
    ),
    *(
        row
        for key, example in (("slo.availability", "0.99"), ("slo.latency-share", "0.95"))
        for row in (
            (
                key,
                (0.4999, 0, 0.99991, 1, 1.0, 99, -0.9, nan, inf),
                "{!r} is not from 0.5 to 0.9999",
                f"give the share of calls, for instance {example} {OF_ALL}",
            ),
            (key, (True, "0.9", [0.9]), "{!r} is not a number", f"give the share of calls, for instance {example}"),
        )
    ),
    *(
        (key, (True, "1", None), "{!r} is not a number", "give a number, for instance 0.5")
        for key in ("outlier-detection.max-ejection-ratio", "outlier-detection.panic-threshold")
    ),
    ("max-response-bytes", (0, -1, 1.5, 2.0, "10", True, None), f"{NOT_WHOLE} above 0", "give a whole number ≥ 1"),
    (
        "retry",
        (True, False, "3", 3.0, [3]),
        "{!r} is neither a number of attempts nor an object",
        'write 3, {"max-attempts": 3}, or null for no retry',
    ),
    ("retry.max-attempts", (0, -1, 11, 2.0, True, "3", None), f"{NOT_WHOLE} from 1 to 10", "give 3, or 1 for no retry"),
    ("retry.budget-ratio", (-0.01, 1.01, nan), "{!r} is not from 0 to 1", "give the share of calls, for instance 0.2"),
    ("retry.budget-ratio", (True, "0.2", None), "{!r} is not a number", "give the share of calls, for instance 0.2"),
    (
        "retry.retryable-errors",
        ("busy", ("",), (5,), {"busy": 1}, None),
        "{!r} is not a list of error types",
        'give their names, for instance ["busy"]',
    ),
    (
        "hedging",
        ("p49.999", "p99.901", "p100", "p5", "95", "P95", "p95%", "", "p", "p9.5", "p95.", "p٩٥", "p95\n", "fast"),
        "{!r} is not a percentile from p50 to p99.9",
        'give "p95", or seconds',
    ),
    (
        "breaker.failure-rate",
        (0, -0.1, 1.0001, 50, nan, inf),
        OUT_OF_RANGE,
        "give a share above 0 and at most 1, for instance 0.5",
    ),
    ("breaker.failure-rate", ("0.5", True, None), "{!r} is not a number", "give a share, for instance 0.5"),
    ("breaker.open-duration", (0.0009,), "{!r} is too short", "give 0.001 or more, for instance 5"),
    ("breaker.open-duration", (301,), "{!r} is more than 'max-open-duration', 300.0", "give at most that"),
    (
        "bulkhead",
        (True, "16", [16]),
        "{!r} is neither a number nor an object",
        'write 16, {"max-concurrent-calls": 16, "max-wait": 0.5}, or null for off',
    ),
    (
        "bulkhead.max-concurrent-calls",
        (0, 10_001, True, 1.5),
        "{!r} is not a whole number from 1 to 10000",
        "give a whole number ≥ 1, for instance 64",
    ),
    ("bulkhead.max-wait", (-1, MAX_SECONDS * 1.001), OUT_OF_RANGE, FROM_0),
    ("bulkhead.max-wait", (False, "1"), "{!r} is not a number", FORM_OF_SECONDS),
    (
        "bulkhead.priorities",
        ((), (*"123456789",), ("a", "a"), ("a", ""), ("a", 1), "ab"),
        "{!r} is not a list of 1 to 8 different names",
        'write ["interactive", "batch"], the most urgent first',
    ),
    ("balancing", NO_OBJECTS, "{1} is not an object", 'write "peak-ewma", or null for round-robin'),
    (
        "balancing.strategy",
        ("peak_ewma",),
        "{!r} is unknown",
        "did you mean 'peak-ewma'? known: round-robin, weighted, least-request, peak-ewma",
    ),
    ("balancing.strategy", (7,), "{!r} is unknown", "known: round-robin, weighted, least-request, peak-ewma"),
    (
        "balancing.choice-count",
        (1, 257, 2.5, True, None),
        "{!r} is not a whole number from 2 to 256",
        "give 2, or the number of instances to compare all",
    ),
    ("outlier-detection", NO_OBJECTS, "{1} is not an object", 'write {"consecutive-failures": 3}, or null for off'),
    ("outlier-detection.base-ejection-time", (301,), "{!r} is more than the longest ejection", "give at most 300"),
    ("outlier-detection.max-ejection-ratio", (0, 1.001, nan), OUT_OF_RANGE, "give a share above 0 and at most 1"),
    (
        "outlier-detection.panic-threshold",
        (-0.1, 1.1, nan),
        OUT_OF_RANGE,
        "give a share from 0 to 1; 0: only when all fail",
    ),
    (
        "slo",
        (True, False, "0.99", "99%", [0.99], b"x"),
        "{!r} is neither a share nor an object",
        'write 0.99, {"availability": 0.99, "latency": 2}, or null for no promise',
    ),
    (
        "slo.latency",
        (82,),
        "{!r} is more than 81.92, and longer times are not distinguished",
        "give seconds, for instance 2",
    ),
    ("hedging", (0, -0.1, nan, MAX_SECONDS + 1), OUT_OF_RANGE, ABOVE_0),
    ("hedging", (True, [1], b"p95"), "{!r} is not a number", FORM_OF_SECONDS),
    ("breaker", (5,), "{!r} is not an object", 'write {"failure-rate": 0.5}, or null for off'),
    ("single-flight", (1, "yes"), "{!r} is not true or false", "give true or false"),
    *(row for key in ("rate-limit", "user-rate-limit", "shared-user-rate-limit") for row in refused_rates(key)),
]
ACCEPTED: dict[str, tuple[object, ...]] = {
    "attempt-timeout": (None,),
    "retry.max-attempts": (1, 10),
    "retry.budget-ratio": (0, 0.5, 1),
    "breaker.failure-rate": (1e-9, 1),
    "breaker.min-calls": (1, 100),
    "breaker.half-open-calls": (1, 100),
    "breaker.consecutive-failures": (1, 100_000, None),
    "breaker.open-duration": (0.001, 300),
    "breaker.slow-call-duration": (None,),
    "bulkhead.max-concurrent-calls": (1, 10_000),
    "bulkhead.max-wait": (0, 0.001, None),
    "bulkhead.priorities": (("one",), tuple("12345678")),
    "balancing.choice-count": (2, 256),
    "outlier-detection.consecutive-failures": (1, 100_000),
    "outlier-detection.base-ejection-time": (300,),
    "outlier-detection.max-ejection-ratio": (0.001, 1),
    "outlier-detection.panic-threshold": (0, 1),
    "slo.availability": (0.5, 0.5001, 0.9999),
    "slo.latency": (0.0001, 81.92),
}
"""The bounds of the values of each key, and null where it is a value."""


def read_key(path: str, value: object) -> Any:
    """Return the value of a key of a policy, or of one of its parts, as it is read."""
    part, _, key = path.partition(".")
    rate = {"rate": "5/s"} if part.endswith("rate-limit") else {}
    policy = parse_policy({part: {**rate, key: value} if key else value})
    return functools.reduce(getattr, path.replace("-", "_").split("."), policy)


@pytest.mark.parametrize(("key", "values", "problem", "fix"), REFUSED)
def test_a_value_that_cannot_be_is_told_with_its_key_and_what_can(
    key: str, values: tuple[object, ...], problem: str, fix: str
) -> None:
    for value in values:
        with pytest.raises(PolicyError) as caught:
            read_key(key, value)
        expected = (key, problem.format(value, type(value).__name__), fix)
        assert caught.value.mistakes == (expected,)


@pytest.mark.parametrize("key", ACCEPTED)
def test_the_bounds_of_a_key_are_valid(key: str) -> None:
    for value in ACCEPTED[key]:
        assert read_key(key, value) == value


def test_the_bounds_themselves_are_allowed() -> None:
    assert MAX_SECONDS == 604_800, "a week"
    assert check_seconds(MAX_SECONDS) == MAX_SECONDS
    assert check_seconds(5e-324) > 0
    assert type(check_seconds(5)) is float, "a whole number of seconds, too"
    least = Policy(max_response_bytes=1, max_request_bytes=1)
    assert parse_policy({"max-response-bytes": 1, "max-request-bytes": 1}) == least


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


def test_a_file_has_the_keys_of_a_descriptor(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text('\ufeff{"timeout": 10, "retry": 2, "rate-limit": "5/s", "breaker": null}')
    (tmp_path / "policy.yaml").write_text("timeout: 10\nretry: 2   # attempts\nrate-limit: 5/s\nbreaker: null\n")
    wanted = Policy(timeout=10, retry=Retry(max_attempts=2), rate_limit=RateLimit("5/s"), breaker=None)
    assert Policy.load(tmp_path / "policy.json") == Policy.load(str(tmp_path / "policy.yaml")) == wanted


def test_every_mistake_in_a_file_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("timeout: soon\nretry: {max-attempts: 0, max-backof: 2, budget-ratio: 7}\n")
    with pytest.raises(PolicyError) as caught:
        Policy.load(file)
    fixes = [line.split(" Fix: ")[0] for line in str(caught.value).splitlines()]
    assert fixes == [
        f"The policy in '{file}' is invalid: 4 mistakes.",
        f"  {file}: retry.max-attempts: 0 is not a whole number from 1 to 10.",
        f"  {file}: retry.max-backof: unknown key.",
        f"  {file}: retry.budget-ratio: 7 is not from 0 to 1.",
        f"  {file}: timeout: 'soon' is not a number.",
    ]
    assert (caught.value.key, caught.value.file) == ("retry.max-attempts", str(file))
    assert pickle.loads(pickle.dumps(caught.value)).mistakes == caught.value.mistakes


@pytest.mark.parametrize(
    ("content", "problem"), [(b"timeout: [", "not YAML"), (b"", "the file is empty"), (b"- 1", "contains a list")]
)
def test_what_is_no_policy_says_so(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "policy.yml").write_bytes(content)
    with pytest.raises(PolicyError, match=problem):
        Policy.load(tmp_path / "policy.yml")
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        Policy.load(tmp_path / "missing.json")


def test_every_mistake_in_code_is_listed() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(timeout=0, slo=7)  # type: ignore[arg-type] # wrong on purpose
    assert [key for key, _problem, _fix in caught.value.mistakes] == ["slo.availability", "timeout"]
    assert str(caught.value).count("\n") == 1


def test_values_that_are_invalid_together_are_reported_once_each_is_valid() -> None:
    raw = {"retry": {"initial-backoff": "x", "max-backoff": 0.01}}
    with pytest.raises(PolicyError) as caught:
        parse_policy(raw)
    assert [key for key, _problem, _fix in caught.value.mistakes] == ["retry.initial-backoff"]
    with pytest.raises(PolicyError, match=r"0\.01 is less than 'initial-backoff'"):
        parse_policy({"retry": {"max-backoff": 0.01}})


def test_a_dispatcher_takes_keys_as_in_a_descriptor() -> None:
    keys = {"timeout": 10, "rate-limit": "5/s"}
    dispatch.connect("memory://keys", policy=keys)
    assert read_policy(keys) == Policy(timeout=10, rate_limit=RateLimit("5/s"))
    with pytest.raises(PolicyError) as caught:
        dispatch.connect("memory://keys", policy={"timeout": 0, "rate-limit": "5"})
    assert [key for key, _problem, _fix in caught.value.mistakes] == ["timeout", "rate-limit"]


ALL = [Annotations(*each) for each in product((False, True), (False, True), (None, False, True))]
ONCE, THRICE, HEDGED = Policy(retry=Retry(max_attempts=1)), Policy(retry=Retry(max_attempts=3)), Policy(hedging="p95")


def refused(tool: Declared, policy: Policy, *own: str) -> PolicyError | None:
    try:
        check_repeats(tool, policy, own)
    except PolicyError as error:
        return error
    return None


@pytest.mark.parametrize("tool", ALL)
def test_only_what_is_read_only_or_idempotent_may_run_twice_and_nothing_destructive(tool: Annotations) -> None:
    expected = tool in (
        Annotations(True, False, None),
        Annotations(True, False, False),
        Annotations(False, True, None),
        Annotations(False, True, False),
        Annotations(True, True, None),
        Annotations(True, True, False),
    )
    assert repeatable(tool) is expected


def test_of_what_declares_nothing_the_worse_is_assumed() -> None:
    assert Annotations(read_only=False, idempotent=False, destructive=None) == UNDECLARED
    assert not repeatable(UNDECLARED)


@pytest.mark.parametrize("tool", ALL)
def test_what_everybody_has_is_refused_to_nobody(tool: Annotations) -> None:
    assert refused(tool, Policy(retry=Retry(max_attempts=3), hedging="p95", single_flight=True)) is None


@pytest.mark.parametrize("tool", ALL)
def test_retries_that_a_destructive_tool_asks_for_are_refused(tool: Annotations) -> None:
    error = refused(tool, Policy(retry=Retry(max_attempts=2)), "retry")
    if not tool.destructive:
        assert error is None
        return
    assert error.key == "retry"
    assert error.problem == "the tool is declared 'destructive', and a retry may run it twice"
    assert error.fix == "leave 'retry' out: a request that was not executed is retried all the same"


@pytest.mark.parametrize("tool", ALL)
def test_who_asks_for_no_retries_is_not_refused(tool: Annotations) -> None:
    assert refused(tool, ONCE, "retry", "hedging", "single-flight") is None


@pytest.mark.parametrize("tool", ALL)
def test_a_hedge_of_its_own_is_for_what_may_run_twice(tool: Annotations) -> None:
    error = refused(tool, HEDGED, "hedging")
    if repeatable(tool):
        assert error is None
    elif tool.destructive:
        assert error.problem == "the tool is declared 'destructive', and a hedge runs it twice"
        assert error.fix == "write null for this tool"
    else:
        assert error.problem == "the tool is neither 'read-only' nor 'idempotent', and a hedge runs it twice"
        assert error.fix == "declare the tool so if it is so, or write null for this tool"
    assert error is None or error.key == "hedging"


@pytest.mark.parametrize("tool", ALL)
def test_an_answer_is_shared_only_by_calls_that_change_nothing(tool: Annotations) -> None:
    error = refused(tool, Policy(single_flight=True), "single-flight")
    assert (error is None) == tool.read_only
    assert error is None or error.key == "single-flight"


def test_a_tools_descriptor_is_asked_as_it_is() -> None:
    tool = ToolDescriptor(name="look-up", description="", service="s", read_only=True)
    assert repeatable(tool)
    check_repeats(tool, Policy(hedging="p95", retry=THRICE.retry), ("hedging", "retry"))


@pytest.mark.parametrize("raw", [{}, {"latency-share": 0.9}, {"availability": None, "latency": None}])
def test_a_promise_of_nothing_is_none(raw: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy({"slo": raw})
    assert (caught.value.key, caught.value.problem) == ("slo", "it sets no objective")
    assert caught.value.fix == "give 'availability' or 'latency', or write null for no objective"
    with pytest.raises(PolicyError, match="'slo': it sets no objective"):
        Slo()


def test_a_policy_is_the_source_of_the_values_in_which_it_differs_from_the_defaults() -> None:
    def sources(base: Policy, *layers: tuple[str, Mapping[str, Any]]) -> dict[str, tuple[Any, str]]:
        merged = functools.reduce(Policy.merged, (layer for _, layer in layers), base)
        return {each.key: (each.value, each.source) for each in explain_policy(merged, (("dispatcher", base), *layers))}

    retry = Retry(max_backoff=1.0)
    base = Policy(timeout=7, retry=retry, breaker=None, rate_limit=RateLimit("9/s"), hedging="p90")
    found = sources(base, ("service", {"retry": {"initial-backoff": 0.3}}))
    assert found["timeout"] == (7, "dispatcher")
    assert found["retry.max-backoff"] == (1.0, "dispatcher")
    assert found["retry.initial-backoff"] == (0.3, "service")
    assert found["retry.max-attempts"] == (3, "default")
    assert found["breaker"] == (None, "dispatcher")
    assert found["rate-limit.rate"] == ("9/s", "dispatcher")
    assert found["rate-limit.burst"] == (9.0, "dispatcher")
    assert found["hedging"] == ("p90", "dispatcher")
    assert sources(Policy(user_rate_limit=RateLimit("9/s")))["user-rate-limit.max-wait"] == (1, "dispatcher")
    off = sources(Policy(breaker=Breaker(half_open_calls=5)), ("service", {"breaker": None}))
    assert off["breaker"] == (None, "service")
    ratio = DEFAULT_POLICY.retry.budget_ratio
    assert sources(Policy(), ("tool", {"retry": 2}))["retry.budget-ratio"] == (ratio, "default")


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


BACKOFF = {"initial-backoff": 0.1, "max-backoff": 1}
WHOLE_RETRY = {"max-attempts": 2, **BACKOFF, "budget-ratio": 0.5, "retryable-errors": ["busy", "locked"]}
STRICT, FEW, LEAST = OutlierDetection(consecutive_failures=2), Bulkhead(3, max_wait=7), Balancing("least-request", 4)


@pytest.mark.parametrize(
    ("key", "raw", "base", "expected"),
    [
        ("slo", {"availability": 0.999, "latency": 2.0, "latency-share": 0.9}, None, Slo(0.999, 2.0, 0.9)),
        ("slo", 0.9, None, Slo(availability=0.9)),
        ("slo", {"latency": 0.5}, None, Slo(availability=None, latency=0.5)),
        *(("balancing", name, None, Balancing(name)) for name in STRATEGIES),
        ("balancing", {"strategy": "least-request", "choice-count": 4}, None, LEAST),
        ("balancing", "weighted", LEAST, Balancing("weighted", 4)),
        ("balancing", {"choice-count": 5}, LEAST, Balancing("least-request", 5)),
        ("outlier-detection", EVERY_KEY, None, OutlierDetection(3, 7, 0.25, 0.3, 12, True)),
        ("outlier-detection", {"panic-threshold": 0.2}, STRICT, OutlierDetection(2, panic_threshold=0.2)),
        ("outlier-detection", {}, None, OutlierDetection()),
        ("outlier-detection", {"slow-start-window": None}, STRICT, OutlierDetection(2, slow_start_window=None)),
        ("bulkhead", 16, FEW, Bulkhead(16, max_wait=7)),
        ("bulkhead", 16, None, Bulkhead(16)),
        ("bulkhead", Bulkhead(max_wait=8), FEW, Bulkhead(max_wait=8)),
        ("bulkhead", {"max-wait": 2, "priorities": ["a", "b"]}, FEW, Bulkhead(3, max_wait=2, priorities=("a", "b"))),
        ("bulkhead", None, None, None),
        ("bulkhead", None, FEW, None),
        ("retry", WHOLE_RETRY, None, Retry(2, 0.1, 1, 0.5, ("busy", "locked"))),
        ("retry", 5, None, Retry(max_attempts=5)),
        ("retry", None, Retry(max_attempts=5), None),
    ],
)
def test_a_part_is_read_over_the_one_in_force(key: str, raw: Any, base: Any, expected: Any) -> None:
    assert read_part(key, raw, base) == expected


@pytest.mark.parametrize(("key", "base"), [("balancing", LEAST), ("outlier-detection", STRICT), ("bulkhead", FEW)])
def test_an_empty_part_changes_nothing(key: str, base: Any) -> None:
    assert read_part(key, {}, base) is base
    policy = Policy(timeout=7)
    assert policy.merged({}) is policy


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
    [("0100/s", "100/s"), ("2.50/m", "2.5/m"), ("7.0/h", "7/h"), ("1.0/d", "1/d"), ("0.0000123456789/s",) * 2],
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
    one, same = (RateLimit("5/s", weights=weights) for weights in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert len({one, same, RateLimit("5/m")}) == 2


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


def test_json_that_is_none_says_so() -> None:
    with pytest.raises(PolicyError, match=r"it is not a JSON object \(.*\); write \"100/s\""):
        parse_rate_limit('{"rate": ')


def test_an_error_names_the_key_that_the_rate_was_given_under() -> None:
    for raw, suffix in (("x", ""), ({"rate": "5/s", "max-wait": -1}, ".max-wait"), ({}, ".rate")):
        with pytest.raises(PolicyError) as caught:
            parse_rate_limit(raw, "user-rate-limit")
        key = f"user-rate-limit{suffix}"
        assert caught.value.key == key
        assert f"'{key}'" in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


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


def test_a_hedging_delay_in_seconds_has_no_quantile() -> None:
    assert hedging_quantile(0.2) is None
