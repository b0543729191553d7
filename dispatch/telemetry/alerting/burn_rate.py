"""Error-budget rules: multi-window, multi-burn-rate, as in Google's SRE workbook (chapter 5) and sloth.

The burn rate is the share of bad calls divided by the share that the objective allows: at 1 the objective is just met. The
recorded metrics have the same names for every tool, so that the two alerts in ``alerts`` serve all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dispatch.calls.resolution.resolver import ToolResolver
from dispatch.catalog import Catalog
from dispatch.catalog.frozen_json import FrozenDict
from dispatch.policy import DEFAULT_POLICY, Policy, Slo
from dispatch.telemetry.alerting.promql import BAD_CALLS, COUNTED_CALLS, exclude_user_limited, quote, rate
from dispatch.telemetry.alerting.slo import latency_bound

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
