"""Publishing to Pulsar: tickets, publishers, and the sender that they share.

pulsar-client's threads append receipts to a deque; the event loop processes many of them at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dispatch.errors import TransportError
from dispatch.messaging.wire.topics import is_inbox
from dispatch.transports.base import OnFailure
from dispatch.transports.errors import closed, message_rejected, publish_queue_full, sending_failed
from dispatch.transports.publish_window import PublishWindow, QueueFullError
from dispatch.transports.pulsar.client import OK, TOO_LARGE, send_plain
from dispatch.transports.pulsar.io_thread_state import keep_thread_state
from dispatch.transports.pulsar.supervisor import ConnectionSupervisor

if TYPE_CHECKING:
    from dispatch.transports.pulsar.client import PulsarClient
    from dispatch.transports.pulsar.transport import PulsarTransport

MAX_WAITING = 1_000
"""Messages and packets that wait for one topic to be opened again."""
MAX_PACKETS_IN_DOUBT = 500
"""Packets handed to pulsar-client that have no receipt yet; further ones are not sent. Half of what a broker accepts at once
on a connection (``maxConcurrentNonPersistentMessagePerConnection``), and a twentieth of pulsar-client's queue."""


class PulsarTicket:
    """See :class:`dispatch.transports.base.Ticket`."""

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
        return self.publisher.sender.withdraw(self)

    def fail(self, error: TransportError) -> None:
        callback, self.on_failure = self.on_failure, None
        if callback is not None:
            callback(error)


class PulsarPublisher:
    """See :class:`dispatch.transports.base.TopicPublisher`."""

    __slots__ = ("_owner", "error", "is_dormant", "opens_on_demand", "raw", "sender", "topic", "users", "waiting")

    def __init__(self, owner: PulsarTransport, sender: MessageSender, topic: str) -> None:
        self._owner = owner
        self.sender = sender
        self.topic = topic
        self.raw: Any = None
        self.users = 1
        self.opens_on_demand = is_inbox(topic)
        """The topic is of no use after the end of its consumer's process: opening it again would only create it again."""
        self.is_dormant = False
        """Its producer was lost with a connection; the next message or packet opens it again."""
        self.error: TransportError | None = None
        """Why the producer could not be opened again, at the last attempt."""
        self.waiting: deque[PulsarTicket | bytes] = deque()
        """Messages and packets that wait for the producer to be opened again."""

    async def open(self, link: PulsarClient, generation: int) -> Any:
        """See :class:`dispatch.transports.pulsar.supervisor.TopicHandle`."""
        return await link.producer(self.topic)

    def publish(
        self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure
    ) -> PulsarTicket:
        ticket = PulsarTicket(self, payload, properties, flow, on_failure)
        self.sender.submit(ticket, len(payload))
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
        self.sender.submit(ticket, len(payload))
        return ticket

    @property
    def opening_error(self) -> TransportError | None:
        return self.error or self.sender.find_opening_error(self)

    def send_packet(self, payload: bytes) -> bool:
        return self.sender.send_packet(self, payload)

    async def writable(self, flow: str) -> None:
        await self.sender.wait_until(lambda: not (self.waiting or self.sender.window.waiting(flow)))

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
        self._dropped_before = 0
        self._writers: deque[tuple[Callable[[], bool], asyncio.Future[None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def start(self) -> None:
        """Call callbacks on the running event loop."""
        self._loop = asyncio.get_running_loop()

    def submit(self, ticket: PulsarTicket, size: int) -> None:
        """Send ``ticket``, or queue it, as :meth:`dispatch.transports.base.Publisher.publish`.

        Raises:
            TransportError: closed, its topic cannot be opened, or the queue is full. Nothing was sent.
        """
        if self._is_closed:
            raise closed()
        if (refusal := self.find_opening_error(ticket.publisher)) is not None:
            raise TransportError(refusal.type, refusal.message, sent=False)
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
                window.hold(ticket.flow, ticket, size)
        except QueueFullError:
            raise publish_queue_full(window.queued, topic="the broker", retry_after=1.0) from None
        self.wants_receipts = True
        self.process_receipts()  # a receipt may have arrived before wants_receipts was set

    def send_packet(self, publisher: PulsarPublisher, payload: bytes) -> bool:
        """See :meth:`dispatch.transports.base.TopicPublisher.send_packet`."""
        supervisor, packets = self._supervisor, self.packets
        if self._is_closed or supervisor.down_since is not None:
            return False
        if self.find_opening_error(publisher) is not None:
            return False
        if (
            packets.sent - packets.received >= MAX_PACKETS_IN_DOUBT
            and packets.count_outstanding() >= MAX_PACKETS_IN_DOUBT
        ):
            return False
        if publisher.is_dormant:
            return self._hold(publisher, payload)
        try:
            send_plain(publisher.raw, payload, packets.on_receipt)
        except Exception:  # pulsar-client cannot send it at all: the session's probes report a connection that stays so
            packets.dropped += 1
            return False
        packets.sent += 1
        return True

    def find_opening_error(self, publisher: PulsarPublisher) -> TransportError | None:
        """See :attr:`dispatch.transports.base.TopicPublisher.opening_error`."""
        backoff = self._supervisor.backoff
        return backoff.error(publisher) if len(backoff) else None

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
        withdrawn = self.window.withdraw(ticket.flow, ticket)
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
        if ticket.publisher.is_dormant:
            self.window.settle()
            if not self._hold(ticket.publisher, ticket):
                error = publish_queue_full(MAX_WAITING, topic=ticket.publisher.topic, retry_after=1.0)
                asyncio.get_running_loop().call_soon(ticket.fail, error)
            return
        self._outstanding.add(ticket)
        payload, properties = ticket.payload, ticket.properties
        ticket.payload = ticket.properties = None
        try:
            ticket.publisher.raw.send_async(payload, partial(self._on_receipt, ticket), properties=properties)
        except Exception as error:  # pulsar-client raises for a message that it cannot send at all
            self.receipts.append((ticket, message_rejected(error, topic=ticket.publisher.topic)))
            self.is_urgent = True
            self._wake()

    def _hold(self, publisher: PulsarPublisher, item: PulsarTicket | bytes) -> bool:
        """Hold a message or packet until ``publisher`` is open again. Return False if too many wait."""
        if len(publisher.waiting) >= MAX_WAITING:
            return False
        publisher.waiting.append(item)
        self._waiting += 1
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
                self.submit(item, len(item.payload or b""))
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
            if ticket.on_receipt is not None:
                self._loop.call_soon(ticket.on_receipt)
            if problem is not None:
                if isinstance(problem, str):
                    problem = sending_failed(problem, topic=ticket.publisher.topic)
                self._loop.call_soon(ticket.fail, problem)
        if window.queued and self._supervisor.down_since is None:
            while (waiting := window.pop_queued()) is not None:
                self._send(waiting)
        self.wants_receipts = bool(window.queued or self._writers)
        if self._writers:
            self._release_writers()

    def forget_outstanding(self, problem: str) -> None:
        """Fail all publishes without a receipt, and expect none for the packets sent so far."""
        self._dropped_before = self.packets_dropped
        self.packets = PacketReceipts(self._on_packet_receipt)
        for ticket in list(self._outstanding):
            self.receipts.append((ticket, problem))
        self.process_receipts()

    async def flush(self) -> None:
        """Wait until every message is sent, and every message and packet has its receipt."""
        await self.wait_until(
            lambda: not (self.window.queued or self._waiting or self._outstanding or self.packets.count_outstanding())
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

    def stop(self) -> None:
        """Send nothing more."""
        self._is_closed = True

    def fail_queued(self, error: TransportError) -> None:
        """Fail all queued messages."""
        for ticket in self.window.drain():
            ticket.fail(error)

    def close(self) -> None:
        """Fail all publishes without a receipt, and end every wait."""
        self.process_receipts()
        self.forget_outstanding("AlreadyClosed")
        self._release_writers()

    def abandon(self) -> None:
        """Drop all messages and waits without calling back: the event loop of the callbacks is closed."""
        self.window.drain()
        self._writers.clear()
        self._outstanding.clear()
        self.receipts.clear()
