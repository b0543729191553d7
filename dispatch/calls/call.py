"""The way of a call from its target to its answer. Read :meth:`Calls.perform` top to bottom.

2 permission · 3 deadline · 4 attempts · 5 result · 6 telemetry
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from dispatch.calls.attempt_state import Attempt, Call
from dispatch.calls.conclusion import conclude
from dispatch.calls.error_messages import with_alternatives
from dispatch.calls.request import check_priority, invalid, request_payload
from dispatch.calls.resolved_tool import ResolvedTool
from dispatch.calls.runtime import Runtime
from dispatch.errors import CallTimeoutError, DispatchError, Outcome
from dispatch.messaging.wire.codec import PayloadTooLargeError, json_text
from dispatch.messaging.wire.properties import check_property
from dispatch.policy import PolicyError, check_seconds
from dispatch.resilience.hedging.race import hedged
from dispatch.resilience.retry.decision import RetryTarget
from dispatch.resilience.retry.loop import go_on
from dispatch.result import CallResult

MISTAKES = (TypeError, PayloadTooLargeError, PolicyError, UnicodeError)
"""What a caller's own mistakes raise, before anything is sent."""

_SUCCESS = Outcome.SUCCESS  # to look a member up in its class takes five times as long
_HOME, _ELSEWHERE = RetryTarget.HOME, RetryTarget.ELSEWHERE


class Calls:
    """Makes calls, for one dispatcher that is connected.

    Args:
        engine: the dispatcher's.
        alternatives: names of tools that could do instead of one.
    """

    def __init__(self, engine: Runtime, alternatives: Callable[[str], tuple[str, ...]]) -> None:
        self._engine = engine
        self._alternatives = alternatives

    async def perform(
        self,
        target: ResolvedTool,
        config_text: str,
        arguments: Mapping[str, Any],
        *,
        user: str = "",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        priority: str | None = None,
        started: float | None = None,
    ) -> CallResult:
        """Steps 2 to 6 of a call, for whoever has found its target already. For the rest see
        :meth:`dispatch.Dispatcher.call`."""
        engine = self._engine
        now = engine.now
        if started is None:
            started = now()
        # 2 permission · 3 deadline
        call = self._begun(target, config_text, arguments, user, started, timeout, idempotency_key, priority)
        if isinstance(call, CallResult):
            return call
        try:
            # 4 attempts: the first one inline; retries and hedges, from one budget, only when it goes wrong or takes long
            with engine.generations.current:
                if target.shares and idempotency_key is None:
                    return engine.ended(call.guards, call.trace, await self._shared(call, started))
                made = await self._attempt(call)
        except BaseException:
            engine.left(call.guards, call.trace, now() - started, call.requests)
            raise
        # 5 result · 6 telemetry: one duration, one outcome, one span tree
        return engine.ended(call.guards, call.trace, self._result(call, made, now() - started), made.settled)

    def _begun(
        self,
        target: ResolvedTool,
        config_text: str,
        arguments: Mapping[str, Any],
        user: str,
        started: float,
        timeout: float | None,
        key: str | None,
        priority: str | None,
        *,
        stream: bool = False,
        idle_timeout: float | None = None,
    ) -> Call | CallResult:
        """What a call is made of; its result, if nothing can be sent because of a mistake of its caller's."""
        engine, policy = self._engine, target.policy
        guards = engine.guards_of(target)
        trace = engine.begun(target, guards, started)
        idle = 0.0
        try:
            # 2 permission: reserved, not enforced; the catalogue refuses descriptors with `permissions`
            # 3 deadline: one instant on the loop's clock for everything that follows
            if stream:
                limit = policy.stream_timeout if timeout is None else check_seconds(timeout)
                idle = policy.stream_idle_timeout
                if idle_timeout is not None:
                    idle = check_seconds(idle_timeout, "idle-timeout")
            else:
                limit = policy.timeout if timeout is None else check_seconds(timeout)
            check_property(key, "idempotency_key")
            if priority is not None:
                check_priority(priority, policy)
            payload = request_payload(config_text, arguments, user, policy, engine.max_message_bytes)
        except MISTAKES as mistake:
            error = invalid(target.label, policy, mistake)
            return engine.ended(guards, trace, _refused(target, error, engine.now() - started))
        except BaseException:  # arguments of a kind of their own may raise anything
            engine.left(guards, trace, engine.now() - started, 0)
            raise
        if trace is not None and trace.records_content:
            trace.content("arguments", json_text(arguments, "arguments"))
        return Call(
            target,
            guards,
            payload,
            user,
            deadline=started + limit,
            limit=limit,
            clock="stream" if stream else "call",
            key=key,
            priority=priority,
            idle=idle,
            trace=trace,
        )

    async def _attempt(self, call: Call) -> Attempt:
        attempts, guards = self._engine.attempts, call.guards
        guards.budget.called()
        tried: list[str] = []
        where = _ELSEWHERE if call.key is None else _HOME
        hedging = guards.hedging
        if hedging is None:
            made = await attempts.call(call, 1, tried, where)
        else:
            made = await hedged(
                lambda second: attempts.call(call, 1, tried, _ELSEWHERE if second else where, hedge=second),
                hedging,
                deadline=call.deadline,
                others=lambda: self._engine.others(call.target, tried),
                listener=call.hedged,
            )
        if made.outcome is _SUCCESS or guards.retrying is None:
            return made
        return await self._repeated(call, made, tried, attempts.call)

    async def _repeated(self, call: Call, made: Attempt, tried: list[str], attempt: Callable[..., Any]) -> Attempt:
        """The first attempt was no success: are there others?"""
        retrying = call.guards.retrying
        assert retrying is not None
        again: Callable[[int, list[str], RetryTarget], Awaitable[Attempt]] = partial(attempt, call)
        keyed = call.key is not None
        return await go_on(made, tried, again, retrying, deadline=call.deadline, keyed=keyed, listener=call.retried)

    async def _shared(self, call: Call, started: float) -> CallResult:
        """As the others that are the same and under way."""
        engine = self._engine
        under_way = engine.generations.current  # of the call that begins it: others may join after a reload

        async def fly() -> CallResult:
            with under_way:
                made = await self._attempt(call)
            return self._result(call, made, engine.now() - started)

        while True:
            result = await engine.flights.share((call.target.label, call.payload), fly, call.deadline)
            if result is None:
                late = CallTimeoutError(
                    f"'{call.target.label}' gave no complete answer within {call.limit:g} s. Report the failure, or use "
                    "another tool.",
                    clock="call",
                    retryable=True,
                )
                return _refused(call.target, late, engine.now() - started)
            # Another one's time was over, not this one's.
            if result.outcome is not Outcome.TIMEOUT or engine.now() >= call.deadline:
                return msgspec.structs.replace(result, duration=engine.now() - started)  # this one's own

    def _result(self, call: Call, made: Attempt, duration: float) -> CallResult:
        target, line, error = call.target, made.line, made.error
        if error is not None:
            error = self._advised(target, error)
        return conclude(
            made.settled,
            error,
            tool=target.label,
            duration=duration,
            request_id=made.id,
            attempts=call.requests,
            transmissions=1 if line is None else line.repair.transmissions,
            asked_for=0.0 if line is None or line.asked_at is None else self._engine.now() - line.asked_at,
        )

    def _advised(self, target: ResolvedTool, error: DispatchError) -> DispatchError:
        """The error, with tools that could do instead where the tool itself is of no use now."""
        if not target.is_tool or error.outcome in (Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS):
            return error
        return with_alternatives(error, self._alternatives(target.label))

    async def stream(
        self,
        target: ResolvedTool,
        config_text: str,
        arguments: Mapping[str, Any],
        *,
        user: str = "",
        timeout: float | None = None,
        idle_timeout: float | None = None,
        idempotency_key: str | None = None,
        priority: str | None = None,
    ) -> AsyncGenerator[str, None]:
        """Steps 2 to 6 of a stream, as it is read; see :meth:`perform` and :meth:`dispatch.Dispatcher.stream`."""
        engine = self._engine
        started = engine.now()
        call = self._begun(
            target,
            config_text,
            arguments,
            user,
            started,
            timeout,
            idempotency_key,
            priority,
            stream=True,
            idle_timeout=idle_timeout,
        )
        if isinstance(call, CallResult):
            assert call.error is not None  # nothing has begun
            raise call.error
        guards, trace = call.guards, call.trace
        kept: list[str] | None = [] if trace is not None and trace.records_content else None
        try:
            with engine.generations.current:
                made = await self._first_chunk(call)
                try:
                    if made.first is not None:
                        engine.streams(guards, trace, engine.now() - started)
                        if kept is not None:
                            kept.append(made.first)
                        yield made.first
                        assert made.replies is not None
                        async for chunk in made.replies:
                            if kept is not None:  # no more than the policy's max-result
                                kept.append(chunk)
                            yield chunk
                finally:
                    engine.attempts.end(made, call)
        except BaseException:
            engine.left(guards, trace, engine.now() - started, call.requests)
            raise
        if trace is not None and kept:
            trace.content("result", "".join(kept))
        result = engine.ended(guards, trace, self._result(call, made, engine.now() - started), made.settled)
        if result.error is not None:
            raise result.error

    async def _first_chunk(self, call: Call) -> Attempt:
        """As a call, until the first chunk is there. What was given cannot be taken back: then nothing is repeated."""
        attempts, guards, keyed = self._engine.attempts, call.guards, call.key is not None
        guards.budget.called()
        tried: list[str] = []
        made = await attempts.stream(call, 1, tried, _HOME if keyed else _ELSEWHERE)
        if made.outcome is _SUCCESS or guards.retrying is None:
            return made
        return await self._repeated(call, made, tried, attempts.stream)


def _refused(target: ResolvedTool, error: DispatchError, duration: float) -> CallResult:
    return conclude(None, error, tool=target.label, duration=duration)
