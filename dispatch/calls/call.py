"""The path of a call, from its resolved tool to its result. Read :meth:`Calls.perform` top to bottom:

    2 authorize · 3 deadline · 4 attempts · 5 result · 6 observe

Step 1, resolve, is :meth:`dispatch.Dispatcher.call`; step 4 is :mod:`dispatch.calls.attempt`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from logging import INFO
from typing import Any

import msgspec

from dispatch._internal.clock import yield_to_others
from dispatch.calls.argument_check import ArgumentCheck
from dispatch.calls.attempt import Attempts
from dispatch.calls.call_state import NO_OPTIONS, Attempt, Call, CallOptions
from dispatch.calls.error_messages import add_alternatives, error_from_timeout
from dispatch.calls.finished_call import FinishedCall
from dispatch.calls.preparation import authorize_call, prepare_call
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.calls.resolution.resolver import ToolResolver
from dispatch.calls.resolution.visibility import hide_names
from dispatch.calls.runtime import Runtime
from dispatch.errors import DispatchError, Outcome
from dispatch.messaging.rpc.exchange_outcome import Answer, Lost, TimedOut
from dispatch.permissions import GRANTED, Authorizer, PermissionSet
from dispatch.result import CallResult, ResultContent
from dispatch.telemetry.call_observer import NO_PROPERTIES
from dispatch.telemetry.events import Listeners
from dispatch.telemetry.logs import AUDIT

_log = logging.getLogger("dispatch.calls")
NO_CONTENT = ResultContent()
_SUCCESS = Outcome.SUCCESS
_COUNTING = (TimedOut, Lost)
"""The failures of an exchange that count the chunks that arrived."""


class Calls:
    """Makes calls, for one dispatcher that is connected.

    Args:
        runtime: the dispatcher's.
        authorizer: decides which user may call which tool.
        alternatives: returns names of tools that could serve instead of one, for a user with some permissions.
        listeners: of the ends of calls.
    """

    def __init__(
        self,
        runtime: Runtime,
        authorizer: Authorizer,
        alternatives: Callable[[str, PermissionSet], tuple[str, ...]],
        listeners: Listeners[FinishedCall],
    ) -> None:
        self._listeners = listeners
        self._authorizer = authorizer
        self._runtime = runtime
        self._now = runtime.now
        self._attempts: Attempts = runtime.attempts
        self._alternatives = alternatives
        self._argument_check = ArgumentCheck()
        self._is_empty_reported = False

    async def select_tool(
        self, resolver: ToolResolver, name: str, version: str | None, user: str, idempotency_key: str | None
    ) -> ResolvedTool:
        """Select the tool and its version for one call (:meth:`ToolResolver.select`). A call for which there is none is
        counted.

        Raises:
            DispatchError: there is none.
        """
        runtime, caller = self._runtime, user or idempotency_key or ""
        try:
            return resolver.select(name, version, caller, can_admit=runtime.can_admit, randomness=runtime.randomness)
        except DispatchError as error:
            runtime.observe_unresolved(name, error)
            if not resolver.catalog.tools and not self._is_empty_reported and not list(runtime.sources()):
                self._is_empty_reported = True
                _log.warning(
                    "No tools are loaded, because connect(catalog=…) was not given: give a folder, a Catalog or a source."
                )
            await yield_to_others()
            permissions = self._authorizer.known_permissions(user, self._now())
            raise hide_names(resolver.catalog, error, name, permissions) from None

    async def perform(
        self,
        tool: ResolvedTool,
        arguments: Mapping[str, Any],
        options: CallOptions = NO_OPTIONS,
        *,
        started: float | None = None,
    ) -> CallResult:
        """Make one call and return its result; only cancellation is raised. ``started``: when it began, if before now."""
        if started is None:
            started = self._now()
        guards = self._runtime.guards_of(tool)
        observer = guards.observer.start_call(tool, started)
        reply = NO_PROPERTIES
        call: Call | DispatchError | None = None
        try:
            if tool.requirement is not None:  # 2 authorize
                decision = self._authorizer.decide(options.user, tool.requirement, started)
                if decision is not GRANTED or AUDIT.isEnabledFor(INFO):
                    call = await authorize_call(self._authorizer, tool, tool.requirement, decision, observer, options)
            if call is None:
                check = self._argument_check
                call = prepare_call(tool, guards, observer, arguments, options, started, check)  # 3 deadline
            if isinstance(call, DispatchError):
                result = self._failure(tool, call, options.user, started)
            else:
                calls, pool_calls = guards.calls, self._runtime.pool_calls_of(tool)
                calls.count += 1  # perf: not as context managers, which are two function calls each
                pool_calls.count += 1
                try:
                    if tool.is_single_flight and options.idempotency_key is None:
                        result = await self._share(call, started)
                    else:
                        attempt = await self._attempts.begin(call)  # 4 attempts
                        if attempt.outcome is not _SUCCESS:
                            attempt = await self._attempts.retry(call, attempt)
                        result = self._result(call, attempt, started)  # 5 result
                        reply = attempt.reply_context
                finally:
                    pool_calls.end()
                    calls.end()
        except BaseException:
            observer.on_cancel(self._now() - started, call.requests if isinstance(call, Call) else 0)
            raise
        observer.on_end(result, reply)  # 6 observe
        if self._listeners.current:
            self._listeners.publish(FinishedCall(tool.label, options.user, result, options.by_model))
        if result.error is not None:
            await yield_to_others()
        return result

    async def stream(
        self,
        tool: ResolvedTool,
        arguments: Mapping[str, Any],
        options: CallOptions = NO_OPTIONS,
        on_result: Callable[[CallResult], object] | None = None,
    ) -> AsyncGenerator[str, None]:
        """Make one call and yield the chunks of its reply as they arrive: the same steps as :meth:`perform`.

        Args:
            on_result: receives the result, without its text, before the last step. What it raises is logged.

        Raises:
            DispatchError: the call failed; the chunks before that were yielded.
        """
        started = self._now()
        guards = self._runtime.guards_of(tool)
        observer = guards.observer.start_call(tool, started)
        call: Call | DispatchError | None = None
        try:
            if tool.requirement is not None:
                decision = self._authorizer.decide(options.user, tool.requirement, started)
                if decision is not GRANTED or AUDIT.isEnabledFor(INFO):
                    call = await authorize_call(self._authorizer, tool, tool.requirement, decision, observer, options)
            if call is None:
                check = self._argument_check
                call = prepare_call(tool, guards, observer, arguments, options, started, check, is_stream=True)
            if isinstance(call, DispatchError):
                result, reply = self._failure(tool, call, options.user, started), NO_PROPERTIES
            else:
                with guards.calls, self._runtime.pool_calls_of(tool):
                    attempt = await self._attempts.run(call)
                    try:
                        self._attempts.follow_stream(attempt)
                        if attempt.first_chunk is not None:
                            observer.on_first_chunk(self._now() - started)
                            observer.on_chunk(attempt.first_chunk)
                            yield attempt.first_chunk
                            assert attempt.replies is not None
                            async for chunk in attempt.replies:
                                observer.on_chunk(chunk)
                                yield chunk
                    finally:
                        self._attempts.end_stream(attempt)
                result, reply = self._result(call, attempt, started), attempt.reply_context
        except BaseException:
            observer.on_cancel(self._now() - started, call.requests if isinstance(call, Call) else 0)
            raise
        observer.on_end(result, reply)
        if self._listeners.current:
            self._listeners.publish(FinishedCall(tool.label, options.user, result, options.by_model))
        if on_result is not None:
            self._listeners.call(on_result, result)
        if result.error is not None:
            await yield_to_others()
            raise result.error

    async def _share(self, call: Call, started: float) -> CallResult:
        """Single flight: equal calls in flight at the same time share one exchange."""
        runtime, label, is_own = self._runtime, call.tool.label, False

        async def fly() -> CallResult:
            nonlocal is_own
            is_own = True
            with call.guards.calls, runtime.pool_calls_of(call.tool):
                attempt = await self._attempts.run(call)
            return self._result(call, attempt, started)

        while True:
            result = await runtime.flights.share((label, call.tool.version, call.payload), fly, call.deadline)
            if result is None:
                late = error_from_timeout(label, call.limit, "call", repeatable=True)
                return self._failure(call.tool, late, call.options.user, started)
            # A timeout of the call that was joined is none of this call, which may have begun later.
            if is_own or result.outcome is not Outcome.TIMEOUT or self._now() >= call.deadline:
                return msgspec.structs.replace(result, duration=self._now() - started)

    def _result(self, call: Call, attempt: Attempt, started: float) -> CallResult:
        tool, error = call.tool, attempt.error
        if error is not None:
            error = self._with_alternatives(tool, error, call.options.user)
        now, settled = self._now(), attempt.settled
        text, chunks, instance, content = "", 0, None, NO_CONTENT
        if type(settled) is Answer:
            text, chunks, instance = settled.text, settled.chunks, settled.instance
            content = settled.content or NO_CONTENT
        elif isinstance(settled, _COUNTING):
            chunks = settled.chunks
        return CallResult(
            tool.label,
            _SUCCESS if error is None else error.outcome,
            text if error is None else "",
            error,
            now - started,
            call.requests,
            chunks,
            attempt.request_id,
            instance,
            content=content.blocks,
            structured_content=content.structured,
        )

    def _failure(self, tool: ResolvedTool, error: DispatchError, user: str, started: float) -> CallResult:
        """The result of a call for which nothing was sent."""
        error = self._with_alternatives(tool, error, user)
        return CallResult(tool.label, error.outcome, error=error, duration=self._now() - started)

    def _with_alternatives(self, tool: ResolvedTool, error: DispatchError, user: str) -> DispatchError:
        """Add tools to ``error`` that could serve instead and that the user may call."""
        if not tool.is_tool or error.outcome in (Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS):
            return error
        permissions = self._authorizer.known_permissions(user, self._now())
        return add_alternatives(error, self._alternatives(tool.label, permissions))
