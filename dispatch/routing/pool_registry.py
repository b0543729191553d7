"""The instance pools of one dispatcher, opened when a service is first called.

A pool outlives changes of the catalogue: instances are added to and removed from it. The pool of a removed service is
retained (:mod:`dispatch._internal.retention`) for calls in flight, and for the service to return.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from dispatch._internal.cancellation import cancel_and_wait
from dispatch._internal.clock import loop_clock
from dispatch._internal.permit import Randomness
from dispatch._internal.retention import Retention
from dispatch.catalog import ServiceDescriptor
from dispatch.errors import ErrorType, TransportError
from dispatch.messaging.wire.topics import name_service
from dispatch.policy import Policy
from dispatch.routing.channel import Channel
from dispatch.routing.channel_registry import Channels
from dispatch.routing.in_flight import InFlight
from dispatch.routing.instance_pool import SHARED, InstancePool, Routes
from dispatch.telemetry.call_observer import NULL_DISPATCHER, NULL_SERVICE, DispatcherObserver

logger = logging.getLogger("dispatch.dispatcher")

AGAIN_S = 5.0
"""Seconds between attempts to open the topics of an instance, while its service is called."""

Topics = tuple[str, str]
"""A request topic and the response topic that belongs to it."""
Owner = tuple[bool, str]
"""What the policy of a pool belongs to: (True, a tool's name) or (False, a service's id)."""


class PoolKey(msgspec.Struct, frozen=True, cache_hash=True):
    """The key of an instance pool: calls with the same key share a pool.

    Attributes:
        service: its id.
        topics: of the service.
        version: of the service; None: not declared.
        tool, tool_version: the tool, if its policy has balancing settings of its own; otherwise ``""``.
    """

    service: str
    topics: Topics
    version: str | None = None
    tool: str = ""
    tool_version: str | None = None

    @property
    def meter_label(self) -> str:
        """The service's name in metrics, which its own processes use too."""
        return name_service(self.topics[0])

    @property
    def owner(self) -> Owner:
        """See :data:`Owner`."""
        return (True, self.tool) if self.tool else (False, self.service)


class PoolUser(Protocol):
    """The properties of a call that select its pool."""

    @property
    def pool_key(self) -> PoolKey:
        """The key of the pool."""

    @property
    def service(self) -> ServiceDescriptor:
        """The service."""

    @property
    def policy(self) -> Policy:
        """Balancing and outlier detection."""


class PoolUsers(Protocol):
    """The pools of the catalogue in force."""

    def pool_user(self, key: PoolKey) -> PoolUser | None:
        """Return the tool, or the service, whose policy applies to a pool; None if the catalogue has no such pool."""

    def has_service(self, id: str) -> bool:
        """Return whether the catalogue has the service."""


class _Route(msgspec.Struct, frozen=True):
    """How an instance is reached, by the catalogue, and its version."""

    topics: Topics
    weight: float
    version: str | None


class _Entry(msgspec.Struct, eq=False):
    """A pool with what is known of it.

    Attributes:
        key: of the pool.
        user: with the service and the policy that apply.
        calls: in flight that use the pool.
        pool: None until a channel is open.
        wanted: the instances of the service by name, or its own topics as :data:`SHARED`.
        channels: those of ``wanted`` that are open.
        missing: those of ``wanted`` that are not.
        in_pool: the channels that the pool uses. They differ from ``channels`` while every one of these is yet to be opened.
        again_at: when missing channels are opened again.
        is_retired: the catalogue in force does not have the pool.
    """

    key: PoolKey
    user: PoolUser
    calls: InFlight
    pool: InstancePool | None = None
    wanted: dict[str, _Route] = {}
    channels: dict[str, Channel] = {}
    missing: dict[str, _Route] = {}
    in_pool: dict[str, tuple[Topics, Channel]] = {}
    again_at: float = 0.0
    is_retired: bool = False


class PoolRegistry:
    """Finds and opens instance pools.

    Args:
        routes: opens topics.
        randomness: of the balancers.
        users: of the catalogue in force.
        observer: of the dispatcher.
    """

    def __init__(
        self, routes: Channels, randomness: Randomness, users: PoolUsers, observer: DispatcherObserver = NULL_DISPATCHER
    ) -> None:
        self._observer = observer
        self._routes = routes
        self._randomness = randomness
        self._users = users
        self._clock = loop_clock()
        self._entries: dict[PoolKey, _Entry] = {}
        self._by_owner: dict[Owner, set[PoolKey]] = {}
        self._services: Counter[str] = Counter()
        """The number of pools of each service."""
        self._holders: Counter[Topics] = Counter()
        """How often topics are used, by the pools. Unused ones are closed."""
        self._retention: Retention[PoolKey] = Retention(
            self._drop, lambda key, callback: self._entries[key].calls.await_idle(callback)
        )
        self._opening: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # -- for each call ------------------------------------------------------------------------------------------

    def calls_of(self, user: PoolUser) -> InFlight:
        """Return the counter of the calls that use the pool of ``user``. A pool with calls in flight stays open."""
        entry = self._entries.get(user.pool_key)
        return (self._add(user) if entry is None else entry).calls

    def get(self, user: PoolUser) -> InstancePool | None:
        """Return the pool of ``user``'s service if it is open."""
        entry = self._entries.get(user.pool_key)
        if entry is None or not entry.channels:
            return None
        if entry.missing:
            self._seek(entry)
        return entry.pool

    async def open(self, user: PoolUser, deadline: float) -> InstancePool:
        """Return the pool of ``user``'s service, opened if necessary with at least one of its topics.

        Raises:
            TransportError: the broker is out of reach, or refuses, or takes longer than ``deadline``.
        """
        entry = self._entries.get(user.pool_key) or self._add(user)
        service = entry.key.service
        while not entry.channels:
            wanted, missing = entry.wanted, entry.missing
            try:
                async with asyncio.timeout_at(deadline):
                    opened = await asyncio.gather(
                        *(self._routes.open(*route.topics) for route in missing.values()), return_exceptions=True
                    )
            except TimeoutError:
                raise TransportError(
                    ErrorType.UNREACHABLE,
                    f"The tool was not executed: the broker did not open the topics of '{service}' in time. Use another "
                    "tool, or report that the broker is slow; `dispatch doctor` finds the cause.",
                    sent=False,
                ) from None
            failure: TransportError | None = None
            channels: dict[str, tuple[Topics, Channel]] = {}
            for (name, route), result in zip(missing.items(), opened, strict=True):
                if isinstance(result, Channel):
                    channels[name] = route.topics, result
                    continue
                if not isinstance(result, TransportError):
                    raise result
                failure = result
                if len(missing) > 1:
                    logger.warning("instance %s of %s cannot be called: %s", name, service, result.message)
            self._add_channels(entry, channels)
            # Otherwise the catalogue was replaced meanwhile, and other topics are wanted.
            if failure is not None and not entry.channels and entry.wanted is wanted:
                raise failure
        assert entry.pool is not None  # it has channels
        return entry.pool

    # -- pools --------------------------------------------------------------------------------------------------

    def _add(self, user: PoolUser) -> _Entry:
        key = user.pool_key
        in_force = self._users.pool_user(key)
        entry = self._entries[key] = _Entry(key, in_force or user, InFlight())
        self._by_owner.setdefault(key.owner, set()).add(key)
        self._services[key.service] += 1
        self._set_wanted(entry)
        if in_force is None:  # the call began with a former catalogue
            entry.is_retired = True
            self._retention.add(key)
        return entry

    def _drop(self, key: PoolKey) -> None:
        """Drop a retired pool without calls in flight: its topics are closed unless another pool uses them."""
        entry = self._entries.pop(key)
        keys = self._by_owner[key.owner]
        keys.discard(key)
        if not keys:
            del self._by_owner[key.owner]
        self._services[key.service] -= 1
        self._release_series(key.service)
        for topics in [route.topics for route in entry.wanted.values()] + [each for each, _ in entry.in_pool.values()]:
            self._release(topics)

    def _release_series(self, service: str) -> None:
        """Remove the metric series of a service that is in no catalogue and has no pool."""
        if not self._services[service]:
            del self._services[service]
            if not self._users.has_service(service):
                self._observer.release_service(service)

    # -- instances ----------------------------------------------------------------------------------------------

    def _set_wanted(self, entry: _Entry) -> None:
        """Apply the instances of the service. A removed one gets no further request once another channel is open."""
        service = entry.user.service
        wanted = {
            each.id: _Route((each.request_queue, each.response_queue), each.weight, each.version)
            for each in service.instances
        } or {SHARED: _Route((service.request_queue, service.response_queue), 1.0, service.version)}
        former = entry.wanted
        if wanted == former:
            return
        for route in wanted.values():
            self._holders[route.topics] += 1
        entry.wanted = wanted
        entry.channels = {
            name: channel
            for name, channel in entry.channels.items()
            if name in wanted and wanted[name].topics == former[name].topics
        }
        self._apply(entry)
        for route in former.values():
            self._release(route.topics)
        if entry.pool is not None and entry.missing:
            self._open_later(entry)

    def _add_channels(self, entry: _Entry, channels: dict[str, tuple[Topics, Channel]]) -> None:
        """Add open channels unless the catalogue was replaced, and the channel perhaps closed, meanwhile."""
        added = {
            name: channel
            for name, (topics, channel) in channels.items()
            if name in entry.missing and entry.missing[name].topics == topics and self._routes.get(topics) is channel
        }
        if added:
            entry.channels |= added
            self._apply(entry)

    def _apply(self, entry: _Entry) -> None:
        """Give the pool the open channels. It uses the former ones until the first of the wanted ones is open: an attempt
        that has the pool already goes to one of those."""
        entry.missing = {name: route for name, route in entry.wanted.items() if name not in entry.channels}
        channels = {name: entry.channels[name] for name in entry.wanted if name in entry.channels}
        if not channels:
            return
        routes = [(name, entry.wanted[name].weight, channel) for name, channel in channels.items()]
        versions = {name: entry.wanted[name].version for name in channels}
        if entry.pool is None:
            entry.pool = self._create_pool(entry, routes, versions)
            entry.again_at = self._clock() + AGAIN_S
        else:
            entry.pool.replace_routes(routes, versions)
        former = entry.in_pool
        entry.in_pool = {name: (entry.wanted[name].topics, channel) for name, channel in channels.items()}
        for topics, _ in entry.in_pool.values():
            self._holders[topics] += 1
        for topics, channel in former.values():
            release = partial(self._release, topics)
            if not channel.requests.await_idle(release):
                release()

    def _create_pool(self, entry: _Entry, routes: Routes, versions: Mapping[str, str | None]) -> InstancePool:
        policy, is_former = entry.user.policy, entry.is_retired
        return InstancePool(
            routes,
            versions=versions,
            balancing=policy.balancing,
            outlier_detection=policy.outlier_detection,
            clock=self._clock,
            randomness=self._randomness,
            greet=self._routes.discovery.send_due_hello,
            observer=NULL_SERVICE
            if is_former
            else self._observer.observe_service(entry.key.service, entry.key.meter_label),
            is_former=is_former,
        )

    def _release(self, topics: Topics) -> None:
        self._holders[topics] -= 1
        if not self._holders[topics] and not self._is_closed:
            del self._holders[topics]
            self._routes.close_unused(topics, lambda: topics in self._holders)

    def _seek(self, entry: _Entry) -> None:
        if self._clock() >= entry.again_at:
            self._open_later(entry)

    def _open_later(self, entry: _Entry) -> None:
        """Open the missing channels in the background."""
        entry.again_at = self._clock() + AGAIN_S
        for name, route in entry.missing.items():
            task = asyncio.create_task(self._open_missing(entry, name, route.topics))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_missing(self, entry: _Entry, name: str, topics: Topics) -> None:
        with contextlib.suppress(TransportError):  # next time
            self._add_channels(entry, {name: (topics, await self._routes.open(*topics))})

    # -- another catalogue --------------------------------------------------------------------------------------

    def renew(self, users: PoolUsers, owners: Iterable[Owner]) -> None:
        """Apply another catalogue. Pools that it does not have are retained.

        Args:
            users: of the catalogue.
            owners: whose definition or policy has changed.
        """
        self._users = users
        for owner in owners:
            for key in tuple(self._by_owner.get(owner, ())):
                self._renew_entry(self._entries[key])
            if not owner[0]:
                self._release_series(owner[1])

    def _renew_entry(self, entry: _Entry) -> None:
        user, pool = self._users.pool_user(entry.key), entry.pool
        if user is None:
            if not entry.is_retired:
                entry.is_retired = True
                self._retention.add(entry.key)
                if pool is not None:
                    pool.retire()
            return
        entry.user = user
        if entry.is_retired:
            entry.is_retired = False
            self._retention.restore(entry.key)
            if pool is not None:
                pool.restore(self._observer.observe_service(entry.key.service, entry.key.meter_label))
        if pool is not None:
            pool.configure(user.policy.balancing, user.policy.outlier_detection)
        self._set_wanted(entry)

    @property
    def owners(self) -> list[Owner]:
        """The owners of all pools."""
        return list(self._by_owner)

    def all(self) -> list[tuple[PoolKey, InstancePool]]:
        """Return each pool of the catalogue with its key; those of tools with settings of their own last."""
        entries = sorted(self._entries.copy().values(), key=lambda entry: bool(entry.key.tool))
        return [(each.key, each.pool) for each in entries if each.pool is not None and not each.is_retired]

    def of_service(self, service: str) -> list[InstancePool]:
        """Return the open pools of a service, one for each version; without any, the first one that belongs to a tool."""
        pools = [(key, pool) for key, pool in self.all() if key.service == service]
        return [pool for key, pool in pools if not key.tool] or [pool for _, pool in pools[:1]]

    async def close(self) -> None:
        """Open no more pools, and leave all topics to :meth:`Channels.close`."""
        self._is_closed = True
        self._retention.close()
        await cancel_and_wait(list(self._opening))
