"""``memory://``: the embedded broker, in process, with the behaviour of Pulsar.

A message without a subscriber is dropped; a shared subscription distributes messages round-robin; a fan-out subscriber
receives every message published from now on; messages beyond a subscriber's queue are dropped silently. A persistent topic
drops no message but retains it, and a shared subscription outlives its subscribers and redelivers unacknowledged messages
to another one. Each name (``memory://lab``) is a separate broker; it belongs to one event loop and ends with its last
connection, persistent topics included.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping

from dispatch.errors import TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.transports.base import (
    MAX_RELEASES,
    RELEASED_S,
    AnswerLate,
    ConnectionListener,
    DurableMessage,
    Handler,
    Mode,
    OnFailure,
    OnReceipt,
    PublishedTicket,
)
from dispatch.transports.errors import closed, sending_failed

logger = logging.getLogger("dispatch.transport")

RECEIVER_QUEUE = 10_000
"""Messages that may wait for one subscriber, as with the transport over Pulsar."""

DRAIN_BATCH = 512
"""Messages handed to one subscriber before other tasks run."""

MAX_KEPT = 100_000
"""Messages that a persistent topic retains; further publishes are refused, as by a broker's backlog quota."""


class MemoryMessage:
    """See :class:`dispatch.transports.base.Message`."""

    __slots__ = ("_payload", "_properties", "published", "releases")

    def __init__(self, payload: bytes, properties: Mapping[str, str], published: float = 0.0) -> None:
        self._payload = payload
        self._properties = properties
        self.published = published
        self.releases = 0

    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    def data(self) -> bytes:
        return self._payload


class MemoryDelivery(DurableMessage):
    """See :class:`dispatch.transports.base.DurableMessage`."""

    __slots__ = ("_subscription",)

    _message: MemoryMessage

    def __init__(self, subscription: MemorySubscription, message: MemoryMessage, now: float) -> None:
        self._subscription = subscription
        self._message = message
        self.kept = False
        self.lag = now - message.published
        self.backlog = message.published < subscription.opened

    def acknowledge(self) -> None:
        self._subscription.unacknowledged.pop(self._message, None)

    def release(self) -> None:
        if self._message.releases >= MAX_RELEASES:
            self.acknowledge()
        else:
            self._message.releases += 1
            self._subscription.release(self._message)

    def settle(self, then: Callable[[], object]) -> None:
        self.acknowledge()
        asyncio.get_running_loop().call_soon(then)


class MemoryGroup:
    """The subscribers of one subscription: all of one name that share messages, or a single one."""

    def __init__(self, *, persistent: bool) -> None:
        self.members: deque[MemorySubscription] = deque()
        self._persistent = persistent
        self._backlog: deque[MemoryMessage] = deque()

    @property
    def full(self) -> bool:
        """Whether the backlog is full."""
        return len(self._backlog) >= MAX_KEPT

    def deliver(self, message: MemoryMessage) -> bool:
        """Deliver ``message`` to a member, or retain it. Return False if it is lost."""
        if self._backlog or not self._offer(message):
            if not self._persistent:
                return False
            self._backlog.append(message)
        return True

    def _offer(self, message: MemoryMessage) -> bool:
        for _ in range(len(self.members)):  # a full member is passed over for the next, as a broker does
            member = self.members[0]
            self.members.rotate(-1)
            if member.offer(message):
                return True
        return False

    def redeliver(self, message: MemoryMessage) -> None:
        """Deliver ``message`` again, before the backlog."""
        self._backlog.appendleft(message)
        self.deliver_backlog()

    def deliver_backlog(self) -> None:
        """Deliver from the backlog after a subscriber has joined or has capacity again."""
        while self._backlog and self._offer(self._backlog[0]):
            self._backlog.popleft()

    def leave(self, member: MemorySubscription) -> None:
        """Redeliver the unacknowledged messages of ``member`` to the others, before the backlog."""
        self.members.remove(member)
        self._backlog.extendleft(reversed(member.unacknowledged))
        for timer in filter(None, member.unacknowledged.values()):
            timer.cancel()
        member.unacknowledged.clear()
        self.deliver_backlog()


class MemoryBroker:
    """Topics of one event loop."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[tuple[Mode, str], MemoryGroup]] = {}
        self.dropped = 0
        """Messages without a subscriber, or whose subscribers were full."""

    def attach(self, subscription: MemorySubscription) -> MemoryGroup:
        groups = self._topics.setdefault(subscription.topic, {})
        # Every fan-out subscriber is a group of its own; shared ones of one name are a group together.
        key = (subscription.mode, subscription.name if subscription.mode is Mode.SHARED else str(id(subscription)))
        group = groups.get(key)
        if group is None:
            group = groups[key] = MemoryGroup(persistent=subscription.topic.startswith("persistent://"))
        group.members.append(subscription)
        group.deliver_backlog()
        return group

    def detach(self, subscription: MemorySubscription) -> None:
        groups = self._topics.get(subscription.topic, {})
        for key, group in list(groups.items()):
            if subscription in group.members:
                group.leave(subscription)
                if not (group.members or subscription.durable):
                    del groups[key]
        if not groups:
            self._topics.pop(subscription.topic, None)

    def has_subscriber(self, topic: str) -> bool:
        return topic in self._topics

    def publish(self, topic: str, message: MemoryMessage) -> bool:
        """Deliver ``message``. Return False if the topic's backlog is full and it was refused."""
        groups = self._topics.get(topic)
        if not groups:
            self.dropped += 1
            return True
        if any(group.full for group in groups.values()):
            return False
        for group in groups.values():
            if not group.deliver(message):
                self.dropped += 1
        return True


class MemorySubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    def __init__(self, transport: MemoryTransport, topic: str, handler: Handler, mode: Mode, name: str) -> None:
        self._transport = transport
        self.topic = topic
        self.mode = mode
        self.name = name
        self.durable = mode is Mode.SHARED and topic.startswith("persistent://")
        self._handler: Handler | None = handler
        self._inbox: deque[MemoryMessage] = deque()
        self.loop = asyncio.get_running_loop()
        self._scheduled = False
        self.opened = self.loop.time()
        self.unacknowledged: dict[MemoryMessage, asyncio.TimerHandle | None] = {}
        """Messages of a durable subscription that are not acknowledged, in order, with the timers of those released."""
        self._group: MemoryGroup | None = transport.broker().attach(self)

    def offer(self, message: MemoryMessage) -> bool:
        """Queue a message for the handler. Return False if the receiver queue is full."""
        if self._handler is None or len(self._inbox) >= RECEIVER_QUEUE:
            return False
        self._inbox.append(message)
        if self.durable:
            self.unacknowledged[message] = None
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._drain)
        return True

    def release(self, message: MemoryMessage) -> None:
        """Give a message back to the group, after :data:`RELEASED_S`."""
        if self.unacknowledged.get(message, self) is None:
            self.unacknowledged[message] = self.loop.call_later(RELEASED_S, self._redeliver, message)

    def _redeliver(self, message: MemoryMessage) -> None:
        if self._group is not None and message in self.unacknowledged:
            del self.unacknowledged[message]
            self._group.redeliver(message)

    def _drain(self) -> None:
        self._scheduled = False
        for _ in range(min(len(self._inbox), DRAIN_BATCH)):
            handler = self._handler
            if handler is None:
                return
            message = self._inbox.popleft()
            try:
                if self.durable:
                    MemoryDelivery(self, message, self.loop.time()).deliver_to(handler)
                else:
                    handler(message)
            except Exception as error:
                # A handler's exception must not stop the delivery of further messages.
                self._transport.handler_errors += 1
                logger.warning("a message on %s could not be handled: %s", self.topic, type(error).__name__)
        if self._group is not None:
            self._group.deliver_backlog()
        if self._inbox and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._drain)

    async def close(self) -> None:
        if self.durable:
            self._group, group = None, self._group
            if group is not None and self in group.members:
                group.members.remove(self)  # nothing new comes
                await self._emptied()
                group.members.append(self)
            self._transport.forget(self)
        else:
            self._transport.forget(self)
            # Messages that have arrived are still handled: no other subscriber receives them.
            await self._emptied()
        self._handler = None

    async def _emptied(self) -> None:
        while self._inbox:  # noqa: ASYNC110 - the next iteration of the loop empties it
            await asyncio.sleep(0)

    def cut(self) -> None:
        """End at once; queued messages are not handled."""
        self._handler = None
        self._inbox.clear()
        self._group = None


class MemoryPublisher:
    """See :class:`dispatch.transports.base.TopicPublisher`."""

    __slots__ = ("_transport", "topic")

    def __init__(self, transport: MemoryTransport, topic: str) -> None:
        self._transport = transport
        self.topic = topic

    @property
    def opening_error(self) -> TransportError | None:
        return None

    @property
    def is_connected(self) -> bool:
        return True

    def publish(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: OnReceipt | None = None,
    ) -> PublishedTicket:
        ticket = PublishedTicket(on_failure)  # an embedded message is delivered when it is published
        broker, loop = self._transport.broker(), asyncio.get_running_loop()
        if len(payload) > self._transport.max_message_bytes:
            loop.call_soon(ticket.fail, sending_failed("MessageTooBig", topic=self.topic))
        elif not broker.publish(self.topic, MemoryMessage(payload, dict(properties), loop.time())):
            loop.call_soon(ticket.fail, sending_failed("ProducerBlockedQuotaExceededException", topic=self.topic))
        if on_receipt is not None:
            loop.call_soon(on_receipt)
        return ticket

    def send_packet(self, payload: bytes) -> bool:
        transport = self._transport
        if not transport.connected or len(payload) > transport.max_message_bytes:
            return False
        return transport.broker().publish(self.topic, MemoryMessage(payload, {}))

    async def writable(self, flow: str) -> None:
        # Nothing is ever queued, but a stream must let other tasks run.
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Do nothing: a publisher holds no resource."""


class MemoryTransport:
    """See :class:`dispatch.transports.base.Transport`. ``url`` is ``memory://`` or ``memory://NAME``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.handler_errors = 0
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self._broker: MemoryBroker | None = None
        self._subscriptions: set[MemorySubscription] = set()

    @property
    def connected(self) -> bool:
        return self._broker is not None

    async def await_connection(self, deadline: float) -> bool:
        return self.connected

    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool:
        return self._broker is None

    def on_connection_change(self, listener: ConnectionListener) -> None:
        """The embedded broker is never lost."""

    def another(self) -> MemoryTransport:
        return MemoryTransport(self.url)

    def broker(self) -> MemoryBroker:
        """The broker behind this connection.

        Raises:
            TransportError: not connected.
        """
        if self._broker is None:
            raise closed()
        return self._broker

    async def start(self) -> None:
        brokers = _brokers.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
        broker = brokers.get(self.url)
        if broker is None:
            broker = brokers[self.url] = MemoryBroker()
        self._broker = broker

    def has_subscriber(self, topic: str) -> bool:
        return topic.startswith("persistent://") or self.broker().has_subscriber(topic)

    async def publisher(self, topic: str) -> MemoryPublisher:
        self.broker()
        return MemoryPublisher(self, topic)

    async def subscribe(
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> MemorySubscription:
        subscription = MemorySubscription(self, topic, handler, mode, name)
        self._subscriptions.add(subscription)
        return subscription

    def forget(self, subscription: MemorySubscription) -> None:
        self._subscriptions.discard(subscription)
        if self._broker is not None:
            self._broker.detach(subscription)

    async def flush(self) -> None:
        """Do nothing: no publish is ever queued."""

    def cut(self) -> None:
        """Break the connection as the end of a process does (``kill -9``): nothing is handled or sent any more, and nothing
        acknowledged."""
        for subscription in list(self._subscriptions):
            subscription.cut()
            self.forget(subscription)
        self._broker = None

    async def close(self) -> None:
        try:
            for subscription in list(self._subscriptions):
                if subscription.loop is asyncio.get_running_loop():
                    await subscription.close()
                else:
                    subscription.cut()
        finally:
            self._broker = None


_brokers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[str, MemoryBroker]] = (
    weakref.WeakKeyDictionary()
)
