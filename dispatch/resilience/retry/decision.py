"""After an attempt that failed: is there to be another one, when, and where?"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dispatch._internal.permit import Randomness
from dispatch.errors import ErrorType, Outcome
from dispatch.policy.retry import Retry
from dispatch.resilience.latency_histogram import LatencyHistogram, Quantile
from dispatch.resilience.retry.budget import RetryBudget

IMPROVABLE = frozenset({Outcome.TRANSPORT, Outcome.TIMEOUT, Outcome.THROTTLED})
"""The outcomes that another attempt can change. A tool's own error is its answer, an argument does not mend itself, whom
a guard has refused it would refuse again, and nobody waits for what was abandoned."""
HOPELESS = frozenset(
    {
        *(ErrorType.RESPONSE_LIMIT_EXCEEDED, ErrorType.REQUEST_TOO_LARGE),
        *(ErrorType.NO_SUCH_NAMESPACE, ErrorType.BAD_TOPIC),
        *(ErrorType.UNAUTHORIZED, ErrorType.UNTRUSTED, ErrorType.WRONG_PROTOCOL),
        *(ErrorType.CLOSED, ErrorType.DISCONNECTED),
    }
)
"""Transport errors that the next attempt would meet again: a reply or request that is too large, a namespace that does not
exist, refused credentials, a closed dispatcher, a connection that did not come back although the attempt waited for it."""
_NOT_RUN = frozenset({Outcome.THROTTLED, Outcome.REJECTED})


class RetryTarget(StrEnum):
    """Which instance the next attempt may go to."""

    ELSEWHERE = "elsewhere"
    """Any; rather one that was not tried."""
    HOME = "home"
    """Where its idempotency key belongs: that instance knows whether it has been done."""


class NoRetryReason(StrEnum):
    """Why there is no further attempt: a word for metrics and errors."""

    OUTCOME = "outcome"
    """Another attempt would end as this one."""
    ATTEMPTS = "attempts"
    """There were as many as the policy allows."""
    UNSAFE = "unsafe"
    """The tool may have run, and must not run twice."""
    TOO_LATE = "too-late"
    """It could not be finished in the time left."""
    BUDGET = "budget"
    """Too many of the tool's calls are repeated already."""


class RetryDecision(msgspec.Struct, frozen=True):
    """There is to be another attempt.

    Attributes:
        wait: seconds until then.
        where: which instance it may go to.
    """

    wait: float
    where: RetryTarget


def may_have_run(outcome: Outcome, *, sent: bool) -> bool:
    """Has the tool perhaps run in an attempt that ended so? Not if the request never left (``sent`` is False), nor if it
    was refused."""
    return sent and outcome not in _NOT_RUN


class RetryPolicy:
    """Decides about the retries of one tool. Pure: whoever asks does the waiting.

    Args:
        settings: how often, how soon.
        repeatable: the tool may run twice (:func:`dispatch.policy.repeat_safety.repeatable`).
        budget: what retries are paid from.
        durations: how long the tool takes.
        randomness: for the waits.

    Attributes:
        settings, repeatable: may be set while it is in use, when a policy changes.
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
        """Is there to be another attempt? A yes is paid from the budget: if it is not begun, ``budget.refund()``.

        The wait is drawn evenly between 0 and a bound that doubles with each attempt, so that those who failed together do
        not come back together ("full jitter": Brooker, "Exponential Backoff and Jitter", AWS 2015). It is added to what the
        service asked for, or all who were told the same would come back at once; and it leaves time for the attempt.

        Args:
            outcome: how the attempt ended.
            sent: the tool may have run (:func:`may_have_run`).
            attempt: its number, from 1.
            now, deadline: of the whole call, on one clock.
            keyed: the caller gave an idempotency key.
            remembered: the instance that was tried remembers keys, and is still there.
            retry_after: seconds that the service asked to be left alone for.
            error_type: the ``type`` of the error.
        """
        settings = self.settings
        if outcome is Outcome.TOOL_ERROR:
            if error_type not in settings.retryable_errors:
                return NoRetryReason.OUTCOME
        elif outcome not in IMPROVABLE or error_type in HOPELESS:
            return NoRetryReason.OUTCOME
        if attempt >= settings.max_attempts:
            return NoRetryReason.ATTEMPTS
        if self.repeatable:
            where = RetryTarget.ELSEWHERE
        elif not sent:
            where = RetryTarget.HOME if keyed else RetryTarget.ELSEWHERE
        elif keyed and remembered:
            if outcome is Outcome.TOOL_ERROR:
                return NoRetryReason.OUTCOME  # its instance remembers that answer
            where = RetryTarget.HOME
        else:
            return NoRetryReason.UNSAFE
        pause = retry_after if retry_after is not None and retry_after > 0 else 0.0
        if self.too_late(now + pause, deadline):
            return NoRetryReason.TOO_LATE
        if not self.budget.withdraw():
            return NoRetryReason.BUDGET
        median = self._median.value(now)
        left = deadline - now - pause
        spare = left / 2 if median is None else left - median
        bound = min(settings.initial_backoff * 2.0 ** (attempt - 1), settings.max_backoff, spare)
        return RetryDecision(pause + self._randomness() * bound, where)

    def too_late(self, now: float, deadline: float) -> bool:
        """Would an attempt that begins ``now`` have less time than half of the tool's attempts take, or none?"""
        left = deadline - now
        return left <= 0 or left < (self._median.value(now) or 0.0)
