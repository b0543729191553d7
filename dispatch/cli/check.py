"""``dispatch check``: report every mistake in the sources of the catalogue, and each tool's effective policy."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer
from msgspec.structs import asdict

from dispatch._internal import excerpt, join_names
from dispatch.calls.resolution import ResolvedTool, ToolResolver
from dispatch.catalog import Catalog, CatalogError, Problem, ServiceDescriptor, Severity, ToolDescriptor
from dispatch.cli.base import (
    Exit,
    Settings,
    align_columns,
    check_policy_file,
    colorize,
    format_count,
    make_printable,
    print_json,
    print_out,
    with_settings,
)
from dispatch.cli.sources import Snapshot, read_given_sources
from dispatch.documents import DocumentError, FrozenDict, load_document
from dispatch.errors import TransportError
from dispatch.messaging.wire import TopicName
from dispatch.permissions import Grants, GrantsError, PermissionSet, require_permissions
from dispatch.policy import DEFAULT_POLICY, DEFAULT_SOURCE, Policy, PolicyError, explain_policy
from dispatch.relay import MAX_FILE_BYTES, RelayConfig, RelayedService, RelayError, plan_services
from dispatch.routing.instance import DISCOVERY_S, HELLO_WAIT_S
from dispatch.telemetry.rules import describe_slo
from dispatch.transports import default_broker
from dispatch.transports.errors import describe_without_call
from dispatch.transports.pulsar.handshake import endpoints

_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}


class PlanDetail(StrEnum):
    """How much of the effective policy is shown."""

    SHORT = "short"
    FULL = "full"
    NONE = "none"


@with_settings("broker", "catalog", "trustgraph", "workspace", "policy", "grants", "token_file", "trust_certs")
def check(
    settings: Settings,
    folders: Annotated[list[str] | None, typer.Argument()] = None,
    plan: PlanDetail = PlanDetail.SHORT,
    tool: str | None = None,
    relay: str | None = None,
    json: bool = False,
) -> None:
    """Check the sources of the catalogue: report every mistake with file, key and fix; then each tool's effective policy.

    With several sources it also reports what is shadowed: of two tools with one name, that of the first source is used.

    The effective policy lists the guards that are on, the attempts of a call and the reason, the routing of requests, and
    each value with its source: default, user (--policy), service or tool, where later sources override earlier ones.
    Tools with permissions that no grant (--grants) matches are reported.

    [bold]dispatch check tools/[/bold]

    [bold]dispatch check tools/ more-tools/ --trustgraph --broker pulsar://localhost:6650[/bold]

    [bold]dispatch check tools/ --tool tell-joke --policy mine.json[/bold]

    [bold]dispatch check --relay relay.json[/bold]

    The exit code is 1 if there is an error; warnings and notes do not count. A broker is used only with --trustgraph.

    Args:
        folders (DIR): Folders of the descriptors. Default: --catalog.
        plan: Effective policy of each tool: values that differ from the defaults, every value, or nothing. --json has
            every value.
        tool (NAME): Show every value of this tool only.
        relay (FILE): Check the configuration of 'dispatch relay' with its sources, and show what is forwarded where.
        json: Print everything as one line of JSON.
    """
    relay_config: RelayConfig | None = None
    sources: list[CheckedSource] = []
    problems: list[Problem] = []
    catalog: Catalog | None = None
    readable: Catalog | None = None
    try:
        if relay is not None:
            relay_config = RelayConfig.load(relay)
            settings.catalog, settings.policy = list(relay_config.catalog), relay_config.policy
            settings.workspace = settings.workspace or relay_config.workspace
            settings.grants = relay_config.grants
            settings.broker = settings.broker or default_broker(relay_config.broker)
        if folders:
            settings.catalog = folders
        snapshot = read_given_sources(settings, "dispatch check")
        sources, readable = list_checked_sources(snapshot), snapshot.catalog
        catalog = None if snapshot.failures else readable
    except (RelayError, CatalogError) as error:  # in the file that names what is read
        problems += error.problems
    user: Mapping[str, Any] | None = {}
    if settings.policy_file is not None:
        user, wrong = check_policy_file(settings.policy_file)
        problems += wrong
    if catalog is not None:
        problems += check_grants(catalog, settings.grants_file)
    relayed: list[RelayedService] = []
    if readable is not None and relay_config is not None:
        relayed, wrong = plan_services(readable, relay_config.services)
        problems += _check_relay(relay_config, str(relay))
        problems += wrong if catalog is not None else ()  # a service may come from a source that cannot be read now
        if not relayed and catalog is not None and not wrong and relay_config.mcp_tool is None:
            fix = "give a service 'instances' with request topics of their own, or name it in \"services\""
            problems.append(
                Problem(str(relay), "services", "no service is relayed: none has 'instances'", fix, "warning")
            )
    if catalog is not None and tool is not None and tool not in catalog.tools:
        catalog.tool(tool)  # raises an error that names near ones
    plans: list[ToolPlan] | None = None
    if catalog is not None and user is not None:
        wanted = [tool] if tool is not None else list(catalog.tools)
        plans, wrong = _build_plans(catalog, wanted, user, settings.policy_file or "")
        problems += wrong
    everything = [problem for source in sources for problem in source.problems] + problems
    failed = any(problem.severity == "error" for problem in everything)
    if plan is PlanDetail.NONE:
        plans = None
    if json:
        _put_json(sources, catalog, problems, plans, None if relay_config is None else relayed, failed=failed)
    else:
        for source in sources:
            for problem in source.problems:
                _show(problem)
            if len(sources) > 1:
                print_out(source.summary(source.problems))
        for problem in problems:
            _show(problem)
        counts = None if catalog is None else (len(catalog.services), len(catalog.tools))
        only = sources[0] if len(sources) == 1 else None
        print_out(only.summary(everything) if only else format_numbers("all sources", everything, counts))
        if relay_config is not None:
            _show_relay(relay_config, relayed)
        if plans:
            _show_plans(plans, full=plan is PlanDetail.FULL or tool is not None)
    if failed:
        raise typer.Exit(Exit.FAILED)


def _check_relay(config: RelayConfig, file: str) -> list[Problem]:
    """Return what is wrong with the broker's address and with the file of MCP servers."""
    problems: list[Problem] = []
    try:
        if config.broker is not None:
            endpoints(config.broker)
    except TransportError as error:
        problem = describe_without_call(error).partition(". ")[0]
        problems.append(Problem(file, "broker", problem, 'write "broker": "pulsar://localhost:6650"'))
    if config.mcp_servers is not None:
        try:
            from dispatch.mcp.conversion import read_configuration
        except ImportError as error:  # of the extra
            return [*problems, Problem(file, "mcp-servers", str(error), "install it, or remove the key")]
        try:
            content = load_document(
                config.mcp_servers, MAX_FILE_BYTES, "keep data out of it", 'write {"mcpServers": {}}'
            )
        except DocumentError as error:
            return [*problems, *(Problem(config.mcp_servers, *mistake) for mistake in error.mistakes)]
        found = read_configuration(content, config.mcp_servers, os.environ)
        problems += (
            found if isinstance(found, list) else chain(found.warnings, *(each.problems for each in found.invalid))
        )
    return problems


def _build_plans(
    catalog: Catalog, tools: list[str], user: Mapping[str, Any], file: str
) -> tuple[list[ToolPlan], list[Problem]]:
    """Return the effective policy of each tool, and the conflicts between the user's policy and those of services and tools,
    one problem per reason."""
    found: list[ToolPlan] = []
    wrong: dict[tuple[str, str, str], list[str]] = {}
    for name in tools:
        try:
            found.append(plan_of(catalog, name, user=user))
        except PolicyError as error:
            wrong.setdefault((error.key, error.problem, error.fix), []).append(name)
    problems = [
        Problem(excerpt(file, 4096), key, f"{problem}, together with the policy of {join_names(names, 5)}", fix)
        for (key, problem, fix), names in wrong.items()
    ]
    return found, problems


def _put_json(
    sources: Sequence[CheckedSource],
    catalog: Catalog | None,
    problems: list[Problem],
    plans: list[ToolPlan] | None,
    relayed: Sequence[RelayedService] | None,
    *,
    failed: bool,
) -> None:
    relay = (
        {} if relayed is None else {"relay": [{**asdict(each), "tools": [*each.tools.values()]} for each in relayed]}
    )
    print_json(
        {
            "sources": [source.as_dict() for source in sources],
            "ok": not failed,
            "services": None if catalog is None else len(catalog.services),
            "tools": None if catalog is None else len(catalog.tools),
            "problems": [
                {"source": id, **msgspec.to_builtins(problem)}
                for id, found in (*((source.id, source.problems) for source in sources), ("", problems))
                for problem in found
            ],
            "plan": msgspec.to_builtins(plans),
            **relay,
        }
    )


def _show_relay(config: RelayConfig, services: Sequence[RelayedService]) -> None:
    for service in services:
        print_out(f"\n{service.id}")
        kinds = "persistent" if TopicName.parse(service.request_queue).persistent else "non-persistent"
        after = (
            "another relay takes over repeatable requests of one that dies"
            if kinds == "persistent"
            else "requests that a relay holds when it dies are lost"
        )
        rows = [("listens", service.request_queue), ("", f"{kinds}: {after}"), ("replies", service.response_queue)]
        for name, topic in service.instances.items():
            rows.append(("forwards", f"{topic} ({name})"))
        rows.append(("tools", f"{join_names([*service.tools.values()], 20) or 'none'}; else service:{service.id}"))
        print_out(align_columns([(f"  {key}", make_printable(value)) for key, value in rows]))
    if config.mcp_tool is not None:
        workspace = "all workspaces" if config.mcp_tool.workspace == "*" else f"workspace '{config.mcp_tool.workspace}'"
        print_out(f"\n{config.mcp_tool.processor}\n  serves its flows in {workspace} with the tools of the catalogue")


def _show(problem: Problem) -> None:
    where = f"{problem.file}: {problem.key}" if problem.key else problem.file
    severity = colorize(f"{problem.severity}:", _STYLES[problem.severity], sys.stdout)
    print_out(f"{severity} {make_printable(where)}: {make_printable(problem.problem)}")
    print_out(f"  fix: {make_printable(problem.fix)}")


def _show_plans(plans: list[ToolPlan], *, full: bool) -> None:
    for each in plans:
        print_out("")
        print_out(format_details(each) if full else format_summary(each))
    print_out("")
    print_out(UNITS if full else DEFAULTS)


# The problems of one source, for ``dispatch check``.


_SEVERITIES: Final[Mapping[Severity, str]] = {"error": "error", "warning": "warning", "info": "note"}


class CheckedSource(NamedTuple):
    """A source with its problems.

    Attributes:
        id: of the source.
        problems: of its items, those that are shadowed among them.
        is_loaded: its items can be used, except those that are refused.
        services, tools: numbers in force.
    """

    id: str
    problems: Sequence[Problem]
    is_loaded: bool
    services: int
    tools: int

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.id.removeprefix("folder:")

    def summary(self, problems: Iterable[Problem]) -> str:
        """Return one line with the numbers of ``problems``."""
        return format_numbers(self.label, problems, (self.services, self.tools) if self.is_loaded else None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {"source": self.id, "ok": self.is_loaded, "services": self.services, "tools": self.tools}


def list_checked_sources(snapshot: Snapshot) -> list[CheckedSource]:
    """Return all sources of a snapshot in their order."""
    catalog = snapshot.catalog
    checked = []
    for id, report in snapshot.merged.reports.items():
        services = len(catalog.services) if len(snapshot.merged.reports) == 1 else report.items - report.tools
        tools = sum(catalog.source_of(name) == id for name in catalog.tools)
        shadowed = [
            Problem(
                each.origin,
                "",
                f"'{each.name}' is shadowed: the earlier source {each.active_source} has it ({each.active_origin})",
                "rename one of them, or remove it",
                "warning",
            )
            for each in report.shadowed
        ]
        problems = [*snapshot.problems[id], *shadowed]
        checked.append(CheckedSource(id, problems, id not in snapshot.failures, services, tools))
    return checked


def format_numbers(label: str, problems: Iterable[Problem], loaded: tuple[int, int] | None) -> str:
    """Return one line with the numbers of problems, services and tools.

    Args:
        label: of the source.
        problems: to count.
        loaded: numbers of services and tools; None: the source cannot be loaded.
    """
    counts = Counter(problem.severity for problem in problems)
    found = [format_count(counts[severity], name) for severity, name in _SEVERITIES.items() if counts[severity]]
    text = ", ".join(found) or "no mistakes"
    if loaded is None:
        return f"{make_printable(label)}: {text}. The catalogue cannot be loaded until the errors are fixed."
    services, tools = loaded
    return f"{make_printable(label)}: {format_count(services, 'service')}, {format_count(tools, 'tool')}, {text}."


# Checks grants against the permissions that tools require.


MAX_NAMES = 5
"""Tools that one problem names."""


def check_grants(catalog: Catalog, file: str | None) -> list[Problem]:
    """Return what is wrong with the grants in ``file``, and the tools that no user may call.

    Args:
        file: None: there are no grants.
    """
    required = {name: found for name, tool in catalog.tools.items() if (found := catalog.permissions_of(tool))}
    if file is None:
        if not required:
            return []
        names = join_names(tuple(required), MAX_NAMES)
        problem = (
            f"every call of {names} is refused: {_verb(required, 'requires', 'require')} permissions without grants"
        )
        return [
            Problem(
                "catalogue", "permissions", problem, "give --grants FILE, and connect(grants=…) in the agent", "warning"
            )
        ]
    shown = excerpt(file, 4096)
    try:
        grants = Grants.load(file)
    except GrantsError as error:
        return [Problem(shown, each.key, each.problem, each.fix) for each in error.problems]
    anything = PermissionSet(grants.allowed)
    refused: dict[str, list[str]] = {}
    for name, permissions in required.items():
        decision = anything.decide(require_permissions(permissions))
        if not decision.is_allowed:
            refused.setdefault(decision.permission, []).append(name)
    return [
        Problem(
            shown,
            "",
            f"no grant matches the permission '{permission}', which {join_names(names, MAX_NAMES)} "
            f"{_verb(names, 'requires', 'require')}",
            "grant it, or correct its spelling",
            "warning",
        )
        for permission, names in refused.items()
    ]


def _verb(of: dict[str, tuple[str, ...]] | list[str], one: str, several: str) -> str:
    return one if len(of) == 1 else several


# The plan of a tool: the guards of its calls, their values, and the source of each value. Pure.
#
# ``dispatch check`` shows it. A dispatcher with the same catalogue and policy behaves as the plan says: both use the policy
# of :class:`dispatch.calls.resolution.ToolResolver`.


USER, SERVICE, TOOL = "user", "service", "tool"
"""Sources of a value that is no default; each one overrides the one before it."""

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "deadline": ("timeout", "attempt_timeout", "stream_timeout", "stream_idle_timeout"),
    "sizes": ("max_request_bytes", "max_response_bytes"),
    "models": ("check_arguments", "max_result_chars"),
    "delivery": ("known_instances_only",),
}
"""Fields of a policy that are shown together; each of the others is a guard of its own."""
_GUARD_OF = {field: field.replace("_", "-") for field in Policy.__struct_fields__} | {
    field: guard for guard, fields in _GROUPS.items() for field in fields
}
GUARDS = tuple(dict.fromkeys([*_GROUPS, *_GUARD_OF.values()]))

_RATES = ("rate-limit", "user-rate-limit", "shared-user-rate-limit")
_SWITCHED: Final[Mapping[str, str]] = {
    **{guard: guard for guard in ("breaker", "bulkhead", "hedging", "quota", "single-flight", *_RATES)},
    "balancing": "balancing.strategy",
    "outlier-detection": "outlier-detection.consecutive-failures",
    "retry": "retry.initial-backoff",
}
"""The guards of calls, each with the key that has no effect where the guard has none."""
_BROKER_SPREADS = "the broker distributes the requests"


class Row(msgspec.Struct, frozen=True):
    """One value that is in force for a tool.

    Attributes:
        guard: one of :data:`GUARDS`.
        key, value: as of :class:`dispatch.policy.PolicyValue`.
        source: ``default``, ``user`` (the policy that a dispatcher was given), ``service`` or ``tool``.
        without_effect: why the value has no effect for this tool; None: it has.
    """

    guard: str
    key: str
    value: Any
    source: str
    without_effect: str | None = None


class ToolPlan(msgspec.Struct, frozen=True):
    """The guards of one tool.

    Attributes:
        tool, service: names.
        guards: those that are on and have an effect.
        retries: how many attempts, and after which failures.
        requests: how requests are distributed.
        promise: the service level objectives, in words; None: there are none.
        rows: every value, by guard.
    """

    tool: str
    service: str
    guards: tuple[str, ...]
    retries: str
    requests: str
    promise: str | None
    rows: tuple[Row, ...]

    @property
    def chosen(self) -> tuple[Row, ...]:
        """The rows that are not defaults."""
        return tuple(row for row in self.rows if row.source != DEFAULT_SOURCE)


def plan_of(catalog: Catalog, name: str, user: Mapping[str, Any] = FrozenDict()) -> ToolPlan:
    """Return the plan of one tool.

    Args:
        catalog: services and tools.
        name: of the tool.
        user: keys as in a descriptor, over the defaults.

    Raises:
        RejectedError: there is no such tool.
        PolicyError: ``user`` is invalid, alone or together with the policy of the service or the tool.
    """
    target = ToolResolver(catalog, DEFAULT_POLICY.merged(user)).describe(name)
    tool, service, policy = catalog.tool(target.label), target.service, target.policy
    idle = _without_effect(target, tool)
    found: dict[str, list[Row]] = {guard: [] for guard in GUARDS}
    for key, value, source in explain_policy(policy, ((USER, user), (SERVICE, service.policy), (TOOL, tool.policy))):
        guard = _GUARD_OF[key.partition(".")[0].replace("-", "_")]
        found[guard].append(Row(guard, key, value, source, idle.get(key)))
    return ToolPlan(
        target.label,
        service.id,
        tuple(guard for guard in GUARDS if _is_on(guard, policy, idle)),
        _retries(target, tool),
        _requests(target),
        describe_slo(policy.slo) or None,
        tuple(chain.from_iterable(found.values())),
    )


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


def _is_on(guard: str, policy: Policy, idle: Mapping[str, str]) -> bool:
    """Return whether it is a guard that has an effect for the tool."""
    is_set = guard in _SWITCHED and bool(getattr(policy, guard.replace("-", "_")))
    return is_set and _SWITCHED[guard] not in idle


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
        wait = HELLO_WAIT_S if target.repeatable else DISCOVERY_S
        found = f"known instances, each by its name; if none is known after {wait:g} s, on {shared}"
    own = ", in an instance pool of this tool" if target.pool_key.tool else ""
    return f"{policy.balancing.strategy} over {found}{own}"


# Formats of the plan of a tool: a summary, and all details.


UNITS = "Times are in seconds, sizes in bytes, shares from 0 to 1."
DEFAULTS = (
    "All else is default: timeout 30 s, 3 attempts, breaker, bulkhead 64, balancing round-robin; off: rate-limit, "
    f"user-rate-limit, shared-user-rate-limit, quota, hedging, slo, single-flight. {UNITS}\n"
    "Every value and its source: --tool NAME, or --plan full."
)


def _format_value(row: Row) -> str:
    """Return the value as in a policy, without quotes around a text; ``off``: the guard is."""
    value = row.value
    if value is None and row.key == row.guard:
        return "off"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def format_summary(plan: ToolPlan) -> str:
    """Format the guards of a tool, and the values that are not defaults."""
    rows = [("  guards", ", ".join(plan.guards) or "none"), ("  retries", plan.retries), ("  requests", plan.requests)]
    for source in (USER, SERVICE, TOOL):
        parts = [_format_row(row) for row in plan.chosen if row.source == source and not row.without_effect]
        if parts:
            rows.append((f"  from {source}", ", ".join(parts)))
    rows += _promise_rows(plan)
    reasons: dict[str, list[Row]] = {}
    for row in plan.chosen:
        if row.without_effect:
            reasons.setdefault(row.without_effect, []).append(row)
    for why, idle in reasons.items():
        parts = [f"{_format_row(row)} ({row.source})" for row in idle]
        rows.append(("  no effect", f"{', '.join(parts)}: {why}"))
    return "\n".join([_format_heading(plan), make_printable(align_columns(rows))])


def format_details(plan: ToolPlan) -> str:
    """Format every value of a tool, with its source."""
    heading = [("  retries", plan.retries), ("  requests", plan.requests), *_promise_rows(plan)]
    lines = [_format_heading(plan), make_printable(align_columns(heading))]
    rows: list[tuple[str, ...]] = []
    guard = ""
    for row in plan.rows:
        shown = "" if row.guard == guard else row.guard
        guard = row.guard
        note = f"no effect: {row.without_effect}" if row.without_effect else ""
        key = row.key.partition(".")[2] or ("" if row.key == row.guard else row.key)
        rows.append((f"  {shown}", key, _format_value(row), row.source, note))
    lines.append(make_printable(align_columns(rows)))
    return "\n".join(lines)


def _promise_rows(plan: ToolPlan) -> list[tuple[str, str]]:
    return [("  promise", plan.promise)] if plan.promise else []


def _format_heading(plan: ToolPlan) -> str:
    return make_printable(f"{plan.tool} ({plan.service})")


def _format_row(row: Row) -> str:
    return f"{row.key} {_format_value(row)}"
