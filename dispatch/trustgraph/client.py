"""TrustGraph's client over a dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dispatch._internal import (
    ErrorBoundary,
    UserCodeError,
    ends_task,
    excerpt,
    explain_keywords,
    read_text,
    running_task,
)
from dispatch.balancing.instances import InstanceView
from dispatch.calls.attempt import Attempt, Attempts, Call, CallOptions
from dispatch.calls.call import authorize_call
from dispatch.calls.error_messages import error_from_client_failure, error_from_mistake, error_from_timeout
from dispatch.calls.guards import ToolGuards, create_rate_limiter
from dispatch.calls.resolution import ResolvedTool
from dispatch.catalog import ServiceDescriptor
from dispatch.catalog.sources import SourceStatus
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError, Origin, Outcome, ToolError
from dispatch.messaging.request import Answer
from dispatch.messaging.wire import json_text
from dispatch.permissions import Authorizer, Grants, GrantsFunction, check_permission, require_permissions
from dispatch.policy import (
    UNDECLARED,
    Annotations,
    Policy,
    PolicyError,
    PolicyLike,
    check_repeats,
    check_seconds,
    read_policy,
    repeatable,
)
from dispatch.resilience.breaker import CircuitBreaker, State
from dispatch.result import CallResult
from dispatch.routing.pool import PoolKey
from dispatch.telemetry.events import Event, Events
from dispatch.telemetry.observers import DEFAULT_TELEMETRY, NULL_DISPATCHER, DispatcherObserver, Telemetry

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


# The two dialects of TrustGraph's client: that of the published package, and that of the specification, whose first
# argument is the user.


DEFAULT_TIMEOUT_S = 600.0
"""TrustGraph's own default for a tool service."""

Callback = Callable[[str], Awaitable[object] | object]
"""Receives a chunk; its result is awaited if it is awaitable."""


def bind_values(names: tuple[str, ...], values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a call in either dialect, by name.

    Args:
        names: names of the values after the user, in their order; the last is ``timeout``.
        values, named: positional and keyword arguments of the call.

    Raises:
        TypeError: the arguments fit neither dialect.
    """
    if values and isinstance(values[0], str):
        if "user" in named:
            raise TypeError("'user' is given twice")
        named["user"], values = values[0], values[1:]
    given: dict[str, Any] = {"user": named.pop("user", "")}
    if len(values) > len(names):
        raise TypeError(f"at most {len(names)} values after the user: {', '.join(names)}")
    given.update(zip(names, values, strict=False))
    for name in names:
        if name in named:
            if name not in given or name == "timeout":
                given.setdefault(name, named[name])
                del named[name]
            else:
                raise TypeError(f"'{name}' is given twice")
    missing = [name for name in names if name not in given]
    if missing or named:
        problem = f"'{missing[0]}' is missing" if missing else f"'{next(iter(named))}' is not known"
        raise TypeError(f"{problem}; write ([user,] {', '.join(names)})")
    if not isinstance(given["user"], str):
        raise TypeError(f"user must be a text, not {type(given['user']).__name__}")
    return given


def encode_config(config: Mapping[str, Any] | None) -> str:
    """Return the config values as the JSON text of a request.

    Raises:
        InvalidArgumentsError: a value is not JSON.
    """
    try:
        return json_text(config or {}, "config")
    except TypeError as error:
        raise InvalidArgumentsError(
            ErrorType.INVALID_CONFIG, f"The tool was not executed: {error}. Correct the config values."
        ) from None


def has_user_parameter(client: Any) -> bool:
    """Return whether the first parameter of ``client.call`` is the user.

    Raises:
        TypeError: the client has no ``call``.
    """
    call = getattr(client, "call", None)
    if not callable(call):
        raise TypeError(f"{type(client).__name__} has no method 'call': wrap a ToolServiceClient")
    try:
        parameters = list(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] == "user"


async def call_back(callback: Callback, chunk: str) -> None:
    """Call ``callback`` with ``chunk``, and await its result if it is awaitable."""
    result = callback(chunk)
    if inspect.isawaitable(result):
        await result


# Guards around TrustGraph's own client: all but the choice of an instance, which remains the client's.


CLEANUP_S = 0.05
"""Seconds that a wrapped client gets beyond the limit, to end by itself."""
WRAPPED_POLICY = Policy(timeout=DEFAULT_TIMEOUT_S)
"""The policy of a client without one: the defaults, with TrustGraph's own timeout."""

_NO_SERVICE = ServiceDescriptor("", "", "")
"""A wrapped client has topics of its own."""
_NO_POOL = PoolKey("", ("", ""))

Ask = Callable[[float], Awaitable[str]]
"""Calls the client, with the seconds that it has."""


@explain_keywords
def wrap(
    client: Any,
    *,
    tool: str,
    policy: PolicyLike | None = None,
    annotations: Annotations = UNDECLARED,
    permissions: Collection[str] = (),
    grants: Grants | GrantsFunction | None = None,
    telemetry: Telemetry = DEFAULT_TELEMETRY,
) -> WrappedClient:
    """Put guards around a client of TrustGraph's: circuit breaker, rate limits, bulkhead, retries, hedging, one deadline and
    typed errors.

    Args:
        client: anything with TrustGraph's ``call(config, arguments, timeout=…)`` (2.11.1) or ``call(user, config,
            arguments, timeout=…)`` (the specification); ``call_streaming`` likewise.
        tool: its name in errors, metrics and events.
        policy: of its calls. The keys of balancing, outlier detection and delivery have no effect: the client sends its
            messages itself. None: the defaults, with TrustGraph's timeout of 600 s.
        annotations: what the tool is declared to be. Unless it is read-only or idempotent, only rejected calls are retried,
            because the client cannot tell that a request was not sent.
        permissions: a user needs all of them to call the tool. Empty: every user may.
        grants: permissions of users, as in :func:`dispatch.connect`. A client in the published dialect gets no user, but
            a call may name one: ``call(config, arguments, user="alice")``.
        telemetry: settings of metrics. Calls have no spans, because the client's messages carry no trace context.

    Raises:
        TypeError: the client has no such ``call``.
        PolicyError: the policy hedges or retries a tool that must not be executed twice.
        ValueError: a permission is invalid.
    """
    return WrappedClient(client, tool, policy, annotations, permissions, grants, telemetry)


class WrappedClient:
    """A client with guards, see :func:`wrap`. It has the calls of :class:`dispatch.ToolServiceClient`; use it on one loop
    at a time."""

    def __init__(
        self,
        client: Any,
        tool: str,
        policy: PolicyLike | None = None,
        annotations: Annotations = UNDECLARED,
        permissions: Collection[str] = (),
        grants: Grants | GrantsFunction | None = None,
        telemetry: Telemetry = DEFAULT_TELEMETRY,
    ) -> None:
        if isinstance(client, type):
            raise TypeError(f"{client.__name__} is a class: pass an instance, {client.__name__}(…).")
        self._telemetry = telemetry
        self._events = Events()
        self._client = client
        self.tool = tool
        self.policy = read_policy(policy, WRAPPED_POLICY)
        own = () if self.policy.hedging is None else ("hedging",)
        check_repeats(annotations, self.policy, own)
        self._repeatable = repeatable(annotations)
        self._takes_user = has_user_parameter(client)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tool_guards: ToolGuards | None = None
        self._observer: DispatcherObserver = NULL_DISPATCHER
        self._resolved = ResolvedTool(
            tool,
            _NO_SERVICE,
            "{}",
            self.policy,
            self._repeatable,
            _NO_POOL,
            requirement=require_permissions(_check_permissions(permissions)),
        )
        self._grants = grants
        self._authorizer = Authorizer(grants)

    @property
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker: ``state``, ``force_open()``, ``disable()``, ``reset()``.

        Raises:
            ValueError: the policy has no breaker.
            RuntimeError: no event loop runs.
        """
        breaker = self._guards().breaker
        if breaker is None:
            raise ValueError(f"the policy of '{self.tool}' has no breaker")
        return breaker

    def _guards(self) -> ToolGuards:
        loop = asyncio.get_running_loop()
        if self._tool_guards is None or loop is not self._loop:
            self._loop = loop
            self._observer.close()
            self._authorizer.abandon()
            self._authorizer = Authorizer(self._grants)  # a callable's answers belong to one loop
            self._authorizer.start()
            weakref.finalize(self, self._authorizer.abandon)  # ends the watch of a file
            from dispatch.telemetry.reporting import TelemetryDispatcherObserver  # perf: imports prometheus-client

            telemetry = replace(self._telemetry, traces="off")
            self._observer = TelemetryDispatcherObserver(telemetry, self._events, "", loop.time)
            self._tool_guards = ToolGuards(
                self.policy,
                repeatable=self._repeatable,
                clock=loop.time,
                randomness=random.random,
                rates=create_rate_limiter,
                observer=self._observer,
                label=self.tool,
            )
            self._observer.attach(self)
        return self._tool_guards

    def on_event(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``listener`` at every transition of the circuit breaker. Returns a function that removes the listener."""
        return self._events.subscribe(listener)

    # Gauges, read by a scrape: the circuit and the queue. Connection and instances are the client's own.

    connected = None
    pending = 0

    def circuits(self) -> Iterable[tuple[str, State]]:
        """Return the state of the circuit breaker, if there is one."""
        breaker = None if self._tool_guards is None else self._tool_guards.breaker
        return () if breaker is None else ((self.tool, breaker.state),)

    def queued(self) -> Mapping[str, int]:
        """Return how many calls wait for a rate limit or the bulkhead."""
        return {} if self._tool_guards is None else {self.tool: self._tool_guards.waiting}

    def abandoned_threads(self) -> Mapping[str, int]:
        """Return nothing: a wrapped client runs no functions."""
        return {}

    def pools(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """Return nothing: the client has one topic for all instances."""
        return ()

    def sources(self) -> Iterable[SourceStatus]:
        """Return nothing: the tool is in no catalogue."""
        return ()

    async def call(self, *values: Any, timeout: float | None = None, **named: Any) -> str:
        """As :meth:`dispatch.ToolServiceClient.call`. ``timeout``: seconds for the whole call; None: the policy's."""
        limit = self.policy.timeout if timeout is None else timeout
        given = bind_values(("config", "arguments", "timeout"), values, named | {"timeout": limit})
        call = self._start(given)
        return await self._perform(call, lambda seconds: self._client.call(*self._leading(given), timeout=seconds))

    async def call_streaming(self, *values: Any, timeout: float | None = None, **named: Any) -> str:
        """As :meth:`dispatch.ToolServiceClient.call_streaming`. The call is not retried once a chunk was given."""
        limit = self.policy.timeout if timeout is None else timeout
        given = bind_values(("config", "arguments", "callback", "timeout"), values, named | {"timeout": limit})
        call = self._start(given, is_stream=True)
        loop = asyncio.get_running_loop()

        async def callback(chunk: str) -> None:
            # Checked at each chunk too: before Python 3.12 asyncio.wait_for, which TrustGraph's client uses, can swallow
            # the cancellation by which a limit is enforced.
            if loop.time() >= call.deadline:
                raise TimeoutError
            call.has_delivered = True
            task = running_task()
            try:
                await call_back(given["callback"], chunk)
            except BaseException as raised:
                if ends_task(raised, task):
                    raise
                raise _CallbackError(raised) from raised

        return await self._perform(
            call, lambda seconds: self._client.call_streaming(*self._leading(given), callback, timeout=seconds)
        )

    def _leading(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        if self._takes_user:
            return given["user"], given["config"], given["arguments"]
        return given["config"], given["arguments"]

    def _start(self, given: Mapping[str, Any], *, is_stream: bool = False) -> Call:
        """Check the caller's values and begin the call.

        Raises:
            InvalidArgumentsError: the timeout or the arguments are invalid; nothing was sent.
        """
        guards = self._guards()
        try:
            limit = check_seconds(given["timeout"])
            json_text(given["arguments"] or {}, "arguments")
        except (PolicyError, TypeError) as error:
            raise error_from_mistake(self.tool, guards.policy, error) from None
        now = asyncio.get_running_loop().time()
        return Call(
            self._resolved,
            guards,
            guards.observer.start_call(self._resolved, now),
            CallOptions(given["user"], limit),
            b"",
            deadline=now + limit,
            limit=limit,
            is_stream=is_stream,
        )

    async def _authorize(self, call: Call, started: float) -> DispatchError | None:
        requirement = call.tool.requirement
        if requirement is None:
            return None
        decision = self._authorizer.decide(call.options.user, requirement, started)
        return await authorize_call(self._authorizer, call.tool, requirement, decision, call.observer, call.options)

    async def _perform(self, call: Call, ask: Ask) -> str:
        """Make the attempts of a call, as a dispatcher does, and return the answer or raise the error."""
        now = asyncio.get_running_loop().time
        started = call.deadline - call.limit
        try:
            refusal = await self._authorize(call, started)
            if refusal is None:
                attempt = await Attempts(ClientInvoker(ask), now).run(call)
        except BaseException:
            call.observer.on_cancel(now() - started, call.requests)
            raise
        if refusal is not None:
            call.observer.on_end(CallResult(self.tool, refusal.outcome, error=refusal, duration=now() - started), {})
            raise refusal
        text = attempt.settled.text if isinstance(attempt.settled, Answer) else ""
        error = attempt.error
        outcome = Outcome.SUCCESS if error is None else error.outcome
        call.observer.on_end(CallResult(self.tool, outcome, text, error, now() - started, call.requests), {})
        if error is not None:
            raise error
        return text


def _check_permissions(permissions: Collection[str]) -> tuple[str, ...]:
    if isinstance(permissions, str):
        raise ValueError(f"permissions must be a list of texts, not a text: write ['{permissions}']")
    for permission in permissions:
        problem = check_permission(permission)
        if problem is not None:
            raise ValueError(
                f"the permission '{excerpt(permission)}' is invalid ({problem}): write one such as 'tools:jokes'"
            )
    return tuple(permissions)


class ClientInvoker:
    """Sends the requests of one call by a client of TrustGraph's (:class:`~dispatch.calls.attempt.Invoker`).

    Args:
        ask: calls the client.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def is_ready(self, call: Call) -> bool:
        """True: the connection is the client's own."""
        return True

    async def await_ready(self, call: Call) -> None:
        """Do nothing: the client waits for its connection itself."""

    def has_untried(self, call: Call) -> bool:
        """True: the client has one topic, and its broker may give the request to another instance."""
        return True

    def attribute_failure(self, attempt: Attempt) -> None:
        """Only a failure of this process is not counted: the client does not tell instances apart."""
        if attempt.error is not None and attempt.error.origin is Origin.LOCAL:
            attempt.counts_for_instance = attempt.counts_for_tool = False

    async def invoke(self, attempt: Attempt) -> None:
        """Call the client within the attempt's deadline.

        Raises:
            DispatchError: the client failed, or took too long.
        """
        call = attempt.call
        loop_time = asyncio.get_running_loop().time
        tool = call.tool.label
        attempt.start(loop_time())
        attempt.request = call.observer.on_request("", "", "", attempt.number, attempt.reason)
        attempt.sent = True
        call.requests += 1
        seconds = attempt.deadline - attempt.began
        try:
            # The client's own limit is for each message and starts late; this one covers everything. It ends a moment
            # later, because TrustGraph's client cleans up after its own limit only.
            async with asyncio.timeout(seconds + CLEANUP_S):
                with ErrorBoundary():
                    text = await self._ask(seconds)
        except _CallbackError as failed:
            attempt.outcome = Outcome.SUCCESS  # of the tool: what failed is the caller's own callback
            raise failed.error from None
        except TimeoutError:
            raise error_from_timeout(tool, attempt.limit, attempt.clock, repeatable=call.guards.repeatable) from None
        except DispatchError:
            raise
        except Exception as error:
            if isinstance(error, RuntimeError) and not isinstance(error, UserCodeError):
                # TrustGraph's client preserves the message of the tool's error, and drops its type.
                raise ToolError(ErrorType.TOOL_ERROR, read_text(error)) from error
            raise error_from_client_failure(tool, error) from error
        attempt.conclude(Answer(text))


class _CallbackError(Exception):
    """Carries what the caller's callback raised through the client: it is the caller's own, not the client's failure."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(read_text(error))
        self.error = error


class ToolServiceClient:
    """TrustGraph's ``ToolServiceClient`` over a dispatcher: the same calls, in both dialects.

        await client.call({"style": "pun"}, {"topic": "cats"}, timeout=600)      # the published package 2.11.1
        await client.call("alice", {"style": "pun"}, {"topic": "cats"})          # the specification

    Args:
        dispatcher: a started dispatcher.
        service: id of a tool service in its catalogue.

    Raises:
        RejectedError: there is no such service.
    """

    @explain_keywords
    def __init__(self, dispatcher: Dispatcher, *, service: str) -> None:
        self._dispatcher = dispatcher
        self._service = service
        dispatcher._resolve_service(service)

    async def call(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """``call(config, arguments, timeout=600)`` or ``call(user, config, arguments, timeout=600)``.

        Returns:
            The reply; the chunks of a stream are joined.

        Raises:
            DispatchError: a ``RuntimeError``, as TrustGraph's client raises, with type, message and advice;
                ``RejectedError`` when a reload has removed the service.
            TypeError: neither dialect.
        """
        given = bind_values(("config", "arguments", "timeout"), values, named | {"timeout": timeout})
        result = await self._dispatcher._running_calls.perform(
            self._dispatcher._resolve_service(self._service),
            given["arguments"] or {},
            CallOptions(user=given["user"], timeout=given["timeout"], config=encode_config(given["config"])),
        )
        if result.error is not None:
            raise result.error
        return result.text

    async def call_streaming(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """``call_streaming([user,] config, arguments, callback, timeout=600)``: ``callback`` gets each chunk.

        Returns:
            All chunks, joined.

        Raises:
            DispatchError, TypeError: as :meth:`call`.
        """
        given = bind_values(("config", "arguments", "callback", "timeout"), values, named | {"timeout": timeout})
        chunks: list[str] = []
        timeout = given["timeout"]  # TrustGraph's client has no other limit
        stream = self._dispatcher._running_calls.stream(
            self._dispatcher._resolve_service(self._service),
            given["arguments"] or {},
            CallOptions(
                user=given["user"], timeout=timeout, idle_timeout=timeout, config=encode_config(given["config"])
            ),
        )
        async with contextlib.aclosing(stream):  # a callback that raises must not leave it open
            async for chunk in stream:
                chunks.append(chunk)
                await call_back(given["callback"], chunk)
        return "".join(chunks)
