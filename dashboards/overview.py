"""Overview dashboard: failing tools, and the burn rate of the error budget."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards import variables
from dashboards.colours import BAD, GOOD, OUTCOMES, REJECTED_BY, WARNING, WINDOWS
from dashboards.panels import assemble_dashboard, line_panel, query, stat_panel
from dashboards.queries import (
    FAILED,
    INTERVAL,
    REFUSED_CALLS,
    SELECTED_DISPATCHERS,
    SELECTED_TOOLS,
    bad_call_ratio,
    burn_rate,
    quantile,
    rate,
    ratio,
    series,
    sum_by,
)

NOT_CLOSED = 'state=~"open|half-open|forced-open"'
FAST, SLOW = 14.4, 6.0
"""Burn rates of the paging alerts: 2 % of a month's error budget is spent in an hour, or 5 % in six hours."""


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    link = (variables.link_to_tool(),)
    calls = rate("dispatch_calls_total", SELECTED_TOOLS)
    now = (
        stat_panel(
            "Calls",
            "Completed calls per second, with any outcome.",
            "reqps",
            query(sum_by(calls)),
        ),
        stat_panel(
            "Availability",
            "Share of calls that got a reply, a tool's own error included. Timeouts, transport errors, rejections and "
            "throttling by a tool's limits count against it. Cancelled calls, and calls that were refused because of their "
            "caller alone (panels below), are excluded.",
            "percentunit",
            query(f"1 - {bad_call_ratio(INTERVAL)}"),
            base=BAD,
            colours={0.9: WARNING, 0.99: GOOD},
        ),
        stat_panel(
            "p95 duration",
            "p95 duration of successful calls over all attempts.",
            "s",
            query(quantile(0.95, "dispatch_call_duration_seconds", SELECTED_TOOLS, 'outcome_class="ok"')),
        ),
        stat_panel(
            "Circuit breakers not closed",
            "Circuit breakers that are open, forced open or half-open; by tool below.",
            "none",
            query(sum_by(series("dispatch_circuit_state", SELECTED_TOOLS, NOT_CLOSED))),
            colours={1: BAD},
        ),
        stat_panel(
            "Error budget burn rate, 1 h",
            "Share of bad calls in the last hour, divided by the share that the objective allows. At 1 the error budget "
            "lasts exactly for its period.",
            "none",
            query(burn_rate("1h")),
            colours={1: WARNING, FAST: BAD},
        ),
        stat_panel(
            "Dispatchers connected",
            "Share of dispatchers with a broker connection.",
            "percentunit",
            query(f"avg(clamp_max({series('dispatch_broker_connected', SELECTED_DISPATCHERS)}, 1))"),
            base=BAD,
            colours={1: GOOD},
        ),
    )
    red = (
        line_panel(
            "Calls by tool",
            "Completed calls per second.",
            "reqps",
            query(sum_by(calls, "tool"), "{{tool}}"),
            links=link,
        ),
        line_panel(
            "Failed calls by tool",
            "Share of calls that ended with a tool error, a timeout or a transport error. Rejections have panels of their "
            "own.",
            "percentunit",
            query(
                ratio(
                    sum_by(rate("dispatch_calls_total", SELECTED_TOOLS, f'outcome=~"{FAILED}"'), "tool"),
                    sum_by(calls, "tool"),
                ),
                "{{tool}}",
            ),
            links=link,
            maximum=1,
        ),
        line_panel(
            "p95 duration by tool",
            "p95 duration of successful calls over all attempts. Points are single calls: click one for its trace.",
            "s",
            query(
                quantile(0.95, "dispatch_call_duration_seconds", SELECTED_TOOLS, 'outcome_class="ok"', by=("tool",)),
                "{{tool}}",
                exemplars=True,
            ),
            links=link,
        ),
        line_panel(
            "Outcomes",
            "Completed calls per second, by outcome.",
            "reqps",
            query(sum_by(calls, "outcome"), "{{outcome}}"),
            stacked=True,
            colours=OUTCOMES,
        ),
        line_panel(
            "Rejections by source",
            "Attempts rejected before the tool ran per second, by the guard or service that rejected them.",
            "reqps",
            query(sum_by(rate("dispatch_rejections_total", SELECTED_TOOLS), "by"), "{{by}}"),
            stacked=True,
            colours=REJECTED_BY,
        ),
        line_panel(
            "Rejections by tool",
            "Attempts rejected before the tool ran per second.",
            "reqps",
            query(sum_by(rate("dispatch_rejections_total", SELECTED_TOOLS), "tool"), "{{tool}}"),
            links=link,
        ),
    )
    refusals = (
        line_panel(
            "Refused by policy, by user",
            "Calls per second that were refused because of their caller alone, of the ten users with the most: the user's "
            "own rate limit, a permission, an unknown tool, invalid arguments. No unavailability of a tool. _NONE: calls "
            "without a user. Of all services.",
            "reqps",
            query(
                f"topk(10, {sum_by(rate('dispatch_refused_calls_total', SELECTED_DISPATCHERS), 'user', 'reason')} > 0)",
                "{{user}}: {{reason}}",
            ),
            stacked=True,
        ).span(12),
        line_panel(
            "Refused by policy, by tool",
            "Calls per second that were refused because of their caller alone, by tool. _OTHER: names that no tool has.",
            "reqps",
            query(sum_by(rate("dispatch_calls_total", SELECTED_TOOLS, REFUSED_CALLS), "tool"), "{{tool}}"),
            links=link,
            stacked=True,
        ).span(12),
    )
    objectives = (
        line_panel(
            "Error budget burn rate",
            "Share of bad calls divided by the share that the objective allows, over growing windows. Alerts page when a "
            f"short and a long window exceed {FAST:g} or {SLOW:g}; above 1 the error budget will not last.",
            "none",
            *(query(burn_rate(window), window) for window in WINDOWS),
            colours=WINDOWS,
            thresholds={1: GOOD, SLOW: WARNING, FAST: BAD},
        ),
        line_panel(
            "Error budget burn rate by tool, 1 h",
            "Burn rate of each tool over one hour.",
            "none",
            query(burn_rate("1h", "tool"), "{{tool}}"),
            links=link,
            thresholds={1: GOOD, SLOW: WARNING, FAST: BAD},
        ),
        line_panel(
            "Circuit breakers not closed, by tool",
            "Dispatchers whose circuit breaker of the tool is open, forced open or half-open.",
            "none",
            query(f"{sum_by(series('dispatch_circuit_state', SELECTED_TOOLS, NOT_CLOSED), 'tool')} > 0", "{{tool}}"),
            links=link,
            stacked=True,
        ),
    )
    return assemble_dashboard(
        variables.OVERVIEW,
        "Dispatch: overview",
        "Rate, errors and durations of tool calls, and the error budget. A click on a tool's series leads to its "
        "dashboard.",
        (
            variables.data_source(),
            variables.job(),
            variables.dispatcher(),
            variables.services(),
            variables.tools(),
            variables.objective(),
        ),
        (
            variables.link_to_dashboard(variables.TOOL, "Tool"),
            variables.link_to_dashboard(variables.INSTANCES, "Instances and catalogue"),
        ),
        {
            "Current state": now,
            "Rate, errors, durations": red,
            "Refused by policy": refusals,
            "Service-level objectives": objectives,
        },
    )
