"""Dispatcher: the way of a call, from a tool's name to its answer. Read :meth:`Dispatcher.execute` top to bottom.

1 catalog · 2 permission · 3 deadline · 4 attempts · 5 result · 6 telemetry
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dispatch.addressing import Addressing
from dispatch.arguments import invalid, request_payload
from dispatch.catalog import Catalog, ServiceDescriptor, load_directory
from dispatch.exchange import Exchange
from dispatch.instances import Line
from dispatch.messages import PayloadTooLarge, Property, Refusal, check_property
from dispatch.outcome import DispatchError, TransportError
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, check_seconds
from dispatch.repair import Patience
from dispatch.result import CallResult, conclude, error_of
from dispatch.routes import Route, Routes
from dispatch.settled import Answer, Lost, Settled, TimedOut
from dispatch.targets import Target, Targets
from dispatch.tool import Tool
from dispatch.transports import Security, Transport, open_transport

T = TypeVar("T")

NO_ARGUMENTS: Mapping[str, Any] = {}
MAX_HOPS = 4
"""Instances that are tried in turn, when each says that it is about to leave and has not run the request."""


def connect(
    broker: str,
    catalog: Catalog | str | Path | None = None,
    *,
    policy: Policy = DEFAULT_POLICY,
    security: Security | None = None,
    window: int = 64,
    name: str | None = None,
) -> Dispatcher:
    """A dispatcher on ``broker``; use it with ``async with``, or ``await start()`` and ``close()``.

    Args:
        broker: ``pulsar://HOST:PORT``, ``pulsar+ssl://HOST:PORT``, or ``memory://[NAME]`` (embedded, in process).
        catalog: a :class:`Catalog`, or a folder with ``tool-service/ID.json`` and ``tool/NAME.json``.
        policy: what calls may take where neither service nor tool says more.
        security: token and TLS settings; None: from the environment (``DISPATCH_TOKEN`` …).
        window: unreceipted publishes of the connection; 64 keeps a broker from losing messages in bursts.
        name: the dispatcher's id, seen in the names of its reply topics; default: 12 random hex digits.

    Raises:
        CatalogError: mistakes in the folder's descriptors: every one, with file, key and fix.
        TransportError: no such kind of address.
    """
    if catalog is None:
        catalog = Catalog.empty()
    elif not isinstance(catalog, Catalog):
        catalog = load_directory(catalog)
    return Dispatcher(open_transport(broker, security=security, window=window), catalog, policy=policy, name=name)


class Dispatcher:
    """Calls tools by name over one connection. One per process and event loop is enough for any number of callers.

    Args:
        transport: a connection not yet started; closed with the dispatcher.
        catalog: services and tools.
        policy: defaults under the services' and tools' own policies.
        name: see :func:`connect`.
    """

    def __init__(
        self,
        transport: Transport,
        catalog: Catalog,
        *,
        policy: Policy = DEFAULT_POLICY,
        name: str | None = None,
    ) -> None:
        self.name = name or os.urandom(6).hex()
        self.transport = transport
        self._targets = Targets(catalog, policy)
        self._patiences: dict[str, Patience] = {}
        self._exchange: Exchange | None = None
        self._routes: Routes | None = None
        self._addressing: Addressing | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect.

        Raises:
            TransportError: no broker answers; the message names the fix.
        """
        if self._exchange is not None:
            raise RuntimeError("this dispatcher is started already")
        try:
            await self.transport.start()
        except BaseException:
            await self.transport.close()
            raise
        self._exchange = Exchange(connected=lambda: self.transport.connected)
        self._routes = Routes(self.transport, self._exchange, self.name)
        self._addressing = Addressing(self.transport, self._exchange, self._routes)

    async def close(self) -> None:
        """End what waits (its callers get a typed error) and disconnect. Idempotent."""
        if self._exchange is not None:
            self._exchange.close()
        if self._routes is not None:
            await self._routes.close()
        await self.transport.close()

    async def __aenter__(self) -> Dispatcher:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # -- the catalogue ------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The services and tools in force."""
        return self._targets.catalog

    @property
    def exchange(self) -> Exchange:
        """The table of requests that wait, with its counts.

        Raises:
            RuntimeError: not started.
        """
        return self._running(self._exchange)

    @staticmethod
    def _running(part: T | None) -> T:
        if part is None:
            raise RuntimeError("the dispatcher is not started; use 'async with dispatch.connect(...)' or await start()")
        return part

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

    # -- calls --------------------------------------------------------------------------------------------------

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        user: str = "",
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Call a tool and return its answer; a stream's chunks are put together.

        Args:
            tool: its name in the catalogue.
            arguments: what the tool takes, as named values that JSON can say.
            user: on whose behalf.
            timeout: seconds for the whole call; None: the tool's policy (30 s by default).
            idempotency_key: your own name for this piece of work; it travels to the service.

        Raises:
            DispatchError: one class for each way a call can fail: ToolError, InvalidArguments, Throttled, CallTimeout,
                TransportError, Rejected. Its text says what to do next.
        """
        target = self._targets.tool(tool)
        # As execute, without a coroutine in between: this is the way of nearly every call.
        result = await self.perform(
            target, target.config_text, arguments, user=user, timeout=timeout, idempotency_key=idempotency_key
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
    ) -> CallResult:
        """As :meth:`call`, but every outcome is a value. Only cancellation is raised."""
        started = self.exchange.loop.time()
        try:
            target = self._targets.tool(tool)  # 1 catalog
        except DispatchError as error:
            return CallResult(tool, error.outcome, error=error)
        return await self.perform(
            target,
            target.config_text,
            arguments,
            user=user,
            timeout=timeout,
            idempotency_key=idempotency_key,
            started=started,
        )

    async def perform(
        self,
        target: Target,
        config_text: str,
        arguments: Mapping[str, Any],
        *,
        user: str = "",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        started: float | None = None,
    ) -> CallResult:
        """Steps 2 to 6 of a call, for whoever has found its target already (:meth:`execute`, the clients)."""
        exchange = self.exchange
        if started is None:
            started = exchange.loop.time()
        id, attempts = "", 0
        line: Line | None = None
        settled: Settled | DispatchError
        limit = target.policy.timeout if timeout is None else timeout
        try:
            # 2 permission: who may call this tool (its place; nothing is asked yet)
            # 3 deadline: one instant on the loop's clock for everything that follows
            if timeout is not None:
                check_seconds(timeout)
            deadline, clock = started + limit, "call"
            check_property(idempotency_key, "idempotency_key")
            payload = request_payload(config_text, arguments, user, target.policy, self.transport.max_message_bytes)
            # 4 attempts: one; retries and hedges have their place around this
            #   a breaker · b limiter · c bulkhead: admit(target) -> Permit | Rejection
            #   d balancer: picks the instance; the route then is that instance's
            route = self._route(target.service) or await self._open(target, deadline)
            if not len(route.instances):
                await self._running(self._addressing).meet(target, route, payload, deadline)
            attempt = target.policy.attempt_timeout
            if attempt is not None and exchange.loop.time() + attempt < deadline:
                deadline, clock, limit = exchange.loop.time() + attempt, "attempt", attempt
            while True:
                id = exchange.new_id()
                attempts += 1
                publisher, properties, line = self._running(self._addressing).request(
                    target, route, id, payload, deadline, idempotency_key, self._patience(target)
                )
                settled = await exchange.request(  # e exchange
                    id,
                    publisher,
                    payload,
                    properties,
                    flow=target.label,
                    deadline=deadline,
                    clock=clock,
                    max_bytes=target.policy.max_result,
                    line=line,
                )
                if line is None or attempts >= MAX_HOPS or not self._gone(route, line, settled):
                    break  # else that instance did not run it, and is no longer asked: another one is
            #   f finish: every permit gets the outcome, exactly once, cancellation included
        except DispatchError as failure:
            settled = failure
        except (TypeError, PayloadTooLarge, PolicyError, UnicodeError) as mistake:
            settled = invalid(target.label, target.policy, mistake)
        # 5 result
        ended = exchange.loop.time()
        result = conclude(
            settled,
            tool=target.label,
            limit=limit,
            repeatable=target.repeatable,
            duration=ended - started,
            request_id=id,
            attempts=attempts,
            transmissions=1 if line is None else line.repair.transmissions,
            asked_for=0.0 if line is None or line.asked_at is None else ended - line.asked_at,
        )
        if line is not None and not line.resent and type(settled) is Answer:
            self._patience(target).learn(ended - started)
        # 6 telemetry (its place): one duration, one outcome, one span tree
        return result

    async def stream(
        self,
        tool: str,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        user: str = "",
        timeout: float | None = None,
        idle_timeout: float | None = None,
        idempotency_key: str | None = None,
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
    ) -> AsyncGenerator[str, None]:
        """Steps 2 to 6 of a stream; see :meth:`perform`."""
        exchange = self.exchange
        policy = target.policy
        total = policy.stream_timeout if timeout is None else timeout
        idle = policy.stream_idle_timeout if idle_timeout is None else idle_timeout
        try:
            check_seconds(total)
            check_seconds(idle, "idle-timeout")
            check_property(idempotency_key, "idempotency_key")
            payload = request_payload(config_text, arguments, user, target.policy, self.transport.max_message_bytes)
        except (TypeError, PayloadTooLarge, PolicyError, UnicodeError) as mistake:
            raise invalid(target.label, target.policy, mistake) from None
        deadline = exchange.loop.time() + total
        route = self._route(target.service) or await self._open(target, deadline)
        if not len(route.instances):
            await self._running(self._addressing).meet(target, route, payload, deadline)
        attempts = 0
        while True:
            id = exchange.new_id()
            attempts += 1
            publisher, properties, line = self._running(self._addressing).request(
                target, route, id, payload, deadline, idempotency_key, Patience(policy.ask_after)
            )
            replies = exchange.stream(
                id,
                publisher,
                payload,
                properties,
                flow=target.label,
                deadline=deadline,
                idle=idle,
                max_bytes=policy.max_result,
                max_buffer=policy.stream_buffer,
                line=line,
            )
            try:
                async for chunk in replies:
                    yield chunk
            finally:
                replies.close()
            settled = replies.settled
            if line is None or attempts >= MAX_HOPS or not self._gone(route, line, settled):
                break
        if settled is not None:
            limit = idle if isinstance(settled, TimedOut) and settled.clock == "stream-idle" else total
            error = error_of(settled, tool=target.label, limit=limit, repeatable=target.repeatable)
            if error is not None:
                raise error

    def _route(self, service: ServiceDescriptor) -> Route | None:
        return self._running(self._routes).get(service)

    async def _open(self, target: Target, deadline: float) -> Route:
        service = target.service
        try:
            async with asyncio.timeout_at(deadline):
                return await self._running(self._routes).open(service, target.policy.reply_subscriptions)
        except TimeoutError:
            raise TransportError(
                "unreachable",
                f"The broker did not open the topics of '{service.id}' in time; the tool did not run. Stop and report that.",
                sent=False,
            ) from None

    def _patience(self, target: Target) -> Patience:
        patience = self._patiences.get(target.label)
        if patience is None:
            patience = self._patiences[target.label] = Patience(target.policy.ask_after)
        return patience

    def _gone(self, route: Route, line: Line, settled: Settled | None) -> bool:
        """Is the instance leaving, and did it not run the request? Then another one may. In any case it is no longer asked
        when it has gone."""
        if isinstance(settled, Lost):
            self._running(self._routes).retire(route, line.instance)
            return False
        if not isinstance(settled, Answer):
            return False
        refused = settled.properties.get(Property.REFUSED)
        if refused not in (Refusal.DRAINING, Refusal.FORMER):
            return False
        self._running(self._routes).retire(route, line.instance)
        # When nobody is left who is known to take it, the caller is told at once. And a former life may have run it.
        return refused == Refusal.DRAINING and len(route.instances) > 0
