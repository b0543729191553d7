"""``pulsar://`` and ``pulsar+ssl://``: the transport over a genuine broker.

Threads of pulsar-client append messages and receipts to deques; one wake-up of the event loop handles a whole burst. A
window limits publishes without a receipt. :mod:`dispatch.transports.pulsar.supervisor` keeps the connection up.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dispatch._internal import cancel_and_wait, loop_clock, remember, wait_set
from dispatch.errors import TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES, PROPERTIES_BYTES, is_inbox, is_reply_inbox
from dispatch.telemetry.observers import NO_PROPERTIES
from dispatch.transports.base import (
    MAX_RELEASES,
    POLL_S,
    AnswerLate,
    ConnectionListener,
    DurableMessage,
    Handler,
    Mode,
    OnFailure,
    OnReceipt,
    PublishedTicket,
    PublishWindow,
    QueueFullError,
    Security,
)
from dispatch.transports.errors import closed, message_rejected, publish_queue_full, sending_failed
from dispatch.transports.pulsar.client import (
    CLOSED_HANDLE,
    DEAF,
    OK,
    OPERATION_TIMEOUT_S,
    RECEIVER_QUEUE,
    TOO_LARGE,
    abandon,
    close_opened,
    keep_thread_state,
    pause,
    receive_arrived,
    send_message,
)
from dispatch.transports.pulsar.handshake import read_fields
from dispatch.transports.pulsar.supervisor import SILENT_S, ConnectionSupervisor, TopicHandle

if TYPE_CHECKING:
    from dispatch.transports.pulsar.client import PulsarClient


T = TypeVar("T")

# Publishing to Pulsar: tickets, publishers, and the sender that they share.
#
# pulsar-client's threads append receipts to a deque; the event loop processes many of them at a time.


MAX_WAITING = 1_000
"""Messages and packets that wait for one topic to be opened again."""
MAX_PACKETS_IN_DOUBT = 500
"""Packets handed to pulsar-client that have no receipt yet; further ones are not sent. Half of what a broker accepts at once
on a connection (``maxConcurrentNonPersistentMessagePerConnection``), and a twentieth of pulsar-client's queue."""


class PulsarTicket(PublishedTicket):
    """See :class:`dispatch.transports.base.Ticket`."""

    __slots__ = ("flow", "on_receipt", "payload", "properties", "publisher")

    def __init__(
        self,
        publisher: PulsarPublisher,
        payload: bytes,
        properties: Mapping[str, str],
        flow: str,
        on_failure: OnFailure | None,
        on_receipt: OnReceipt | None,
    ) -> None:
        self.publisher = publisher
        self.payload = payload
        self.properties = properties
        self.flow = flow
        self.on_failure = on_failure
        self.on_receipt = on_receipt

    def cancel(self) -> bool:
        """See :class:`dispatch.transports.base.Ticket`."""
        self.on_failure = None
        return self.publisher.sender.withdraw(self)


class PulsarPublisher:
    """See :class:`dispatch.transports.base.TopicPublisher`."""

    def __init__(self, owner: PulsarTransport, sender: MessageSender, topic: str) -> None:
        self._owner = owner
        self.sender = sender
        self.topic = topic
        self.raw: Any = None
        self.link: PulsarClient | None = None
        self.users = 1
        self.opens_on_demand = is_inbox(topic)
        """The topic is of no use after the end of its consumer's process: opening it again would only create it again."""
        self.is_dormant = False
        """Its producer was lost with a connection; the next message or packet opens it again."""
        self.error: TransportError | None = None
        """Why the producer could not be opened again, at the last attempt."""
        self.waiting: deque[PulsarTicket | bytes] = deque()
        """Messages and packets that wait for the producer, or for the inbox of their replies, to be connected again."""

    async def open(self, link: PulsarClient, generation: int) -> Any:
        """See :class:`dispatch.transports.pulsar.supervisor.TopicHandle`."""
        self.link = link
        return await link.producer(self.topic)

    def publish(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: OnReceipt | None = None,
    ) -> PulsarTicket:
        ticket = PulsarTicket(self, payload, properties, flow, on_failure, on_receipt)
        self.sender.submit(ticket, len(payload))
        return ticket

    @property
    def opening_error(self) -> TransportError | None:
        return self.error or self.sender.find_opening_error(self)

    @property
    def is_connected(self) -> bool:
        return self.is_dormant or self.sender.can_send(self)

    def send_packet(self, payload: bytes) -> bool:
        return self.sender.send_packet(self, payload)

    async def writable(self, flow: str) -> None:
        await self.sender.wait_until(lambda: not (self.waiting or self.sender.window.has_flow(flow)))

    async def close(self) -> None:
        self.users -= 1
        if self.users == 0:
            await self._owner.drop_publisher(self)


class PacketReceipts:
    """Counts the packets of one client of pulsar-client that have no receipt yet.

    Args:
        on_arrival: called after each receipt; called on any thread.
    """

    def __init__(self, on_arrival: Callable[[], None]) -> None:
        self._on_arrival = on_arrival
        self.sent = 0
        self.received = 0
        self.dropped = 0
        """Packets that the broker dropped at publish, or that pulsar-client could not send."""
        self.is_limit_stale = False
        """A packet was larger than pulsar-client accepts: it has reconnected by itself, to a broker with a lower limit."""
        self._arrived: deque[bool] = deque()

    def on_receipt(self, result: Any, message_id: Any) -> None:
        """Record a receipt. Called on pulsar-client's threads: an exception here would end the process."""
        keep_thread_state()
        # A failure has no ledger position either. Only append() is atomic without a lock.
        is_lost = message_id.ledger_id() == -1 and message_id.entry_id() == -1
        if is_lost and result == TOO_LARGE:
            self.is_limit_stale = True
        self._arrived.append(is_lost)
        self._on_arrival()

    def count_outstanding(self) -> int:
        """Return the number of packets without a receipt."""
        arrived = self._arrived
        for _ in range(len(arrived)):
            self.received += 1
            self.dropped += arrived.popleft()
        return self.sent - self.received


class MessageSender:
    """Sends the messages of one connection: a window limits how many have no receipt yet, and the others are queued.

    Args:
        window: limits publishes in flight, and the queue before it.
        supervisor: of the connection.
        wake: makes the event loop call :meth:`process_receipts` soon; called on any thread.
        reopen: opens a dormant publisher, unless that is under way, and calls :meth:`send_waiting` or :meth:`fail_waiting`.

    Attributes:
        inboxes: subscriptions to replies of the plain exchange.
    """

    def __init__(
        self,
        window: PublishWindow[PulsarTicket],
        supervisor: ConnectionSupervisor,
        wake: Callable[[], None],
        reopen: Callable[[PulsarPublisher], None],
    ) -> None:
        self.window = window
        self._supervisor = supervisor
        self._wake = wake
        self._reopen = reopen
        self.inboxes: set[PulsarSubscription] = set()
        self._waiting = 0
        """Messages and packets that wait for dormant publishers."""
        self._outstanding: set[PulsarTicket] = set()
        self._oldest: PulsarTicket | None = None
        self.receipts: deque[tuple[PulsarTicket, str | TransportError | None]] = deque()
        """Receipts to be processed; the problem is None for a successful one."""
        self.wants_receipts = False
        """A message or a caller waits for the next receipt."""
        self.is_urgent = False
        """One of :attr:`receipts` is a failure, or has a callback."""
        self.packets = PacketReceipts(self._on_packet_receipt)
        """Packets of sessions on the current client."""
        self._witnesses: dict[PulsarPublisher, float] = {}
        """When a packet without a receipt was sent, one of each topic: if its broker hangs, the others have none either."""
        self._dropped_before = 0
        self._writers: deque[tuple[Callable[[], bool], asyncio.Future[None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock: Callable[[], float] = time.monotonic
        """That of the event loop, from :meth:`start` on."""
        self._is_closed = False

    def start(self) -> None:
        """Call callbacks on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._clock = loop_clock()

    def submit(self, ticket: PulsarTicket, size: int) -> None:
        """Send ``ticket``, or queue it, as :meth:`dispatch.transports.base.Publisher.publish`.

        Raises:
            TransportError: closed, its topic cannot be opened, or the queue is full. Nothing was sent.
        """
        if self._is_closed:
            raise closed()
        if (refusal := self.find_opening_error(ticket.publisher)) is not None:
            raise TransportError(refusal.type, refusal.message, may_have_run=False)
        window = self.window
        if window.outstanding >= window.size:
            self.process_receipts()
        try:
            if self._supervisor.down_since is None:
                if window.offer(ticket.flow, ticket, size):
                    self._send(ticket)
                    return
            else:
                # Queued here, a message can be withdrawn; in pulsar-client it cannot.
                window.put(ticket.flow, ticket, size)
        except QueueFullError:
            raise publish_queue_full(len(window), topic="the broker", retry_after=1.0) from None
        self.wants_receipts = True
        self.process_receipts()  # a receipt may have arrived before wants_receipts was set

    def send_packet(self, publisher: PulsarPublisher, payload: bytes) -> bool:
        """See :meth:`dispatch.transports.base.TopicPublisher.send_packet`."""
        supervisor, packets = self._supervisor, self.packets
        if self._is_closed or supervisor.down_since is not None:
            return False
        if supervisor.backoff.waits and publisher in supervisor.backoff:
            return False
        if (
            packets.sent - packets.received >= MAX_PACKETS_IN_DOUBT
            and packets.count_outstanding() >= MAX_PACKETS_IN_DOUBT
        ):
            return False
        if publisher.is_dormant:
            return self._hold(publisher, payload)
        on_receipt = packets.on_receipt
        is_witness = publisher not in self._witnesses
        if is_witness:
            self._witnesses[publisher] = self._clock()
            on_receipt = partial(self._on_witness_receipt, publisher, packets)
        try:
            send_message(publisher.raw, payload, on_receipt)
        except Exception:  # pulsar-client cannot send it at all: the session's probes report a connection that stays so
            packets.dropped += 1
            if is_witness:
                self._witnesses.pop(publisher, None)
            return False
        packets.sent += 1
        return True

    def find_opening_error(self, publisher: PulsarPublisher) -> TransportError | None:
        """See :attr:`dispatch.transports.base.TopicPublisher.opening_error`."""
        backoff = self._supervisor.backoff
        return backoff.error(publisher, asyncio.get_running_loop().time()) if backoff.waits else None

    def _on_witness_receipt(
        self, publisher: PulsarPublisher, packets: PacketReceipts, result: Any, message: Any
    ) -> None:
        # On pulsar-client's thread, like that of other packets.
        self._witnesses.pop(publisher, None)
        packets.on_receipt(result, message)

    def _on_packet_receipt(self) -> None:
        if self.wants_receipts:
            self._wake()

    @property
    def packets_dropped(self) -> int:
        """Packets that the broker dropped at publish, or that pulsar-client could not send."""
        self.packets.count_outstanding()
        return self._dropped_before + self.packets.dropped

    def withdraw(self, ticket: PulsarTicket) -> bool:
        """Remove ``ticket`` from the queue. Return False if it was sent."""
        withdrawn = self.window.remove(ticket.flow, ticket)
        if not withdrawn and ticket in ticket.publisher.waiting:
            ticket.publisher.waiting.remove(ticket)
            self._waiting -= 1
            withdrawn = True
        if withdrawn and self._writers:
            self._release_writers()  # while the connection is down, no receipt would
        return withdrawn

    async def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state that receipts bring about."""
        if self._is_closed or reached():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writers.append((reached, waiter))
        self.wants_receipts = True
        self.process_receipts()  # a receipt may have arrived before wants_receipts was set
        await waiter

    def _release_writers(self) -> None:
        for _ in range(len(self._writers)):
            reached, waiter = self._writers.popleft()
            if waiter.done():
                continue
            if self._is_closed or reached():
                waiter.set_result(None)
            else:
                self._writers.append((reached, waiter))

    def _send(self, ticket: PulsarTicket) -> None:
        if not self.can_send(ticket.publisher):
            self.window.settle()
            if not self._hold(ticket.publisher, ticket):
                error = publish_queue_full(MAX_WAITING, topic=ticket.publisher.topic, retry_after=1.0)
                asyncio.get_running_loop().call_soon(ticket.fail, error)
            return
        self._outstanding.add(ticket)
        payload, properties = ticket.payload, ticket.properties
        ticket.payload, ticket.properties = b"", NO_PROPERTIES  # it is sent once
        try:
            send_message(ticket.publisher.raw, payload, partial(self._on_receipt, ticket), properties)
        except Exception as error:  # pulsar-client raises for a message that it cannot send at all
            self.receipts.append((ticket, message_rejected(error, topic=ticket.publisher.topic)))
            self.is_urgent = True
            self._wake()

    def can_send(self, publisher: PulsarPublisher) -> bool:
        """Return whether a message can be sent now, and its reply received: pulsar-client would send it, whatever becomes of
        its call, when its topic is connected again."""
        if publisher.is_dormant or not publisher.raw.is_connected():
            return False
        if not publisher.opens_on_demand:
            for inbox in self.inboxes:  # perf: no generator; each message asks
                if not inbox.raw.is_connected():
                    return False
        return True

    def _hold(self, publisher: PulsarPublisher, item: PulsarTicket | bytes) -> bool:
        """Hold a message or packet until ``publisher`` is open again. Return False if too many wait."""
        if len(publisher.waiting) >= MAX_WAITING:
            return False
        publisher.waiting.append(item)
        self._waiting += 1
        if publisher.is_dormant:
            self._reopen(publisher)
        return True

    def _release_waiting(self, publisher: PulsarPublisher) -> Iterator[PulsarTicket | bytes]:
        for _ in range(len(publisher.waiting)):  # one at a time: its flow must not seem to be empty meanwhile
            self._waiting -= 1
            yield publisher.waiting.popleft()

    def send_waiting(self, publisher: PulsarPublisher) -> None:
        """Send what waited for ``publisher``, which is open again; or queue it again if the connection is lost."""
        for item in self._release_waiting(publisher):
            if isinstance(item, bytes):
                self.send_packet(publisher, item)
                continue
            try:
                self.submit(item, len(item.payload))
            except TransportError as error:
                item.fail(error)
        self._release_writers()

    def fail_waiting(self, publisher: PulsarPublisher, error: TransportError) -> None:
        """Fail what waits for ``publisher``, which cannot be opened."""
        for item in self._release_waiting(publisher):
            if not isinstance(item, bytes):
                item.fail(error)
        self._release_writers()

    def _on_receipt(self, ticket: PulsarTicket, result: Any, message_id: Any) -> None:
        # On pulsar-client's thread: an exception here would end the process.
        keep_thread_state()
        if result == OK:
            # A receipt without a ledger position: the broker dropped the message at publish.
            dropped = message_id.ledger_id() == -1 and message_id.entry_id() == -1
            self.receipts.append((ticket, "Dropped" if dropped else None))
            if dropped or ticket.on_receipt is not None:
                self.is_urgent = True
            elif not self.wants_receipts:
                return
        else:
            self.receipts.append((ticket, result.name))
            self.is_urgent = True
        self._wake()

    def process_receipts(self) -> None:
        """Record receipts in the window, report failures, and send queued messages."""
        receipts, outstanding, window = self.receipts, self._outstanding, self.window
        self.is_urgent = False  # first: a later receipt sets it again and wakes the loop
        while receipts:
            ticket, problem = receipts.popleft()
            if ticket not in outstanding:
                continue  # forgotten when its connection was replaced
            outstanding.discard(ticket)
            window.settle()
            assert self._loop is not None
            if problem is not None:
                if isinstance(problem, str):
                    problem = sending_failed(problem, topic=ticket.publisher.topic)
                self._loop.call_soon(ticket.fail, problem)
            if ticket.on_receipt is not None:
                self._loop.call_soon(ticket.on_receipt)
        if len(window) and self._supervisor.down_since is None:
            while (waiting := window.pop_queued()) is not None:
                self._send(waiting)
        self.wants_receipts = bool(len(window) or self._writers)
        if self._writers:
            self._release_writers()

    def forget_outstanding(self, problem: str) -> None:
        """Fail all publishes without a receipt, and expect none for the packets sent so far."""
        self._dropped_before = self.packets_dropped
        self.packets = PacketReceipts(self._on_packet_receipt)
        self._witnesses.clear()
        for ticket in list(self._outstanding):
            self.receipts.append((ticket, problem))
        self.process_receipts()

    async def flush(self) -> None:
        """Wait until every message is sent, and every message and packet has its receipt."""
        await self.wait_until(
            lambda: not (len(self.window) or self._waiting or self._outstanding or self.packets.count_outstanding())
        )

    async def flush_publisher(self, publisher: PulsarPublisher) -> None:
        """Wait until every message of ``publisher`` has its receipt."""
        await self.wait_until(
            lambda: not publisher.waiting and all(each.publisher is not publisher for each in self._outstanding)
        )

    def unacknowledged_publishers(self) -> set[PulsarPublisher]:
        """Return the publishers of messages that have no receipt yet."""
        return {ticket.publisher for ticket in self._outstanding}

    def find_unacknowledged(self) -> object | None:
        """Return a ticket without a receipt, the same one until its receipt arrives. Without one, and with packets that
        have no receipt, return their client's number of receipts. None: there are neither."""
        self.process_receipts()
        if self._oldest not in self._outstanding:
            self._oldest = next(iter(self._outstanding), None)
        if self._oldest is None and self.packets.count_outstanding():
            return (id(self.packets), self.packets.received)
        return self._oldest

    def find_stuck(self) -> object | None:
        """The same for each topic alone: a ticket, or when a packet was sent."""
        return self._oldest or min(list(self._witnesses.values()), default=None)

    def find_silent_topics(self, before: float) -> Iterable[str]:
        """See :class:`~dispatch.transports.pulsar.supervisor.SupervisedConnection`."""
        # A copy, because pulsar-client's threads remove entries meanwhile; a list of pairs is not made in one step.
        return [publisher.topic for publisher, sent_at in self._witnesses.copy().items() if sent_at <= before]

    def is_silent(self, publisher: PulsarPublisher) -> bool:
        """Return whether a packet for the topic of ``publisher`` has been without a receipt for longer than one takes."""
        return self._clock() - self._witnesses.get(publisher, math.inf) >= SILENT_S

    def stop(self) -> None:
        """Send nothing more."""
        self._is_closed = True

    def fail_queued(self, error: TransportError) -> None:
        """Fail all queued messages."""
        for ticket in self.window.clear():
            ticket.fail(error)

    def close(self) -> None:
        """Fail all publishes without a receipt, and end every wait."""
        self.process_receipts()
        self.forget_outstanding("AlreadyClosed")
        self._release_writers()

    def abandon(self) -> None:
        """Drop all messages and waits without calling back: the event loop of the callbacks is closed."""
        self.window.clear()
        self._writers.clear()
        self._outstanding.clear()
        self.receipts.clear()


# Subscriptions on Pulsar; messages of durable ones stay at the broker until they are acknowledged.
#
# pulsar-client groups acknowledgements for a tenth of a second before it sends them, and Python cannot configure that. The
# broker redelivers the received messages of an instance that is killed in that time, indistinguishable from new ones.
# Therefore a receiver that must process a message only once waits until the acknowledgement is sent, and then for replies
# of the broker on the same connection, which follow it.


GATHERED_S = 0.15
"""Seconds after which an acknowledgement has been sent: pulsar-client groups them for 0.1 s; half of that as a margin."""
MAX_SETTLED = 10_000
"""Settled messages whose ids are remembered, twice the receiver queue's free permits: a copy comes within seconds."""
LOOK_S = 0.04
"""Seconds between two checks whether a consumer with unconfirmed acknowledgements is connected. When its topic has moved to
another broker, pulsar-client (3.13.0) reconnects the consumer after 90 ms or more and reports nothing. Acknowledgements sent
before are lost then, although the new broker replies."""


_BATCH_SIZE = 6


def read_batch(id: Any) -> tuple[tuple[int, int], int] | None:
    """Return the entry of a message id and the messages in it; None: it has no others. The size is in the serialized id
    alone, the protobuf message ``MessageIdData``."""
    if id.batch_index() < 0:
        return None
    size = dict(read_fields(id.serialize())).get(_BATCH_SIZE)
    return ((id.ledger_id(), id.entry_id()), size) if isinstance(size, int) and size > 1 else None


class _Batch:
    """Messages that a third-party producer has sent as one entry: the broker redelivers all of them until each one is
    acknowledged.

    Args:
        durable: of their subscription.
        key: of the entry.
        size: messages.
    """

    __slots__ = ("_durable", "_key", "_life", "last", "remaining", "waiting")

    def __init__(self, durable: DurableSubscription, key: tuple[int, int], size: int) -> None:
        self._durable = durable
        self.last = -1
        """Index of the last message that has arrived."""
        self._key = key
        self._life = durable.life
        self.remaining = size
        """Messages without an acknowledgement."""
        self.waiting: list[Callable[[], object]] = []

    def record_acknowledgement(self) -> None:
        """Count the acknowledgement of one message; the last one settles those that wait."""
        self.remaining -= 1
        if self.remaining:
            return
        if self._durable.batches.get(self._key) is self:
            del self._durable.batches[self._key]
        if self._durable.life == self._life:  # otherwise the broker has redelivered all of them
            for then in self.waiting:
                self._durable.settle(then)


class Delivery(DurableMessage):
    """See :class:`dispatch.transports.base.DurableMessage`."""

    __slots__ = ("_batch", "_consumer", "_durable")

    _message: Any

    def __init__(self, durable: DurableSubscription, consumer: Any, message: Any) -> None:
        self._durable = durable
        self._consumer = consumer
        self._message = message
        self.kept = False
        self.lag = time.time() - message.publish_timestamp() / 1000
        self.backlog = durable.in_backlog(message)
        self._batch = durable.find_batch(message)

    def acknowledge(self) -> None:
        # The first ones come before the consumer is known here; after a reconnection, the new one can say it too.
        with contextlib.suppress(Exception):  # no connection: the broker will send the message again
            (self._durable.raw or self._consumer).acknowledge(self._message)
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.record_acknowledgement()

    def release(self) -> None:
        if self._message.redelivery_count() >= MAX_RELEASES:
            self.acknowledge()
        else:
            # Of the consumer that received it: after its end the broker delivers the message again by itself.
            with contextlib.suppress(Exception):
                self._consumer.negative_acknowledge(self._message)

    def settle(self, then: Callable[[], object]) -> None:
        self.kept = True
        batch, then = self._batch, partial(self._durable.begin, self._message.message_id().serialize(), then)
        self.acknowledge()
        if batch is not None and batch.remaining:
            batch.waiting.append(then)
        else:
            self._durable.settle(then)


class DurableSubscription:
    """The acknowledgement state of one durable subscription to ``topic``."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.raw: Any = None
        """Its consumer, once it is open."""
        self.life = 0
        """Number of its consumers so far."""
        self.batches: dict[tuple[int, int], _Batch] = {}
        """Entries with several messages, of which not all are acknowledged."""
        self._known = asyncio.Event()
        self._link: PulsarClient | None = None
        self._last: Any = None
        self._unsure: deque[tuple[float, int, Callable[[], object]]] = deque()
        self._asking: asyncio.Task[None] | None = None
        self._begun: OrderedDict[bytes, None] = OrderedDict()
        """Ids of the last messages that were settled."""

    def opening(self, link: PulsarClient) -> None:
        """Record that a consumer is being opened on ``link``; messages may arrive before it is known."""
        self.raw = self._last = None
        self._link = link
        self.life += 1
        self.batches.clear()
        self._known.clear()

    def find_batch(self, message: Any) -> _Batch | None:
        """Return the batch of a message that has arrived; None: it is in none."""
        found = read_batch(message.message_id())
        if found is None:
            return None
        batch, index = self.batches.get(found[0]), message.message_id().batch_index()
        if batch is None or index <= batch.last:  # a copy of the entry has acknowledgements of its own
            batch = self.batches[found[0]] = _Batch(self, *found)
        batch.last = index
        return batch

    def opened(self, raw: Any, last: Any) -> None:
        """Record the consumer ``raw``; ``last`` is the last message of the topic at that time."""
        self.raw, self._last = raw, last
        self._known.set()

    def in_backlog(self, message: Any) -> bool:
        """Return whether ``message`` may be older than the consumer."""
        return self._last is None or bool(message.message_id() <= self._last)

    def begin(self, id: bytes, then: Callable[[], object]) -> None:
        """Call ``then`` for the settled message ``id``, unless that was done for a copy: the broker may deliver a message
        again that is not acknowledged yet."""
        if id not in self._begun:
            remember(self._begun, id, None, MAX_SETTLED)
            then()

    def settle(self, then: Callable[[], object]) -> None:
        """Call ``then`` when the broker has the acknowledgements sent so far."""
        if not self._look():
            return
        loop = asyncio.get_running_loop()
        self._unsure.append((loop.time() + GATHERED_S, self.life, then))
        if self._asking is None:
            self._asking = loop.create_task(self._ask(loop))

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._unsure:
                await self._watch(asyncio.sleep(self._unsure[0][0] - loop.time()))
                now, life = loop.time(), self.life
                due = []
                while self._unsure and self._unsure[0][0] <= now:
                    due.append(self._unsure.popleft())
                sure = await self._watch(self._answers())
                if sure is None and life == self.life:
                    logger.warning("%s: %s", self._topic, DEAF)
                    abandon(self.raw)  # the next check of the connection finds it without one, and opens it again
                for _, acknowledged_in, then in due:
                    if sure and acknowledged_in == life == self.life:
                        loop.call_soon(then)
        finally:
            self._asking = None

    def _look(self) -> bool:
        """Return whether the consumer is connected, as far as is known. If not, its unconfirmed acknowledgements count as
        lost: the broker delivers these messages again."""
        if self.raw is None or self.raw.is_connected():
            return True
        self.life += 1
        self.batches.clear()
        return False

    async def _watch(self, awaited: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine, and check the consumer's connection every :data:`LOOK_S` meanwhile."""
        task = asyncio.ensure_future(awaited)
        try:
            while not task.done():
                self._look()
                await asyncio.wait([task], timeout=LOOK_S)
            self._look()
            return task.result()
        finally:
            task.cancel()

    async def _answers(self) -> bool | None:
        if self.raw is None:  # messages came while it was being opened
            await wait_set(self._known, OPERATION_TIMEOUT_S)
        if self.raw is None or self._link is None:
            return False
        return await self._link.answers(self.raw)

    async def settled(self) -> None:
        """Wait until every acknowledgement is confirmed, for :data:`CLOSE_FLUSH_S` at most."""
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=CLOSE_FLUSH_S)

    def end(self) -> None:
        """Cancel all waits."""
        self.raw = self._link = None
        self._unsure.clear()
        if self._asking is not None:
            self._asking.cancel()


class PulsarSubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    def __init__(
        self,
        owner: PulsarTransport,
        topic: str,
        handler: Handler,
        mode: Mode,
        name: str,
        answer_late: AnswerLate | None = None,
    ) -> None:
        self._owner = owner
        self.topic = topic
        self.handler: Handler | None = handler
        self.mode = mode
        self.name = name
        self.answer_late = answer_late
        self.raw: Any = None
        self.link: PulsarClient | None = None
        self.durable = DurableSubscription(topic) if mode is Mode.SHARED and topic.startswith("persistent://") else None
        self.resumes = mode is not Mode.SHARED and topic.startswith("persistent://")
        """Whether messages published during a disconnection are delivered after it."""
        self.last: Any = None
        """The last message received, after which deliveries resume."""

    async def open(self, link: PulsarClient, generation: int) -> Any:
        """See :class:`dispatch.transports.pulsar.supervisor.TopicHandle`."""
        self.link = link
        listener = partial(self._owner.on_message, self, generation)
        if self.durable is not None:
            self.durable.opening(link)
        raw = await link.consumer(self.topic, self.mode, self.name, listener, after=self.last)
        if self.durable is not None:
            try:
                self.durable.opened(raw, await link.last_message(raw))
            except BaseException:
                await asyncio.shield(close_opened(raw))  # without an owner it would consume messages
                raise
        if self.mode is Mode.POLLED and not self.resumes:
            asyncio.get_running_loop().call_later(POLL_S, self._poll, raw)
        return raw

    def _poll(self, raw: Any) -> None:
        """Handle the messages that have arrived, and again in :data:`POLL_S`, until ``raw`` is replaced or closed."""
        if self.handler is None or raw is not self.raw:
            return
        self._owner.on_polled(self, raw, receive_arrived(raw, POLL_BATCH))
        asyncio.get_running_loop().call_later(POLL_S, self._poll, raw)

    async def close(self) -> None:
        await self._owner.drop_subscription(self)


logger = logging.getLogger("dispatch.transport")

CLOSE_FLUSH_S = 2.0
"""Longest time, in seconds, that closing a connection or a publisher waits for receipts."""
RECEIPT_BATCH = 32
"""Successful receipts without a waiting publish are processed in batches of this size, so that they delay no reply. Half the
default window."""
LATE_S = 0.02
"""Seconds without a turn of the event loop after which probes are answered on pulsar-client's thread; callers suspect an
instance as soon."""
POLL_BATCH = 2_000
"""Messages that a poll handles at most."""
DRAIN_BATCH = 512
"""Messages handled at a time before other tasks run."""


class LoopWaker:
    """Has the running event loop call ``callback`` when another thread asks.

    perf: an eventfd takes one read. asyncio's own pipe takes two, of which one raises, before the tasks run that the
    callback resumes: in a relay with one call in flight these began 25 µs after it, and begin 7 µs after it.
    """

    def __init__(self, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._lock = threading.Lock()
        """Held while the eventfd is written or closed: its number may be that of another file afterwards."""
        self._fd: int | None = None
        if sys.platform == "linux":
            self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._close_fd = weakref.finalize(self, os.close, self._fd)
            self._close_fd.atexit = False  # threads of pulsar-client may run until the end of the process
            self._loop.add_reader(self._fd, self._on_ring, self._fd)

    def _on_ring(self, fd: int) -> None:
        try:
            os.eventfd_read(fd)
        except BlockingIOError:  # a SystemExit stops the loop between this and its scheduling, which then happens twice
            return
        self._callback()

    def wake(self) -> None:
        """Call the callback soon. Called on any thread."""
        with self._lock:
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)
                return
        try:  # noqa: SIM105 - on the path of every message, where suppress() costs more
            self._loop.call_soon_threadsafe(self._callback)
        except RuntimeError:
            pass  # the loop is closed: no handler is left

    def close(self) -> None:
        """Wake the loop no more."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                if not self._loop.is_closed():
                    self._loop.remove_reader(fd)
                self._close_fd()


class PulsarTransport:
    """See :class:`dispatch.transports.base.Transport`.

    Args:
        url: ``pulsar://HOST:PORT[,HOST:PORT…]`` or ``pulsar+ssl://…``.
        security: token and TLS settings; None: from the environment.
        publish_window: publishes in flight to the broker at once.
        max_queued: messages queued behind the window.
        max_queued_bytes: bytes queued there.
    """

    def __init__(
        self,
        url: str,
        *,
        security: Security | None = None,
        publish_window: int = 64,
        max_queued: int = 10_000,
        max_queued_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self.url = url
        self._security = security if security is not None else Security.from_environment()
        self._inbox: deque[tuple[PulsarSubscription, Any, Any]] = deque()
        self._waker: LoopWaker | None = None
        self._wake_pending = False
        self._woken_at = 0.0
        """When the event loop was last asked to process what has arrived."""
        self._publishers: dict[str, PulsarPublisher] = {}
        # Weak: a lock lives as long as a task opens its topic or waits for that.
        self._opening: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._subscriptions: set[PulsarSubscription] = set()
        self._supervisor = ConnectionSupervisor(url, self._security, self)
        window: PublishWindow[PulsarTicket] = PublishWindow(publish_window, max_queued, max_queued_bytes)
        self._sender = MessageSender(window, self._supervisor, self._wake, self._reopen)
        self._reopening: dict[PulsarPublisher, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._closed = False
        self.handler_errors = 0
        self.reconnects = 0
        self.max_message_bytes = MAX_MESSAGE_BYTES

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._supervisor.down_since is None and not self._closed

    async def await_connection(self, deadline: float) -> bool:
        return await self._supervisor.await_connection(deadline)

    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool:
        if self._supervisor.was_disconnected_since(instant, topics):
            return True
        publishers = [each for topic in topics if (each := self._publishers.get(topic)) is not None]
        if any(self._sender.is_silent(each) or not each.raw.is_connected() for each in publishers):
            return True
        subscriptions = [each for each in self._subscriptions if each.topic in topics]
        return not all(each.raw.is_connected() and self._supervisor.replies(each) for each in subscriptions)

    def on_connection_change(self, listener: ConnectionListener) -> None:
        self._supervisor.listeners.append(listener)

    def another(self) -> PulsarTransport:
        return PulsarTransport(self.url, security=self._security, publish_window=self._sender.window.size)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        keep_freed_memory()  # for large payloads
        self._sender.start()
        await self._supervisor.start()
        self._waker = LoopWaker(self._drain)
        _open_transports.add(self)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            await self._abandon()
            return
        try:
            if self.connected and self._supervisor.started:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_FLUSH_S):
                        await self.flush()
        finally:  # also when close() is cancelled: it is not called a second time
            await self._end()

    async def _end(self) -> None:
        self._closed = True
        self._sender.stop()
        _open_transports.discard(self)
        try:
            await cancel_and_wait(self._reopening.values())
            await self._supervisor.end()
        finally:
            self._sender.fail_queued(closed())
            for publisher in self._publishers.values():
                self._sender.fail_waiting(publisher, closed())
            for subscription in self._subscriptions:
                if subscription.durable is not None:
                    subscription.durable.end()
            await self._close_client(self._sender.close)

    async def _close_client(self, end_sending: Callable[[], None]) -> None:
        """Close the client without its handles: a reference to one of them would retain it."""
        handles = self.handles()
        for subscription in self._subscriptions:
            subscription.handler = None
        self._subscriptions.clear()
        self._sender.inboxes.clear()
        self._publishers.clear()
        try:
            await self._supervisor.close()
        finally:
            for handle in handles:
                handle.raw = CLOSED_HANDLE
            end_sending()
            self._inbox.clear()
            if self._waker is not None:
                self._waker.close()

    async def _abandon(self) -> None:
        """Close on another event loop than that of :meth:`start`: callbacks that need that loop are dropped."""
        self._closed = True
        self._sender.stop()
        _open_transports.discard(self)
        self._supervisor.abandon()
        for publisher in self._publishers.values():
            publisher.waiting.clear()
        self._sender.abandon()
        await self._close_client(self._sender.abandon)  # also of receipts that came meanwhile

    async def flush(self) -> None:
        await self._sender.flush()

    # -- publishing ---------------------------------------------------------------------------------------------

    def has_subscriber(self, topic: str) -> bool:
        return True

    async def publisher(self, topic: str) -> PulsarPublisher:
        async with self._opening.setdefault(topic, asyncio.Lock()):
            publisher = self._publishers.get(topic)
            if publisher is None:
                publisher = PulsarPublisher(self, self._sender, topic)
                publisher.raw = await self._supervisor.open(publisher.open)
                self._publishers[topic] = publisher
            else:
                publisher.users += 1
            return publisher

    async def drop_publisher(self, publisher: PulsarPublisher) -> None:
        """Close ``publisher``, whose last user has closed it."""
        if self._publishers.get(publisher.topic) is not publisher:
            return
        del self._publishers[publisher.topic]
        self._supervisor.backoff.forget(publisher)
        try:
            # Closing a producer fails its messages whose receipts are under way, and pulsar-client logs a line for each
            # receipt that arrives afterwards.
            if self.connected:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_FLUSH_S):
                        await self._sender.flush_publisher(publisher)
        finally:
            self._sender.fail_waiting(publisher, closed())
            raw, publisher.raw = publisher.raw, CLOSED_HANDLE
            if self.connected:
                await close_opened(raw)
            else:
                abandon(raw)

    def _reopen(self, publisher: PulsarPublisher) -> None:
        """Open ``publisher``, which is dormant, for what waits for it."""
        if publisher not in self._reopening:
            task = self._reopening[publisher] = asyncio.get_running_loop().create_task(
                self._open_again(publisher), name="dispatch-pulsar-reopen"
            )
            task.add_done_callback(lambda _: self._reopening.pop(publisher, None))

    async def _open_again(self, publisher: PulsarPublisher) -> None:
        try:
            raw = await self._supervisor.open(publisher.open)
        except TransportError as error:
            if self.connected:
                publisher.error = error
                self._sender.fail_waiting(publisher, error)
            else:
                self._sender.send_waiting(publisher)  # queued until the connection is back
            return
        if self._publishers.get(publisher.topic) is not publisher:  # closed meanwhile
            self._sender.fail_waiting(publisher, closed())
            await close_opened(raw)
            return
        publisher.raw, publisher.is_dormant, publisher.error = raw, False, None
        self._supervisor.record_reopened(publisher.topic)
        self._sender.send_waiting(publisher)

    @property
    def packets_dropped(self) -> int:
        """Packets of sessions that the broker dropped at publish, or that pulsar-client could not send."""
        return self._sender.packets_dropped

    # -- receiving ----------------------------------------------------------------------------------------------

    async def subscribe(
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> PulsarSubscription:
        subscription = PulsarSubscription(self, topic, handler, mode, name, answer_late)
        subscription.raw = await self._supervisor.open(subscription.open)
        self._subscriptions.add(subscription)
        if is_reply_inbox(topic):
            self._sender.inboxes.add(subscription)
        return subscription

    async def drop_subscription(self, subscription: PulsarSubscription) -> None:
        """Close ``subscription``."""
        if subscription not in self._subscriptions:
            return
        durable = subscription.durable
        if durable is not None:
            # Acknowledgements must leave before the consumer closes; unacknowledged messages go to other subscribers then.
            await pause(subscription.raw)
            await self._handled(subscription)
            await durable.settled()
        self._subscriptions.discard(subscription)
        self._sender.inboxes.discard(subscription)
        self._supervisor.backoff.forget(subscription)
        raw, subscription.raw = subscription.raw, CLOSED_HANDLE
        # Messages that have arrived are still handled: a non-persistent topic redelivers none.
        if not self.connected:
            abandon(raw)  # a broker that hangs replies to no closing: each would take OPERATION_TIMEOUT_S
        elif subscription.mode is Mode.SHARED and durable is None and subscription.link is not None:
            await subscription.link.close_listening(raw, subscription.topic)
        else:
            await close_opened(raw)
        await self._handled(subscription)
        subscription.handler = None
        if durable is not None:
            durable.end()

    async def _handled(self, subscription: PulsarSubscription) -> None:
        """Wait until all messages that have arrived for ``subscription`` are handled."""
        # A copy, because pulsar-client's threads append to it meanwhile.
        while any(waiting is subscription for waiting, _, _ in tuple(self._inbox)):  # noqa: ASYNC110 - the next turn takes it
            await asyncio.sleep(0)

    def on_message(self, subscription: PulsarSubscription, generation: int, consumer: Any, message: Any) -> None:
        # On pulsar-client's thread. Waiting here applies backpressure to the broker when the event loop does not keep
        # up: the inbox is bounded, and the broker's flow control stops its deliveries.
        keep_thread_state()
        if subscription.resumes and generation == self._supervisor.generation:
            subscription.last = message.message_id()
        while len(self._inbox) >= RECEIVER_QUEUE and not self._closed and generation == self._supervisor.generation:
            time.sleep(0.002)
        self._inbox.append((subscription, consumer, message))
        if self._wake_pending:
            if subscription.answer_late is not None and time.monotonic() - self._woken_at >= LATE_S:
                self._answer_late(subscription.answer_late, message)
            return
        self._wake()

    def on_polled(self, subscription: PulsarSubscription, consumer: Any, messages: Sequence[Any]) -> None:
        """Handle the messages of a poll."""
        if messages:
            self._inbox.extend((subscription, consumer, message) for message in messages)
            self._drain()

    def _answer_late(self, answer_late: AnswerLate, message: Any) -> None:
        """Answer a message on this thread, because the event loop is blocked."""
        try:
            answer = answer_late(message.data())
            publisher = None if answer is None else self._publishers.get(answer[0])
            if answer is not None and publisher is not None:
                send_message(publisher.raw, answer[1], _ignore_receipt)
        except Exception as error:  # of any kind: it would end the process
            logger.debug("no late answer: %s", type(error).__name__)

    def _wake(self) -> None:
        if not self._wake_pending:
            self._woken_at = time.monotonic()
            self._wake_pending = True
            self._waker.wake()  # type: ignore[union-attr] # set before anything is opened

    def _drain(self) -> None:
        self._wake_pending = False
        sender = self._sender
        if sender.wants_receipts or sender.is_urgent or len(sender.receipts) >= RECEIPT_BATCH:
            sender.process_receipts()
        inbox = self._inbox
        for _ in range(min(len(inbox), DRAIN_BATCH)):
            subscription, consumer, message = inbox.popleft()
            handler, durable = subscription.handler, subscription.durable
            if handler is None:
                continue
            try:
                if durable is None:
                    handler(message)
                else:
                    Delivery(durable, consumer, message).deliver_to(handler)
            except Exception as error:
                # A handler's exception must not stop the delivery of further messages.
                self.handler_errors += 1
                logger.warning("a message on %s could not be handled: %s", subscription.topic, type(error).__name__)
        if inbox:
            self._wake()

    # -- for the supervisor (:class:`dispatch.transports.pulsar.supervisor.SupervisedConnection`) --------------------

    def handles(self) -> list[TopicHandle]:
        """Return all publishers and subscriptions that should be open."""
        publishers = [publisher for publisher in self._publishers.values() if not publisher.is_dormant]
        return [*self._subscriptions, *publishers]

    def is_open(self, handle: TopicHandle) -> bool:
        """Return whether ``handle`` should still be open."""
        publisher = self._publishers.get(handle.topic)
        return handle in self._subscriptions or (publisher is handle and not publisher.is_dormant)

    async def release_on_demand(self, lost: Iterable[TopicHandle]) -> None:
        """See :class:`~dispatch.transports.pulsar.supervisor.SupervisedConnection`."""
        self._sender.process_receipts()
        used = self._sender.unacknowledged_publishers()
        await close_opened(*self._release(handle for handle in lost if handle not in used))

    def _release(self, lost: Iterable[TopicHandle]) -> list[Any]:
        """Make those of ``lost`` that are opened on demand dormant. Return their producers."""
        released = []
        for handle in lost:
            if isinstance(handle, PulsarPublisher) and handle.opens_on_demand:
                released.append(handle.raw)
                handle.raw, handle.is_dormant = CLOSED_HANDLE, True
        return released

    def find_unacknowledged(self) -> object | None:
        """See :meth:`dispatch.transports.pulsar.transport.MessageSender.find_unacknowledged`."""
        return self._sender.find_unacknowledged()

    def find_stuck(self) -> object | None:
        """See :meth:`dispatch.transports.pulsar.transport.MessageSender.find_stuck`."""
        return self._sender.find_stuck()

    def find_silent_topics(self, before: float) -> Iterable[str]:
        """See :class:`~dispatch.transports.pulsar.supervisor.SupervisedConnection`."""
        return self._sender.find_silent_topics(before)

    def subscriptions(self) -> Iterable[TopicHandle]:
        """See :class:`~dispatch.transports.pulsar.supervisor.SupervisedConnection`."""
        return self._subscriptions

    def exclusive_subscriptions(self) -> Iterable[TopicHandle]:
        """See :class:`~dispatch.transports.pulsar.supervisor.SupervisedConnection`."""
        return [each for each in self._subscriptions if each.mode is not Mode.SHARED and not each.resumes]

    @property
    def is_limit_stale(self) -> bool:
        """See :class:`~dispatch.transports.pulsar.supervisor.SupervisedConnection`."""
        return self._sender.packets.is_limit_stale

    def on_handshake(self, limit: int | None) -> None:
        """Derive the largest payload from the broker's ``maxMessageSize``, which covers payload and properties."""
        self._sender.packets.is_limit_stale = False
        if limit is not None:
            self.max_message_bytes = max(1, limit - PROPERTIES_BYTES)

    def on_client_replaced(self) -> None:
        """Fail publishes without a receipt: none will arrive for them."""
        self._sender.process_receipts()
        self._sender.forget_outstanding("AlreadyClosed")
        self._release(self.handles())  # their producers were closed with the client
        self.reconnects += 1

    def on_reconnect(self) -> None:
        """Send the publishes that were queued while the connection was down."""
        self._sender.process_receipts()
        self.release_held()

    def release_held(self) -> None:
        """See :class:`~dispatch.transports.pulsar.supervisor.SupervisedConnection`."""
        for publisher in self._publishers.values():
            if publisher.waiting and not publisher.is_dormant:
                if (error := self._sender.find_opening_error(publisher)) is not None:
                    self._sender.fail_waiting(publisher, error)
                elif self._sender.can_send(publisher):
                    self._sender.send_waiting(publisher)


# glibc's allocator: freed memory that is kept for the next large payload.


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_BLOCK = 32 * 1024 * 1024
"""Bytes above which a block has pages of its own: glibc's upper limit of this threshold."""
_KEPT = 64 * 1024 * 1024
"""Freed bytes that the process keeps: several of the largest replies in flight."""
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Keep up to 64 MiB of freed memory in the process, where its allocator is glibc's. Idempotent.

    Without it, glibc returns the memory of a large payload to the kernel and fetches it page by page for the next one: that
    is half of the processor time of replies of 100 kB. Settings of the user's environment are left as they are.

    Returns:
        Whether the thresholds are set.
    """
    is_set_by_user = any(name in os.environ for name in _OWN_SETTINGS) or "malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if is_set_by_user or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))


def _ignore_receipt(_result: Any, _message_id: Any) -> None:
    keep_thread_state()


_open_transports: weakref.WeakSet[PulsarTransport] = weakref.WeakSet()


@atexit.register
def _close_forgotten() -> None:
    for transport in list(_open_transports):
        transport._supervisor.close_now()
