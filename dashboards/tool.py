"""One tool: how long its calls take, how they end, and what its guards do."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards import variables
from dashboards.colours import ATTEMPT_REASONS, CIRCUIT_STATES, OUTCOMES, QUANTILES, RATE_SCOPES, REFUSED_BY
from dashboards.panels import buckets, lines, page, query, states
from dashboards.queries import INTERVAL, TOOL, quantile, rate, series, share, total

DURATION = "dispatch_call_duration_seconds"


def dashboard() -> Dashboard:
    """Made anew."""
    instances = variables.to_instances()
    duration = (
        buckets(
            "Durations",
            "Calls by how long they took, over all their attempts: successes and failures. Refused calls are not "
            "timed. The points are single calls: click one for its trace.",
            "s",
            query(total(f"increase({series(f'{DURATION}_bucket', TOOL)}[{INTERVAL}])", "le"), "{{le}}", exemplars=True),
            links=(variables.to_traces(),),
        ).span(12),
        lines(
            "Quantiles",
            "So long take half, 95 and 99 of 100 successful calls, over all their attempts. The points are single "
            "calls: click one for its trace.",
            "s",
            *(
                query(quantile(q, DURATION, TOOL, 'outcome_class="ok"'), f"p{q * 100:g}", exemplars=q == 0.95)
                for q in (0.5, 0.95, 0.99)
            ),
            colours=QUANTILES,
            links=(variables.to_traces(),),
        ).span(12),
    )
    outcome = (
        lines(
            "Outcomes",
            "How calls end, a second.",
            "reqps",
            query(total(rate("dispatch_calls_total", TOOL), "outcome"), "{{outcome}}"),
            links=(variables.to_traces(' && span.dispatch.outcome="${__field.labels.outcome}"'),),
            stacked=True,
            colours=OUTCOMES,
        ),
        states(
            "Circuit",
            "The state of the tool's circuit breaker, and how many dispatchers have it there.",
            "none",
            query(total(series("dispatch_circuit_state", TOOL), "state"), "{{state}}"),
            CIRCUIT_STATES,
            links=(instances,),
        ),
        lines(
            "Circuit transitions",
            "How often the circuit breaker went to another state, in an interval.",
            "none",
            query(total(f"increase({series('dispatch_circuit_transitions_total', TOOL)}[{INTERVAL}])", "to"), "{{to}}"),
            bars=True,
            stacked=True,
            colours=CIRCUIT_STATES,
        ),
    )
    work = (
        lines(
            "Attempts",
            "Requests that were sent for calls, a second: the first one of each, retries, hedges.",
            "reqps",
            query(total(rate("dispatch_attempts_total", TOOL), "reason"), "{{reason}}"),
            stacked=True,
            colours=ATTEMPT_REASONS,
        ),
        lines(
            "Attempts a call",
            "Requests for each call that was sent at all: 1 when nothing is repeated. Retries and hedges together "
            "are held down by their budget.",
            "none",
            query(
                share(
                    total(rate("dispatch_attempts_total", TOOL)),
                    total(rate("dispatch_attempts_total", TOOL, 'reason="first"')),
                ),
                "attempts a call",
            ),
        ),
        lines(
            "Repeats not paid for",
            "Retries and hedges that were due and not made, a second, because the budget for them was spent.",
            "reqps",
            query(total(rate("dispatch_retry_budget_exhausted_total", TOOL)), "not made"),
        ),
    )
    lines_and_limits = (
        lines(
            "Under way and in line",
            "Calls that have begun and not ended; and those among them that wait for a rate or for room.",
            "none",
            query(total(series("dispatch_inflight_calls", TOOL)), "under way"),
            query(total(series("dispatch_queued_calls", TOOL)), "in line"),
            links=(instances,),
        ),
        lines(
            "Wait in line",
            "So long wait half, and 95 of 100, of the attempts that have to wait for a rate or for room.",
            "s",
            *(query(quantile(q, "dispatch_queue_wait_seconds", TOOL), f"p{q * 100:g}") for q in (0.5, 0.95)),
            colours=QUANTILES,
        ),
        lines(
            "Rate limits by scope",
            "Attempts that a rate limit refused, a second: the tool's, or a user's.",
            "reqps",
            query(total(rate("dispatch_rate_limited_total", TOOL), "scope"), "{{scope}}"),
            stacked=True,
            colours=RATE_SCOPES,
        ),
        lines(
            "Refusals by whom",
            "Attempts that were refused before the tool ran, a second, by who refused them.",
            "reqps",
            query(total(rate("dispatch_rejections_total", TOOL), "by"), "{{by}}"),
            stacked=True,
            colours=REFUSED_BY,
            links=(instances,),
        ).span(12),
        lines(
            "First chunk of streams",
            "So long take half, 95 and 99 of 100 streams to begin. The points are single streams: click one for its "
            "trace.",
            "s",
            *(
                query(quantile(q, "dispatch_first_chunk_seconds", TOOL), f"p{q * 100:g}", exemplars=q == 0.95)
                for q in (0.5, 0.95, 0.99)
            ),
            colours=QUANTILES,
            links=(variables.to_traces(),),
        ).span(12),
    )
    return page(
        variables.TOOL,
        "Dispatch: tool",
        "One tool: durations, outcomes, its circuit, repeats, limits. Points on the durations lead to traces; lines "
        "lead to the instances that serve it.",
        (
            variables.data_source(),
            variables.traces(),
            variables.job(),
            variables.dispatcher(),
            variables.tool(),
        ),
        (
            variables.way_to(variables.OVERVIEW, "Overview"),
            variables.way_to(variables.INSTANCES, "Instances and catalogue"),
        ),
        {
            "Durations": duration,
            "Outcomes and circuit": outcome,
            "Attempts": work,
            "Lines and limits": lines_and_limits,
        },
    )
