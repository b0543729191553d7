"""Retries: which outcomes are repeated, their budget, the loop."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, stop_any, wait_exponential
from tenacity.wait import wait_base

from dispatch._internal import Clock, Randomness
from dispatch.errors import ErrorType, Outcome
from dispatch.policy import Retry, hedging_quantile
from dispatch.resilience.durations import LatencyHistogram, Quantile

# Retry budget: retries and hedges are a bounded share of a tool's calls, which prevents retry storms.
#
# A ratio of the calls in a moving window with a floor, as Finagle's ``RetryBudget`` and Envoy's ``retry_budget``. Not a
# token bucket that successes fill (gRPC, AWS SDKs): it stays empty for a tool that rarely succeeds, even at a low rate of
# calls.


MIN_REPEATS_PER_S = 3.0
"""Retries and hedges a second that every tool has, so that a rarely called tool can be retried (as in Envoy and
failsafe-go)."""
WINDOW_S = 10.0
"""As in Finagle: long enough for a meaningful ratio, and short enough that calls of the past hour permit no retry storm."""
BUCKETS = 10
"""The window moves by a tenth of its length: it covers the last 9 to 10 s."""
BUCKET_S = WINDOW_S / BUCKETS
EPSILON = 1e-9
"""29 % of 100 calls is 29, although the floating-point product is slightly less."""


class RetryBudget:
    """The common budget of a tool's retries and hedges.

    In any ten buckets, the repeats are at most ``ratio`` times the calls plus ``floor`` times 10 s. Every operation is O(1),
    and counting a call, the hot path, has no loop.

    Args:
        ratio: repeats per call; 0.2 is one in five.
        floor: repeats a second in addition.
        clock: seconds.

    Attributes:
        ratio, floor: may be set in use, when a policy changes.
    """

    __slots__ = ("_calls", "_clock", "_former", "_number", "_spent", "_turn_at", "floor", "ratio")

    def __init__(self, ratio: float, floor: float, clock: Clock) -> None:
        self.ratio = ratio
        self.floor = floor
        self._clock = clock
        self._turn_at = clock() + BUCKET_S
        # The current bucket is separate from the former ones, so that counting a call is one addition.
        self._number = self._calls = self._spent = 0
        self._former: list[list[int]] = []
        """Number, calls and repeats of the other buckets of the window, the oldest first."""

    @property
    def remaining(self) -> int:
        """Repeats that are available now."""
        now = self._clock()
        if now >= self._turn_at:
            self._advance(now)
        calls = self._calls + sum(each[1] for each in self._former)
        spent = self._spent + sum(each[2] for each in self._former)
        return max(0, int(self.ratio * calls + self.floor * WINDOW_S + EPSILON) - spent)

    def record_call(self, now: float | None = None) -> None:
        """Count a call, once for all its attempts.

        Args:
            now: the current time, if it is known.
        """
        if now is None:
            now = self._clock()
        if now >= self._turn_at:
            self._advance(now)
        self._calls += 1

    def withdraw(self) -> bool:
        """Withdraw one repeat. False: the budget is exhausted."""
        if self.remaining < 1:
            return False
        self._spent += 1
        return True

    def refund(self) -> None:
        """Return a repeat that was withdrawn but not made. Does nothing if its bucket is outside the window."""
        if self._spent:  # the newest withdrawal; it expires together with its bucket
            self._spent -= 1
            return
        for each in reversed(self._former):
            if each[2]:
                each[2] -= 1
                return

    def _advance(self, now: float) -> None:
        """Start the bucket of ``now``: the current one has ended."""
        turns = int((now - self._turn_at) / BUCKET_S) + 1
        self._turn_at += turns * BUCKET_S
        former = self._former
        former.append([self._number, self._calls, self._spent])
        self._number += turns
        while former and former[0][0] <= self._number - BUCKETS:
            del former[0]
        self._calls = self._spent = 0


# Retry decision: whether another attempt follows a failed one, after which backoff, and at which instance. Sans-I/O.
#
# The rules are tenacity's objects: ``retry`` says which failures another attempt may follow, ``stop`` the limits of a call,
# ``wait`` the backoff. They read tenacity's ``RetryCallState``, whose outcome is a :class:`FailedAttempt`.


RETRYABLE_OUTCOMES = frozenset({Outcome.TRANSPORT, Outcome.TIMEOUT, Outcome.THROTTLED})
"""The outcomes that another attempt may change. A tool's own error is its answer; invalid arguments stay invalid; a guard
would reject again; a cancelled call has no waiting caller."""
NON_RETRYABLE_ERRORS = frozenset(
    {
        *(ErrorType.RESPONSE_LIMIT_EXCEEDED, ErrorType.REQUEST_TOO_LARGE),
        *(ErrorType.NO_SUCH_NAMESPACE, ErrorType.BAD_TOPIC),
        *(ErrorType.UNAUTHORIZED, ErrorType.UNTRUSTED, ErrorType.WRONG_PROTOCOL),
        *(ErrorType.CLOSED, ErrorType.DISCONNECTED),
    }
)
"""Transport errors that the next attempt would repeat: a reply or request that is too large, a namespace that does not
exist, rejected credentials, a closed dispatcher, a connection that was not restored while the attempt waited for it."""
_NOT_RUN = frozenset({Outcome.THROTTLED, Outcome.REJECTED})


class RetryTarget(StrEnum):
    """The instances that the next attempt may use."""

    ANY_INSTANCE = "any-instance"
    """Any instance; preferably one that was not tried."""
    KEY_HOLDER = "key-holder"
    """The instance that holds the idempotency key: it knows whether the call was executed."""


class NoRetryReason(StrEnum):
    """Why no further attempt follows, for metrics and errors."""

    OUTCOME = "outcome"
    """Another attempt would have the same outcome."""
    ATTEMPTS = "attempts"
    """The policy's ``max-attempts`` is reached."""
    UNSAFE = "unsafe"
    """The tool may have been executed, and must not be executed twice."""
    TOO_LATE = "too-late"
    """Another attempt could not finish before the deadline."""
    BUDGET = "budget"
    """The retry budget of the tool is exhausted."""


class RetryDecision(msgspec.Struct, frozen=True):
    """Another attempt follows.

    Attributes:
        wait: backoff in seconds.
        where: the instances that it may use.
    """

    wait: float
    where: RetryTarget


def may_have_run(outcome: Outcome, *, sent: bool) -> bool:
    """Return whether the tool may have been executed in an attempt with this outcome. Not if the request was not sent, nor
    if it was rejected or throttled."""
    return sent and outcome not in _NOT_RUN


class AttemptResult(Protocol):
    """The properties of an attempt's result that retries and hedges depend on."""

    @property
    def outcome(self) -> Outcome:
        """The outcome of the attempt."""

    @property
    def sent(self) -> bool:
        """Whether the request was sent, or may have been."""

    @property
    def retry_after(self) -> float | None:
        """Seconds of pause that the service asked for."""

    @property
    def error_type(self) -> str | None:
        """The ``type`` of its error, if any."""

    @property
    def remembered(self) -> bool:
        """Whether the instance remembers idempotency keys and is still running."""

    @property
    def is_usual(self) -> bool:
        """Whether its duration says how long the tool takes."""


class FailedAttempt(msgspec.Struct, frozen=True):
    """What the retry decision depends on: the outcome in a ``RetryCallState``.

    Attributes:
        result: of the attempt.
        now, deadline: of the whole call, on one clock.
        may_have_run: the tool may have been executed (:func:`may_have_run`).
        keyed: the call has an idempotency key.
    """

    result: AttemptResult
    now: float
    deadline: float
    may_have_run: bool
    keyed: bool

    @property
    def pause(self) -> float:
        """Seconds that the service asked for, or 0."""
        pause = self.result.retry_after
        return pause if pause is not None and pause > 0 else 0.0


def failed_attempt(state: RetryCallState) -> FailedAttempt:
    """Return the outcome of the last attempt."""
    assert state.outcome is not None
    failed: FailedAttempt = state.outcome.result()
    return failed


class wait_full_jitter(wait_base):  # noqa: N801 # as tenacity names such objects
    """Waits as long as the service asked for, and a uniform share of a bound, and leaves time for the attempt: tenacity's
    ``wait_random_exponential`` with randomness and a deadline of the caller's.

    Args:
        bound: returns the bound in seconds.
        median: recent durations of the tool, whose median is left for the attempt; unknown: half of the time.
        randomness: the share, from 0 to 1.
    """

    def __init__(self, bound: Callable[[RetryCallState], float], median: Quantile, randomness: Randomness) -> None:
        self._bound = bound
        self._median = median
        self._randomness = randomness

    def __call__(self, retry_state: RetryCallState) -> float:
        failed = failed_attempt(retry_state)
        median = self._median.value(failed.now)
        remaining = failed.deadline - failed.now - failed.pause
        spare = remaining / 2 if median is None else remaining - median
        return failed.pause + self._randomness() * min(self._bound(retry_state), spare)


class RetryPolicy:
    """Decides about the retries of one tool. Sans-I/O: the caller waits.

    The backoff is uniform between 0 and a bound that doubles with each attempt, so that callers that failed together do not
    retry together ("full jitter": Brooker, "Exponential Backoff and Jitter", AWS 2015). It is added to the service's
    retry-after, so that callers that received the same retry-after spread too; and it leaves time for the attempt.

    Args:
        settings: attempts, backoff, budget.
        repeatable: the tool may be executed twice (:func:`dispatch.policy.repeatable`).
        budget: the retry budget of the tool.
        durations: recent durations of the tool.
        randomness: jitter of the backoff.

    Attributes:
        retry, stop, wait: tenacity's objects. ``stop`` withdraws a retry from the budget unless it ends the call.
    """

    __slots__ = ("_median", "_repeatable", "_retrying", "_stops", "budget", "retry", "settings", "stop", "wait")

    def __init__(
        self,
        settings: Retry,
        *,
        repeatable: bool,
        budget: RetryBudget,
        durations: LatencyHistogram,
        randomness: Randomness,
    ) -> None:
        self.settings = settings
        self.budget = budget
        self._repeatable = repeatable
        self._median = Quantile(durations, 0.5)
        bound = wait_exponential(multiplier=settings.initial_backoff, max=settings.max_backoff)
        self.retry = retry_if_result(lambda failed: self.objection(failed) is None)
        self._stops: dict[NoRetryReason, Callable[[RetryCallState], bool]] = {
            NoRetryReason.ATTEMPTS: stop_after_attempt(settings.max_attempts),
            NoRetryReason.TOO_LATE: self._is_too_late,
            # The last one, because a retry that is not made is not withdrawn.
            NoRetryReason.BUDGET: lambda _: not budget.withdraw(),
        }
        self.stop = stop_any(*self._stops.values())  # type: ignore[arg-type] # functions are stops, too
        self.wait = wait_full_jitter(bound, self._median, randomness)
        self._retrying = Retrying(retry=self.retry, stop=self.stop, wait=self.wait)

    def start(self) -> RetryCallState:
        """Return the state of a call whose first attempt has failed."""
        return RetryCallState(self._retrying, fn=None, args=(), kwargs={})

    def decide(self, state: RetryCallState) -> RetryDecision | NoRetryReason:
        """Decide whether another attempt follows the one that is the outcome of ``state``. A retry is withdrawn from the
        budget: if it is not made, call ``budget.refund()``."""
        failed = failed_attempt(state)
        reason = self.objection(failed) or next((each for each, stop in self._stops.items() if stop(state)), None)
        if reason is not None:
            return reason
        may_use_any = self._repeatable or not (failed.may_have_run or failed.keyed)
        return RetryDecision(self.wait(state), RetryTarget.ANY_INSTANCE if may_use_any else RetryTarget.KEY_HOLDER)

    def objection(self, failed: FailedAttempt) -> NoRetryReason | None:
        """Return why no other attempt can follow this one, whatever the limits of the call: it would have the same outcome,
        or the tool may have been executed and must not be executed twice."""
        result = failed.result
        is_tool_error = result.outcome is Outcome.TOOL_ERROR
        if is_tool_error:
            if result.error_type not in self.settings.retryable_errors:
                return NoRetryReason.OUTCOME
        elif result.outcome not in RETRYABLE_OUTCOMES or result.error_type in NON_RETRYABLE_ERRORS:
            return NoRetryReason.OUTCOME
        if self._repeatable or not failed.may_have_run:
            return None
        if not (failed.keyed and result.remembered):
            return NoRetryReason.UNSAFE
        return NoRetryReason.OUTCOME if is_tool_error else None  # the instance would repeat the remembered answer

    def is_too_late(self, now: float, deadline: float) -> bool:
        """Return whether an attempt that starts ``now`` would have less time than the tool's median duration, or none."""
        remaining = deadline - now
        return remaining <= 0 or remaining < (self._median.value(now) or 0.0)

    def _is_too_late(self, state: RetryCallState) -> bool:
        failed = failed_attempt(state)
        return self.is_too_late(failed.now + failed.pause, failed.deadline)


# Hedging decision: whether and when a second attempt runs beside a slow first attempt. Sans-I/O.
#
# Hedged requests as in "The Tail at Scale" (Dean and Barroso 2013): the second attempt starts when the first is slower than
# nearly all attempts, so that it adds little load, and uses another instance, the usual cause of the delay.


MAX_HEDGE_RATIO = 0.05
"""Hedges as a share of the tool's calls over the last 10 s: what "p95" amounts to, and with a delay in seconds the limit
when every attempt is slow. Hedges count against the retry budget as well."""
MIN_DELAY_S = 0.001
"""Shortest delay: below it, scheduling jitter of the machine dominates (as in Finagle's ``BackupRequestFilter``)."""
FLOOR = 0.5
"""Hedges a second in addition to the share: 5 in 10 s, so that a tool called once a second can be hedged."""
ANSWERED = frozenset({Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS})
"""The outcomes that end a hedged call: the service has answered. After any other outcome, the other attempt continues."""


class NoHedgeReason(StrEnum):
    """Why no second attempt was started, for metrics."""

    ALONE = "alone"
    """There is no other instance."""
    TOO_LATE = "too-late"
    """It could not finish before the deadline."""
    BUDGET = "budget"
    """The hedging or retry budget of the tool is exhausted."""


class Hedging:
    """Decides about the hedges of one tool, which must be declared read-only or idempotent. Sans-I/O.

    Args:
        delay: seconds, or a percentile, after which the second attempt starts (policy ``hedging``).
        budget: of the tool, shared with its retries.
        durations: recent durations of the tool's attempts; recorded by :meth:`record_first`.
        clock: seconds.
        ratio: hedges as a share of calls.
    """

    __slots__ = ("_after", "_budget", "_durations", "_fixed", "_median", "_own", "clock")

    def __init__(
        self,
        delay: float | str,
        *,
        budget: RetryBudget,
        durations: LatencyHistogram,
        clock: Clock,
        ratio: float = MAX_HEDGE_RATIO,
    ) -> None:
        self.clock = clock
        self._budget = budget
        self._own = RetryBudget(ratio, FLOOR, clock)
        self._durations = durations
        share = hedging_quantile(delay)
        self._after = None if share is None else Quantile(durations, share)
        self._fixed = None if isinstance(delay, str) else delay
        self._median = Quantile(durations, 0.5)

    def start_first(self, now: float, deadline: float) -> float | None:
        """Count a first attempt and return the seconds after which a second one is due; None: there is none."""
        self._own.record_call()
        delay = self._fixed if self._after is None else self._after.value(now)
        if delay is None:
            return None
        delay = max(delay, MIN_DELAY_S)
        return delay if now + delay < deadline else None

    def admit(self, now: float, deadline: float, *, has_other_instance: bool) -> NoHedgeReason | None:
        """Decide about the second attempt when the delay is over. None: start it; it has been withdrawn from both budgets,
        and :meth:`refund` returns it if it is not sent.

        Args:
            has_other_instance: there is an instance that was not tried.
        """
        if not has_other_instance:
            return NoHedgeReason.ALONE
        remaining = deadline - now
        if remaining <= 0 or remaining < (self._median.value(now) or 0.0):
            return NoHedgeReason.TOO_LATE
        if not self._own.withdraw():
            return NoHedgeReason.BUDGET
        if not self._budget.withdraw():
            self._own.refund()
            return NoHedgeReason.BUDGET
        return None

    def refund(self) -> None:
        """Return an admitted second attempt that was not sent to both budgets."""
        self._own.refund()
        self._budget.refund()

    def record_first(self, seconds: float) -> None:
        """Record the duration of a first attempt. One that was cancelled because the second was faster took at least that
        long and counts: without the slow attempts, the delay would shrink with every hedge. Second attempts are not
        recorded, because only the fast ones complete."""
        self._durations.record(seconds)
