"""Circuit breaker settings: when a tool's breaker opens, for how long, and how it closes.

In a descriptor: ``"breaker": {"consecutive-failures": 5, "open-duration": 2}``; null: off.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch.policy.validation import PolicyError, check_count, check_flag, check_seconds, merge_keys

WINDOW_CALLS = 100
"""Calls in the count window: at high rates the breaker reacts within a second. No policy sets it."""
MAX_CONSECUTIVE_FAILURES = 100_000
MAX_HALF_OPEN_CALLS = 100
"""Half-open calls of the first round: more are traffic, not probes."""
MIN_OPEN_SECONDS = 0.001
"""The shortest open duration: below it a breaker has no effect."""


class Breaker(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """When a circuit breaker opens, for how long, and how it closes. Times are in seconds, shares between 0 and 1.

    The breaker opens by the first rule that applies: share of failures, share of slow calls, consecutive failures, time
    without a success. Timeouts and transport errors are failures, unless they originate locally, or at one instance while
    another one answers (:class:`dispatch.Origin`). A stream is a success, and as slow as its first chunk, when that chunk
    has arrived; its later end counts for its instance only (``outlier_detection``). What a policy does not set is a constant
    of :class:`dispatch.resilience.breaker.rules.BreakerRules`. Defaults without another source are those of Hystrix.

    Attributes:
        failure_rate: Share of failures that opens the breaker, in the last 100 calls or in the last 30 s, whichever
            reaches it first. Default 0.5: at half the work lost, refusing calls costs no more than making them.
        min_calls: Calls in a window below which no share is judged. At most 100, which the window holds. Default 20: of
            fewer calls, half fail by chance.
        consecutive_failures: Failures without a success between them that open at once; the time between them does not
            matter; None: no such rule. Default 10: a dead service is found with half the calls that a share needs; at a
            failure rate of one half, ten in a row have a chance of one in a thousand.
        slow_call_duration: Seconds from which a call is slow, whatever its outcome; 80 % slow calls open the breaker; None:
            no call is slow. Default None: slow differs by tool (a tool that asks a language model takes ten seconds), and no
            default may stop a working tool. A timeout is a failure anyway.
        open_duration: Seconds that the breaker stays open the first time, ± 50 % at random, doubled with each opening.
            Default 5 (Hystrix, Finagle): about the time of a restart.
        max_open_duration: Seconds of the longest open time, jitter included, unless the service itself asks for longer.
            Default 300 (Finagle, Envoy).
        half_open_calls: Concurrent calls that a half-open breaker admits in its first round; the second and third round
            admit twice and four times as many. Default 3: a single call is decided by chance.
        count_tool_errors: Count a tool's own error as a failure. Default False: the service did its work.
    """

    failure_rate: float = 0.5
    min_calls: int = 20
    consecutive_failures: int | None = 10
    slow_call_duration: float | None = None
    open_duration: float = 5.0
    max_open_duration: float = 300.0
    half_open_calls: int = 3
    count_tool_errors: bool = False

    def __post_init__(self) -> None:
        _check_share(self.failure_rate, "breaker.failure-rate")
        check_count(self.min_calls, "breaker.min-calls", WINDOW_CALLS)
        check_count(self.half_open_calls, "breaker.half-open-calls", MAX_HALF_OPEN_CALLS)
        if self.consecutive_failures is not None:
            check_count(self.consecutive_failures, "breaker.consecutive-failures", MAX_CONSECUTIVE_FAILURES)
        check_seconds(self.open_duration, "breaker.open-duration")
        check_seconds(self.max_open_duration, "breaker.max-open-duration")
        if self.slow_call_duration is not None:
            check_seconds(self.slow_call_duration, "breaker.slow-call-duration")
        check_flag(self.count_tool_errors, "breaker.count-tool-errors")
        if self.open_duration < MIN_OPEN_SECONDS:
            raise PolicyError(
                "breaker.open-duration",
                f"{self.open_duration!r} is too short",
                f"give {MIN_OPEN_SECONDS} or more, for instance 5",
            )
        if self.open_duration > self.max_open_duration:
            raise PolicyError(
                "breaker.open-duration",
                f"{self.open_duration!r} is more than 'max-open-duration', {self.max_open_duration!r}",
                "give at most that",
            )


def parse_breaker(raw: object, base: Breaker | None = None) -> Breaker | None:
    """Parse a descriptor's ``breaker``, laid over ``base``; None: off.

    Raises:
        PolicyError: not an object, an unknown key, or an invalid value.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise PolicyError("breaker", f"{raw!r} is not an object", 'write {"failure-rate": 0.5}, or null for off')
    return merge_keys(Breaker() if base is None else base, raw, "breaker")


def _check_share(value: float, key: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", "give a share, for instance 0.5")
    if not 0 < value <= 1:
        raise PolicyError(key, f"{value!r} is out of range", "give a share above 0 and at most 1, for instance 0.5")
