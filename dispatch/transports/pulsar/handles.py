"""What the transport hands out: tickets, publishers, subscriptions. They hold state; the transport does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dispatch.outcome import TransportError
from dispatch.transports.base import Handler, Mode, OnFailure

if TYPE_CHECKING:
    from dispatch.transports.pulsar.transport import PulsarTransport


class PulsarTicket:
    __slots__ = ("flow", "generation", "on_failure", "on_receipt", "payload", "properties", "publisher")

    def __init__(
        self,
        publisher: PulsarPublisher,
        payload: bytes,
        properties: Mapping[str, str],
        flow: str,
        on_failure: OnFailure | None,
    ) -> None:
        self.publisher = publisher
        self.payload: bytes | None = payload
        self.properties: Mapping[str, str] | None = properties
        self.flow = flow
        self.on_failure = on_failure
        self.generation = 0
        self.on_receipt: Callable[[], None] | None = None

    @property
    def waits(self) -> bool:
        """See :class:`dispatch.transports.base.Ticket`."""
        return self.payload is not None

    def cancel(self) -> bool:
        """See :class:`dispatch.transports.base.Ticket`."""
        self.on_failure = None
        return self.publisher.transport.withdraw(self)

    def answered(self) -> None:
        """Nothing depends on it here."""

    def taken(self) -> None:
        """Nothing depends on it here."""

    def fail(self, error: TransportError) -> None:
        callback, self.on_failure = self.on_failure, None
        if callback is not None:
            callback(error)


class PulsarPublisher:
    """See :class:`dispatch.transports.base.Publisher`."""

    __slots__ = ("raw", "topic", "transport", "users")

    def __init__(self, transport: PulsarTransport, topic: str, raw: Any) -> None:
        self.transport = transport
        self.topic = topic
        self.raw = raw
        self.users = 1

    def publish(
        self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure
    ) -> PulsarTicket:
        ticket = PulsarTicket(self, payload, properties, flow, on_failure)
        self.transport.submit(ticket, len(payload))
        return ticket

    def publish_noted(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: Callable[[], None],
    ) -> PulsarTicket:
        """See :class:`dispatch.paced.NotingPublisher`."""
        ticket = PulsarTicket(self, payload, properties, flow, on_failure)
        ticket.on_receipt = on_receipt
        self.transport.submit(ticket, len(payload))
        return ticket

    async def writable(self, flow: str) -> None:
        await self.transport.writable(flow)

    async def close(self) -> None:
        self.users -= 1
        if self.users == 0:
            await self.transport.drop_publisher(self)


class PulsarSubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    __slots__ = ("acknowledge", "handler", "mode", "name", "raw", "topic", "transport")

    def __init__(self, transport: PulsarTransport, topic: str, handler: Handler, mode: Mode, name: str) -> None:
        self.transport = transport
        self.topic = topic
        self.handler: Handler | None = handler
        self.mode = mode
        self.name = name
        self.raw: Any = None
        # A durable subscription keeps what is not acknowledged and sends it again.
        self.acknowledge = mode is Mode.SHARED and topic.startswith("persistent://")

    async def close(self) -> None:
        await self.transport.drop_subscription(self)
