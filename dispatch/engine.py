"""The engine: what a dispatcher has while it is connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from dispatch.addressing import Addressing
from dispatch.attempts import Attempts
from dispatch.balancing.view import InstanceView
from dispatch.catalog import Catalog
from dispatch.exchange import Exchange
from dispatch.fleets import Fleets
from dispatch.guards.base import Randomness
from dispatch.result import CallResult
from dispatch.routes import Routes
from dispatch.singleflight import SingleFlight
from dispatch.targets import Target
from dispatch.toolguards import GuardTable, ToolGuards
from dispatch.transports import Transport


class UnderWay:
    """Counts what is under way, and knows when it is nothing. Enter it as often as you like."""

    __slots__ = ("_nothing", "count")

    def __init__(self) -> None:
        self.count = 0
        self._nothing: asyncio.Event | None = None

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_exc: object) -> None:
        self.count -= 1
        if not self.count and self._nothing is not None:
            self._nothing.set()

    async def nothing(self) -> None:
        """Wait until nothing is."""
        if self.count:
            self._nothing = asyncio.Event()
            await self._nothing.wait()


class Engine:
    """Made on the running loop, when the transport is connected.

    Args:
        transport: the connection.
        name: the dispatcher's.
        randomness: see :class:`dispatch.Dispatcher`.

    Attributes:
        now: the loop's clock.
        exchange, attempts, routes: what calls go through.
        flights: calls that share an exchange.
        under_way: calls, streams and retries.
    """

    def __init__(self, transport: Transport, name: str, randomness: Randomness) -> None:
        self._transport = transport
        self.exchange = Exchange(connected=lambda: transport.connected)
        self.now: Callable[[], float] = self.exchange.loop.time
        self.routes = Routes(transport, self.exchange, name)
        self._fleets = Fleets(self.routes, randomness)
        self._guards = GuardTable(self.now, randomness)
        addressing = Addressing(transport, self.exchange, self.routes)
        self.attempts = Attempts(self.exchange, addressing, self.routes, self._fleets)
        self.flights: SingleFlight[CallResult] = SingleFlight()
        self.under_way = UnderWay()

    @property
    def max_message_bytes(self) -> int:
        """The largest payload that goes as one message."""
        return self._transport.max_message_bytes

    def guards_of(self, target: Target) -> ToolGuards:
        """The guards of a target's tool."""
        return self._guards.of((target.is_tool, target.label), target.policy, repeatable=target.repeatable)

    def others(self, target: Target, tried: list[str]) -> bool:
        """Is there an instance that was not tried?"""
        fleet = self._fleets.get(target)
        return fleet is not None and any(view.id not in tried for view in fleet.instances())

    def instances(self, service: str) -> tuple[InstanceView, ...]:
        """How each instance of a service is doing; where tools of it are balanced on their own, as the others see it."""
        fleets = self._fleets.of_service(service)
        return fleets[0].instances() if fleets else ()

    def renew(self, catalog: Catalog) -> None:
        """Another catalogue, or policy: forget tools that have gone."""
        self._guards.keep(lambda key: key[1] in (catalog.tools if key[0] else catalog.services))
        self._fleets.renew(catalog.services)

    async def close(self, drain: float) -> None:
        """See :meth:`dispatch.Dispatcher.close`."""
        self.attempts.closing = True
        self._guards.close()
        if drain > 0 and self.under_way.count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain):
                    await self.under_way.nothing()
        self.exchange.close()
        await self._fleets.close()
        await self.routes.close()
