"""Step 4 of a call: its attempts.

:meth:`Attempts.begin` makes the first attempt inline and hedges it where the policy says so; :meth:`Attempts.retry` follows
while policy, budget and deadline allow. One attempt (:meth:`Attempts.attempt`) goes through

    a breaker · b rate limit · c bulkhead (:mod:`dispatch.calls.admission`)
    d balancer · e exchange (the :class:`Invoker`) · f finish

and every permit gets exactly one outcome, whatever happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from dispatch._internal.permit import Clock, Rejection
from dispatch.calls.admission import _SUCCESS, _TIMEOUT, _TOOL_ERROR, Admission
from dispatch.calls.call_state import FAILURES, Attempt, Call
from dispatch.calls.error_messages import error_from_closing, error_from_rejection
from dispatch.errors import DispatchError, Outcome
from dispatch.resilience.hedging.decision import ANSWERED
from dispatch.resilience.hedging.race import OUTPACED, hedged
from dispatch.resilience.retry.decision import RetryTarget
from dispatch.resilience.retry.loop import retry

_KEY_HOLDER, _ANY_INSTANCE = RetryTarget.KEY_HOLDER, RetryTarget.ANY_INSTANCE
_TIMED = ANSWERED | {_TIMEOUT}


class Invoker(Protocol):
    """Steps d and e of an attempt: has the tool executed. A dispatcher's sends the request to an instance of the tool's
    service, or executes a local tool; a wrapped client's calls that client."""

    def is_ready(self, call: Call) -> bool:
        """Whether the request of a call could be sent now."""

    async def await_ready(self, call: Call) -> None:
        """Wait until it can be sent: for the connection, and for an instance. The call holds no permit meanwhile.

        Raises:
            DispatchError: it cannot. Nothing was sent.
        """

    def invoke(self, attempt: Attempt) -> Awaitable[None]:
        """Send the request of an admitted attempt and :meth:`~Attempt.conclude` it: with the whole reply, or with the first
        chunk of a stream.

        Raises:
            DispatchError: there was nothing to send the request to, or sending failed.
        """

    def attribute_failure(self, attempt: Attempt) -> None:
        """Find out where a failure arose (:class:`~dispatch.errors.Origin`), and so which guards count it."""

    def has_untried(self, call: Call) -> bool:
        """Whether there is an instance that no attempt of the call was sent to."""


class Attempts:
    """Makes the attempts of calls.

    Args:
        invoker: sends their requests.
        clock: the loop's.

    Attributes:
        is_closing: no attempt begins any more.
    """

    def __init__(self, invoker: Invoker, clock: Clock) -> None:
        self._invoker = invoker
        self._now = clock
        self.is_closing = False

    async def run(self, call: Call) -> Attempt:
        """Make the attempts of a call and return the one that the caller gets the result of. A stream's has its first chunk;
        its caller calls :meth:`follow_stream`, reads the rest and calls :meth:`end_stream`."""
        attempt = await self.begin(call)
        return attempt if attempt.outcome is _SUCCESS else await self.retry(call, attempt)

    def begin(self, call: Call) -> Coroutine[Any, Any, Attempt]:
        """Return the first attempt of a call, hedged where the policy says so, to be awaited. perf: the coroutine of
        :meth:`attempt` itself."""
        guards = call.guards
        guards.budget.record_call(call.deadline - call.limit)
        target = _ANY_INSTANCE if call.options.idempotency_key is None else _KEY_HOLDER
        hedging = guards.hedging
        if hedging is None or call.is_stream:
            return self.attempt(call, 1, target)
        return hedged(
            lambda second: self.attempt(call, 1, _ANY_INSTANCE if second else target, hedge=second),
            hedging,
            deadline=call.deadline,
            others=partial(self._invoker.has_untried, call),
            listener=call.on_hedge_decision,
        )

    async def retry(self, call: Call, attempt: Attempt) -> Attempt:
        """Retry a call whose first attempt failed, while policy, budget and deadline allow. Return the attempt that the
        caller gets the result of."""
        if not call.is_retryable:
            return attempt
        assert call.guards.retrying is not None
        again: Callable[[int, RetryTarget], object] = partial(self.attempt, call)
        return await retry(
            attempt,
            again,  # type: ignore[arg-type] # mypy loses the coroutine of a partial method
            call.guards.retrying,
            deadline=call.deadline,
            keyed=call.options.idempotency_key is not None,
            listener=call.on_retry_decision,
        )

    async def attempt(self, call: Call, number: int, target: RetryTarget, *, hedge: bool = False) -> Attempt:
        """Make one attempt: until the whole reply is there, or the first chunk of a stream.

        Args:
            number: of the attempt, from 1.
            target: which instances may be used: any, or only the holder of the call's idempotency key.
            hedge: it runs beside the first attempt, and does not wait for a place.
        """
        guards = call.guards
        reason = "hedge" if hedge else "retry" if number > 1 else "first"
        admission, ended = Admission(guards), None
        attempt = Attempt(call, number, reason, target, admission)
        try:
            if self.is_closing:
                attempt.reject(error_from_closing(call.tool.label))
                return attempt
            while True:
                # An open circuit rejects at once, and a hedge does not wait.
                if not (self._invoker.is_ready(call) or hedge) and (
                    guards.breaker is None or guards.breaker.can_admit()
                ):
                    await self._invoker.await_ready(call)
                rejection = admission.try_acquire(call.options.user, call.deadline, self._now())  # a, b, c
                if not admission.must_wait:
                    break
                rejection = await self._wait(attempt, hedge=hedge)
                if rejection is not None or self._invoker.is_ready(call):
                    break
                admission.release()  # the instances were lost meanwhile
            if rejection is not None:
                attempt.reject(error_from_rejection(rejection, call.tool.label))
                return attempt
            await self._invoker.invoke(attempt)  # d, e
            if call.is_stream:
                self._attribute(attempt)
            else:
                ended = self._now()
                self._learn(attempt, ended)
        except DispatchError as error:
            attempt.fail(error)
            self._attribute(attempt)
        except asyncio.CancelledError as cancelled:
            attempt.is_outpaced = cancelled.args == (OUTPACED,)
            raise
        finally:
            if attempt.first_chunk is None:
                attempt.finish(ended)  # f
        return attempt

    async def _wait(self, attempt: Attempt, *, hedge: bool) -> Rejection | None:
        """Wait for a rate limit or the bulkhead."""
        if hedge:
            attempt.admission.withdraw()
            return Rejection("bulkhead", "full")
        call = attempt.call
        began = self._now()
        try:
            return await attempt.admission.wait(call.deadline, call.options.priority)
        finally:
            call.observer.on_queued(self._now() - began)

    def _learn(self, attempt: Attempt, ended: float) -> None:
        """Record how long the attempt took, for timeouts and hedges to come."""
        guards = attempt.call.guards
        took = ended - attempt.began
        outcome = attempt.outcome
        if outcome is _SUCCESS or outcome is _TOOL_ERROR:
            attempt.record_answer(ended)
        else:
            self._attribute(attempt)
            if outcome is _TIMEOUT:
                attempt.is_impatient = took < (guards.usual.value(ended) or 0.0)
        if guards.hedging is None and outcome in _TIMED and attempt.counts_for_instance and not attempt.is_impatient:
            guards.durations.record(took, ended)

    def _attribute(self, attempt: Attempt) -> None:
        if attempt.outcome in FAILURES:
            self._invoker.attribute_failure(attempt)

    def follow_stream(self, attempt: Attempt) -> None:
        """Return the permits of a stream when its tool has ended, or a limit has passed: its reader may be slow, or gone."""
        replies = attempt.replies
        if replies is not None and attempt.first_chunk is not None:
            replies.on_settled = partial(self.end_stream, attempt)
            if replies.settled is not None:
                self.end_stream(attempt)

    def end_stream(self, attempt: Attempt) -> None:
        """End a stream that has settled, or that its caller closes early. A second call does nothing."""
        replies = attempt.replies
        if replies is None or attempt.first_chunk is None or attempt.has_ended:
            return
        attempt.has_ended = True
        if replies.settled is None:
            attempt.outcome = Outcome.CANCELLED
            replies.close()
        else:
            attempt.conclude_stream()
            self._attribute(attempt)
        attempt.finish()
