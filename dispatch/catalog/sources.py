"""Sources of descriptors. Each delivers items, of which the loader makes a catalogue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, Protocol

import msgspec

from dispatch.catalog.items import Item

# The interface of a source of descriptors, and what the registry reports about each source.


SourceState = Literal["ok", "stale", "failed"]
OnChange = Literal["apply", "hold"]


class Source(Protocol):
    """A source of descriptors. A source may also have these attributes; each has a default:

    - ``is_atomic`` (False): its items are accepted as a whole or not at all. Otherwise an invalid item alone is refused.
    - ``namespace`` (""): prefix of its names and service ids: ``crm`` makes ``find`` into ``crm-find``.
    - ``on_change`` ("apply"): ``hold``: a changed definition waits for its approval, and the former one stays in force.
    - ``connect(broker)``: called once before the first :meth:`discover` of a source that needs the broker, with a
      :class:`~dispatch.catalog.sources.Broker`.
    - ``request_queue`` and ``instances``: of its service in this process
      (:func:`~dispatch.messaging.wire.local_queue`, :class:`~dispatch.calls.local.LocalInstance`).
    - ``use_providers(providers)``: called before :meth:`discover`, with what the dispatcher provides to functions.
    - ``async close()``: called once when the source is removed or the dispatcher is closed; of a source with
      ``use_providers`` only after that was called and raised nothing.
    - ``abandon()``: called instead when the dispatcher is closed after its event loop has ended.
    """

    @property
    def id(self) -> str:
        """Unique in a dispatcher; the label ``source`` of its metrics."""

    async def discover(self) -> Sequence[Item]:
        """Return all items. An item that did not change should be the same object as before: it is not read again.

        Raises:
            CatalogError: the items cannot be used; it lists the problems. The former items stay in force.
            Exception: the source is out of reach. The former items stay in force, and the registry tries again.
        """

    def changes(self) -> AsyncIterator[object]:
        """Return an iterator whose every element means: call :meth:`discover` again. The registry begins to iterate before
        it calls :meth:`discover`, so that no change is missed. It ends, or raises, when the source is out of reach."""


class SourceGroup(Protocol):
    """Several sources that are given as one, such as the servers in one file."""

    @property
    def sources(self) -> Sequence[Source]:
        """The sources, the highest precedence first."""


class SourceStatus(msgspec.Struct, frozen=True):
    """The state of one source.

    Attributes:
        id: of the source.
        state: ``ok``; ``stale``: out of reach or invalid, its last valid items are in force; ``failed``: it has none.
        since: when that state began, in seconds since the epoch.
        items: number of its items in force: services and tools.
        tools: number of its tools in force.
        problem: the last problem, in one line; empty: none.
        refused: number of items that are not in force, or in a former version, because they are invalid.
        held: number of changed definitions that wait for approval.
    """

    id: str
    state: SourceState
    since: float
    items: int
    tools: int
    problem: str = ""
    refused: int = 0
    held: int = 0


# The broker as sources see it: requests with their responses, and notifications. Sources import no transport.


OnMessage = Callable[[bytes], object]
"""Receives the payload of a notification, on the event loop."""


class BrokerSubscription(Protocol):
    """A subscription to notifications."""

    async def close(self) -> None:
        """End the subscription. Idempotent."""


class Broker(Protocol):
    """The broker of a dispatcher, as sources see it. Topic names are complete."""

    @property
    def is_connected(self) -> bool:
        """Whether the broker is in reach, as far as is known."""

    def was_disconnected_since(self, instant: float) -> bool:
        """Return whether the broker was known to be out of reach at some time since ``instant`` (on the loop's clock):
        notifications of that time are lost."""

    async def request(
        self, topic: str, response_topic: str, payload: bytes, *, timeout: float, resend_after: float | None = None
    ) -> bytes:
        """Publish a request and return the payload of the first response with its property ``id``. Later responses with
        the same id are ignored.

        Args:
            topic: of the requests.
            response_topic: on which the responses arrive, among those to other clients.
            payload: of the request.
            timeout: seconds until the response must be there.
            resend_after: seconds without a response after which the same request is sent again; the interval doubles
                each time. Only for a request that may be executed twice; None: it is sent once.

        Raises:
            TimeoutError: no response within ``timeout``; the request may have been executed.
            TransportError: the broker is out of reach or refuses a topic.
        """

    async def ask_instance(
        self, request_queue: str, response_queue: str, payload: bytes, *, timeout: float, resend_after: float
    ) -> bytes:
        """Send a question to the instances of a service and return the payload of the first answer. Its sender consumes the
        namespace of ``request_queue``: only there the id of the question can be read.

        Raises:
            TimeoutError: no answer within ``timeout``.
            TransportError: as :meth:`request`.
        """

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message, best effort: it may be lost.

        Raises:
            TransportError: the broker is out of reach or refuses the topic.
        """

    async def subscribe(self, topic: str, on_message: OnMessage, *, is_polled: bool = False) -> BrokerSubscription:
        """Call ``on_message`` with each message that is published to ``topic`` from now on; ``is_polled``: it may wait for
        0.1 s, so that many are handled together.

        Raises:
            TransportError: the broker is out of reach or refuses the topic.
        """
