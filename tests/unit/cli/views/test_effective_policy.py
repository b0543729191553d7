"""The plan of a tool: what is in force, where it came from, what has no effect.
Where each value of a plan came from, for any policies of user, service and tool.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.calls.guards import ToolGuards, create_rate_limiter
from dispatch.calls.resolution import ToolResolver
from dispatch.catalog import Catalog
from dispatch.cli.check import GUARDS, SERVICE, TOOL, USER, Row, ToolPlan, plan_of
from dispatch.errors import RejectedError
from dispatch.policy import DEFAULT_POLICY, DEFAULT_SOURCE, Policy, PolicyError

READ_ONLY = {"read-only": True}
SHARED = "one topic shared by replicas: the broker distributes the requests"


def catalog(
    service: Mapping[str, Any] | None = None, tool: Mapping[str, Any] | None = None, kind: str = "non-persistent"
) -> Catalog:
    """One service and one tool, ``look``, with these keys of theirs."""
    return Catalog.of(
        [
            {"id": "s", "request-queue": f"{kind}://tg/request/s", "response-queue": f"{kind}://tg/response/s"}
            | dict(service or {})
        ],
        [
            {"type": "tool-service", "name": "look", "description": "Looks.", "service": "s", "arguments": []}
            | dict(tool or {})
        ],
    )


def planned(
    service: Mapping[str, Any] | None = None,
    tool: Mapping[str, Any] | None = None,
    user: Mapping[str, Any] | None = None,
    *,
    kind: str = "non-persistent",
    **declared: Any,
) -> ToolPlan:
    """The plan of ``look`` with these policies."""
    made = catalog(
        {"policy": service} if service is not None else None,
        ({"policy": tool} if tool is not None else {})
        | {key.replace("_", "-"): each for key, each in declared.items()},
        kind,
    )
    return plan_of(made, "look", user or {})


def row(plan: ToolPlan, key: str) -> Row:
    (found,) = [each for each in plan.rows if each.key == key]
    return found


def value_and_source(plan: ToolPlan, key: str) -> tuple[Any, str]:
    found = row(plan, key)
    return found.value, found.source


# -- every value ----------------------------------------------------------------------------------------------------
def test_every_field_of_a_policy_is_of_one_guard() -> None:
    fields = [field for fields in GUARDS.values() for field in fields]
    assert sorted(fields) == sorted(Policy.__struct_fields__)


def test_a_part_is_a_guard_of_its_own_name_and_the_rest_is_four_groups() -> None:
    single = {guard for guard, fields in GUARDS.items() if fields == (guard.replace("-", "_"),)}
    assert set(GUARDS) - single == {"deadline", "sizes", "models", "delivery"}


def test_without_a_word_everything_is_a_default() -> None:
    plan = planned()
    assert {each.source for each in plan.rows} == {DEFAULT_SOURCE}
    assert plan.chosen == ()
    assert plan.guards == ("retry", "breaker", "bulkhead", "balancing", "outlier-detection")
    assert value_and_source(plan, "timeout") == (30.0, DEFAULT_SOURCE)
    assert value_and_source(plan, "hedging") == (None, DEFAULT_SOURCE)


@pytest.mark.parametrize("declared", [{}, {"read_only": True}, {"idempotent": True}, {"destructive": True}])
@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"retry": 1, "breaker": None},
        {"hedging": "p95", "bulkhead": None},
        {"hedging": 0.5, "rate-limit": "9/s", "retry": 2},
        {"user-rate-limit": "3/s", "shared-user-rate-limit": "5/s"},
    ],
)
async def test_the_guards_are_those_that_calls_meet(policy: dict[str, Any], declared: dict[str, bool]) -> None:
    plan = planned(policy, **declared)
    made = catalog({"policy": policy}, {key.replace("_", "-"): each for key, each in declared.items()})
    target = ToolResolver(made, DEFAULT_POLICY).tool("look")
    guards = ToolGuards(
        target.policy,
        repeatable=target.repeatable,
        clock=asyncio.get_running_loop().time,
        randomness=lambda: 0.5,
        rates=create_rate_limiter,
    )
    met = {"retry": guards.retrying, "hedging": guards.hedging, "breaker": guards.breaker, "bulkhead": guards.bulkhead}
    for name, guard in met.items():
        assert (name in plan.guards) == (guard is not None), name
    assert any(name.endswith("rate-limit") for name in plan.guards) == (guards.rates is not None)


# -- what has no effect ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({}, "off: neither read-only nor idempotent"),
        ({"destructive": True, "idempotent": True}, "off: declared destructive"),
        ({"read_only": True}, ""),
        ({"idempotent": True}, ""),
    ],
)
def test_an_inherited_hedge_is_off_where_nothing_may_run_twice(declared: dict[str, bool], why: str) -> None:
    plan = planned({"hedging": "p95"}, **declared)
    assert row(plan, "hedging") == Row("hedging", "hedging", "p95", SERVICE, why)
    assert ("hedging" in plan.guards) == (why == "")


def test_a_hedge_needs_another_instance() -> None:
    plan = planned({"hedging": "p95"}, kind="persistent", read_only=True)
    assert row(plan, "hedging").without_effect == "off: one topic, so no other instance is known"
    assert "hedging" not in plan.guards


@pytest.mark.parametrize(("declared", "on"), [({"read_only": True}, True), ({"idempotent": True}, False), ({}, False)])
def test_calls_are_shared_only_of_what_is_read_only(declared: dict[str, bool], on: bool) -> None:
    plan = planned({"single-flight": True}, **declared)
    assert ("single-flight" in plan.guards) == on
    assert row(plan, "single-flight").without_effect == ("" if on else "off: not declared read-only")


@pytest.mark.parametrize(
    ("policy", "keys", "others"),
    [
        (
            {"retry": 1},
            "retry.initial-backoff retry.max-backoff retry.retryable-errors retry.budget-ratio",
            "retry.max-attempts",
        ),
        ({"retry": 1, "hedging": "p95"}, "retry.initial-backoff", "retry.budget-ratio hedging"),
        ({}, "", "bulkhead.max-concurrent-calls bulkhead.max-wait bulkhead.priorities"),
        ({"bulkhead": {"max-wait": 0}}, "bulkhead.priorities", "bulkhead.max-concurrent-calls bulkhead.max-wait"),
        ({}, "balancing.choice-count", "balancing.strategy"),
        ({"balancing": "least-request"}, "", "balancing.choice-count"),
        ({"balancing": "peak-ewma"}, "balancing.choice-count", "balancing.strategy"),
        ({"user-rate-limit": "1/s"}, "", "user-rate-limit.weights user-rate-limit.max-wait"),
        (
            {"rate-limit": {"rate": "9/s", "max-wait": 0.5}, "user-rate-limit": "1/s"},
            "user-rate-limit.weights user-rate-limit.max-wait",
            "rate-limit.weights rate-limit.max-wait user-rate-limit.rate user-rate-limit.burst",
        ),
        ({"rate-limit": {"rate": "9/s", "max-wait": 0}}, "rate-limit.weights", "rate-limit.max-wait rate-limit.burst"),
    ],
)
def test_a_setting_that_another_switches_off_says_so(policy: dict[str, Any], keys: str, others: str) -> None:
    plan = planned(policy, read_only=True)
    assert {key for key in keys.split() if not row(plan, key).without_effect} == set()
    assert {key for key in others.split() if row(plan, key).without_effect} == set()


def test_the_reasons() -> None:
    narrow = {"max-concurrent-calls": 5, "max-wait": 0}
    plan = planned({"bulkhead": narrow})
    far = planned({"known-instances-only": True, "retry": 1, "single-flight": True}, kind="persistent")
    rated = planned({"rate-limit": {"rate": "9/s", "max-wait": 0.5}, "user-rate-limit": "1/s"})
    impatient = planned({"rate-limit": {"rate": "9/s", "max-wait": 0}})
    not_named = "no instance is called by name: the topics are persistent"
    reasons = [
        (plan, "bulkhead.priorities", "'max-wait' is 0: no call waits"),
        (plan, "balancing.choice-count", "only 'least-request' has it"),
        (
            plan,
            "retry.retryable-errors",
            "the tool was executed and cannot be repeated: neither read-only nor idempotent",
        ),
        (far, "retry.initial-backoff", "'max-attempts' is 1: nothing is repeated"),
        (far, "retry.budget-ratio", "nothing is repeated or hedged"),
        (far, "balancing.choice-count", SHARED),
        (far, "single-flight", "off: not declared read-only"),
        (rated, "user-rate-limit.weights", "the limits share one queue, with the weights of 'rate-limit'"),
        (rated, "user-rate-limit.max-wait", "that of 'rate-limit' is shorter"),
        (impatient, "rate-limit.weights", "'rate-limit.max-wait' is 0: no call waits"),
        (far, "known-instances-only", not_named),
    ]
    assert [(key, row(each, key).without_effect) for each, key, _ in reasons] == [(key, why) for _, key, why in reasons]


def test_errors_that_pass_help_only_where_the_tool_may_run_again() -> None:
    policy = {"retry": {"retryable-errors": ["busy"]}}
    assert row(planned(policy), "retry.retryable-errors").without_effect.endswith("neither read-only nor idempotent")
    assert row(planned(policy, read_only=True), "retry.retryable-errors").without_effect == ""


def test_persistent_topics_have_nobody_to_ask_by_name() -> None:
    policy = {"policy": {"known-instances-only": True}}
    plan = plan_of(catalog(policy, READ_ONLY, kind="persistent"), "look")
    for key in (
        "known-instances-only",
        "balancing.strategy",
        "outlier-detection.consecutive-failures",
        "outlier-detection.panic-threshold",
    ):
        assert row(plan, key).without_effect, key
    assert "persistent" in row(plan, "known-instances-only").without_effect
    assert "balancing" not in plan.guards
    assert plan.requests == (
        "one persistent topic shared by replicas: the broker distributes the requests, and gives a request to another when "
        "its instance dies"
    )
    assert "another" not in plan_of(catalog(kind="persistent"), "look").requests


# -- in words -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("declared", "policy", "words"),
    [
        (
            {},
            None,
            "up to 3 attempts, but a call without an idempotency key is repeated only where the tool was certainly not "
            "executed, because the tool is neither read-only nor idempotent",
        ),
        (
            {"destructive": True},
            None,
            "up to 3 attempts, but a call without an idempotency key is repeated only where the tool was certainly not "
            "executed, because the tool is declared destructive",
        ),
        ({"read_only": True}, None, "up to 3 attempts, after a timeout too: declared read-only"),
        (
            {"read_only": True, "idempotent": True},
            {"retry": 5},
            "up to 5 attempts, after a timeout too: declared read-only and idempotent",
        ),
        ({"idempotent": True}, {"retry": 1}, "none"),
    ],
)
def test_how_retries_are_allowed(declared: dict[str, bool], policy: dict[str, Any] | None, words: str) -> None:
    assert planned(policy, **declared).retries == words


def test_how_requests_are_balanced() -> None:
    def topics(name: str, kind: str = "non-persistent") -> dict[str, str]:
        return {"id": name, "request-queue": f"{kind}://tg/request/{name}"}

    listed = {"instances": [topics("a"), topics("b")]}
    stored = {"instances": [topics("a", "persistent"), topics("b", "persistent")]}
    stored_replies = {"response-queue": "persistent://tg/response/s"}

    def requests(service: dict[str, Any], tool: dict[str, Any] | None = None) -> str:
        return plan_of(catalog(service, tool), "look").requests

    assert (
        requests({}) == f"round-robin over known instances, each by its name; if none is known after 1 s, on {SHARED}"
    )
    assert requests({"policy": {"known-instances-only": True}}) == "round-robin over known instances by name only"
    assert requests(stored_replies) == SHARED
    assert requests(listed) == "round-robin over topics listed in the descriptor: a, b; known instances on them by name"
    assert requests(stored) == "round-robin over topics listed in the descriptor: a, b"
    assert requests(listed, {"policy": {"balancing": "least-request"}}).startswith("least-request over")
    assert requests(listed, {"policy": {"outlier-detection": {}}}).endswith(", in an instance pool of this tool")


def test_listed_topics_are_balanced_though_nobody_is_known_by_name() -> None:
    queues = [{"id": name, "request-queue": f"persistent://tg/request/{name}"} for name in ("a", "b")]
    policy = {"hedging": "p95"}
    two = plan_of(catalog({"instances": queues, "policy": policy}, READ_ONLY, "persistent"), "look")
    assert {"balancing", "outlier-detection", "hedging"} <= set(two.guards)
    one = plan_of(catalog({"instances": queues[:1], "policy": policy}, READ_ONLY, "persistent"), "look")
    assert not {"balancing", "outlier-detection", "hedging"} & set(one.guards)


@pytest.mark.parametrize(
    ("slo", "promise"),
    [
        (None, ""),
        (0.99, "99 % of calls are good"),
        ({"latency": 1.28, "latency-share": 0.9}, "90 % of successes within 1.28 s"),
        (
            {"availability": 0.999, "latency": 2},
            "99.9 % of calls are good; 95 % of successes within 2 s, measured at 2.56 s",
        ),
    ],
)
def test_what_is_promised(slo: Any, promise: str) -> None:
    plan = planned({"slo": slo})
    assert plan.promise == promise
    assert "slo" not in plan.guards, "it guards nothing"


def test_a_share_of_slow_calls_needs_to_know_what_is_slow() -> None:
    assert row(planned({"slo": 0.99}), "slo.latency-share").without_effect == "'latency' is null"
    assert row(planned({"slo": {"latency": 2}}), "slo.latency-share").without_effect == ""


def test_a_quota_is_a_guard_that_is_on() -> None:
    assert "quota" in planned({"quota": "1000/day"}).guards
    assert "quota" not in planned().guards


# -- mistakes ------------------------------------------------------------------------------------------------------
def test_a_tool_that_is_not_there_is_told() -> None:
    with pytest.raises(RejectedError, match="no tool 'lok'"):
        plan_of(catalog(), "lok")


def test_a_users_policy_that_goes_with_no_tool_is_told() -> None:
    made = catalog({"policy": {"retry": {"max-backoff": 0.5}}})
    with pytest.raises(PolicyError, match=r"'retry.max-backoff': 0.5 is less than 'initial-backoff' \(1.0\)"):
        plan_of(made, "look", user={"retry": {"initial-backoff": 1.0}})
    with pytest.raises(PolicyError, match="did you mean 'timeout'"):
        plan_of(made, "look", user={"timeot": 1})


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
            return source if key in names else DEFAULT_SOURCE
        if raw is None:
            return DEFAULT_SOURCE  # it begins with the defaults again
        if key in (raw if isinstance(raw, Mapping) else (short[part],)):
            return source
    return DEFAULT_SOURCE


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
    assert value_and_source(plan, "retry.budget-ratio") == (0.2, DEFAULT_SOURCE)


def test_who_writes_a_default_has_said_so() -> None:
    assert value_and_source(planned({"timeout": 30.0}), "timeout") == (30.0, SERVICE)


def test_a_part_that_is_off_is_one_row_with_who_switched_it_off() -> None:
    plan = planned({"breaker": None})
    assert value_and_source(plan, "breaker") == (None, SERVICE)
    assert not [each for each in plan.rows if each.key.startswith("breaker.")]
    assert "breaker" not in plan.guards


def test_what_is_switched_on_again_begins_with_the_defaults() -> None:
    plan = planned({"breaker": None}, {"breaker": {"half-open-calls": 1}}, {"breaker": {"open-duration": 2.0}})
    assert value_and_source(plan, "breaker.open-duration") == (5.0, DEFAULT_SOURCE)
    assert value_and_source(plan, "breaker.half-open-calls") == (1, TOOL)


def test_a_rate_stands_for_itself() -> None:
    plan = planned({"rate-limit": {"rate": "10/s", "burst": 3, "max-wait": 7}}, {"rate-limit": "50/s"})
    assert value_and_source(plan, "rate-limit.rate") == ("50/s", TOOL)
    assert value_and_source(plan, "rate-limit.burst") == (50.0, DEFAULT_SOURCE)
    assert value_and_source(plan, "rate-limit.max-wait") == (1, DEFAULT_SOURCE)
    assert value_and_source(planned({"rate-limit": {"rate": "1/s", "weights": {"ann": 2}}}), "rate-limit.weights") == (
        {"ann": 2.0},
        SERVICE,
    )
