"""The instances of a service that a dispatcher can call, and which one gets the next request.

There are three kinds: instances of dispatch's service base, which have announced themselves and are known by name; topics
that the service's descriptor lists as instances, without a known name; and otherwise the service's own topic, over whose
consumers the broker distributes the requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Protocol

import msgspec

from dispatch._internal.permit import Clock, Randomness
from dispatch._internal.utf8 import encode_text
from dispatch.balancing.balancer import Balancer, Pick
from dispatch.balancing.snapshot import InstanceView
from dispatch.catalog.version_ranges import Range
from dispatch.catalog.versions import version_key
from dispatch.errors import Outcome
from dispatch.messaging.rpc.exchange_outcome import Tally
from dispatch.policy import Balancing, OutlierDetection
from dispatch.resilience.breaker.breaker import BreakerPermit, CircuitBreaker
from dispatch.routing.channel import Channel
from dispatch.routing.instance import Instance
from dispatch.routing.key_holders import Holder, KeyHolders
from dispatch.telemetry.call_observer import NULL_SERVICE, OnInstanceChange, ServiceObserver

SHARED = "(shared)"
"""The name of a service's own topic among its instances: names of instances have no parentheses."""

Routes = Sequence[tuple[str, float, Channel]]
"""Channels, each with its name and weight as an instance."""
MAX_RANGES = 1_000
"""Ranges of versions whose instances are remembered."""
NO_VERSIONS: Mapping[str, str | None] = {}
MAX_LIVES = 512
"""Instances whose last incarnation is remembered: twice the largest number of known instances."""


class SelectedInstance(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The target of one request.

    Attributes:
        route: the channel.
        instance: the addressee; None: any consumer of the topic.
        pick: the balancer's permit, to be finished.
        probe: the permit of the tool's breaker at this instance; None: not acquired.
        observer: of the service.

    :meth:`release` is called once, when the request has ended.
    """

    route: Channel
    instance: Instance | None
    pick: Pick
    probe: BreakerPermit | None
    observer: ServiceObserver

    def release(
        self,
        outcome: Outcome,
        *,
        retry_after: float | None,
        in_flight: int | None = None,
        outpaced: bool = False,
        slowness: float | None = None,
    ) -> None:
        """Return the permits of the balancer and of the breaker at this instance; arguments as of :meth:`Pick.finish`."""
        self.pick.finish(outcome, retry_after=retry_after, in_flight=in_flight, outpaced=outpaced, slowness=slowness)
        if self.probe is not None:
            self.probe.finish(outcome, retry_after=retry_after)
        self.route.requests.end()

    @property
    def topic(self) -> str:
        """The topic of the request."""
        return self.route.request_queue if self.instance is None else self.instance.topic


class InstanceAdmission(Protocol):
    """The circuit breakers of one tool at each instance."""

    def breaker_of(self, instance: str) -> CircuitBreaker | None:
        """Return the breaker of this tool at one instance; None if off."""

    def admits(self, instance: str) -> bool:
        """Return whether the breaker at that instance admits a call; its state does not change."""


class InstancePool:
    """The instances of one service.

    Args:
        routes: the channels, each with its name and weight as an instance.
        versions: declared versions of the channels, by name.
        balancing, outlier_detection: choice and ejection of instances.
        clock, randomness: of the balancer.
        greet: called with a channel whose next hello is due.
        observer: of the service.
        is_former: the catalogue in force does not have the service: nothing is reported.

    Attributes:
        tally: counts its replies.
        keys: which instance may have executed which idempotency key.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        balancing: Balancing,
        outlier_detection: OutlierDetection | None,
        clock: Clock,
        randomness: Randomness,
        greet: Callable[[Channel], object],
        observer: ServiceObserver = NULL_SERVICE,
        is_former: bool = False,
        versions: Mapping[str, str | None] = NO_VERSIONS,
    ) -> None:
        self._observe(observer)
        self._is_former = is_former
        self._routes = list(routes)
        self._route_versions = versions
        self._versions: dict[str, str | None] = {}
        self._in_range: dict[Range, frozenset[str]] = {}
        self._greet = greet
        self._clock = clock
        self._places: dict[str, tuple[Channel, Instance | None]] = {}
        self._lives: dict[str, str] = {}
        self._only: str | None = None  # the only instance
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

    def _observe(self, observer: ServiceObserver) -> None:
        replies = observer.replies
        self.tally = None if replies is None else Tally(replies)
        self._observer = observer
        self._on_instance_change: OnInstanceChange = observer.on_instance_change

    def _on_change(self, name: str, change: str, why: str) -> None:
        if not self._is_former:
            self._on_instance_change(name, change, why)

    def retire(self) -> None:
        """Mark the pool as no longer in the catalogue: only calls in flight may use it. Its instances are reported as left,
        and no changes after that."""
        if not self._is_former:
            self._report(self._places, {})
            self._is_former = True

    def restore(self, observer: ServiceObserver) -> None:
        """Mark the pool as in the catalogue again."""
        self._observe(observer)
        self._is_former = False
        self._report({}, self._places)

    @property
    def routes(self) -> list[Channel]:
        """The channels."""
        return [route for _, _, route in self._routes]

    @property
    def returned_at(self) -> float:
        """When the first instance became known, while none was."""
        return max((route.joined_at for _, _, route in self._routes), default=-inf)

    @property
    def known(self) -> int:
        """Number of instances known by name."""
        count = 0
        for _, _, route in self._routes:  # perf: no generator; each request asks
            count += len(route.instances)
        return count

    def replace_routes(self, routes: Routes, versions: Mapping[str, str | None] = NO_VERSIONS) -> None:
        """Replace the channels by these. Instances that stay keep their state, and removed ones get no further request."""
        former, self._routes = self._routes, list(routes)
        self._route_versions = versions
        self._refresh(sum(route.instances.version for _, _, route in routes))
        for _, _, route in former:
            route.next_turn()  # calls that wait for an instance may go to another one

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
            refused: names of instances that refused this request with that key; others are preferred.
            is_large: the request exceeds the broker's largest message: only instances with a session qualify, if there are
                any.
            requires: only instances of these versions qualify; None: of all.

        Returns:
            None: no instance is available.
        """
        seen, now = 0, self._clock()
        for _, _, route in self._routes:
            if route.hello is not None and now >= route.hello_at:
                self._greet(route)
            seen += route.instances.version
        if seen != self._seen:
            self._refresh(seen)
        eligible = None if requires is None else self.select_versions(requires)
        if eligible is not None and not eligible:
            return None
        home = self._only if key is None else self._home(key, user, refused, eligible)
        if home is not None:
            pick = self.balancer.pick_instance(home)
        else:
            self._asking = guards
            if is_large:
                # Without one, the request is refused with the reason.
                accepting = frozenset(name for name, (_, instance) in self._places.items() if instance is not None)
                eligible = accepting if eligible is None else accepting & eligible or eligible
            if eligible:
                pick = self.balancer.pick(frozenset(tried), eligible)
            else:
                pick = self.balancer.pick(frozenset(tried)) if tried else self.balancer.pick()
        if type(pick) is not Pick:
            return None
        name = pick.instance
        route, instance = self._places[name]
        route.requests.count += 1
        probe = None
        if len(self._places) > 1:  # for a single instance the tool's own breaker suffices
            breaker = guards.breaker_of(name)
            if breaker is not None:
                permit = breaker.admit()
                # The breaker of one instance rejects no call: the balancer has found no better instance.
                probe = permit if type(permit) is BreakerPermit else None
        return SelectedInstance(route, instance, pick, probe, self._observer)

    def can_send(self, *, needs_instance: bool, repeatable: bool, requires: Range | None = None) -> bool:
        """Return whether a request can be sent now; arguments as of :meth:`Channel.can_send` and :meth:`pick`."""
        now = self._clock()
        if requires is not None and (eligible := self.select_versions(requires)):
            instances = [self._places[name][1] for name in eligible]
            if not any(instance is None or not instance.is_suspect for instance in instances):
                return False
        for _, _, route in self._routes:  # noqa: SIM110 # perf: no generator; each request asks
            if route.can_send(now, needs_instance=needs_instance, repeatable=repeatable):
                return True
        return False

    def has_other(self, name: str) -> bool:
        """Return whether there is another instance that can be reached and has asked for no pause."""
        self._refresh_if_changed()
        others = [
            id
            for id, (_, instance) in self._places.items()
            if id != name and (instance is None or not instance.is_suspect)
        ]
        return self.balancer.has_calm(others)

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
            if instance is not None and (eligible is None or name in eligible)
        ]
        willing = [name for name in named if name not in refused] or named
        return max(willing, key=lambda name: _weight(name, key)) if willing else None

    def _admits(self, name: str) -> bool:
        instance = self._places[name][1]
        if instance is not None and instance.is_suspect:
            return False
        guards = self._asking
        return guards is None or guards.admits(name)

    def _refresh_if_changed(self) -> None:
        seen = sum(route.instances.version for _, _, route in self._routes)
        if seen != self._seen:
            self._refresh(seen)

    def _refresh(self, seen: int) -> None:
        """Update the balancer after a change of the known instances."""
        self._seen = seen
        places: dict[str, tuple[Channel, Instance | None]] = {}
        weights: dict[str, float] = {}
        self._versions, self._in_range = {}, {}
        for name, weight, route in self._routes:
            version = self._route_versions.get(name)
            named = list(route.instances)
            for each in named:
                places[each.name] = route, each
                weights[each.name] = weight
                self._versions[each.name] = version
            if not named:
                places[name] = route, None
                weights[name] = weight
                self._versions[name] = version
        there, self._places = self._places, places
        self._only = next(iter(places)) if len(places) == 1 else None
        self.balancer.replace(weights)
        for name, (_, instance) in places.items():
            if instance is None:
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
            if name not in former and name != SHARED:
                self._on_change(name, "joined", "here")
        for name in former:
            if name not in now and name != SHARED:
                self._on_change(name, "left", "gone")

    def glimpse(self) -> tuple[InstanceView, ...]:
        """See :meth:`Balancer.peek_instances`."""
        return self.balancer.peek_instances()

    def instances(self) -> tuple[InstanceView, ...]:
        """Return the state of each instance."""
        self._refresh_if_changed()
        return self.balancer.instances()


def _weight(name: str, key: str) -> bytes:
    return hashlib.blake2b(encode_text(f"{name}\0{key}"), digest_size=8).digest()
