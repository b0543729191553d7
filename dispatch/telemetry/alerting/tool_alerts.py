"""Alerts about one tool: its circuit, its limits, how its calls end."""

from __future__ import annotations

from dispatch.telemetry.alerting.alert import TICKET, Alert
from dispatch.telemetry.alerting.promql import BAD_CALLS, COUNTED_CALLS, REAL, count, rate, without

LEAST = 10
"""Calls before a share of them says something."""
_CALLS = "dispatch_calls_total"
_CLOSED = 'state=~"closed|forced-open|disabled|metrics-only"'


def _share(part: str, whole: str, above: float, many: str) -> str:
    """``part`` of ``whole`` is more than ``above``, and ``many`` at least :data:`LEAST`."""
    return f"{part}\n/ {whole}\n> {above:g}\nand {many} >= {LEAST}"


def _refused(by: str, above: float) -> str:
    metric, label = "dispatch_rejections_total", "by"
    if by == "rate":  # of the tool, and not of one user
        metric, label, by = "dispatch_rate_limited_total", "scope", "tool"
    matcher = f'{label}="{by}"'
    return _share(
        rate(metric, "10m", matcher, over=(label,)),
        rate(_CALLS, "10m", over=("outcome",)),
        above,
        count(metric, "10m", matcher, over=(label,)),
    )


def _ended(window: str, outcomes: str, of: str, above: float) -> str:
    return _share(
        rate(_CALLS, window, REAL, outcomes, over=("outcome",)),
        rate(_CALLS, window, REAL, of, over=("outcome",)),
        above,
        count(_CALLS, window, REAL, outcomes, over=("outcome",)),
    )


def _unknown() -> str:
    invented = 'tool="_OTHER"', 'outcome="rejected"'
    over = ("tool", "outcome")
    return _share(
        rate(_CALLS, "1h", *invented, over=over),
        rate(_CALLS, "1h", over=over),
        0.05,
        count(_CALLS, "1h", *invented, over=over),
    )


TOOL_ALERTS = (
    Alert(
        "DispatchCircuitOpen",
        # Half open for the probes and open again: what counts is that it was never anything else.
        f"count {without()} (\n  sum without (state) (max_over_time(dispatch_circuit_state{{{_CLOSED}}}[5m])) == 0\n)",
        "5m",
        TICKET,
        "Calls of <tool> have been refused for 5 minutes: its circuit is open",
        "In <count> processes the circuit of <tool> is open, and every time it let a few calls "
        "through they failed. Its service is down, or answers too late.",
        "tool",
    ),
    Alert(
        "DispatchCircuitFlapping",
        f'max {without("to")} (increase(dispatch_circuit_transitions_total{{to="closed"}}[1h])) > 5',
        "5m",
        TICKET,
        "The circuit of <tool> closed <count> times in an hour",
        "In one process the circuit of <tool> opened and closed again <count> times within an hour: "
        "its service recovers when it is left alone, and fails when all calls come back.",
        "tool",
    ),
    Alert(
        "DispatchCircuitOverridden",
        f'count {without()} (dispatch_circuit_state{{state=~"forced-open|disabled|metrics-only"}} > 0)',
        "6h",
        TICKET,
        "The circuit of <tool> has been <state> for 6 hours",
        "Somebody set the circuit of <tool> to <state> by hand, in <count> processes, and it is still so.",
        "tool",
    ),
    Alert(
        "DispatchToolFailing",
        _ended("10m", BAD_CALLS, COUNTED_CALLS, 0.5),
        "5m",
        TICKET,
        "<share> of the calls of <tool> get no answer",
        "Of the calls of <tool> in the last 10 minutes, <share> ran out of time, were lost, refused or throttled.",
        "tool",
    ),
    Alert(
        "DispatchToolAnswersErrors",
        _ended("30m", 'outcome="tool_error"', 'outcome=~"success|tool_error"', 0.5),
        "15m",
        TICKET,
        "<share> of the answers of <tool> are errors of its own",
        "<tool> runs, and answers <share> of its calls with an error. Its service is there; "
        "something behind it, or in it, is not well.",
        "tool",
    ),
    Alert(
        "DispatchInvalidArguments",
        _ended("1h", 'outcome="invalid_arguments"', COUNTED_CALLS, 0.3),
        "15m",
        TICKET,
        "<share> of the calls of <tool> cannot be sent or read",
        "In the last hour <share> of the calls of <tool> were not sent, because their arguments "
        "are too large or no JSON, or its service could not read them.",
        "tool",
    ),
    Alert(
        "DispatchUnknownTools",
        _unknown(),
        "15m",
        TICKET,
        "<share> of all calls name a tool that there is not",
        "In <job>, <share> of the calls of the last hour were of tools that are in no "
        "catalogue: a model invents names, or a tool was taken away that prompts still speak of.",
        "overview",
    ),
    Alert(
        "DispatchRateLimitSaturated",
        _refused("rate", 0.1),
        "10m",
        TICKET,
        "The rate limit of <tool> refuses <share> of its calls",
        "<tool> is called more often than its rate allows: <share> of its calls were refused "
        "in the last 10 minutes. What a single user's limit refuses is not in it.",
        "tool",
    ),
    Alert(
        "DispatchBulkheadSaturated",
        _refused("bulkhead", 0.1),
        "10m",
        TICKET,
        "There is no room for <share> of the calls of <tool>",
        "All places for calls of <tool> are taken, and so is the line: <share> of its calls were "
        "refused in the last 10 minutes. It became slower, or is called more often.",
        "tool",
    ),
    Alert(
        "DispatchServiceOverloaded",
        _refused("service", 0.1),
        "10m",
        TICKET,
        "The service of <tool> refuses <share> of its calls",
        "The service of <tool> says that it has too much to do: it refused as many attempts in the last "
        "10 minutes as are <share> of the calls.",
        "tool",
    ),
    Alert(
        "DispatchCallsFindNoInstance",
        count("dispatch_rejections_total", "10m", 'by="balancer"', over=("by",)) + " >= 5",
        "5m",
        TICKET,
        "<count> calls of <tool> found no instance in 10 minutes",
        "For <count> calls of <tool> in the last 10 minutes there was no instance that could take them.",
        "tool",
    ),
    Alert(
        "DispatchRetryBudgetExhausted",
        _share(
            rate("dispatch_retry_budget_exhausted_total", "10m", over=()),
            rate(_CALLS, "10m", over=("outcome",)),
            0.05,
            count("dispatch_retry_budget_exhausted_total", "10m", over=()),
        ),
        "10m",
        TICKET,
        "Retries of <tool> are not paid for, for <share> of its calls",
        "So many calls of <tool> fail that the budget of its retries is spent: for <share> of "
        "its calls in the last 10 minutes a repeat was due and not made.",
        "tool",
    ),
)
