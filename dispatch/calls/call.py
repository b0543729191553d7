"""The path of a call, from its resolved tool to its result. Read :meth:`Calls.perform` top to bottom:

    2 authorize · 3 deadline · 4 attempts · 5 result · 6 observe

Step 1, resolve, is :meth:`dispatch.Dispatcher.call`; step 4 is :mod:`dispatch.calls.attempt`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from logging import INFO
from typing import Any, Protocol

import msgspec

from dispatch._internal import Clock, excerpt, write_json, yield_to_others
from dispatch.calls.attempt import NO_OPTIONS, Attempt, Attempts, Call, CallOptions
from dispatch.calls.error_messages import (
    add_alternatives,
    error_from_argument_mistakes,
    error_from_closing,
    error_from_decision,
    error_from_mistake,
    error_from_timeout,
)
from dispatch.calls.guards import ToolGuards
from dispatch.calls.resolution import ResolvedTool
from dispatch.catalog import ToolDescriptor
from dispatch.errors import DispatchError, Outcome
from dispatch.messaging.request import Answer, Lost, TimedOut
from dispatch.messaging.wire import PayloadTooLargeError, check_property, encode_request, json_text
from dispatch.permissions import GRANTED, LOOKUP_TIMEOUT_S, Authorizer, PermissionSet, Requirement
from dispatch.policy import Policy, PolicyError, check_seconds
from dispatch.protocol.settings import DEFAULT_SETTINGS
from dispatch.resilience.aio import SingleFlight
from dispatch.results import CallResult, ResultContent
from dispatch.routing.instance import InFlight
from dispatch.schemas import InvalidSchemaError, Mistake, ValidatorCache, join_mistakes
from dispatch.telemetry.events import AUDIT, Listeners, log_decision
from dispatch.telemetry.observers import NO_PROPERTIES

# Checks the arguments of a call against the schema of its tool, where the policy's ``check-arguments`` says so.


class ArgumentCheck:
    """Finds the mistakes in the arguments of calls, for one dispatcher."""

    def __init__(self) -> None:
        self._validators: ValidatorCache[ToolDescriptor] = ValidatorCache(schema_of_arguments)

    def find_mistakes(self, tool: ResolvedTool, arguments: Mapping[str, Any]) -> tuple[Mistake, ...]:
        """Return all mistakes of ``arguments``, which can be written as JSON."""
        assert tool.descriptor is not None  # as Calls._prepare has seen
        try:
            validator = self._validators.get(tool.descriptor)
        except InvalidSchemaError as error:
            # The descriptor was not read from a document, which would have been refused.
            problem = f"could not be checked: the tool has no valid schema ({join_mistakes(error.mistakes)})"
            return (Mistake("", problem),)
        if not validator.find_mistakes(arguments if isinstance(arguments, dict) else dict(arguments)):
            return ()
        # As the tool receives them: a date is a text, a dataclass an object.
        return validator.find_mistakes(msgspec.json.decode(json_text(arguments, "arguments")))


def schema_of_arguments(descriptor: ToolDescriptor) -> Mapping[str, Any]:
    """Return the schema by which arguments are checked, the one that models are shown."""
    return descriptor.parameters


# The payload of a request within the limits of broker and policy.


_LIMITS = (int, float)
MISTAKES = (TypeError, PayloadTooLargeError, PolicyError, UnicodeError)
"""What a caller's own mistakes raise, before anything is sent."""


def request_payload(config_text: str, arguments: Mapping[str, Any], user: str, policy: Policy) -> bytes:
    """Return the payload of a request.

    Raises:
        PayloadTooLargeError: the payload exceeds the policy's limit, or a session's.
        TypeError: an argument cannot be written as JSON.
    """
    most, allowed = DEFAULT_SETTINGS.max_payload_bytes, policy.max_request_bytes
    text = json_text(arguments, "arguments")
    return encode_request(config_text, text, user, limit=allowed if allowed < most else most)


def check_priority(priority: object, policy: Policy) -> None:
    """Check that ``priority`` is one of the bulkhead's. Without a bulkhead there is no queue, and any priority is accepted.

    Raises:
        PolicyError: it is not.
    """
    if policy.bulkhead is not None and priority not in policy.bulkhead.priorities:
        known = ", ".join(policy.bulkhead.priorities)
        raise PolicyError(
            "priority",
            f"{priority!r:.80} is not a priority of this tool",
            f"give one of {known} (the most urgent first), or leave 'priority' out",
        )


MAX_RECORDED_CHARS = 4_000
"""Characters of the arguments in the record of a call."""


# The end of a call, for listeners of a dispatcher.


class FinishedCall(msgspec.Struct, frozen=True):
    """A call that has ended.

    Attributes:
        tool: name of the tool.
        user: on whose behalf it was called.
        result: of the call. The text of a stream is not in it.
        by_model: a model has written the arguments.
    """

    tool: str
    user: str
    result: CallResult
    by_model: bool = False


NO_CONTENT = ResultContent()
_SUCCESS = Outcome.SUCCESS
_COUNTING = (TimedOut, Lost)
"""The failures of an exchange that count the chunks that arrived."""


class CallRuntime(Protocol):
    """What :class:`Calls` needs of a dispatcher that is connected, or of a wrapped client."""

    now: Clock
    attempts: Attempts
    flights: SingleFlight[CallResult]
    guards_of: Callable[[ResolvedTool], ToolGuards]
    pool_calls_of: Callable[[ResolvedTool], InFlight]


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
        runtime: CallRuntime,
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

    async def perform(
        self,
        tool: ResolvedTool,
        arguments: Mapping[str, Any],
        options: CallOptions = NO_OPTIONS,
        *,
        started: float | None = None,
        on_stream: Callable[[AsyncGenerator[str, None]], object] | None = None,
        is_stream: bool = False,
        on_result: Callable[[CallResult], object] | None = None,
    ) -> CallResult:
        """Make one call and return its result; only cancellation is raised.

        Args:
            started: when it began, if before now.
            on_stream: the reply may be a stream: receives its chunks when the first one has arrived. The call goes on until
                they end, and what is returned is no result.
            is_stream: the limits are those of a stream, and not those of a call until the first chunk.
            on_result: receives the result of a stream, without its text, before the last step. What it raises is logged.
        """
        if started is None:
            started = self._now()
        runtime = self._runtime
        guards = runtime.guards_of(tool)
        call = Call(tool, guards, guards.observer.start_call(tool, started, options.user), options, started)
        error: DispatchError | None = None
        reply = NO_PROPERTIES
        try:
            if tool.requirement is not None:
                error = await self._authorize(call, tool.requirement)  # 2 authorize
            if error is None:
                error = self._prepare(call, arguments, on_stream is not None, not is_stream)  # 3 deadline
            if error is not None:
                result = self._failure(call, error)
            else:
                calls, pool_calls = guards.calls, runtime.pool_calls_of(tool)
                calls.count += 1  # perf: not as context managers, which are two function calls each
                pool_calls.count += 1
                try:
                    if tool.is_single_flight and options.idempotency_key is None and on_stream is None:
                        result = await self._share(call)
                    else:
                        attempt = await self._attempts.begin(call)  # 4 attempts
                        if attempt.outcome is not _SUCCESS:
                            attempt = await self._attempts.retry(call, attempt)
                        if on_stream is not None and attempt.first_chunk is not None:
                            chunks = self._read_chunks(call, attempt, on_result)
                            await anext(chunks)  # it counts the call from here on
                            on_stream(chunks)
                            return self._result(call, attempt)
                        result = self._result(call, attempt)  # 5 result
                        if type(attempt.settled) is Answer:
                            reply = attempt.settled.trace_context
                finally:
                    pool_calls.count -= 1
                    if not pool_calls.count:
                        pool_calls.on_idle()
                    calls.count -= 1
                    if not calls.count:
                        calls.on_idle()
        except BaseException:
            self._cancel(call)
            raise
        self._end(call, result, reply)  # 6 observe
        if result.error is not None:
            await yield_to_others()
        return result

    async def stream(
        self,
        tool: ResolvedTool,
        arguments: Mapping[str, Any],
        options: CallOptions = NO_OPTIONS,
        on_result: Callable[[CallResult], object] | None = None,
        *,
        on_begin: Callable[[bool], object] | None = None,
        started: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """Make one call and return the chunks of its reply, to be read as they arrive, once the first one is there.

        Args:
            started, on_result: see :meth:`perform`.
            on_begin: the reply may be a stream or not: until its first chunk the limits are those of a call. Receives
                whether it is the whole reply.

        Raises:
            DispatchError: the call failed; also while the chunks are read.
        """
        streams: list[AsyncGenerator[str, None]] = []
        result = await self.perform(
            tool,
            arguments,
            options,
            started=started,
            on_stream=streams.append,
            is_stream=on_begin is None,
            on_result=on_result,
        )
        if not streams:
            if on_result is not None:
                self._listeners.call(on_result, msgspec.structs.replace(result, text=""))
            if result.error is not None:
                raise result.error
        if on_begin is not None and (streams or result.text):
            on_begin(not streams)
        return streams[0] if streams else _yield_whole(result.text)

    async def _read_chunks(
        self, call: Call, attempt: Attempt, on_result: Callable[[CallResult], object] | None
    ) -> AsyncGenerator[str, None]:
        """Yield ``""``, and then the chunks of a stream that has begun; end its call (steps 5 and 6).

        Raises:
            DispatchError: the call failed; the chunks before that were yielded.
        """
        observer = call.observer
        assert attempt.first_chunk is not None
        assert attempt.replies is not None
        try:
            with call.guards.calls, self._runtime.pool_calls_of(call.tool):
                try:
                    self._attempts.follow_stream(attempt)
                    yield ""
                    observer.on_first_chunk(self._now() - call.started)
                    observer.on_chunk(attempt.first_chunk)
                    yield attempt.first_chunk
                    async for chunk in attempt.replies:
                        observer.on_chunk(chunk)
                        yield chunk
                finally:
                    self._attempts.end_stream(attempt)
            result, reply = self._result(call, attempt), NO_PROPERTIES
            if type(attempt.settled) is Answer:
                reply = attempt.settled.trace_context
        except BaseException:
            self._cancel(call)
            raise
        self._end(call, result, reply)
        if on_result is not None:
            self._listeners.call(on_result, result)
        if result.error is not None:
            await yield_to_others()
            raise result.error

    async def _authorize(self, call: Call, requirement: Requirement) -> DispatchError | None:
        """Step 2: conclude whether the user may call the tool, and log the decision. It waits only if the user's permissions
        are not cached, at most for :data:`LOOKUP_TIMEOUT_S` and the caller's own timeout. Return the error of a refused
        call."""
        tool, observer, user, authorizer = call.tool, call.observer, call.options.user, self._authorizer
        decision = authorizer.decide(user, requirement, call.started)
        if decision is GRANTED and not AUDIT.isEnabledFor(INFO):
            return None
        if not isinstance(user, str):
            mistake = TypeError(f"user must be a text, not {type(user).__name__}")
            return error_from_mistake(tool.label, tool.policy, mistake)
        if decision is None:
            if authorizer.is_closed:
                return error_from_closing(tool.label)
            limit, timeout = LOOKUP_TIMEOUT_S, call.options.timeout
            if isinstance(timeout, _LIMITS) and timeout < limit:  # checked later, with the deadline
                limit = timeout
            decision = await authorizer.resolve(user, requirement, limit)
        if AUDIT.isEnabledFor(INFO):
            reason, permission = decision.reason, decision.permission
            trace_id = observer.trace_id
            log_decision(user, tool.label, decision.is_allowed, reason, permission=permission, trace_id=trace_id)
        if decision.is_allowed:
            return None
        error = error_from_decision(decision, tool.label, user)
        observer.on_rejected(error)
        return error

    def _prepare(
        self, call: Call, arguments: Mapping[str, Any], is_stream: bool, begins_as_call: bool
    ) -> DispatchError | None:
        """Step 3: set the deadline of the call, encode its request, and check its arguments where the policy says so. Return
        an error, if a mistake of the caller leaves nothing to send.

        Args:
            is_stream: the caller reads chunks as they arrive.
            begins_as_call: until the first chunk of a stream the limits are those of a call.
        """
        tool, options, guards = call.tool, call.options, call.guards
        policy = tool.policy
        try:
            # One instant on the loop's clock for everything that follows.
            if is_stream:
                call.is_stream = True
                limit = policy.stream_timeout if options.timeout is None else check_seconds(options.timeout)
                if begins_as_call:
                    call.stream_deadline = call.started + limit
                    limit = min(limit, policy.timeout)
                call.idle = policy.stream_idle_timeout
                if options.idle_timeout is not None:
                    call.idle = check_seconds(options.idle_timeout, "idle-timeout")
            else:
                limit = policy.timeout if options.timeout is None else check_seconds(options.timeout)
            if options.idempotency_key is not None:
                check_property(options.idempotency_key, "idempotency_key")
            if options.priority is not None:
                check_priority(options.priority, policy)
            config = tool.config_text if options.config is None else options.config
            call.payload = request_payload(config, arguments, options.user, policy)
            checks = policy.check_arguments
            if (
                (checks == "always" or (checks != "never" and (options.by_model or tool.is_local)))
                and tool.descriptor is not None
                and (mistakes := self._argument_check.find_mistakes(tool, arguments))
            ):
                return error_from_argument_mistakes(tool.label, mistakes)
        except MISTAKES as mistake:
            return error_from_mistake(tool.label, policy, mistake)
        call.limit = limit
        call.deadline = call.started + limit
        call.observer.on_arguments(arguments)
        if guards.records is not None and guards.records.content:
            call.arguments = excerpt(write_json(arguments), MAX_RECORDED_CHARS)
        return None

    def _end(self, call: Call, result: CallResult, reply: Mapping[str, str]) -> None:
        """Step 6: observe the end of a call."""
        guards, observer, options, error = call.guards, call.observer, call.options, result.error
        if error is not None and (refusal := error.policy_refusal):
            observer.on_refused(options.user, refusal)
        observer.on_end(result, reply)
        if guards.records is not None:
            trace_id = "" if observer is guards.observer else observer.trace_id  # perf: most calls are in no trace
            guards.records.add(options.user, call.started, result, call, trace_id)
        if self._listeners.current:
            self._listeners.publish(FinishedCall(result.tool, options.user, result, options.by_model))

    def _cancel(self, call: Call) -> None:
        """Step 6 of a call that was cancelled, or of a stream that was closed early."""
        observer, records, seconds = call.observer, call.guards.records, self._now() - call.started
        observer.on_cancel(seconds, call.requests)
        if records is not None:
            records.add_cancelled(call.options.user, call.started, seconds, call, observer.trace_id)

    async def _share(self, call: Call) -> CallResult:
        """Single flight: equal calls in flight at the same time share one exchange."""
        runtime, label, is_own = self._runtime, call.tool.label, False

        async def fly() -> CallResult:
            nonlocal is_own
            is_own = True
            with call.guards.calls, runtime.pool_calls_of(call.tool):
                attempt = await self._attempts.run(call)
            return self._result(call, attempt)

        while True:
            result = await runtime.flights.share((label, call.tool.version, call.payload), fly, call.deadline)
            if result is None:
                return self._failure(call, error_from_timeout(label, call.limit, "call", repeatable=True))
            # A timeout of the call that was joined is none of this call, which may have begun later.
            if is_own or result.outcome is not Outcome.TIMEOUT or self._now() >= call.deadline:
                return msgspec.structs.replace(result, duration=self._now() - call.started)

    def _result(self, call: Call, attempt: Attempt) -> CallResult:
        error, settled = attempt.error, attempt.settled
        if error is not None:
            error = self._with_alternatives(call, error)
        text, chunks, instance, content = "", 0, None, NO_CONTENT
        if type(settled) is Answer:
            chunks, instance = settled.chunks, settled.instance
            if error is None:
                text = settled.text
            if settled.content is not None:
                content = settled.content
        elif isinstance(settled, _COUNTING):
            chunks = settled.chunks
        return CallResult(
            call.tool.label,
            _SUCCESS if error is None else error.outcome,
            text,
            error,
            self._now() - call.started,
            call.requests,
            chunks,
            attempt.request_id,
            instance,
            content.blocks,
            content.structured,
        )

    def _failure(self, call: Call, error: DispatchError) -> CallResult:
        """The result of a call for which nothing was sent."""
        error = self._with_alternatives(call, error)
        return CallResult(call.tool.label, error.outcome, error=error, duration=self._now() - call.started)

    def _with_alternatives(self, call: Call, error: DispatchError) -> DispatchError:
        """Add tools to ``error`` that could serve instead and that the user may call."""
        if not call.tool.is_tool or error.outcome in (Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS):
            return error
        permissions = self._authorizer.known_permissions(call.options.user, self._now())
        return add_alternatives(error, self._alternatives(call.tool.label, permissions))


async def _yield_whole(text: str) -> AsyncGenerator[str, None]:
    """Yield a whole reply, if it has any text, as the chunks of a stream."""
    if text:
        yield text
