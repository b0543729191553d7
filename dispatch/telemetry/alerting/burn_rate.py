"""How fast promises are being broken: multi-window, multi-burn-rate, as in Google's SRE workbook (ch. 5) and sloth.

A burn rate is how many times faster than allowed bad calls come: at 1 a promise is just kept. What is recorded for each tool
has the same names for all of them, so that the two alerts that look at it stand once, in ``alerts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dispatch.calls.resolved_tool import ToolResolver
from dispatch.catalog import Catalog
from dispatch.catalog.frozen_json import FrozenDict
from dispatch.policy import DEFAULT_POLICY, Policy, Slo
from dispatch.telemetry.alerting.promql import BAD_CALLS, COUNTED_CALLS, rate, text
from dispatch.telemetry.alerting.slo import latency_bound

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
SECONDS = {"5m": 300, "30m": 1800, "1h": 3600, "2h": 7200, "6h": 21600, "1d": 86400, "3d": 259200}
LEAST_BAD = 5
"""Bad calls within the longer window before anybody is told: of a tool that is called three times an hour, one failure is no
trend, whatever share it is."""


class Speed(NamedTuple):
    """A pair of windows: the long one says that it matters, the short one that it still goes on.

    Attributes:
        short, long: windows.
        factor: burn rate above which both must be.
    """

    short: str
    long: str
    factor: float


FAST = (Speed("5m", "1h", 14.4), Speed("30m", "6h", 6.0))
"""Somebody is woken. 2 % of what thirty days allow is gone within an hour, or 5 % within six."""
SLOW = (Speed("2h", "1d", 3.0), Speed("6h", "3d", 1.0))
"""Somebody gets a ticket. 10 % within a day, or within three."""


def counted_name(window: str) -> str:
    """Of the recorded rate of calls that count."""
    return f"tool_slo:dispatch_counted_calls:rate{window}"


def bad_name(window: str) -> str:
    """Of the recorded rate of calls that broke the promise."""
    return f"tool_slo:dispatch_bad_calls:rate{window}"


def burn_name(window: str) -> str:
    """Of the recorded burn rate."""
    return f"tool_slo:dispatch_budget_burn:ratio_rate{window}"


OBJECTIVE = "tool_slo:dispatch_objective:ratio"
"""The name of the recorded share that is promised."""


def too_fast(*speeds: Speed) -> str:
    """What is true while one of those pairs is exceeded, with its short window's burn rate as the value."""
    return "\nor\n".join(
        f"(\n  {burn_name(each.short)} > {each.factor:g}\n"
        f"  and {burn_name(each.long)} > {each.factor:g}\n"
        f"  and ignoring (objective) {bad_name(each.long)} * {SECONDS[each.long]} >= {LEAST_BAD}\n)"
        for each in speeds
    )


def burn_groups(promises: Mapping[str, Slo]) -> list[dict[str, Any]]:
    """The groups of ``slo.yml``: one for each tool.

    Args:
        promises: by the tool's label in metrics.
    """
    return [{"name": f"dispatch-slo-{label}", "rules": list(_rules(label, slo))} for label, slo in promises.items()]


def promises(
    catalog: Catalog, base: Policy = DEFAULT_POLICY, user: Mapping[str, Any] = FrozenDict()
) -> Mapping[str, Slo]:
    """What the tools of a catalogue promise, by their label in metrics; and services that have no tool in it, because they
    are called without one.

    Args:
        catalog: services and tools.
        base: the policy below all others.
        user: the same as a descriptor writes it, laid over ``base``: an ``slo`` here is that of every tool that has none.

    Raises:
        PolicyError: ``user`` is no policy; or one that does not go with what a service or a tool says.
    """
    targets = ToolResolver(catalog, base.merged(user)).check()
    served = {tool.service for tool in catalog.tools.values()}
    every = [targets.tool(name) for name in catalog.tools]
    every += [targets.service(id) for id in catalog.services if id not in served]
    return {each.meter_label: each.policy.slo for each in every if each.policy.slo is not None}


def never_pages(slo: Slo) -> list[str]:
    """Those of its objectives that allow so much that even if every call were bad, no burn rate would be enough to wake
    somebody."""
    objectives = {"availability": slo.availability, "latency-share": None if slo.latency is None else slo.latency_share}
    least = min(speed.factor for speed in FAST)
    return [key for key, share in objectives.items() if share is not None and (1 - share) * least >= 1]


def _rules(label: str, slo: Slo) -> Iterator[dict[str, Any]]:
    tool = f"tool={text(label)}"
    if slo.availability is not None:
        calls, over = "dispatch_calls_total", ("outcome",)
        counted = {each: rate(calls, each, tool, COUNTED_CALLS, over=over) for each in WINDOWS}
        bad = {each: rate(calls, each, tool, BAD_CALLS, over=over) for each in WINDOWS}
        yield from _burn(label, "availability", slo.availability, counted, bad)
    if slo.latency is not None:
        timed, ok = "dispatch_call_duration_seconds", 'outcome_class="ok"'
        within = f'le="{latency_bound(slo.latency)}"'
        counted = {each: rate(f"{timed}_count", each, tool, ok, over=("outcome_class",)) for each in WINDOWS}
        bad = {
            each: f"{counted[each]}\n- " + rate(f"{timed}_bucket", each, tool, ok, within, over=("outcome_class", "le"))
            for each in WINDOWS
        }
        yield from _burn(label, "latency", slo.latency_share, counted, bad)


def _burn(
    label: str, slo: str, objective: float, counted: Mapping[str, str], bad: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    labels = {"tool": label, "slo": slo}
    yield {"record": OBJECTIVE, "expr": f"vector({objective})", "labels": labels}
    which = f"{{tool={text(label)},slo={text(slo)}}}"
    for window in WINDOWS:
        yield {"record": counted_name(window), "expr": counted[window], "labels": labels}
        yield {"record": bad_name(window), "expr": bad[window], "labels": labels}
        yield {
            "record": burn_name(window),
            # Rounded: 1 - 0.99 is 0.010000000000000009.
            "expr": f"{bad_name(window)}{which}\n/ {counted_name(window)}{which}\n/ {round(1 - objective, 10):.10g}",
            "labels": {**labels, "objective": f"{objective}"},
        }
