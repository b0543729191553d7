"""Destinations of plain replies: the caller's own topic if it is allowed, otherwise the service's response topic."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping

from dispatch._internal.cancellation import cancel_and_wait
from dispatch._internal.clock import loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.endpoint.reply_permission import ReplyPermission, find_inbox_owner
from dispatch.messaging.flow.paced_publisher import PacedPublisher
from dispatch.messaging.wire.properties import Property
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.resilience.rate_limit.leaky_bucket import LeakyBucket
from dispatch.transports import Publisher, Ticket, Transport

logger = logging.getLogger("dispatch.service")

MAX_REPLY_TOPICS = 4_096
"""Reply topics kept open at once; the one that was idle longest is closed for a new one."""
OPENINGS_PER_S = 128
"""Reply topics opened a second on average, so that requests that name ever new topics do not take the connection from
everything else: a quarter of the 480 that one connection opened on a busy machine with two processors."""
OPENINGS_AT_ONCE = 512
"""Openings beyond that average: the dispatchers that a service meets when it starts."""
MAX_WAITING = 10_000
"""Replies that may wait for their topic to be opened, over all topics."""
TOPICS_OF_ONE = 16
"""Reply topics of one dispatcher: several times as many as it has."""
MAX_LOOKED_AT = 16
"""Open topics checked for one that can be closed."""
UNUSED_S = 60.0
"""Seconds without a reply after which a reply topic is closed, as the inboxes of sessions are."""
LEAST_UNUSED_S = 5.0
"""The same for a topic that was used for a shorter time than :data:`UNUSED_S`: it is closed after as long without a reply as
it was in use, at least this long. Most callers of one request have ended by then, and the broker deletes a topic one to two
minutes after its last producer was closed. Not while many callers are new: closings would delay their openings."""
SWEEP_S = 5.0
"""Seconds between two searches for unused topics."""
MANY_NEW = 128
"""Openings between two searches that are many: 26 a second."""
WARN_EVERY_S = 10.0
"""Seconds between two warnings about lost replies, or about topics that cannot be opened."""


class _Topic:
    """An open reply topic, or one that is being opened, with the replies that wait for it."""

    __slots__ = ("opening", "owner", "publisher", "since", "used_at", "waiting")

    def __init__(self, owner: str, now: float) -> None:
        self.owner = owner
        """The session key of the dispatcher whose topic this is."""
        self.since = self.used_at = now
        self.publisher: Publisher | None = None
        self.opening: asyncio.Task[None] | None = None
        self.waiting: deque[tuple[bytes, Mapping[str, str]]] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether replies wait for the pace."""
        return isinstance(self.publisher, PacedPublisher) and self.publisher.queued > 0

    def is_unused(self, now: float, least: float) -> bool:
        """Return whether the caller has probably ended: no reply for as long as the topic was in use, at least for ``least``
        and at most for :data:`UNUSED_S` seconds."""
        if self.opening is not None or self.is_busy:
            return False
        return now - self.used_at >= min(max(self.used_at - self.since, least), UNUSED_S)


class ReplyRouter:
    """Sends replies, opening callers' topics on demand.

    Args:
        transport: the service's connection.
        response_queue: the service's response topic, for callers without a reply topic of their own.
        namespaces: ``tenant/namespace`` where callers' topics may lie, besides the response queue's own.
    """

    def __init__(self, transport: Transport, response_queue: str, namespaces: Iterable[str] = ()) -> None:
        self._transport = transport
        self._response_queue = response_queue
        self._may_reply_to = ReplyPermission(response_queue, namespaces, allows_persistent=True)
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._owned: Counter[str] = Counter()
        """Number of open topics of each dispatcher, by its session key."""
        self._openings = LeakyBucket(OPENINGS_AT_ONCE, OPENINGS_PER_S)
        self._closing: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.Task[None] | None = None
        self._new = 0
        """Openings since the last search for unused topics."""
        self._clock = loop_clock()
        self._waiting = 0
        self._closed = False
        self._quiet_until: dict[str, float] = {}
        """Until when there are no further warnings of a kind."""
        self.lost = 0
        """Replies that could not be sent."""
        self.unopened = 0
        """Messages whose reply topic was not opened because of the limits. Replies among them go to the response topic."""

    async def start(self) -> None:
        """Open the response topic.

        Raises:
            TransportError: it cannot be opened.
        """
        topic = self._topics[self._response_queue] = _Topic("", self._clock())
        topic.publisher = await self._open_publisher(self._response_queue)

    async def _open_publisher(self, name: str) -> Publisher:
        publisher = await self._transport.publisher(name)
        # Receivers acknowledge nothing, and only a persistent topic retains replies that they cannot receive yet.
        return publisher if TopicName.parse(name).persistent else PacedPublisher(publisher)

    def topic_for(self, request: Mapping[str, str]) -> str:
        """Return the ``reply-to`` of ``request`` (its properties) if it is a reply topic in an allowed namespace and belongs
        to the sender of the request; else the response topic."""
        reply_to, secret = request.get(Property.REPLY_TO), request.get(Property.SESSION)
        if reply_to and secret is not None and self._may_reply_to(reply_to, secret):
            return reply_to
        return self._response_queue

    def send(self, request: Mapping[str, str], payload: bytes, properties: Mapping[str, str]) -> Ticket | None:
        """Send a reply to the caller of ``request`` (its properties). Never raises: a reply that cannot be sent is counted,
        and its caller has a deadline. Return the publish, or None while its topic is being opened."""
        if self._closed:
            self.lost += 1
            return None
        name = self.topic_for(request)
        topic = self._topics.get(name)
        if topic is None:
            owner = find_inbox_owner(name)
            if not self._can_open(owner):
                return self._send_unopened(payload, properties)
            topic = self._topics[name] = _Topic(owner, self._clock())
            self._owned[owner] += 1
            self._new += 1
            topic.opening = asyncio.get_running_loop().create_task(self._open(name, topic))
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().create_task(self._close_unused(), name="dispatch-close-unused")
        elif topic.publisher is not None:
            topic.used_at = self._clock()
            self._topics.move_to_end(name)
            return self._publish(topic.publisher, payload, properties)
        if self._waiting >= MAX_WAITING:
            self.lost += 1
            return None
        topic.waiting.append((payload, properties))
        self._waiting += 1
        return None

    def _can_open(self, owner: str) -> bool:
        """Return whether the limits allow another reply topic of ``owner``."""
        if self._owned[owner] >= TOPICS_OF_ONE:
            return False
        if not self._openings.try_add(1, self._clock()):
            return False
        for _ in range(MAX_LOOKED_AT):
            if len(self._topics) < MAX_REPLY_TOPICS:
                return True
            quietest, topic = next(iter(self._topics.items()))
            if topic.publisher is None or topic.is_busy or quietest == self._response_queue:
                self._topics.move_to_end(quietest)
            else:
                self._forget_topic(quietest, topic)
                task = asyncio.get_running_loop().create_task(topic.publisher.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        return False

    def _forget_topic(self, name: str, topic: _Topic) -> None:
        del self._topics[name]
        self._owned[topic.owner] -= 1
        if not self._owned[topic.owner]:
            del self._owned[topic.owner]

    async def _close_unused(self) -> None:
        """Close topics of callers that have probably ended, until none is open but the response topic."""
        while len(self._topics) > 1:
            await asyncio.sleep(SWEEP_S)
            least, self._new = UNUSED_S if self._new >= MANY_NEW else LEAST_UNUSED_S, 0
            for name, topic in list(self._topics.items()):
                if name == self._response_queue or self._topics.get(name) is not topic:
                    continue
                if topic.is_unused(self._clock(), least):
                    self._forget_topic(name, topic)
                    if topic.publisher is not None:
                        with contextlib.suppress(TransportError):
                            await topic.publisher.close()  # one after the other: each closing takes a thread
        self._sweep = None

    def _send_unopened(self, payload: bytes, properties: Mapping[str, str]) -> Ticket | None:
        """Send a reply whose topic is not opened to the response topic, where its caller listens, too. Any other message is
        dropped: its receiver asks again."""
        self.unopened += 1
        if self._may_warn("unopened"):
            logger.warning(
                "too many reply topics: %d messages named one that was not opened; their replies go to %s",
                self.unopened,
                self._response_queue,
            )
        shared = self._topics[self._response_queue].publisher
        return self._publish(shared, payload, properties) if payload and shared is not None else None

    def own_topic(self, request: Mapping[str, str]) -> bool:
        """Return whether the sender of ``request`` has a reply topic of its own that is allowed."""
        return self.topic_for(request) != self._response_queue

    async def writable(self, request: Mapping[str, str]) -> None:
        """Wait while replies to this caller are queued."""
        topic = self._topics.get(self.topic_for(request)) or self._topics.get(self._response_queue)
        if topic is None:
            return
        if topic.opening is not None:
            await asyncio.shield(topic.opening)
        if topic.publisher is not None:
            await topic.publisher.writable(request[Property.ID])

    async def _open(self, name: str, topic: _Topic) -> None:
        try:
            topic.publisher = await self._open_publisher(name)
        except Exception as error:  # of any kind: the waiting replies need a destination
            if self._may_warn("opening"):
                logger.warning(
                    "the reply topic %s cannot be opened (%s): replies go to %s", name, error, self._response_queue
                )
            self._forget_topic(name, topic)
        topic.opening = None
        publisher = topic.publisher or self._topics[self._response_queue].publisher
        for payload, properties in topic.waiting:
            self._waiting -= 1
            if publisher is not None:
                self._publish(publisher, payload, properties)
        topic.waiting.clear()

    def _publish(self, publisher: Publisher, payload: bytes, properties: Mapping[str, str]) -> Ticket | None:
        try:
            return publisher.publish(payload, properties, flow=properties.get(Property.ID, ""), on_failure=self._failed)
        except TransportError as error:
            self._failed(error)
            return None

    def _failed(self, error: TransportError) -> None:
        self.lost += 1
        if self._may_warn("lost"):
            logger.warning("a reply could not be sent (%d so far): %s", self.lost, error.type)

    def _may_warn(self, kind: str) -> bool:
        """Return whether a warning of this kind is due: a lost connection fails many replies."""
        now = self._clock()
        if now < self._quiet_until.get(kind, 0.0):
            return False
        self._quiet_until[kind] = now + WARN_EVERY_S
        return True

    async def flush(self) -> None:
        """Wait until every reply is sent."""
        while opening := [topic.opening for topic in self._topics.values() if topic.opening is not None]:
            await asyncio.wait(opening)
        for topic in list(self._topics.values()):
            if isinstance(topic.publisher, PacedPublisher):
                await topic.publisher.empty()
        await self._transport.flush()

    async def close(self) -> None:
        """Close the topics. Later replies are lost."""
        self._closed = True
        opening = [topic.opening for topic in self._topics.values() if topic.opening is not None]
        await cancel_and_wait([*opening, *self._closing, self._sweep])
        for topic in self._topics.values():
            if topic.publisher is not None:
                await topic.publisher.close()
        self._topics.clear()
