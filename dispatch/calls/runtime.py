"""The runtime of a dispatcher: what it has while it is connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

import msgspec

from dispatch._internal.permit import Randomness
from dispatch.balancing.snapshot import InstanceView
from dispatch.calls.attempt import Attempts
from dispatch.calls.instance_invoker import InstanceInvoker
from dispatch.calls.resolved_tool import ResolvedTool, ToolResolver, meter_label
from dispatch.calls.tool_guards import GuardRegistry, ToolGuards
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.messaging.rpc.exchange_outcome import Tally
from dispatch.policy import Policy
from dispatch.resilience.breaker.breaker import State
from dispatch.resilience.single_flight import SingleFlight
from dispatch.result import CallResult
from dispatch.routing.channel import Channels
from dispatch.routing.in_flight import Generations
from dispatch.routing.pool_registry import PoolRegistry
from dispatch.telemetry.call_observer import DispatcherObserver
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

    Attributes:
        now: the loop's clock.
        observer: as given.
        exchange: the requests in flight.
        routes: topics and discovery.
        attempts: makes the attempts of calls.
        flights: calls that share an exchange.
        generations: calls, streams and retries in flight, by the catalogue with which they began.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        randomness: Randomness,
        tools: ToolResolver,
        observer: DispatcherObserver,
    ) -> None:
        self._transport = transport
        self._catalog = tools.catalog
        self.observer = observer
        unmatched = observer.service(OTHER).replies
        self.exchange = Correlator(
            connected=lambda: transport.connected, strange=None if unmatched is None else Tally(unmatched)
        )
        self.now: Callable[[], float] = self.exchange.now
        self.routes = Channels(transport, self.exchange, name)
        self.generations = Generations(self.exchange.loop, lambda number: self._fleets.close_former(number))
        self._fleets = PoolRegistry(self.routes, randomness, tools, self.generations, observer)
        self._guards = GuardRegistry(self.now, randomness, observer, lambda key: meter_label(key[1], is_tool=key[0]))
        self.attempts = Attempts(InstanceInvoker(transport, self.exchange, self.routes, self._fleets), self.now)
        self.flights: SingleFlight[CallResult] = SingleFlight()
        observer.attach(self)

    @property
    def max_message_bytes(self) -> int:
        """The largest payload that goes as one message."""
        return self._transport.max_message_bytes

    def guards_of(self, target: ResolvedTool) -> ToolGuards:
        """The guards of a target's tool."""
        return self._guards.of((target.is_tool, target.label), target.policy, repeatable=target.repeatable)

    def instances(self, service: str) -> tuple[InstanceView, ...]:
        """How each instance of a service is doing; where tools of it are balanced on their own, as the others see it."""
        fleets = self._fleets.of_service(service)
        return fleets[0].instances() if fleets else ()

    def renew(self, targets: ToolResolver) -> None:
        """Take another catalogue, or policy, over. What is gone from it is closed when the calls under way have ended."""

        def find(key: tuple[bool, str]) -> tuple[Policy, bool] | None:
            target = targets.find(key[1], is_tool=key[0])
            return None if target is None else (target.policy, target.repeatable)

        self._catalog = catalog = targets.catalog
        self._guards.renew(find)
        self._fleets.renew(targets)
        self.generations.begin()
        self.observer.retain(
            (*catalog.tools, *(meter_label(id, is_tool=False) for id in catalog.services)), catalog.services
        )

    # -- what a scrape sees, on whatever thread ------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Is the broker in reach?"""
        return self._transport.connected

    @property
    def pending(self) -> int:
        """Requests that wait for a reply."""
        return self.exchange.pending

    def circuits(self) -> Mapping[str, State]:
        """The state of each tool's circuit breaker, by the tool's label."""
        return {each.label: each.breaker.state for each in self._guards.all() if each.breaker is not None}

    def queued(self) -> Mapping[str, int]:
        """Calls that wait in line, by the tool's label."""
        return {each.label: each.waiting for each in self._guards.all()}

    def fleets(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """Each service's instances, by the service's id. Each instance is there once, in the state in which calls of the
        service see it, although tools with settings of their own may see it in another one."""
        services: dict[str, dict[str, InstanceView]] = {}
        for service, fleet in self._fleets.all():
            views = services.setdefault(service, {})
            for view in fleet.glimpse():
                known = views.get(view.id)
                if known is not None:
                    view = msgspec.structs.replace(known, in_flight=known.in_flight + view.in_flight)
                views[view.id] = view
        return [(service, tuple(views.values())) for service, views in services.items()]

    def tools(self) -> Mapping[str, int]:
        """Tools in the catalogue, by where they come from."""
        return {self._catalog.source: len(self._catalog.tools)}

    async def abandon(self) -> None:
        """Close what does not need the event loop that this was made on, because that has ended."""
        self.attempts.is_closing = True
        self.observer.close()
        await self.routes.abandon()

    async def close(self, drain: float) -> None:
        """See :meth:`dispatch.Dispatcher.close`."""
        self.attempts.is_closing = True
        self._guards.close()
        async with contextlib.AsyncExitStack() as stack:  # runs all of them, also when the drain is cut short
            stack.push_async_callback(self.routes.close)
            stack.push_async_callback(self._fleets.close)
            stack.push_async_callback(self.generations.close)
            stack.callback(self.observer.close)
            stack.callback(self.exchange.close)
            if drain > 0 and self.generations.count:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(drain):
                        await self.generations.nothing()
