"""Retry decision: whether another attempt follows a failed one, after which backoff, and at which instance. Sans-I/O."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dispatch._internal.permit import Randomness
from dispatch.errors import ErrorType, Outcome
from dispatch.policy.retry import Retry
from dispatch.resilience.latency_histogram import LatencyHistogram, Quantile
from dispatch.resilience.retry.budget import RetryBudget

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


class RetryPolicy:
    """Decides about the retries of one tool. Sans-I/O: the caller waits.

    Args:
        settings: attempts, backoff, budget.
        repeatable: the tool may be executed twice (:func:`dispatch.policy.repeat_safety.repeatable`).
        budget: the retry budget of the tool.
        durations: recent durations of the tool.
        randomness: jitter of the backoff.

    Attributes:
        settings, repeatable: may be set in use, when a policy changes.
    """

    __slots__ = ("_median", "_randomness", "budget", "repeatable", "settings")

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
        self.repeatable = repeatable
        self.budget = budget
        self._median = Quantile(durations, 0.5)
        self._randomness = randomness

    def decide(
        self,
        outcome: Outcome,
        *,
        sent: bool,
        attempt: int,
        now: float,
        deadline: float,
        keyed: bool = False,
        remembered: bool = False,
        retry_after: float | None = None,
        error_type: str | None = None,
    ) -> RetryDecision | NoRetryReason:
        """Decide whether another attempt follows. A retry is withdrawn from the budget: if it is not made, call
        ``budget.refund()``.

        The backoff is uniform between 0 and a bound that doubles with each attempt, so that callers that failed together
        do not retry together ("full jitter": Brooker, "Exponential Backoff and Jitter", AWS 2015). It is added to the
        service's retry-after, so that callers that received the same retry-after spread too; and it leaves time for the
        attempt.

        Args:
            outcome: of the attempt.
            sent: the tool may have been executed (:func:`may_have_run`).
            attempt: number of the attempt, from 1.
            now, deadline: of the whole call, on one clock.
            keyed: the call has an idempotency key.
            remembered: the instance that was tried remembers keys and is still running.
            retry_after: seconds of pause that the service asked for.
            error_type: the ``type`` of the error.
        """
        settings = self.settings
        if outcome is Outcome.TOOL_ERROR:
            if error_type not in settings.retryable_errors:
                return NoRetryReason.OUTCOME
        elif outcome not in RETRYABLE_OUTCOMES or error_type in NON_RETRYABLE_ERRORS:
            return NoRetryReason.OUTCOME
        if attempt >= settings.max_attempts:
            return NoRetryReason.ATTEMPTS
        if self.repeatable:
            where = RetryTarget.ANY_INSTANCE
        elif not sent:
            where = RetryTarget.KEY_HOLDER if keyed else RetryTarget.ANY_INSTANCE
        elif keyed and remembered:
            if outcome is Outcome.TOOL_ERROR:
                return NoRetryReason.OUTCOME  # the instance would repeat the remembered answer
            where = RetryTarget.KEY_HOLDER
        else:
            return NoRetryReason.UNSAFE
        pause = retry_after if retry_after is not None and retry_after > 0 else 0.0
        if self.is_too_late(now + pause, deadline):
            return NoRetryReason.TOO_LATE
        if not self.budget.withdraw():
            return NoRetryReason.BUDGET
        median = self._median.value(now)
        remaining = deadline - now - pause
        spare = remaining / 2 if median is None else remaining - median
        bound = min(settings.initial_backoff * 2.0 ** (attempt - 1), settings.max_backoff, spare)
        return RetryDecision(pause + self._randomness() * bound, where)

    def is_too_late(self, now: float, deadline: float) -> bool:
        """Return whether an attempt that starts ``now`` would have less time than the tool's median duration, or none."""
        remaining = deadline - now
        return remaining <= 0 or remaining < (self._median.value(now) or 0.0)
