"""The instances of a service that a dispatcher knows by name, and the requests it has sent to each.

Only instances that have announced themselves (``here``, with the feature ``repair``) and answered a challenge are known. A
new instance receives one request at a time until it has answered one.
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
"""Known instances of one service at most; further ones receive requests from the shared topic only."""
HELLO_EVERY_S = 10.0
"""Seconds between two hellos of an active dispatcher."""
HELLO_AGAIN_S = 1.0
"""The same while no instance is known."""
STALE_S = 60.0
"""Seconds without an answer to a hello after which an instance is removed."""
SETTLED_EVERY = 32
"""Every so many requests, the property ``settled`` tells an instance which requests have ended."""
MAX_EXCEPTED = 16
"""Pending requests that ``settled`` lists as exceptions."""


class Instance:
    """One service instance: its own topic, its pending requests and its state."""

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
        """It accepts fragmented requests."""
        self.cancels = cancels
        """It stops cancelled requests."""
        self.waiting: dict[str, None] = {}
        """Ids of this dispatcher's pending requests, oldest first."""
        self.unanswered = 0
        """Consecutive retransmissions without an answer, over all requests."""
        self.is_loss_counted = False
        """A request failed because this incarnation ended: further failures for that reason count as the same one."""
        self.is_proven = False
        """It has acknowledged or answered a request."""
        self._turns: list[Callable[[], object]] = []
        self._since_settled = 0

    @property
    def in_flight(self) -> int:
        """Pending requests of this dispatcher."""
        return len(self.waiting)

    @property
    def suspect(self) -> bool:
        return self.unanswered >= SUSPECT_AFTER

    @property
    def is_held(self) -> bool:
        """Whether it is new and has a request: the next one follows after its acknowledgement or reply."""
        return not self.is_proven and len(self.waiting) > 0

    def on_turn(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, when this instance may receive the next request."""
        self._turns.append(callback)

    def alive(self, now: float) -> None:
        """Record a message that only the receiver of a request can send."""
        self.unanswered = 0
        self.last_seen = now
        if not self.is_proven:
            self.is_proven = True
            self.next_turn()

    def next_turn(self) -> None:
        """Release the requests that wait for it: it may receive the next one, or is lost."""
        turns, self._turns = self._turns, []
        for callback in turns:
            callback()

    def missed(self) -> None:
        """Record a retransmission without an answer."""
        self.unanswered += 1
        if self.suspect:
            self._on_suspect()

    def say_goodbye(self, properties: Mapping[str, str]) -> None:
        """Announce that this dispatcher closes, so that the instance drops its request history. If the message is lost, the
        history expires later. ``properties``: those of any message to the instance, with an unused ``id``."""
        if self.cancels:
            said = {**properties, Property.INCARNATION: self.incarnation, Property.CANCEL: "1", Property.GOODBYE: "1"}
            with contextlib.suppress(TransportError):
                self.publisher.publisher.publish(b"", said, flow="goodbye", on_failure=_asked_in_vain)

    def settled(self, id: str) -> str | None:
        """Return the property ``settled`` for the next request, ``id``; None if none is due."""
        self._since_settled += 1
        if self._since_settled < SETTLED_EVERY:
            return None
        self._since_settled = 0
        # Dictionaries keep insertion order, and ids ascend. A few slow requests must not make the instance retain all later
        # ones.
        oldest = [_number(each) for each in islice(self.waiting, MAX_EXCEPTED + 1)]
        below = oldest.pop() if len(oldest) > MAX_EXCEPTED else _number(id)
        return ",".join((below, *oldest))


def _number(id: str) -> str:
    return id.split("-")[1]


def _asked_in_vain(_error: TransportError) -> None:
    """Ignore a message that could not be sent: the instance's history expires later."""


class Instances:
    """The known instances of one service.

    Attributes:
        version: incremented with each change.
    """

    def __init__(self) -> None:
        self._known: dict[str, Instance] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Any:
        return iter(tuple(self._known.values()))

    def get(self, name: str) -> Instance | None:
        """Return the instance with this name; None if unknown."""
        return self._known.get(name)

    def add(self, instance: Instance) -> Instance | None:
        """Add ``instance`` and return its previous incarnation, if that was known."""
        former = self._known.pop(instance.name, None)
        self._known[instance.name] = instance
        self.version += 1
        return former

    def remove(self, instance: Instance) -> bool:
        """Remove ``instance``. Return whether it was known."""
        if self._known.get(instance.name) is not instance:
            return False
        del self._known[instance.name]
        self.version += 1
        return True

    def stale(self, now: float) -> list[Instance]:
        """Return the instances without a recent message."""
        return [each for each in self._known.values() if now - each.last_seen > STALE_S]
