"""The plain exchange: requests and replies as messages with properties, for third-party peers and persistent topics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from dispatch._internal import cancel_and_wait, loop_clock, wait_shared
from dispatch.errors import TransportError
from dispatch.messaging.endpoint import ReplyPermission, find_inbox_owner
from dispatch.messaging.flow import PacedPublisher
from dispatch.messaging.wire import (
    REPLY_ONLY,
    ErrorInfo,
    PayloadTooLargeError,
    Property,
    Refusal,
    Reply,
    TopicName,
    config_of,
    is_dispatchers,
    is_oversized,
    is_sender,
    split_text,
    utf8_size,
    whole_number,
)
from dispatch.resilience.rate_limit import LeakyBucket
from dispatch.serving.replies import IdempotencyKeys, InboundRequest, RecordedReplies, ReplySender, ReplyTooLargeError
from dispatch.serving.requests import RequestQueue
from dispatch.transports import DurableMessage, Message, Publisher, Transport

# The age of requests that the broker may have retained. Pure; the clock is passed in.
#
# ``remaining-ms`` counts from the arrival of a request, because the clocks of two machines may differ. A persistent topic
# retains requests and redelivers them when an instance is lost: there the age follows from the time of publishing, by the
# sender's clock. The offset of that clock is estimated from the requests with the shortest delay.


WINDOW_S = 60.0
"""Seconds of a window; the shortest delay of the current and the previous window counts: clocks drift, and are adjusted."""
MAX_PEERS = 4_096


class _Peer(msgspec.Struct, eq=False):
    soonest: float
    since: float
    before: float | None = None


class ClockOffset:
    """The clock offsets of publishers. Bounded: the one that was idle longest is removed first."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def age(self, peer: str, lag: float, now: float, *, backlog: bool) -> float:
        """Return the seconds that a message of ``peer`` was delayed beyond its fastest one.

        Args:
            lag: seconds from publishing to arrival, by two clocks.
            backlog: it may have been published before the subscription was opened. It does not improve the estimate; without
                an estimate the clocks are assumed to agree.
        """
        known = self._peers.get(peer)
        if known is not None and now - known.since >= 2 * WINDOW_S:
            del self._peers[peer]
            known = None
        if backlog:
            return max(0.0, lag if known is None else lag - self._base(known))
        if known is None:
            if len(self._peers) >= MAX_PEERS:
                self._peers.popitem(last=False)
            self._peers[peer] = _Peer(lag, now)
            return 0.0
        self._peers.move_to_end(peer)
        if now - known.since >= WINDOW_S:
            known.before, known.soonest, known.since = known.soonest, lag, now
        known.soonest = min(known.soonest, lag)
        return max(0.0, lag - self._base(known))

    def _base(self, known: _Peer) -> float:
        return known.soonest if known.before is None else min(known.soonest, known.before)


# The ids of recent requests: a copy of a request is not executed again. Pure.


MAX_IDS = 10_000
"""Ids of a generation; two are stored. A client that sends a message again after a reconnection does so within seconds."""


class RecentIds:
    """The last :data:`MAX_IDS` ids, and up to as many older ones."""

    def __init__(self) -> None:
        self._newer: set[str] = set()
        self._older: set[str] = set()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def add(self, id: str) -> bool:
        """Add ``id``. Return whether it is new."""
        if id in self._newer or id in self._older:
            return False
        if len(self._newer) >= MAX_IDS:
            self._older, self._newer = self._newer, set()
        self._newer.add(id)
        return True


# Destinations of plain replies: the caller's own topic if it is allowed, otherwise the service's response topic.


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
        """The key of the dispatcher whose topic this is."""
        self.since = self.used_at = now
        self.publisher: Publisher | None = None
        self.opening: asyncio.Task[None] | None = None
        self.waiting: deque[tuple[bytes, Mapping[str, str], PlainReplies | None]] = deque()

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
        """Number of open topics of each dispatcher, by its key."""
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
        reply_to, secret = request.get(Property.REPLY_TO), request.get(Property.SECRET)
        if reply_to and secret is not None and self._may_reply_to(reply_to, secret):
            return reply_to
        return self._response_queue

    def send(
        self,
        request: Mapping[str, str],
        payload: bytes,
        properties: Mapping[str, str],
        noted: PlainReplies | None = None,
    ) -> None:
        """Send a message to the caller of ``request`` (its properties). Never raises: a reply that cannot be sent is
        counted, and its caller has a deadline. ``noted`` learns of the message's receipt, or that it is lost."""
        if self._closed:
            self._lose(noted)
            return
        name = self.topic_for(request)
        topic = self._topics.get(name)
        if topic is None:
            owner = find_inbox_owner(name)
            if not self._can_open(owner):
                self._send_unopened(payload, properties, noted)
                return
            topic = self._topics[name] = _Topic(owner, self._clock())
            self._owned[owner] += 1
            self._new += 1
            topic.opening = asyncio.get_running_loop().create_task(self._open(name, topic))
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().create_task(self._close_unused(), name="dispatch-close-unused")
        elif topic.publisher is not None:
            topic.used_at = self._clock()
            self._topics.move_to_end(name)
            self._publish(topic.publisher, payload, properties, noted)
            return
        if self._waiting >= MAX_WAITING:
            self._lose(noted)
            return
        topic.waiting.append((payload, properties, noted))
        self._waiting += 1

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

    def _send_unopened(self, payload: bytes, properties: Mapping[str, str], noted: PlainReplies | None) -> None:
        """Send a reply whose topic is not opened to the response topic, where its caller listens, too. Any other message is
        dropped: its receiver asks again."""
        self.unopened += 1
        if self.may_warn("unopened"):
            logger.warning(
                "too many reply topics: %d messages named one that was not opened; their replies go to %s",
                self.unopened,
                self._response_queue,
            )
        shared = self._topics[self._response_queue].publisher
        if payload and shared is not None:
            self._publish(shared, payload, properties, noted)

    def own_topic(self, request: Mapping[str, str]) -> bool:
        """Return whether the sender of ``request`` has a reply topic of its own that is allowed."""
        return self.topic_for(request) != self._response_queue

    async def writable(self, request: Mapping[str, str]) -> None:
        """Wait while replies to this caller are queued."""
        topic = self._topics.get(self.topic_for(request)) or self._topics.get(self._response_queue)
        if topic is None:
            return
        if topic.opening is not None:
            await wait_shared(topic.opening)
        if topic.publisher is not None:
            await topic.publisher.writable(request[Property.ID])

    async def _open(self, name: str, topic: _Topic) -> None:
        try:
            topic.publisher = await self._open_publisher(name)
        except Exception as error:  # of any kind: the waiting replies need a destination
            if self.may_warn("opening"):
                logger.warning(
                    "the reply topic %s cannot be opened (%s): replies go to %s", name, error, self._response_queue
                )
            self._forget_topic(name, topic)
        topic.opening = None
        publisher = topic.publisher or self._topics[self._response_queue].publisher
        for payload, properties, noted in topic.waiting:
            self._waiting -= 1
            if publisher is not None:
                self._publish(publisher, payload, properties, noted)
        topic.waiting.clear()

    def _publish(
        self, publisher: Publisher, payload: bytes, properties: Mapping[str, str], noted: PlainReplies | None
    ) -> None:
        on_failure, on_receipt = self._failed, None
        if noted is not None:
            on_failure, on_receipt = partial(self._failed, noted=noted), noted.on_receipt
        flow = properties.get(Property.ID, "")
        try:
            publisher.publish(payload, properties, flow=flow, on_failure=on_failure, on_receipt=on_receipt)
        except TransportError as error:
            on_failure(error)

    def _lose(self, noted: PlainReplies | None) -> None:
        self.lost += 1
        if noted is not None:
            noted.on_loss()

    def _failed(self, error: TransportError, noted: PlainReplies | None = None) -> None:
        self._lose(noted)
        if self.may_warn("lost"):
            logger.warning("a reply could not be sent (%d so far): %s", self.lost, error.type)

    def may_warn(self, kind: str) -> bool:
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


# The reply to a request of the plain exchange: messages with properties, on the caller's topic or the response topic.


class PlainReplySettings(msgspec.Struct, frozen=True, eq=False):
    """How one service instance sends plain replies.

    Attributes:
        router: chooses the topics.
        instance: the instance's id.
        load: returns the number of running requests.
        limit: returns the broker's message limit in bytes.
        max_payload_bytes: largest reply sent in fragments.
        encode: writes a reply.
    """

    router: ReplyRouter
    instance: str
    load: Callable[[], int]
    limit: Callable[[], int]
    max_payload_bytes: int
    encode: Callable[..., bytes]


class PlainReplies:
    """The channel of one request (:class:`~dispatch.serving.replies.ReplyChannel`).

    Args:
        sender: of the instance.
        request: the properties of the request.
        durable: retains the request until the broker has its reply; None: it is not retained.
    """

    __slots__ = ("_chunks", "_durable", "_is_lost", "_on_end", "_sender", "_unconfirmed", "request")

    def __init__(
        self, sender: PlainReplySettings, request: Mapping[str, str], durable: DurableRequests | None = None
    ) -> None:
        self._sender = sender
        self._durable = durable
        self._chunks = 0
        self.request = request
        self._unconfirmed = 0
        """Messages of a durable request's reply without a receipt."""
        self._is_lost = False
        self._on_end: Callable[[bool], object] | None = None

    @property
    def topic(self) -> str:
        return self._sender.router.topic_for(self.request)

    @property
    def request_id(self) -> str:
        return self.request[Property.ID]

    def send_result(self, text: str, trace: Mapping[str, str]) -> None:
        if (payload := self._encode(text, is_last=True)) is not None:
            self._send(payload, {}, trace)
        else:
            self._send_fragments(text, trace, is_last=True)

    def send_chunk(self, text: str, trace: Mapping[str, str]) -> None:
        if (payload := self._encode(text, is_last=False)) is not None:
            self._send_numbered(payload, {}, trace)
        else:
            self._send_fragments(text, trace, is_last=False)

    def send_end(self, trace: Mapping[str, str]) -> None:
        self._send_numbered(self._sender.encode(Reply(None, "", True)), {}, trace)

    def send_error(self, type: str, message: str, trace: Mapping[str, str]) -> None:
        # Without an index it ends the stream even if a chunk before it was lost.
        self._send(self._sender.encode(Reply(ErrorInfo(type, message), "", True)), {}, trace)

    def refuse(self, reason: str, retry_after: float | None, message: str, trace: Mapping[str, str]) -> None:
        extra = {Property.REFUSED: reason}
        if retry_after is not None:
            extra[Property.RETRY_AFTER_MS] = str(int(retry_after * 1000))
        self._send(self._sender.encode(Reply(ErrorInfo(reason, message), "", True)), extra, trace)

    def _encode(self, text: str, *, is_last: bool) -> bytes | None:
        """Return the payload of one message; None if it exceeds the broker's limit."""
        limit = self._sender.limit()
        if len(text) > limit:
            return None
        try:
            return self._sender.encode(Reply(None, text, is_last), limit=limit)
        except PayloadTooLargeError:
            return None

    def _send_fragments(self, text: str, trace: Mapping[str, str], *, is_last: bool) -> None:
        limit = self._sender.limit()
        accepted = whole_number(self.request, Property.LARGEST)
        if accepted is None:
            raise ReplyTooLargeError(f"more than the {limit:,} bytes of a message, and the caller accepts no fragments")
        size, most = utf8_size(text), min(accepted, self._sender.max_payload_bytes)
        if size > most:
            raise ReplyTooLargeError(f"{size:,} bytes, the limit is {most:,}")
        for part, has_more in split_text(text, size, limit):
            payload = self._sender.encode(Reply(None, part, is_last and not has_more), limit=limit)
            self._send_numbered(payload, {Property.MORE: "1"} if has_more else {}, trace)

    def _send_numbered(self, payload: bytes, extra: Mapping[str, str], trace: Mapping[str, str]) -> None:
        self._send(payload, {Property.CHUNK: str(self._chunks), **extra}, trace)
        self._chunks += 1

    def _send(self, payload: bytes, extra: Mapping[str, str], trace: Mapping[str, str]) -> None:
        sender, noted = self._sender, None
        if self._durable is not None:
            self._unconfirmed += 1
            noted = self
        properties = {
            Property.ID: self.request_id,
            Property.INSTANCE: sender.instance,
            Property.IN_FLIGHT: str(sender.load()),
            **extra,
            **trace,
        }
        sender.router.send(self.request, payload, properties, noted)

    def on_receipt(self) -> None:
        """Record that the broker has one of the messages."""
        self._unconfirmed -= 1
        self._check_end()

    def on_loss(self) -> None:
        """Record that one of the messages could not be sent."""
        self._is_lost = True
        self._check_end()

    def await_receipts(self, on_end: Callable[[bool], object]) -> None:
        """Call ``on_end`` when the broker has every message sent so far, with True; or when one is lost, with False."""
        self._on_end = on_end
        self._check_end()

    def _check_end(self) -> None:
        if self._on_end is not None and (self._is_lost or not self._unconfirmed):
            on_end, self._on_end = self._on_end, None
            on_end(not self._is_lost)

    async def writable(self) -> None:
        await self._sender.router.writable(self.request)

    def release_payload(self) -> None:
        """Nothing counts the bytes of requests."""

    def close(self) -> None:
        if self._durable is not None:
            self._durable.record_end(self)

    def hand_over(self) -> bool:
        return self._durable is not None and self._durable.hand_over(self)


# Acknowledgement of durable requests (on a persistent topic).
#
# A request whose tool may be repeated is acknowledged when the broker has confirmed its reply: if the instance or the broker
# is lost before that, the request is delivered again. Any other request is acknowledged, with confirmation, before it is
# executed, so that it is never executed twice.


MAX_COPIES = 8
"""Copies of one request while it runs: each reconnection can redeliver it."""

Accept = Callable[[InboundRequest, PlainReplies], bool]


IsRepeatable = Callable[[InboundRequest], bool]


class DurableRequests:
    """The unacknowledged requests of one instance: at most as many as it runs and queues, and as there are replies on their
    way to the broker.

    Args:
        is_repeatable: returns whether a request may be executed again; None: the request says so.
    """

    def __init__(self, is_repeatable: IsRepeatable | None = None) -> None:
        self._is_repeatable = is_repeatable
        self._held: dict[str | PlainReplies, list[DurableMessage]] = {}
        self._leaving: dict[PlainReplies, list[DurableMessage]] = {}
        self._ages = ClockOffset()
        self._closed = False

    def __len__(self) -> int:
        """Number of unacknowledged requests."""
        return len(self._held) + len(self._leaving)

    def remaining(self, id: str, milliseconds: int, message: DurableMessage, now: float) -> int:
        """Return the milliseconds until the deadline of a request, counted from its publishing."""
        age = self._ages.age(id.partition("-")[0], message.lag, now, backlog=message.backlog)
        return max(0, milliseconds - int(age * 1000))

    def accept_request(
        self, work: InboundRequest, replies: PlainReplies, message: DurableMessage, accept: Accept
    ) -> None:
        """Pass ``work``, which arrived as ``message``, to ``accept``: at once, or after its acknowledgement is confirmed."""
        properties, decides = replies.request, self._is_repeatable
        if Property.REPEATABLE in properties if decides is None else decides(work):
            if self._closed:
                message.keep()  # redelivered to another instance when this one has closed
                return
            held = self._held.setdefault(_identify(replies), [])
            if len(held) < MAX_COPIES:
                held.append(message)
                message.keep()
            if not accept(work, replies) and len(held) == 1:
                self.record_end(replies)
        elif decides is not None or Property.REPLY_TO in properties:
            message.settle(partial(accept, work, replies))
        else:
            accept(work, replies)  # from a third-party caller: acknowledged and executed as often as it arrives

    def record_end(self, replies: PlainReplies) -> None:
        """Acknowledge the request of ``replies`` when the broker has its reply, and release it if the reply is lost."""
        held = self._held.pop(_identify(replies), None)
        if held is not None:
            self._leaving[replies] = held
            replies.await_receipts(partial(self._on_reply_end, replies))

    def _on_reply_end(self, replies: PlainReplies, is_confirmed: bool) -> None:
        for message in self._leaving.pop(replies, ()):
            if is_confirmed:
                message.acknowledge()
            else:
                message.release()

    def stop_accepting(self) -> None:
        """Leave requests that arrive from now on to other instances."""
        self._closed = True

    def hand_over(self, replies: PlainReplies) -> bool:
        """Leave the request of ``replies`` to another instance. Return False if no other instance can receive it."""
        return self._held.pop(_identify(replies), None) is not None

    def finish(self) -> None:
        """Finish the running requests here."""
        for held in (*self._held.values(), *self._leaving.values()):
            for message in held:
                message.acknowledge()
        self._held.clear()
        self._leaving.clear()


def _identify(replies: PlainReplies) -> str | PlainReplies:
    """Return what all copies of a request have in common: two requests of third-party callers may have one id."""
    return replies.request_id if is_dispatchers(replies.request_id) else replies


# Requests of the plain exchange: messages with properties on the service's request topic.


class PlainRequests:
    """Reads the messages on a request topic and gives the requests to the queue.

    Args:
        queue: runs the requests.
        sender, channel: send their replies.
        topic: the request topic.
        is_repeatable: see :class:`DurableRequests`.
    """

    def __init__(
        self,
        queue: RequestQueue,
        sender: ReplySender,
        channel: PlainReplySettings,
        topic: str,
        is_repeatable: IsRepeatable | None = None,
    ) -> None:
        self._queue = queue
        self._sender = sender
        self._channel = channel
        self._topic = topic
        self._is_persistent = topic.startswith("persistent://")
        self._now = loop_clock()
        self._recent = RecentIds()
        self._replies = IdempotencyKeys()
        """Replies to requests on a persistent topic, for the copies that the broker delivers."""
        self.durable = DurableRequests(is_repeatable)
        self.malformed = 0
        """Messages without a usable id, which cannot be answered."""
        self.repeats = 0
        """Copies of dispatchers' requests."""

    def receive_message(self, message: Message) -> None:
        """Handle a message on the request topic."""
        properties: Mapping[str, str] = {}
        with contextlib.suppress(Exception):  # any exception of the client for a peer's message
            properties = message.properties()
        if not REPLY_ONLY.isdisjoint(properties):
            self._ignore("are replies, where requests are expected")
            return
        id = properties.get(Property.ID, "")
        if not id or is_oversized(id):
            self._queue.requests += 1
            self._ignore("have no usable property 'id'")
            return
        if is_dispatchers(id) and not is_sender(properties.get(Property.SECRET), id):
            # Its reply would end the call of another agent.
            self._ignore("have the id of another dispatcher")
            return
        durable = message if self._is_persistent and isinstance(message, DurableMessage) else None
        replies = PlainReplies(self._channel, properties, None if durable is None else self.durable)
        try:
            payload = message.data()
        except Exception as error:  # any exception of the client library
            self._queue.requests += 1
            work = InboundRequest(replies, properties, b"", math.inf)
            unreadable = f"The tool was not executed: the request is not readable: {type(error).__name__}."
            self._queue.refuse(work, Refusal.INVALID_REQUEST, unreadable)
            return
        now = self._now()
        remaining = whole_number(properties, Property.REMAINING_MS)
        if remaining is not None and durable is not None:
            remaining = self.durable.remaining(id, remaining, durable, now)
        deadline = math.inf if remaining is None else now + remaining / 1000
        caller = properties.get(Property.SECRET, "")
        work = InboundRequest(replies, properties, payload, deadline, config_of(payload), caller)
        if durable is None:
            self._accept(work, replies)
        else:
            self.durable.accept_request(work, replies, durable, self._accept)

    def _ignore(self, reason: str) -> None:
        """Count a message that cannot be answered; the log has one line for many."""
        self.malformed += 1
        if self._channel.router.may_warn(reason):
            logger.warning("messages on %s %s: they are ignored (%d so far)", self._topic, reason, self.malformed)

    def _accept(self, work: InboundRequest, replies: PlainReplies) -> bool:
        """Give ``work`` to the queue. Return False for a copy of an earlier request."""
        now = self._now()
        # The ids of third-party callers may come again.
        if is_dispatchers(replies.request_id):
            is_new = self._recent.add(replies.request_id)
            if self._is_persistent:
                first, _ = self._replies.claim("", replies.request_id, now)
                if is_new:
                    work.replies = RecordedReplies(replies, self._replies, first)
                elif first.ended.is_set():
                    self._sender.send_stored(work, first)
            if not is_new:
                self.repeats += 1
                return False
        self._queue.accept(work, now)
        return True
