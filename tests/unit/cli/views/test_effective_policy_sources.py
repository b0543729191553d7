"""Where each value of a plan came from, for any policies of user, service and tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dispatch.calls.resolution import ToolResolver
from dispatch.cli.check import DEFAULT, SERVICE, TOOL, USER, plan_of
from dispatch.policy import DEFAULT_POLICY, Breaker, Policy, RateLimit, Retry
from tests.unit.cli.views.test_effective_policy import catalog, planned, value_and_source

PARTS: dict[str, list[Any]] = {
    "retry": [
        1,
        2,
        3,
        {"max-attempts": 4},
        {"max-backoff": 3.0},
        {"initial-backoff": 0.1, "retryable-errors": ["busy"]},
        {},
    ],
    "breaker": [
        None,
        {},
        {"open-duration": 5.0},
        {"open-duration": 3.0},
        {"slow-call-duration": 1.0, "failure-rate": 0.4},
    ],
    "bulkhead": [None, 64, 8, {"max-wait": 0}, {"priorities": ["a", "b"]}],
    "rate-limit": [None, "100/s", "10/m", {"rate": "10/m", "burst": 2}, '{"rate": "3/s", "max-wait": 0.5}'],
    "user-rate-limit": [None, "5/s", {"rate": "1/s", "weights": {"ann": 2}}],
    "shared-user-rate-limit": [None, "20/s", {"rate": "20/s", "max-wait": 0.5}],
    "balancing": ["round-robin", "least-request", {"choice-count": 4}, {"strategy": "peak-ewma"}],
    "slo": [None, 0.99, {"latency": 2.0}, {"availability": 0.95, "latency-share": 0.9}],
    "outlier-detection": [
        {},
        {"consecutive-failures": None},
        {"consecutive-failures": 5},
        {"panic-threshold": 0, "base-ejection-time": 10.0},
    ],
}
PLAIN: dict[str, list[Any]] = {
    "timeout": [30.0, 10.0, 5.0],
    "attempt-timeout": [None, 2.0],
    "hedging": [None, "p95", "p90", 0.5],
    "single-flight": [False, True],
}
LAYERS = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in (PARTS | PLAIN).items()})


@given(LAYERS, LAYERS, LAYERS)
def test_the_rows_together_are_the_policy_that_calls_have(
    user: dict[str, Any], service: dict[str, Any], tool: dict[str, Any]
) -> None:
    """Written down as a policy and read again they make the one that a dispatcher works with."""
    made = catalog({"policy": service}, {"policy": tool, "read-only": True})
    plan = plan_of(made, "look", user=user)
    written: dict[str, Any] = {}
    for each in plan.rows:
        part, _, key = each.key.partition(".")
        if key:
            written.setdefault(part, {})[key] = each.value
        else:
            written[part] = each.value
    expected = ToolResolver(made, DEFAULT_POLICY.merged(user)).tool("look").policy
    read = DEFAULT_POLICY.merged(json.loads(json.dumps(written)))
    assert _without_bursts(read) == _without_bursts(expected)
    for key in ("rate_limit", "user_rate_limit", "shared_user_rate_limit"):
        rate = getattr(expected, key)
        assert rate is None or getattr(read, key).capacity == rate.capacity


@given(LAYERS, LAYERS, LAYERS)
def test_a_value_is_whose_word_was_last(user: dict[str, Any], service: dict[str, Any], tool: dict[str, Any]) -> None:
    """Found the other way round: a layer is the source of a value if another value written there would show."""
    plan = plan_of(catalog({"policy": service}, {"policy": tool, "read-only": True}), "look", user=user)
    for each in plan.rows:
        assert each.source == _whose(each.key, ((TOOL, tool), (SERVICE, service), (USER, user))), each.key


def _whose(wanted: str, layers: tuple[tuple[str, Mapping[str, Any]], ...]) -> str:
    part, _, key = wanted.partition(".")
    short = {
        "retry": "max-attempts",
        "bulkhead": "max-concurrent-calls",
        "balancing": "strategy",
        "slo": "availability",
    }
    for source, layer in layers:  # the last word first
        if part not in layer:
            continue
        raw = layer[part]
        if not key:  # a plain value, or a part that is off
            return source
        if part.endswith("rate-limit"):
            if isinstance(raw, str) and raw.startswith("{"):
                raw = json.loads(raw)
            names = raw if isinstance(raw, Mapping) else ("rate",)
            return source if key in names else DEFAULT
        if raw is None:
            return DEFAULT  # it begins with the defaults again
        if key in (raw if isinstance(raw, Mapping) else (short[part],)):
            return source
    return DEFAULT


def _without_bursts(policy: Policy) -> Policy:
    changes = {
        key: msgspec.structs.replace(rate, burst=None)
        for key in ("rate_limit", "user_rate_limit", "shared_user_rate_limit")
        if (rate := getattr(policy, key)) is not None
    }
    return msgspec.structs.replace(policy, **changes)


def test_each_layer_is_laid_over_the_one_before_key_by_key() -> None:
    plan = planned(
        {"timeout": 20, "retry": {"max-backoff": 1.0}},
        {"timeout": 5, "retry": 2},
        {"timeout": 40, "retry": {"initial-backoff": 0.2}},
    )
    assert value_and_source(plan, "timeout") == (5, TOOL)
    assert value_and_source(plan, "retry.max-attempts") == (2, TOOL)
    assert value_and_source(plan, "retry.max-backoff") == (1.0, SERVICE)
    assert value_and_source(plan, "retry.initial-backoff") == (0.2, USER)
    assert value_and_source(plan, "retry.budget-ratio") == (0.2, DEFAULT)


def test_who_writes_a_default_has_said_so() -> None:
    assert value_and_source(planned({"timeout": 30.0}), "timeout") == (30.0, SERVICE)


def test_a_part_that_is_off_is_one_row_with_who_switched_it_off() -> None:
    plan = planned({"breaker": None})
    assert value_and_source(plan, "breaker") == (None, SERVICE)
    assert not [each for each in plan.rows if each.key.startswith("breaker.")]
    assert "breaker" not in plan.guards


def test_what_is_switched_on_again_begins_with_the_defaults() -> None:
    plan = planned({"breaker": None}, {"breaker": {"half-open-calls": 1}}, {"breaker": {"open-duration": 2.0}})
    assert value_and_source(plan, "breaker.open-duration") == (5.0, DEFAULT)
    assert value_and_source(plan, "breaker.half-open-calls") == (1, TOOL)


def test_a_rate_stands_for_itself() -> None:
    plan = planned({"rate-limit": {"rate": "10/s", "burst": 3, "max-wait": 7}}, {"rate-limit": "50/s"})
    assert value_and_source(plan, "rate-limit.rate") == ("50/s", TOOL)
    assert value_and_source(plan, "rate-limit.burst") == (50.0, DEFAULT)
    assert value_and_source(plan, "rate-limit.max-wait") == (1, DEFAULT)
    assert value_and_source(planned({"rate-limit": {"rate": "1/s", "weights": {"ann": 2}}}), "rate-limit.weights") == (
        {"ann": 2.0},
        SERVICE,
    )


def test_a_policy_made_in_code_is_the_users_where_it_differs() -> None:
    base = Policy(timeout=7, retry=Retry(max_backoff=1.0), breaker=None, rate_limit=RateLimit("9/s"), hedging="p90")  # type: ignore[arg-type]
    plan = planned(base=base, user={"retry": {"initial-backoff": 0.3}}, read_only=True)
    assert value_and_source(plan, "timeout") == (7, USER)
    assert value_and_source(plan, "retry.max-backoff") == (1.0, USER)
    assert value_and_source(plan, "retry.initial-backoff") == (0.3, USER)
    assert value_and_source(plan, "retry.max-attempts") == (3, DEFAULT)
    assert value_and_source(plan, "breaker") == (None, USER)
    assert value_and_source(plan, "rate-limit.rate") == ("9/s", USER)
    assert value_and_source(plan, "hedging") == ("p90", USER)
    assert value_and_source(planned(base=Policy(user_rate_limit=RateLimit("9/s"))), "user-rate-limit.max-wait") == (
        1,
        USER,
    )
    assert value_and_source(planned({"breaker": None}, base=Policy(breaker=Breaker(half_open_calls=5))), "breaker") == (
        None,
        SERVICE,
    )
