"""Dashboard of one tool: durations and outcomes of its calls, and its guards."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards import variables
from dashboards.colours import ATTEMPT_REASONS, CIRCUIT_STATES, OUTCOMES, QUANTILES, RATE_SCOPES, REJECTED_BY
from dashboards.panels import assemble_dashboard, heatmap_panel, line_panel, query, state_timeline_panel
from dashboards.queries import FLEET_LIMITS, INTERVAL, SELECTED_TOOL, quantile, rate, ratio, series, sum_by

DURATION = "dispatch_call_duration_seconds"


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    instances = variables.link_to_instances()
    duration = (
        heatmap_panel(
            "Call durations",
            "Calls by duration over all attempts, successful and failed. Rejected calls are not timed. Points are single "
            "calls: click one for its trace.",
            "s",
            query(
                sum_by(f"increase({series(f'{DURATION}_bucket', SELECTED_TOOL)}[{INTERVAL}])", "le"),
                "{{le}}",
                exemplars=True,
            ),
            links=(variables.link_to_traces(),),
        ).span(12),
        line_panel(
            "Duration quantiles",
            "p50, p95 and p99 duration of successful calls over all attempts. Points are single calls: click one for its "
            "trace.",
            "s",
            *(
                query(quantile(q, DURATION, SELECTED_TOOL, 'outcome_class="ok"'), f"p{q * 100:g}", exemplars=q == 0.95)
                for q in (0.5, 0.95, 0.99)
            ),
            colours=QUANTILES,
            links=(variables.link_to_traces(),),
        ).span(12),
    )
    outcome = (
        line_panel(
            "Outcomes",
            "Completed calls per second, by outcome.",
            "reqps",
            query(sum_by(rate("dispatch_calls_total", SELECTED_TOOL), "outcome"), "{{outcome}}"),
            links=(variables.link_to_traces(' && span.dispatch.outcome="${__field.labels.outcome}"'),),
            stacked=True,
            colours=OUTCOMES,
        ),
        state_timeline_panel(
            "Circuit breaker state",
            "States of the tool's circuit breakers, with the number of breakers in each state: one for each version in each "
            "dispatcher.",
            "none",
            query(sum_by(series("dispatch_circuit_state", SELECTED_TOOL), "state"), "{{state}}"),
            CIRCUIT_STATES,
            links=(instances,),
        ),
        line_panel(
            "Circuit breaker transitions",
            "State transitions of the circuit breaker per interval.",
            "none",
            query(
                sum_by(f"increase({series('dispatch_circuit_transitions_total', SELECTED_TOOL)}[{INTERVAL}])", "to"),
                "{{to}}",
            ),
            bars=True,
            stacked=True,
            colours=CIRCUIT_STATES,
        ),
    )
    versions = (
        line_panel(
            "Calls by version",
            "Completed calls per second, by version of the tool. Tools without a declared version have none.",
            "reqps",
            query(sum_by(rate("dispatch_version_calls_total", SELECTED_TOOL), "version"), "{{version}}"),
            stacked=True,
        ).span(12),
        line_panel(
            "Failures by version",
            "Share of tool errors, timeouts and transport errors among the calls that were sent, by version of the tool: "
            "compare a version that is rolled out with the former one.",
            "percentunit",
            query(
                ratio(
                    sum_by(rate("dispatch_version_calls_total", SELECTED_TOOL, 'outcome_class="error"'), "version"),
                    sum_by(rate("dispatch_version_calls_total", SELECTED_TOOL, 'outcome_class=~"ok|error"'), "version"),
                ),
                "{{version}}",
            ),
            maximum=1,
        ).span(12),
    )
    work = (
        line_panel(
            "Attempts",
            "Attempts sent per second: first attempts, retries, hedges.",
            "reqps",
            query(sum_by(rate("dispatch_attempts_total", SELECTED_TOOL), "reason"), "{{reason}}"),
            stacked=True,
            colours=ATTEMPT_REASONS,
        ),
        line_panel(
            "Attempts per call",
            "Attempts per call that was sent: 1 without retries and hedges, which the retry budget limits.",
            "none",
            query(
                ratio(
                    sum_by(rate("dispatch_attempts_total", SELECTED_TOOL)),
                    sum_by(rate("dispatch_attempts_total", SELECTED_TOOL, 'reason="first"')),
                ),
                "attempts per call",
            ),
        ),
        line_panel(
            "Retry budget exhausted",
            "Retries and hedges per second that were not sent because the retry budget was spent.",
            "reqps",
            query(sum_by(rate("dispatch_retry_budget_exhausted_total", SELECTED_TOOL)), "not sent"),
        ),
    )
    queues_and_limits = (
        line_panel(
            "In flight and queued",
            "Calls in flight, and those of them that wait for the rate limit or the bulkhead.",
            "none",
            query(sum_by(series("dispatch_inflight_calls", SELECTED_TOOL)), "in flight"),
            query(sum_by(series("dispatch_queued_calls", SELECTED_TOOL)), "queued"),
            links=(instances,),
        ),
        line_panel(
            "Queue wait",
            "p50 and p95 wait for the rate limit or the bulkhead, of the attempts that wait.",
            "s",
            *(query(quantile(q, "dispatch_queue_wait_seconds", SELECTED_TOOL), f"p{q * 100:g}") for q in (0.5, 0.95)),
            colours=QUANTILES,
        ),
        line_panel(
            "Rate-limit rejections by scope",
            "Rejections per second by scope: attempts that the tool's rate limit rejected, calls that ended at their user's "
            "own limit.",
            "reqps",
            query(sum_by(rate("dispatch_rate_limited_total", SELECTED_TOOL), "scope"), "{{scope}}"),
            stacked=True,
            colours=RATE_SCOPES,
        ),
        line_panel(
            "Rejections by source",
            "Attempts rejected before the tool ran per second, by the guard or service that rejected them.",
            "reqps",
            query(sum_by(rate("dispatch_rejections_total", SELECTED_TOOL), "by"), "{{by}}"),
            stacked=True,
            colours=REJECTED_BY,
            links=(instances,),
        ).span(12),
        line_panel(
            "Time to first chunk",
            "p50, p95 and p99 time until the first chunk of a stream. Points are single streams: click one for its trace.",
            "s",
            *(
                query(quantile(q, "dispatch_first_chunk_seconds", SELECTED_TOOL), f"p{q * 100:g}", exemplars=q == 0.95)
                for q in (0.5, 0.95, 0.99)
            ),
            colours=QUANTILES,
            links=(variables.link_to_traces(),),
        ).span(12),
    )
    fleet = (
        line_panel(
            "Shares of the fleet's limits",
            "Share of each limit with the scope fleet that a dispatcher may use now, by demand: the rate limit (rate) and "
            "the bulkhead (slots). Together they are at most 100 %.",
            "percentunit",
            query(series("dispatch_fleet_share", FLEET_LIMITS), "{{kind}} {{instance}}"),
            stacked=True,
        ).span(12),
        line_panel(
            "Quota used",
            "Share of the quota that the fleet has used in this day or month, with the calls that were handed out to "
            "dispatchers.",
            "percentunit",
            query(
                ratio(
                    f"max by (fleet, per) ({series('dispatch_fleet_quota_used', FLEET_LIMITS)})",
                    f"max by (fleet, per) ({series('dispatch_fleet_quota', FLEET_LIMITS)})",
                ),
                "{{fleet}} {{per}}",
            ),
            maximum=1,
        ).span(12),
    )
    return assemble_dashboard(
        variables.TOOL,
        "Dispatch: tool",
        "One tool: durations, outcomes, circuit breaker, retries, limits. Points link to traces, series to the instances "
        "of the tool's service.",
        (
            variables.data_source(),
            variables.traces(),
            variables.job(),
            variables.dispatcher(),
            variables.services(),
            variables.tool(),
        ),
        (
            variables.link_to_dashboard(variables.OVERVIEW, "Overview"),
            variables.link_to_dashboard(variables.INSTANCES, "Instances and catalogue"),
        ),
        {
            "Durations": duration,
            "Outcomes and circuit breaker": outcome,
            "Versions": versions,
            "Attempts": work,
            "Queues and limits": queues_and_limits,
            "Fleet": fleet,
        },
    )
