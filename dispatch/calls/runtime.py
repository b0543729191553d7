"""The runtime of a dispatcher: what it has while it is connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from weakref import WeakValueDictionary

import msgspec

from dispatch._internal.permit import Randomness
from dispatch.balancing.snapshot import InstanceView
from dispatch.calls.attempt import Attempts
from dispatch.calls.guard_registry import GuardKey, GuardRegistry
from dispatch.calls.invokers.instance_invoker import InstanceInvoker
from dispatch.calls.invokers.local_executor import LocalExecutor
from dispatch.calls.invokers.local_invoker import LocalInvoker
from dispatch.calls.invokers.tool_invoker import ToolInvoker
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.calls.resolution.resolver import ToolResolver
from dispatch.calls.tool_guards import ToolGuards
from dispatch.catalog.changes import CatalogChanges
from dispatch.catalog.sources.base import SourceStatus
from dispatch.errors import DispatchError
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.messaging.rpc.exchange_outcome import Disposition, Tally
from dispatch.messaging.rpc.session_exchange import SessionExchange
from dispatch.policy import Policy
from dispatch.resilience.breaker.breaker import State
from dispatch.resilience.single_flight import SingleFlight
from dispatch.result import CallResult
from dispatch.routing.channel_registry import Channels
from dispatch.routing.in_flight import InFlight
from dispatch.routing.pool_registry import PoolRegistry
from dispatch.telemetry.call_observer import NO_PROPERTIES, DispatcherObserver
from dispatch.telemetry.names import OTHER
from dispatch.transports import Transport


class Runtime:
    """Created on the running loop, when the transport is connected.

    Args:
        transport: the connection.
        name: the dispatcher's.
        randomness: see :class:`dispatch.Dispatcher`.
        tools: of the catalogue in force.
        observer: of the dispatcher.
        sources: returns the state of each source of the catalogue.
        content: texts of tools' exceptions may be logged.

    Attributes:
        now: the loop's clock.
        observer, randomness, sources: as given.
        exchange: the requests in flight of the plain exchange.
        sessions: the requests in flight in sessions.
        routes: topics and discovery.
        attempts: makes the attempts of calls.
        executors: of local tools, by the request topics of their services; their sources own them.
        flights: calls that share an exchange.
        guards_of: returns the guards of a version of a tool.
        pool_calls_of: returns the counter of calls in flight over the instance pool of a tool.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        randomness: Randomness,
        tools: ToolResolver,
        observer: DispatcherObserver,
        sources: Callable[[], Iterable[SourceStatus]] = tuple,
        *,
        content: bool = False,
    ) -> None:
        self.sources = sources
        self.randomness = randomness
        self._transport = transport
        self._tools = tools
        self.observer = observer
        unmatched = observer.observe_service(OTHER, OTHER).replies
        self.exchange = Correlator(strange=None if unmatched is None else Tally(unmatched))
        self.now: Callable[[], float] = self.exchange.now
        self.sessions = SessionExchange(self.exchange.replies)
        self.routes = Channels(transport, self.exchange, self.sessions, name, observer)
        self._pools = PoolRegistry(self.routes, randomness, tools, observer)
        self.pool_calls_of: Callable[[ResolvedTool], InFlight] = self._pools.calls_of
        self._guards = GuardRegistry(self.now, randomness, observer, self._find_policy)
        self.guards_of: Callable[[ResolvedTool], ToolGuards] = self._guards.of_tool
        self.executors: WeakValueDictionary[str, LocalExecutor] = WeakValueDictionary()
        instances = InstanceInvoker(transport, self.exchange, self.sessions, self.routes, self._pools)
        self._local = LocalInvoker(self.executors, self.now, self.exchange.new_id, content=content)
        self.attempts = Attempts(ToolInvoker(instances, self._local), self.now)
        self.flights: SingleFlight[CallResult] = SingleFlight()
        observer.attach(self)

    def can_admit(self, tool: ResolvedTool) -> bool:
        """Return whether the circuit breaker of a version of a tool admits calls."""
        breaker = self.guards_of(tool).breaker
        return breaker is None or breaker.can_admit()

    def observe_unresolved(self, name: str, error: DispatchError) -> None:
        """Observe a call for which no tool, or no version of it, was found."""
        now, catalog = self.now(), self._tools.catalog
        versions = catalog.versions(name) if name in catalog.tools else ()
        known = next((found for each in versions if (found := self._tools.find(name, each.version)) is not None), None)
        if known is None:
            self.observer.on_unknown_tool(name, error, now)
            return
        observer = self.guards_of(known).observer.start_call(known, now)
        observer.on_end(CallResult(name, error.outcome, error=error), NO_PROPERTIES)

    def instances(self, service: str) -> tuple[InstanceView, ...]:
        """Return the state of each instance of all versions of a service, as tools without balancing settings of their own
        see it."""
        return tuple(view for pool in self._pools.of_service(service) for view in pool.instances())

    def _find_policy(self, key: GuardKey) -> tuple[Policy, bool] | None:
        is_tool, name, version = key
        tool = self._tools.find_guarded(name, version, is_tool=is_tool)
        return None if tool is None else (tool.policy, tool.repeatable)

    def renew(self, tools: ToolResolver, changes: CatalogChanges) -> None:
        """Apply another catalogue or policy. The time grows with the changes, not with the catalogue, unless the policy of
        the dispatcher changes.

        Guards, pools, metric series and topics of removed tools are retained (:mod:`dispatch._internal.retention`).

        Args:
            tools: of the catalogue.
            changes: between the catalogue in force and that of ``tools``.
        """
        former, self._tools = self._tools, tools
        owners = [(True, name) for name in changes.tools] + [(False, id) for id in changes.services]
        if tools.policy != former.policy:
            owners = [*{*owners, *self._guards.owners, *self._pools.owners}]
        self._guards.renew(self._find_policy, owners)
        self._pools.renew(tools, owners)

    # -- gauges, read by a scrape on any thread -----------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the broker is in reach."""
        return self._transport.connected

    @property
    def pending(self) -> int:
        """Requests in flight."""
        return self.exchange.pending + self.sessions.pending

    def reply_counts(self) -> dict[Disposition, int]:
        """Return how many replies arrived, by disposition."""
        counts = dict(self.exchange.replies)
        for disposition, count in self.sessions.unmatched_replies().items():
            counts[disposition] += count
        return counts

    def circuits(self) -> Iterable[tuple[str, State]]:
        """Return the state of the circuit breaker of each version of each tool, with the tool's label."""
        return [(each.label, each.breaker.state) for each in self._guards.all() if each.breaker is not None]

    def queued(self) -> Mapping[str, int]:
        """Return how many calls wait for a rate limit or the bulkhead, by the tool's label."""
        return self._guards.waiting

    def abandoned_threads(self) -> Mapping[str, int]:
        """Return how many threads still execute a function although its call ended a second ago, by the tool's label."""
        found: dict[str, int] = {}
        for each in self._guards.all():
            if each.bulkhead is not None:
                found[each.label] = found.get(each.label, 0) + each.bulkhead.guard.occupied
        return found

    def pools(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """Return the instances of each service, by the service's name in metrics. Each instance is listed once, in the state
        that the service's own pool has of it; pools of tools with balancing settings of their own may differ."""
        services: dict[str, dict[str, InstanceView]] = {}
        for key, pool in self._pools.all():
            views = services.setdefault(key.meter_label, {})
            for view in pool.glimpse():
                known = views.get(view.id)
                if known is not None:
                    view = msgspec.structs.replace(known, in_flight=known.in_flight + view.in_flight)
                views[view.id] = view
        return [(service, tuple(views.values())) for service, views in services.items()]

    async def abandon(self) -> None:
        """Close what does not need the event loop of the dispatcher, because that loop has ended."""
        self.attempts.is_closing = True
        self.observer.close()
        await self.routes.abandon()

    async def close(self, drain: float) -> None:
        """See :meth:`dispatch.Dispatcher.close`."""
        self.attempts.is_closing = True
        self._guards.close()
        async with contextlib.AsyncExitStack() as stack:  # every callback runs, also when the drain is cancelled
            stack.callback(self.observer.close)  # after the sessions, whose ends are counted
            stack.push_async_callback(self.routes.close)
            stack.push_async_callback(self._pools.close)
            stack.callback(self.exchange.close)
            stack.callback(self.sessions.close)
            stack.push_async_callback(self._local.close)
            if drain > 0 and self._guards.calls_in_flight:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(drain):
                        await self._guards.wait_idle()
