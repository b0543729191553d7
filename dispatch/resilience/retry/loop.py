"""Retries, carried out: tenacity's loop on the slow path, the first attempt without it.

An attempt gives a result, never an exception, whatever the service did. What is raised all the same (cancellation above all)
never gets into tenacity's hands, which would keep it: it goes straight to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tenacity import AsyncRetrying, RetryCallState

from dispatch._internal.clock import loop_clock
from dispatch.errors import Outcome
from dispatch.resilience.retry.decision import NoRetryReason, RetryDecision, RetryPolicy, RetryTarget, may_have_run


class Attempted(Protocol):
    """What an attempt's result says of it."""

    @property
    def outcome(self) -> Outcome:
        """How it ended."""

    @property
    def sent(self) -> bool:
        """The request has left, or may have."""

    @property
    def retry_after(self) -> float | None:
        """Seconds that the service asked to be left alone for."""

    @property
    def error_type(self) -> str | None:
        """The ``type`` of its error, if any."""

    @property
    def remembered(self) -> bool:
        """The instance that was tried remembers idempotency keys, and is still there."""


R = TypeVar("R", bound=Attempted)

Attempt = Callable[[int, RetryTarget], Awaitable[R]]
"""Makes one attempt: its number, from 1, and the instance it may go to."""
Listener = Callable[[RetryDecision | NoRetryReason], object]
"""Hears of each decision after a failed attempt, for metrics."""


def _nobody(_verdict: RetryDecision | NoRetryReason) -> None:
    pass


async def retry(
    result: R,
    attempt: Attempt[R],
    retrying: RetryPolicy,
    *,
    deadline: float,
    keyed: bool = False,
    listener: Listener = _nobody,
) -> R:
    """The result of the first attempt that ends well, or of the last one that there is to be; if that one surely did not run
    and one before it may have, that one's. Whoever calls this has made the first attempt, which ended in ``result``.

    Args:
        result: of the first attempt, which is not a success.
        attempt: see :data:`Attempt`.
        retrying: decides. The call itself is counted by whoever makes it (``retrying.budget.called()``).
        deadline: of the whole call, on the running loop's clock.
        keyed: the caller gave an idempotency key.
        listener: see :data:`Listener`.
    """
    course = _Course(retrying, deadline, keyed, listener)
    course.judge(result, 1)
    if course.again is None:
        return result
    doubtful = _doubtful(result, None)
    try:
        # A loop of its own for each call: what tenacity keeps in it (statistics, state) must not be shared between calls.
        # There is no stop strategy, because a verdict that comes after it would have been paid for already.
        async for turn in AsyncRetrying(sleep=asyncio.sleep, retry=course.goes_on, wait=course.wait):
            number = turn.retry_state.attempt_number
            if number > 1:  # its first turn is the attempt that was made already
                where = course.begin()
                if where is None:
                    break
                result = await attempt(number, where)
                course.judge(result, number)
                doubtful = _doubtful(result, doubtful)
            # Not entered as a context manager, which would keep what is raised. And tenacity needs no result to hold on to.
            turn.retry_state.set_result(None)
    finally:
        course.end()
    # That the last attempt surely did not run is not true of the call when one before it may have.
    return result if doubtful is None or result.outcome is Outcome.SUCCESS else doubtful


def _doubtful(result: R, former: R | None) -> R | None:
    """The last attempt that may have run."""
    return result if may_have_run(result.outcome, sent=result.sent) else former


class _Course:
    """One call's attempts, and the verdict after the last."""

    __slots__ = ("_clock", "_deadline", "_keyed", "_listener", "_paid", "_retrying", "again")

    def __init__(self, retrying: RetryPolicy, deadline: float, keyed: bool, listener: Listener) -> None:
        self._retrying = retrying
        self._deadline = deadline
        self._keyed = keyed
        self._listener = listener
        self._clock = loop_clock()
        self._paid = False
        self.again: RetryDecision | None = None

    def judge(self, result: Attempted, number: int) -> None:
        outcome = result.outcome
        self.again = None
        if number > 1 and outcome is Outcome.REJECTED:
            self._retrying.budget.refund()  # one of our own guards stopped it: the service has not seen it
        if outcome is Outcome.SUCCESS:
            return
        verdict = self._retrying.decide(
            outcome,
            sent=may_have_run(outcome, sent=result.sent),
            attempt=number,
            now=self._clock(),
            deadline=self._deadline,
            keyed=self._keyed,
            remembered=result.remembered,
            retry_after=result.retry_after,
            error_type=result.error_type,
        )
        if isinstance(verdict, RetryDecision):
            self.again = verdict
            self._paid = True
        self._listener(verdict)

    def goes_on(self, _state: RetryCallState) -> bool:
        return self.again is not None

    def wait(self, _state: RetryCallState) -> float:
        assert self.again is not None  # tenacity asks only after goes_on
        return self.again.wait

    def begin(self) -> RetryTarget | None:
        """The wait is over: where to? None: it took so long that the attempt would be too late."""
        assert self.again is not None
        if self._retrying.too_late(self._clock(), self._deadline):
            self._listener(NoRetryReason.TOO_LATE)
            return None
        self._paid = False  # that is, spent
        return self.again.where

    def end(self) -> None:
        """Cancelled while waiting, or too late: what was not begun is given back."""
        if self._paid:
            self._retrying.budget.refund()
