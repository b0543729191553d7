"""Policy: what a call may take, and its parts. Frozen values; each default states its reason."""

from __future__ import annotations

from dispatch.policy.checks import MAX_SECONDS, PolicyError, check_seconds
from dispatch.policy.policy import (
    DEFAULT_POLICY,
    MAX_REPLY_CONNECTIONS,
    MAX_REPLY_SUBSCRIPTIONS,
    Policy,
    parse_policy,
)

__all__ = [
    "DEFAULT_POLICY",
    "MAX_REPLY_CONNECTIONS",
    "MAX_REPLY_SUBSCRIPTIONS",
    "MAX_SECONDS",
    "Policy",
    "PolicyError",
    "check_seconds",
    "parse_policy",
]
