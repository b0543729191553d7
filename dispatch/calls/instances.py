"""Steps d and e of an attempt: the balancer picks an instance, and the exchange sends the request and awaits the reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

import msgspec

from dispatch._internal import Randomness, Rejection
from dispatch.balancing.instances import InstanceView
from dispatch.calls.attempt import Attempt, Attempts, Call
from dispatch.calls.error_messages import (
    error_from_disconnection,
    error_from_key_holder_loss,
    error_from_missing_instance,
    error_from_oversized_request,
    error_from_rejection,
    error_from_requirement,
    error_from_unanswered_request,
    error_from_unserved_topic,
)
from dispatch.calls.guards import GuardKey, GuardRegistry, ToolGuards
from dispatch.calls.local import LocalExecutor, LocalInvoker
from dispatch.calls.resolution import ResolvedTool, ToolResolver
from dispatch.catalog.catalog import CatalogChanges
from dispatch.catalog.sources import SourceStatus
from dispatch.errors import DispatchError, Outcome, TransportError
from dispatch.messaging.plain import Correlator
from dispatch.messaging.request import Answer, Disposition, Lost, Settled, Tally, TimedOut
from dispatch.messaging.sessions import SessionExchange
from dispatch.messaging.wire import Refusal
from dispatch.policy import Policy
from dispatch.protocol.events import Failure
from dispatch.resilience.aio import SingleFlight
from dispatch.resilience.breaker import State
from dispatch.resilience.retry import RetryTarget
from dispatch.result import CallResult
from dispatch.routing.channels import Channels
from dispatch.routing.instance import DISCOVERY_S, GONE_S, Channel, InFlight
from dispatch.routing.pool import InstancePool, PoolRegistry, SelectedInstance
from dispatch.telemetry.observers import NO_PROPERTIES, OTHER, DispatcherObserver
from dispatch.transports import Transport

LEAST_REST = 0.1
"""Share of a call's time that is left to the tool when its call waits for an instance, where it usually takes less."""
MAX_WAITING = 20_000
"""Calls that wait for an instance at once: some kilobytes each."""
MAX_HOPS = 4
"""Instances that are tried in turn while each one declines the request, because it is draining or overloaded."""

_ENDED = frozenset({Failure.SILENT, Failure.RESTARTED, Failure.CLOSED})
"""Why a session ends whose instance has ended, or is about to: another one may take its place."""
_SUCCESS = Outcome.SUCCESS
_KEY_HOLDER = RetryTarget.KEY_HOLDER
_NO_INSTANCE = Rejection("balancer", "no-instance")


class InstanceInvoker:
    """Sends requests to the instances of services (:class:`~dispatch.calls.attempt.Invoker`).

    Args:
        transport: the connection.
        correlator: the requests in flight of the plain exchange.
        channels: topics and discovery.
        pools: the instances of each service.
    """

    def __init__(
        self,
        transport: Transport,
        correlator: Correlator,
        channels: Channels,
        pools: PoolRegistry,
    ) -> None:
        self._transport = transport
        self._correlator = correlator
        self._channels = channels
        self._pools = pools
        self._now = correlator.now
        self._waiting = 0

    def is_ready(self, call: Call) -> bool:
        """Whether the request of a call can be sent now: the broker is in reach, and an instance."""
        pool = self._pools.get(call.tool)
        return pool is not None and self._transport.connected and self._can_send(pool, call)

    def _can_send(self, pool: InstancePool, call: Call) -> bool:
        tool = call.tool
        is_large = len(call.payload) > self._transport.max_message_bytes  # only a session carries it
        return pool.can_send(
            needs_instance=is_large or tool.policy.known_instances_only,
            repeatable=tool.repeatable,
            requires=tool.requires,
        )

    async def await_ready(self, call: Call) -> None:
        """Wait for the broker, briefly, and for an instance of the tool's service: until :meth:`_latest_start`.

        Raises:
            DispatchError: there is none. Nothing was sent.
        """
        tool, deadline = call.tool, call.deadline
        if not self._transport.connected and not await self._transport.await_connection(deadline):
            raise error_from_disconnection(tool.label, self._transport.url)
        pool = self._pools.get(tool) or await self._pools.open(tool, deadline)
        if self._can_send(pool, call):
            return
        for route in pool.routes:
            if not (route.is_known or self._transport.has_subscriber(route.request_queue)):
                raise error_from_unserved_topic(tool.label, route.request_queue)
        if self._waiting >= MAX_WAITING:
            raise error_from_rejection(_NO_INSTANCE, tool.label)
        ends = self._latest_start(call)
        is_over = False
        self._waiting += 1
        try:
            while is_over or not self._can_send(pool, call):
                now = self._now()
                errors = [route.opening_error for route in pool.routes]
                if errors[0] is not None and all(errors):
                    raise TransportError(errors[0].type, errors[0].message, sent=False)
                if now >= ends:
                    if (size := len(call.payload)) > (limit := self._transport.max_message_bytes):
                        raise error_from_oversized_request(tool.label, size, limit)
                    raise self._error_without_instance(tool, pool)
                await self._await_turn(pool.routes, min(ends, now + DISCOVERY_S))
                pool = self._pools.get(tool) or await self._pools.open(tool, deadline)
                # What has waited for instances of dispatch's own does not go to the shared topic.
                is_over = self._now() >= ends and not pool.known and any(each.had_instances for each in pool.routes)
        finally:
            self._waiting -= 1

    def _latest_start(self, call: Call) -> float:
        """Return until when a call waits for an instance: as long as the tool could still be executed afterwards. Where no
        instance has been known for :data:`GONE_S`, only for :data:`DISCOVERY_S`."""
        now, tool = self._now(), call.tool
        usual = call.guards.usual.value(now) or 0.0
        latest = call.deadline - min(max(usual, call.limit * LEAST_REST), call.limit / 2)
        pool = self._pools.get(tool)
        if pool is None or pool.known:
            return latest
        if tool.policy.known_instances_only or any(route.had_instances for route in pool.routes):
            gone = max(route.asked_since for route in pool.routes) + GONE_S
        elif len(call.payload) > self._transport.max_message_bytes:
            gone = now
        else:
            return latest
        return min(latest, max(now + DISCOVERY_S, gone))

    async def _await_turn(self, channels: Sequence[Channel], until: float) -> None:
        """Wait for a change of what can be reached through ``channels``."""
        turns = [(channel, channel.create_turn()) for channel in channels]
        for channel in channels:
            self._channels.discovery.seek(channel)
            self._channels.discovery.watch_missing(channel)
        try:
            await asyncio.wait(
                [turn for _, turn in turns], timeout=until - self._now(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for channel, turn in turns:
                channel.leave(turn)
                turn.cancel()

    def has_untried(self, call: Call) -> bool:
        """Whether the service has an instance that no attempt of the call was sent to."""
        pool = self._pools.get(call.tool)
        if pool is None:
            return False
        requires = call.tool.requires
        names = [view.id for view in pool.instances()] if requires is None else pool.select_versions(requires)
        return any(name not in call.tried for name in names)

    def attribute_failure(self, attempt: Attempt) -> None:
        """See :meth:`Attempt.attribute_failure`."""
        disconnected_since = self._transport.was_disconnected_since(attempt.began)
        attempt.attribute_failure(disconnected=disconnected_since, now=self._now())

    async def invoke(self, attempt: Attempt) -> None:
        """Send the request and await the reply; where an instance declines it, send it to another one.

        Raises:
            DispatchError: no instance may or can have the request, or its topics cannot be opened.
        """
        call = attempt.call
        tool = call.tool
        pool = call.guards.pool = self._pools.get(tool) or await self._pools.open(tool, call.deadline)
        is_large = len(call.payload) > self._transport.max_message_bytes
        attempt.start(self._now())
        hops = 0
        while True:
            hops += 1
            selected = self._select(attempt, pool, is_large)
            request = attempt.create_request(pool.tally)
            (selected.instance or selected.route).send(request)
            if not call.is_stream:
                settled = await request
                attempt.conclude(settled)
            elif await attempt.read_first_chunk(request, self._now):
                return
            else:
                settled = attempt.conclude_stream()
            if type(settled) is TimedOut and selected.instance is None and not selected.route.is_known:
                attempt.fail(
                    error_from_unanswered_request(
                        tool.label,
                        attempt.limit,
                        settled.clock,
                        selected.route.request_queue,
                        repeatable=tool.repeatable,
                    )
                )
            if selected.instance is None and type(settled) is Answer and settled.instance is None:
                selected.route.record_answer(self._now())
            if (
                attempt.outcome is _SUCCESS
                or hops >= MAX_HOPS
                or not self._is_declined(attempt, pool, selected, settled)
            ):
                return
            was_sent = attempt.sent
            attempt.release_instance()
            attempt.clear(self._now())
            if not self._can_send(pool, call):
                if attempt.admission.place is not None:
                    attempt.admission.place.suspend()
                try:
                    await self.await_ready(call)
                except DispatchError:
                    attempt.sent = was_sent
                    attempt.conclude(settled)  # no instance has taken the place of the one that declined
                    return
                pool = call.guards.pool = self._pools.get(tool) or await self._pools.open(tool, call.deadline)
                attempt.clear(self._now())

    # -- d: the instance ----------------------------------------------------------------------------------------

    def _select(self, attempt: Attempt, pool: InstancePool, is_large: bool) -> SelectedInstance:
        """Pick the instance of the next request.

        Raises:
            DispatchError: there is no instance that may, or can, have the request.
        """
        call, at_home = attempt.call, attempt.target is _KEY_HOLDER
        options = call.options
        key = options.idempotency_key
        selected = pool.pick(
            call.guards,
            call.tried,
            key=key if at_home else None,
            user=options.user,
            refused=call.refused_by,
            is_large=is_large,
            requires=call.tool.requires,
        )
        if selected is None:
            raise self._error_without_instance(call.tool, pool)
        attempt.selected = selected
        instance = selected.instance
        if call.key_holder is not None and at_home and instance is not call.key_holder:
            raise error_from_key_holder_loss(call.tool.label)
        if instance is None:
            if is_large:
                raise error_from_oversized_request(
                    call.tool.label, len(call.payload), self._transport.max_message_bytes
                )
            if call.tool.policy.known_instances_only and selected.route.hello is not None:
                raise error_from_missing_instance(call.tool.label, selected.route.request_queue)
            attempt.request_id = self._correlator.new_id()
        else:
            attempt.request_id = instance.next_request_id
        call.tried.append(selected.pick.instance)
        attempt.request = call.observer.on_request(
            selected.topic, selected.route.request_queue, attempt.request_id, attempt.number, attempt.reason
        )
        if instance is None:
            self._channels.discovery.watch_missing(selected.route)
        attempt.sent = True
        call.requests += 1
        if key is not None and at_home and instance is not None:
            attempt.claim_key(pool, instance)
        return selected

    @staticmethod
    def _error_without_instance(tool: ResolvedTool, pool: InstancePool) -> DispatchError:
        requires = tool.requires
        if not pool.known and pool.routes[0].hello is not None:
            return error_from_missing_instance(tool.label, pool.routes[0].request_queue)
        if requires is None or pool.select_versions(requires):
            return error_from_rejection(_NO_INSTANCE, tool.label)
        return error_from_requirement(tool.label, tool.service_id, requires.text, pool.versions, by="balancer")

    def _is_declined(self, attempt: Attempt, pool: InstancePool, selected: SelectedInstance, settled: Settled) -> bool:
        """Whether the instance surely did not execute the request, because it is draining, overloaded or gone, so that
        another one may; or an instance was found for a repeatable request that was sent to the shared topic. After an
        instance that has ended the call waits for one, unless it is a hedge."""
        if selected.instance is None:
            return type(settled) is Lost and not settled.sent
        if type(settled) is Answer and settled.refused == Refusal.OVERLOADED:
            return pool.has_other(selected.instance.name)
        if type(settled) is Answer and settled.refused == Refusal.DRAINING:
            self._channels.discovery.retire(selected.instance)
            has_ended = True
        elif not isinstance(settled, Lost | TransportError) or settled.sent:
            return False
        else:
            has_ended = isinstance(settled, Lost) and settled.reason in _ENDED
        return len(selected.route.instances) > 0 or (has_ended and attempt.reason != "hedge")


# Chooses what executes an attempt: this process, or an instance of the tool's service.


class ToolInvoker:
    """Invokes local tools in this process, and all others at instances (:class:`~dispatch.calls.attempt.Invoker`).

    Args:
        instances, local: the invokers.
    """

    def __init__(self, instances: InstanceInvoker, local: LocalInvoker) -> None:
        self._instances = instances
        self._local = local

    def is_ready(self, call: Call) -> bool:
        """See :meth:`~dispatch.calls.attempt.Invoker.is_ready`. A local tool needs nothing."""
        return call.tool.is_local or self._instances.is_ready(call)

    async def await_ready(self, call: Call) -> None:
        """See :meth:`~dispatch.calls.attempt.Invoker.await_ready`."""
        await self._instances.await_ready(call)

    def invoke(self, attempt: Attempt) -> Awaitable[None]:
        """See :meth:`~dispatch.calls.attempt.Invoker.invoke`. perf: no coroutine of its own."""
        return (self._local if attempt.call.tool.is_local else self._instances).invoke(attempt)

    def attribute_failure(self, attempt: Attempt) -> None:
        """See :meth:`~dispatch.calls.attempt.Invoker.attribute_failure`."""
        (self._local if attempt.call.tool.is_local else self._instances).attribute_failure(attempt)

    def has_untried(self, call: Call) -> bool:
        """See :meth:`~dispatch.calls.attempt.Invoker.has_untried`."""
        return (self._local if call.tool.is_local else self._instances).has_untried(call)


# The runtime of a dispatcher: what it has while it is connected.


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
        unmatched = observer.observe_service(OTHER, OTHER)
        self.exchange = Correlator(strange=None if unmatched is None else Tally(unmatched))
        self.now: Callable[[], float] = self.exchange.now
        self.sessions = SessionExchange(self.exchange.replies)
        self.routes = Channels(transport, self.exchange, self.sessions, name, observer)
        self._pools = PoolRegistry(self.routes, randomness, tools, observer)
        self.pool_calls_of: Callable[[ResolvedTool], InFlight] = self._pools.calls_of
        self._guards = GuardRegistry(self.now, randomness, observer, self._find_policy)
        self.guards_of: Callable[[ResolvedTool], ToolGuards] = self._guards.of_tool
        self.executors: WeakValueDictionary[str, LocalExecutor] = WeakValueDictionary()
        instances = InstanceInvoker(transport, self.exchange, self.routes, self._pools)
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

        Guards, pools, metric series and topics of removed tools are retained (:mod:`dispatch._internal`).

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
