"""The instances of a service that a dispatcher can call, and which one gets the next request.

There are three kinds: instances of ours, which have said that they are there and are known by name; topics that the
service's descriptor lists as instances, where nobody is known by name; and, where neither is to be had, the service's own
topic, whose broker spreads the requests over whoever listens there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from dispatch._internal.permit import Clock, Randomness
from dispatch.balancing.balancer import Balancer, Pick
from dispatch.balancing.snapshot import InstanceView
from dispatch.messaging.rpc.exchange_outcome import Tally
from dispatch.policy import Balancing, OutlierDetection
from dispatch.resilience.breaker.breaker import BreakerPermit, CircuitBreaker
from dispatch.routing.channel import Channel
from dispatch.routing.instance import Instance
from dispatch.routing.key_holders import Holder, KeyHolders
from dispatch.telemetry.call_observer import NULL_SERVICE, OnInstanceChange, ServiceObserver

SHARED = "(shared)"
"""The name of a service's own topic among its instances: no instance has it, because a name has no parentheses."""

MAX_LIVES = 512
"""Instances of which it is remembered which life they were in: twice as many as there are at once."""


class SelectedInstance(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where one request goes.

    Attributes:
        route: the topics.
        instance: whom it is addressed to; None: whoever takes it from the topic.
        pick: the balancer's permit, to be finished.
        probe: that of the tool's breaker at this instance, likewise; None: it was not asked.
        observer: of the service.
    """

    route: Channel
    instance: Instance | None
    pick: Pick
    probe: BreakerPermit | None
    observer: ServiceObserver

    @property
    def topic(self) -> str:
        """Where the request goes."""
        return self.route.request_queue if self.instance is None else self.instance.topic


class InstanceAdmission(Protocol):
    """The circuit breakers of one tool at each instance."""

    def breaker_of(self, instance: str) -> CircuitBreaker | None:
        """The breaker of this tool at one instance; None: off."""
        ...

    def admits(self, instance: str) -> bool:
        """Would the breaker at that instance let a call go? Nothing changes."""
        ...


class InstancePool:
    """The instances of one service.

    Args:
        routes: the topics, each with the name and the weight that it has as an instance.
        balancing, outlier_detection: choice and ejection of instances.
        addressed: requests go to the own topics of instances that are known by name.
        clock, randomness: of the balancer.
        greet: called with a route that is used when its time has come: may ask who is there.
        observer: of the service.
        is_former: the catalogue in force does not have the service: nothing is reported.

    Attributes:
        tally: counts its replies.
        keys: who may have done the work of which idempotency key.
    """

    def __init__(
        self,
        routes: Sequence[tuple[str, float, Channel]],
        *,
        balancing: Balancing,
        outlier_detection: OutlierDetection | None,
        addressed: bool,
        clock: Clock,
        randomness: Randomness,
        greet: Callable[[Channel], object],
        observer: ServiceObserver = NULL_SERVICE,
        is_former: bool = False,
    ) -> None:
        self._observe(observer)
        self._is_former = is_former
        self._routes = list(routes)
        self._addressed = addressed
        self._greet = greet
        self._clock = clock
        self._places: dict[str, tuple[Channel, Instance | None]] = {}
        self._lives: dict[str, str] = {}
        self._only: str | None = None  # there is nothing to choose
        self._seen = -1
        self.new: list[Instance] = []
        """Instances that have not answered a request yet, as far as :meth:`held` has not found otherwise."""
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
        """The catalogue in force does not have these instances: only calls that began before may still use them. They are
        reported as left, and nothing is after that."""
        if not self._is_former:
            self._report(self._places, {})
            self._is_former = True

    def restore(self, observer: ServiceObserver) -> None:
        """A later catalogue has them again."""
        self._observe(observer)
        self._is_former = False
        self._report({}, self._places)

    @property
    def routes(self) -> list[Channel]:
        """The topics."""
        return [route for _, _, route in self._routes]

    @property
    def known(self) -> int:
        """Instances of ours that are known by name."""
        return sum(len(route.instances) for _, _, route in self._routes)

    def add(self, name: str, weight: float, route: Channel) -> None:
        """One more topic."""
        self._routes.append((name, weight, route))
        self._seen = -1

    def configure(self, balancing: Balancing, outlier_detection: OutlierDetection | None, *, addressed: bool) -> None:
        """Other settings from now on; what is known of the instances stays."""
        self.balancer.configure(balancing, outlier_detection)
        self._addressed = addressed
        self._seen = -1

    def pick(
        self,
        guards: InstanceAdmission,
        tried: Collection[str] = (),
        *,
        key: str | None = None,
        user: str = "",
        refused: Collection[str] = (),
        parts: bool = False,
    ) -> SelectedInstance | None:
        """Where the next request goes, of a tool with these ``guards``.

        Args:
            tried: names of instances that should not have it, because they had it before.
            key: an idempotency key of ``user``: it goes to the instance that may have done its work, if that is known, and
                otherwise to the one to which all dispatchers send it (rendezvous hashing).
            refused: names of instances that refused this request with that key: another one is used, if there is one.
            parts: only instances that take requests in parts can serve it.

        Returns:
            None: there is nobody.
        """
        seen, now = 0, self._clock()
        for _, _, route in self._routes:
            if route.hello is not None and now >= route.hello_at:
                self._greet(route)
            seen += route.instances.version
        if seen != self._seen:
            self._refresh(seen)
        home = self._only if key is None else self._home(key, user, refused, parts)
        if home is not None:
            pick = self.balancer.take(home)
        else:
            self._asking = guards
            if parts:
                # Where none can, the request is refused with the reason, whichever instance is picked.
                pick = self.balancer.pick(frozenset(tried), self._taking_parts() or None)
            else:
                pick = self.balancer.pick(frozenset(tried)) if tried else self.balancer.pick()
        if type(pick) is not Pick:
            return None
        name = pick.instance
        route, instance = self._places[name]
        probe = None
        if len(self._places) > 1:  # of a single one the tool's own breaker knows all there is to know
            breaker = guards.breaker_of(name)
            if breaker is not None:
                permit = breaker.admit()
                # A refusal here means that nobody else may be asked either, and that is not for this breaker to say.
                probe = permit if type(permit) is BreakerPermit else None
        return SelectedInstance(route, instance, pick, probe, self._observer)

    def held(self) -> list[Instance]:
        """The instances, if each of them is new and has not answered its first request; else none."""
        seen = sum(route.instances.version for _, _, route in self._routes)
        if seen != self._seen:
            self._refresh(seen)
        self.new = [each for each in self.new if not each.is_proven]
        held = [each for each in self.new if each.is_held]
        return held if len(held) == len(self._places) else []

    def _taking_parts(self) -> frozenset[str]:
        return frozenset(
            name for name, (_, instance) in self._places.items() if instance is not None and instance.parts
        )

    def _home(self, key: str, user: str, refused: Collection[str], parts: bool) -> str | None:
        """The name of the instance to which ``key`` belongs; None: no instance is known by name."""
        holder = self.keys.get(user, key)
        if holder is not None:
            instance = self._places.get(holder.name, (None, None))[1]
            if instance is not None and holder == Holder(instance.name, instance.incarnation):
                return holder.name
        named = [
            name
            for name, (_, instance) in self._places.items()
            if instance is not None and (instance.parts or not parts) and not instance.is_held
        ]
        willing = [name for name in named if name not in refused] or named
        return max(willing, key=lambda name: _weight(name, key)) if willing else None

    def _admits(self, name: str) -> bool:
        instance = self._places[name][1]
        if instance is not None and (instance.suspect or instance.is_held):
            return False
        guards = self._asking
        return guards is None or guards.admits(name)

    def _refresh(self, seen: int) -> None:
        """Somebody came or went."""
        self._seen = seen
        places: dict[str, tuple[Channel, Instance | None]] = {}
        weights: dict[str, float] = {}
        for name, weight, route in self._routes:
            named = list(route.instances) if self._addressed else []
            for instance in named:
                places[instance.name] = route, instance
                weights[instance.name] = weight
            if not named:
                places[name] = route, None
                weights[name] = weight
        there, self._places = self._places, places
        self.new = [each for _, each in places.values() if each is not None and not each.is_proven]
        self._only = next(iter(places)) if len(places) == 1 else None
        self.balancer.replace(weights)
        for name, (_, instance) in places.items():
            if instance is None:
                continue
            former = self._lives.pop(name, instance.incarnation)
            if former != instance.incarnation:
                self.balancer.renew(name)
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
        """See :meth:`Balancer.glimpse`."""
        return self.balancer.glimpse()

    def instances(self) -> tuple[InstanceView, ...]:
        """How each one is doing."""
        seen = sum(route.instances.version for _, _, route in self._routes)
        if seen != self._seen:
            self._refresh(seen)
        return self.balancer.instances()


def _weight(name: str, key: str) -> bytes:
    return hashlib.blake2b(f"{name}\0{key}".encode(), digest_size=8).digest()
