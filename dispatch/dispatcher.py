"""Dispatcher: the way of a call, from a tool's name to its answer. Read :meth:`Dispatcher.execute` top to bottom.

1 catalog · 2 permission · 3 deadline · 4 attempts · 5 result · 6 telemetry
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dispatch.arguments import invalid, request_payload
from dispatch.attempt import Attempt, Call
from dispatch.balancing.view import InstanceView
from dispatch.catalog import Catalog, CatalogError, load_directory
from dispatch.engine import Engine
from dispatch.exchange import Exchange
from dispatch.guards.base import Randomness
from dispatch.guards.breaker import CircuitBreaker
from dispatch.guards.retrying import Where
from dispatch.hedges import hedged
from dispatch.messages import PayloadTooLarge, check_property
from dispatch.outcome import CallTimeout, DispatchError, Outcome
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, check_seconds
from dispatch.refusals import with_alternatives
from dispatch.result import CallResult, conclude
from dispatch.retries import go_on
from dispatch.targets import Target, Targets
from dispatch.telemetry.events import Event, Events
from dispatch.telemetry.settings import DEFAULT_TELEMETRY, Telemetry
from dispatch.tool import Tool
from dispatch.transports import Security, Transport, open_transport

NO_ARGUMENTS: Mapping[str, Any] = {}
MISTAKES = (TypeError, PayloadTooLarge, PolicyError, UnicodeError)
"""What a caller's own mistakes raise, before anything is sent."""

_SUCCESS = Outcome.SUCCESS


def connect(
    broker: str,
    catalog: Catalog | str | Path | None = None,
    *,
    policy: Policy = DEFAULT_POLICY,
    security: Security | None = None,
    window: int = 64,
    name: str | None = None,
    telemetry: Telemetry = DEFAULT_TELEMETRY,
) -> Dispatcher:
    """A dispatcher on ``broker``; use it with ``async with``, or ``await start()`` and ``close()``.

    Args:
        broker: ``pulsar://HOST:PORT``, ``pulsar+ssl://HOST:PORT``, or ``memory://[NAME]`` (embedded, in process).
        catalog: a :class:`Catalog`, or a folder with ``tool-service/ID.json`` and ``tool/NAME.json``.
        policy: what calls may take where neither service nor tool says more.
        security: token and TLS settings; None: from the environment (``DISPATCH_TOKEN`` …).
        window: unreceipted publishes of the connection; 64 keeps a broker from losing messages in bursts.
        name: the dispatcher's id, seen in the names of its reply topics; default: 12 random hex digits.
        telemetry: what it counts and traces.

    Raises:
        CatalogError: mistakes in the folder's descriptors: every one, with file, key and fix.
        PolicyError: ``policy`` does not go with what a service or a tool sets.
        TransportError: no such kind of address.
    """
    if catalog is None:
        catalog = Catalog.empty()
    elif not isinstance(catalog, Catalog):
        catalog = load_directory(catalog)
    transport = open_transport(broker, security=security, window=window)
    return Dispatcher(transport, catalog, policy=policy, name=name, telemetry=telemetry)


class Dispatcher:
    """Calls tools by name over one connection. One per process and event loop is enough for any number of callers.

    Args:
        transport: a connection not yet started; closed with the dispatcher.
        catalog: services and tools.
        policy: defaults under the services' and tools' own policies.
        name, telemetry: see :func:`connect`.
        randomness: of retries, hedges, open times and balancing; for tests.
    """

    def __init__(
        self,
        transport: Transport,
        catalog: Catalog,
        *,
        policy: Policy = DEFAULT_POLICY,
        name: str | None = None,
        telemetry: Telemetry = DEFAULT_TELEMETRY,
        randomness: Randomness = random.random,
    ) -> None:
        self.telemetry = telemetry
        self._events = Events()
        self.name = name or os.urandom(6).hex()
        self.transport = transport
        self._policy = policy
        self._randomness = randomness
        self._targets = Targets(catalog, policy).check()
        self._engine: Engine | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect.

        Raises:
            TransportError: no broker answers; the message names the fix.
        """
        if self._engine is not None:
            raise RuntimeError("this dispatcher is started already")
        try:
            await self.transport.start()
        except BaseException:
            await self.transport.close()
            raise
        from dispatch.telemetry.tracing import Tracing
        from dispatch.telemetry.watch import Watch  # prometheus-client: a quarter of what importing dispatch would take

        now = asyncio.get_running_loop().time
        watch = Watch(self.telemetry, self._events, now)
        tracing = Tracing(self.telemetry, self.name, now()) if self.telemetry.traces != "off" else None
        self._engine = Engine(self.transport, self.name, self._randomness, self.catalog, watch, tracing)

    async def close(self, *, drain: float = 0.0) -> None:
        """End what waits (its callers get a typed error) and disconnect. Idempotent.

        Args:
            drain: seconds that calls under way may still take. What waits in a line is refused at once, and so is what
                comes; nothing is retried any more.
        """
        if self._engine is not None:
            await self._engine.close(drain)
        await self.transport.close()

    async def __aenter__(self) -> Dispatcher:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the dispatcher is not started; use 'async with dispatch.connect(...)' or await start()")
        return self._engine

    # -- the catalogue ------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The services and tools in force."""
        return self._targets.catalog

    def reload(self, catalog: Catalog | str | Path | None = None, *, policy: Policy | None = None) -> None:
        """Other services and tools, or another policy, from now on. Calls under way go on as they began; breakers keep their
        state, and what was learnt of tools and instances stays.

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
            self._targets = Targets(catalog, policy).check()
        except (CatalogError, PolicyError) as error:
            if self._engine is not None:
                self._engine.watch.reloaded(source, len(self.catalog.tools), str(error))
            raise
        self._policy = policy
        if self._engine is not None:
            self._engine.renew(catalog)
            self._engine.watch.reloaded(source, len(catalog.tools))

    @property
    def exchange(self) -> Exchange:
        """The table of requests that wait, with its counts.

        Raises:
            RuntimeError: not started.
        """
        return self._running.exchange

    def tool(self, name: str, *, user: str = "") -> Tool:
        """A handle on one tool, as agent frameworks want it: ``await tool.invoke(topic="cats")``.

        Raises:
            Rejected: there is no such tool; the message has the near names.
        """
        self._targets.tool(name)
        return Tool(self, self.catalog.tool(name), user)

    def service_target(self, service: str) -> Target:
        """What a call of a service without a tool is made of (for clients).

        Raises:
            Rejected: there is no such service.
        """
        return self._targets.service(service)

    # -- telemetry ----------------------------------------------------------------------------------------------

    def metrics_app(self) -> Any:
        """An ASGI application that serves the metrics at any path; in OpenMetrics, with exemplars, to who asks for that."""
        from dispatch.telemetry.exposition import metrics_app

        return metrics_app(self.telemetry)

    def on_event(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``listener`` with every change from now on: a circuit, an instance, the catalogue. It must not block; what it
        raises goes to the loop's exception handler. Returns a function that takes it away again."""
        return self._events.on(listener)

    def events(self) -> AsyncIterator[Event]:
        """Every change from now on. A reader that is more than 1,000 behind misses the oldest."""
        return self._events.stream()

    # -- guards -------------------------------------------------------------------------------------------------

    def breaker(self, tool: str) -> CircuitBreaker:
        """The circuit breaker of a tool: its ``state``, ``force_open()``, ``disable()``, ``metrics_only()``, ``reset()``.

        Raises:
            Rejected: there is no such tool.
            ValueError: its policy has no breaker.
            RuntimeError: not started.
        """
        breaker = self._running.guards_of(self._targets.tool(tool)).breaker
        if breaker is None:
            raise ValueError(f"the policy of '{tool}' has no breaker: take \"breaker\": null out of it")
        return breaker

    def instances(self, service: str) -> tuple[InstanceView, ...]:
        """How the instances of a service are doing, as its calls have shown; empty before the first one.

        Raises:
            Rejected: there is no such service.
            RuntimeError: not started.
        """
        self._targets.service(service)
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

        Raises:
            DispatchError: one class for each way a call can fail: ToolError, InvalidArguments, Throttled, CallTimeout,
                TransportError, Rejected. Its text says what to do next.
        """
        target = self._target(tool)
        # As execute, without a coroutine in between: this is the way of nearly every call.
        result = await self.perform(
            target,
            target.config_text,
            arguments,
            user=user,
            timeout=timeout,
            idempotency_key=idempotency_key,
            priority=priority,
        )
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
        started = self.exchange.loop.time()
        try:
            target = self._target(tool)  # 1 catalog
        except DispatchError as error:
            return CallResult(tool, error.outcome, error=error)
        return await self.perform(
            target,
            target.config_text,
            arguments,
            user=user,
            timeout=timeout,
            idempotency_key=idempotency_key,
            priority=priority,
            started=started,
        )

    def _target(self, tool: str) -> Target:
        """As :meth:`Targets.tool`; what is in no catalogue is counted, too."""
        try:
            return self._targets.tool(tool)
        except DispatchError as error:
            self._running.unknown(tool, error)
            raise

    async def perform(
        self,
        target: Target,
        config_text: str,
        arguments: Mapping[str, Any],
        *,
        user: str = "",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        priority: str | None = None,
        started: float | None = None,
    ) -> CallResult:
        """Steps 2 to 6 of a call, for whoever has found its target already (:meth:`execute`, the clients)."""
        engine = self._running
        now = engine.now
        if started is None:
            started = now()
        limit = target.policy.timeout if timeout is None else timeout
        guards = engine.guards_of(target)
        trace = engine.begun(target, guards, started)
        try:
            # 2 permission: who may call this tool (its place; nothing is asked yet)
            # 3 deadline: one instant on the loop's clock for everything that follows
            if timeout is not None:
                check_seconds(timeout)
            check_property(idempotency_key, "idempotency_key")
            payload = request_payload(config_text, arguments, user, target.policy, engine.max_message_bytes)
        except MISTAKES as mistake:
            wrong = self._refused(target, invalid(target.label, target.policy, mistake), now() - started)
            return engine.ended(guards, trace, wrong)
        call = Call(
            target,
            guards,
            payload,
            user,
            deadline=started + limit,
            limit=limit,
            key=idempotency_key,
            priority=priority,
            trace=trace,
        )
        try:
            if target.shares and idempotency_key is None:
                return engine.ended(guards, trace, await self._shared(call, started))
            # 4 attempts: the first one inline; retries and hedges, from one budget, only when it goes wrong or takes long
            with engine.under_way:
                made = await self._attempt(call)
        except BaseException:
            engine.left(guards, trace, now() - started, call.requests)
            raise
        # 5 result · 6 telemetry: one duration, one outcome, one span tree
        return engine.ended(guards, trace, self._result(call, made, now() - started), made.settled)

    async def _attempt(self, call: Call) -> Attempt:
        attempts, guards = self._running.attempts, call.guards
        guards.budget.called()
        tried: list[str] = []
        where = Where.ELSEWHERE if call.key is None else Where.HOME
        hedging = guards.hedging
        if hedging is None:
            made = await attempts.call(call, 1, tried, where)
        else:
            made = await hedged(
                lambda second: attempts.call(call, 1, tried, Where.ELSEWHERE if second else where, hedge=second),
                hedging,
                deadline=call.deadline,
                others=lambda: self._running.others(call.target, tried),
                listener=call.hedged,
            )
        retrying = guards.retrying
        if made.outcome is _SUCCESS or retrying is None:
            return made
        again = partial(attempts.call, call)
        keyed = call.key is not None
        return await go_on(made, tried, again, retrying, deadline=call.deadline, keyed=keyed, listener=call.retried)

    async def _shared(self, call: Call, started: float) -> CallResult:
        """As the others that are the same and under way."""
        engine = self._running

        async def fly() -> CallResult:
            with engine.under_way:
                made = await self._attempt(call)
            return self._result(call, made, engine.now() - started)

        while True:
            result = await engine.flights.share((call.target.label, call.payload), fly, call.deadline)
            if result is None:
                late = CallTimeout(
                    f"'{call.target.label}' gave no complete answer within {call.limit:g} s. Report the failure, or use "
                    "another tool.",
                    clock="call",
                    retryable=True,
                )
                return self._refused(call.target, late, engine.now() - started)
            # Another one's time was over, not this one's.
            if result.outcome is not Outcome.TIMEOUT or engine.now() >= call.deadline:
                return result

    def _refused(self, target: Target, error: DispatchError, duration: float) -> CallResult:
        return conclude(None, error, tool=target.label, duration=duration)

    def _result(self, call: Call, made: Attempt, duration: float) -> CallResult:
        target, line, error = call.target, made.line, made.error
        if error is not None:
            error = self._advised(target, error)
        return conclude(
            made.settled,
            error,
            tool=target.label,
            duration=duration,
            request_id=made.id,
            attempts=call.requests,
            transmissions=1 if line is None else line.repair.transmissions,
            asked_for=0.0 if line is None or line.asked_at is None else self._running.now() - line.asked_at,
        )

    def _advised(self, target: Target, error: DispatchError) -> DispatchError:
        """The error, with tools that could do instead where the tool itself is of no use now."""
        if not target.is_tool or error.outcome in (Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS):
            return error
        return with_alternatives(error, self._targets.alternatives(target.label))

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
        target = self._targets.tool(tool)
        chunks = self.perform_stream(
            target,
            target.config_text,
            arguments,
            user=user,
            timeout=timeout,
            idle_timeout=idle_timeout,
            idempotency_key=idempotency_key,
            priority=priority,
        )
        async with contextlib.aclosing(chunks):  # so that closing this one closes the inner one at once
            async for chunk in chunks:
                yield chunk

    async def perform_stream(
        self,
        target: Target,
        config_text: str,
        arguments: Mapping[str, Any],
        *,
        user: str = "",
        timeout: float | None = None,
        idle_timeout: float | None = None,
        idempotency_key: str | None = None,
        priority: str | None = None,
    ) -> AsyncGenerator[str, None]:
        """Steps 2 to 6 of a stream; see :meth:`perform`."""
        engine, policy = self._running, target.policy
        total = policy.stream_timeout if timeout is None else timeout
        idle = policy.stream_idle_timeout if idle_timeout is None else idle_timeout
        started = engine.now()
        guards, attempts = engine.guards_of(target), engine.attempts
        trace = engine.begun(target, guards, started)
        try:
            check_seconds(total)
            check_seconds(idle, "idle-timeout")
            check_property(idempotency_key, "idempotency_key")
            payload = request_payload(config_text, arguments, user, target.policy, engine.max_message_bytes)
        except MISTAKES as mistake:
            error = invalid(target.label, target.policy, mistake)
            engine.ended(guards, trace, self._refused(target, error, engine.now() - started))
            raise error from None
        call = Call(
            target,
            guards,
            payload,
            user,
            deadline=started + total,
            limit=total,
            clock="stream",
            key=idempotency_key,
            priority=priority,
            idle=idle,
            trace=trace,
        )
        keyed = idempotency_key is not None
        try:
            with engine.under_way:
                # As a call, until the first chunk is there. What was given cannot be taken back: then nothing is repeated.
                guards.budget.called()
                tried: list[str] = []
                made = await attempts.stream(call, 1, tried, Where.HOME if keyed else Where.ELSEWHERE)
                if made.outcome is not _SUCCESS and guards.retrying is not None:
                    again = partial(attempts.stream, call)
                    made = await go_on(
                        made,
                        tried,
                        again,
                        guards.retrying,
                        deadline=call.deadline,
                        keyed=keyed,
                        listener=call.retried,
                    )
                try:
                    if made.first is not None:
                        engine.streams(guards, trace, engine.now() - started)
                        yield made.first
                        assert made.replies is not None
                        async for chunk in made.replies:
                            yield chunk
                finally:
                    attempts.end(made, call)
        except BaseException:
            engine.left(guards, trace, engine.now() - started, call.requests)
            raise
        result = engine.ended(guards, trace, self._result(call, made, engine.now() - started), made.settled)
        if result.error is not None:
            raise result.error
