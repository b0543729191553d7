"""Complete rules of a circuit breaker: a policy's settings, and the constants that no policy sets."""

from __future__ import annotations

import msgspec

from dispatch.policy.breaker import WINDOW_CALLS, Breaker


class BreakerRules(Breaker, frozen=True, rename="kebab"):
    """A policy's breaker settings with the constants beside them. The constants are right for any tool, or cannot be chosen
    sensibly by a user; tests give others. Times are in seconds.

    Attributes:
        window_calls: The count window; see :data:`dispatch.policy.breaker.WINDOW_CALLS`.
        window_duration: The time window, in ten slices. 30 (Polly): at low rates, half a minute of failures counts although
            a hundred successes of the last hour outnumber it.
        slow_call_rate: Share of slow calls that opens, in either window. 0.8: most calls, not merely a slow tail.
        no_success_duration: Only failures for this long, counted from the first of them, open the circuit; None: no such
            rule. 60: the failure of a tool that is called twice a minute would otherwise be detected only after minutes.
        no_success_failures: Minimum number of failures for this rule. 3: two may be one transient failure and its retry.
        jitter: Share by which an open duration is made shorter or longer at random. 0.5: dispatchers that observed the same
            failure must not all resume at the same moment.
        decay_duration: Seconds in the closed state that undo one doubling of the open duration (gRPC A50). 30: the open
            durations of a service that fails every twenty seconds grow; those of one that works for minutes start again at
            the shortest.
        half_open_rounds: Rounds of half-open calls, each with twice as many as the one before; after the last the breaker
            closes. 3 (3, 6, 12 calls by default): a service with cold caches does not receive the whole load at once.
        half_open_lease: Seconds after which an unfinished half-open call is lost: its permit is free and its outcome is
            ignored. 60: twice the default timeout of a call, so that a running call is not counted as lost.
        max_retry_after: Longest pause, in seconds, that a service may ask for. 3,600: one call an hour costs nothing, and a
            wrong unit in a retry-after must not disable a tool permanently.
    """

    window_calls: int = WINDOW_CALLS
    window_duration: float = 30.0
    slow_call_rate: float = 0.8
    no_success_duration: float | None = 60.0
    no_success_failures: int = 3
    jitter: float = 0.5
    decay_duration: float = 30.0
    half_open_rounds: int = 3
    half_open_lease: float = 60.0
    max_retry_after: float = 3600.0


def complete_rules(settings: Breaker) -> BreakerRules:
    """Return the complete rules of a policy's settings."""
    return settings if isinstance(settings, BreakerRules) else BreakerRules(**msgspec.structs.asdict(settings))
