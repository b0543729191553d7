"""The engine: what a dispatcher has while it is connected."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from dispatch._internal.permit import Randomness
from dispatch.balancing.snapshot import InstanceView
from dispatch.calls.addressing import Addressing
from dispatch.calls.attempt import Attempts
from dispatch.calls.resolved_tool import ResolvedTool, ToolResolver, meter_label
from dispatch.calls.tool_guards import GuardRegistry, ToolGuards
from dispatch.errors import DispatchError, Outcome
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.messaging.rpc.exchange_outcome import Answer, Settled, Tally
from dispatch.policy import Policy
from dispatch.resilience.breaker.breaker import State
from dispatch.resilience.single_flight import SingleFlight
from dispatch.result import CallResult
from dispatch.routing.channel import Channels
from dispatch.routing.in_flight import Generations
from dispatch.routing.pool_registry import PoolRegistry
from dispatch.telemetry.error_types import error_type
from dispatch.telemetry.logs import CALLS, say_call
from dispatch.telemetry.names import OTHER
from dispatch.transports import Transport

if TYPE_CHECKING:
    from dispatch.telemetry.observer import Watch
    from dispatch.telemetry.tracing.call_spans import Tracing
    from dispatch.telemetry.tracing.interface import CallTrace


NOTHING: Mapping[str, str] = {}
MAX_NAME = 200
"""Characters of an unknown tool's name that are logged."""


class Runtime:
    """Made on the running loop, when the transport is connected.

    Args:
        transport: the connection.
        name: the dispatcher's.
        randomness: see :class:`dispatch.Dispatcher`.
        targets: of the catalogue in force.
        watch: what it tells of itself.
        tracing: its spans; None: there are none.

    Attributes:
        now: the loop's clock.
        exchange, attempts, routes: what calls go through.
        flights: calls that share an exchange.
        generations: calls, streams and retries under way, by the catalogue with which they began.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        randomness: Randomness,
        targets: ToolResolver,
        watch: Watch,
        tracing: Tracing | None,
    ) -> None:
        self._transport = transport
        self._catalog = targets.catalog
        self.watch = watch
        self._tracing = tracing
        strange = watch.service(OTHER)
        self.exchange = Correlator(
            connected=lambda: transport.connected, strange=None if strange is None else Tally(strange.replies)
        )
        self.now: Callable[[], float] = self.exchange.now
        self.routes = Channels(transport, self.exchange, name)
        self.generations = Generations(self.exchange.loop, lambda number: self._fleets.close_former(number))
        self._fleets = PoolRegistry(self.routes, randomness, targets, self.generations, watch)
        self._guards = GuardRegistry(self.now, randomness, watch, lambda key: meter_label(key[1], is_tool=key[0]))
        addressing = Addressing(transport, self.exchange, self.routes)
        self.attempts = Attempts(transport, self.exchange, addressing, self.routes, self._fleets)
        self.flights: SingleFlight[CallResult] = SingleFlight()
        watch.observe(self)

    @property
    def max_message_bytes(self) -> int:
        """The largest payload that goes as one message."""
        return self._transport.max_message_bytes

    def guards_of(self, target: ResolvedTool) -> ToolGuards:
        """The guards of a target's tool."""
        return self._guards.of((target.is_tool, target.label), target.policy, repeatable=target.repeatable)

    def unknown(self, tool: str, error: DispatchError) -> None:
        """Somebody called a tool that there is not."""
        meter = self.watch.other
        if meter is not None:
            meter.in_flight += 1
            meter.finished(error.outcome, 0.0)
        if self._tracing is not None:
            self._tracing.unknown(tool, error, self.now())
        if CALLS.isEnabledFor(logging.DEBUG):
            # As in a Python literal, and bounded: a model may have invented it.
            name = tool[:MAX_NAME].encode("unicode_escape").decode()
            say_call(name, str(error.outcome), 0.0, call_id="", error_type=error_type(error), trace_id="")

    def begun(self, target: ResolvedTool, guards: ToolGuards, started: float) -> CallTrace | None:
        """A call begins: count it; its span, if somebody listens."""
        if guards.meter is not None:
            guards.meter.in_flight += 1
        tracing = self._tracing
        return None if tracing is None else tracing.call(target, started)

    def streams(self, guards: ToolGuards, trace: CallTrace | None, seconds: float) -> None:
        """The first chunk of a stream is there."""
        if guards.meter is not None:
            guards.meter.first_chunk.observe(seconds, None if trace is None else trace.exemplar)
        if trace is not None:
            trace.first_chunk(seconds)

    def ended(
        self, guards: ToolGuards, trace: CallTrace | None, result: CallResult, settled: Settled | None = None
    ) -> CallResult:
        """6 telemetry: a call has ended with ``result``, and its last exchange as ``settled``."""
        meter = guards.meter
        if meter is not None:
            meter.finished(result.outcome, result.duration, None if trace is None else trace.exemplar)
        if trace is not None and trace.carried is None:
            reply = settled.properties if isinstance(settled, Answer) else NOTHING
            trace.ended(result, reply)
        if CALLS.isEnabledFor(logging.DEBUG):
            _say(guards, trace, result.outcome, result.duration, result)
        return result

    def left(self, guards: ToolGuards, trace: CallTrace | None, seconds: float, attempts: int) -> None:
        """A call was cancelled, or a stream left."""
        if guards.meter is not None:
            guards.meter.finished(Outcome.CANCELLED, seconds)
        if trace is not None:
            trace.left(attempts)
        if CALLS.isEnabledFor(logging.DEBUG):
            _say(guards, trace, Outcome.CANCELLED, seconds)

    def others(self, target: ResolvedTool, tried: list[str]) -> bool:
        """Is there an instance that was not tried?"""
        fleet = self._fleets.get(target)
        return fleet is not None and any(view.id not in tried for view in fleet.instances())

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
        self.watch.keep(
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
        self.attempts.closing = True
        self.watch.close()
        await self.routes.abandon()

    async def close(self, drain: float) -> None:
        """See :meth:`dispatch.Dispatcher.close`."""
        self.attempts.closing = True
        self._guards.close()
        async with contextlib.AsyncExitStack() as stack:  # runs all of them, also when the drain is cut short
            stack.push_async_callback(self.routes.close)
            stack.push_async_callback(self._fleets.close)
            stack.push_async_callback(self.generations.close)
            stack.callback(self.watch.close)
            stack.callback(self.exchange.close)
            if drain > 0 and self.generations.count:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(drain):
                        await self.generations.nothing()


def _say(
    guards: ToolGuards, trace: CallTrace | None, outcome: Outcome, seconds: float, result: CallResult | None = None
) -> None:
    error = None if result is None else result.error
    exemplar = None if trace is None else trace.exemplar
    say_call(
        guards.label,
        str(outcome),
        seconds,
        call_id="" if result is None else result.request_id,
        error_type="" if error is None else error_type(error),
        trace_id="" if exemplar is None else exemplar["trace_id"],
    )
