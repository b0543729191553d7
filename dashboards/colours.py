"""Colours by meaning, the same in every panel and in the drawn pictures. Tools and instances are coloured by name.

Success is green, a tool's own error amber, a timeout or transport error red, a rejection or throttling blue, a cancelled
call grey.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GOOD, WARNING, BAD, NEUTRAL = "green", "orange", "red", "gray"

HEX: Final = {
    "green": "#3d9c55",
    "light-green": "#96d98d",
    "orange": "#f2a02c",
    "yellow": "#ead24a",
    "red": "#d23f3f",
    "dark-red": "#8f1420",
    "gray": "#9aa0a6",
    "dark-blue": "#1f60c4",
    "semi-dark-blue": "#3274d9",
    "blue": "#5794f2",
    "light-blue": "#8ab8ff",
    "super-light-blue": "#c0d8ff",
    "purple": "#8e44ad",
    "light-purple": "#c9a0e0",
    "dark-purple": "#54197a",
}
"""Hexadecimal values of the Grafana colour names used here, for the drawn pictures."""

OUTCOMES: Final = {
    "success": GOOD,
    "tool_error": WARNING,
    "invalid_arguments": "yellow",
    "timeout": BAD,
    "transport": "dark-red",
    "rejected": "blue",
    "throttled": "light-blue",
    "refused": "dark-purple",
    "cancelled": NEUTRAL,
}
"""By outcome of a call."""

REJECTED_BY: Final = {
    "permissions": "dark-purple",
    "breaker": "dark-blue",
    "rate-limit": "blue",
    "bulkhead": "light-blue",
    "service": "super-light-blue",
    "balancer": "semi-dark-blue",
    "exchange": "purple",
}
"""By the part that rejects an attempt; shades of blue, except for permissions and the dispatcher's own pending limit."""

RATE_SCOPES: Final = {"tool": "blue", "user": "light-blue"}

SERVICE_REJECTION_REASONS: Final = {
    "overloaded": "blue",
    "draining": "light-blue",
    "expired": "dark-blue",
    "stopped": NEUTRAL,
    "invalid-request": "yellow",
    "invalid-arguments": "light-yellow",
    "unknown-tool": "light-orange",
    "request-too-large": "orange",
    "reply-evicted": "purple",
}
"""By the reason for which a service rejects a request."""

CIRCUIT_STATES: Final = {
    "closed": GOOD,
    "half-open": WARNING,
    "open": BAD,
    "forced-open": "purple",
    "disabled": NEUTRAL,
    "metrics-only": "blue",
}
"""By state of a circuit breaker, in drawing order."""

INSTANCE_STATES: Final = {
    "up": GOOD,
    "warming": "light-green",
    "paused": "light-blue",
    "unresponsive": WARNING,
    "ejected": BAD,
}

SESSION_ENDS: Final = {
    "silent": BAD,
    "restarted": WARNING,
    "violation": "dark-red",
    "version": "purple",
    "handshake": "light-purple",
    "broker-refused": "orange",
    "evicted": "dark-blue",
    "replaced": "light-blue",
    "idle": NEUTRAL,
    "closed": GOOD,
}
"""By the reason of the end of a session. Its states are coloured by name: ``open`` is a bad state of a circuit breaker."""

PACKET_REJECTIONS: Final = {"unknown": "purple", "malformed": BAD, "refused-hello": "blue"}

DISPOSITIONS: Final = {
    "matched": GOOD,
    "late": WARNING,
    "duplicate": NEUTRAL,
    "unknown": "purple",
    "malformed": BAD,
}
"""By disposition of a reply."""

EXECUTION_RESULTS: Final = {"ok": GOOD, "error": WARNING, "stopped": NEUTRAL}

SERVICE_FAILURES: Final = {"cancelled": NEUTRAL, "not sent": "dark-red", "malformed": BAD}

RELOAD_RESULTS: Final = {"ok": GOOD, "failed": BAD}

ATTEMPT_REASONS: Final = {"first": GOOD, "retry": WARNING, "hedge": "purple"}

QUANTILES: Final = {"p50": "light-purple", "p95": "purple", "p99": "dark-purple"}

WINDOWS: Final = {"5m": "light-purple", "1h": "purple", "6h": "dark-purple"}


def match_last_word(colours: Mapping[str, str]) -> dict[str, str]:
    """Key ``colours`` by the last word of a series' name (``billing up``), as regular expressions in Grafana's notation."""
    return {f"/ {name}$/": colour for name, colour in colours.items()}
