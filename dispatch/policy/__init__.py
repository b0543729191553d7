"""Policy: what a call may take, and its parts. Frozen values; each default states its reason."""

from __future__ import annotations

from dispatch.policy.balancing import Balancing
from dispatch.policy.breaker import Breaker
from dispatch.policy.bulkhead import Bulkhead
from dispatch.policy.outlier_detection import OutlierDetection
from dispatch.policy.policy import DEFAULT_POLICY, Policy, PolicyLike, parse_policy, read_policy
from dispatch.policy.rate_limit import RateLimit
from dispatch.policy.repeat_safety import Annotations, check_repeats, repeatable
from dispatch.policy.retry import DEFAULT_RETRY, Retry
from dispatch.policy.slo import Slo
from dispatch.policy.validation import MAX_SECONDS, PolicyError, check_seconds

__all__ = [
    "DEFAULT_POLICY",
    "DEFAULT_RETRY",
    "MAX_SECONDS",
    "Annotations",
    "Balancing",
    "Breaker",
    "Bulkhead",
    "OutlierDetection",
    "Policy",
    "PolicyError",
    "PolicyLike",
    "RateLimit",
    "Retry",
    "Slo",
    "check_repeats",
    "check_seconds",
    "parse_policy",
    "read_policy",
    "repeatable",
]
