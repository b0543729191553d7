"""Destinations of replies: the caller's own topic if it is allowed, otherwise the service's response topic.

Replies to callers that acknowledge (the property ``credit``) are subject to flow control; acknowledgements arrive on the
instance's own topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.errors import TransportError
from dispatch.messaging.flow.credit import CREDIT_BYTES
from dispatch.messaging.flow.paced_publisher import PacedPublisher
from dispatch.messaging.flow.publisher import Gate
from dispatch.messaging.wire.properties import MAX_PROPERTY_BYTES, Property, whole_number
from dispatch.messaging.wire.sessions import MAX_SECRET_CHARS, is_sender, session_key
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.messaging.wire.topics import reply_key
from dispatch.resilience.rate_limit.leaky_bucket import LeakyBucket
from dispatch.transports import Message, Mode, Publisher, Subscription, Ticket, Transport

logger = logging.getLogger("dispatch.service")

MAX_REPLY_TOPICS = 4_096
"""Reply topics kept open at once, up to eight for a dispatcher that receives large replies; the one that was idle longest
is closed for a new one."""
OPENINGS_PER_S = 128
"""Reply topics opened a second on average, so that requests that name ever new topics do not take the connection from
everything else: a quarter of the 480 that one connection opened on a busy machine with two processors."""
OPENINGS_AT_ONCE = 512
"""Openings beyond that average: the dispatchers that a service meets when it starts."""
MAX_WAITING = 10_000
"""Replies that may wait for their topic to be opened, over all topics."""
TOPICS_OF_ONE = 16
"""Reply topics of one dispatcher: twice as many as it has connections."""
MAX_LOOKED_AT = 16
"""Open topics checked for one that can be closed."""
MAX_TOPIC_CHARS = 512
WARN_EVERY_S = 10.0
"""Seconds between two warnings about lost replies."""


class _Topic:
    """An open reply topic, or one that is being opened, with the replies that wait for it."""

    __slots__ = ("gate", "key", "opening", "owner", "waiting")

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
        """The session key of the dispatcher whose topic this is."""
        self.gate: Gate | PacedPublisher | None = None
        self.key = ""
        """Identifies the topic in acknowledgements."""
        self.opening: asyncio.Task[None] | None = None
        self.waiting: deque[tuple[bytes, Mapping[str, str], int | None]] = deque()


class ReplyRouter:
    """Sends replies, opening callers' topics on demand.

    Args:
        transport: the service's connection.
        response_queue: the service's response topic, for callers without a reply topic of their own.
        namespaces: ``tenant/namespace`` where callers' topics may lie, besides the response queue's own.
        control: the instance's own topic.
        on_request: handles messages on the instance's own topic other than acknowledgements, with their properties.
    """

    def __init__(
        self,
        transport: Transport,
        response_queue: str,
        namespaces: Iterable[str] = (),
        *,
        control: str,
        on_request: Callable[[Message, Mapping[str, str]], object] | None = None,
    ) -> None:
        self._transport = transport
        self._response_queue = response_queue
        self._allowed = {TopicName.parse(response_queue).namespace_path, *namespaces}
        self.control = control
        """The instance's own topic."""
        self._on_request = on_request
        self._subscription: Subscription | None = None
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._gates: dict[str, Gate] = {}
        self._next_gate = 0
        self._life = os.urandom(3).hex()
        self._owned: Counter[str] = Counter()
        """Number of open topics of each dispatcher, by its session key."""
        self._openings = LeakyBucket(OPENINGS_AT_ONCE, OPENINGS_PER_S)
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._closed = False
        self._quiet_until = 0.0
        self._unopened_quiet_until = 0.0
        self._known: dict[str, str | None] = {}
        self.forged = 0
        """Messages to the instance's own topic without the session of the dispatcher that they name."""
        self.lost = 0
        """Replies that could not be sent."""
        self.unopened = 0
        """Messages whose reply topic was not opened because of the limits. Replies among them go to the response topic."""

    async def start(self) -> None:
        """Open the response topic and the control topic.

        Raises:
            TransportError: one cannot be opened.
        """
        self._subscription = await self._transport.subscribe(
            self.control, self._on_control, mode=Mode.FANOUT, name="dispatch-instance"
        )
        topic = self._topics[self._response_queue] = _Topic()
        publisher = await self._transport.publisher(self._response_queue)
        # Third-party callers do not acknowledge, and only a persistent topic retains replies that they cannot receive yet.
        persistent = TopicName.parse(self._response_queue).persistent
        if persistent:
            self._make_gate(topic, publisher)
        else:
            topic.gate = PacedPublisher(publisher)

    def _make_gate(self, topic: _Topic, publisher: Publisher) -> None:
        self._next_gate += 1
        # Acknowledgements for a previous incarnation of this instance, on the same topic, must not release replies.
        key = topic.key = f"{self._life}-{self._next_gate:x}"

        def mark(sequence: int) -> Mapping[str, str]:
            return {Property.ACK: f"{key}:{sequence}", Property.CONTROL: self.control}

        topic.gate = self._gates[key] = Gate(publisher, mark, None)

    def _on_control(self, message: Message) -> None:
        properties = message.properties()
        secret = properties.get(Property.SESSION)
        if secret is None or len(secret) > MAX_SECRET_CHARS:
            self.forged += 1
            return
        acked = properties.get(Property.ACKED)
        if acked is not None:
            self._acknowledged(acked, session_key(secret))
        if Property.ID in properties and not is_sender(secret, properties[Property.ID]):
            self.forged += 1
        elif self._on_request is not None and (acked is None or Property.ID in properties):
            self._on_request(message, properties)

    def _acknowledged(self, tokens: str, sender: str) -> None:
        for token in tokens[:MAX_PROPERTY_BYTES].split(","):
            key, _, sequence = token.partition(":")
            gate = self._gates.get(key)
            if gate is None or self._owner(gate.topic) != sender:
                continue
            if sequence.isascii() and sequence.isdigit() and len(sequence) < 19:
                gate.acknowledge(int(sequence))

    def topic_for(self, request: Mapping[str, str]) -> str:
        """Return the ``reply-to`` of ``request`` (its properties) if it is a reply topic in an allowed namespace and belongs
        to the sender of the request; else the response topic."""
        reply_to, secret = request.get(Property.REPLY_TO), request.get(Property.SESSION)
        if not reply_to or secret is None or len(reply_to) > MAX_TOPIC_CHARS or len(secret) > MAX_SECRET_CHARS:
            return self._response_queue
        owner = self._owner(reply_to)
        return reply_to if owner is not None and owner == session_key(secret) else self._response_queue

    def _owner(self, topic: str) -> str | None:
        """Return the session key of the dispatcher whose reply topic this is; None: it is no reply topic, or in a namespace
        that is not allowed."""
        if topic in self._known:
            return self._known[topic]
        owner = None
        with contextlib.suppress(ValueError):
            name = TopicName.parse(topic)
            if name.namespace_path in self._allowed:
                owner = reply_key(name)
        if len(self._known) >= 4 * MAX_REPLY_TOPICS:
            self._known.clear()
        self._known[topic] = owner
        return owner

    def send(self, request: Mapping[str, str], payload: bytes, properties: Mapping[str, str]) -> Ticket | None:
        """Send a reply to the caller of ``request`` (its properties). Never raises: a reply that cannot be sent is counted,
        and its caller has a deadline. Return the publish, or None while its topic is being opened."""
        if self._closed:
            self.lost += 1
            return None
        name = self.topic_for(request)
        credit = whole_number(request, Property.CREDIT) if name != self._response_queue else None
        topic = self._topics.get(name)
        if topic is None:
            owner = self._owner(name) or ""
            if not self._can_open(owner):
                return self._send_unopened(payload, properties)
            topic = self._topics[name] = _Topic(owner)
            self._owned[owner] += 1
            topic.opening = asyncio.get_running_loop().create_task(self._open(name, topic))
        elif topic.gate is not None:
            self._topics.move_to_end(name)
            return self._publish(topic.gate, payload, properties, credit)
        if self._waiting >= MAX_WAITING:
            self.lost += 1
            return None
        topic.waiting.append((payload, properties, credit))
        self._waiting += 1
        return None

    def _can_open(self, owner: str) -> bool:
        """Return whether the limits allow another reply topic of ``owner``."""
        if self._owned[owner] >= TOPICS_OF_ONE:
            return False
        if not self._openings.try_add(1, asyncio.get_running_loop().time()):
            return False
        for _ in range(MAX_LOOKED_AT):
            if len(self._topics) < MAX_REPLY_TOPICS:
                return True
            quietest, topic = next(iter(self._topics.items()))
            if topic.gate is None or topic.gate.queued or quietest == self._response_queue:
                self._topics.move_to_end(quietest)
            else:
                self._forget_topic(quietest, topic)
                task = asyncio.get_running_loop().create_task(topic.gate.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        return False

    def _forget_topic(self, name: str, topic: _Topic) -> None:
        del self._topics[name]
        self._gates.pop(topic.key, None)
        self._owned[topic.owner] -= 1
        if not self._owned[topic.owner]:
            del self._owned[topic.owner]

    def _send_unopened(self, payload: bytes, properties: Mapping[str, str]) -> Ticket | None:
        """Send a reply whose topic is not opened to the response topic, where its caller listens, too. A dispatcher that
        accepts replies on its own topic only retransmits its request and receives the reply then. Any other message is
        dropped: its receiver asks again."""
        self.unopened += 1
        now = asyncio.get_running_loop().time()
        if now >= self._unopened_quiet_until:
            self._unopened_quiet_until = now + WARN_EVERY_S
            logger.warning(
                "too many reply topics: %d messages named one that was not opened; their replies go to %s",
                self.unopened,
                self._response_queue,
            )
        shared = self._topics[self._response_queue].gate
        return self._publish(shared, payload, properties, None) if payload and shared is not None else None

    def own_topic(self, request: Mapping[str, str]) -> bool:
        """Return whether the sender of ``request`` has a reply topic of its own that is allowed."""
        return self.topic_for(request) != self._response_queue

    def send_receipt(self, request: Mapping[str, str]) -> None:
        """Send a receipt for a request to a caller with a topic of its own."""
        if self.own_topic(request):
            self.send(request, b"", {Property.ID: request[Property.ID], Property.TAKEN: "1"})

    async def writable(self, request: Mapping[str, str]) -> None:
        """Wait while replies to this caller are queued."""
        topic = self._topics.get(self.topic_for(request)) or self._topics.get(self._response_queue)
        if topic is None:
            return
        if topic.opening is not None:
            await asyncio.shield(topic.opening)
        if topic.gate is not None:
            await topic.gate.writable(request[Property.ID])

    async def _open(self, name: str, topic: _Topic) -> None:
        try:
            self._make_gate(topic, await self._transport.publisher(name))
        except Exception as error:  # of any kind: the waiting replies need a destination
            logger.warning(
                "the reply topic %s cannot be opened (%s): replies go to %s", name, error, self._response_queue
            )
            self._forget_topic(name, topic)
        topic.opening = None
        fallback = self._topics[self._response_queue].gate
        for payload, properties, credit in topic.waiting:
            self._waiting -= 1
            if topic.gate is not None:
                self._publish(topic.gate, payload, properties, credit)
            elif fallback is not None:
                self._publish(fallback, payload, properties, None)
        topic.waiting.clear()

    def _publish(
        self, gate: Gate | PacedPublisher, payload: bytes, properties: Mapping[str, str], credit: int | None
    ) -> Ticket | None:
        if credit and isinstance(gate, Gate):
            gate.limit(min(credit, CREDIT_BYTES))
        try:
            return gate.publish(payload, properties, flow=properties.get(Property.ID, ""), on_failure=self._failed)
        except TransportError as error:
            self._failed(error)
            return None

    def _failed(self, error: TransportError) -> None:
        self.lost += 1
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:  # a lost connection fails many replies: one warning
            self._quiet_until = now + WARN_EVERY_S
            logger.warning("a reply could not be sent (%d so far): %s", self.lost, error.type)

    async def flush(self) -> None:
        """Wait until every reply is sent."""
        while opening := [topic.opening for topic in self._topics.values() if topic.opening is not None]:
            await asyncio.wait(opening)
        for topic in list(self._topics.values()):
            if topic.gate is not None:
                await topic.gate.empty()
        await self._transport.flush()

    async def close(self) -> None:
        """Close the topics. Later replies are lost."""
        self._closed = True
        opening = [topic.opening for topic in self._topics.values() if topic.opening is not None]
        await cancel_and_wait([*opening, *self._closing])
        for topic in self._topics.values():
            if topic.gate is not None:
                await topic.gate.close()
        self._topics.clear()
        self._gates.clear()
        if self._subscription is not None:
            await self._subscription.close()
