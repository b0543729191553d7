"""The instances of a service that a dispatcher knows by name: those with an open session."""

from __future__ import annotations

from collections.abc import Iterator

from dispatch.messaging.endpoint.endpoint import Endpoint
from dispatch.protocol.caller_session import CallerSession

MAX_INSTANCES = 256
"""Known instances of one service at most; further ones receive requests from the shared topic only."""


class Instance:
    """One service instance, and the session with it.

    Args:
        session: open; it has the instance's name and incarnation.
        endpoint: sends the packets of the session.
        topic: of the instance alone.

    Attributes:
        is_loss_counted: a request failed because this incarnation ended: further failures for that reason count as the
            same one.
    """

    __slots__ = ("_request_prefix", "endpoint", "incarnation", "is_loss_counted", "name", "session", "topic")

    def __init__(self, session: CallerSession, endpoint: Endpoint, topic: str) -> None:
        self.session = session
        self.endpoint = endpoint
        self.topic = topic
        self.name = session.peer_name
        self.incarnation = session.peer_incarnation
        self.is_loss_counted = False
        self._request_prefix = f"{session.id:016x}-"

    @property
    def next_request_id(self) -> str:
        """The id of the next request, as the instance names it, too."""
        return f"{self._request_prefix}{self.session.next_stream}"

    @property
    def in_flight(self) -> int:
        """Pending requests of this dispatcher."""
        return len(self.session.waiting)

    @property
    def is_suspect(self) -> bool:
        """Whether the instance has not acknowledged several probes: others are preferred."""
        return self.session.is_suspect


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

    def __iter__(self) -> Iterator[Instance]:
        return iter(tuple(self._known.values()))

    @property
    def has_ready(self) -> bool:
        """Whether an instance can be reached, as far as is known."""
        for each in self._known.values():  # noqa: SIM110 # perf: no generator; each request asks, and most end at the first
            if not each.session.is_suspect:
                return True
        return False

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
