"""The life cycle of a dispatcher: it connects, and releases everything when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Self

from dispatch._internal.arguments import check_instance, describe_type
from dispatch._internal.clock import loop_clock, yield_to_others
from dispatch._internal.other_loop import run_on_loop
from dispatch._internal.permit import Randomness
from dispatch.calls.call import Calls
from dispatch.calls.finished_call import FinishedCall
from dispatch.calls.invokers.local_executor import LocalExecutor
from dispatch.calls.resolution.live_catalog import LiveCatalog
from dispatch.calls.resolution.visibility import find_alternatives
from dispatch.calls.runtime import Runtime
from dispatch.catalog.live.source_list import CatalogLike
from dispatch.catalog.sources.base import Source
from dispatch.functions.providers import Providers
from dispatch.permissions import Authorizer, Grants, GrantsFunction
from dispatch.policy import PolicyLike
from dispatch.results import ResultFormatter, ResultStore
from dispatch.search.tool_search import ToolSearch
from dispatch.telemetry.events import CatalogChanged, Events, Listeners
from dispatch.telemetry.settings import EXPECTED_TELEMETRY, Telemetry
from dispatch.transports import Transport
from dispatch.trustgraph.config_broker import ConfigBroker

OTHER_LOOP = (
    "this dispatcher was started on another event loop and works on that one only; create one for each event loop "
    "(every asyncio.run() has a loop of its own). close() works on any loop."
)
NOT_STARTED = "the dispatcher is not started; use 'async with dispatch.connect(...)' or await start()"


class DispatcherLifecycle:
    """Connects a dispatcher and closes it; the arguments are those of :class:`dispatch.Dispatcher`."""

    def __init__(
        self,
        transport: Transport,
        catalog: CatalogLike | None,
        *,
        policy: PolicyLike | None,
        grants: Grants | GrantsFunction | None,
        approvals: str | Path | None,
        client_id: str | None,
        telemetry: Telemetry,
        randomness: Randomness,
    ) -> None:
        if isinstance(transport, str):  # as ToolServer takes it
            raise TypeError(f"Dispatcher takes a transport, not a URL; use dispatch.connect({transport!r}, ...)")
        if isinstance(transport, type) or not hasattr(transport, "subscribe"):
            raise TypeError(
                f"Dispatcher takes a transport, not {describe_type(transport)}; use dispatch.connect(URL, ...)"
            )
        check_instance("telemetry", telemetry, Telemetry, EXPECTED_TELEMETRY)
        self.telemetry = telemetry
        self._events = Events(content=telemetry.content)
        self.client_id = client_id or os.urandom(6).hex()
        self._transport = transport
        self._randomness = randomness
        self._live = LiveCatalog(catalog, policy, approvals, randomness)
        self._authorizer = Authorizer(grants)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runtime: Runtime | None = None
        self._calls: Calls | None = None
        self._broker: ConfigBroker | None = None
        self._providers = Providers()
        self._on_call: Listeners[FinishedCall] = Listeners("a listener of calls", content=telemetry.content)
        self._results = ResultStore()
        self._result_formatter = ResultFormatter(self._results)
        self._search: ToolSearch | None = None

    async def start(self) -> None:
        """Connect to the broker.

        Raises:
            RuntimeError: started already.
            TransportError: no broker answers; the message names the fix.
        """
        await yield_to_others()
        if self._runtime is not None:
            raise RuntimeError("this dispatcher is started already")
        try:
            await self._transport.start()
        except BaseException:
            await self._transport.close()
            raise
        observer = self.telemetry.observe_dispatcher(self._events, self.client_id, loop_clock())
        runtime = Runtime(
            self._transport,
            self.client_id,
            self._randomness,
            self._live.resolver,
            observer,
            self._live.registry.sources,
            content=self.telemetry.content,
        )
        self._loop = asyncio.get_running_loop()
        self._runtime = runtime
        self._broker = ConfigBroker(self._transport, self.client_id)
        try:
            await self._live.start(runtime, self._connect_source)
        except BaseException:
            await self._close(0.0)
            raise
        self._authorizer.start()
        self._calls = Calls(
            runtime, self._authorizer, lambda *of: find_alternatives(self._live.resolver.catalog, *of), self._on_call
        )

    async def close(self, *, drain: float = 0.0) -> None:
        """End all calls with a typed error and disconnect. Idempotent.

        A timeout around it, or its cancellation, ends the drain; the connection is closed before either is raised. It works
        on any event loop, also when the loop of the dispatcher has ended; nothing is drained then.

        Args:
            drain: seconds that calls in flight may still take. Calls in a queue and new calls are rejected at once; nothing
                is retried.
        """
        own_loop = self._loop
        if own_loop is None or own_loop is asyncio.get_running_loop():
            await self._close(drain)
            return
        if await run_on_loop(own_loop, lambda: self._close(drain)):  # in another thread
            return
        self._authorizer.abandon()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._transport.close)
            self._live.registry.abandon()
            if self._runtime is not None:
                await self._runtime.abandon()
        with contextlib.suppress(RuntimeError):  # an event stream may wait on a closed event loop
            self._events.close()

    async def _close(self, drain: float) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._events.close)
            stack.push_async_callback(self._transport.close)
            stack.push_async_callback(self._authorizer.close)
            if self._search is not None:
                stack.push_async_callback(self._search.close)
            if self._broker is not None:
                stack.push_async_callback(self._broker.close)
            # Behind the calls: those that finish need the sessions of their sources.
            stack.push_async_callback(self._live.registry.close)
            stack.callback(self._live.detach)
            if self._runtime is not None:
                stack.push_async_callback(self._runtime.close, drain)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def search(self) -> ToolSearch:
        """The search of :meth:`find`: ``use_embedder`` and ``refresh``. Its first use starts it."""
        if self._search is None:
            search = self._search = ToolSearch(lambda: self._live.resolver.catalog)
            self._on_call.subscribe(search.record_call)
            self._events.subscribe(lambda event: search.request_update() if isinstance(event, CatalogChanged) else None)
        return self._search

    @property
    def _running(self) -> Runtime:
        if self._runtime is None:
            raise RuntimeError(NOT_STARTED)
        return self._runtime

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

    def _connect_source(self, source: Source, is_in_force: bool) -> None:
        """Give a source what it needs of the dispatcher, before it is read. Its executor replaces the one of a former source
        when its items come into force: until then, and if a reload fails, the former one executes calls."""
        connect = getattr(source, "connect", None)
        if connect is not None:
            connect(self._broker)
        use_providers = getattr(source, "use_providers", None)
        if use_providers is not None:
            use_providers(self._providers)
        executor: LocalExecutor | None = getattr(source, "executor", None)
        if executor is not None and is_in_force:
            self._running.executors[executor.request_queue] = executor
