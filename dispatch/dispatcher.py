"""The public face of the calling side: :class:`Dispatcher`, also as ``connect``, and :class:`BoundTool`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import random
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from threading import get_ident
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, Unpack

from dispatch._internal import (
    OTHER_LOOP,
    AsyncContext,
    Randomness,
    check_instance,
    explain_keywords,
    loop_clock,
    yield_to_others,
)
from dispatch.admin import Admin, read_admin
from dispatch.calls.attempt import CallOptions
from dispatch.calls.call import Calls, FinishedCall
from dispatch.calls.error_messages import error_from_failed_sources, error_from_refused_tool
from dispatch.calls.fleet import FleetLink, fleet_topic
from dispatch.calls.local import LocalInstance
from dispatch.calls.resolution import (
    LiveCatalog,
    ResolvedTool,
    find_alternatives,
    hide_names,
    list_visible,
    resolve_visible,
)
from dispatch.calls.runtime import Runtime
from dispatch.catalog import Catalog, ToolDescriptor
from dispatch.catalog.catalog import ListConditions
from dispatch.catalog.items import Source
from dispatch.catalog.merge import CatalogLike
from dispatch.catalog.registry import Registry
from dispatch.documents import thaw
from dispatch.errors import DispatchError, ErrorType, RejectedError
from dispatch.functions import MODULE_PROVIDERS, Providers
from dispatch.permissions import Authorizer, Grants, GrantsFunction
from dispatch.policy import DEFAULT_POLICY, PolicyLike
from dispatch.resilience.breaker import CircuitBreaker
from dispatch.resilience.instances import InstanceView
from dispatch.results import CallResult, ReadResultTool, ResultFormatter, ResultStore, ToolAnswer
from dispatch.routing.instance import Instances
from dispatch.search import DEFAULT_LIMIT, ToolSearch
from dispatch.telemetry.events import CatalogChanged, Event, Events, EventStream, Listeners
from dispatch.telemetry.observers import DEFAULT_TELEMETRY, EXPECTED_TELEMETRY, Telemetry
from dispatch.transports import BROKER_VARIABLE, PUBLISH_WINDOW, Security, Transport, open_transport
from dispatch.trustgraph.config import ConfigBroker

if TYPE_CHECKING:
    from dispatch.admin.app import DispatcherAdmin

# A tool for agent frameworks: name, description, schema and coroutine.


NO_ARGUMENTS: Mapping[str, Any] = {}


class BoundTool:
    """A tool of a dispatcher, bound to its user and a range of versions, from :meth:`Dispatcher.tool`.

    Attributes:
        name: name for the model.
        description: text by which the model chooses the tool.
        user: the user on whose behalf the tool is called.
        version: range of versions that are called; None: see :meth:`Dispatcher.call`.
        descriptor: of the tool.
    """

    def __init__(
        self, dispatcher: Dispatcher, descriptor: ToolDescriptor, user: str = "", version: str | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self.descriptor = descriptor
        self.name = descriptor.name
        self.description = descriptor.description
        self.user = user
        self.version = version

    async def invoke(self, /, **arguments: Any) -> str:
        """Call the tool with named arguments and return its result.

        Raises:
            DispatchError: as :meth:`Dispatcher.call`.
        """
        return await self._dispatcher.call(self.name, arguments, user=self.user, version=self.version)

    async def execute(
        self,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        by_model: bool = False,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        context: Any = None,
    ) -> CallResult:
        """Call the tool and return every outcome as a value; see :meth:`Dispatcher.execute`."""
        return await self._dispatcher.execute(
            self.name,
            arguments,
            user=self.user,
            timeout=timeout,
            idempotency_key=idempotency_key,
            version=self.version,
            by_model=by_model,
            context=context,
        )

    async def answer(self, arguments: Mapping[str, Any], *, user: str | None = None, context: Any = None) -> ToolAnswer:
        """Call the tool with arguments that a model wrote, and return what the model reads. A failed call is an answer with
        the error text; only cancellation is raised.

        Args:
            user: on whose behalf; None: the user that it is bound to.
            context: any value, for functions of this process (:class:`dispatch.CallContext`).
        """
        tool = self if user is None else BoundTool(self._dispatcher, self.descriptor, user, self.version)
        result = await tool.execute(arguments, by_model=True, context=context)
        return ToolAnswer.of_content(tool.format_result(result), result.error)

    def format_result(self, result: CallResult) -> dict[str, Any]:
        """Return a result of this tool as content for a model (:meth:`dispatch.results.ResultFormatter.format`): validated
        against the tool's ``output-schema``, and cut as the policy's ``max-result-chars`` says. The whole text of a cut
        result is in :attr:`Dispatcher.results`."""
        return self._dispatcher._format_result(self, result)

    @property
    def result_reader(self) -> ReadResultTool:
        """The tool ``read_result``, by which a model reads the rest of the results of this user."""
        return self._dispatcher.results.tool(self.user)

    def stream(self, /, **arguments: Any) -> AsyncGenerator[str, None]:
        """Call the tool and yield the chunks of its result as they arrive."""
        return self._dispatcher.stream(self.name, arguments, user=self.user, version=self.version)

    @property
    def read_only(self) -> bool:
        """The tool is declared to change nothing."""
        return self.descriptor.read_only

    @property
    def destructive(self) -> bool | None:
        """The tool is declared to destroy something (true) or not (false); None: not declared."""
        return self.descriptor.destructive

    @property
    def idempotent(self) -> bool:
        """The tool is declared to have no further effect when it is called again."""
        return self.descriptor.idempotent

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments as a JSON Schema object, as model APIs expect them: a copy of the descriptor's ``input-schema``, or
        a schema of its ``arguments``."""
        schema: dict[str, Any] = thaw(self.descriptor.parameters)
        return schema

    def __repr__(self) -> str:
        return f"BoundTool({self.name!r})"


class Found(NamedTuple):
    """A tool that :meth:`Dispatcher.find` has found.

    Attributes:
        name: of the tool.
        score: in [0, 1], comparable within one search; 0: the tool does not match.
        why: what matches, and why the search was only lexical or found nothing.
        tool: bound to the user of the search.
    """

    name: str
    score: float
    why: str
    tool: BoundTool


# The dispatcher: calls tools by name. The path of a call is
#
# 1 resolve · 2 authorize · 3 deadline · 4 attempts · 5 result · 6 observe
#
# Step 1 is :meth:`Dispatcher.call`; the others are :meth:`dispatch.calls.call.Calls.perform`.


T = TypeVar("T")

NOT_STARTED = "the dispatcher is not started; use 'async with dispatch.connect(...)' or await start()"


class Dispatcher(AsyncContext):
    """Calls tools by name over one connection to a broker. One per process and event loop is enough for any number of
    callers. Use it with ``async with``, or ``await start()`` and ``close()``. ``dispatch.connect`` is another name of it.

    Args:
        broker: ``pulsar://HOST:PORT``, ``pulsar+ssl://HOST:PORT``, or ``memory://[NAME]`` (embedded, in process); or a
            transport that is not started yet, which is closed with the dispatcher. Default: the value of
            ``DISPATCH_BROKER``, else ``pulsar://localhost:6650``.
        catalog: a :class:`Catalog`, a folder with ``tool-service/ID.json`` and ``tool/NAME.json``, a source
            (:class:`Folder`, :class:`Announced`, :class:`TrustGraphConfig`, :class:`Functions`, :class:`ToolPackage`), or a
            list of them: where two have a tool of the same name, that of the first one is used.
        policy: defaults under the policies of services and tools: a :class:`Policy`, or an object of its keys as in a
            descriptor, over the defaults: ``{"timeout": 10}``.
        grants: permissions of users: :class:`Grants`, or a callable ``user -> list of grants``, also a coroutine function,
            asked at most once a minute for each user, for at most 1 s. None: tools with permissions are refused.
        approvals: file of the approved definitions of sources with ``on_change="hold"``.
        security: token and TLS settings; None: from the environment (``DISPATCH_TOKEN`` …).
        publish_window: publishes in flight to the broker at once, over the whole connection; further ones are queued.
        client_id: the dispatcher's id, part of the names of its reply topics; default: 12 random hex digits.
        fleet: name of the dispatchers that share limits with ``"scope": "fleet"`` and quotas: 1 to 64 lower-case letters,
            digits and hyphens. None: each limit holds for this dispatcher alone.
        telemetry: settings of metrics, traces and logs.
        admin: address of the admin endpoint, ``HOST:PORT``, or its settings; None: there is none.
        randomness: for backoff, open durations and balancing; tests set it.

    Raises:
        CatalogError: the folder has invalid descriptors; the message lists every problem with file, key and fix.
        PolicyError: ``policy`` is invalid together with the policy of a service or a tool.
        TransportError: ``broker`` is no address, or its scheme is unknown.
        ValueError: ``fleet`` is no name of a fleet.
        TypeError: ``security`` or ``publish_window`` beside a transport, which has its own.
    """

    _ENTERED = "dispatch.connect(…) as dispatcher"

    @explain_keywords
    def __init__(
        self,
        broker: str | Transport = BROKER_VARIABLE,
        catalog: CatalogLike | None = None,
        *,
        policy: PolicyLike = DEFAULT_POLICY,
        grants: Grants | GrantsFunction | None = None,
        approvals: str | Path | None = None,
        security: Security | None = None,
        publish_window: int = PUBLISH_WINDOW,
        client_id: str | None = None,
        fleet: str | None = None,
        telemetry: Telemetry = DEFAULT_TELEMETRY,
        admin: Admin | str | None = None,
        randomness: Randomness = random.random,
    ) -> None:
        if isinstance(broker, str | type) or not hasattr(broker, "subscribe"):
            broker = open_transport(
                broker,  # type: ignore[arg-type] # refuses all but addresses
                security=security,
                publish_window=publish_window,
            )
        elif security is not None or publish_window != PUBLISH_WINDOW:
            raise TypeError("security and publish_window belong to an address; give them to the transport itself.")
        check_instance("telemetry", telemetry, Telemetry, EXPECTED_TELEMETRY)
        check_instance(
            "admin", admin, (Admin, str, NoneType), "an address such as '127.0.0.1:9464', or dispatch.Admin(…)"
        )
        check_instance(
            "approvals", approvals, (str, PathLike, NoneType), "the path of a file, such as 'approvals.json'"
        )
        self.telemetry = telemetry
        self._events = Events(content=telemetry.content)
        self.client_id = client_id or os.urandom(6).hex()
        if fleet is not None:
            fleet_topic(fleet)
        self._fleet = fleet
        self._transport = broker
        self._randomness = randomness
        self._live = LiveCatalog(catalog, policy, approvals, randomness)
        self._authorizer = Authorizer(grants)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._runtime: Runtime | None = None
        self._is_closed = False
        self._calls: Calls | None = None
        self._broker: ConfigBroker | None = None
        self._providers = Providers(MODULE_PROVIDERS)
        self._on_call: Listeners[FinishedCall] = Listeners("a listener of calls", content=telemetry.content)
        self._results = ResultStore()
        self._result_formatter = ResultFormatter(self._results)
        self._search: ToolSearch | None = None
        self._admin_settings = read_admin(admin)
        self._admin: DispatcherAdmin | None = None

    # -- life cycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to the broker.

        Raises:
            RuntimeError: started already, or closed.
            TransportError: no broker answers; the message names the fix.
        """
        await yield_to_others()
        if self._runtime is not None:
            state = "was closed; connect a new one" if self._is_closed else "is started already"
            raise RuntimeError(f"this dispatcher {state}")
        try:
            await self._transport.start()
        except BaseException:
            await self._transport.close()
            raise
        # perf: prometheus-client and OpenTelemetry's API would add a quarter to the time of `import dispatch`
        from dispatch.telemetry.reporting import TelemetryDispatcherObserver

        settings, recorder = self._admin_settings, None
        if settings is not None:
            from dispatch.admin.recent import RecentCalls

            recorder = RecentCalls(loop_clock(), content=self.telemetry.content)
        observer = TelemetryDispatcherObserver(self.telemetry, self._events, self.client_id, loop_clock(), recorder)
        fleet = None if self._fleet is None else FleetLink(self._transport, self._fleet, self.client_id)
        runtime = Runtime(
            self._transport,
            self.client_id,
            self._randomness,
            self._live.resolver,
            observer,
            self._live.registry.sources,
            content=self.telemetry.content,
            fleet=fleet,
        )
        self._transport.on_connection_change(partial(observer.on_connection_change, self._transport.url))
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        _started.add(self)
        self._runtime = runtime
        self._broker = ConfigBroker(self._transport, self.client_id)
        try:
            if fleet is not None:
                await fleet.start()
            if settings is not None and recorder is not None:
                from dispatch.admin.app import DispatcherAdmin  # perf: imports starlette

                self._admin = DispatcherAdmin(
                    settings,
                    self._transport,
                    runtime,
                    self._live,
                    recorder,
                    self._events,
                    self.telemetry,
                    self.client_id,
                )
            await self._live.start(runtime, self._connect_source)
        except BaseException:
            await self._close(0.0)
            raise
        self._authorizer.start()
        self._calls = Calls(
            runtime, self._authorizer, lambda *of: find_alternatives(self._live.resolver.catalog, *of), self._on_call
        )
        if self._admin is not None:
            self._admin.views.is_started = True

    async def close(self, *, drain: float = 0.0) -> None:
        """End all calls with a typed error and disconnect. Idempotent.

        A timeout around it, or its cancellation, ends the drain; the connection is closed before either is raised. It works
        on any event loop, also when the loop of the dispatcher has ended; nothing is drained then.

        Args:
            drain: seconds that calls in flight may still take. Calls in a queue and new calls are rejected at once; nothing
                is retried.
        """
        check_instance("drain", drain, (int, float), "a number of seconds")
        own_loop = self._loop
        if own_loop is None or own_loop is asyncio.get_running_loop():
            await self._close(drain)
            return
        if await run_on_loop(own_loop, lambda: self._close(drain)):  # in another thread
            return
        self._is_closed = True
        self._authorizer.abandon()
        if self._admin is not None:
            self._admin.abandon()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._transport.close)
            self._live.registry.abandon()
            if self._runtime is not None:
                await self._runtime.abandon()
        with contextlib.suppress(RuntimeError):  # an event stream may wait on a closed event loop
            self._events.close()

    async def _close(self, drain: float) -> None:
        self._is_closed = True
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._events.close)
            stack.push_async_callback(self._transport.close)
            if self._admin is not None:
                stack.push_async_callback(self._admin.close)
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

    def __del__(self) -> None:
        # asyncio reports tasks that end with it, and not why they do.
        if self.__dict__.get("_runtime") is not None and not self._is_closed:
            logging.getLogger("dispatch.dispatcher").warning(
                "a dispatcher was dropped without close(), and its tasks with it. Fix: use 'async with "
                "dispatch.connect(…)', or await its close()."
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

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
        # perf: asking for the running loop is a system call
        is_own = get_ident() == self._thread and self._loop is not None and self._loop.is_running()
        if not is_own:
            self._check_loop()
        return self._calls

    def _check_loop(self) -> None:
        """Check that a started dispatcher is used on its own event loop.

        Raises:
            RuntimeError: it is not.
        """
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(OTHER_LOOP)

    def _connect_source(self, source: Source, is_in_force: bool) -> None:
        """Give a source what it needs of the dispatcher, before it is read. Its instances replace those of a former source
        when its items come into force: until then, and if a reload fails, the former ones execute calls."""
        set_shares = self._running.channels.set_shares
        for name, given in (("connect", self._broker), ("use_providers", self._providers), ("use_shares", set_shares)):
            accept = getattr(source, name, None)
            if accept is not None:
                accept(given)
        instances: Instances[LocalInstance] | None = getattr(source, "instances", None)
        if instances is not None and is_in_force:
            self._running.set_local(source.request_queue, instances)  # type: ignore[attr-defined] # it has both

    # -- the catalogue ------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The services and tools in force."""
        return self._live.resolver.catalog

    @property
    def registry(self) -> Registry:
        """The sources of the catalogue: add, remove and refresh them, and put tools of your own."""
        return self._live.registry

    async def reload(self, catalog: CatalogLike | None = None, *, policy: PolicyLike | None = None) -> None:
        """Put another catalogue, or another policy, in force.

        Calls in flight go on as they began; breakers keep their state, and measurements of tools and instances stay. The
        guards, metric series and topics of a removed tool are retained for 60 s, and until its last call has ended.
        Items that were put stay.

        Args:
            catalog: as in :func:`dispatch.connect`; None: the sources in force.
            policy: None: the one in force.

        Raises:
            CatalogError, PolicyError: as in :func:`dispatch.connect`; the former catalogue and policy stay in force.
            RuntimeError: the dispatcher was started on another event loop.
        """
        await self._live.reload(catalog, policy)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether the broker is in reach."""
        return self._transport.connected

    @property
    def admin_url(self) -> str | None:
        """URL of the admin endpoint and its console; None: there is none."""
        return None if self._admin is None else self._admin.url

    @property
    def pending_requests(self) -> int:
        """Requests in flight. Raises RuntimeError before the start."""
        return self._running.pending

    def reply_counts(self) -> dict[str, int]:
        """Return how many replies arrived, by disposition: matched, late, duplicate, unknown, malformed."""
        return {str(disposition): count for disposition, count in self._running.reply_counts().items()}

    def tool(self, name: str, *, user: str = "", version: str | None = None) -> BoundTool:
        """Return one tool, bound to a user, for agent frameworks: ``await tool.invoke(topic="cats")``.

        Args:
            version: range of versions that it describes and calls; see :meth:`call`.

        Raises:
            RejectedError: there is no such tool or version, and the message has similar names or the versions; or ``user``
                may not call it. While the answer of a callable in ``grants`` is not cached: ``permissions-unavailable``; use
                :meth:`tools`.
            InvalidArgumentsError: ``version`` is no range.
        """
        now = 0.0 if self._runtime is None else self._runtime.now()
        try:
            resolved = resolve_visible(self._live.resolver, name, version, user, self._authorizer, now)
        except RejectedError as error:
            raise self._explain_missing(name, error) from None
        assert resolved.descriptor is not None  # a tool of the catalogue
        return BoundTool(self, resolved.descriptor, user, version)

    async def tools(
        self, *, user: str = "", find: str | None = None, **filters: Unpack[ListConditions]
    ) -> tuple[BoundTool, ...]:
        """Return the tools that ``user`` may call, bound to the user, in the order of the catalogue.

        Args:
            find: a query: only the five tools that fit it best, as :meth:`find` orders them.
            filters: conditions, as of :meth:`dispatch.Catalog.list`, such as ``category="fun"``.

        Raises:
            RejectedError: ``permissions-unavailable``: the permissions of ``user`` could not be resolved.
            RuntimeError: the dispatcher was started on another event loop.
        """
        await yield_to_others()
        self._check_loop()
        self._live.registry.try_failed()
        catalog, version = self.catalog, filters.get("version")
        found = catalog.list(**filters) if filters else catalog.tools.values()
        if find is not None:
            by_name = {tool.name: tool for tool in found} if filters else catalog.tools
            ranked = await self.search.rank(
                find, by_name, select_visible=partial(list_visible, catalog, self._authorizer, user)
            )
            visible = tuple(each.descriptor for each in ranked)
        else:
            visible = await list_visible(catalog, self._authorizer, user, found)
        return tuple(BoundTool(self, each, user, None if version is None else each.version) for each in visible)

    @property
    def results(self) -> ResultStore:
        """Whole results that were cut for a model, by their handles, for an hour."""
        return self._results

    def format_result(self, result: CallResult, *, user: str = "") -> dict[str, Any]:
        """Return a result of ``user`` as content for a model, also of a tool that is unknown or was removed; see
        :meth:`BoundTool.format_result`."""
        check_instance("result", result, CallResult, "what Dispatcher.execute returns")
        descriptor = self.catalog.tools.get(result.tool)
        if descriptor is None:
            return self._result_formatter.format(result, user=user)
        return BoundTool(self, descriptor, user).format_result(result)

    def _format_result(self, tool: BoundTool, result: CallResult) -> dict[str, Any]:
        try:
            policy = self._live.resolver.tool(tool.name, tool.version).policy
        except DispatchError:  # removed from the catalogue after the call
            policy = self._live.resolver.policy
        return self._result_formatter.format(
            result, tool.descriptor.output_schema, max_chars=policy.max_result_chars, user=tool.user
        )

    @property
    def search(self) -> ToolSearch:
        """The search of :meth:`find`: ``use_embedder`` and ``refresh``. Its first use starts it."""
        if self._search is None:
            search = self._search = ToolSearch(lambda: self._live.resolver.catalog)
            self._on_call.subscribe(search.record_call)
            self._events.subscribe(lambda event: search.request_update() if isinstance(event, CatalogChanged) else None)
        return self._search

    async def find(
        self,
        query: str,
        limit: int = DEFAULT_LIMIT,
        *,
        user: str = "",
        context: object = None,
        category: str | None = None,
        tags_any: Iterable[str] | None = None,
    ) -> list[Found]:
        """Return the tools that fit a query best, among those that ``user`` may call. If none matches: the most used ones,
        with score 0. Empty only if ``user`` may call no such tool.

        Args:
            query: what a tool should do, in words.
            limit: of the result, 1 or more.
            context: a text, or an action with ``name`` and ``description``: decides between tools that fit alike.
            category, tags_any: conditions, as of :meth:`dispatch.Catalog.list`.

        Raises:
            RejectedError: ``permissions-unavailable``: the permissions of ``user`` could not be resolved.
            TypeError, ValueError: ``query`` is no text, or ``limit`` below 1.
            RuntimeError: the dispatcher was started on another event loop.
        """
        self._check_loop()
        self._live.registry.try_failed()
        catalog = self.catalog
        tools = catalog.tools
        if category is not None or tags_any:
            tools = {tool.name: tool for tool in catalog.list(category=category, tags_any=tags_any or ())}
        select_visible = partial(list_visible, catalog, self._authorizer, user)
        found = await self.search.rank(query, tools, limit, context=context, select_visible=select_visible)
        return [Found(tool.name, score, why, BoundTool(self, tool, user)) for tool, score, why in found]

    def provide(self, type: type[T], provider: T | Callable[[], T]) -> None:
        """Provide parameters with the annotation ``type`` to functions that are tools; models see no such parameter.

        Args:
            type: the annotation, also within ``X | None`` and ``Annotated``.
            provider: an instance; or a function without parameters that returns one, called for each call of a tool.

        Raises:
            TypeError: ``type`` is no class, or ``provider`` neither its instance nor a function.
        """
        self._providers.add(type, provider)

    def mcp_server(self, **options: Any) -> Any:
        """Return a :class:`dispatch.mcp.McpServer` of this dispatcher (extra ``mcp``): ``await server.serve_stdio()``, or
        ``server.app()`` for an ASGI application.

        Args:
            options: see :class:`dispatch.mcp.McpServer`, whose type is known to type checkers.
        """
        # By name: that package is above this module.
        return importlib.import_module("dispatch.mcp").McpServer(self, **options)

    def _resolve_service(self, service: str) -> ResolvedTool:
        """Resolve a service for calls without a tool, as TrustGraph's client makes them."""
        try:
            return self._live.resolver.service(service)
        except RejectedError as error:
            raise self._explain_missing(service, error) from None

    # -- telemetry ----------------------------------------------------------------------------------------------

    def metrics_app(self) -> Any:
        """Return an ASGI application that serves the metrics, as OpenMetrics with exemplars where that is accepted."""
        from dispatch.telemetry.exposition import metrics_app

        return metrics_app(self.telemetry)

    def on_event(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``listener`` at every change of a circuit, an instance or the catalogue. It must not block; an exception that
        it raises is logged. Returns a function that removes the listener."""
        return self._events.subscribe(listener)

    def events(self) -> EventStream:
        """Return a stream of the same changes, until the dispatcher is closed: ``async for event in dispatcher.events()``.
        A reader that is more than 1,000 events behind misses the oldest; ``missed`` counts them."""
        return self._events.open_stream()

    def on_call(self, listener: Callable[[FinishedCall], object]) -> Callable[[], None]:
        """Call ``listener`` at the end of every call of a tool, unless it was cancelled. It must not block; an exception
        that it raises is logged. Returns a function that removes the listener."""
        return self._on_call.subscribe(listener)

    # -- guards -------------------------------------------------------------------------------------------------

    def breaker(self, tool: str, *, version: str | None = None) -> CircuitBreaker:
        """Return the circuit breaker of a tool: ``state``, ``force_open()``, ``disable()``, ``metrics_only()``, ``reset()``.

        Args:
            version: range of versions, as of :meth:`call`; None: the default version. Each version has a breaker.

        Raises:
            RejectedError: there is no such tool or version.
            ValueError: the tool's policy has no breaker.
            RuntimeError: not started.
        """
        breaker = self._running.guards_of(self._live.resolver.tool(tool, version)).breaker
        if breaker is None:
            raise ValueError(f"the policy of '{tool}' has no breaker: remove \"breaker\": null from it")
        return breaker

    def instances(self, service: str) -> tuple[InstanceView, ...]:
        """Return the state of each instance of a service, as calls have shown it; empty before the first call.

        Raises:
            RejectedError: there is no such service.
            RuntimeError: not started.
        """
        self._live.resolver.service(service)
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
        version: str | None = None,
    ) -> str:
        """Call a tool and return its reply; the chunks of a stream are joined.

        Args:
            tool: its name in the catalogue.
            arguments: named values that JSON can represent.
            user: on whose behalf the tool is called.
            timeout: seconds for the whole call; None: the tool's policy (30 s by default).
            idempotency_key: the caller's name for this piece of work. An instance of dispatch's service base executes it
                once, so that the call may be retried there, whatever the tool is declared to be.
            priority: class in the bulkhead's queue, one of its ``priorities``; None: the most urgent one. Another value
                raises InvalidArgumentsError (``unknown-priority``).
            version: range of the tool's versions, with node-semver's semantics (``^1.4``): the default version if that is in
                it, otherwise the highest. None: the default version, or the one that the tool's ``rollout`` assigns.

        Raises:
            DispatchError: one class for each way a call can fail: ToolError, InvalidArgumentsError, ThrottledError,
                CallTimeoutError, TransportError, RejectedError. The message says what to do next.
            RuntimeError: not started, or started on another event loop.
        """
        # perf: not by way of execute(), which would cost every call one more coroutine
        started: float | None = None
        resolved = self._live.resolver.fixed.get(tool) if version is None and isinstance(tool, str) else None
        if resolved is None:
            started = self._running.now()
            resolved = await self._resolve(tool, version, user, idempotency_key, timeout)
        options = CallOptions(user, timeout, None, idempotency_key, priority)
        result = await self._running_calls.perform(resolved, arguments, options, started=started)
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
        version: str | None = None,
        by_model: bool = False,
        context: Any = None,
    ) -> CallResult:
        """Call a tool as :meth:`call` does and return every outcome as a value; only cancellation is raised.

        Args:
            by_model: a model has written the arguments: they are checked, unless the policy's ``check-arguments`` is never.
            context: any value, for functions of this process (:class:`dispatch.CallContext`).
        """
        started = self._running.now()
        resolved = self._live.resolver.fixed.get(tool) if version is None and isinstance(tool, str) else None
        try:
            if resolved is None:
                resolved = await self._resolve(tool, version, user, idempotency_key, timeout)
        except DispatchError as error:
            return CallResult(tool, error.outcome, error=error)
        options = CallOptions(user, timeout, None, idempotency_key, priority, None, by_model, context)
        return await self._running_calls.perform(resolved, arguments, options, started=started)

    async def _resolve(
        self, tool: str, version: str | None, user: str, idempotency_key: str | None, timeout: float | None = None
    ) -> ResolvedTool:
        """Step 1: resolve the tool and its version. A name that the catalogue does not have waits for sources that were
        never read, such as an MCP server that is starting: ``timeout`` seconds at most, or those of the policy.

        Raises:
            DispatchError: there is none. The call is counted.
        """
        _ = self._running_calls
        if isinstance(tool, str) and tool not in self.catalog.tools:
            limit = self._live.resolver.policy.timeout if timeout is None else timeout
            if isinstance(limit, (int, float)) and limit > 0:  # another one is refused later
                await self._live.registry.wait_for_tool(tool, limit)
        runtime, resolver = self._running, self._live.resolver
        caller = user or idempotency_key or ""
        try:
            return resolver.select(tool, version, caller, can_admit=runtime.can_admit, randomness=self._randomness)
        except DispatchError as error:
            runtime.observe_unresolved(tool, self._explain_missing(tool, error), user)
            await yield_to_others()
            permissions = self._authorizer.known_permissions(user, runtime.now())
            raise self._explain_missing(tool, hide_names(resolver.catalog, error, tool, permissions)) from None

    def _explain_missing(self, name: str, error: DispatchError) -> DispatchError:
        """Return ``error``; of an unknown tool that a source has with a mistake, or of an unknown tool or service while a
        source has failed, one that says so. A user of several does not see what concerns others."""
        if error.type not in (ErrorType.UNKNOWN_TOOL, ErrorType.UNKNOWN_SERVICE) or not isinstance(
            error, RejectedError
        ):
            return error
        if error.type == ErrorType.UNKNOWN_TOOL and not self._authorizer.has_grants:
            refused = self._live.registry.find_refused(name)
            if refused is not None:
                return error_from_refused_tool(error, name, refused)
        failed, retry_after = self._live.registry.find_failed()
        if not failed:
            return error
        return error_from_failed_sources(error, name, [] if self._authorizer.has_grants else failed, retry_after)

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
        version: str | None = None,
        by_model: bool = False,
        context: Any = None,
        on_begin: Callable[[bool], object] | None = None,
        on_result: Callable[[CallResult], object] | None = None,
    ) -> AsyncGenerator[str, None]:
        """Call a tool and yield the chunks of its reply as they arrive. Leaving the loop early cancels the call.

        Args:
            timeout: seconds for the whole stream; None: the policy's ``stream_timeout``.
            idle_timeout: seconds that may pass without a chunk; None: the policy's ``stream_idle_timeout``.
            by_model, context: see :meth:`execute`.
            on_begin: for a caller that cannot know whether the tool streams: until the first chunk the limits are those of a
                call (the policy's ``timeout``). Called before it is yielded, with whether it is the whole reply.
            on_result: receives the result at the end, without its text, also of a failed call. An exception that it raises
                is logged.

        Raises:
            DispatchError: as :meth:`call`; the chunks before it were yielded.
        """
        options = CallOptions(user, timeout, idle_timeout, idempotency_key, priority, None, by_model, context)
        started = self._running.now()
        resolved = await self._resolve(tool, version, user, idempotency_key, timeout)
        calls = self._running_calls
        chunks = await calls.stream(resolved, arguments, options, on_result, on_begin=on_begin, started=started)
        async with contextlib.aclosing(chunks):  # closing the outer generator closes the inner one at once
            async for chunk in chunks:
                yield chunk


# Runs a coroutine on the event loop of another thread, which may stop at any time.


LOOP_POLL_S = 0.1
"""Seconds between checks whether the other event loop still runs."""


async def run_on_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Run the coroutine that ``function`` returns on ``loop``. Return False if the loop does not run, or stops meanwhile."""
    if not loop.is_running():
        return False
    result = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(), loop))
    while loop.is_running():
        if (await asyncio.wait([result], timeout=LOOP_POLL_S))[0]:
            if result.cancelled():  # a loop that ends cancels its tasks
                return False
            result.result()
            return True
    result.cancel()
    return False


# A child process has the ids of its parent's threads, and no event loop that runs.


_started: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def _forget_threads() -> None:
    for dispatcher in _started:
        dispatcher._thread = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


connect = Dispatcher
"""``async with dispatch.connect("pulsar://localhost:6650", catalog="tools/") as dispatcher`` says what it does."""

__all__ = ["BoundTool", "Dispatcher", "Found", "connect"]
