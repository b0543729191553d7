"""When a circuit breaker opens, for how long, and how it closes again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatch.policy.validation import PolicyError, check_count, check_flag, check_seconds, laid_over

MAX_BREAKER_WINDOW = 100_000
"""Calls in a breaker's count window, at most: each takes a byte."""
MAX_PROBES = 100
"""Probes of the first round, at most: more is no probe but traffic."""
MAX_RAMP = 8
"""Rounds of half-open, at most: the last of eight has 128 times the first one's."""
MIN_OPEN_SECONDS = 0.001
"""The shortest open time: below it a breaker could as well be off."""


class Breaker(msgspec.Struct, frozen=True, rename="kebab"):
    """When a circuit breaker opens, for how long, and how it closes again. Times are in seconds, shares between 0 and 1.

    It opens by whichever of four rules sees trouble first: share of failures, share of slow calls, failures in a row, time
    without a success. Timeouts and transport errors are failures, unless they arose locally or at one instance while another
    one answers (:class:`dispatch.Origin`). A stream is a success, and as slow as its first chunk, when that chunk is there;
    what becomes of it later counts for its instance only (``health``). The default is that of Hystrix where nothing else is
    said.

    Attributes:
        failure_rate: share of failures that opens, over the last ``window`` calls or over the last ``window_time``,
            whichever sees it first. 0.5: half the work is lost, so leaving it costs no more than going on.
        min_calls: calls in a window below which no share is judged. 20: below it, chance alone makes halves.
        window: the last so many calls. 100: at high rates it answers within a second.
        window_time: calls of the last so many seconds, in tenths of it. 30 (Polly): at low rates a bad half minute counts
            although a hundred good calls of the last hour outnumber it.
        slow_after: a call that takes this long or longer is slow, however it ends; None: none is. None, because what is
            slow differs by tool (one that asks a language model takes ten seconds when it is well), and no default may shut
            a tool that works. A timeout is a failure anyway.
        slow_rate: share of slow calls that opens, as ``failure_rate``. 0.8: most calls, not merely a slow tail.
        failures_in_a_row: so many failures with no success between them open at once; time does not lessen them. None:
            never. 10: a dead service is seen at half the volume that a share needs; chance makes ten of ten at a failure
            rate of one half in one case of a thousand.
        no_success_for: nothing but failures for this long opens, counted from the first of them, so that a quiet night
            before does not count. None: never. 60: a tool called twice a minute would be found dead after minutes only.
        no_success_failures: failures that this takes at least. 3: two may be one hiccup and its retry.
        open_for: how long it stays open the first time. 5 (Hystrix, Finagle): about what a restart takes.
        open_max: the longest open time, jitter included, unless the service itself asks for longer. 300 (Finagle, Envoy).
            It doubles with each opening up to this.
        jitter: share by which an open time is made shorter or longer at random. 0.5: dispatchers that saw the same trouble
            must not all come back at the same moment. At least 0, below 1.
        forget_after: a time closed that takes back one doubling (gRPC A50's decay). 30: a service that falls over every
            twenty seconds is left alone for longer and longer, and one that stays up for minutes starts afresh.
        probes: calls at a time that a half-open breaker lets through, in its first round. 3: one alone is a lottery.
        ramp: rounds of half-open, each twice as large as the one before; after the last it closes. 3 (3, 6, 12 calls): a
            service that comes back cold is not given everything at once.
        probe_lease: after this a probe that has not ended is lost, its place is free, and its result means nothing. 60:
            twice the default time of a call, so that a live one is never taken for lost.
        retry_after_max: the longest that a service may ask to be left alone for; beyond it, this. 3600: one probe an hour
            costs nothing, and a wrong unit in somebody's header must not close a tool for ever.
        tool_errors: a tool's own error counts as a failure. False: the service did its work.
        invalid_arguments: refused arguments count as a failure. False: the caller's mistake.
    """

    failure_rate: float = 0.5
    min_calls: int = 20
    window: int = 100
    window_time: float = 30.0
    slow_after: float | None = None
    slow_rate: float = 0.8
    failures_in_a_row: int | None = 10
    no_success_for: float | None = 60.0
    no_success_failures: int = 3
    open_for: float = 5.0
    open_max: float = 300.0
    jitter: float = 0.5
    forget_after: float = 30.0
    probes: int = 3
    ramp: int = 3
    probe_lease: float = 60.0
    retry_after_max: float = 3600.0
    tool_errors: bool = False
    invalid_arguments: bool = False

    def __post_init__(self) -> None:
        _check_share(self.failure_rate, "breaker.failure-rate")
        _check_share(self.slow_rate, "breaker.slow-rate")
        check_count(self.window, "breaker.window", MAX_BREAKER_WINDOW)
        check_count(self.min_calls, "breaker.min-calls", MAX_BREAKER_WINDOW)
        check_count(self.no_success_failures, "breaker.no-success-failures", MAX_BREAKER_WINDOW)
        check_count(self.probes, "breaker.probes", MAX_PROBES)
        check_count(self.ramp, "breaker.ramp", MAX_RAMP)
        if self.failures_in_a_row is not None:
            check_count(self.failures_in_a_row, "breaker.failures-in-a-row", MAX_BREAKER_WINDOW)
        for key in ("window_time", "open_for", "open_max", "forget_after", "probe_lease", "retry_after_max"):
            check_seconds(getattr(self, key), f"breaker.{key.replace('_', '-')}")
        if self.slow_after is not None:
            check_seconds(self.slow_after, "breaker.slow-after")
        if self.no_success_for is not None:
            check_seconds(self.no_success_for, "breaker.no-success-for")
        _check_number(self.jitter, "breaker.jitter")
        if not 0 <= self.jitter < 1:
            raise PolicyError("breaker.jitter", f"{self.jitter!r} is out of range", "give at least 0 and less than 1")
        for key, value in (("tool-errors", self.tool_errors), ("invalid-arguments", self.invalid_arguments)):
            check_flag(value, f"breaker.{key}")
        if self.min_calls > self.window:
            raise PolicyError(
                "breaker.min-calls",
                f"{self.min_calls!r} is more than the window of {self.window!r} calls ever holds",
                "give at most 'window'",
            )
        if self.open_for < MIN_OPEN_SECONDS:
            raise PolicyError(
                "breaker.open-for",
                f"{self.open_for!r} is too short",
                f"give {MIN_OPEN_SECONDS} or more, for instance 5",
            )
        if self.open_for > self.open_max:
            raise PolicyError(
                "breaker.open-for", f"{self.open_for!r} is more than 'open-max', {self.open_max!r}", "give at most that"
            )


def parse_breaker(raw: object, base: Breaker | None = None) -> Breaker | None:
    """The settings that a descriptor's ``breaker`` describes, laid over ``base``; None: off.

    Raises:
        PolicyError: not an object, an unknown key, or a value that cannot be.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise PolicyError("breaker", f"{raw!r} is not an object", 'write {"failure-rate": 0.5}, or null for off')
    return laid_over(Breaker() if base is None else base, raw, "breaker")


def _check_number(value: object, key: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", "give a share, for instance 0.5")


def _check_share(value: float, key: str) -> None:
    _check_number(value, key)
    if not 0 < value <= 1:
        raise PolicyError(key, f"{value!r} is out of range", "give a share above 0 and at most 1, for instance 0.5")
