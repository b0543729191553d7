"""The interface to a broker. A transport publishes bytes with properties to topics and delivers messages from others.

All methods are called on one event loop, and all callbacks run on it. Topic names are complete
(``non-persistent://tg/request/joke``).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from dispatch._internal import check_function, explain_keywords
from dispatch.documents import decode_text, read_regular_file
from dispatch.errors import TransportError

RECONNECT_WAIT_S = 10.0
"""Seconds after the loss of the connection, or of a topic, during which calls wait for it; later ones fail at once.
pulsar-client reconnects within milliseconds to a second when topics have moved to another broker. A broker that is killed
keeps its topics until its session with the metadata store ends, and the only one of a cluster starts in seven seconds."""

PEER_BACK_S = 8.0
"""Seconds after a topic was lost in which a peer may not be back there yet: its client finds the new owner by itself, with a
backoff, and what is sent to a topic without a consumer is dropped. Its attempt to open the topic takes 5 s if the former
owner hangs."""


RELEASED_S = 2.0
"""Seconds after which a released message is delivered again."""
MAX_RELEASES = 5
"""Releases of one message: for as long as calls wait for a topic that was lost (:data:`RECONNECT_WAIT_S`). A message whose
handling fails more often than that would be handled for ever."""

POLL_S = 0.1
"""Seconds between two times at which a subscriber with :attr:`Mode.POLLED` receives messages."""


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

    __slots__ = ("_message", "backlog", "kept", "lag")

    _message: Message
    """Has its content."""
    kept: bool
    """It stays unacknowledged when its handler returns."""
    lag: float
    """Seconds from publishing to arrival, by the publisher's clock and the local one, which may differ."""
    backlog: bool
    """The message may have been published before the subscription was opened: only :attr:`lag` says how long it waited."""

    def properties(self) -> dict[str, str]:
        """See :class:`Message`."""
        return self._message.properties()

    def data(self) -> bytes:
        """See :class:`Message`."""
        return self._message.data()

    def deliver_to(self, handler: Handler) -> None:
        """Call ``handler`` with the message, and acknowledge it unless it is kept: also after an exception, because a
        redelivery would fail again."""
        try:
            handler(self)
        finally:
            if not self.kept:
                self.acknowledge()

    def keep(self) -> None:
        """Leave the message unacknowledged until :meth:`acknowledge`."""
        self.kept = True

    @abstractmethod
    def acknowledge(self) -> None:
        """Acknowledge the message. The broker may take some tenths of a second to record that. Idempotent."""

    @abstractmethod
    def release(self) -> None:
        """Have a message that was kept delivered again, to any subscriber, after :data:`RELEASED_S`; at the
        :data:`MAX_RELEASES`-th time, acknowledge it."""

    @abstractmethod
    def settle(self, then: Callable[[], object]) -> None:
        """Acknowledge the message, and call ``then`` once the broker has confirmed it: no other subscriber receives the
        message after that. If the connection is lost before the confirmation, ``then`` is never called, and the message is
        redelivered unless the broker had recorded the acknowledgement. A message that its producer has batched with others
        waits until all of them are acknowledged: the broker redelivers them together."""


class Mode(StrEnum):
    """How the messages of a topic are distributed over its subscribers."""

    SHARED = "shared"
    """Each message goes to one of the subscribers of one subscription name: for services. On a persistent topic the broker
    retains messages without a subscriber, and messages are :class:`DurableMessage`."""
    FANOUT = "fanout"
    """Each subscriber receives every message published from now on; its subscription ends with it: for reply topics."""
    POLLED = "polled"
    """As FANOUT, and a message may wait for :data:`POLL_S`, so that many are handled together: for thousands of messages per
    second that are not urgent, at a third of the processor time (measured: 12 instead of 36 µs for each)."""


Handler = Callable[[Message], None]
"""Handles a message. Synchronous; must not raise (the transport logs and counts an exception, and continues)."""

AnswerLate = Callable[[bytes], tuple[str, bytes] | None]
"""Returns the answer to a message, a topic and a packet, that does not wait for the event loop. Called on another thread."""

OnFailure = Callable[[TransportError], None]
"""Called at most once, when a message was not sent or may not have been sent."""


OnReceipt = Callable[[], object]
"""Called at most once, when the broker has accepted or refused a message that was sent; after a refusal's :data:`OnFailure`.
Not called for a message that was never sent."""


class Ticket(Protocol):
    """A publish in progress."""

    def cancel(self) -> bool:
        """Withdraw the message. Return whether it was still queued: then it is never sent."""


class PublishedTicket:
    """The ticket of a message that is not queued: its failure is reported once, unless it is cancelled."""

    __slots__ = ("on_failure",)

    def __init__(self, on_failure: OnFailure | None) -> None:
        self.on_failure = on_failure

    def cancel(self) -> bool:
        """See :class:`Ticket`."""
        self.on_failure = None
        return False

    def fail(self, error: TransportError) -> None:
        """Report ``error`` to the caller that published."""
        on_failure, self.on_failure = self.on_failure, None
        if on_failure is not None:
            on_failure(error)


class Publisher(Protocol):
    """Publishes to one topic."""

    @property
    def topic(self) -> str: ...

    def publish(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: OnReceipt | None = None,
    ) -> Ticket:
        """Publish a message, at once or queued behind the publish window.

        The queue is fair between flows (a tool, a caller). Neither callback is called from inside this call. The absence of
        a failure proves nothing: on a non-persistent topic only a correlated reply does.

        Args:
            payload, properties, flow: of the message.
            on_failure: see :data:`OnFailure`.
            on_receipt: see :data:`OnReceipt`; each receipt wakes the event loop.

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

    @property
    def is_connected(self) -> bool:
        """Whether the broker has the topic, and that of the replies to its messages; otherwise messages are held."""
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


ConnectionListener = Callable[[bool, float], object]
"""Receives whether the broker is in reach, and for how many seconds it was not."""


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
        one of these open ``topics`` to have no connection, or no confirmation of what was sent."""

    def on_connection_change(self, listener: ConnectionListener) -> None:
        """Call ``listener`` on the event loop when the connection is lost, and when it is back."""

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


# Authentication at a broker, and verification of the broker.


@dataclass(frozen=True, slots=True)
class Security:
    """Token authentication and TLS of a connection.

    Attributes:
        token: a JSON Web Token, or a function that returns a fresh one each time the broker asks. Never shown.
        trust_certs: PEM file with the authorities to trust (``pulsar+ssl://``); None: the public ones.
        certificate: PEM file with the client's certificate, for mutual TLS; ``key`` belongs to it.
        key: PEM file with the client's private key.
        validate_hostname: the broker's certificate must name the host in the service URL.
    """

    token: str | Callable[[], str] | None = field(default=None, repr=False)
    trust_certs: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    validate_hostname: bool = True

    def __post_init__(self) -> None:
        if self.token is not None and not isinstance(self.token, str):
            check_function(
                "token", self.token, "return the token from a plain function, which a thread of pulsar-client calls"
            )

    @classmethod
    def from_environment(cls) -> Security:
        """From ``DISPATCH_TOKEN`` (or ``DISPATCH_TOKEN_FILE``, read again whenever the broker asks) and
        ``DISPATCH_TRUST_CERTS``."""
        token: str | Callable[[], str] | None = os.environ.get("DISPATCH_TOKEN", "").strip() or None
        token_file = os.environ.get("DISPATCH_TOKEN_FILE")
        if token is None and token_file:
            token = partial(read_token_file, token_file)
        return cls(token=token, trust_certs=os.environ.get("DISPATCH_TRUST_CERTS") or None)


Security.__init__ = explain_keywords(Security.__init__)  # type: ignore[method-assign]

MAX_TOKEN_BYTES: Final = 64 * 1024


def read_token_file(path: str | Path) -> str:
    """Return the token of a file. A pipe has it once only, and the broker asks again.

    Raises:
        DocumentError: it is not a regular file, not UTF-8, or longer than any token.
        OSError: it cannot be read.
    """
    return decode_text(read_regular_file(path, MAX_TOKEN_BYTES, "write the token alone")[0]).strip()


# The publish window: a limit on publishes in flight to the broker, with a bounded fair queue in front of it: first in, first
# out within a flow, and round-robin between flows. Pure.
#
# It limits bursts to the broker and the number of publishes in doubt when the connection is lost. Thousands of slow calls
# can still wait, because the window counts publishes and not calls.


T = TypeVar("T")


class QueueFullError(Exception):
    """The queue is full, in items or in bytes."""


class FairQueue(Generic[T]):
    """Items with sizes, in flows that are served round-robin.

    Args:
        max_items: largest number of items.
        max_bytes: largest sum of their sizes, in bytes.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.bytes = 0
        self._items = 0
        # OrderedDict, not dict: repeated removal at the front of a dict scans its deleted entries.
        self._flows: OrderedDict[str, OrderedDict[T, int]] = OrderedDict()

    def __len__(self) -> int:
        return self._items

    def put(self, flow: str, item: T, size: int) -> None:
        """Add ``item`` of ``size`` bytes at the end of its flow.

        Raises:
            QueueFullError: the queue is full; the item was not added.
        """
        if self._items >= self.max_items or self.bytes + size > self.max_bytes:
            raise QueueFullError
        queued = self._flows.get(flow)
        if queued is None:
            queued = self._flows[flow] = OrderedDict()
        queued[item] = size
        self._items += 1
        self.bytes += size

    def pop(self) -> T | None:
        """Remove and return the next item; None: the queue is empty."""
        if not self._flows:
            return None
        flow, queued = self._flows.popitem(last=False)
        item, size = queued.popitem(last=False)
        if queued:
            self._flows[flow] = queued  # to the end: the other flows are next
        self._items -= 1
        self.bytes -= size
        return item

    def remove(self, flow: str, item: T) -> bool:
        """Remove an item. Return False if it is not in the queue."""
        queued = self._flows.get(flow)
        if queued is None or item not in queued:
            return False
        self.bytes -= queued.pop(item)
        self._items -= 1
        if not queued:
            del self._flows[flow]
        return True

    def has_flow(self, flow: str) -> bool:
        """Return whether an item of ``flow`` is queued."""
        return flow in self._flows

    def clear(self) -> list[T]:
        """Empty the queue and return its items."""
        items = [item for queued in self._flows.values() for item in queued]
        self._flows.clear()
        self._items = self.bytes = 0
        return items


class PublishWindow(FairQueue[T]):
    """At most ``size`` items in flight, and the queue of further ones. While the connection is down, items are only queued:
    :meth:`put`.

    Args:
        size: items in flight.
        max_items, max_bytes: of the queue.
    """

    def __init__(self, size: int, max_items: int, max_bytes: int) -> None:
        if size < 1:
            raise ValueError(f"a publish window needs at least one message, not {size}")
        super().__init__(max_items, max_bytes)
        self.size = size
        self.outstanding = 0

    def offer(self, flow: str, item: T, size: int) -> bool:
        """Return True if ``item`` is in flight now and must be sent, False if it was queued.

        Raises:
            QueueFullError: the queue is full; the item was not added.
        """
        if self.outstanding < self.size and not self._items:
            self.outstanding += 1
            return True
        self.put(flow, item, size)
        return False

    def settle(self) -> None:
        """Record the receipt of an item."""
        self.outstanding -= 1

    def pop_queued(self) -> T | None:
        """Remove and return the next queued item, now in flight; None when the queue is empty or the window is full."""
        if self.outstanding >= self.size:
            return None
        item = self.pop()
        if item is not None:
            self.outstanding += 1
        return item
