"""A connection to the embedded broker that can be held, as the one to Pulsar is while the broker is away: messages wait
in a queue and can be withdrawn, or publishing raises."""

from __future__ import annotations

from collections.abc import Mapping

from dispatch.errors import TransportError
from dispatch.transports import OnFailure, Publisher, Ticket
from dispatch.transports.memory import MemoryTransport


class HeldTicket:
    """See :class:`dispatch.transports.base.Ticket`."""

    def __init__(
        self, publisher: Publisher, payload: bytes, properties: Mapping[str, str], flow: str, on_failure: OnFailure
    ) -> None:
        self.publisher = publisher
        self.message = payload, properties, flow
        self.on_failure = on_failure
        self.queue: list[HeldTicket] | None = None

    @property
    def waits(self) -> bool:
        return self.queue is not None

    def cancel(self) -> bool:
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.remove(self)
        return queue is not None

    def send(self) -> None:
        self.queue = None
        payload, properties, flow = self.message
        self.publisher.publish(payload, properties, flow=flow, on_failure=self.on_failure)


class HeldPublisher:
    """See :class:`dispatch.transports.base.Publisher`."""

    def __init__(self, transport: HeldTransport, inner: Publisher) -> None:
        self._transport = transport
        self._inner = inner
        self.topic = inner.topic

    def publish(self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure) -> Ticket:
        transport = self._transport
        if transport.refuses:
            raise TransportError("publish-queue-full", "The queue of the connection is full.", may_have_run=False)
        ticket = HeldTicket(self._inner, payload, properties, flow, on_failure)
        if transport.holds:
            ticket.queue = transport.queue
            transport.queue.append(ticket)
        else:
            ticket.send()
        return ticket

    async def writable(self, flow: str) -> None:
        await self._inner.writable(flow)

    async def close(self) -> None:
        await self._inner.close()


class HeldTransport(MemoryTransport):
    """See :class:`dispatch.transports.base.Transport`.

    Attributes:
        holds: messages are queued.
        refuses: publishing raises.
        queue: the messages that are queued.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.holds = False
        self.refuses = False
        self.queue: list[HeldTicket] = []

    async def publisher(self, topic: str) -> HeldPublisher:  # type: ignore[override] # a wrapper around its own
        return HeldPublisher(self, await super().publisher(topic))

    def release(self) -> None:
        """Send what is queued, and everything from now on."""
        self.holds = self.refuses = False
        queue, self.queue = self.queue, []
        for ticket in queue:
            ticket.send()
