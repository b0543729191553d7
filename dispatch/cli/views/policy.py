"""How the plan of a tool is shown: in a few lines, in full, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dispatch.cli.output import align_columns, make_printable
from dispatch.cli.views.effective_policy import SERVICE, TOOL, USER, Row, ToolPlan
from dispatch.policy import DEFAULT_POLICY

UNITS = "Times are in seconds, sizes in bytes, shares from 0 to 1."


def value_text(value: Any) -> str:
    """A value as a policy has it, without quotes around a text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def short_block(plan: ToolPlan) -> str:
    """The guards of a tool, and what is not a default."""
    rows = [("  guards", ", ".join(plan.guards) or "none"), ("  retries", plan.retries), ("  requests", plan.requests)]
    for source in (USER, SERVICE, TOOL):
        said = [_said(row) for row in plan.chosen if row.source == source and not row.without_effect]
        if said:
            rows.append((f"  from {source}", ", ".join(said)))
    rows += _promise(plan)
    reasons: dict[str, list[Row]] = {}
    for row in plan.chosen:
        if row.without_effect:
            reasons.setdefault(row.without_effect, []).append(row)
    for why, idle in reasons.items():
        said = [f"{_said(row)} ({row.source})" for row in idle]
        rows.append(("  no effect", f"{', '.join(said)}: {why}"))
    return "\n".join([_head(plan), make_printable(align_columns(rows))])


def full_block(plan: ToolPlan) -> str:
    """Every value of a tool, with its source."""
    said = [("  retries", plan.retries), ("  requests", plan.requests), *_promise(plan)]
    lines = [_head(plan), make_printable(align_columns(said))]
    rows: list[tuple[str, ...]] = []
    guard = ""
    for row in plan.rows:
        shown = "" if row.guard == guard else row.guard
        guard = row.guard
        note = f"no effect: {row.without_effect}" if row.without_effect else ""
        value = "off" if row.value is None and row.key == row.guard else value_text(row.value)
        key = row.key.partition(".")[2] or ("" if row.key == row.guard else row.key)
        rows.append((f"  {shown}", key, value, row.source, note))
    lines.append(make_printable(align_columns(rows)))
    return "\n".join(lines)


def defaults_line() -> str:
    """What holds where nothing is said."""
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
    """The plan as plain values, for ``--json``."""
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
    """The plans, for ``--json``; None: there are none to show."""
    return None if plans is None else [as_dict(plan) for plan in plans]


def _row_dict(row: Row) -> dict[str, Any]:
    return {
        "guard": row.guard,
        "key": row.key,
        "value": row.value,
        "source": row.source,
        "without_effect": row.without_effect or None,
    }


def _promise(plan: ToolPlan) -> list[tuple[str, str]]:
    return [("  promise", plan.promise)] if plan.promise else []


def _head(plan: ToolPlan) -> str:
    return make_printable(f"{plan.tool} ({plan.service})")


def _said(row: Row) -> str:
    value = "off" if row.value is None and row.key == row.guard else value_text(row.value)
    return f"{row.key} {value}"
