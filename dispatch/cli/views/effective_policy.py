"""The plan of a tool: the guards of its calls, their values, and the source of each value. Pure.

``dispatch check`` shows it. A dispatcher with the same catalogue and policy behaves as the plan says: both use the policy of
:class:`dispatch.calls.resolution.resolver.ToolResolver`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.calls.resolution.resolver import ToolResolver
from dispatch.catalog import Catalog, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.frozen_json import FrozenDict
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.policy import DEFAULT_POLICY, Policy, RateLimit
from dispatch.schemas.engine import has_engine
from dispatch.telemetry.alerting.slo import describe_slo

DEFAULT, USER, SERVICE, TOOL = "default", "user", "service", "tool"
"""Sources of a value; each one overrides the one before it."""

GUARDS: Mapping[str, tuple[str, ...]] = {
    "deadline": ("timeout", "attempt_timeout", "stream_timeout", "stream_idle_timeout"),
    "sizes": ("max_request_bytes", "max_response_bytes"),
    "models": ("check_arguments", "max_result_chars"),
    "delivery": ("known_instances_only",),
    "retry": ("retry",),
    "hedging": ("hedging",),
    "breaker": ("breaker",),
    "bulkhead": ("bulkhead",),
    "rate-limit": ("rate_limit",),
    "user-rate-limit": ("user_rate_limit",),
    "shared-user-rate-limit": ("shared_user_rate_limit",),
    "balancing": ("balancing",),
    "outlier-detection": ("outlier_detection",),
    "single-flight": ("single_flight",),
    "slo": ("slo",),
}
"""Every field of a policy, by its guard."""

_RATES = ("rate-limit", "user-rate-limit", "shared-user-rate-limit")
# The key that a value stands for when a descriptor has no object for the part.
_SHORT = {
    "retry": "max-attempts",
    "bulkhead": "max-concurrent-calls",
    "balancing": "strategy",
    "slo": "availability",
    **dict.fromkeys(_RATES, "rate"),
}
_PARTS = ("breaker", "outlier-detection", *_SHORT)
_BROKER_SPREADS = "the broker distributes the requests"


class Row(msgspec.Struct, frozen=True):
    """One value that is in force for a tool.

    Attributes:
        guard: one of :data:`GUARDS`.
        key: as in a policy: ``timeout``, ``retry.max-attempts``; that of the part alone when the part is off.
        value: as in JSON; None: off, or no value. A rate's ``burst`` is the number in force.
        source: ``default``, ``user`` (the policy that a dispatcher was given), ``service`` or ``tool``.
        without_effect: why the value has no effect for this tool; "": it has.
    """

    guard: str
    key: str
    value: Any
    source: str
    without_effect: str = ""


class ToolPlan(msgspec.Struct, frozen=True):
    """The guards of one tool.

    Attributes:
        tool, service: names.
        guards: those that are on and have an effect.
        retries: how many attempts, and after which failures.
        requests: how requests are distributed.
        rows: every value, by guard.
        promise: the service level objectives, in words; "": none.
    """

    tool: str
    service: str
    guards: tuple[str, ...]
    retries: str
    requests: str
    rows: tuple[Row, ...]
    promise: str = ""

    @property
    def chosen(self) -> tuple[Row, ...]:
        """The rows that are not defaults."""
        return tuple(row for row in self.rows if row.source != DEFAULT)


def plans(
    catalog: Catalog, base: Policy = DEFAULT_POLICY, user: Mapping[str, Any] = FrozenDict()
) -> Iterator[ToolPlan]:
    """Yield the plan of each tool, in the order of the catalogue. Arguments and errors: see :func:`plan_of`."""
    targets = ToolResolver(catalog, base.merged(user))
    for name in catalog.tools:
        yield _plan(catalog, targets.describe(name), _differing(base), user)


def plan_of(
    catalog: Catalog, tool: str, base: Policy = DEFAULT_POLICY, user: Mapping[str, Any] = FrozenDict()
) -> ToolPlan:
    """Return the plan of one tool.

    Args:
        catalog: services and tools.
        tool: its name.
        base: the policy below all others, as given to :func:`dispatch.connect`. Its values other than the defaults have the
            source ``user``.
        user: keys as in a descriptor, merged over ``base``. All of them have the source ``user``, default or not.

    Raises:
        RejectedError: there is no such tool.
        PolicyError: ``user`` is invalid, alone or together with the policy of the service or the tool.
    """
    return _plan(catalog, ToolResolver(catalog, base.merged(user)).describe(tool), _differing(base), user)


def _plan(catalog: Catalog, target: ResolvedTool, base: Mapping[str, Any], user: Mapping[str, Any]) -> ToolPlan:
    tool, service, policy = catalog.tool(target.label), target.service, target.policy
    written = ((USER, base), (USER, user), (SERVICE, service.policy), (TOOL, tool.policy))
    sources: dict[str, str] = {}
    for source, layer in written:
        _trace(sources, source, layer)
    idle = _without_effect(target, tool)
    rows = tuple(
        Row(guard, key, value, sources.get(key, DEFAULT), idle.get(key, ""))
        for guard in GUARDS
        for key, value in _values(policy, guard)
    )
    return ToolPlan(
        target.label,
        service.id,
        tuple(guard for guard in GUARDS if _is_on(guard, target, idle)),
        _retries(target, tool),
        _requests(target),
        rows,
        describe_slo(policy.slo),
    )


# -- values ---------------------------------------------------------------------------------------------------------


def _kebab(field: str) -> str:
    return field.replace("_", "-")


def _values(policy: Policy, guard: str) -> Iterator[tuple[str, Any]]:
    for field in GUARDS[guard]:
        value, key = getattr(policy, field), _kebab(field)
        if not isinstance(value, msgspec.Struct):
            yield key, value
            continue
        for name, inner in zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True):
            yield f"{key}.{name}", _plain(value, inner)


def _plain(part: msgspec.Struct, field: str) -> Any:
    value = getattr(part, field)
    if isinstance(part, RateLimit):
        if field == "burst":
            return part.capacity
        if field == "weights":
            return dict(value)
    return list(value) if isinstance(value, tuple) else value


# -- sources --------------------------------------------------------------------------------------------------------


def _differing(policy: Policy) -> dict[str, Any]:
    """Return the values of ``policy`` that are not defaults."""
    return {
        _kebab(field): getattr(policy, field)
        for field in policy.__struct_fields__
        if getattr(policy, field) != getattr(DEFAULT_POLICY, field)
    }


def _trace(sources: dict[str, str], source: str, layer: Mapping[str, Any]) -> None:
    """Record the keys that ``layer`` sets over the ones before it."""
    for key, raw in layer.items():
        if key not in _PARTS:
            sources[key] = source
        else:
            if raw is None or key in _RATES or isinstance(raw, msgspec.Struct):  # it replaces the whole part
                for former in [each for each in sources if each.startswith(f"{key}.")]:
                    del sources[former]
            sources[key] = source
            for name in _written(key, raw):
                sources[f"{key}.{name}"] = source


def _written(part: str, raw: Any) -> tuple[str, ...]:
    """Return the keys of ``part`` that ``raw`` sets."""
    if raw is None:
        return ("strategy",) if part == "balancing" else ()
    if isinstance(raw, msgspec.Struct):
        default = getattr(DEFAULT_POLICY, part.replace("-", "_"))
        fields = zip(raw.__struct_encode_fields__, raw.__struct_fields__, strict=True)
        if default is None:  # the part is on because of this layer
            return tuple(name for name, _ in fields)
        return tuple(name for name, field in fields if getattr(raw, field) != getattr(default, field))
    if part in _RATES and isinstance(raw, str) and raw.startswith("{"):
        raw = msgspec.json.decode(raw)
    return tuple(raw) if isinstance(raw, Mapping) else (_SHORT[part],)


# -- effect ---------------------------------------------------------------------------------------------------------


def _reason_against_repeats(tool: ToolDescriptor) -> str:
    """Return why the tool cannot be executed twice for one call; "": it can."""
    if tool.repeatable:
        return ""
    return "declared destructive" if tool.destructive else "neither read-only nor idempotent"


def _has_named_instances(service: ServiceDescriptor) -> bool:
    """Return whether known instances are called by name. On persistent topics none is: these lose no message."""
    topics = [(each.request_queue, each.response_queue) for each in service.instances]
    topics = topics or [(service.request_queue, service.response_queue)]
    return any(not _persistent(request, response) for request, response in topics)


def _persistent(*topics: str) -> bool:
    return any(TopicName.parse(topic).persistent for topic in topics)


def _is_on(guard: str, target: ResolvedTool, idle: Mapping[str, str]) -> bool:
    """Return whether it is a guard that has an effect for the tool."""
    policy = target.policy
    match guard:
        case "retry":
            return policy.retry is not None and policy.retry.max_attempts > 1
        case "hedging":
            return policy.hedging is not None and "hedging" not in idle
        case "balancing":
            return "balancing.strategy" not in idle
        case "outlier-detection":
            return policy.outlier_detection is not None and "outlier-detection.consecutive-failures" not in idle
        case "single-flight":
            return target.is_single_flight
        case "slo":
            return False  # objectives change no call
    return guard in _PARTS and getattr(policy, guard.replace("-", "_")) is not None


def _without_effect(target: ResolvedTool, tool: ToolDescriptor) -> dict[str, str]:
    """Return the keys whose value has no effect for this tool, each with the reason."""
    policy, service = target.policy, target.service
    found: dict[str, str] = {}

    def note(why: str, part: str, *keys: str) -> None:
        for key in keys:
            found.setdefault(f"{part}.{key}" if part else key, why)  # the first reason counts

    unrepeatable = _reason_against_repeats(tool)
    is_by_name = _has_named_instances(service)
    spread = not is_by_name and len(service.instances) < 2
    hedge = policy.hedging
    if hedge is not None and (unrepeatable or spread):
        note(f"off: {unrepeatable or 'one topic, so no other instance is known'}", "", "hedging")
    if policy.retry is None:
        pass
    elif policy.retry.max_attempts == 1:
        note("'max-attempts' is 1: nothing is repeated", "retry", "initial-backoff", "max-backoff", "retryable-errors")
        if hedge is None or unrepeatable or spread:  # otherwise hedges use the budget
            note("nothing is repeated or hedged", "retry", "budget-ratio")
    elif unrepeatable:
        note(f"the tool was executed and cannot be repeated: {unrepeatable}", "retry", "retryable-errors")
    if policy.single_flight and not target.is_single_flight:
        note("off: not declared read-only", "", "single-flight")
    if spread:
        why = f"one topic shared by replicas: {_BROKER_SPREADS}"
        note(why, "balancing", *policy.balancing.__struct_encode_fields__)
        if policy.outlier_detection is not None:
            note(why, "outlier-detection", *policy.outlier_detection.__struct_encode_fields__)
    if not is_by_name and policy.known_instances_only:
        note("no instance is called by name: the topics are persistent", "", "known-instances-only")
    if policy.check_arguments != "never" and not has_engine():
        note("the extra 'schema' is not installed", "", "check-arguments")
    _settings_unused(policy, note)
    return found


def _settings_unused(policy: Policy, note: Callable[..., None]) -> None:
    """Note settings that others of the same part switch off."""
    bulkhead, balancing = policy.bulkhead, policy.balancing
    if bulkhead is not None and bulkhead.max_wait == 0:
        note("'max-wait' is 0: no call waits", "bulkhead", "priorities")
    if balancing.strategy != "least-request":
        note("only 'least-request' has it", "balancing", "choice-count")
    if policy.slo is not None and policy.slo.latency is None:
        note("'latency' is null", "slo", "latency-share")
    rates = [(key, rate) for key in _RATES if (rate := getattr(policy, key.replace("-", "_"))) is not None]
    for key, rate in rates:
        if key != rates[0][0]:
            note(f"the limits share one queue, with the weights of '{rates[0][0]}'", key, "weights")
        shortest = min(rates, key=lambda each: each[1].max_wait)
        if rate.max_wait > shortest[1].max_wait:
            note(f"that of '{shortest[0]}' is shorter", key, "max-wait")
        if shortest[1].max_wait == 0:
            note(f"'{shortest[0]}.max-wait' is 0: no call waits", key, "weights")


# -- in words -------------------------------------------------------------------------------------------------------


def _retries(target: ResolvedTool, tool: ToolDescriptor) -> str:
    retry, unrepeatable = target.policy.retry, _reason_against_repeats(tool)
    attempts = 1 if retry is None else retry.max_attempts
    if attempts == 1:
        return "none"
    if unrepeatable:
        return (
            f"up to {attempts} attempts, but a call without an idempotency key is repeated only where the tool was "
            f"certainly not executed, because the tool is {unrepeatable}"
        )
    declared = [name for name, is_so in (("read-only", tool.read_only), ("idempotent", tool.idempotent)) if is_so]
    return f"up to {attempts} attempts, after a timeout too: declared {' and '.join(declared)}"


def _requests(target: ResolvedTool) -> str:
    service, policy = target.service, target.policy
    listed = ", ".join(each.id for each in service.instances)
    is_by_name = _has_named_instances(service)
    shared = f"one topic shared by replicas: {_BROKER_SPREADS}"
    if target.is_durable and not listed:
        shared = f"one persistent topic shared by replicas: {_BROKER_SPREADS}"
        if target.repeatable:
            shared += ", and gives a request to another when its instance dies"
    if listed:
        found = f"topics listed in the descriptor: {listed}" + (
            "; known instances on them by name" if is_by_name else ""
        )
    elif not is_by_name:
        return shared
    elif policy.known_instances_only:
        found = "known instances by name only"
    else:
        found = f"known instances, each by its name; until one is known, on {shared}"
    own = ", in an instance pool of this tool" if target.pool_key.tool else ""
    return f"{policy.balancing.strategy} over {found}{own}"
