"""The retries of one call: one loop over attempts, on tenacity's ``AsyncRetrying``.

The caller makes the first attempt itself, so that a call that succeeds at once pays nothing for retries. An attempt returns
a result and raises nothing, whatever the service did. An exception all the same, above all a cancellation, does not pass
through tenacity, which would store it: it propagates to the caller directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tenacity import AsyncRetrying

from dispatch._internal.clock import loop_clock
from dispatch.errors import Outcome
from dispatch.resilience.retry.decision import NoRetryReason, RetryDecision, RetryPolicy, RetryTarget, may_have_run


class AttemptResult(Protocol):
    """The properties of an attempt's result that retries depend on."""

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


R = TypeVar("R", bound=AttemptResult)

Attempt = Callable[[int, RetryTarget], Awaitable[R]]
"""Makes one attempt, given its number, from 1, and the instances that it may use."""
Listener = Callable[[RetryDecision | NoRetryReason], object]
"""Called with each decision after a failed attempt, for metrics."""


def _ignore(_decision: RetryDecision | NoRetryReason) -> None:
    pass


async def retry(
    result: R,
    attempt: Attempt[R],
    policy: RetryPolicy,
    *,
    deadline: float,
    keyed: bool = False,
    listener: Listener = _ignore,
) -> R:
    """Retry a call whose first attempt failed, and return the result of the call.

    That is the result of the attempt that succeeds, or of the last attempt that may have been executed, or of the last
    attempt if surely none was executed: "not executed" would not be true of the call if an earlier attempt may have run.

    Args:
        result: of the first attempt, which is not a success.
        attempt: see :data:`Attempt`.
        policy: decides after each attempt. The caller counts the call itself (``policy.budget.record_call()``).
        deadline: of the whole call, on the running loop's clock.
        keyed: whether the call has an idempotency key.
        listener: see :data:`Listener`.
    """
    clock = loop_clock()

    def decide(result: R, number: int) -> RetryDecision | None:
        """Decide whether another attempt follows; it has then been withdrawn from the budget."""
        decision = policy.decide(
            result.outcome,
            sent=may_have_run(result.outcome, sent=result.sent),
            attempt=number,
            now=clock(),
            deadline=deadline,
            keyed=keyed,
            remembered=result.remembered,
            retry_after=result.retry_after,
            error_type=result.error_type,
        )
        listener(decision)
        return decision if isinstance(decision, RetryDecision) else None

    pending = decide(result, 1)
    if pending is None:
        return result
    executed = result if may_have_run(result.outcome, sent=result.sent) else None
    # A new AsyncRetrying for each call: the statistics and state in it must not be shared between calls. It has no stop
    # strategy, because `pending` has already been withdrawn from the budget.
    attempts = AsyncRetrying(
        sleep=asyncio.sleep,
        retry=lambda _: pending is not None,
        wait=lambda _: 0.0 if pending is None else pending.wait,
    )
    try:
        async for turn in attempts:
            number = turn.retry_state.attempt_number
            if pending is not None and number > 1:  # tenacity's first turn stands for the attempt that was made already
                if policy.is_too_late(clock(), deadline):  # the backoff took longer than planned
                    listener(NoRetryReason.TOO_LATE)
                    break
                target, pending = pending.where, None
                result = await attempt(number, target)
                if result.outcome is Outcome.SUCCESS:
                    return result
                if result.outcome is Outcome.REJECTED:
                    policy.budget.refund()  # rejected by a guard of the dispatcher: no request was sent
                if may_have_run(result.outcome, sent=result.sent):
                    executed = result
                pending = decide(result, number)
            # Not a `with turn:` block, which would store exceptions; and tenacity needs no result.
            turn.retry_state.set_result(None)
    finally:
        if pending is not None:  # cancelled during the backoff, or too late: the attempt was not made
            policy.budget.refund()
    return result if executed is None else executed
