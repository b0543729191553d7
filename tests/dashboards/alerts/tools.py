"""Alerts about one tool: its circuit, its limits, how its calls end."""

from __future__ import annotations

from tests.dashboards.alerts.case import OTHER_PROCESS, PROCESS, Case, calls, series

STATES = ("closed", "open", "half-open", "forced-open", "disabled", "metrics-only")
LOOK = {"tool": "look", "service": "library"}


def circuit(process: str = PROCESS, **values: str) -> dict[str, str]:
    """The states of the circuit; those that are not named it never is in."""
    named = {name.replace("_", "-"): value for name, value in values.items()}
    return {
        series("dispatch_circuit_state", process, state=state, **LOOK): named.get(state, "0x600") for state in STATES
    }


def closings(process: str) -> str:
    return series("dispatch_circuit_transitions_total", process, to="closed", **LOOK)


def refused(by: str) -> str:
    return series("dispatch_rejections_total", by=by, **LOOK)


def limited(scope: str) -> str:
    return series("dispatch_rate_limited_total", scope=scope, **LOOK)


UNPAID = series("dispatch_retry_budget_exhausted_total", **LOOK)
TENTH = {calls("success"): "0+8x90", calls("throttled"): "0+2x90"}
"""Ten calls a minute."""
STATE = {state: series("dispatch_circuit_state", state=state, **LOOK) for state in STATES}


def saturated(alert: str, part: str, other: str) -> Case:
    """More than a tenth of the calls are refused; what somebody else refuses does not count."""
    return Case(
        alert,
        {part: "0+1.15x90", other: "0+3x90", **TENTH},
        "30m",
        LOOK,
        {
            "one in ten": {part: "0+1x90"},
            "fewer than ten": {part: "0+0.95x90", calls("success"): "0+1x90", calls("throttled"): "0+0.9x90"},
            "not for ten minutes yet": {part: "0x22 5+5x30"},
            "somebody else refuses": {part: "0x90"},
        },
        "11.5%",
    )


def overridden(state: str) -> Case:
    """The same in two dispatchers of one process, which is one."""
    return Case(
        "DispatchCircuitOverridden",
        circuit(**{state.replace("-", "_"): "2x600"}),
        "365m",
        {"state": state, **LOOK},
        {
            "not for six hours yet": {STATE[state]: "0x9 2x600", STATE["closed"]: "2x9 0x600"},
            "open": circuit(open="2x600"),
        },
        "1",
    )


def failing(outcome: str) -> Case:
    """Of the few calls of a tool more than half end so."""
    return Case(
        "DispatchToolFailing",
        {calls("success"): "0+0.5x40", calls(outcome): "0+1.1x40", calls("refused"): "0+9x40"},
        "20m",
        LOOK,
        {"fewer than ten": {calls(outcome): "0+0.95x40"}},
        "68.75%",
    )


def few(alert: str, fires: dict[str, str], silent: dict[str, str], value: str, at: str = "90m") -> Case:
    """Just enough calls to say something, and just too few."""
    return Case(alert, fires, at, {} if alert == "DispatchUnknownToolNames" else LOOK, {"too few": silent}, value)


TOOLS = (
    Case(
        "DispatchCircuitOpen",
        circuit(closed="1x4 0x30", open="0x4 1 1 1 0 0 1 1 1 0 0 1x20", half_open="0x4 0 0 0 1 1 0 0 0 1 1 0x20")
        | circuit(OTHER_PROCESS, closed="1x40"),
        "20m",
        LOOK,
        {
            "it was closed for a moment": {STATE["closed"]: "1x4 0x11 1 0x20", STATE["open"]: "0x4 1x11 0 1x20"},
            **{
                f"{state} by an operator: another alert": {
                    STATE["open"]: "0x40",
                    STATE["half-open"]: "0x40",
                    STATE[state]: "0x4 1x40",
                }
                for state in ("forced-open", "disabled", "metrics-only")
            },
            "not for ten minutes yet": {STATE["closed"]: "1x11 0x30"},
        },
        "1",
    ),
    Case(
        "DispatchCircuitFlapping",
        {
            closings(PROCESS): "0+0.1x90",
            closings(OTHER_PROCESS): "0+0.08x90",
            series("dispatch_circuit_transitions_total", to="open", **LOOK): "0+0.2x90",
        },
        "75m",
        LOOK,
        {
            "less than five times, in each of two processes": {closings(PROCESS): "0+0.08x90"},
            "not for five minutes yet": {closings(PROCESS): "0x73 9x20"},
        },
        "6",
    ),
    *(overridden(state) for state in ("forced-open", "disabled", "metrics-only")),
    Case(
        "DispatchToolFailing",
        {
            calls("success"): "0+4.5x40",
            calls("timeout"): "0+4.5x40",
            calls("rejected"): "0+1x40",
            calls("cancelled"): "0+9x40",
        },
        "20m",
        LOOK,
        {
            "one user is beyond its own limit": {
                calls("timeout"): "0x40",
                calls("refused"): "0+90x40",
                calls("invalid_arguments"): "0+90x40",
            },
            "half of the calls": {calls("success"): "0+5.5x40"},
            "errors of the tool are answers": {calls("timeout"): "0x40", calls("tool_error"): "0+4.5x40"},
            "not for five minutes yet": {calls("timeout"): "0x17 40+40x9"},
            "names that models invented": {
                calls("timeout"): "0x40",
                calls("rejected"): "0x40",
                calls("refused", "_OTHER"): "0+9x40",
            },
        },
        "55%",
    ),
    *(failing(outcome) for outcome in ("timeout", "transport", "rejected", "throttled")),
    Case(
        "DispatchToolErrors",
        {calls("success"): "0+4.5x90", calls("tool_error"): "0+5.5x90", calls("timeout"): "0+5x90"},
        "60m",
        LOOK,
        {
            "half of the answers": {calls("success"): "0+5.5x90"},
            "not for a quarter of an hour yet": {calls("tool_error"): "0x50 50+50x40"},
        },
        "55%",
    ),
    few(
        "DispatchToolErrors",
        {calls("success"): "0+0.2x90", calls("tool_error"): "0+0.38x90"},
        {calls("tool_error"): "0+0.32x90"},
        "65.52%",
    ),
    Case(
        "DispatchInvalidArguments",
        {calls("success"): "0+6.7x120", calls("invalid_arguments"): "0+3.3x120", calls("cancelled"): "0+9x120"},
        "90m",
        LOOK,
        {
            "three in ten": {calls("success"): "0+7x120", calls("invalid_arguments"): "0+3x120"},
            "not for a quarter of an hour yet": {calls("invalid_arguments"): "0x80 40+40x40"},
        },
        "33%",
    ),
    few(
        "DispatchInvalidArguments",
        {calls("success"): "0+0.19x120", calls("invalid_arguments"): "0+0.19x120"},
        {calls("invalid_arguments"): "0+0.16x120"},
        "50%",
    ),
    Case(
        "DispatchUnknownToolNames",
        {calls("success"): "0+9.45x120", calls("refused", "_OTHER"): "0+0.55x120"},
        "90m",
        {},
        {
            "one in twenty": {calls("success"): "0+9.5x120", calls("refused", "_OTHER"): "0+0.5x120"},
            "not for a quarter of an hour yet": {calls("refused", "_OTHER"): "0x80 5+5x40"},
            "calls of a tool that there is are refused": {
                calls("refused", "_OTHER"): "0x120",
                calls("refused"): "0+9x120",
            },
        },
        "5.5%",
    ),
    few(
        "DispatchUnknownToolNames",
        {calls("success"): "0+0.19x120", calls("refused", "_OTHER"): "0+0.19x120"},
        {calls("refused", "_OTHER"): "0+0.16x120"},
        "50%",
    ),
    saturated("DispatchRateLimitSaturated", limited("tool"), limited("user")),
    saturated("DispatchBulkheadSaturated", refused("bulkhead"), refused("rate-limit")),
    saturated("DispatchServiceOverloaded", refused("service"), refused("breaker")),
    Case(
        "DispatchCallsWithoutInstance",
        {refused("balancer"): "0+0.56x40", refused("breaker"): "0+5x40"},
        "20m",
        LOOK,
        {
            "fewer than five in ten minutes": {refused("balancer"): "0+0.48x40"},
            "it was so, and is no more": {refused("balancer"): "0+2x6 12x40"},
            "not for five minutes yet": {refused("balancer"): "0x17 9x30"},
        },
        "6",
    ),
    Case(
        "DispatchRetryBudgetExhausted",
        {UNPAID: "0+1.15x90", calls("success"): "0+18x90", calls("timeout"): "0+2x90"},
        "30m",
        LOOK,
        {
            "one in twenty": {UNPAID: "0+1x90"},
            "fewer than ten": {UNPAID: "0+0.95x90", calls("success"): "0+1x90"},
            "not for ten minutes yet": {UNPAID: "0x22 5+5x30"},
        },
        "5.75%",
    ),
)
