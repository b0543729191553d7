"""The first look: is anything wrong, with which tool, and how fast is what was promised being used up?"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards import variables
from dashboards.colours import BAD, GOOD, OUTCOMES, POOR, REFUSED_BY, WINDOWS
from dashboards.panels import lines, number, page, query
from dashboards.queries import (
    FAILED,
    HERE,
    INTERVAL,
    TOOLS,
    bad_share,
    burn,
    quantile,
    rate,
    series,
    share,
    total,
)

NOT_CLOSED = 'state=~"open|half-open|forced-open"'
FAST, SLOW = 14.4, 6.0
"""Burn rates at which somebody is woken: with them 2 % of a month's budget is gone in an hour, or 5 % in six."""


def dashboard() -> Dashboard:
    """Made anew."""
    link = (variables.to_tool(),)
    calls = rate("dispatch_calls_total", TOOLS)
    now = (
        number(
            "Calls",
            "Calls that end, a second, whatever their outcome.",
            "reqps",
            query(total(calls)),
        ),
        number(
            "Answered",
            "The share of calls that got an answer, a tool's own error among them. Not answered: rejected, "
            "throttled, timed out, lost on the way. Wrong arguments, and calls that their callers left, are not "
            "counted.",
            "percentunit",
            query(f"1 - {bad_share(INTERVAL)}"),
            base=BAD,
            colours={0.9: POOR, 0.99: GOOD},
        ),
        number(
            "p95",
            "95 of 100 successful calls take no longer, over all their attempts.",
            "s",
            query(quantile(0.95, "dispatch_call_duration_seconds", TOOLS, 'outcome_class="ok"')),
        ),
        number(
            "Circuits not closed",
            "Circuit breakers that let no calls go, or only probes. Which ones: below.",
            "none",
            query(total(series("dispatch_circuit_state", TOOLS, NOT_CLOSED))),
            colours={1: BAD},
        ),
        number(
            "Budget burn, 1 h",
            "How many times faster than the objective allows calls went unanswered in the last hour. 1: the budget "
            "lasts exactly as long as it has to.",
            "none",
            query(burn("1h")),
            colours={1: POOR, FAST: BAD},
        ),
        number(
            "Dispatchers with a broker",
            "The share of dispatchers whose broker is in reach.",
            "percentunit",
            query(f"avg(clamp_max({series('dispatch_broker_connected', HERE)}, 1))"),
            base=BAD,
            colours={1: GOOD},
        ),
    )
    red = (
        lines(
            "Calls by tool", "Calls that end, a second.", "reqps", query(total(calls, "tool"), "{{tool}}"), links=link
        ),
        lines(
            "Failed calls by tool",
            "The share of calls that ended with the tool's own error, a timeout or an error of transport. Refused "
            "calls stand below.",
            "percentunit",
            query(
                share(
                    total(rate("dispatch_calls_total", TOOLS, f'outcome=~"{FAILED}"'), "tool"),
                    total(calls, "tool"),
                ),
                "{{tool}}",
            ),
            links=link,
            top=1,
        ),
        lines(
            "p95 by tool",
            "95 of 100 successful calls take no longer, over all their attempts. The points are single calls: click "
            "one for its trace.",
            "s",
            query(
                quantile(0.95, "dispatch_call_duration_seconds", TOOLS, 'outcome_class="ok"', by=("tool",)),
                "{{tool}}",
                exemplars=True,
            ),
            links=link,
        ),
        lines(
            "Outcomes",
            "How calls end, a second.",
            "reqps",
            query(total(calls, "outcome"), "{{outcome}}"),
            stacked=True,
            colours=OUTCOMES,
        ),
        lines(
            "Refusals by whom",
            "Attempts that were refused before the tool ran, a second, by who refused them: a guard of the "
            "dispatcher, or the service.",
            "reqps",
            query(total(rate("dispatch_rejections_total", TOOLS), "by"), "{{by}}"),
            stacked=True,
            colours=REFUSED_BY,
        ),
        lines(
            "Refused attempts by tool",
            "Attempts that were refused before the tool ran, a second.",
            "reqps",
            query(total(rate("dispatch_rejections_total", TOOLS), "tool"), "{{tool}}"),
            links=link,
        ),
    )
    level = (
        lines(
            "Budget burn",
            "How many times faster than the objective allows calls go unanswered, over windows that grow. Short and "
            f"long ones above {FAST:g}: somebody is woken; above {SLOW:g}: soon; above 1: the budget will not last.",
            "none",
            *(query(burn(window), window) for window in WINDOWS),
            colours=WINDOWS,
            thresholds={1: GOOD, SLOW: POOR, FAST: BAD},
        ),
        lines(
            "Budget burn by tool, 1 h",
            "Likewise for each tool, over one hour.",
            "none",
            query(burn("1h", "tool"), "{{tool}}"),
            links=link,
            thresholds={1: GOOD, SLOW: POOR, FAST: BAD},
        ),
        lines(
            "Circuits not closed, by tool",
            "Dispatchers whose circuit breaker of that tool lets no calls go, or only probes.",
            "none",
            query(f"{total(series('dispatch_circuit_state', TOOLS, NOT_CLOSED), 'tool')} > 0", "{{tool}}"),
            links=link,
            stacked=True,
        ),
    )
    return page(
        variables.OVERVIEW,
        "Dispatch: overview",
        "How the calls of agents' tools are doing: rate, errors, duration, and the error budget. A click on a "
        "tool's line leads to the tool.",
        (
            variables.data_source(),
            variables.job(),
            variables.dispatcher(),
            variables.tools(),
            variables.objective(),
        ),
        (variables.way_to(variables.TOOL, "Tool"), variables.way_to(variables.INSTANCES, "Instances and catalogue")),
        {"Now": now, "Rate, errors, duration": red, "What was promised": level},
    )
