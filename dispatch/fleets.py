"""The fleets of one dispatcher: opened when a service is first called."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING

from dispatch.fleet import SHARED, Fleet
from dispatch.guards.base import Randomness
from dispatch.loopclock import loop_clock
from dispatch.outcome import TransportError
from dispatch.policy import NO_HEALTH
from dispatch.routes import Route, Routes
from dispatch.targets import FleetKey, Target

if TYPE_CHECKING:
    from dispatch.telemetry.watch import Watch

logger = logging.getLogger("dispatch.dispatcher")

AGAIN_S = 5.0
"""How often an instance whose topics could not be opened is tried again, while its service is called."""


class Fleets:
    """Finds, and opens, the instances of services.

    Args:
        routes: opens topics.
        randomness: of the balancers.
        watch: hears of instances, and has the meters of services; None: nobody does.
    """

    def __init__(self, routes: Routes, randomness: Randomness, watch: Watch | None = None) -> None:
        self._watch = watch
        self._routes = routes
        self._randomness = randomness
        self._clock = loop_clock()
        self._fleets: dict[FleetKey, Fleet] = {}
        self._stale: set[FleetKey] = set()
        self._missing: dict[FleetKey, set[str]] = {}
        self._again_at: dict[FleetKey, float] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def get(self, target: Target) -> Fleet | None:
        """The fleet of ``target``'s service, if it is open."""
        fleet = self._fleets.get(target.fleet)
        if fleet is not None:
            if self._stale and target.fleet in self._stale:
                self._stale.discard(target.fleet)
                policy = target.policy
                fleet.configure(policy.balancing, policy.health or NO_HEALTH, addressed=policy.addressed)
            if self._missing and target.fleet in self._missing:
                self._seek(target, fleet)
        return fleet

    async def open(self, target: Target, deadline: float) -> Fleet:
        """The same, opening it: at least one of its topics.

        Raises:
            TransportError: the broker is out of reach, or refuses, or takes longer than ``deadline``.
        """
        service, copies = target.service, target.policy.reply_subscriptions
        topics = [(each.id, each.weight, each.request_queue, each.response_queue) for each in service.instances]
        topics = topics or [(SHARED, 1.0, service.request_queue, service.response_queue)]
        try:
            async with asyncio.timeout_at(deadline):
                opened = await asyncio.gather(
                    *(self._routes.open(request, response, copies) for _, _, request, response in topics),
                    return_exceptions=True,
                )
        except TimeoutError:
            raise TransportError(
                "unreachable",
                f"The broker did not open the topics of '{service.id}' in time; the tool did not run. Stop and report that.",
                sent=False,
            ) from None
        there: list[tuple[str, float, Route]] = []
        missing: set[str] = set()
        failure: BaseException | None = None
        for (name, weight, _, _), result in zip(topics, opened, strict=True):
            if isinstance(result, Route):
                there.append((name, weight, result))
                continue
            if not isinstance(result, TransportError):
                raise result
            failure = result
            missing.add(name)
            if len(topics) > 1:
                logger.warning("instance %s of %s cannot be called: %s", name, service.id, result.message)
        if not there:
            assert failure is not None
            raise failure
        policy = target.policy
        fleet = self._fleets.get(target.fleet)  # another caller may have been here before
        if fleet is None:
            fleet = self._fleets[target.fleet] = Fleet(
                there,
                balancing=policy.balancing,
                health=policy.health or NO_HEALTH,
                addressed=policy.addressed,
                clock=self._clock,
                randomness=self._randomness,
                greet=self._routes.greet,
                listener=None if self._watch is None else partial(self._watch.instance, service.id),
                meter=None if self._watch is None else self._watch.service(service.id),
            )
            if missing:
                self._missing[target.fleet] = missing
                self._again_at[target.fleet] = self._clock() + AGAIN_S
        return fleet

    def _seek(self, target: Target, fleet: Fleet) -> None:
        if self._clock() < self._again_at[target.fleet]:
            return
        self._again_at[target.fleet] = self._clock() + AGAIN_S
        task = asyncio.create_task(self._open_missing(target, fleet))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_missing(self, target: Target, fleet: Fleet) -> None:
        missing = self._missing[target.fleet]
        for each in target.service.instances:
            if each.id in missing:
                try:
                    route = await self._routes.open(
                        each.request_queue, each.response_queue, target.policy.reply_subscriptions
                    )
                except TransportError:
                    continue  # next time
                if each.id in missing:
                    missing.discard(each.id)
                    fleet.add(each.id, each.weight, route)
        if not missing:
            self._missing.pop(target.fleet, None)

    def renew(self, services: Container[str]) -> None:
        """Policies, or services, have changed: each fleet takes over what its next call brings, and those of services that
        are no more are forgotten. Their topics stay open, because calls may be under way there."""
        for key in [key for key in self._fleets if key.service not in services]:
            del self._fleets[key]
            self._missing.pop(key, None)
        self._stale = set(self._fleets)

    def all(self) -> list[tuple[str, Fleet]]:
        """Each with its service's id."""
        return [(key.service, fleet) for key, fleet in list(self._fleets.items())]

    def of_service(self, service: str) -> list[Fleet]:
        """The open fleets of the service of that id: one, unless tools of it have balancing settings of their own."""
        return [fleet for key, fleet in self._fleets.items() if key.service == service]

    async def close(self) -> None:
        """Open nothing more."""
        for task in list(self._opening):
            task.cancel()
        if self._opening:
            await asyncio.wait(list(self._opening))
