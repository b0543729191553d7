"""Formats of the plan of a tool: a summary, all details, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dispatch.cli.output import align_columns, make_printable
from dispatch.cli.views.effective_policy import SERVICE, TOOL, USER, Row, ToolPlan
from dispatch.policy import DEFAULT_POLICY

UNITS = "Times are in seconds, sizes in bytes, shares from 0 to 1."


def format_value(value: Any) -> str:
    """Return a value as in a policy, without quotes around a text."""
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
        value = "off" if row.value is None and row.key == row.guard else format_value(row.value)
        key = row.key.partition(".")[2] or ("" if row.key == row.guard else row.key)
        rows.append((f"  {shown}", key, value, row.source, note))
    lines.append(make_printable(align_columns(rows)))
    return "\n".join(lines)


def format_defaults() -> str:
    """Format the defaults."""
    policy = DEFAULT_POLICY
    on = [f"timeout {policy.timeout:g} s"]
    if policy.retry is not None:
        on.append(f"{policy.retry.max_attempts} attempts")
    if policy.breaker is not None:
        on.append("breaker")
    if policy.bulkhead is not None:
        on.append(f"bulkhead {policy.bulkhead.max_concurrent_calls}")
    on.append(f"balancing {policy.balancing.strategy}")
    limits = {
        "rate-limit": policy.rate_limit,
        "user-rate-limit": policy.user_rate_limit,
        "shared-user-rate-limit": policy.shared_user_rate_limit,
        "hedging": policy.hedging,
        "slo": policy.slo,
        "single-flight": policy.single_flight or None,
    }
    off = [name for name, value in limits.items() if value is None]
    return (
        f"All else is default: {', '.join(on)}; off: {', '.join(off)}. {UNITS}\n"
        "Every value and its source: --tool NAME, or --plan full."
    )


def as_dict(plan: ToolPlan) -> dict[str, Any]:
    """Return the plan as plain values, for ``--json``."""
    return {
        "tool": plan.tool,
        "service": plan.service,
        "guards": list(plan.guards),
        "retries": plan.retries,
        "requests": plan.requests,
        "promise": plan.promise or None,
        "rows": [_row_dict(row) for row in plan.rows],
    }


def as_json(plans: Sequence[ToolPlan] | None) -> list[dict[str, Any]] | None:
    """Return the plans as plain values, for ``--json``; None: no plan is to be shown."""
    return None if plans is None else [as_dict(plan) for plan in plans]


def _row_dict(row: Row) -> dict[str, Any]:
    return {
        "guard": row.guard,
        "key": row.key,
        "value": row.value,
        "source": row.source,
        "without_effect": row.without_effect or None,
    }


def _promise_rows(plan: ToolPlan) -> list[tuple[str, str]]:
    return [("  promise", plan.promise)] if plan.promise else []


def _format_heading(plan: ToolPlan) -> str:
    return make_printable(f"{plan.tool} ({plan.service})")


def _format_row(row: Row) -> str:
    value = "off" if row.value is None and row.key == row.guard else format_value(row.value)
    return f"{row.key} {value}"
