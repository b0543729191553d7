"""``pulsar://`` and ``pulsar+ssl://``: the transport over a genuine broker.

Threads of pulsar-client append messages and receipts to deques; one wake-up of the event loop handles a whole burst. A
window limits publishes without a receipt. :mod:`dispatch.transports.pulsar.supervisor` keeps the connection up.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from dispatch._internal.allocator import keep_freed_memory
from dispatch._internal.cancellation import cancel_and_wait
from dispatch.errors import TransportError
from dispatch.messaging.wire.codec import MAX_MESSAGE_BYTES, PROPERTIES_BYTES
from dispatch.transports.base import AnswerLate, Handler, Mode
from dispatch.transports.errors import closed
from dispatch.transports.publish_window import PublishWindow
from dispatch.transports.pulsar.client import CLOSED_HANDLE, RECEIVER_QUEUE, close_opened, pause, send_plain
from dispatch.transports.pulsar.io_thread_state import keep_thread_state
from dispatch.transports.pulsar.publisher import MessageSender, PulsarPublisher, PulsarTicket
from dispatch.transports.pulsar.subscription import PulsarSubscription
from dispatch.transports.pulsar.supervisor import ConnectionSupervisor, TopicHandle
from dispatch.transports.security import Security

logger = logging.getLogger("dispatch.transport")

CLOSE_FLUSH_S = 2.0
"""Longest time, in seconds, that closing a connection or a publisher waits for receipts."""
RECEIPT_BATCH = 32
"""Successful receipts without a waiting publish are processed in batches of this size, so that they delay no reply. Half the
default window."""
LATE_S = 0.02
"""Seconds without a turn of the event loop after which probes are answered on pulsar-client's thread; callers suspect an
instance as soon."""
DRAIN_BATCH = 512
"""Messages handled at a time before other tasks run."""


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
        handles: list[TopicHandle] = [each for topic in topics if (each := self._publishers.get(topic)) is not None]
        handles += [each for each in self._subscriptions if each.topic in topics]
        return not all(each.raw.is_connected() for each in handles)

    def another(self) -> PulsarTransport:
        return PulsarTransport(self.url, security=self._security, publish_window=self._sender.window.size)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        keep_freed_memory()  # for large payloads
        self._sender.start()
        await self._supervisor.start()
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
                subscription.handler = None
                if subscription.durable is not None:
                    subscription.durable.end()
            handles = self.handles()
            self._subscriptions.clear()
            self._publishers.clear()
            try:
                await self._supervisor.close()
            finally:
                for handle in handles:
                    handle.raw = CLOSED_HANDLE
                self._sender.close()
                self._inbox.clear()

    async def _abandon(self) -> None:
        """Close on another event loop than that of :meth:`start`: callbacks that need that loop are dropped."""
        self._closed = True
        self._sender.stop()
        _open_transports.discard(self)
        self._supervisor.abandon()
        handles = self.handles()
        for subscription in self._subscriptions:
            subscription.handler = None
        for publisher in self._publishers.values():
            publisher.waiting.clear()
        self._subscriptions.clear()
        self._publishers.clear()
        self._sender.abandon()
        try:
            await self._supervisor.close()
        finally:
            for handle in handles:
                handle.raw = CLOSED_HANDLE
            self._sender.abandon()  # also of receipts that came meanwhile
            self._inbox.clear()

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
            raw, publisher.raw = publisher.raw, CLOSED_HANDLE
            await close_opened(raw)

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
        self._supervisor.backoff.forget(subscription)
        raw, subscription.raw = subscription.raw, CLOSED_HANDLE
        await close_opened(raw)
        # Messages that have arrived are still handled: a non-persistent topic redelivers none.
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

    def _answer_late(self, answer_late: AnswerLate, message: Any) -> None:
        """Answer a message on this thread, because the event loop is blocked."""
        try:
            answer = answer_late(message.data())
            publisher = None if answer is None else self._publishers.get(answer[0])
            if answer is not None and publisher is not None:
                send_plain(publisher.raw, answer[1], _ignore_receipt)
        except Exception as error:  # of any kind: it would end the process
            logger.debug("no late answer: %s", type(error).__name__)

    def _wake(self) -> None:
        if not self._wake_pending:
            self._woken_at = time.monotonic()
            self._wake_pending = True
            try:  # noqa: SIM105 - on the path of every message, where suppress() costs more
                self._loop.call_soon_threadsafe(self._drain)  # type: ignore[union-attr] # set before any thread starts
            except RuntimeError:
                pass  # the loop is closed: no handler is left

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
                    durable.deliver(handler, consumer, message)
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
        """See :meth:`dispatch.transports.pulsar.publisher.MessageSender.find_unacknowledged`."""
        return self._sender.find_unacknowledged()

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


def _ignore_receipt(_result: Any, _message_id: Any) -> None:
    keep_thread_state()


_open_transports: weakref.WeakSet[PulsarTransport] = weakref.WeakSet()


@atexit.register
def _close_forgotten() -> None:
    for transport in list(_open_transports):
        transport._supervisor.close_now()
