"""The policy of a tool: limits of its calls and settings of its guards.

In descriptors the keys are kebab-case (``"policy": {"timeout": 10, "retry": {"max-attempts": 2}, "rate-limit": "9/s"}``).
Policies merge key by key, also within a part: defaults ← service ← tool ← call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from dispatch._internal.arguments import NamedFields, describe_type
from dispatch.policy.balancing import Balancing, parse_balancing
from dispatch.policy.breaker import Breaker, parse_breaker
from dispatch.policy.bulkhead import Bulkhead, parse_bulkhead
from dispatch.policy.hedging import check_hedging
from dispatch.policy.outlier_detection import OutlierDetection, parse_outlier_detection
from dispatch.policy.rate_limit import RateLimit, parse_rate_limit
from dispatch.policy.retry import DEFAULT_RETRY, Retry, parse_retry
from dispatch.policy.slo import Slo, parse_slo
from dispatch.policy.validation import PolicyError, check_flag, check_seconds, merge_keys

CHECKS: Final = ("model", "always", "never")
"""Values of ``check-arguments``."""


class Policy(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """Limits of the calls of a tool, and settings of its guards. Times are in seconds, sizes in bytes.

    Attributes:
        timeout: Seconds for the whole call, every attempt and wait included. Default 30: longer than nearly every tool
            takes, and short enough that an agent is not stalled for minutes (TrustGraph's own default is 600 s).
        attempt_timeout: Seconds for one attempt. None: each attempt of a repeatable tool, except the last, gets an equal
            share of the remaining time, and at most twenty times the 95th percentile of the tool's durations (1 s at least)
            once that is known; attempts of other tools get all the remaining time. Default None: it follows the tool's
            durations, and a shorter limit for a tool that cannot be repeated only discards work.
        stream_timeout: Seconds for a whole stream, from the request to its last chunk. Default 300: a long generated text.
        stream_idle_timeout: Seconds of the longest gap between two chunks, and before the first; while chunks wait for
            their reader, seconds without a read. Default 30: as one call.
        max_response_bytes: Bytes of the reply of one call, over all its chunks. Default 64 MiB: twelve times the broker's
            largest message.
        known_instances_only: Send requests to known instances of dispatch's service base only. While none is known, a call
            waits for one, as long as the tool could still be executed (``no-instance`` then, or 30 s after the last one was
            lost). Otherwise the request of a service that has not announced itself within a second goes to the shared topic,
            where third-party instances may listen. Default False: third-party instances do not announce themselves, and a
            broker does not say that a topic has no consumer, so that only the operator of the service knows.
        max_request_bytes: Bytes of the request of one call. Default 64 MiB, as ``max_response_bytes``. Above the broker's
            largest message, requests and replies are sent in fragments; only dispatch's own instances accept them.
        retry: Retries of a call that may be repeated; a number alone is ``max_attempts``; None: no retry, and hedges keep
            the default budget. Default on: a request that was lost, or refused for the moment, is worth another attempt.
        hedging: Delay after which a second attempt starts at another instance beside a slow first one; the first reply
            counts. Seconds, or a percentile of the tool's attempt durations, learnt as it is called, from ``"p50"`` to
            ``"p99.9"``. ``"p95"`` hedges one call in twenty and removes the tail ("The Tail at Scale", Dean and Barroso
            2013); 5 % of the calls are hedged at most. None: no hedging. Default None: it costs load, and is only for tools
            declared read-only or idempotent.
        breaker: Circuit breaker of the tool: when it opens, for how long, and how it closes; None: no breaker. Default on:
            a dead service costs each of its callers the whole timeout.
        bulkhead: Limit of calls in flight; a number alone is ``max_concurrent_calls``; None: no limit. Default on: calls
            that wait for one slow tool must not take the capacity of all others.
        rate_limit: Limit of calls of all users together. None: no limit. Default None: only the operator of the service
            knows its capacity.
        user_rate_limit: Limit of each user's calls of this tool. None: no limit. Default None: as for ``rate_limit``.
        shared_user_rate_limit: Limit of each user's calls of all tools together that have the same value of this key.
            None: no limit. Default None: as for ``rate_limit``.
        balancing: Choice of the instance for each request; a text alone is ``strategy``; None: round-robin. Default
            round-robin: each in turn, which is what people expect.
        outlier_detection: Ejection and slow start of instances; None: neither, and an instance that throttles is spared for
            as long as it asks. Default on: a dead instance must not receive every n-th call without end.
        single_flight: Equal calls in flight at the same time share one exchange; only for tools declared read-only. Default
            False: two replies to equal calls may be meant to differ.
        slo: Service level objectives of the tool, for alerts (``dispatch rules export``); a number alone is
            ``availability``. None: no objective. Default None: only the operator of the service knows.
        check_arguments: Calls whose arguments are checked against the tool's schema before anything is sent. ``model``:
            those that a model has written, and all of tools that this process executes; ``always``; ``never``. Default
            ``model``: models invent arguments, and a program's own calls are checked by the service.
        max_result_chars: Characters of a result that a model is shown at once; the rest is stored, and read page by page.
            Default 50000: about 12,000 tokens, a tenth of the context of a usual model.
    """

    timeout: float = 30.0
    attempt_timeout: float | None = None
    stream_timeout: float = 300.0
    stream_idle_timeout: float = 30.0
    max_response_bytes: int = 64 * 1024 * 1024
    max_request_bytes: int = 64 * 1024 * 1024
    known_instances_only: bool = False
    retry: Retry | None = DEFAULT_RETRY
    hedging: float | str | None = None
    breaker: Breaker | None = Breaker()
    bulkhead: Bulkhead | None = Bulkhead()
    rate_limit: RateLimit | None = None
    user_rate_limit: RateLimit | None = None
    shared_user_rate_limit: RateLimit | None = None
    balancing: Balancing = Balancing()
    outlier_detection: OutlierDetection | None = OutlierDetection()
    single_flight: bool = False
    slo: Slo | None = None
    check_arguments: Literal["model", "always", "never"] = "model"
    max_result_chars: int = 50_000

    def __post_init__(self) -> None:
        for key in ("timeout", "attempt_timeout", "stream_timeout", "stream_idle_timeout"):
            value = getattr(self, key)
            if value is None and key == "attempt_timeout":
                continue
            check_seconds(value, key.replace("_", "-"))
        if self.single_flight is None:  # off, as null is for every part
            msgspec.structs.force_setattr(self, "single_flight", False)
        for key in ("known_instances_only", "single_flight"):
            check_flag(getattr(self, key), key.replace("_", "-"))
        if self.hedging is not None:
            check_hedging(self.hedging)
        for key, (kind, parse) in _PARTS.items():
            value = getattr(self, key)
            if not isinstance(value, kind):  # Policy(rate_limit="100/s", retry=2): as a descriptor has it
                msgspec.structs.force_setattr(self, key, parse(value, None))
        if self.check_arguments not in CHECKS:
            raise PolicyError(
                "check-arguments", f"{self.check_arguments!r:.80} is unknown", f"give one of {', '.join(CHECKS)}"
            )
        for key in ("max_response_bytes", "max_request_bytes", "max_result_chars"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PolicyError(
                    key.replace("_", "-"), f"{value!r} is not a whole number above 0", "give a whole number ≥ 1"
                )

    def merged(self, raw: Mapping[str, Any]) -> Policy:
        """Return this policy with the values of ``raw``, whose keys are kebab-case.

        Raises:
            PolicyError: a key is unknown, or a value is invalid.
        """
        return parse_policy(raw, base=self)


def _rate_limit_parser(key: str) -> Callable[[Any, Any], RateLimit | None]:
    # A rate has no defaults: it is replaced as a whole.
    return lambda raw, _base: None if raw is None else parse_rate_limit(raw, key)


_PARTS: Mapping[str, tuple[type, Callable[[Any, Any], Any]]] = {
    "retry": (Retry, lambda raw, base: parse_retry(raw, base or DEFAULT_RETRY)),
    "breaker": (Breaker, parse_breaker),
    "bulkhead": (Bulkhead, parse_bulkhead),
    "rate_limit": (RateLimit, _rate_limit_parser("rate-limit")),
    "user_rate_limit": (RateLimit, _rate_limit_parser("user-rate-limit")),
    "shared_user_rate_limit": (RateLimit, _rate_limit_parser("shared-user-rate-limit")),
    "balancing": (Balancing, parse_balancing),
    "outlier_detection": (OutlierDetection, parse_outlier_detection),
    "slo": (Slo, parse_slo),
}
"""The fields with keys of their own: class, and the function that merges a descriptor's value over the value in force."""

DEFAULT_POLICY = Policy()
"""The defaults."""
PolicyLike = Policy | Mapping[str, Any]
"""A policy, or an object of its keys as in a descriptor: ``{"timeout": 10, "rate-limit": "9/s"}``, over the defaults."""


def read_policy(given: PolicyLike | None, base: Policy = DEFAULT_POLICY) -> Policy:
    """Return the policy that a program gives: a :class:`Policy`, or an object as in a descriptor, merged over ``base``.
    None: ``base``.

    Raises:
        TypeError: it is neither.
        PolicyError: an unknown key, or an invalid value.
    """
    if given is None or isinstance(given, Policy):
        return base if given is None else given
    if not isinstance(given, Mapping):
        raise TypeError(f"policy must be dispatch.Policy(timeout=10) or {{'timeout': 10}}, not {describe_type(given)}.")
    return parse_policy(given, base)


def parse_policy(raw: object, base: Policy = DEFAULT_POLICY) -> Policy:
    """Return the policy of a descriptor's ``policy`` object, merged over ``base``.

    Raises:
        PolicyError: not an object, an unknown key, or an invalid value.
    """
    if not isinstance(raw, Mapping):
        raise PolicyError("policy", f"{type(raw).__name__} is not an object", 'write {"timeout": 10}')
    values = dict(raw)
    for field, (kind, parse) in _PARTS.items():
        key = field.replace("_", "-")
        if key in values and not isinstance(values[key], kind):
            values[key] = parse(values[key], getattr(base, field))
    return merge_keys(base, values)
