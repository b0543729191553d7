"""The seam to a broker. A transport publishes bytes with properties to a topic and delivers what arrives on others.

Everything here is called on one event loop and every callback runs on that loop. Topic names are whole
(``non-persistent://tg/request/joke``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from dispatch.errors import TransportError

RECONNECT_WAIT_S = 2.0
"""Seconds after the loss of a connection for which calls wait for it. A client mends it within milliseconds to a second when
its topics have moved to another broker; one that does not is replaced after a second."""


class Message(Protocol):
    """An arrived message. Reading it is up to the receiver: what is not its own is never copied."""

    def properties(self) -> dict[str, str]:
        """The properties, a new dict each time."""
        ...

    def data(self) -> bytes:
        """The payload."""
        ...


class DurableMessage(ABC):
    """A message of a durable subscription (SHARED, on a persistent topic). Its broker keeps it until it is acknowledged, and
    gives it to another subscriber if this one goes before that. It is acknowledged when its handler returns, unless the
    handler called :meth:`keep` or :meth:`settle`."""

    __slots__ = ()

    lag: float
    """Seconds from its publishing to its arrival, by the clock of who published it and by ours, which need not agree."""
    backlog: bool
    """It may have been published before the subscription was opened: nothing says how long it waited but :attr:`lag`."""

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """See :class:`Message`."""

    @abstractmethod
    def data(self) -> bytes:
        """See :class:`Message`."""

    @abstractmethod
    def keep(self) -> None:
        """Do not acknowledge it yet."""

    @abstractmethod
    def acknowledge(self) -> None:
        """The broker may forget it, though it can be some tenths of a second until it has. Idempotent."""

    @abstractmethod
    def settle(self, then: Callable[[], object]) -> None:
        """Acknowledge it, and call ``then`` once the broker surely has that, so that nobody else will get the message any
        more. When that cannot be known, because the connection was lost meanwhile, ``then`` is never called; the message
        comes again, unless the broker had the acknowledgement."""


class Mode(StrEnum):
    """Who else gets the messages of a topic."""

    SHARED = "shared"
    """Each message goes to one of the subscribers that share the subscription's name: the way of a service. On a persistent
    topic what nobody takes is kept, and messages are :class:`DurableMessage`."""
    FANOUT = "fanout"
    """Each subscriber gets every message from now on, and leaves nothing behind: the way of a reply topic."""


Handler = Callable[[Message], None]
"""Takes an arrived message. Synchronous; must not raise (a transport logs and counts it if it does, and goes on)."""

OnFailure = Callable[[TransportError], None]
"""Called at most once, when a message surely or perhaps did not get out."""


class Ticket(Protocol):
    """A publish on its way."""

    @property
    def waits(self) -> bool:
        """It has not left yet."""
        ...

    def cancel(self) -> bool:
        """Take the message back. True when it had not left yet: then it never will."""
        ...

    def answered(self) -> None:
        """A reply proves that the message arrived, and everything published before it, or that it is lost."""
        ...

    def mark_received(self) -> None:
        """As :meth:`answered`, and the receiver is known to acknowledge."""
        ...


class Publisher(Protocol):
    """Publishes to one topic."""

    @property
    def topic(self) -> str: ...

    def publish(self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure) -> Ticket:
        """Hand over a message. It goes out at once, or waits its turn behind the publish window; ``flow`` is what the
        wait is fair between (a tool, a caller). A failure is reported through ``on_failure``, always later, never from
        inside this call. Silence proves nothing: on a non-persistent topic only a correlated reply does.

        Raises:
            TransportError: closed, or the queue before the window is full. Nothing was sent.
        """
        ...

    async def writable(self, flow: str) -> None:
        """Wait while messages of ``flow`` are queued behind the window: what a stream does between its chunks."""
        ...

    async def close(self) -> None:
        """Give the publisher back. The last user closes it."""
        ...


class Subscription(Protocol):
    """A live subscription."""

    @property
    def topic(self) -> str: ...

    async def close(self) -> None:
        """Take no more. What has arrived is still handled; after this no handler call is made. Idempotent."""
        ...


class Transport(Protocol):
    """A connection to a broker."""

    @property
    def url(self) -> str:
        """Where to, without secrets."""
        ...

    @property
    def connected(self) -> bool:
        """False while the broker is known to be out of reach."""
        ...

    async def await_connection(self, deadline: float) -> bool:
        """Is the broker in reach? For :data:`RECONNECT_WAIT_S` after a connection was lost, wait until it is in reach again,
        but not beyond ``deadline`` (on the loop's clock)."""
        ...

    def was_disconnected_since(self, instant: float) -> bool:
        """Was the broker out of reach at some time since ``instant`` (on the loop's clock), as far as is known by now?"""
        ...

    @property
    def max_message_bytes(self) -> int:
        """The largest payload that the broker takes, with room for the properties, as far as it has said so."""
        ...

    def another(self) -> Transport:
        """A further connection to the same broker, not yet started."""
        ...

    async def start(self) -> None:
        """Connect.

        Raises:
            TransportError: the address cannot be used at all.
        """
        ...

    async def publisher(self, topic: str) -> Publisher:
        """A publisher for ``topic``.

        Raises:
            TransportError: unreachable, refused, or no such tenant or namespace; the message names the fix.
        """
        ...

    async def subscribe(self, topic: str, handler: Handler, *, mode: Mode, name: str) -> Subscription:
        """Deliver what arrives on ``topic`` to ``handler``. ``name`` is what SHARED subscribers have in common, and
        how an operator sees a FANOUT one on the broker.

        Raises:
            TransportError: as :meth:`publisher`.
        """
        ...

    async def flush(self) -> None:
        """Wait until nothing that was published is still waiting to go out, or for its receipt."""
        ...

    async def close(self) -> None:
        """Let go of everything. Idempotent. Works on another event loop than that of :meth:`start` if that one has ended."""
        ...
