"""The interface to a broker. A transport publishes bytes with properties to topics and delivers messages from others.

All methods are called on one event loop, and all callbacks run on it. Topic names are complete
(``non-persistent://tg/request/joke``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Protocol

from dispatch.errors import TransportError

RECONNECT_WAIT_S = 2.0
"""Seconds after the loss of a connection during which calls wait for it. pulsar-client reconnects within milliseconds to a
second when its topics have moved to another broker; a client that does not is replaced after a second."""


class Message(Protocol):
    """A message that has arrived. Properties and payload are copied only when the receiver reads them."""

    def properties(self) -> dict[str, str]:
        """Return the properties, a new dict each time."""

    def data(self) -> bytes:
        """Return the payload."""


class DurableMessage(ABC):
    """A message of a durable subscription (SHARED, on a persistent topic). The broker retains it until it is acknowledged,
    and redelivers it to another subscriber if this one disconnects first. It is acknowledged when its handler returns,
    unless the handler called :meth:`keep` or :meth:`settle`."""

    __slots__ = ()

    lag: float
    """Seconds from publishing to arrival, by the publisher's clock and the local one, which may differ."""
    backlog: bool
    """The message may have been published before the subscription was opened: only :attr:`lag` says how long it waited."""

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """See :class:`Message`."""

    @abstractmethod
    def data(self) -> bytes:
        """See :class:`Message`."""

    @abstractmethod
    def keep(self) -> None:
        """Leave the message unacknowledged until :meth:`acknowledge`."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Acknowledge the message. The broker may take some tenths of a second to record that. Idempotent."""

    @abstractmethod
    def settle(self, then: Callable[[], object]) -> None:
        """Acknowledge the message, and call ``then`` once the broker has confirmed it: no other subscriber receives the
        message after that. If the connection is lost before the confirmation, ``then`` is never called, and the message is
        redelivered unless the broker had recorded the acknowledgement."""


class Mode(StrEnum):
    """How the messages of a topic are distributed over its subscribers."""

    SHARED = "shared"
    """Each message goes to one of the subscribers of one subscription name: for services. On a persistent topic the broker
    retains messages without a subscriber, and messages are :class:`DurableMessage`."""
    FANOUT = "fanout"
    """Each subscriber receives every message published from now on; its subscription ends with it: for reply topics."""


Handler = Callable[[Message], None]
"""Handles a message. Synchronous; must not raise (the transport logs and counts an exception, and continues)."""

AnswerLate = Callable[[bytes], tuple[str, bytes] | None]
"""Returns the answer to a message, a topic and a packet, that does not wait for the event loop. Called on another thread."""

OnFailure = Callable[[TransportError], None]
"""Called at most once, when a message was not sent or may not have been sent."""


class Ticket(Protocol):
    """A publish in progress."""

    @property
    def waits(self) -> bool:
        """Whether the message is still queued."""

    def cancel(self) -> bool:
        """Withdraw the message. Return whether it was still queued: then it is never sent."""


class Publisher(Protocol):
    """Publishes to one topic."""

    @property
    def topic(self) -> str: ...

    def publish(self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure) -> Ticket:
        """Publish a message, at once or queued behind the publish window.

        The queue is fair between flows (a tool, a caller). A failure is reported through ``on_failure``, never from inside
        this call. The absence of a failure proves nothing: on a non-persistent topic only a correlated reply does.

        Raises:
            TransportError: closed, or the queue is full. Nothing was sent.
        """

    async def writable(self, flow: str) -> None:
        """Wait while messages of ``flow`` are queued: backpressure for the chunks of a stream."""

    async def close(self) -> None:
        """Release the publisher. The last user closes it."""


class TopicPublisher(Publisher, Protocol):
    """A publisher as a transport opens it."""

    @property
    def opening_error(self) -> TransportError | None:
        """Why the topic cannot be opened again at present; None: it is open, or the connection is down."""
        ...

    def send_packet(self, payload: bytes) -> bool:
        """Send a packet of a session: without properties, at once or never, best effort.

        It bypasses the publish window and its queue: the session's own acknowledgements limit it, and detect a loss. Never
        raises. Return False if the packet was not sent: closed, the connection is known to be down, too many packets have
        no receipt. True proves nothing.
        """


class Subscription(Protocol):
    """An open subscription."""

    @property
    def topic(self) -> str: ...

    async def close(self) -> None:
        """Handle the messages that have arrived, and close. The handler is not called afterwards. Idempotent."""


class Transport(Protocol):
    """A connection to a broker."""

    @property
    def url(self) -> str:
        """The broker's address, without secrets."""

    @property
    def connected(self) -> bool:
        """Whether the broker is in reach, as far as is known."""

    async def await_connection(self, deadline: float) -> bool:
        """Return whether the broker is in reach. Wait for it up to :data:`RECONNECT_WAIT_S` after the loss of the
        connection, not beyond ``deadline`` (on the loop's clock)."""

    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool:
        """Return whether the broker was known to be out of reach at some time since ``instant`` (on the loop's clock), or
        one of these open ``topics`` to have no connection."""

    @property
    def max_message_bytes(self) -> int:
        """The largest payload that the broker accepts, in bytes, with allowance for the properties."""

    def another(self) -> Transport:
        """Return a further connection to the same broker, not yet started."""

    async def start(self) -> None:
        """Connect.

        Raises:
            TransportError: the broker is out of reach, or the address is not usable.
        """

    def has_subscriber(self, topic: str) -> bool:
        """Return whether a message to ``topic`` may reach a subscriber. False is certain; only the embedded broker knows."""

    async def publisher(self, topic: str) -> TopicPublisher:
        """Open a publisher for ``topic``.

        Raises:
            TransportError: unreachable, refused, or no such tenant or namespace; the message names the fix.
        """

    async def subscribe(
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> Subscription:
        """Deliver the messages of ``topic`` to ``handler``. ``name`` is the subscription that SHARED subscribers have in
        common, and the name of a FANOUT subscription at the broker. ``answer_late`` answers messages that arrive while the
        event loop is blocked; where messages arrive on the event loop itself, it is never called.

        Raises:
            TransportError: as :meth:`publisher`.
        """

    async def flush(self) -> None:
        """Wait until no publish is queued or without its receipt."""

    async def close(self) -> None:
        """Close the connection. Idempotent. Works on another event loop than that of :meth:`start` if that one has ended."""
