"""The instances of a service that a dispatcher knows by name: those with an open session.

A new instance receives one request at a time until it has received or answered one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
        is_proven: it has received or answered a request.
        is_loss_counted: a request failed because this incarnation ended: further failures for that reason count as the
            same one.
    """

    __slots__ = (
        "_request_prefix",
        "_turns",
        "endpoint",
        "incarnation",
        "is_loss_counted",
        "is_proven",
        "name",
        "session",
        "topic",
    )

    def __init__(self, session: CallerSession, endpoint: Endpoint, topic: str) -> None:
        self.session = session
        self.endpoint = endpoint
        self.topic = topic
        self.name = session.peer_name
        self.incarnation = session.peer_incarnation
        self.is_loss_counted = False
        self.is_proven = False
        self._turns: list[Callable[[], object]] = []
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

    @property
    def is_held(self) -> bool:
        """Whether it is new and has a request: the next one follows when that one was received or has ended."""
        return not self.is_proven and len(self.session.waiting) > 0

    def on_turn(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, when this instance may receive the next request."""
        self._turns.append(callback)

    def prove(self) -> None:
        """Record that the instance has received or answered a request."""
        self.is_proven = True
        self.next_turn()

    def record_end(self, *, is_answered: bool) -> None:
        """Record the end of a request while the instance is not proven."""
        if is_answered:
            self.prove()
        else:
            self.next_turn()

    def next_turn(self) -> None:
        """Release the requests that wait for it: it may receive the next one, or is lost."""
        turns, self._turns = self._turns, []
        for callback in turns:
            callback()


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
