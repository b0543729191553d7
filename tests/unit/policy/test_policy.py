"""Policies: every key, and every mistake with its key and its fix.
A policy in a file, and keys of a policy in code: every mistake at once.
What may be repeated. Nobody else refuses this when the configuration loads: a retried or hedged tool that changes the
world changes it twice, and nobody knows until it has.
What a tool promises: every key, its bounds exactly, and every mistake with its key and its fix.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Mapping
from itertools import product
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
    parse_policy,
    read_policy,
    repeatable,
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


SECONDS = (
    *(
        "timeout",
        "attempt-timeout",
        "stream-timeout",
        "stream-idle-timeout",
        "retry.initial-backoff",
        "retry.max-backoff",
    ),
    *("breaker.open-duration", "breaker.max-open-duration", "breaker.slow-call-duration", "slo.latency"),
    *("outlier-detection.base-ejection-time", "outlier-detection.slow-start-window"),
)
SECONDS_OR_NONE = (
    "attempt-timeout",
    "breaker.slow-call-duration",
    "outlier-detection.slow-start-window",
    "slo.latency",
)
COUNTS = {
    "breaker.min-calls": 100,
    "breaker.half-open-calls": 100,
    "breaker.consecutive-failures": 100_000,
    "outlier-detection.consecutive-failures": 100_000,
}
FORM_OF_SECONDS = "give seconds, for instance 10 or 0.5"
OF_ALL = "(99 % is 0.99; 1 would allow no failure at all)"
REFUSED: list[tuple[str, tuple[object, ...], str, str]] = [
    *(
        row
        for key in SECONDS
        for row in (
            (
                key,
                (0, -1, -0.0, math.inf, -math.inf, math.nan, MAX_SECONDS * 1.001, 10**400),
                "{!r} is out of range",
                "give seconds above 0 and at most 604800 (a week)",
            ),
            (key, ("10", True, False, [10], {}), "{!r} is not a number", FORM_OF_SECONDS),
        )
    ),
    *((key, (None,), "{!r} is not a number", FORM_OF_SECONDS) for key in sorted(set(SECONDS) - set(SECONDS_OR_NONE))),
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
                (0.4999, 0, 0.99991, 1, 1.0, 99, -0.9, math.nan, math.inf),
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
    (
        "max-response-bytes",
        (0, -1, 1.5, 2.0, "10", True, None),
        "{!r} is not a whole number above 0",
        "give a whole number ≥ 1",
    ),
    (
        "retry",
        (True, False, "3", 3.0, [3]),
        "{!r} is neither a number of attempts nor an object",
        'write 3, {"max-attempts": 3}, or null for no retry',
    ),
    (
        "retry.max-attempts",
        (0, -1, 11, 2.0, True, "3", None),
        "{!r} is not a whole number from 1 to 10",
        "give 3, or 1 for no retry",
    ),
    (
        "retry.budget-ratio",
        (-0.01, 1.01, math.nan),
        "{!r} is not from 0 to 1",
        "give the share of calls, for instance 0.2",
    ),
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
        (0, -0.1, 1.0001, 50, math.nan, math.inf),
        "{!r} is out of range",
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
    (
        "bulkhead.max-wait",
        (-1, MAX_SECONDS * 1.001),
        "{!r} is out of range",
        "give seconds from 0 and at most 604800 (a week)",
    ),
    ("bulkhead.max-wait", (False, "1"), "{!r} is not a number", FORM_OF_SECONDS),
    (
        "bulkhead.priorities",
        ((), (*"123456789",), ("a", "a"), ("a", ""), ("a", 1), "ab"),
        "{!r} is not a list of 1 to 8 different names",
        'write ["interactive", "batch"], the most urgent first',
    ),
    ("balancing", (5, [("choice-count", 5)]), "{1} is not an object", 'write "peak-ewma", or null for round-robin'),
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
    (
        "outlier-detection",
        (5, [("choice-count", 5)]),
        "{1} is not an object",
        'write {"consecutive-failures": 3}, or null for off',
    ),
    ("outlier-detection.base-ejection-time", (301,), "{!r} is more than the longest ejection", "give at most 300"),
    (
        "outlier-detection.max-ejection-ratio",
        (0, 1.001, math.nan),
        "{!r} is out of range",
        "give a share above 0 and at most 1",
    ),
    (
        "outlier-detection.panic-threshold",
        (-0.1, 1.1, math.nan),
        "{!r} is out of range",
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
    policy = parse_policy({part: {key: value} if key else value})
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
    assert parse_policy({"max-response-bytes": 1, "max-request-bytes": 1}) == Policy(
        max_response_bytes=1, max_request_bytes=1
    )


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
    assert error is not None
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
        assert error is not None
        assert error.problem == "the tool is declared 'destructive', and a hedge runs it twice"
        assert error.fix == "write null for this tool"
    else:
        assert error is not None
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


def test_every_key_of_an_slo_is_read() -> None:
    raw = {"availability": 0.999, "latency": 2.0, "latency-share": 0.9}
    assert parse_policy({"slo": raw}).slo == Slo(0.999, 2.0, 0.9)


def test_a_bare_number_is_the_availability() -> None:
    assert parse_policy({"slo": 0.9}).slo == Slo(availability=0.9)


def test_a_promise_of_latency_alone_says_nothing_of_availability() -> None:
    assert parse_policy({"slo": {"latency": 0.5}}).slo == Slo(availability=None, latency=0.5)


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
    assert sources(Policy(), ("tool", {"retry": 2}))["retry.budget-ratio"] == (
        DEFAULT_POLICY.retry.budget_ratio,
        "default",
    )
