"""Alerts about the catalogue: its reloads, its sources, and items that are not in force."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from dispatch._internal import install_extra
from dispatch.calls.resolution import ToolResolver
from dispatch.catalog import Catalog
from dispatch.catalog.descriptors import FrozenDict
from dispatch.errors import Outcome
from dispatch.policy import DEFAULT_POLICY, Policy, Slo
from dispatch.telemetry.observers import DURATION_BUCKETS

# Meaning of a service-level objective in metrics: which outcomes are bad, and which histogram bound measures a latency.


BAD_OUTCOMES = (Outcome.TIMEOUT, Outcome.TRANSPORT, Outcome.REJECTED, Outcome.THROTTLED)
"""Calls without a reply from the tool. A tool's own error and the rejection of invalid arguments are replies: they count as
good, because dispatch and the service worked. Throttled calls at their user's own rate limit are excluded."""
UNCOUNTED_OUTCOME = Outcome.CANCELLED
"""Excluded from both sides of the ratio: a cancelled call has no known result."""


def latency_bound(seconds: float) -> float:
    """Return the histogram bound at which a latency objective is measured, in seconds: the smallest bound that is not below
    ``seconds``, so that no call within the objective counts as slow.

    Raises:
        ValueError: ``seconds`` is above the largest bound.
    """
    at = bisect_left(DURATION_BUCKETS, seconds)
    if at == len(DURATION_BUCKETS):
        raise ValueError(f"{seconds!r} s is above the largest histogram bound, {DURATION_BUCKETS[-1]:g} s")
    return DURATION_BUCKETS[at]


def format_percent(share: float) -> str:
    """Format ``0.999`` as ``99.9 %``."""
    return f"{round(share * 100, 6):g} %"


def describe_slo(slo: Slo | None) -> str:
    """Describe an SLO for people; "": it has no objective."""
    objectives: list[str] = []
    if slo is not None and slo.availability is not None:
        objectives.append(f"{format_percent(slo.availability)} of calls are good")
    if slo is not None and slo.latency is not None:
        bound = latency_bound(slo.latency)
        measured = "" if bound == slo.latency else f", measured at {bound:g} s"
        objectives.append(f"{format_percent(slo.latency_share)} of successes within {slo.latency:g} s{measured}")
    return "; ".join(objectives)


# Builders of PromQL expressions that the rules share.


PER_PROCESS = ("instance", "pod", "node")
"""Labels by which Prometheus distinguishes processes. Rules about a tool or service sum over them and keep the other labels
(job, namespace, cluster)."""
BAD_CALLS = f'outcome=~"{"|".join(BAD_OUTCOMES)}"'
COUNTED_CALLS = f'outcome!="{UNCOUNTED_OUTCOME}"'
USER_LIMITED = 'scope="user"'
"""Matches calls that ended at their user's own rate limit, in ``dispatch_rate_limited_total``. They are throttled calls, and
neither good nor bad (:func:`exclude_user_limited`)."""
KNOWN_TOOLS = 'tool!="_OTHER"'
"""Matches tools of the catalogue: ``_OTHER`` counts calls of unknown names."""


def without(*labels: str) -> str:
    """Return a ``without (...)`` clause with ``labels`` and the labels of processes."""
    return f"without ({', '.join((*PER_PROCESS, *labels))})"


def series(metric: str, *matchers: str) -> str:
    """Return a selector of ``metric`` with these matchers."""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def rate(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """Return the rate per second, summed over processes and the labels ``over``."""
    return f"sum {without(*over)} (rate({series(metric, *matchers)}[{window}]))"


def increase(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """Return the increase within ``window``, summed over processes and the labels ``over``."""
    return f"sum {without(*over)} (increase({series(metric, *matchers)}[{window}]))"


def exclude_user_limited(calls: str, change: Callable[..., str], window: str, *matchers: str) -> str:
    """Return the number or rate ``calls`` without the calls that ended at their user's own rate limit: the limit protects
    all other users, and one user alone must not spend the tool's error budget.

    Args:
        calls: expression by tool, in which these calls are included.
        change: :func:`rate` or :func:`increase`, as in ``calls``.
        window, matchers: as in ``calls``, without outcomes.
    """
    return subtract(calls, change("dispatch_rate_limited_total", window, *matchers, USER_LIMITED, over=("scope",)))


def subtract(calls: str, limited: str) -> str:
    """Return ``calls`` - ``limited``, at least 0; ``limited`` may have no series."""
    return f"clamp_min({calls} - ({limited} or 0 * {calls}), 0)"


def quote(value: str) -> str:
    """Quote ``value`` as a PromQL string."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'


# An alert, and its form as a Prometheus rule.


RUNBOOK = "https://github.com/tool-dispatch/tool-dispatch/blob/main/docs/how-to/runbook.md"
"""Has one section per alert; the anchor is the alert's name in lower case."""
PAGE: Final = "page"
TICKET: Final = "ticket"

_DASHBOARDS = {
    "overview": "/d/dispatch-overview/dispatch-overview",
    "tool": "/d/dispatch-tool/dispatch-tool?var-tool={{ $labels.tool | urlquery }}",
    "service": "/d/dispatch-instances/dispatch-instances?var-service={{ $labels.service | urlquery }}",
    "process": "/d/dispatch-overview/dispatch-overview?var-dispatcher={{ $labels.instance | urlquery }}",
    "catalog": "/d/dispatch-instances/dispatch-instances",
}

_VALUES = {
    "<value>": "{{ $value | humanize }}",
    "<share>": "{{ $value | humanizePercentage }}",
    "<count>": '{{ $value | printf "%.0f" }}',
}


def _to_template(text: str) -> str:
    """Translate placeholders to a Prometheus template: ``<value>``, ``<share>``, ``<count>``; others name labels."""
    return re.sub(r"<(\w+)>", lambda found: _VALUES.get(found[0], f"{{{{ $labels.{found[1]} }}}}"), text)


class Alert(msgspec.Struct, frozen=True):
    """An alerting rule.

    Attributes:
        name: CamelCase; the title of its section in the runbook.
        expr: PromQL.
        wait: how long ``expr`` must hold before the alert fires, such as ``5m``; "": fires at once, for expressions that
            cover long windows themselves.
        severity: ``page``: needs a person now; ``ticket``: needs a person within a day.
        summary: one line. ``<tool>`` is replaced by the label, ``<value>`` by the value, ``<share>`` by the value in
            percent, ``<count>`` by the value as a whole number.
        description: the meaning, with the same placeholders.
        subject: selects the dashboard that the alert links to: ``overview``, ``tool``, ``service``, ``process`` or
            ``catalog``.
    """

    name: str
    expr: str
    wait: str
    severity: Literal["page", "ticket"]
    summary: str
    description: str
    subject: Literal["overview", "tool", "service", "process", "catalog"]

    def to_rule(self, grafana: str = "") -> dict[str, Any]:
        """Return the rule as a Prometheus rule file has it.

        Args:
            grafana: base URL of Grafana, such as ``https://grafana.example.org``; "": the dashboard link is a path only.
        """
        waiting = {"for": self.wait} if self.wait else {}
        return {
            "alert": self.name,
            "expr": self.expr,
            **waiting,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": _to_template(self.summary),
                "description": _to_template(self.description),
                "runbook_url": f"{RUNBOOK}#{self.name.lower()}",
                "dashboard": grafana.rstrip("/") + _DASHBOARDS[self.subject],
            },
        }


CATALOG_ALERTS = (
    Alert(
        "DispatchReloadFailed",
        f"count {without()} (dispatch_catalog_last_reload_successful == 0)",
        "5m",
        TICKET,
        "The last reload of the catalogue or policy failed in <count> processes",
        "In <count> processes of <job> the last reload (<source>) was invalid. The previous catalogue and policy stay in "
        "force there.",
        "catalog",
    ),
    Alert(
        "DispatchSourceDown",
        f"count {without()} (dispatch_catalog_source_up == 0)",
        "5m",
        TICKET,
        "The catalogue's source <source> is out of reach or invalid in <count> processes",
        "In <count> processes of <job> the source <source> has been out of reach or invalid for 5 minutes. Its last valid "
        "items stay in force there; a process that has started since then has none of its tools.",
        "catalog",
    ),
    Alert(
        "DispatchItemsRefused",
        f"max {without()} (dispatch_catalog_refused_items) > 0",
        "5m",
        TICKET,
        "<count> items of the catalogue's source <source> are refused",
        "<count> items of <source> have been invalid for 5 minutes. Each is in force in its last valid version, or not at "
        "all.",
        "catalog",
    ),
    Alert(
        "DispatchChangesHeld",
        f"max {without()} (dispatch_catalog_held_changes) > 0",
        "15m",
        TICKET,
        "<count> changed definitions of the catalogue's source <source> wait for approval",
        "<count> definitions of <source> differ from the approved ones and have waited for 15 minutes. The approved "
        "definitions stay in force.",
        "catalog",
    ),
)

# Recording rules for every tool: rates over five minutes, for dashboards and ad-hoc queries.
#
# Names follow Prometheus' convention ``level:metric:operations``: remaining labels, source metric, operations applied.


WINDOW = "5m"
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_BUCKETS = f"tool_outcome_class_le:dispatch_call_duration_seconds_bucket:rate{WINDOW}"


def recording_groups() -> list[dict[str, Any]]:
    """Return the rule groups of ``recording.yml``. A rule may use earlier rules of its group."""
    outcomes = f"tool_outcome:dispatch_calls:rate{WINDOW}"
    calls = f"tool:dispatch_calls:rate{WINDOW}"
    counted = f"tool:dispatch_counted_calls:rate{WINDOW}"
    bad = f"tool:dispatch_bad_calls:rate{WINDOW}"
    limited = f"tool:dispatch_user_limited_calls:rate{WINDOW}"
    attempts = f"tool:dispatch_attempts:rate{WINDOW}"
    tools = {
        outcomes: rate("dispatch_calls_total", WINDOW, over=()),
        calls: f"sum without (outcome) ({outcomes})",
        limited: rate("dispatch_rate_limited_total", WINDOW, USER_LIMITED, over=("scope",)),
        counted: subtract(f"sum without (outcome) ({outcomes}{{{COUNTED_CALLS}}})", limited),
        bad: subtract(f"sum without (outcome) ({outcomes}{{{BAD_CALLS}}})", limited),
        f"tool:dispatch_bad_calls_per_counted_calls:ratio_rate{WINDOW}": f"{bad} / {counted}",
        attempts: rate("dispatch_attempts_total", WINDOW, over=("reason",)),
        f"tool:dispatch_attempts_per_calls:ratio_rate{WINDOW}": f"{attempts} / {calls}",
    }
    durations = {_BUCKETS: rate("dispatch_call_duration_seconds_bucket", WINDOW, over=())}
    for name, quantile in QUANTILES.items():
        durations[f"tool_outcome_class:dispatch_call_duration_seconds:{name}_rate{WINDOW}"] = (
            f"histogram_quantile({quantile:g}, {_BUCKETS})"
        )
    services = {
        f"service_disposition:dispatch_replies:rate{WINDOW}": rate("dispatch_replies_total", WINDOW, over=()),
        "service_state:dispatch_instances:max": f"max {without()} (dispatch_instances)",
    }
    groups = {"dispatch-calls": tools, "dispatch-durations": durations, "dispatch-services": services}
    return [
        {"name": name, "rules": [{"record": record, "expr": expr} for record, expr in rules.items()]}
        for name, rules in groups.items()
    ]


# Alerts about one service: its instances, as dispatchers see them, and its replies.


_HEALTHY = 'sum without (state) (dispatch_instances{state=~"up|warming"})'
_ALL = "sum without (state) (dispatch_instances)"
_REPLIES = "dispatch_replies_total"
_LATE = 'disposition="late"'
_LATE_OR_MATCHED = 'disposition=~"late|matched"'

SERVICE_ALERTS = (
    Alert(
        "DispatchNoHealthyInstance",
        f"count {without()} ({_HEALTHY} == 0)",
        "2m",
        TICKET,
        "No instance of <service> is healthy",
        "<count> processes see no healthy instance of <service>: each is ejected or paused, or none exists.",
        "service",
    ),
    Alert(
        "DispatchFewHealthyInstances",
        f"min {without()} ({_HEALTHY} / {_ALL} > 0) <= 0.5",
        "10m",
        TICKET,
        "Only <share> of the instances of <service> are healthy",
        "For 10 minutes at most <share> of the instances of <service> have been healthy, in the process that sees the "
        "fewest. These instances carry the whole load.",
        "service",
    ),
    Alert(
        "DispatchInstanceEjectedOften",
        # Prometheus' own label 'instance' is the scraped process, so it renames the scraped label 'instance'.
        f"max {without()} (sum without (reason) (increase(dispatch_instance_ejections_total[1h]))) > 5",
        "5m",
        TICKET,
        "Instance <exported_instance> of <service> was ejected <count> times in an hour",
        "<exported_instance> fails whenever it is used again: one process ejected it <count> times within an hour. The "
        "other instances of <service> carry its load.",
        "service",
    ),
    Alert(
        "DispatchLateReplies",
        f"{rate(_REPLIES, '15m', _LATE, over=('disposition',))}\n"
        f"/ {rate(_REPLIES, '15m', _LATE_OR_MATCHED, over=('disposition',))}\n"
        f"> 0.1\nand {increase(_REPLIES, '15m', _LATE, over=('disposition',))} >= 5",
        "10m",
        TICKET,
        "<share> of the replies of <service> arrive late",
        "<share> of the replies of <service> in the last 15 minutes arrived after their calls had timed out or been "
        "cancelled: the service spends its time on calls that have ended.",
        "service",
    ),
    Alert(
        "DispatchMalformedReplies",
        increase(_REPLIES, "15m", 'disposition="malformed"', over=("disposition",)) + " >= 3",
        "",
        TICKET,
        "<count> replies of <service> were malformed",
        "<count> replies of <service> in the last 15 minutes had no id or could not be decoded (_OTHER: the service is "
        "unknown). Their calls fail with a transport error or a timeout.",
        "service",
    ),
    Alert(
        "DispatchRepliesNotSent",
        increase("dispatch_service_lost_replies_total", "15m", over=()) + " >= 3",
        "",
        TICKET,
        "<service> could not send <count> replies",
        "<service> executed requests in the last 15 minutes and could not send <count> replies. Callers request "
        "retransmission; a call that is neither read-only nor idempotent may end without its result.",
        "service",
    ),
)

# Alerts about one tool: its circuit breaker, its limits, the outcomes of its calls.


MIN_CALLS = 10
"""Calls below which a share is not meaningful."""
_CALLS = "dispatch_calls_total"
_CLOSED = 'state=~"closed|forced-open|disabled|metrics-only"'


def _share(part: str, whole: str, above: float, calls: str) -> str:
    """Return PromQL for: ``part / whole`` exceeds ``above``, and ``calls`` is at least :data:`MIN_CALLS`."""
    return f"{part}\n/ {whole}\n> {above:g}\nand {calls} >= {MIN_CALLS}"


def _rejected(by: str, above: float) -> str:
    metric, label = "dispatch_rejections_total", "by"
    if by == "rate-limit":  # only the tool's limit: a user's own limit is no sign of saturation
        metric, label, by = "dispatch_rate_limited_total", "scope", "tool"
    matcher = f'{label}="{by}"'
    return _share(
        rate(metric, "10m", matcher, over=(label,)),
        rate(_CALLS, "10m", over=("outcome",)),
        above,
        increase(metric, "10m", matcher, over=(label,)),
    )


def _outcome_share(window: str, outcomes: str, of: str, above: float) -> str:
    return _share(
        rate(_CALLS, window, KNOWN_TOOLS, outcomes, over=("outcome",)),
        rate(_CALLS, window, KNOWN_TOOLS, of, over=("outcome",)),
        above,
        increase(_CALLS, window, KNOWN_TOOLS, outcomes, over=("outcome",)),
    )


def _bad_share(window: str, above: float) -> str:
    def count(change: Callable[..., str], outcomes: str) -> str:
        calls = change(_CALLS, window, KNOWN_TOOLS, outcomes, over=("outcome",))
        return exclude_user_limited(calls, change, window, KNOWN_TOOLS)

    return _share(count(rate, BAD_CALLS), count(rate, COUNTED_CALLS), above, count(increase, BAD_CALLS))


def _unknown_tool_share() -> str:
    invented = 'tool="_OTHER"', 'outcome="rejected"'
    over = ("tool", "outcome")
    return _share(
        rate(_CALLS, "1h", *invented, over=over),
        rate(_CALLS, "1h", over=over),
        0.05,
        increase(_CALLS, "1h", *invented, over=over),
    )


TOOL_ALERTS = (
    Alert(
        "DispatchCircuitOpen",
        # A breaker alternates between open and half-open while its service is down: it fires if it was nothing else.
        f"count {without()} (\n  sum without (state) (max_over_time(dispatch_circuit_state{{{_CLOSED}}}[5m])) == 0\n)",
        "5m",
        TICKET,
        "The circuit breaker of <tool> has been open for 5 minutes",
        "In <count> processes the circuit breaker of <tool> rejects calls, and its half-open calls fail. The service is "
        "down or too slow.",
        "tool",
    ),
    Alert(
        "DispatchCircuitFlapping",
        f'max {without("to")} (increase(dispatch_circuit_transitions_total{{to="closed"}}[1h])) > 5',
        "5m",
        TICKET,
        "The circuit breaker of <tool> closed <count> times in an hour",
        "In one process the circuit breaker of <tool> opened and closed <count> times within an hour: the service "
        "recovers without load and fails under full load.",
        "tool",
    ),
    Alert(
        "DispatchCircuitOverridden",
        f'count {without()} (dispatch_circuit_state{{state=~"forced-open|disabled|metrics-only"}} > 0)',
        "6h",
        TICKET,
        "The circuit breaker of <tool> has been <state> for 6 hours",
        "The circuit breaker of <tool> was set to <state> manually in <count> processes and has not been reset.",
        "tool",
    ),
    Alert(
        "DispatchToolFailing",
        _bad_share("10m", 0.5),
        "5m",
        TICKET,
        "<share> of the calls of <tool> get no reply",
        "In 10 minutes <share> of the calls of <tool> timed out, failed in transport, or were rejected or throttled. Calls "
        "at the limits of single users are not included.",
        "tool",
    ),
    Alert(
        "DispatchToolErrors",
        _outcome_share("30m", 'outcome="tool_error"', 'outcome=~"success|tool_error"', 0.5),
        "15m",
        TICKET,
        "<share> of the replies of <tool> are tool errors",
        "<tool> runs and replies to <share> of its calls with its own error. The service is reachable; the tool or one "
        "of its dependencies fails.",
        "tool",
    ),
    Alert(
        "DispatchInvalidArguments",
        _outcome_share("1h", 'outcome="invalid_arguments"', COUNTED_CALLS, 0.3),
        "15m",
        TICKET,
        "<share> of the calls of <tool> have invalid arguments",
        "In the last hour <share> of the calls of <tool> were not sent because their arguments are too large or not "
        "JSON, or the service could not decode them.",
        "tool",
    ),
    Alert(
        "DispatchUnknownToolNames",
        _unknown_tool_share(),
        "15m",
        TICKET,
        "<share> of all calls name an unknown tool",
        "In <job>, <share> of the calls of the last hour named a tool that is in no catalogue: a model invents names, or "
        "prompts name a tool that was removed.",
        "overview",
    ),
    Alert(
        "DispatchRateLimitSaturated",
        _rejected("rate-limit", 0.1),
        "10m",
        TICKET,
        "The rate limit of <tool> rejects <share> of its calls",
        "<tool> is called more often than its rate limit allows: <share> of its calls were rejected in the last 10 "
        "minutes. Rejections by the limits of single users are not included.",
        "tool",
    ),
    Alert(
        "DispatchBulkheadSaturated",
        _rejected("bulkhead", 0.1),
        "10m",
        TICKET,
        "The bulkhead of <tool> rejects <share> of its calls",
        "The bulkhead of <tool> is full and calls wait too long: <share> of its calls were rejected in the last 10 "
        "minutes. The tool became slower, or is called more often.",
        "tool",
    ),
    Alert(
        "DispatchServiceOverloaded",
        _rejected("service", 0.1),
        "10m",
        TICKET,
        "The service of <tool> rejects <share> of its calls",
        "The service of <tool> is overloaded: the attempts that it rejected in the last 10 minutes amount to <share> of "
        "the calls.",
        "tool",
    ),
    Alert(
        "DispatchCallsWithoutInstance",
        increase("dispatch_rejections_total", "10m", 'by="balancer"', over=("by",)) + " >= 5",
        "5m",
        TICKET,
        "<count> calls of <tool> had no available instance in 10 minutes",
        "<count> calls of <tool> in the last 10 minutes were rejected because no instance was available.",
        "tool",
    ),
    Alert(
        "DispatchRetryBudgetExhausted",
        _share(
            rate("dispatch_retry_budget_exhausted_total", "10m", over=()),
            rate(_CALLS, "10m", over=("outcome",)),
            0.05,
            increase("dispatch_retry_budget_exhausted_total", "10m", over=()),
        ),
        "10m",
        TICKET,
        "The retry budget of <tool> is exhausted for <share> of its calls",
        "So many calls of <tool> fail that its retry budget is spent: for <share> of its calls in the last 10 minutes a "
        "retry or hedge was not sent.",
        "tool",
    ),
)

# Error-budget rules: multi-window, multi-burn-rate, as in Google's SRE workbook (chapter 5) and sloth.
#
# The burn rate is the share of bad calls divided by the share that the objective allows: at 1 the objective is just met.
# The recorded metrics have the same names for every tool, so that the two alerts in ``alerts`` serve all of them.


WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
WINDOW_SECONDS = {"5m": 300, "30m": 1800, "1h": 3600, "2h": 7200, "6h": 21600, "1d": 86400, "3d": 259200}
MIN_BAD_CALLS = 5
"""Bad calls in the longer window before an alert fires: of a tool that is called three times an hour, one failure is a
large share and no trend."""


class BurnRateCondition(NamedTuple):
    """A pair of windows whose burn rates must both exceed a factor.

    The long window shows that the failures matter, the short one that they have not stopped.

    Attributes:
        short, long: windows, in Prometheus notation.
        factor: burn rate.
    """

    short: str
    long: str
    factor: float


FAST = (BurnRateCondition("5m", "1h", 14.4), BurnRateCondition("30m", "6h", 6.0))
"""Pages: 2 % of the error budget of 30 days is spent within an hour, or 5 % within six hours (SRE workbook, table 5-8)."""
SLOW = (BurnRateCondition("2h", "1d", 3.0), BurnRateCondition("6h", "3d", 1.0))
"""Tickets: 10 % of the error budget of 30 days is spent within a day, or within three days."""


def counted_metric(window: str) -> str:
    """Name the recorded rate of calls that count towards the objective."""
    return f"tool_slo:dispatch_counted_calls:rate{window}"


def bad_metric(window: str) -> str:
    """Name the recorded rate of bad calls."""
    return f"tool_slo:dispatch_bad_calls:rate{window}"


def burn_rate_metric(window: str) -> str:
    """Name the recorded burn rate."""
    return f"tool_slo:dispatch_budget_burn:ratio_rate{window}"


OBJECTIVE = "tool_slo:dispatch_objective:ratio"
"""Name of the recorded objective, 0 to 1."""


def burn_rate_expression(*conditions: BurnRateCondition) -> str:
    """Return PromQL that holds while any condition is exceeded; its value is the burn rate of the short window."""
    return "\nor\n".join(
        f"(\n  {burn_rate_metric(each.short)} > {each.factor:g}\n"
        f"  and {burn_rate_metric(each.long)} > {each.factor:g}\n"
        f"  and ignoring (objective) {bad_metric(each.long)} * {WINDOW_SECONDS[each.long]} >= {MIN_BAD_CALLS}\n)"
        for each in conditions
    )


def slo_groups(slos: Mapping[str, Slo]) -> list[dict[str, Any]]:
    """Return the rule groups of ``slo.yml``, one per tool.

    Args:
        slos: by the tool's label in metrics.
    """
    return [{"name": f"dispatch-slo-{label}", "rules": list(_slo_rules(label, slo))} for label, slo in slos.items()]


def collect_slos(
    catalog: Catalog, base: Policy = DEFAULT_POLICY, user: Mapping[str, Any] = FrozenDict()
) -> Mapping[str, Slo]:
    """Collect the SLOs of a catalogue's tools, by their label in metrics, and of services without tools, which are called
    directly.

    Args:
        catalog: services and tools.
        base: the lowest layer of the policy.
        user: a policy in a descriptor's notation, laid over ``base``: its ``slo`` applies to every tool without one.

    Raises:
        PolicyError: ``user`` is not a valid policy, or conflicts with the policy of a service or tool.
    """
    targets = ToolResolver(catalog, base.merged(user)).check()
    served = {tool.service for tool in catalog.tools.values()}
    every = [targets.describe(name) for name in catalog.tools]
    every += [targets.service(id) for id in catalog.services if id not in served]
    return {each.meter_label: each.policy.slo for each in every if each.policy.slo is not None}


def list_unpageable_objectives(slo: Slo) -> list[str]:
    """List the objectives that can never page: they allow so many bad calls that the burn rate stays below every paging
    factor even if every call fails."""
    objectives = {"availability": slo.availability, "latency-share": None if slo.latency is None else slo.latency_share}
    least = min(condition.factor for condition in FAST)
    return [key for key, share in objectives.items() if share is not None and (1 - share) * least >= 1]


def _slo_rules(label: str, slo: Slo) -> Iterator[dict[str, Any]]:
    tool = f"tool={quote(label)}"
    if slo.availability is not None:
        calls, over = "dispatch_calls_total", ("outcome",)
        counted, bad = (
            {
                each: exclude_user_limited(rate(calls, each, tool, outcomes, over=over), rate, each, tool)
                for each in WINDOWS
            }
            for outcomes in (COUNTED_CALLS, BAD_CALLS)
        )
        yield from _burn_rules(label, "availability", slo.availability, counted, bad)
    if slo.latency is not None:
        timed, ok = "dispatch_call_duration_seconds", 'outcome_class="ok"'
        within = f'le="{latency_bound(slo.latency)}"'
        counted = {each: rate(f"{timed}_count", each, tool, ok, over=("outcome_class",)) for each in WINDOWS}
        bad = {
            each: f"{counted[each]}\n- " + rate(f"{timed}_bucket", each, tool, ok, within, over=("outcome_class", "le"))
            for each in WINDOWS
        }
        yield from _burn_rules(label, "latency", slo.latency_share, counted, bad)


def _burn_rules(
    label: str, slo: str, objective: float, counted: Mapping[str, str], bad: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    labels = {"tool": label, "slo": slo}
    yield {"record": OBJECTIVE, "expr": f"vector({objective})", "labels": labels}
    which = f"{{tool={quote(label)},slo={quote(slo)}}}"
    for window in WINDOWS:
        yield {"record": counted_metric(window), "expr": counted[window], "labels": labels}
        yield {"record": bad_metric(window), "expr": bad[window], "labels": labels}
        yield {
            "record": burn_rate_metric(window),
            # Rounded: 1 - 0.99 is 0.010000000000000009.
            "expr": f"{bad_metric(window)}{which}\n/ {counted_metric(window)}{which}\n/ {round(1 - objective, 10):.10g}",
            "labels": {**labels, "objective": f"{objective}"},
        }


# Alerts about one process: its broker connection, its replies and its sessions.


# Requires calls that time out or fail in transport: a tool that only takes long must not fire it.
_REPLY_PATH = """\
sum without (tool, reason) (increase(dispatch_attempts_total[5m])) >= 5
and sum without (tool, outcome) (increase(dispatch_calls_total{outcome=~"timeout|transport"}[5m])) > 0
unless sum without (service, disposition) (increase(dispatch_replies_total{disposition="matched"}[5m])) > 0"""

# Two or three instances that send many large replies at once lose 7 % without a fault.
_RETRANSMITTED = """\
increase(dispatch_session_retransmissions_total[15m]) / increase(dispatch_session_packets_sent_total[15m]) > 0.1
and increase(dispatch_session_retransmissions_total[15m]) >= 50"""

PROCESS_ALERTS = (
    Alert(
        "DispatchBrokerUnreachable",
        "dispatch_broker_connected == 0",
        "2m",
        PAGE,
        "<instance> has no connection to its broker",
        "No dispatcher of <instance> has had a broker connection for 2 minutes (connected now: <count>). Every tool call "
        "from this process fails.",
        "process",
    ),
    Alert(
        "DispatchReplyPathDown",
        _REPLY_PATH,
        "5m",
        PAGE,
        "<instance> sends requests and receives no replies",
        "<instance> sent <count> requests in the last 5 minutes; calls timed out or failed in transport, and no reply "
        "matched a pending request.",
        "process",
    ),
    Alert(
        "DispatchPendingLimitReached",
        'sum without (tool, by) (increase(dispatch_rejections_total{by="exchange"}[10m])) > 0',
        "",
        TICKET,
        "<instance> has reached its limit of pending requests",
        "<instance> rejected <count> calls in the last 10 minutes because 65,536 requests were waiting for replies.",
        "process",
    ),
    Alert(
        "DispatchPacketsLost",
        _RETRANSMITTED,
        "5m",
        TICKET,
        "<share> of the packets that <instance> sends in sessions are lost",
        "For 5 minutes <share> of the packets that <instance> sends (role <role>) have been lost and sent again. Calls "
        "succeed, and the slowest ones take longer.",
        "process",
    ),
    Alert(
        "DispatchInstancesLost",
        'sum without (role, reason) (increase(dispatch_sessions_closed_total{role="caller",reason="silent"}[15m])) >= 3',
        "",
        TICKET,
        "<instance> has lost instances <count> times",
        "In the last 15 minutes <count> sessions of <instance> ended because the instance of the tool service did not "
        "answer for a second. Its calls ended with 'instance-lost'.",
        "process",
    ),
    Alert(
        "DispatchPacketsRejected",
        "sum without (reason) (increase(dispatch_session_packets_rejected_total[15m])) >= 100",
        "",
        TICKET,
        "<instance> has rejected <count> packets",
        "In the last 15 minutes <count> packets arrived at <instance> (role <role>) that belong to no session or are "
        "malformed: another client writes to its inbox, or two processes have one name. They changed nothing.",
        "process",
    ),
)

# All alerts, in the order of the runbook.


SLO_ALERTS = (
    Alert(
        "DispatchErrorBudgetFastBurn",
        burn_rate_expression(*FAST),
        "",
        PAGE,
        "<tool> burns its <slo> error budget <value> times as fast as its objective allows",
        "Bad calls of <tool> are <value> times as frequent as the <slo> objective (<objective>) allows. At this rate the "
        "error budget of 30 days is spent within days.",
        "tool",
    ),
    Alert(
        "DispatchErrorBudgetSlowBurn",
        burn_rate_expression(*SLOW),
        "",
        TICKET,
        "<tool> burns its <slo> error budget <value> times as fast as its objective allows",
        "Bad calls of <tool> have been <value> times as frequent as the <slo> objective (<objective>) allows for hours. "
        "At this rate the objective is missed.",
        "tool",
    ),
)
"""Alerts on the error budgets of tools that have an ``slo``; without the rules of ``slo.yml`` they never fire."""

ALERTS: tuple[Alert, ...] = (*SLO_ALERTS, *PROCESS_ALERTS, *CATALOG_ALERTS, *TOOL_ALERTS, *SERVICE_ALERTS)


def alert_groups(grafana: str = "") -> list[dict[str, Any]]:
    """Return the rule groups of ``alerts.yml``. Argument: see :meth:`Alert.to_rule`."""
    groups = {
        "dispatch-slo-alerts": SLO_ALERTS,
        "dispatch-process-alerts": PROCESS_ALERTS,
        "dispatch-catalog-alerts": CATALOG_ALERTS,
        "dispatch-tool-alerts": TOOL_ALERTS,
        "dispatch-service-alerts": SERVICE_ALERTS,
    }
    return [{"name": name, "rules": [each.to_rule(grafana) for each in alerts]} for name, alerts in groups.items()]


# Prometheus rule files in YAML. Needs PyYAML, an extra: only the export of rules uses it.


YAML_EXTRA = install_extra("yaml")
RECORDING, ALERT_FILE, SLO = "recording.yml", "alerts.yml", "slo.yml"
"""File names."""
_HEADS = {
    RECORDING: "Recording rules: rates of every tool, for dashboards and queries.",
    ALERT_FILE: "Alerts. Each has a section in docs/how-to/runbook.md.",
    SLO: "Error budgets of a catalogue's tools with an objective ('slo' in their policy).",
}
_NOTICE = "Generated by 'dispatch rules export'. Do not edit."


class YamlMissingError(Exception):
    """PyYAML is not installed; the message names the command that installs it."""

    def __init__(self) -> None:
        super().__init__(f"Writing rules needs PyYAML: {YAML_EXTRA}")


def render_rule_files(slos: Mapping[str, Slo] | None = None, grafana: str = "") -> dict[str, str]:
    """Return the text of each rule file, by file name.

    Args:
        slos: by the tool's label in metrics (see :func:`dispatch.telemetry.rules.collect_slos`); None or
            empty: ``slo.yml`` is omitted.
        grafana: see :meth:`dispatch.telemetry.rules.Alert.to_rule`.

    Raises:
        YamlMissingError: PyYAML is not installed.
    """
    files = {RECORDING: recording_groups(), ALERT_FILE: alert_groups(grafana)}
    if slos:
        files[SLO] = slo_groups(slos)
    return {name: _to_yaml(_HEADS[name], groups) for name, groups in files.items()}


def _to_yaml(head: str, groups: Sequence[Mapping[str, Any]]) -> str:
    try:
        import yaml
    except ImportError:
        raise YamlMissingError from None

    class Dumper(yaml.SafeDumper):
        """Writes strings of several lines as block scalars."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent_string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, represent_string)
    body = yaml.dump({"groups": list(groups)}, Dumper=Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return f"# {head}\n# {_NOTICE}\n\n{body}"
