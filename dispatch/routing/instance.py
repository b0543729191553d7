"""The instances of a service that a dispatcher knows by name, and the requests it has sent to each.

Only instances that announced themselves (``here``, with the feature ``repair``) and answered a challenge are in here. A new
instance gets one request at a time until it has answered one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from dispatch.errors import TransportError
from dispatch.messaging.flow.publisher import Gate
from dispatch.messaging.rpc.retransmission import SUSPECT_AFTER
from dispatch.messaging.wire.properties import Property

MAX_INSTANCES = 256
"""Instances of one service that are known at once; others still get what goes to the shared topic."""
HELLO_EVERY_S = 10.0
"""How often a dispatcher that is being used looks for new instances."""
HELLO_AGAIN_S = 1.0
"""The same while it knows none."""
STALE_S = 60.0
"""An instance that answered no hello for so long is forgotten."""
SETTLED_EVERY = 32
"""Every so many requests an instance is told what is no longer waited for, so that it can forget that."""
MAX_EXCEPTED = 16
"""Requests that are waited for longer than later ones, and are named in that."""


class Instance:
    """One service instance: its own topic, and how it has been doing."""

    __slots__ = (
        "_on_suspect",
        "_since_settled",
        "_turns",
        "cancels",
        "incarnation",
        "is_loss_counted",
        "is_proven",
        "last_seen",
        "name",
        "parts",
        "publisher",
        "topic",
        "unanswered",
        "waiting",
    )

    def __init__(
        self,
        name: str,
        incarnation: str,
        topic: str,
        publisher: Gate,
        now: float,
        on_suspect: Callable[[], object] = lambda: None,
        *,
        parts: bool = False,
        cancels: bool = False,
    ) -> None:
        self._on_suspect = on_suspect
        self.name = name
        self.incarnation = incarnation
        self.topic = topic
        self.publisher = publisher
        self.last_seen = now
        self.parts = parts
        """It takes requests in parts."""
        self.cancels = cancels
        """It stops what nobody waits for any more."""
        self.waiting: dict[str, None] = {}
        """Ids of requests of ours that it has and has not answered, the oldest first."""
        self.unanswered = 0
        """Questions it left unanswered, in a row, over all requests."""
        self.is_loss_counted = False
        """A request failed because this life of the instance ended: the others that did are the same failure."""
        self.is_proven = False
        """It has acknowledged or answered a request."""
        self._turns: list[Callable[[], object]] = []
        self._since_settled = 0

    @property
    def in_flight(self) -> int:
        """Requests of ours that it has and has not answered."""
        return len(self.waiting)

    @property
    def suspect(self) -> bool:
        return self.unanswered >= SUSPECT_AFTER

    @property
    def is_held(self) -> bool:
        """It is new and has a request: it gets the next one when it has acknowledged or answered this one."""
        return not self.is_proven and len(self.waiting) > 0

    def on_turn(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, when this instance may be given the next request."""
        self._turns.append(callback)

    def alive(self, now: float) -> None:
        """It gave a sign of life that only the receiver of a request can give."""
        self.unanswered = 0
        self.last_seen = now
        if not self.is_proven:
            self.is_proven = True
            self.next_turn()

    def next_turn(self) -> None:
        """It may be given the next request, or has gone."""
        turns, self._turns = self._turns, []
        for callback in turns:
            callback()

    def missed(self) -> None:
        """It left another question unanswered."""
        self.unanswered += 1
        if self.suspect:
            self._on_suspect()

    def say_goodbye(self, properties: Mapping[str, str]) -> None:
        """Tell it that this dispatcher closes, so that it need not remember its requests. If that is lost, it forgets them
        later. ``properties``: what a message to the instance needs, with an ``id`` that was never used."""
        if self.cancels:
            said = {**properties, Property.INCARNATION: self.incarnation, Property.CANCEL: "1", Property.GOODBYE: "1"}
            with contextlib.suppress(TransportError):
                self.publisher.publisher.publish(b"", said, flow="goodbye", on_failure=_asked_in_vain)

    def settled(self, id: str) -> str | None:
        """What the request ``id``, the next to go there, is to say about those before it (the property ``settled``); None:
        nothing, this time."""
        self._since_settled += 1
        if self._since_settled < SETTLED_EVERY:
            return None
        self._since_settled = 0
        # A dictionary keeps the order of insertion, and ids come in the order of their numbers. Some that take long, or that
        # have to be repaired, must not make it remember everything since.
        oldest = [_number(each) for each in islice(self.waiting, MAX_EXCEPTED + 1)]
        below = oldest.pop() if len(oldest) > MAX_EXCEPTED else _number(id)
        return ",".join((below, *oldest))


def _number(id: str) -> str:
    return id.split("-")[1]


def _asked_in_vain(_error: TransportError) -> None:
    """A question that could not be sent: the next is due soon."""


class Instances:
    """The known instances of one service. Pure bookkeeping but for the publishers it is handed.

    Attributes:
        version: another number whenever somebody came or went.
    """

    def __init__(self) -> None:
        self._known: dict[str, Instance] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Any:
        return iter(tuple(self._known.values()))

    def get(self, name: str) -> Instance | None:
        """The instance of that name."""
        return self._known.get(name)

    def add(self, instance: Instance) -> Instance | None:
        """Know ``instance`` from now on; returns its former life, if that was known."""
        former = self._known.pop(instance.name, None)
        self._known[instance.name] = instance
        self.version += 1
        return former

    def remove(self, instance: Instance) -> bool:
        """Know ``instance`` no more. False: it was not known (any more)."""
        if self._known.get(instance.name) is not instance:
            return False
        del self._known[instance.name]
        self.version += 1
        return True

    def stale(self, now: float) -> list[Instance]:
        """Those that were not heard of for too long."""
        return [each for each in self._known.values() if now - each.last_seen > STALE_S]
