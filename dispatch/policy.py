"""Policy: what a call may take, and its parts. Frozen values; each default states its reason."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec

from dispatch._internal import NamedFields, describe_type, scalar_value

# Validation of policy values, and the error for an invalid one.


Part = TypeVar("Part", bound=msgspec.Struct)


class PolicyError(ValueError):
    """An invalid policy value: its ``key``, the ``problem`` and the ``fix``."""

    def __init__(self, key: str, problem: str, fix: str) -> None:
        super().__init__(f"policy key '{key}': {problem}; {fix}")
        self.key = key
        self.problem = problem
        self.fix = fix


MAX_SECONDS = 7 * 24 * 3600.0
"""Largest time: a week. A larger value is nearly always a mistake of units (milliseconds)."""


def check_seconds(value: object, key: str = "timeout", *, allow_zero: bool = False) -> float:
    """Return ``value`` as a time in seconds, above 0 (``allow_zero``: 0 or more) and at most a week.

    Raises:
        PolicyError: it is no such time.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PolicyError(key, f"{value!r} is not a number", "give seconds, for instance 10 or 0.5")
    if allow_zero and value == 0:
        return 0.0
    if not 0 < value <= MAX_SECONDS:  # false for NaN and infinity, too
        raise PolicyError(
            key,
            f"{value!r} is out of range",
            f"give seconds {'from' if allow_zero else 'above'} 0 and at most 604800 (a week)",
        )
    return float(value)


def check_count(value: object, key: str, most: int) -> None:
    """Check that ``value`` is a whole number from 1 to ``most``.

    Raises:
        PolicyError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise PolicyError(
            key, f"{value!r} is not a whole number from 1 to {most}", f"give a whole number ≥ 1 and ≤ {most}"
        )


def check_flag(value: object, key: str) -> None:
    """Check that ``value`` is true or false.

    Raises:
        PolicyError: it is neither.
    """
    if not isinstance(value, bool):
        raise PolicyError(key, f"{value!r} is not true or false", "give true or false")


def merge_keys(base: Part, raw: Mapping[Any, Any], part: str = "") -> Part:
    """Return ``base`` with the values of ``raw``, whose keys are spelt as in a descriptor. ``part``: prefix of the keys in
    errors.

    Raises:
        PolicyError: a key is unknown, or a value is invalid.
    """
    known = base.__struct_encode_fields__
    fields = dict(zip(known, base.__struct_fields__, strict=True))
    changes: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            where = f"{part}.{key}" if part else str(key)
            raise PolicyError(where, "unknown key", f"{hint}known keys: {', '.join(known)}")
        changes[fields[key]] = value
    return msgspec.structs.replace(base, **changes) if changes else base


# Load-balancing settings: which instance of a service receives the next request.
#
# In a descriptor: ``"balancing": "least-request"``, or ``{"strategy": "least-request", "choice-count": 8}``.


STRATEGIES: Final = ("round-robin", "weighted", "least-request", "peak-ewma")
"""The names that ``Balancing.strategy`` takes."""
MAX_CHOICES = 256
"""Instances compared for one request: as many as a dispatcher knows of one service."""


class Balancing(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """How the instance for a request is chosen. In a descriptor a text alone is the strategy.

    Attributes:
        strategy: ``round-robin``: each instance in turn, whatever its weight. ``weighted``: in turn, as often as its weight
            says, evenly mixed. ``least-request``: of ``choice_count`` instances drawn at random, the one with the fewest
            calls of this dispatcher for its weight. ``peak-ewma``: of two drawn at random, the one that will probably answer
            sooner; the best where instances differ in speed. Default round-robin: it needs no knowledge of the instances,
            and is what people expect.
        choice_count: With ``least-request``, the number of instances that are compared, from 2 to 256; as many as there are
            instances compares all. Default 2 (Envoy): the cost does not grow with the instances, and the 99th percentile is
            within a few per cent of comparing all.
    """

    strategy: str = "round-robin"
    choice_count: int = 2

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            near = difflib.get_close_matches(str(self.strategy), STRATEGIES, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise PolicyError(
                "balancing.strategy", f"{self.strategy!r} is unknown", f"{hint}known: {', '.join(STRATEGIES)}"
            )
        count = self.choice_count
        if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MAX_CHOICES:
            raise PolicyError(
                "balancing.choice-count",
                f"{count!r} is not a whole number from 2 to {MAX_CHOICES}",
                "give 2, or the number of instances to compare all",
            )


def parse_balancing(raw: object, base: Balancing | None = None) -> Balancing:
    """Parse a descriptor's ``balancing``, laid over ``base``: an object, or a strategy's name; None: round-robin.

    Raises:
        PolicyError: neither an object nor a name, an unknown key, or an invalid value.
    """
    if raw is None:
        return Balancing()
    if isinstance(raw, str):
        raw = {"strategy": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "balancing", f"{type(raw).__name__} is not an object", 'write "peak-ewma", or null for round-robin'
        )
    return merge_keys(Balancing() if base is None else base, raw, "balancing")


# Bulkhead settings: calls of a tool in flight, and how long a call may wait for a permit.
#
# In a descriptor: ``"bulkhead": {"max-concurrent-calls": 16, "max-wait": 0.5}``, or the number of calls alone,
# ``"bulkhead": 16``; null: off.


MAX_CONCURRENT_CALLS = 10_000
"""Calls of one tool in flight. More than this was never seen to help: a larger number is a slip, or limits nothing."""
MAX_PRIORITIES = 8


def _check_priorities(value: object) -> None:
    if (
        not isinstance(value, tuple)
        or not all(isinstance(name, str) and name for name in value)
        or len(set(value)) != len(value)
        or not 1 <= len(value) <= MAX_PRIORITIES
    ):
        raise PolicyError(
            "bulkhead.priorities",
            f"{value!r} is not a list of 1 to {MAX_PRIORITIES} different names",
            'write ["interactive", "batch"], the most urgent first',
        )


class Bulkhead(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """Limit of a tool's calls in flight, and of the time that a call waits for a permit.

    A bare number means ``max_concurrent_calls``: ``"bulkhead": 16``. The queue is bounded by waiting time, not by a small
    count; its length (10,000) and its overload rule (CoDel, on a standing queue) are constants of
    :mod:`dispatch.resilience.bulkhead`.

    Attributes:
        max_concurrent_calls: Calls of the tool in flight. Default 64: as many messages as one connection publishes without
            loss at the broker (the publish window); by Little's law 640 calls a second of 0.1 s each.
        max_wait: Seconds that a call waits for a permit, never beyond its deadline; 0: a call that gets none at once
            is rejected. None: as long as the call can still end by its deadline, at the durations seen. Default None: a
            burst on a tool that takes seconds can be answered, like one on a fast tool.
        priorities: Names of priority classes, the most urgent first; a call that names none has the first. Default
            interactive before batch: a person waits for an interactive call.
    """

    max_concurrent_calls: int = 64
    max_wait: float | None = None
    priorities: tuple[str, ...] = ("interactive", "batch")

    def __post_init__(self) -> None:
        calls = self.max_concurrent_calls
        if isinstance(calls, bool) or not isinstance(calls, int) or not 1 <= calls <= MAX_CONCURRENT_CALLS:
            raise PolicyError(
                "bulkhead.max-concurrent-calls",
                f"{calls!r} is not a whole number from 1 to {MAX_CONCURRENT_CALLS}",
                "give a whole number ≥ 1, for instance 64",
            )
        if self.max_wait is not None:
            check_seconds(self.max_wait, "bulkhead.max-wait", allow_zero=True)
        _check_priorities(self.priorities)


def parse_bulkhead(raw: object, base: Bulkhead | None = None) -> Bulkhead | None:
    """Parse a descriptor's ``bulkhead``, laid over ``base``: a number of calls, or an object; None: off.

    Raises:
        PolicyError: neither a number nor an object, an unknown key, or an invalid value.
    """
    if raw is None or isinstance(raw, Bulkhead):
        return raw
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        raw = {"max-concurrent-calls": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "bulkhead",
            f"{raw!r} is neither a number nor an object",
            'write 16, {"max-concurrent-calls": 16, "max-wait": 0.5}, or null for off',
        )
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    return merge_keys(Bulkhead() if base is None else base, changes, "bulkhead")


# Outlier detection settings: when an instance is ejected, for how long, and how it returns.
#
# In a descriptor: ``"outlier-detection": {"consecutive-failures": 3, "base-ejection-time": 5}``; null: off.


MAX_CONSECUTIVE_FAILURES = 100_000
MAX_EJECTION_S = 300.0
"""Seconds of the longest ejection, and of the longest pause that an instance may ask for (Envoy's ``max_ejection_time``)."""


class OutlierDetection(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """Passive health checks: when an instance is ejected, for how long, and how it returns.

    Timeouts and transport errors are failures, unless they originate locally (:class:`dispatch.Origin`). A throttled call is
    none: the instance receives less work for as long as it asked. Cancelled calls, and calls that another guard rejected,
    are not counted. An attempt that was cancelled because its hedge, begun later, was answered first counts as a consecutive
    failure only. An instance is also ejected when its success rate is far below the others', or when it takes three times as
    long as they do; the constants of these rules are in :class:`dispatch.balancing.instances.EjectionRules`.

    Attributes:
        consecutive_failures: Consecutive failures that eject an instance; None: only its success rate or its durations do.
            Default 5 (Envoy, Finagle): at one failure in three, five in a row have a chance of one in 243; a dead instance
            is found with as many calls.
        base_ejection_time: Seconds of the first ejection; the second takes twice as long, the third three times; at most
            300 s (Envoy). Default 30 (Envoy, gRPC).
        max_ejection_ratio: Largest share of instances that may be ejected at once, above 0 and at most 1 (Envoy's
            ``max_ejection_percent``); one instance of three or more always may. Default 0.5: more rarely fail independently,
            and the rest could not carry the load.
        panic_threshold: When a smaller share of the instances than this is not ejected, or all of these fail, all instances
            are used (Envoy's panic mode); 0: only when all fail. Default 0.5 (Envoy): some failures are better than all
            calls at the last healthy instance.
        slow_start_window: Seconds after which an instance that is new or returns receives its full share, beginning with a
            tenth; None: at once. Default 30: caches and connections warm up, and an instance that still fails is found at
            little cost.
        count_tool_errors: Count a tool's own error as a failure of its instance. Default False: the instance did its work.
    """

    consecutive_failures: int | None = 5
    base_ejection_time: float = 30.0
    max_ejection_ratio: float = 0.5
    panic_threshold: float = 0.5
    slow_start_window: float | None = 30.0
    count_tool_errors: bool = False

    def __post_init__(self) -> None:
        if self.consecutive_failures is not None:
            check_count(self.consecutive_failures, "outlier-detection.consecutive-failures", MAX_CONSECUTIVE_FAILURES)
        check_seconds(self.base_ejection_time, "outlier-detection.base-ejection-time")
        if self.base_ejection_time > MAX_EJECTION_S:
            raise PolicyError(
                "outlier-detection.base-ejection-time",
                f"{self.base_ejection_time!r} is more than the longest ejection",
                f"give at most {MAX_EJECTION_S:g}",
            )
        if not 0 < _check_number(self.max_ejection_ratio, "outlier-detection.max-ejection-ratio") <= 1:
            raise PolicyError(
                "outlier-detection.max-ejection-ratio",
                f"{self.max_ejection_ratio!r} is out of range",
                "give a share above 0 and at most 1",
            )
        if not 0 <= _check_number(self.panic_threshold, "outlier-detection.panic-threshold") <= 1:
            raise PolicyError(
                "outlier-detection.panic-threshold",
                f"{self.panic_threshold!r} is out of range",
                "give a share from 0 to 1; 0: only when all fail",
            )
        if self.slow_start_window is not None:
            check_seconds(self.slow_start_window, "outlier-detection.slow-start-window")
        check_flag(self.count_tool_errors, "outlier-detection.count-tool-errors")


def parse_outlier_detection(raw: object, base: OutlierDetection | None = None) -> OutlierDetection | None:
    """Parse a descriptor's ``outlier-detection``, laid over ``base``; None: off.

    Raises:
        PolicyError: not an object, an unknown key, or an invalid value.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "outlier-detection",
            f"{type(raw).__name__} is not an object",
            'write {"consecutive-failures": 3}, or null for off',
        )
    return merge_keys(OutlierDetection() if base is None else base, raw, "outlier-detection")


def _check_number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", "give a number, for instance 0.5")
    return value


# Retry settings: attempts of one call, the backoff between them, and the retry budget.
#
# In a descriptor: ``"retry": {"max-attempts": 3, "max-backoff": 5}``, or the number of attempts alone, ``"retry": 3``;
# null: off.


MAX_ATTEMPTS = 10
"""More is a slip: a call that failed ten times fails again."""


class Retry(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """Number, time and share of repeated attempts. Which calls may be repeated is no setting: see
    :mod:`dispatch.policy`.

    Attributes:
        max_attempts: Attempts of one call, the first one included; 1: no retry; at most 10. Default 3: more attempts rarely
            succeed and add load to a service in trouble (Google's SRE book, ch. 21).
        initial_backoff: Seconds; the wait before the second attempt is random between 0 and this, and its bound doubles with
            each further one ("full jitter"). Default 0.05: as in the AWS SDKs' retry mode 2.1.
        max_backoff: Seconds at which the doubling ends; at least ``initial_backoff``. Default 2: an agent waits.
        budget_ratio: Retries and hedges together, as a share of the tool's calls of the last 10 s, 0 to 1; three a second
            are always allowed. Default 0.2: as in Envoy, Finagle and failsafe-go; when everything fails, a service receives
            a fifth more than its load, not three times its load.
        retryable_errors: Types of the tool's own errors after which another attempt can succeed. Default none: an error that
            the tool answered is its answer.
    """

    max_attempts: int = 3
    initial_backoff: float = 0.05
    max_backoff: float = 2.0
    budget_ratio: float = 0.2
    retryable_errors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        attempts = self.max_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MAX_ATTEMPTS:
            raise PolicyError(
                "retry.max-attempts",
                f"{attempts!r} is not a whole number from 1 to {MAX_ATTEMPTS}",
                "give 3, or 1 for no retry",
            )
        check_seconds(self.initial_backoff, "retry.initial-backoff")
        check_seconds(self.max_backoff, "retry.max-backoff")
        if self.max_backoff < self.initial_backoff:
            raise PolicyError(
                "retry.max-backoff",
                f"{self.max_backoff!r} is less than 'initial-backoff' ({self.initial_backoff!r})",
                "give the longest wait, for instance 2",
            )
        ratio = self.budget_ratio
        fix = "give the share of calls, for instance 0.2"
        if isinstance(ratio, bool) or not isinstance(ratio, int | float):
            raise PolicyError("retry.budget-ratio", f"{ratio!r} is not a number", fix)
        if not 0 <= ratio <= 1:  # false for NaN, too
            raise PolicyError("retry.budget-ratio", f"{ratio!r} is not from 0 to 1", fix)
        errors = self.retryable_errors
        if not isinstance(errors, tuple) or not all(isinstance(each, str) and each for each in errors):
            raise PolicyError(
                "retry.retryable-errors",
                f"{errors!r} is not a list of error types",
                'give their names, for instance ["busy"]',
            )


DEFAULT_RETRY = Retry()


def parse_retry(raw: object, base: Retry = DEFAULT_RETRY) -> Retry | None:
    """Parse a descriptor's ``retry``, laid over ``base``: a number of attempts, or an object; None: off.

    Raises:
        PolicyError: neither a number nor an object, an unknown key, or an invalid value.
    """
    if raw is None:
        return None
    if isinstance(raw, int) and not isinstance(raw, bool):
        raw = {"max-attempts": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "retry",
            f"{raw!r} is neither a number of attempts nor an object",
            'write 3, {"max-attempts": 3}, or null for no retry',
        )
    if isinstance(raw.get("retryable-errors"), list):
        raw = {**raw, "retryable-errors": tuple(raw["retryable-errors"])}
    return merge_keys(base, raw, "retry")


# Circuit breaker settings: when a tool's breaker opens, for how long, and how it closes.
#
# In a descriptor: ``"breaker": {"consecutive-failures": 5, "open-duration": 2}``; null: off.


WINDOW_CALLS = 100
"""Calls in the count window: at high rates the breaker reacts within a second. No policy sets it."""
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
    of :class:`dispatch.resilience.breaker.BreakerRules`. Defaults without another source are those of Hystrix.

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


# Rate limits of tools and users: a rate, a burst, the longest wait, and the users' weights.


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit of time of a rate."""
MAX_PER_SECOND = 1_000_000.0
"""Calls per second; one process never reaches more, so that a higher limit has no effect."""
MAX_BURST = 1_000_000.0
MAX_WEIGHT = 1_000.0
"""The largest weight; the smallest is one by this."""
MAX_WEIGHTS = 10_000

_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smhd])", re.ASCII)
_EXAMPLE = 'write a number and s, m, h or d, for instance "100/s", "10/m" or "0.5/s"'
_OBJECT = 'write "100/s" or {"rate": "100/s", "burst": 20}'


class RateLimit(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """A rate limit. In a descriptor ``"100/s"``, or an object with these keys. ``str(limit)`` is the same text, or the same
    object as JSON; :func:`parse_rate_limit` accepts both.

    A leaky bucket (Turner 1986): in ``t`` seconds it admits at most ``burst + rate * t`` calls.

    Attributes:
        rate: Calls per second, minute, hour or day: ``100/s``, ``10/m``, ``1000/h``, ``0.5/s``. No default: only the
            operator of the service knows its capacity.
        burst: Calls that are admitted at once after an idle time; at least 1. None: the number in ``rate``. Default None, as
            in aiolimiter and resilience4j: "10/m" is understood as ten calls at any time within a minute. 1 spaces the calls
            evenly.
        max_wait: Seconds that a call waits, never beyond its deadline; 0: a call above the rate is rejected at once. A call
            that would have to wait for longer is rejected at once, with the time after which it can be repeated. Default 1:
            a caller that would wait for longer does better to call again later.
        weights: Shares of the rate by user while more calls wait than the rate admits; a user without an entry has weight 1.
            From 0.001 to 1000, for at most 10,000 users. Default empty: all users have equal shares.
    """

    rate: str
    burst: float | None = None
    max_wait: float = 1.0
    weights: Mapping[str, float] | tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        calls, unit = _parsed(self.rate)
        msgspec.structs.force_setattr(self, "rate", f"{_plain(calls)}/{unit}")
        if self.burst is None:
            if calls > MAX_BURST:
                raise PolicyError(
                    "rate-limit.burst", "it is missing, and the number in 'rate' is too large for it", _burst_fix()
                )
        elif not _is_number(self.burst) or not 1 <= self.burst <= MAX_BURST:
            raise PolicyError("rate-limit.burst", f"{self.burst!r} is not a number from 1", _burst_fix())
        check_seconds(self.max_wait, "rate-limit.max-wait", allow_zero=True)
        msgspec.structs.force_setattr(self, "weights", _weights(self.weights))

    @property
    def per_second(self) -> float:
        """Calls per second."""
        calls, unit = _parsed(self.rate)
        return calls / UNITS[unit]

    @property
    def capacity(self) -> float:
        """``burst``, or if that is None the number in ``rate``, at least 1."""
        return max(1.0, _parsed(self.rate)[0]) if self.burst is None else float(self.burst)

    def __str__(self) -> str:
        document = self.as_document()
        return document if isinstance(document, str) else msgspec.json.encode(scalar_value(document)).decode()

    def as_document(self) -> str | dict[str, Any]:
        """The value for a descriptor: the text of the rate, or an object of the keys that differ from their defaults."""
        document = {
            key: getattr(self, field)
            for field, key, default in zip(
                self.__struct_fields__[1:], self.__struct_encode_fields__[1:], self.__struct_defaults__, strict=True
            )
            if getattr(self, field) != default
        }
        if not document:
            return self.rate
        if self.weights:
            document["weights"] = dict(self.weights)
        return {"rate": self.rate, **document}


def parse_rate_limit(raw: object, key: str = "rate-limit") -> RateLimit:
    """Parse a rate limit.

    Args:
        raw: text such as ``100/s``, an object with the keys of :class:`RateLimit`, such an object as JSON text, or a
            :class:`RateLimit`.
        key: the policy key that has the value, for errors, such as ``rate-limit``.

    Raises:
        PolicyError: the value is not valid; the error's ``key`` begins with ``key``.
    """
    if isinstance(raw, RateLimit):
        return raw
    try:
        if isinstance(raw, str) and raw.startswith("{"):
            try:
                raw = msgspec.json.decode(raw)
            except msgspec.DecodeError as error:
                raise PolicyError("rate-limit", f"it is not a JSON object ({error})", _OBJECT) from None
        if isinstance(raw, str):
            return RateLimit(raw)
        if isinstance(raw, Mapping):
            return RateLimit(**_fields(raw))
        raise PolicyError("rate-limit", f"{raw!r} is neither text nor an object", _OBJECT)
    except PolicyError as error:
        if key == "rate-limit":
            raise
        raise PolicyError(key + error.key.removeprefix("rate-limit"), error.problem, error.fix) from None


def _fields(raw: Mapping[Any, Any]) -> dict[str, Any]:
    fields = dict(zip(RateLimit.__struct_encode_fields__, RateLimit.__struct_fields__, strict=True))
    for each in raw:
        if each not in fields:
            raise PolicyError(f"rate-limit.{each}", "unknown key", f"known keys: {', '.join(fields)}")
    if "rate" not in raw:
        raise PolicyError("rate-limit.rate", "it is missing", _EXAMPLE)
    return {fields[each]: value for each, value in raw.items()}


def _parsed(text: object) -> tuple[float, str]:
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise PolicyError("rate-limit", f"{text!r} is not a rate", _EXAMPLE)
    calls = float(found[1])
    if not 0 < calls / UNITS[found[2]] <= MAX_PER_SECOND:
        raise PolicyError(
            "rate-limit",
            f"{text!r} is out of range",
            "give more than 0 and at most 1000000 a second; for no limit, omit the key",
        )
    return calls, found[2]


def _plain(number: float) -> str:
    """Format a number as :data:`_TEXT` accepts it: no exponent, no trailing point."""
    if number == int(number):
        return str(int(number))
    return format(Decimal(repr(number)), "f")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _burst_fix() -> str:
    return "give the calls that are admitted at once, from 1 (evenly spaced) to 1000000"


def _weights(raw: object) -> tuple[tuple[str, float], ...]:
    """Return sorted pairs, so that limits with the same weights are equal and have the same hash."""
    try:
        pairs = dict(raw)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise PolicyError("rate-limit.weights", f"{raw!r} is not an object", 'write {"batch": 0.5, "ann": 4}') from None
    if len(pairs) > MAX_WEIGHTS:
        raise PolicyError(
            "rate-limit.weights", f"{len(pairs)} are too many", f"give at most {MAX_WEIGHTS}; the rest have 1"
        )
    for user, weight in pairs.items():
        if not isinstance(user, str):
            raise PolicyError("rate-limit.weights", f"{user!r} is not a user's name", "give names as text")
        if not _is_number(weight) or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
            raise PolicyError(
                "rate-limit.weights",
                f"{weight!r} for {user!r} is not a number from 0.001 to 1000",
                "give 1 for an even share",
            )
    return tuple(sorted((user, float(weight)) for user, weight in pairs.items()))


# Settings of service level objectives.
#
# In a descriptor: ``"slo": {"availability": 0.99, "latency": 2.0}``, or the share of good calls alone, ``"slo": 0.99``;
# null: no objective. Objectives change no call: ``dispatch rules export`` creates alerts from them.


MIN_OBJECTIVE, MAX_OBJECTIVE = 0.5, 0.9999
"""Below a half an objective has no use; less than one bad call in ten thousand is too rare to be measured in the three days
that alerts evaluate."""
MAX_LATENCY = 81.92
"""Seconds: the largest bound of the histogram of durations (``dispatch.telemetry.observers.DURATION_BUCKETS``). Longer
durations are not distinguished."""


def _check_objective(value: object, key: str, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", f"give the share of calls, for instance {example}")
    if not MIN_OBJECTIVE <= value <= MAX_OBJECTIVE:  # false for NaN, too
        fix = f"give the share of calls, for instance {example} (99 % is 0.99; 1 would allow no failure at all)"
        raise PolicyError(key, f"{value!r} is not from {MIN_OBJECTIVE:g} to {MAX_OBJECTIVE:g}", fix)


class Slo(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """A service level objective of a tool, over any time. docs/how-to/runbook.md says which calls are good.

    Attributes:
        availability: the share of calls that are good, from 0.5 to 0.9999. Bad are timeouts, errors of transport, and calls
            that were refused or throttled; the tool's own error is its answer, and good. None: not promised.
        latency: seconds that a successful call may take, all its attempts and waits included; at most 81.92. It is measured
            at the next larger bucket of the histogram (2 s at 2.56 s), so that no call that kept the promise counts as slow.
            None: not promised.
        latency_share: the share of successful calls that must not take longer, from 0.5 to 0.9999. 0.95: as is usual
            for a latency that people wait for; a stricter one is about single calls.
    """

    availability: float | None = None
    latency: float | None = None
    latency_share: float = 0.95

    def __post_init__(self) -> None:
        if self.availability is not None:
            _check_objective(self.availability, "slo.availability", "0.99")
        if self.latency is not None:
            check_seconds(self.latency, "slo.latency")
            if self.latency > MAX_LATENCY:
                raise PolicyError(
                    "slo.latency",
                    f"{self.latency!r} is more than {MAX_LATENCY:g}, and longer times are not distinguished",
                    "give seconds, for instance 2",
                )
        _check_objective(self.latency_share, "slo.latency-share", "0.95")
        if self.availability is None and self.latency is None:
            raise PolicyError(
                "slo", "it sets no objective", "give 'availability' or 'latency', or write null for no objective"
            )


_ANY = Slo(availability=MIN_OBJECTIVE)


def parse_slo(raw: object, base: Slo | None = None) -> Slo | None:
    """Return the objectives of a descriptor's ``slo``, merged over ``base``; None: no objective.

    Raises:
        PolicyError: neither a share nor an object, an unknown key, or an invalid value.
    """
    if raw is None:
        return None
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        raw = {"availability": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "slo",
            f"{raw!r} is neither a share nor an object",
            'write 0.99, {"availability": 0.99, "latency": 2}, or null for no promise',
        )
    return merge_keys(_ANY, {"availability": None, **raw}, "slo") if base is None else merge_keys(base, raw, "slo")


# The hedging delay: when a second attempt starts beside a slow first one.
#
# In a descriptor: ``"hedging": "p95"``, or ``"hedging": 0.2``; null: off.


MIN_PERCENT, MAX_PERCENT = 50.0, 99.9
"""Percentiles of a hedging delay: earlier than half of the replies costs too much, later than 999 of 1,000 helps no call."""

_PERCENTILE = re.compile(r"p(\d{2}(?:\.\d{1,3})?)", re.ASCII)


def check_hedging(delay: object) -> None:
    """Check a hedging delay: seconds, or a percentile of the tool's attempt durations from ``"p50"`` to ``"p99.9"``.

    Raises:
        PolicyError: it is neither.
    """
    if isinstance(delay, str):
        hedging_quantile(delay)
    else:
        check_seconds(delay, "hedging")


def hedging_quantile(delay: float | str) -> float | None:
    """The share of attempts that end before the delay: 0.95 for ``"p95"``; None for a delay in seconds.

    Raises:
        PolicyError: a text that is no percentile, or one out of range.
    """
    if not isinstance(delay, str):
        return None
    match = _PERCENTILE.fullmatch(delay)
    if match is None or not MIN_PERCENT <= float(match[1]) <= MAX_PERCENT:
        raise PolicyError("hedging", f"{delay!r} is not a percentile from p50 to p99.9", 'give "p95", or seconds')
    return float(match[1]) / 100


# The policy of a tool: limits of its calls and settings of its guards.
#
# In descriptors the keys are kebab-case (``"policy": {"timeout": 10, "retry": {"max-attempts": 2}, "rate-limit": "9/s"}``).
# Policies merge key by key, also within a part: defaults ← service ← tool ← call.


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


# Repeat safety: the declarations of a tool, and the refusal of settings that contradict them.


class Declared(Protocol):
    """The declarations of a tool, with the names of MCP's annotations."""

    @property
    def read_only(self) -> bool:
        """The tool changes no state."""

    @property
    def idempotent(self) -> bool:
        """A repeated call has no further effect."""

    @property
    def destructive(self) -> bool | None:
        """The tool may destroy data; None: not declared, so it may."""


class Annotations(msgspec.Struct, metaclass=NamedFields, frozen=True):
    """Declarations without a descriptor. The defaults are those of a tool that declares nothing."""

    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None


UNDECLARED = Annotations()
"""The declarations of an unknown tool, and of a service that is called without a tool."""


def repeatable(tool: Declared) -> bool:
    """Return whether ``tool`` may be executed twice for one call: it is declared read-only or idempotent, and not
    destructive. The second execution of a destructive tool can destroy data that was created after the first."""
    return (tool.read_only or tool.idempotent) and not tool.destructive


def check_repeats(tool: Declared, policy: Policy, own: Collection[str]) -> None:
    """Refuse settings of a tool that contradict its declarations. Called when the tool is loaded.

    Inherited settings are safe: a tool that is not repeatable is retried only if it was not executed, and is not hedged.
    Settings of the tool itself are refused, because their author expects them to have an effect.

    Args:
        tool: its declarations.
        policy: in force for it.
        own: keys, as in a descriptor, of the tool's own policy.

    Raises:
        PolicyError: the settings retry or hedge a destructive tool, hedge one that is neither read-only nor idempotent, or
            share the reply of one that is not read-only.
    """
    if "hedging" in own and policy.hedging is not None:
        if tool.destructive:
            raise PolicyError(
                "hedging", "the tool is declared 'destructive', and a hedge runs it twice", "write null for this tool"
            )
        if not repeatable(tool):
            raise PolicyError(
                "hedging",
                "the tool is neither 'read-only' nor 'idempotent', and a hedge runs it twice",
                "declare the tool so if it is so, or write null for this tool",
            )
    if tool.destructive and "retry" in own and policy.retry is not None and policy.retry.max_attempts > 1:
        raise PolicyError(
            "retry",
            "the tool is declared 'destructive', and a retry may run it twice",
            "leave 'retry' out: a request that was not executed is retried all the same",
        )
    if "single-flight" in own and policy.single_flight and not tool.read_only:
        raise PolicyError(
            "single-flight",
            "the tool is not declared 'read-only', and each of its calls may have to be made",
            "declare the tool so if it is so, or leave it out",
        )


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
