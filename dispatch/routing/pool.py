"""The instances of a service that a dispatcher can call, and which one gets the next request.

There are four kinds: instances of dispatch's service base, which have announced themselves and are known by name; topics
that the service's descriptor lists as instances, without a known name; otherwise the service's own topic, over whose
consumers the broker distributes the requests; and what executes tools in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Protocol

import msgspec

from dispatch._internal import Clock, Randomness, Retention, cancel_and_wait, encode_text, loop_clock
from dispatch.catalog import ServiceDescriptor
from dispatch.catalog.versions import Range, version_key
from dispatch.errors import ErrorType, Outcome, TransportError
from dispatch.messaging.request import Request, Tally
from dispatch.messaging.wire import is_local_queue
from dispatch.policy import Balancing, OutlierDetection, Policy
from dispatch.resilience.balancer import CERTAIN_RATIO, UNRESPONSIVE_RATIO, Balancer, Pick
from dispatch.resilience.breaker import BreakerPermit, CircuitBreaker
from dispatch.resilience.instances import UP_STATES, InstanceView
from dispatch.routing.channels import Channels
from dispatch.routing.instance import (
    DISCOVERY_S,
    SHARED,
    Channel,
    Connection,
    Holder,
    InFlight,
    Instance,
    KeyHolders,
    suspend_places,
)
from dispatch.telemetry.observers import NULL_DISPATCHER, DispatcherObserver

WeightedChannels = Sequence[tuple[str, float, str | None, Channel]]
"""Channels, each with its name, weight and declared version as an instance."""
MAX_RANGES = 1_000
"""Ranges of versions whose instances are remembered."""
UNRESPONSIVE_S = 1.0
"""Seconds without an answer from which a request may be at an instance that hangs."""
MAX_TOOLS = 1_000
"""Tools of one service of which is known when their requests are overdue."""
MAX_LIVES = 512
"""Instances whose last incarnation is remembered: twice the largest number of known instances."""


class SelectedInstance(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The target of one request.

    Attributes:
        channel: the channel.
        instance: the addressee.
        pick: the balancer's permit, to be finished.
        probe: the permit of the tool's breaker at this instance; None: not acquired.

    :meth:`release` is called once, when the request has ended.
    """

    channel: Channel
    instance: Instance
    pick: Pick
    probe: BreakerPermit | None

    def release(
        self, outcome: Outcome, retry_after: float | None, in_flight: int | None, slowness: float | None, outpaced: bool
    ) -> None:
        """Return the permits of the balancer and of the breaker at this instance; arguments as of :meth:`Pick.finish`."""
        self.pick.finish(outcome, retry_after=retry_after, in_flight=in_flight, outpaced=outpaced, slowness=slowness)
        if self.probe is not None:
            self.probe.finish(outcome, retry_after=retry_after)
        requests = self.channel.requests
        requests.count -= 1
        if not requests.count:
            requests.on_idle()


class InstanceAdmission(Protocol):
    """The circuit breakers of one tool at each instance."""

    def breaker_of(self, instance: str) -> CircuitBreaker | None:
        """Return the breaker of this tool at one instance; None if off."""

    def admits(self, instance: str) -> bool:
        """Return whether the breaker at that instance admits a call; its state does not change."""


class InstancePool:
    """The instances of one service.

    Args:
        channels: see :data:`WeightedChannels`.
        balancing, outlier_detection: choice and ejection of instances.
        clock, randomness: of the balancer.
        observer: of the dispatcher.
        service, label: id of the service, and its label in metrics.
        is_former: the catalogue in force does not have the service: nothing is reported.

    Attributes:
        channels: over which its instances are reached.
        connection: with these.
        is_balanced: there are several instances.
        answered: when each of them last answered.
        overtook: when the latest of their answered requests began.
        unresponsive: which of them answer no tool while others do, and since when that is known.
        tally: counts its replies.
        keys: which instance may have executed which idempotency key.
    """

    def __init__(
        self,
        channels: WeightedChannels,
        *,
        balancing: Balancing,
        outlier_detection: OutlierDetection | None,
        clock: Clock,
        randomness: Randomness,
        observer: DispatcherObserver = NULL_DISPATCHER,
        service: str = "",
        is_former: bool = False,
    ) -> None:
        self._observer = observer
        self._service = service
        self.tally: Tally | None = None
        self._is_former = is_former
        if not is_former:
            self._count_replies()
        self._weighted = channels
        self.channels = [channel for *_, channel in channels]
        self.connection: Connection = self.channels[0].connection
        self._versions: dict[str, str | None] = {}
        self._in_range: dict[Range, frozenset[str]] = {}
        self._clock = clock
        self._places: dict[str, tuple[Channel, Instance]] = {}
        self._lives: dict[str, str] = {}
        self._only: str | None = None  # the only instance
        self._overdue_s: dict[str, float] = {}  # by tool
        self.is_balanced = False
        self.answered: dict[str, float] = {}
        self.overtook = -inf
        self.unresponsive: dict[str, float] = {}
        self._seen = -1
        self._asking: InstanceAdmission | None = None
        self.keys = KeyHolders()
        self.balancer = Balancer(
            balancing=balancing,
            outlier_detection=outlier_detection,
            clock=clock,
            randomness=randomness,
            admits=self._admits,
            listener=self._on_change,
        )

    def _count_replies(self) -> None:
        replies = self._observer.observe_service(self._service)
        self.tally = None if replies is None else Tally(replies)

    def _on_change(self, name: str, change: str, why: str) -> None:
        instance = self._places.get(name, (None, None))[1]
        if instance is not None and change in ("ejected", "unresponsive"):
            suspend_places(instance)  # what hangs there leaves its places to calls at other instances
        if not self._is_former:
            self._observer.on_instance_change(self._service, name, change, why)

    def retire(self) -> None:
        """Mark the pool as no longer in the catalogue: only calls in flight may use it. Its instances are reported as left,
        and no changes after that."""
        if not self._is_former:
            self._report(self._places, {})
            self._is_former = True

    def restore(self) -> None:
        """Mark the pool as in the catalogue again."""
        self._count_replies()
        self._is_former = False
        self._report({}, self._places)

    @property
    def returned_at(self) -> float:
        """When the first instance became known, while none was."""
        return max((channel.met_at for channel in self.channels), default=-inf)

    @property
    def joined_at(self) -> float:
        """When the last instance became known."""
        return max((channel.joined_at for channel in self.channels), default=-inf)

    @property
    def is_served(self) -> bool:
        """Whether an instance has announced itself, or anything has replied, at any time."""
        return any(channel.is_served for channel in self.channels)

    @property
    def known(self) -> int:
        """Number of instances known by name."""
        count = 0
        for channel in self.channels:  # perf: no generator; each request asks
            count += len(channel.instances)
        return count

    @property
    def is_deserted(self) -> bool:
        """Whether the last instance has been lost for :data:`DISCOVERY_S`. Further ones are asked for."""
        if self.known or not any(channel.had_instances for channel in self.channels):
            return False
        for channel in self.channels:
            channel.greet()
        return self._clock() >= max(channel.asked_since for channel in self.channels) + DISCOVERY_S

    def replace_channels(self, channels: WeightedChannels) -> None:
        """Replace the channels by these. Instances that stay keep their state, and removed ones get no further request."""
        self._weighted = channels
        former, self.channels = self.channels, [channel for *_, channel in channels]
        self._refresh()
        for channel in former:
            channel.next_turn()  # calls that wait for an instance may go to another one

    def configure(self, balancing: Balancing, outlier_detection: OutlierDetection | None) -> None:
        """Apply other settings; the state of the instances is kept."""
        self.balancer.configure(balancing, outlier_detection)
        self._seen = -1

    def pick(
        self,
        guards: InstanceAdmission,
        tried: Collection[str] = (),
        *,
        key: str | None = None,
        is_bound: bool = True,
        user: str = "",
        refused: Collection[str] = (),
        is_large: bool = False,
        requires: Range | None = None,
    ) -> SelectedInstance | None:
        """Select the target of the next request of a tool with these ``guards``.

        Args:
            tried: names of instances that previous attempts have used.
            key: an idempotency key of ``user``: goes to the instance that may have executed it, if known, otherwise to the
                one that all dispatchers choose (rendezvous hashing).
            is_bound: that instance gets the request whatever its health: another one must not execute it again.
            refused: names of instances that refused this request with that key; others are preferred.
            is_large: the request exceeds the broker's largest message: only instances with a session qualify, if there are
                any.
            requires: only instances of these versions qualify; None: of all.

        Returns:
            None: no instance is available.
        """
        seen, now = 0, self._clock()
        for channel in self.channels:
            if now >= channel.hello_at:
                channel.greet()
            seen += channel.instances.version
        if seen != self._seen:
            self._refresh()
        eligible = None if requires is None else self.select_versions(requires)
        if eligible is not None and not eligible:
            return None
        self._asking = guards
        home = self._only if key is None else self._home(key, user, refused, eligible)
        if home is not None and not is_bound and (self.balancer.is_ejected(home) or not self._admits(home)):
            home = self._only
        if home is not None:
            pick = self.balancer.pick_instance(home, now)
        else:
            if is_large:
                # Without one, the request is refused with the reason.
                accepting = frozenset(name for name, (_, instance) in self._places.items() if instance.is_named)
                eligible = accepting if eligible is None else accepting & eligible or eligible
            if eligible:
                pick = self.balancer.pick(frozenset(tried), eligible)
            else:
                pick = self.balancer.pick(frozenset(tried)) if tried else self.balancer.pick()
        if type(pick) is not Pick:
            return None
        name = pick.instance
        channel, instance = self._places[name]
        channel.requests.count += 1
        probe = None
        if self.is_balanced:  # for a single instance the tool's own breaker suffices
            breaker = guards.breaker_of(name)
            if breaker is not None:
                permit = breaker.admit()
                # The breaker of one instance rejects no call: the balancer has found no better instance.
                probe = permit if type(permit) is BreakerPermit else None
        return SelectedInstance(channel, instance, pick, probe)

    def can_send(
        self,
        *,
        needs_instance: bool,
        repeatable: bool,
        requires: Range | None = None,
        key: str | None = None,
        user: str = "",
        refused: Collection[str] = (),
    ) -> bool:
        """Return whether a request can be sent now; arguments as of :meth:`Channel.can_send` and :meth:`pick`."""
        eligible = None if requires is None else self.select_versions(requires)
        if eligible and all(self._places[name][1].is_suspect for name in eligible):
            return False
        if key is not None:
            # Until its instance is known to be gone: another one could execute it twice.
            self._refresh_if_changed()
            home = self._home(key, user, refused, eligible)
            if home is not None and self._places[home][1].is_suspect:
                return False
        now = self._clock()
        for channel in self.channels:  # noqa: SIM110 # perf: no generator; each request asks
            if channel.can_send(now, needs_instance=needs_instance, repeatable=repeatable):
                return True
        return False

    def has_ready(self, requires: Range | None) -> bool:
        """Return whether there is an instance of these versions, known by name, that can be reached."""
        self._refresh_if_changed()
        names = self._places if requires is None else self.select_versions(requires)
        instances = (self._places[name][1] for name in names)
        return any(each.is_named and not each.is_suspect for each in instances)

    def find_unresponsive(
        self,
        tool: str,
        overdue_s: float,
        answered: Mapping[str, float],
        overtook: float,
        *,
        counts: bool = True,
        must_wait: bool = False,
    ) -> frozenset[str]:
        """Return the instances that do not answer requests of ``tool``, or of any tool, while others do: one was sent after
        their last answer, another instance has answered a later one, and it is overdue. Overdue requests at these, at
        those that are ejected, and many at a topic that instances share, leave their places to other calls.

        An instance that has many more overdue requests than the others, with streams that have brought nothing for so long,
        is ejected, although it answers some.

        Args:
            overdue_s: seconds after which a request of ``tool`` should have been answered.
            answered: when each instance last answered a request of ``tool``.
            overtook: when the latest of the answered requests of ``tool`` began.
            counts: compare the overdue requests of all instances. perf: those of instances that answer are read for this.
            must_wait: calls wait for the places of others: fewer overdue requests are enough for an ejection.
        """
        self._refresh_if_changed()
        if len(self._overdue_s) > MAX_TOOLS:
            self._overdue_s.clear()  # most are of former catalogues
        self._overdue_s[tool] = overdue_s
        now, joined_at = self._clock(), self.joined_at
        found, numbers = set[str](), dict[str, int]()
        for name, (_, instance) in self._places.items():
            since, any_since = answered.get(name, -inf), self.answered.get(name, -inf)
            is_left_out = instance.is_suspect or self.balancer.is_ejected(name)  # its own end is told
            if any_since > self.unresponsive.get(name, inf):
                del self.unresponsive[name]
                if not is_left_out:
                    self._on_change(name, "returned", "answered")
            # perf: of an instance that answers, the requests of other tools are not looked at.
            is_quiet = is_left_out or min(since, any_since) < now - UNRESPONSIVE_S
            if not (is_quiet or counts):
                continue
            first = max(joined_at, self.balancer.well_since(name))  # all instances could have had later ones
            overdue, overtaken, count = list[Request](), list[Request](), 0
            for request in instance.find_requests():
                requested = request.tool
                if requested != tool and not is_quiet:
                    continue
                is_stream = request.buffer is not None and request.chunks > 0
                began = request.idle_since if is_stream else request.began
                if now - began < self._overdue_s.get(requested, inf):
                    continue
                overdue.append(request)
                if requested == tool and began < overtook:
                    overtaken.append(request)
                    count += began >= first
                if is_stream or is_left_out or not self.is_balanced:
                    continue
                if any_since < began < self.overtook:
                    found.add(name)
                    if name not in self.unresponsive:
                        self.unresponsive[name] = now
                        self._on_change(name, "unresponsive", "others answer")
                elif requested == tool and since < began < overtook:
                    found.add(name)
            if not instance.is_suspect and name in self.balancer:
                numbers[name] = count
            # They were sent there all the same: of its idempotency key, or of its version. Of a shared topic's instances
            # none can be ejected.
            is_shared = not instance.is_named and len(overtaken) >= UNRESPONSIVE_RATIO
            for request in overdue if is_left_out or name in found else overtaken if is_shared else ():
                if request.place is not None:
                    request.place.suspend()
        if counts:
            self.balancer.eject_unresponsive(numbers, UNRESPONSIVE_RATIO if must_wait else CERTAIN_RATIO)
        return frozenset(found)

    def has_requests(self, tool: str, since: float, until: float) -> bool:
        """Return whether a request of ``tool`` waits whose attempt began between these two times."""
        return any(
            each.tool == tool and since < each.began <= until
            for _, instance in self._places.values()
            for each in instance.find_requests()
        )

    def has_other(self, name: str) -> bool:
        """Return whether there is another instance that can be reached, is not ejected, and has asked for no pause."""
        self._refresh_if_changed()
        others = [id for id, (_, each) in self._places.items() if id != name and not each.is_suspect]
        return self.balancer.has_unpaused(id for id in others if not self.balancer.is_ejected(id))

    def has_untried(self, tried: Collection[str], requires: Range | None) -> bool:
        """Return whether there is an instance of these versions that is not among ``tried``."""
        self._refresh_if_changed()
        names = self._places if requires is None else self.select_versions(requires)
        return any(name not in tried for name in names)

    def has_other_unpaused(self, name: str) -> bool:
        """Return whether there is another instance that has asked for no pause: a suspected or ejected one has not."""
        self._refresh_if_changed()
        return self.balancer.has_unpaused(id for id in self._places if id != name)

    def select_versions(self, requires: Range) -> frozenset[str]:
        """Return the names of the instances whose version is in the range."""
        self._refresh_if_changed()
        found = self._in_range.get(requires)
        if found is None:
            if len(self._in_range) >= MAX_RANGES:
                self._in_range.clear()
            found = self._in_range[requires] = frozenset(
                name for name, version in self._versions.items() if version is not None and requires.includes(version)
            )
        return found

    @property
    def versions(self) -> tuple[str, ...]:
        """The declared versions of the instances, highest first."""
        self._refresh_if_changed()
        return tuple(sorted({each for each in self._versions.values() if each}, key=version_key, reverse=True))

    def _home(self, key: str, user: str, refused: Collection[str], eligible: frozenset[str] | None) -> str | None:
        """Return the name of the instance for ``key``; None if no instance is known by name."""
        holder = self.keys.get(user, key)
        if holder is not None and (eligible is None or holder.name in eligible):
            instance = self._places.get(holder.name, (None, None))[1]
            if instance is not None and holder == Holder(instance.name, instance.incarnation):
                return holder.name
        named = [
            name
            for name, (_, instance) in self._places.items()
            if instance.is_named and (eligible is None or name in eligible)
        ]
        willing = [name for name in named if name not in refused] or named
        return max(willing, key=lambda name: _weight(name, key)) if willing else None

    def _admits(self, name: str) -> bool:
        channel, instance = self._places[name]
        if instance.is_suspect:
            return False
        # The topic of an instance that is gone is as good as none while other instances can be reached, unless a third-party
        # service has taken its place.
        is_left = not instance.is_named and channel.had_instances and channel.answered_at < channel.asked_since
        if is_left or not (instance.is_named or channel.connection.has_subscriber(channel.request_queue)):
            return False
        # A listed topic on which nothing has replied has one request at a time, while other instances reply.
        if not instance.is_named and channel.requests.count and not channel.is_served and self.is_served:
            return False
        guards = self._asking
        return guards is None or guards.admits(name)

    def _refresh_if_changed(self) -> None:
        if sum(channel.instances.version for channel in self.channels) != self._seen:
            self._refresh()

    def _refresh(self) -> None:
        """Update the balancer after a change of the known instances."""
        self._seen = sum(channel.instances.version for channel in self.channels)
        places: dict[str, tuple[Channel, Instance]] = {}
        weights: dict[str, float] = {}
        self._versions, self._in_range = {}, {}
        for name, weight, version, channel in self._weighted:
            shares = channel.instances.shares
            for each in [each for each in channel.instances if shares.get(each.name, 1.0)] or channel.instances:
                places[each.name] = channel, each
                weights[each.name] = weight * (shares.get(each.name) or 1.0)
                self._versions[each.name] = each.version or version
            if not len(channel.instances) and channel.shared is not None:
                places[name] = channel, channel.shared
                weights[name] = weight
                self._versions[name] = version
        there, self._places = self._places, places
        self._only = next(iter(places)) if len(places) == 1 else None
        self.is_balanced = len(places) > 1
        self.answered = {name: at for name, at in self.answered.items() if name in places}
        self.unresponsive = {name: at for name, at in self.unresponsive.items() if name in places}
        self.balancer.replace(weights)
        for name, (_, instance) in places.items():
            if not instance.is_named:
                continue
            former = self._lives.pop(name, instance.incarnation)
            if former != instance.incarnation:
                self.balancer.reset_instance(name)
            self._lives[name] = instance.incarnation
        while len(self._lives) > MAX_LIVES:
            del self._lives[next(iter(self._lives))]
        self._report(there, places)

    def _report(self, former: Collection[str], now: Collection[str]) -> None:
        for name in now:
            if name not in former and not name.startswith("("):
                self._on_change(name, "joined", "here")
        for name in former:
            if name not in now and not name.startswith("("):
                self._on_change(name, "left", "gone")

    def describe(self) -> list[tuple[InstanceView, Instance, str | None]]:
        """Return each instance: its state, itself, and its version."""
        return [(each, self._places[each.id][1], self._versions.get(each.id)) for each in self.instances()]

    def glimpse(self) -> tuple[InstanceView, ...]:
        """See :meth:`Balancer.peek_instances`."""
        return tuple(map(self._mark, self.balancer.peek_instances()))

    def instances(self) -> tuple[InstanceView, ...]:
        """Return the state of each instance."""
        self._refresh_if_changed()
        return tuple(map(self._mark, self.balancer.instances()))

    def _mark(self, view: InstanceView) -> InstanceView:
        is_marked = view.state in UP_STATES and self.unresponsive.get(view.id, -inf) > self.answered.get(view.id, -inf)
        state = "unresponsive" if is_marked else view.state
        if view.id == SHARED and state == "warming":  # the only one of its pool: no slow start holds it back
            state = "up"
        return view if state is view.state else msgspec.structs.replace(view, state=state)


def _weight(name: str, key: str) -> bytes:
    return hashlib.blake2b(encode_text(f"{name}\0{key}"), digest_size=8).digest()


# The instance pools of one dispatcher, opened when a service is first called.
#
# A pool outlives changes of the catalogue: instances are added to and removed from it. The pool of a removed service is
# retained (:mod:`dispatch._internal`) for calls in flight, and for the service to return.


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


class _ChannelSettings(msgspec.Struct, frozen=True):
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
    """

    key: PoolKey
    user: PoolUser
    calls: InFlight
    pool: InstancePool | None = None
    wanted: dict[str, _ChannelSettings] = {}
    channels: dict[str, Channel] = {}
    missing: dict[str, _ChannelSettings] = {}
    in_pool: dict[str, tuple[Topics, Channel]] = {}
    again_at: float = 0.0


class PoolRegistry:
    """Finds and opens instance pools.

    Args:
        channels: opens topics.
        randomness: of the balancers.
        users: of the catalogue in force.
        observer: of the dispatcher.
    """

    def __init__(
        self, channels: Channels, randomness: Randomness, users: PoolUsers, observer: DispatcherObserver
    ) -> None:
        self._observer = observer
        self._channels = channels
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
        if entry.missing and self._clock() >= entry.again_at:
            self._open_later(entry)
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
                        *(self._channels.open(*settings.topics, service) for settings in missing.values()),
                        return_exceptions=True,
                    )
            except TimeoutError:
                raise TransportError(
                    ErrorType.UNREACHABLE,
                    f"The tool was not executed: the broker did not open the topics of '{service}' in time. Use another "
                    "tool, or report that the broker is slow; `dispatch doctor` finds the cause.",
                    may_have_run=False,
                ) from None
            failure: TransportError | None = None
            channels: dict[str, tuple[Topics, Channel]] = {}
            for (name, settings), result in zip(missing.items(), opened, strict=True):
                if isinstance(result, Channel):
                    channels[name] = settings.topics, result
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
        if in_force is None:  # the call began with a former catalogue
            self._retention.add(key)
        self._set_wanted(entry)
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
        for topics in (
            *(each.topics for each in entry.wanted.values()),
            *(topics for topics, _ in entry.in_pool.values()),
        ):
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
            each.id: _ChannelSettings((each.request_queue, each.response_queue), each.weight, each.version)
            for each in service.instances
        } or {SHARED: _ChannelSettings((service.request_queue, service.response_queue), 1.0, service.version)}
        former = entry.wanted
        if wanted == former:
            return
        for settings in wanted.values():
            self._holders[settings.topics] += 1
        entry.wanted = wanted
        entry.channels = {
            name: channel
            for name, channel in entry.channels.items()
            if name in wanted and wanted[name].topics == former[name].topics
        }
        for name, settings in wanted.items():
            if is_local_queue(settings.topics[0]) and (channel := self._channels.get(settings.topics)):
                entry.channels[name] = channel
        self._apply(entry)
        for settings in former.values():
            self._release(settings.topics)
        if entry.pool is not None and entry.missing:
            self._open_later(entry)

    def _add_channels(self, entry: _Entry, channels: dict[str, tuple[Topics, Channel]]) -> None:
        """Add open channels unless the catalogue was replaced, and the channel perhaps closed, meanwhile."""
        added = {
            name: channel
            for name, (topics, channel) in channels.items()
            if name in entry.missing and entry.missing[name].topics == topics and self._channels.get(topics) is channel
        }
        if added:
            entry.channels |= added
            self._apply(entry)

    def _apply(self, entry: _Entry) -> None:
        """Give the pool the open channels. It uses the former ones until the first of the wanted ones is open: an attempt
        that has the pool already goes to one of those."""
        entry.missing = {name: settings for name, settings in entry.wanted.items() if name not in entry.channels}
        channels = {name: entry.channels[name] for name in entry.wanted if name in entry.channels}
        if not channels:
            return
        wanted = entry.wanted
        weighted = [(name, wanted[name].weight, wanted[name].version, each) for name, each in channels.items()]
        if entry.pool is None:
            entry.pool = InstancePool(
                weighted,
                balancing=entry.user.policy.balancing,
                outlier_detection=entry.user.policy.outlier_detection,
                clock=self._clock,
                randomness=self._randomness,
                observer=self._observer,
                service=entry.key.service,
                is_former=entry.key in self._retention,
            )
            entry.again_at = self._clock() + AGAIN_S
        else:
            entry.pool.replace_channels(weighted)
        former = entry.in_pool
        entry.in_pool = {name: (wanted[name].topics, channel) for name, channel in channels.items()}
        for topics, _ in entry.in_pool.values():
            self._holders[topics] += 1
        for topics, channel in former.values():
            release = partial(self._release, topics)
            if not channel.requests.await_idle(release):
                release()

    def _release(self, topics: Topics) -> None:
        self._holders[topics] -= 1
        if not self._holders[topics] and not self._is_closed:
            del self._holders[topics]
            self._channels.close_unused(topics, lambda: topics in self._holders)

    def _open_later(self, entry: _Entry) -> None:
        """Open the missing channels in the background."""
        entry.again_at = self._clock() + AGAIN_S
        for name, settings in entry.missing.items():
            task = asyncio.create_task(self._open_missing(entry, name, settings.topics))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_missing(self, entry: _Entry, name: str, topics: Topics) -> None:
        with contextlib.suppress(TransportError):  # next time
            self._add_channels(entry, {name: (topics, await self._channels.open(*topics, entry.key.service))})

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
            if pool is not None:
                pool.retire()
            self._retention.add(entry.key)
            return
        entry.user = user
        if self._retention.restore(entry.key) and pool is not None:
            pool.restore()
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
        return [(each.key, each.pool) for each in entries if each.pool is not None and each.key not in self._retention]

    def of_service(self, service: str) -> list[InstancePool]:
        """Return the open pools of a service, one for each version; without any, the first one that belongs to a tool."""
        pools = [(key, pool) for key, pool in self.all() if key.service == service]
        return [pool for key, pool in pools if not key.tool] or [pool for _, pool in pools[:1]]

    async def close(self) -> None:
        """Open no more pools, and leave all topics to :meth:`Channels.close`."""
        self._is_closed = True
        self._retention.close()
        await cancel_and_wait(list(self._opening))
