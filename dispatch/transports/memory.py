"""``memory://``: the embedded broker, in process. It behaves as Pulsar's non-persistent topics do, whatever the name says.

No subscriber, no delivery; a shared subscription takes turns; a fan-out subscriber gets everything from now on; what a
subscriber's queue cannot take is dropped without a word. A name (``memory://lab``) makes a broker of its own; a broker
lives on one event loop and is gone with its last connection.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Mapping

from dispatch.messages import MAX_MESSAGE_BYTES
from dispatch.outcome import TransportError
from dispatch.transports.base import Handler, Mode, OnFailure
from dispatch.transports.errors import sending_failed

logger = logging.getLogger("dispatch.transport")

RECEIVER_QUEUE = 10_000
"""Messages that may wait for one subscriber, as with the transport over Pulsar."""

DRAIN_BATCH = 512
"""Messages handed to one subscriber before other tasks get their turn."""


class MemoryMessage:
    """See :class:`dispatch.transports.base.Message`."""

    __slots__ = ("_payload", "_properties")

    def __init__(self, payload: bytes, properties: Mapping[str, str]) -> None:
        self._payload = payload
        self._properties = properties

    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    def data(self) -> bytes:
        return self._payload


class MemoryBroker:
    """Topics of one event loop."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[tuple[Mode, str], deque[MemorySubscription]]] = {}
        self.dropped = 0
        """Messages that met no subscriber, or a full one."""

    def attach(self, subscription: MemorySubscription) -> None:
        groups = self._topics.setdefault(subscription.topic, {})
        # Every fan-out subscriber is a group of its own; shared ones of one name are a group together.
        key = (subscription.mode, subscription.name if subscription.mode is Mode.SHARED else str(id(subscription)))
        groups.setdefault(key, deque()).append(subscription)

    def detach(self, subscription: MemorySubscription) -> None:
        groups = self._topics.get(subscription.topic, {})
        for key, members in list(groups.items()):
            if subscription in members:
                members.remove(subscription)
                if not members:
                    del groups[key]
        if not groups:
            self._topics.pop(subscription.topic, None)

    def publish(self, topic: str, message: MemoryMessage) -> None:
        groups = self._topics.get(topic)
        if not groups:
            self.dropped += 1
            return
        for members in groups.values():
            for _ in range(len(members)):  # a full member is passed over for the next, as a broker does
                member = members[0]
                members.rotate(-1)
                if member.offer(message):
                    break
            else:
                self.dropped += 1


class MemorySubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    def __init__(self, transport: MemoryTransport, topic: str, handler: Handler, mode: Mode, name: str) -> None:
        self._transport = transport
        self.topic = topic
        self.mode = mode
        self.name = name
        self._handler: Handler | None = handler
        self._inbox: deque[MemoryMessage] = deque()
        self._loop = asyncio.get_running_loop()
        self._scheduled = False

    def offer(self, message: MemoryMessage) -> bool:
        """Queue a message for the handler; False when there is no room."""
        if self._handler is None or len(self._inbox) >= RECEIVER_QUEUE:
            return False
        self._inbox.append(message)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)
        return True

    def _drain(self) -> None:
        self._scheduled = False
        for _ in range(min(len(self._inbox), DRAIN_BATCH)):
            handler = self._handler
            if handler is None:
                return
            message = self._inbox.popleft()
            try:
                handler(message)
            except Exception as error:
                # Whatever a message holds, the next one is delivered.
                self._transport.handler_errors += 1
                logger.warning("a message on %s could not be handled: %s", self.topic, type(error).__name__)
        if self._inbox and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    async def close(self) -> None:
        self._transport.forget(self)
        # What had arrived by then is still handled: nobody else will get it.
        while self._inbox:  # noqa: ASYNC110 - the loop's next turn takes from it
            await asyncio.sleep(0)
        self._handler = None


class MemoryTicket:
    """See :class:`dispatch.transports.base.Ticket`: an embedded message is gone the moment it is published."""

    __slots__ = ("on_failure",)

    waits = False

    def __init__(self, on_failure: OnFailure) -> None:
        self.on_failure: OnFailure | None = on_failure

    def cancel(self) -> bool:
        self.on_failure = None
        return False

    def answered(self) -> None:
        """Nothing depends on it here."""

    def taken(self) -> None:
        """Nothing depends on it here."""

    def fail(self, error: TransportError) -> None:
        callback, self.on_failure = self.on_failure, None
        if callback is not None:
            callback(error)


class MemoryPublisher:
    """See :class:`dispatch.transports.base.Publisher`."""

    __slots__ = ("_transport", "topic")

    def __init__(self, transport: MemoryTransport, topic: str) -> None:
        self._transport = transport
        self.topic = topic

    def publish(
        self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure
    ) -> MemoryTicket:
        ticket = MemoryTicket(on_failure)
        broker = self._transport.broker()
        if len(payload) > MAX_MESSAGE_BYTES:
            asyncio.get_running_loop().call_soon(ticket.fail, sending_failed("MessageTooBig", topic=self.topic))
        else:
            broker.publish(self.topic, MemoryMessage(payload, dict(properties)))
        return ticket

    async def writable(self, flow: str) -> None:
        # Nothing ever waits to go out; but a stream must not keep the loop to itself either.
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Nothing is held."""


class MemoryTransport:
    """See :class:`dispatch.transports.base.Transport`. ``url`` is ``memory://`` or ``memory://NAME``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.handler_errors = 0
        self._broker: MemoryBroker | None = None
        self._subscriptions: set[MemorySubscription] = set()

    @property
    def connected(self) -> bool:
        return self._broker is not None

    def another(self) -> MemoryTransport:
        return MemoryTransport(self.url)

    def broker(self) -> MemoryBroker:
        """The broker behind this connection.

        Raises:
            TransportError: not connected.
        """
        if self._broker is None:
            raise TransportError("closed", "The connection is closed.", sent=False)
        return self._broker

    async def start(self) -> None:
        brokers = _brokers.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
        broker = brokers.get(self.url)
        if broker is None:
            broker = brokers[self.url] = MemoryBroker()
        self._broker = broker

    async def publisher(self, topic: str) -> MemoryPublisher:
        self.broker()
        return MemoryPublisher(self, topic)

    async def subscribe(self, topic: str, handler: Handler, *, mode: Mode, name: str) -> MemorySubscription:
        broker = self.broker()
        subscription = MemorySubscription(self, topic, handler, mode, name)
        broker.attach(subscription)
        self._subscriptions.add(subscription)
        return subscription

    def forget(self, subscription: MemorySubscription) -> None:
        self._subscriptions.discard(subscription)
        if self._broker is not None:
            self._broker.detach(subscription)

    async def flush(self) -> None:
        """Nothing ever waits to go out."""

    async def close(self) -> None:
        for subscription in list(self._subscriptions):
            await subscription.close()
        self._broker = None


_brokers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[str, MemoryBroker]] = (
    weakref.WeakKeyDictionary()
)
