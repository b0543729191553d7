"""The runtime of a dispatcher: what it has while it is connected."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from dispatch._internal import Clock, Randomness
from dispatch.calls.attempt import Attempts
from dispatch.calls.fleet import FleetLink
from dispatch.calls.guards import GuardRegistry, ToolGuards
from dispatch.calls.local import LocalInstance, close_local
from dispatch.calls.resolution import ResolvedTool, ToolResolver
from dispatch.catalog.catalog import CatalogChanges
from dispatch.catalog.items import SourceStatus
from dispatch.errors import DispatchError
from dispatch.messaging.plain import Correlator
from dispatch.messaging.request import Disposition, Tally
from dispatch.messaging.sessions import SessionExchange
from dispatch.resilience.aio import SingleFlight
from dispatch.resilience.breaker import State
from dispatch.resilience.fleet import FleetFigures
from dispatch.resilience.instances import InstanceView
from dispatch.results import CallResult
from dispatch.routing.channels import Channels
from dispatch.routing.instance import InFlight, Instances
from dispatch.routing.pool import PoolRegistry
from dispatch.telemetry.events import ExceptionLogger
from dispatch.telemetry.observers import NO_PROPERTIES, OTHER, DispatcherObserver
from dispatch.transports import Transport

_log = logging.getLogger("dispatch.calls")


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
        fleet: of the dispatcher; None: it belongs to none.

    Attributes:
        now: the loop's clock.
        observer, sources: as given.
        guard_registry, pool_registry: guards and instance pools of what was called.
        exchange: the requests in flight of the plain exchange.
        sessions: the requests in flight in sessions.
        channels: topics and discovery.
        attempts: makes the attempts of calls.
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
        fleet: FleetLink | None = None,
    ) -> None:
        self.sources = sources
        self.fleet = fleet
        self._transport = transport
        self._tools = tools
        self.observer = observer
        unmatched = observer.observe_service(OTHER)
        self.exchange = Correlator(strange=None if unmatched is None else Tally(unmatched))
        self.now: Clock = self.exchange.now
        self.sessions = SessionExchange(self.exchange.replies)
        self.channels = Channels(transport, self.exchange, self.sessions, name, observer)
        self.pool_registry = PoolRegistry(self.channels, randomness, tools, observer)
        self.pool_calls_of: Callable[[ResolvedTool], InFlight] = self.pool_registry.calls_of
        self.guard_registry = GuardRegistry(
            self.now, randomness, observer, tools.find_guarded, None if fleet is None else fleet.core
        )
        self.guards_of: Callable[[ResolvedTool], ToolGuards] = self.guard_registry.of_tool
        self._failures = ExceptionLogger(logging.getLogger("dispatch.dispatcher"), self.now, content=content)
        self.attempts = Attempts(self.pool_registry, self.now, self.exchange.new_id, transport)
        self.flights: SingleFlight[CallResult] = SingleFlight()
        self._is_empty_reported = False
        if fleet is not None:
            fleet.circuits = self.guard_registry.circuits
        observer.attach(self)

    def set_local(self, request_queue: str, instances: Instances[LocalInstance]) -> None:
        """Let ``instances`` execute the tools of a service that this process has, in place of those of a former source."""
        for each in instances:
            each.failures = self._failures
        self.channels.set_local(request_queue, instances)

    def can_admit(self, tool: ResolvedTool) -> bool:
        """Return whether a version of a tool can be called: its circuit breaker admits calls, and its service has not lost
        its last instance."""
        breaker, pool = self.guards_of(tool).breaker, self.pool_registry.get(tool)
        if pool is not None and pool.is_deserted:
            return False
        return breaker is None or breaker.can_admit()

    def observe_unresolved(self, name: str, error: DispatchError, user: str) -> None:
        """Observe a call for which no tool, or no version of it, was found."""
        now, catalog = self.now(), self._tools.catalog
        if not catalog.tools and not self._is_empty_reported and not list(self.sources()):
            self._is_empty_reported = True
            _log.warning(
                "No tools are loaded: connect(catalog=…) has none. Give a folder, a Catalog or a source with tools."
            )
        versions = catalog.versions(name) if name in catalog.tools else ()
        known = next((found for each in versions if (found := self._tools.find(name, each.version)) is not None), None)
        if known is None:
            self.observer.on_unknown_tool(name, error, now, user)
            return
        guards, result = self.guards_of(known), CallResult(name, error.outcome, error=error)
        observer = guards.observer.start_call(known, now, user)
        if refusal := error.policy_refusal:
            observer.on_refused(user, refusal)
        observer.on_end(result, NO_PROPERTIES)
        if guards.records is not None:
            guards.records.add(user, now, result, None, observer.trace_id)

    def instances(self, service: str) -> tuple[InstanceView, ...]:
        """Return the state of each instance of all versions of a service, as tools without balancing settings of their own
        see it."""
        return tuple(view for pool in self.pool_registry.of_service(service) for view in pool.instances())

    def renew(self, tools: ToolResolver, changes: CatalogChanges) -> None:
        """Apply another catalogue or policy. The time grows with the changes, not with the catalogue, unless the policy of
        the dispatcher changes.

        Guards, pools, metric series and topics of removed tools are retained (:mod:`dispatch._internal`).

        Args:
            tools: of the catalogue.
            changes: between the catalogue in force and that of ``tools``.
        """
        former, self._tools = self._tools, tools
        owners = [(True, name) for name in changes.tools] + [(False, id) for id in changes.services]
        if tools.policy != former.policy:
            owners = [*{*owners, *self.guard_registry.owners, *self.pool_registry.owners}]
        self.guard_registry.renew(tools.find_guarded, owners)
        self.pool_registry.renew(tools, owners)

    # -- gauges, read by a scrape on any thread -----------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the broker is in reach."""
        return self._transport.connected

    @property
    def broker_url(self) -> str:
        """URL of the broker."""
        return self._transport.url

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

    def circuits(self) -> Iterable[tuple[tuple[str, str], State]]:
        """Return the state of the circuit breaker of each version of each tool, with the tool's label and service."""
        return [
            ((each.label, each.service), each.breaker.state)
            for each in self.guard_registry.all()
            if each.breaker is not None
        ]

    def fleet_figures(self) -> FleetFigures | None:
        """Return what the fleet of the dispatcher is seen to be; None: it belongs to none."""
        return None if self.fleet is None else self.fleet.figures()

    def queued(self) -> Mapping[tuple[str, str], int]:
        """Return how many calls wait for a rate limit or the bulkhead, by the tool's label and service."""
        return self.guard_registry.waiting

    def abandoned_threads(self) -> Mapping[tuple[str, str], int]:
        """Return how many threads still execute a function although its call ended a second ago, by the tool's label and
        service."""
        found: Counter[tuple[str, str]] = Counter()
        for each in self.guard_registry.all():
            if each.bulkhead is not None:
                found[each.label, each.service] += each.bulkhead.guard.occupied
        return found

    def pools(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """Return the instances of each service, by the service's id. Each instance is listed once, in the state
        that the service's own pool has of it; pools of tools with balancing settings of their own may differ."""
        services: dict[str, dict[str, InstanceView]] = {}
        for key, pool in self.pool_registry.all():
            views = services.setdefault(key.service, {})
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
        await self.channels.abandon()

    async def close(self, drain: float) -> None:
        """See :meth:`dispatch.Dispatcher.close`."""
        self.attempts.is_closing = True
        self.guard_registry.close()
        async with contextlib.AsyncExitStack() as stack:  # every callback runs, also when the drain is cancelled
            stack.callback(self.observer.close)  # after the sessions, whose ends are counted
            stack.push_async_callback(self.channels.close)
            stack.push_async_callback(self.pool_registry.close)
            stack.callback(self.exchange.close)
            stack.callback(self.sessions.close)
            stack.push_async_callback(close_local, self.channels.local_instances)
            if self.fleet is not None:
                stack.push_async_callback(self.fleet.close)
            if drain > 0 and self.guard_registry.calls_in_flight:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(drain):
                        await self.guard_registry.wait_idle()
