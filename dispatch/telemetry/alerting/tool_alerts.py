"""Alerts about one tool: its circuit breaker, its limits, the outcomes of its calls."""

from __future__ import annotations

from collections.abc import Callable

from dispatch.telemetry.alerting.alert import TICKET, Alert
from dispatch.telemetry.alerting.promql import (
    BAD_CALLS,
    COUNTED_CALLS,
    KNOWN_TOOLS,
    exclude_user_limited,
    increase,
    rate,
    without,
)

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
