"""Colours by meaning, the same in every panel and in the drawn pictures. Tools and instances have a colour by name.

Success is green, a tool's own error amber, a timeout or an error of transport red, a refusal blue, a cancelled call grey.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GOOD, POOR, BAD, DIM = "green", "orange", "red", "gray"

HEX: Final = {
    "green": "#3d9c55",
    "light-green": "#96d98d",
    "orange": "#f2a02c",
    "yellow": "#ead24a",
    "red": "#d23f3f",
    "dark-red": "#8f1420",
    "gray": "#9aa0a6",
    "dark-blue": "#1f60c4",
    "blue": "#5794f2",
    "light-blue": "#8ab8ff",
    "super-light-blue": "#c0d8ff",
    "purple": "#8e44ad",
    "light-purple": "#c9a0e0",
    "dark-purple": "#54197a",
}
"""Grafana's names that are used here, as hexadecimal values for the drawn pictures."""

OUTCOMES: Final = {
    "success": GOOD,
    "tool_error": POOR,
    "invalid_arguments": "yellow",
    "timeout": BAD,
    "transport": "dark-red",
    "rejected": "blue",
    "throttled": "light-blue",
    "cancelled": DIM,
}
"""How calls end."""

REFUSED_BY: Final = {
    "breaker": "dark-blue",
    "rate": "blue",
    "bulkhead": "light-blue",
    "service": "super-light-blue",
    "balancer": "light-purple",
    "exchange": "purple",
}
"""The guard, or the service, that refuses an attempt."""

RATE_SCOPES: Final = {"tool": "blue", "user": "light-blue"}

REFUSAL_REASONS: Final = {
    "overloaded": "blue",
    "draining": "light-blue",
    "expired": "dark-blue",
    "stopped": DIM,
    "invalid-request": "yellow",
    "former": "light-purple",
    "forgotten": "purple",
}
"""Why a service refuses a request."""

CIRCUIT_STATES: Final = {
    "closed": GOOD,
    "half-open": POOR,
    "open": BAD,
    "forced-open": "purple",
    "disabled": DIM,
    "metrics-only": "blue",
}
"""Of a circuit breaker, in the order in which they are drawn."""

INSTANCE_STATES: Final = {"up": GOOD, "warming": "light-green", "paused": "light-blue", "ejected": BAD}

DISPOSITIONS: Final = {
    "matched": GOOD,
    "late": POOR,
    "duplicate": DIM,
    "unknown": "purple",
    "malformed": BAD,
}
"""What becomes of replies."""

RUN_RESULTS: Final = {"ok": GOOD, "error": POOR, "stopped": DIM}

LOSSES: Final = {"stopped": DIM, "lost": BAD, "unreadable": "purple"}

RELOAD_RESULTS: Final = {"ok": GOOD, "failed": BAD}

ATTEMPT_REASONS: Final = {"first": GOOD, "retry": POOR, "hedge": "purple"}

QUANTILES: Final = {"p50": "light-purple", "p95": "purple", "p99": "dark-purple"}

WINDOWS: Final = {"5m": "light-purple", "1h": "purple", "6h": "dark-purple"}


def last(colours: Mapping[str, str]) -> dict[str, str]:
    """``colours`` by the last word of a series' name (``billing up``), as regular expressions in Grafana's form."""
    return {f"/ {name}$/": colour for name, colour in colours.items()}
