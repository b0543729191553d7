"""What the transport hands out: tickets, publishers, subscriptions. They hold state; the transport does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dispatch.errors import TransportError
from dispatch.transports.base import Handler, Mode, OnFailure
from dispatch.transports.pulsar.client import close_opened
from dispatch.transports.pulsar.durable_subscription import DurableSubscription

if TYPE_CHECKING:
    from dispatch.transports.pulsar.client import PulsarClient
    from dispatch.transports.pulsar.transport import PulsarTransport


class PulsarTicket:
    __slots__ = ("flow", "on_failure", "on_receipt", "payload", "properties", "publisher")

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

    def __init__(self, transport: PulsarTransport, topic: str) -> None:
        self.transport = transport
        self.topic = topic
        self.raw: Any = None
        self.users = 1

    async def open(self, link: PulsarClient, generation: int) -> Any:
        """See :class:`dispatch.transports.pulsar.supervisor.Handle`."""
        return await link.producer(self.topic)

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
        """See :class:`dispatch.messaging.flow.paced_publisher.NotingPublisher`."""
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

    __slots__ = ("durable", "handler", "last", "mode", "name", "raw", "resumes", "topic", "transport")

    def __init__(self, transport: PulsarTransport, topic: str, handler: Handler, mode: Mode, name: str) -> None:
        self.transport = transport
        self.topic = topic
        self.handler: Handler | None = handler
        self.mode = mode
        self.name = name
        self.raw: Any = None
        self.durable = DurableSubscription() if mode is Mode.SHARED and topic.startswith("persistent://") else None
        self.resumes = mode is Mode.FANOUT and topic.startswith("persistent://")
        """What came while it had no connection comes when it has one again."""
        self.last: Any = None
        """Where: behind the last message it got."""

    async def open(self, link: PulsarClient, generation: int) -> Any:
        """See :class:`dispatch.transports.pulsar.supervisor.Handle`."""
        listener = partial(self.transport.on_message, self, generation)
        if self.durable is not None:
            self.durable.opening(link)
        raw = await link.consumer(self.topic, self.mode, self.name, listener, after=self.last)
        if self.durable is not None:
            try:
                self.durable.opened(raw, await link.last_message(raw))
            except BaseException:
                await asyncio.shield(close_opened(raw))  # it would have no owner, and take messages
                raise
        return raw

    async def close(self) -> None:
        await self.transport.drop_subscription(self)
