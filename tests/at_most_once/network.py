"""The network of :mod:`tests.at_most_once.world`: one faulty connection for each process, which can die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS
from tests.helpers.faults import FaultPlan, FaultyTransport

DEAD = FaultPlan(drop=1.0)


class Network(FaultyTransport):
    """A connection of one process.

    Args:
        make: makes further ones.
        seed: of its dice.
        count: where its faults are counted.
    """

    def __init__(self, make: Callable[[], Network], seed: int, count: Counter[str]) -> None:
        nothing, transport = FaultPlan(), MemoryTransport(BROKER)
        super().__init__(transport, outgoing=nothing, incoming=nothing, seed=seed)
        self._make = make
        self.injector.count = count
        self.further: list[Network] = []

    def another(self) -> Network:
        network = self._make()
        self.further.append(network)
        return network

    def storm(self, plan: FaultPlan) -> None:
        """From now on."""
        # A broker gives a message of a shared subscription to one instance. To the same one it may come twice all the same.
        once = replace(plan, topics=REQUESTS, direction="out", duplicate=0.0, seed=self.seed)
        self.injector.inject(once, replace(plan, seed=self.seed))

    def die(self) -> None:
        """Nothing that it says or hears from now on gets anywhere."""
        for network in (self, *self.further):
            network.storm(DEAD)
