"""The dispatcher: calls tools by name. The path of a call is

    1 resolve · 2 authorize · 3 deadline · 4 attempts · 5 result · 6 observe

Step 1 is :meth:`Dispatcher.call`; the others are :meth:`dispatch.calls.call.Calls.perform`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

from dispatch._internal.clock import loop_clock
from dispatch._internal.permit import Randomness
from dispatch.balancing.snapshot import InstanceView
from dispatch.calls.call import Calls
from dispatch.calls.call_state import CallOptions
from dispatch.calls.resolved_tool import ResolvedTool, ToolResolver
from dispatch.calls.runtime import Runtime
from dispatch.catalog import Catalog, CatalogError, load_directory
from dispatch.errors import DispatchError
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError
from dispatch.resilience.breaker.breaker import CircuitBreaker
from dispatch.result import CallResult
from dispatch.telemetry.events import Event, Events, EventStream
from dispatch.telemetry.settings import DEFAULT_TELEMETRY, Telemetry
from dispatch.tool import Tool
from dispatch.transports import Security, Transport, open_transport

HOME_POLL_S = 0.1
"""How often, in seconds, :meth:`Dispatcher.close` on another event loop checks whether the dispatcher's own still runs."""
NO_ARGUMENTS: Mapping[str, Any] = {}
OTHER_LOOP = (
    "this dispatcher was started on another event loop and can be used on that one only; make one for each event loop "
    "(every asyncio.run() has a loop of its own). close() works on any."
)
NOT_STARTED = "the dispatcher is not started; use 'async with dispatch.connect(...)' or await start()"


def connect(
    broker: str,
    catalog: Catalog | str | Path | None = None,
    *,
    policy: Policy = DEFAULT_POLICY,
    security: Security | None = None,
    publish_window: int = 64,
    client_id: str | None = None,
    telemetry: Telemetry = DEFAULT_TELEMETRY,
) -> Dispatcher:
    """A dispatcher on ``broker``; use it with ``async with``, or ``await start()`` and ``close()``.

    Args:
        broker: ``pulsar://HOST:PORT``, ``pulsar+ssl://HOST:PORT``, or ``memory://[NAME]`` (embedded, in process).
        catalog: a :class:`Catalog`, or a folder with ``tool-service/ID.json`` and ``tool/NAME.json``.
        policy: what calls may take where neither service nor tool says more.
        security: token and TLS settings; None: from the environment (``DISPATCH_TOKEN`` …).
        publish_window: publishes in flight to the broker at once, over the whole connection; further ones are queued. 64
            (measured): larger bursts make a broker drop messages on non-persistent topics.
        client_id: the dispatcher's id, part of the names of its reply topics; default: 12 random hex digits.
        telemetry: settings of metrics, traces and logs.

    Raises:
        CatalogError: mistakes in the folder's descriptors: every one, with file, key and fix.
        PolicyError: ``policy`` does not go with what a service or a tool sets.
        TransportError: no such kind of address.
    """
    if catalog is None:
        catalog = Catalog.empty()
    elif not isinstance(catalog, Catalog):
        catalog = load_directory(catalog)
    transport = open_transport(broker, security=security, publish_window=publish_window)
    return Dispatcher(transport, catalog, policy=policy, client_id=client_id, telemetry=telemetry)


class Dispatcher:
    """Calls tools by name over one connection. One per process and event loop is enough for any number of callers.

    Args:
        transport: a connection not yet started; closed with the dispatcher.
        catalog: services and tools.
        policy: defaults under the services' and tools' own policies.
        client_id, telemetry: see :func:`connect`.
        randomness: of retries, hedges, open times and balancing; for tests.
    """

    def __init__(
        self,
        transport: Transport,
        catalog: Catalog,
        *,
        policy: Policy = DEFAULT_POLICY,
        client_id: str | None = None,
        telemetry: Telemetry = DEFAULT_TELEMETRY,
        randomness: Randomness = random.random,
    ) -> None:
        self.telemetry = telemetry
        self._events = Events()
        self.client_id = client_id or os.urandom(6).hex()
        self._transport = transport
        self._policy = policy
        self._randomness = randomness
        self._resolver = ToolResolver(catalog, policy).check()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Runtime | None = None
        self._calls: Calls | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect.

        Raises:
            TransportError: no broker answers; the message names the fix.
        """
        if self._engine is not None:
            raise RuntimeError("this dispatcher is started already")
        try:
            await self._transport.start()
        except BaseException:
            await self._transport.close()
            raise
        observer = self.telemetry.observe_dispatcher(self._events, self.client_id, loop_clock())
        engine = Runtime(self._transport, self.client_id, self._randomness, self._resolver, observer)
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._calls = Calls(engine, lambda tool: self._resolver.alternatives(tool))

    async def close(self, *, drain: float = 0.0) -> None:
        """End what waits (its callers get a typed error) and disconnect. Idempotent. A timeout around it, or its
        cancellation, ends the drain; the connection is closed all the same, before the timeout or cancellation is raised.
        Works on any event loop, also when the one that the dispatcher was started on has ended; nothing is drained then.

        Args:
            drain: seconds that calls under way may still take. What waits in a line is refused at once, and so is what
                comes; nothing is retried any more.
        """
        home = self._loop
        if home is None or home is asyncio.get_running_loop():
            await self._close(drain)
            return
        if home.is_running():  # in another thread
            closing = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(drain), home))
            while home.is_running():
                if (await asyncio.wait([closing], timeout=HOME_POLL_S))[0]:
                    closing.result()
                    return
            closing.cancel()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._transport.close)
            if self._engine is not None:
                await self._engine.abandon()
        with contextlib.suppress(RuntimeError):  # a stream may wait on the event loop that is closed
            self._events.close()

    async def _close(self, drain: float) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._events.close)
            stack.push_async_callback(self._transport.close)
            if self._engine is not None:
                await self._engine.close(drain)

    async def __aenter__(self) -> Dispatcher:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def _running(self) -> Runtime:
        if self._engine is None:
            raise RuntimeError(NOT_STARTED)
        return self._engine

    @property
    def _running_calls(self) -> Calls:
        """The pipeline of calls; :class:`dispatch.ToolServiceClient` uses it with :meth:`_resolve_service`.

        Raises:
            RuntimeError: not started, or started on another event loop than the running one.
        """
        if self._calls is None:
            raise RuntimeError(NOT_STARTED)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(OTHER_LOOP)
        return self._calls

    # -- the catalogue ------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The services and tools in force."""
        return self._resolver.catalog

    def reload(self, catalog: Catalog | str | Path | None = None, *, policy: Policy | None = None) -> None:
        """Other services and tools, or another policy, from now on. Calls under way go on as they began; breakers keep their
        state, and what was learnt of tools and instances stays. Topics that no service has any more are closed when the
        calls under way have ended.

        Args:
            catalog: as in :func:`connect`; None: the one in force.
            policy: None: the one in force.

        Raises:
            CatalogError, PolicyError: as in :func:`connect`. Nothing has changed then.
        """
        source = self.catalog.source
        policy = self._policy if policy is None else policy
        try:
            if catalog is None:
                catalog = self.catalog
            elif isinstance(catalog, Catalog):
                source = catalog.source
            else:
                source = "directory"
                catalog = load_directory(catalog)
            self._resolver = ToolResolver(catalog, policy).check()
        except (CatalogError, PolicyError) as error:
            if self._engine is not None:
                self._engine.observer.on_catalog_loaded(source, len(self.catalog.tools), str(error))
            raise
        self._policy = policy
        if self._engine is not None:
            self._engine.renew(self._resolver)
            self._engine.observer.on_catalog_loaded(source, len(catalog.tools))

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether the broker is in reach at the moment."""
        return self._transport.connected

    @property
    def pending_requests(self) -> int:
        """Requests in flight that wait for a reply.

        Raises:
            RuntimeError: not started.
        """
        return self._running.exchange.pending

    def reply_counts(self) -> dict[str, int]:
        """Count the replies since the start by disposition: matched, late, duplicate, unknown, malformed.

        Raises:
            RuntimeError: not started.
        """
        return {str(disposition): count for disposition, count in self._running.exchange.replies.items()}

    def tool(self, name: str, *, user: str = "") -> Tool:
        """A handle on one tool, as agent frameworks want it: ``await tool.invoke(topic="cats")``.

        Raises:
            RejectedError: there is no such tool; the message has the near names.
        """
        self._resolver.tool(name)
        return Tool(self, self.catalog.tool(name), user)

    def _resolve_service(self, service: str) -> ResolvedTool:
        """Resolve a service for calls without a tool descriptor, as TrustGraph's client makes them.

        Raises:
            RejectedError: there is no such service.
        """
        return self._resolver.service(service)

    # -- telemetry ----------------------------------------------------------------------------------------------

    def metrics_app(self) -> Any:
        """An ASGI application that serves the metrics at any path; in OpenMetrics, with exemplars, to who asks for that."""
        from dispatch.telemetry.metrics.exposition import metrics_app

        return metrics_app(self.telemetry)

    def on_event(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``listener`` with every change from now on: a circuit, an instance, the catalogue. It must not block; what it
        raises is logged, and disturbs nobody. Returns a function that takes it away again."""
        return self._events.on(listener)

    def events(self) -> EventStream:
        """Every change from now on, until the dispatcher is closed: ``async for event in dispatcher.events()``. Whoever is
        more than 1,000 behind misses the oldest; ``missed`` counts them."""
        return self._events.stream()

    # -- guards -------------------------------------------------------------------------------------------------

    def breaker(self, tool: str) -> CircuitBreaker:
        """The circuit breaker of a tool: its ``state``, ``force_open()``, ``disable()``, ``metrics_only()``, ``reset()``.

        Raises:
            RejectedError: there is no such tool.
            ValueError: its policy has no breaker.
            RuntimeError: not started.
        """
        breaker = self._running.guards_of(self._resolver.tool(tool)).breaker
        if breaker is None:
            raise ValueError(f"the policy of '{tool}' has no breaker: take \"breaker\": null out of it")
        return breaker

    def instances(self, service: str) -> tuple[InstanceView, ...]:
        """How the instances of a service are doing, as its calls have shown; empty before the first one.

        Raises:
            RejectedError: there is no such service.
            RuntimeError: not started.
        """
        self._resolver.service(service)
        return self._running.instances(service)

    # -- calls --------------------------------------------------------------------------------------------------

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        user: str = "",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        priority: str | None = None,
    ) -> str:
        """Call a tool and return its answer; a stream's chunks are put together.

        Args:
            tool: its name in the catalogue.
            arguments: what the tool takes, as named values that JSON can say.
            user: on whose behalf.
            timeout: seconds for the whole call; None: the tool's policy (30 s by default).
            idempotency_key: your own name for this piece of work; it travels to the service. An instance of ours does it
                once, so that the call may be retried there, whatever the tool is.
            priority: its class where calls wait for room: one of the bulkhead's ``priorities``, the most urgent by default.
                An unknown one is an InvalidArgumentsError error (``unknown-priority``).

        Raises:
            DispatchError: one class for each way a call can fail: ToolError, InvalidArgumentsError, ThrottledError,
                CallTimeoutError, TransportError, RejectedError. Its text says what to do next.
        """
        # perf: not by way of execute(), which would cost every call one more coroutine
        options = CallOptions(user, timeout, None, idempotency_key, priority)
        result = await self._running_calls.perform(self._target(tool), arguments, options)
        if result.error is not None:
            raise result.error
        return result.text

    async def execute(
        self,
        tool: str,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        user: str = "",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        priority: str | None = None,
    ) -> CallResult:
        """As :meth:`call`, but every outcome is a value. Only cancellation is raised."""
        started = self._running.now()
        try:
            resolved = self._target(tool)
        except DispatchError as error:
            return CallResult(tool, error.outcome, error=error)
        options = CallOptions(user, timeout, None, idempotency_key, priority)
        return await self._running_calls.perform(resolved, arguments, options, started=started)

    def _target(self, tool: str) -> ResolvedTool:
        """As :meth:`ToolResolver.tool`; what is in no catalogue is counted, too."""
        try:
            return self._resolver.tool(tool)
        except DispatchError as error:
            self._running.observer.on_unknown_tool(tool, error, self._running.now())
            raise

    async def stream(
        self,
        tool: str,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        user: str = "",
        timeout: float | None = None,
        idle_timeout: float | None = None,
        idempotency_key: str | None = None,
        priority: str | None = None,
    ) -> AsyncGenerator[str, None]:
        """Call a tool and give the chunks of its answer as they come. Leaving the loop early leaves nothing behind.

        Args:
            timeout: seconds for the whole stream; None: the policy's ``stream_timeout``.
            idle_timeout: seconds that may pass without a chunk; None: the policy's ``stream_idle_timeout``.

        Raises:
            DispatchError: as :meth:`call`; what came before it has been given already.
        """
        options = CallOptions(user, timeout, idle_timeout, idempotency_key, priority)
        chunks = self._running_calls.stream(self._target(tool), arguments, options)
        async with contextlib.aclosing(chunks):  # so that closing this one closes the inner one at once
            async for chunk in chunks:
                yield chunk
