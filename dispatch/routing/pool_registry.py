"""The instance pools of one dispatcher, opened when a service is first called."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from dispatch._internal.clock import loop_clock
from dispatch._internal.permit import Randomness
from dispatch.catalog import Instance, ServiceDescriptor
from dispatch.errors import ErrorType, TransportError
from dispatch.policy import Policy
from dispatch.routing.channel import Channel
from dispatch.routing.channel_registry import Channels
from dispatch.routing.in_flight import CatalogGenerations
from dispatch.routing.instance_pool import SHARED, InstancePool
from dispatch.telemetry.call_observer import NULL_DISPATCHER, NULL_SERVICE, DispatcherObserver

logger = logging.getLogger("dispatch.dispatcher")

AGAIN_S = 5.0
"""Seconds between attempts to open the topics of an instance, while its service is called."""


Topics = tuple[str, str]
"""A request topic and the response topic that belongs to it."""


class PoolKey(msgspec.Struct, frozen=True, cache_hash=True):
    """The key of an instance pool: calls with the same key share a pool.

    Attributes:
        service: its id.
        topics: of the service.
        instances: those with topics of their own.
        tool: the tool, if its policy has balancing settings of its own; otherwise ``""``.
    """

    service: str
    topics: Topics
    instances: tuple[Instance, ...]
    tool: str = ""

    @property
    def pairs(self) -> tuple[Topics, ...]:
        """The topics of its instances, or those of the service."""
        return tuple((each.request_queue, each.response_queue) for each in self.instances) or (self.topics,)


class PoolUser(Protocol):
    """The properties of a call that select its pool."""

    @property
    def pool_key(self) -> PoolKey:
        """The key of the pool."""
        ...

    @property
    def service(self) -> ServiceDescriptor:
        """The service."""
        ...

    @property
    def policy(self) -> Policy:
        """Balancing and outlier detection."""
        ...


class PoolPolicies(Protocol):
    """The pools of the catalogue in force."""

    @property
    def topics(self) -> frozenset[Topics]:
        """All topics of its services."""
        ...

    def pool_policy(self, key: PoolKey) -> Policy | None:
        """Return the policy of a pool; None if the catalogue has no such pool."""
        ...


class PoolRegistry:
    """Finds and opens instance pools.

    Args:
        routes: opens topics.
        randomness: of the balancers.
        policies: of the catalogue in force.
        generations: of calls in flight.
        observer: of the dispatcher.
    """

    def __init__(
        self,
        routes: Channels,
        randomness: Randomness,
        policies: PoolPolicies,
        generations: CatalogGenerations,
        observer: DispatcherObserver = NULL_DISPATCHER,
    ) -> None:
        self._observer = observer
        self._routes = routes
        self._randomness = randomness
        self._policies = policies
        self._topics = policies.topics
        self._generations = generations
        self._former: dict[PoolKey, tuple[InstancePool, int]] = {}
        """Pools of previous catalogues, each with the last generation of calls that may use it."""
        self._clock = loop_clock()
        self._pools: dict[PoolKey, InstancePool] = {}
        self._missing: dict[PoolKey, set[str]] = {}
        self._again_at: dict[PoolKey, float] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def get(self, target: PoolUser) -> InstancePool | None:
        """Return the pool of ``target``'s service if it is open."""
        pool = self._pools.get(target.pool_key)
        if pool is None:
            return self._former[target.pool_key][0] if target.pool_key in self._former else None
        if self._missing and target.pool_key in self._missing:
            self._seek(target, pool)
        return pool

    async def open(self, target: PoolUser, deadline: float) -> InstancePool:
        """Return the pool of ``target``'s service, opened if necessary with at least one of its topics.

        Raises:
            TransportError: the broker is out of reach, or refuses, or takes longer than ``deadline``.
        """
        service = target.service
        topics = [(each.id, each.weight, each.request_queue, each.response_queue) for each in service.instances]
        topics = topics or [(SHARED, 1.0, service.request_queue, service.response_queue)]
        try:
            async with asyncio.timeout_at(deadline):
                opened = await asyncio.gather(
                    *(self._routes.open(request, response) for _, _, request, response in topics),
                    return_exceptions=True,
                )
        except TimeoutError:
            raise TransportError(
                ErrorType.UNREACHABLE,
                f"The tool was not executed: the broker did not open the topics of '{service.id}' in time. Use another "
                "tool, or report that the broker is slow; `dispatch doctor` finds the cause.",
                sent=False,
            ) from None
        there: list[tuple[str, float, Channel]] = []
        missing: set[str] = set()
        failure: BaseException | None = None
        for (name, weight, _, _), result in zip(topics, opened, strict=True):
            if isinstance(result, Channel):
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
        return self.get(target) or self._add(target, there, missing)

    def _add(self, target: PoolUser, there: list[tuple[str, float, Channel]], missing: set[str]) -> InstancePool:
        key = target.pool_key
        in_force = self._policies.pool_policy(key)
        is_former = in_force is None  # the catalogue was reloaded while a call opened it
        policy = target.policy if in_force is None else in_force
        pool = InstancePool(
            there,
            balancing=policy.balancing,
            outlier_detection=policy.outlier_detection,
            clock=self._clock,
            randomness=self._randomness,
            greet=self._routes.discovery.send_due_hello,
            observer=NULL_SERVICE if is_former else self._observer.observe_service(key.service),
            is_former=is_former,
        )
        if is_former:
            self._former[key] = pool, self._generations.number - self._generations.are_former_pending
            return pool
        self._pools[key] = pool
        if missing:
            self._missing[key] = missing
            self._again_at[key] = self._clock() + AGAIN_S
        return pool

    def _seek(self, target: PoolUser, pool: InstancePool) -> None:
        if self._clock() < self._again_at[target.pool_key]:
            return
        self._again_at[target.pool_key] = self._clock() + AGAIN_S
        task = asyncio.create_task(self._open_missing(target, pool))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_missing(self, target: PoolUser, pool: InstancePool) -> None:
        missing = self._missing.get(target.pool_key, set())
        for each in target.service.instances:
            if each.id in missing:
                try:
                    route = await self._routes.open(each.request_queue, each.response_queue)
                except TransportError:
                    continue  # next time
                if each.id in missing:
                    missing.discard(each.id)
                    pool.add(each.id, each.weight, route)
        if not missing:
            self._missing.pop(target.pool_key, None)
            self._again_at.pop(target.pool_key, None)
        self._routes.close_unused(self._is_wanted)  # the catalogue may have been reloaded meanwhile

    # -- another catalogue --------------------------------------------------------------------------------------

    def renew(self, policies: PoolPolicies) -> None:
        """Apply another catalogue. Pools that it does not have stay open for calls in flight."""
        self._policies = policies
        self._topics = policies.topics
        for key, (pool, _) in list(self._former.items()):
            if policies.pool_policy(key) is not None:
                del self._former[key]
                self._pools[key] = pool
                pool.restore(self._observer.observe_service(key.service))
        for key, pool in list(self._pools.items()):
            policy = policies.pool_policy(key)
            if policy is not None:
                pool.configure(policy.balancing, policy.outlier_detection)
            else:
                del self._pools[key]
                self._former[key] = pool, self._generations.number
                pool.retire()

    def close_former(self, generation: int) -> None:
        """Close the pools that only calls up to ``generation`` could use."""
        for key, (_, last) in list(self._former.items()):
            if last <= generation:
                del self._former[key]
                self._missing.pop(key, set()).clear()
                self._again_at.pop(key, None)
        self._routes.close_unused(self._is_wanted)

    def _is_wanted(self, topics: Topics) -> bool:
        return topics in self._topics or any(topics in key.pairs for key in self._former)

    def all(self) -> list[tuple[str, InstancePool]]:
        """Return each pool with its service's id; those of tools with settings of their own last."""
        pools = sorted(self._pools.copy().items(), key=lambda item: bool(item[0].tool))
        return [(key.service, pool) for key, pool in pools]

    def of_service(self, service: str) -> list[InstancePool]:
        """Return the open pools of a service: one, unless tools of it have balancing settings of their own."""
        return [pool for key, pool in self._pools.items() if key.service == service]

    async def close(self) -> None:
        """Open no more pools."""
        for task in list(self._opening):
            task.cancel()
        if self._opening:
            await asyncio.wait(list(self._opening))
