"""TrustGraph's client over a dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from msgspec.structs import replace

from dispatch._internal import (
    Clock,
    ErrorBoundary,
    UserCodeError,
    cancel_and_wait,
    check_instance,
    describe_type,
    excerpt,
    explain_keywords,
    is_kind,
    loop_clock,
    read_text,
    yield_to_others,
)
from dispatch.calls.attempt import Attempt, Attempts, CallOptions
from dispatch.calls.call import Calls
from dispatch.calls.error_messages import error_from_client_failure
from dispatch.calls.guards import ToolGuards, create_rate_limiter
from dispatch.calls.local import LOCAL, FailedCallError, LocalCall, LocalInstance
from dispatch.calls.resolution import ResolvedTool
from dispatch.catalog import ServiceDescriptor
from dispatch.catalog.items import SourceStatus
from dispatch.catalog.versions import Range
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError, ToolError
from dispatch.messaging.request import Request
from dispatch.messaging.wire import json_text
from dispatch.permissions import Authorizer, Grants, GrantsFunction, check_permission, require_permissions
from dispatch.policy import UNDECLARED, Annotations, Policy, PolicyLike, check_repeats, read_policy, repeatable
from dispatch.resilience.aio import SingleFlight
from dispatch.resilience.breaker import CircuitBreaker, State
from dispatch.resilience.instances import InstanceView
from dispatch.results import CallResult
from dispatch.routing.instance import Channel, InFlight, Instances
from dispatch.routing.pool import InstancePool, PoolKey
from dispatch.telemetry.events import Event, Events, Listeners
from dispatch.telemetry.observers import (
    DEFAULT_TELEMETRY,
    EXPECTED_TELEMETRY,
    NULL_DISPATCHER,
    DispatcherObserver,
    Telemetry,
)

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


# The two dialects of TrustGraph's client: that of the published package, and that of the specification, whose first
# argument is the user.


CALL_VALUES = ("config", "arguments")
STREAM_VALUES = (*CALL_VALUES, "callback")
DEFAULT_TIMEOUT_S = 600.0
"""TrustGraph's own default for a tool service."""


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


class CallShape(NamedTuple):
    """How a method of a client is called.

    Attributes:
        has_user: its first parameter is the user.
        has_timeout: it accepts ``timeout=``.
    """

    has_user: bool
    has_timeout: bool


def read_shape(client: Any, method: str, values: Sequence[str]) -> CallShape:
    """Return how ``method`` of a client is called with the user, if it has one, and ``values``.

    Raises:
        TypeError: the client has no such method, or it cannot be called so.
    """
    call = getattr(client, method, None)
    if not callable(call):
        raise TypeError(f"{type(client).__name__} has no method '{method}': wrap a ToolServiceClient")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return CallShape(False, True)
    parameters = signature.parameters
    shape = CallShape(
        next(iter(parameters), "") == "user",
        "timeout" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values()),
    )
    names = ("user", *values) if shape.has_user else tuple(values)
    try:
        signature.bind(*names, **({"timeout": 1.0} if shape.has_timeout else {}))
    except TypeError as error:
        shown = excerpt(f"{type(client).__name__}.{method}{signature}")
        raise TypeError(f"{shown} cannot be called with ({', '.join(names)}): {error}.") from None
    return shape


async def perform_call(calls: Calls, tool: ResolvedTool, given: Mapping[str, Any], options: CallOptions) -> str:
    """Call ``tool`` with the values of :func:`bind_values`, and return its reply."""
    result = await calls.perform(tool, given["arguments"] or {}, options)
    if result.error is not None:
        raise result.error
    return result.text


async def stream_call(calls: Calls, tool: ResolvedTool, given: Mapping[str, Any], options: CallOptions) -> str:
    """Call ``tool`` likewise, give each chunk to the callback, and return all of them, joined."""
    chunks: list[str] = []
    stream = await calls.stream(tool, given["arguments"] or {}, options)
    async with contextlib.aclosing(stream):  # a callback that raises must not leave it open
        async for chunk in stream:
            chunks.append(chunk)
            result = given["callback"](chunk)
            if inspect.isawaitable(result):
                await result
    return "".join(chunks)


# Guards around TrustGraph's own client: all but the choice of an instance, which remains the client's.


CLEANUP_S = 0.15
"""Seconds that a wrapped client gets beyond the limit, to end by itself: its own begins when its message was sent, which can
take 50 ms on a busy machine."""
WRAPPED_POLICY = Policy(timeout=DEFAULT_TIMEOUT_S)
"""The policy of a client without one: the defaults, with TrustGraph's own timeout."""

_NO_SERVICE = ServiceDescriptor("", "", "")
"""A wrapped client has topics of its own."""
_NO_POOL = PoolKey("", ("", ""))


class WrappedClient:
    """A client of TrustGraph's with guards around it: circuit breaker, rate limits, bulkhead, retries, hedging, one deadline
    and typed errors. It has the calls of :class:`dispatch.ToolServiceClient`. It works on one event loop, and on another one
    when that has ended. All other attributes and ``async with`` are those of the client, without guards.

    Args:
        client: anything with TrustGraph's ``call(config, arguments, timeout=…)`` (2.11.1) or ``call(user, config,
            arguments, timeout=…)`` (the specification); ``call_streaming`` likewise. ``timeout`` is given to a method that
            accepts it.
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
        TypeError: the client has no such ``call``, or one with other parameters.
        PolicyError: the policy hedges or retries a tool that must not be executed twice.
        ValueError: a permission is invalid.
    """

    @explain_keywords
    def __init__(
        self,
        client: Any,
        *,
        tool: str,
        policy: PolicyLike | None = None,
        annotations: Annotations = UNDECLARED,
        permissions: Collection[str] = (),
        grants: Grants | GrantsFunction | None = None,
        telemetry: Telemetry = DEFAULT_TELEMETRY,
    ) -> None:
        if isinstance(client, type):
            raise TypeError(f"{client.__name__} is a class: pass an instance, {client.__name__}(…).")
        check_instance("annotations", annotations, Annotations, "a dispatch.Annotations")
        check_instance("telemetry", telemetry, Telemetry, EXPECTED_TELEMETRY)
        self._telemetry = telemetry
        self._events = Events()
        self._client = client
        self.tool = tool
        self.policy = read_policy(policy, WRAPPED_POLICY)
        own = () if self.policy.hedging is None else ("hedging",)
        check_repeats(annotations, self.policy, own)
        self._repeatable = repeatable(annotations)
        self._shape = read_shape(client, "call", CALL_VALUES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._tool_guards: ToolGuards | None = None
        self._calls: Calls | None = None
        self._observer: DispatcherObserver = NULL_DISPATCHER
        self._resolved = ResolvedTool(
            tool,
            _NO_SERVICE,
            "{}",
            self.policy,
            self._repeatable,
            _NO_POOL,
            requirement=require_permissions(_check_permissions(permissions)),
            is_local=True,
        )
        self._grants = grants
        self._authorizer = Authorizer(grants)

    @property
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker: ``state``, ``force_open()``, ``disable()``, ``reset()``.

        Raises:
            ValueError: the policy has no breaker.
            RuntimeError: no event loop runs, or another one than that of the client while that runs, too.
        """
        breaker = self._guards().breaker
        if breaker is None:
            raise ValueError(f"the policy of '{self.tool}' has no breaker")
        return breaker

    def _guards(self) -> ToolGuards:
        loop = asyncio.get_running_loop()
        if self._tool_guards is None or loop is not self._loop:
            if self._loop is not None and self._loop.is_running() and self._process == os.getpid():
                raise RuntimeError(
                    f"the wrapped client of '{self.tool}' is used on another event loop, which still runs. Its limits and "
                    "its circuit breaker belong to one loop: wrap a client for each event loop."
                )
            self._loop, self._process = loop, os.getpid()
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
                service=self.tool,  # it has no service of its own
            )
            self._observer.attach(self)
            runtime = _ClientRuntime(self._client, self.policy, self._tool_guards)
            self._calls = Calls(runtime, self._authorizer, lambda *_: (), Listeners("a listener of calls"))
        return self._tool_guards

    def _running_calls(self) -> Calls:
        self._guards()
        assert self._calls is not None
        return self._calls

    def on_event(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``listener`` at every transition of the circuit breaker. Returns a function that removes the listener."""
        return self._events.subscribe(listener)

    # Gauges, read by a scrape: the circuit and the queue. Connection and instances are the client's own.

    connected = None
    pending = 0

    def circuits(self) -> Iterable[tuple[tuple[str, str], State]]:
        """Return the state of the circuit breaker, if there is one."""
        breaker = None if self._tool_guards is None else self._tool_guards.breaker
        return () if breaker is None else (((self.tool, self.tool), breaker.state),)

    def queued(self) -> Mapping[tuple[str, str], int]:
        """Return how many calls wait for a rate limit or the bulkhead."""
        guards = self._tool_guards
        return {} if guards is None else {(self.tool, self.tool): guards.waiting}

    def abandoned_threads(self) -> Mapping[tuple[str, str], int]:
        """Return nothing: a wrapped client runs no functions."""
        return {}

    def pools(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """Return nothing: the client has one topic for all instances."""
        return ()

    def sources(self) -> Iterable[SourceStatus]:
        """Return nothing: the tool is in no catalogue."""
        return ()

    def fleet_figures(self) -> None:
        """Return nothing: the client belongs to no fleet."""

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the client: its life cycle, what a subclass adds. Methods that it returns are the
        client's own, without guards."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self._client, name)

    async def __aenter__(self) -> Self:
        """Enter the client."""
        if not hasattr(self._client, "__aenter__"):
            raise TypeError(
                f"{describe_type(self._client)} is no asynchronous context manager; leave out 'async with'."
            )
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        """Leave the client."""
        return await self._client.__aexit__(*raised)

    async def call(self, *values: Any, timeout: float | None = None, **named: Any) -> Any:
        """As :meth:`dispatch.ToolServiceClient.call`, with the result of the client. ``timeout``: seconds for the whole
        call; None: the policy's."""
        limit = self.policy.timeout if timeout is None else timeout
        given = bind_values((*CALL_VALUES, "timeout"), values, named | {"timeout": limit})
        request = _ClientRequest(given["config"], given["arguments"], self._shape)
        options = CallOptions(given["user"], given["timeout"], context=request)
        text = await perform_call(self._running_calls(), self._resolved, given, options)
        return text.value if isinstance(text, _ClientValue) else text

    async def call_streaming(self, *values: Any, timeout: float | None = None, **named: Any) -> Any:
        """As :meth:`dispatch.ToolServiceClient.call_streaming`. The call is not retried once a chunk was given."""
        if not callable(getattr(self._client, "call_streaming", None)):
            raise TypeError(f"{describe_type(self._client)} has no method 'call_streaming'; use call()")
        shape = read_shape(self._client, "call_streaming", STREAM_VALUES)
        limit = self.policy.timeout if timeout is None else timeout
        given = bind_values(("config", "arguments", "callback", "timeout"), values, named | {"timeout": limit})
        request = _ClientRequest(given["config"], given["arguments"], shape, is_stream=True)
        # The client has no limit for the time between two chunks.
        options = CallOptions(given["user"], given["timeout"], 2 * given["timeout"], context=request)
        await stream_call(self._running_calls(), self._resolved, given, options)
        return request.text


wrap = WrappedClient
"""Put guards around a client of TrustGraph's: ``dispatch.wrap(client, tool="joke")``."""


def _check_permissions(permissions: Collection[str]) -> tuple[str, ...]:
    if isinstance(permissions, str):
        raise ValueError(f"permissions must be a list of texts, not a text: write ['{permissions}']")
    for permission in permissions:
        check_instance("each of permissions", permission, str, "a text such as 'tools:jokes'")
        problem = check_permission(permission)
        if problem is not None:
            raise ValueError(
                f"the permission '{excerpt(permission)}' is invalid ({problem}): write one such as 'tools:jokes'"
            )
    return tuple(permissions)


class _ClientRequest:
    """The values of one call, for :class:`ClientInstance`: the client gets them as they are.

    Attributes:
        text: that the client returned for a stream.
    """

    def __init__(self, config: Any, arguments: Any, shape: CallShape, *, is_stream: bool = False) -> None:
        self.config = config
        self.arguments = arguments
        self.shape = shape
        self.is_stream = is_stream
        self.text: Any = ""


class _ClientValue(str):
    """A result of a client that is no text.

    Attributes:
        value: the result.
    """

    value: Any


class ClientInstance(LocalInstance):
    """Calls a client of TrustGraph's (:class:`~dispatch.routing.instance.Instance`).

    Args:
        client: see :class:`WrappedClient`.
    """

    is_named = False  # the client's topic is shared by the instances of its service

    def __init__(self, client: Any) -> None:
        super().__init__(self._call)
        self._client = client

    def send(self, request: Request, attempt: Attempt) -> None:
        """Call the client. Its own limit is for each message and starts late; that of the request covers everything. It ends
        a moment later, because TrustGraph's client cleans up after its own limit only."""
        request.deadline += CLEANUP_S
        super().send(request, attempt)

    async def _call(self, call: LocalCall) -> str | AsyncIterator[str]:
        request: _ClientRequest = call.context.context
        if request.is_stream:
            return self._stream(request, call)
        result = await self._ask(call.tool, self._call_client(self._client.call, call))
        if isinstance(result, str):
            return result
        value = _ClientValue(read_text(result))
        value.value = result
        return value

    def _call_client(self, method: Callable[..., Any], call: LocalCall, *values: Any) -> Any:
        request: _ClientRequest = call.context.context
        user = (call.context.user,) if request.shape.has_user else ()
        limit = {"timeout": call.context.remaining} if request.shape.has_timeout else {}
        return method(*user, request.config, request.arguments, *values, **limit)

    async def _stream(self, request: _ClientRequest, call: LocalCall) -> AsyncIterator[str]:
        """Yield the chunks that the client gives to its callback, which waits until each one is read."""
        chunks: asyncio.Queue[str | None] = asyncio.Queue(1)
        has_ended = False

        async def on_chunk(chunk: str) -> None:
            if has_ended:  # before Python 3.12 asyncio.wait_for, which the client uses, can swallow a cancellation
                raise TimeoutError
            await chunks.put(chunk)

        def on_end(_task: object) -> None:
            if chunks.empty():
                chunks.put_nowait(None)

        streaming = self._call_client(self._client.call_streaming, call, on_chunk)
        asking = asyncio.create_task(self._ask(call.tool, streaming))
        asking.add_done_callback(on_end)
        try:
            while not (asking.done() and chunks.empty()):
                chunk = await chunks.get()
                if chunk is not None:
                    yield chunk
            request.text = await asking
        finally:
            has_ended = True
            while not chunks.empty():
                chunks.get_nowait()
            await cancel_and_wait((asking,))

    async def _ask(self, tool: str, answer: Awaitable[Any]) -> Any:
        """Return the answer of the client.

        Raises:
            FailedCallError: the tool or the client failed, or its time limit has passed.
        """
        try:
            if not inspect.isawaitable(answer):
                raise TypeError(f"it returned {describe_type(answer)} at once: write 'async def' before its method")
            with ErrorBoundary():
                return await answer
        except DispatchError as error:
            raise FailedCallError(error) from None
        except TimeoutError:
            raise FailedCallError(None) from None
        except Exception as error:
            failure: DispatchError
            if is_kind(error, RuntimeError) and not is_kind(error, UserCodeError):
                # TrustGraph's client preserves the message of the tool's error, and drops its type.
                failure = ToolError(ErrorType.TOOL_ERROR, read_text(error))
            else:
                failure = error_from_client_failure(tool, error)
            failure.__cause__ = error
            raise FailedCallError(failure) from error


class _ClientPool(InstancePool):
    """The pool of one client. Any attempt may reach another instance."""

    def has_untried(self, _tried: Collection[str], _requires: Range | None) -> bool:
        """See :class:`InstancePool`."""
        return True


class _ClientRuntime:
    """Has the instance pool of one client, and what :class:`~dispatch.calls.call.Calls` needs."""

    def __init__(self, client: Any, policy: Policy, guards: ToolGuards) -> None:
        self.now: Clock = loop_clock()
        self.flights: SingleFlight[CallResult] = SingleFlight()
        calls, channel = InFlight(), Channel(Instances(ClientInstance(client)))
        self._pool = _ClientPool(
            [(LOCAL, 1.0, None, channel)],
            balancing=policy.balancing,
            outlier_detection=None,  # of one instance
            clock=self.now,
            randomness=random.random,
        )
        self.attempts = Attempts(self, self.now, lambda: "")
        self.guards_of: Callable[[ResolvedTool], ToolGuards] = lambda _tool: guards
        self.pool_calls_of: Callable[[ResolvedTool], InFlight] = lambda _tool: calls

    def get(self, _tool: ResolvedTool) -> InstancePool:
        """Return the pool."""
        return self._pool

    async def open(self, _tool: ResolvedTool, _deadline: float) -> InstancePool:
        """Return the pool."""
        return self._pool


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
        if not hasattr(dispatcher, "_resolve_service"):
            raise TypeError(f"dispatcher must be what dispatch.connect(…) returns, not {describe_type(dispatcher)}.")
        self._dispatcher = dispatcher
        self._service = service
        dispatcher._resolve_service(service)

    async def _resolve(self) -> ResolvedTool:
        try:
            return self._dispatcher._resolve_service(self._service)
        except DispatchError:
            await yield_to_others()
            raise

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
        calls, tool = self._dispatcher._running_calls, await self._resolve()
        config = encode_config(given["config"])
        return await perform_call(calls, tool, given, CallOptions(given["user"], given["timeout"], config=config))

    async def call_streaming(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """``call_streaming([user,] config, arguments, callback, timeout=600)``: ``callback`` gets each chunk.

        Returns:
            All chunks, joined.

        Raises:
            DispatchError, TypeError: as :meth:`call`.
        """
        given = bind_values(("config", "arguments", "callback", "timeout"), values, named | {"timeout": timeout})
        calls, tool = self._dispatcher._running_calls, await self._resolve()
        timeout = given["timeout"]  # TrustGraph's client has no other limit
        options = CallOptions(given["user"], timeout, timeout, config=encode_config(given["config"]))
        return await stream_call(calls, tool, given, options)
