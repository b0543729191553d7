"""Recording rules for every tool: rates over five minutes, for dashboards and ad-hoc queries.

Names follow Prometheus' convention ``level:metric:operations``: remaining labels, source metric, operations applied.
"""

from __future__ import annotations

from typing import Any

from dispatch.telemetry.alerting.promql import BAD_CALLS, COUNTED_CALLS, USER_LIMITED, rate, subtract, without

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
