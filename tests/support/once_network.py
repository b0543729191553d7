"""The network of :mod:`tests.support.once_world`: one faulty connection for each process, which can die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from dispatch.transports import Publisher
from dispatch.transports.memory import MemoryTransport
from tests.support.faults import FaultPlan, FaultyPublisher, FaultyTicket, FaultyTransport, _Dice
from tests.support.stand import BROKER, REQUESTS

DEAD = FaultPlan(drop=1.0)


class _Ticket:
    """A publish that says so while it is held back here. See :class:`dispatch.transports.base.Ticket`."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: FaultyTicket) -> None:
        self._ticket = ticket

    @property
    def waits(self) -> bool:
        return self._ticket.held is not None

    def cancel(self) -> bool:
        return self._ticket.cancel()

    def answered(self) -> None:
        self._ticket.answered()

    def taken(self) -> None:
        self._ticket.taken()


class _Publisher(FaultyPublisher):
    def publish(self, *args: Any, **options: Any) -> Any:
        return _Ticket(super().publish(*args, **options))


class Network(FaultyTransport):
    """A connection of one process.

    Args:
        make: makes further ones.
        seed: of its dice.
        count: where its faults are counted.
        most: bytes of the largest message.
    """

    def __init__(self, make: Callable[[], Network], seed: int, count: Counter[str], most: int | None) -> None:
        nothing, transport = FaultPlan(), MemoryTransport(BROKER)
        if most is not None:
            transport.max_message_bytes = most
        super().__init__(transport, outgoing=nothing, incoming=nothing, seed=seed)
        self._make = make
        self.count = count
        # A broker gives a message of a shared subscription to one instance. To the same one it may come twice all the same.
        self.once = REQUESTS
        self.further: list[Network] = []

    def another(self) -> Network:
        network = self._make()
        self.further.append(network)
        return network

    async def publisher(self, topic: str) -> Publisher:
        return _Publisher(self, await self.inner.publisher(topic))

    def storm(self, plan: FaultPlan) -> None:
        """From now on."""
        self.outgoing = self.incoming = _Dice(plan, self.outgoing.rng)

    def die(self) -> None:
        """Nothing that it says or hears from now on gets anywhere."""
        for network in (self, *self.further):
            network.storm(DEAD)
