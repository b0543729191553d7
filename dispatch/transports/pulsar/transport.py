"""``pulsar://`` and ``pulsar+ssl://``: the transport over a genuine broker.

Threads of pulsar-client put what they bring (messages, receipts) into deques; one wake-up of the loop takes a whole
burst. Publishes pass a window over those whose receipt is still out. When the connection is lost for longer than a
moment, the client is replaced: a new one is connected in milliseconds, where the old one's backoff can take seconds,
and closing the old one ends publishes that would otherwise reach a service long after their callers have gone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dispatch.outcome import TransportError
from dispatch.transports.base import Handler, Mode
from dispatch.transports.errors import sending_failed, unreachable
from dispatch.transports.pulsar.aside import Aside
from dispatch.transports.pulsar.handles import PulsarPublisher, PulsarSubscription, PulsarTicket
from dispatch.transports.pulsar.handshake import shake_hands
from dispatch.transports.pulsar.link import OK, OPERATION_TIMEOUT_S, RECEIVER_QUEUE, Link, close_opened
from dispatch.transports.pulsar.threads import keep_thread_state
from dispatch.transports.security import Security
from dispatch.transports.window import PublishWindow, QueueFull

logger = logging.getLogger("dispatch.transport")

POLL_S = 0.25
"""How often the connections are looked at."""
GRACE_S = 1.0
"""How long pulsar-client may mend a connection by itself (a topic that moves to another broker takes milliseconds)."""
CLOSE_FLUSH_S = 2.0
"""How long closing waits for the receipts of what was published before it."""
RELINK_PAUSE_S = 0.75
"""Between new clients, when a broker answers but lets nothing be opened."""
PROBE_TIMEOUT_S = 1.0
"""How long a broker may take to answer while we wait for it to come back: one that starts accepts connections for some
time before it answers on them."""
RECEIPT_BATCH = 32
"""Good receipts that nobody waits for are looked at so many at a time, off the way of a reply: half the default window."""
DRAIN_BATCH = 512
"""Messages handled in one go before other tasks get their turn."""


class PulsarTransport:
    """See :class:`dispatch.transports.base.Transport`.

    Args:
        url: ``pulsar://HOST:PORT[,HOST:PORT…]`` or ``pulsar+ssl://…``.
        security: token and TLS settings; None: from the environment.
        window: publishes of this connection whose receipt may be out at once.
        max_queued: messages that may wait in front of the window.
        max_queued_bytes: bytes that may wait there.
    """

    def __init__(
        self,
        url: str,
        *,
        security: Security | None = None,
        window: int = 64,
        max_queued: int = 10_000,
        max_queued_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self.url = url
        self._security = security if security is not None else Security.from_environment()
        self._window: PublishWindow[PulsarTicket] = PublishWindow(window, max_queued, max_queued_bytes)
        self._outstanding: set[PulsarTicket] = set()
        self._receipts: deque[tuple[PulsarTicket, str | TransportError | None]] = deque()
        self._inbox: deque[tuple[PulsarSubscription, Any, Any]] = deque()
        self._wake_pending = False
        self._want_receipts = False
        self._look = False
        self._publishers: dict[str, PulsarPublisher] = {}
        # Weak: a lock lives as long as somebody opens its topic, or waits for who does.
        self._opening: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._subscriptions: set[PulsarSubscription] = set()
        self._writers: deque[tuple[Callable[[], bool], asyncio.Future[None]]] = deque()
        self._generation = 0
        self._link: Link | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._aside: Aside[PulsarPublisher | PulsarSubscription] = Aside()
        self._retrying: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._down_since: float | None = None
        self._closing = False
        self._closed = False
        self.handler_errors = 0
        self.reconnects = 0

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._down_since is None and not self._closed

    def another(self) -> PulsarTransport:
        return PulsarTransport(self.url, security=self._security, window=self._window.size)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await shake_hands(self.url, self._security)
        self._link = Link(self.url, self._security)
        _open_transports.add(self)
        self._supervisor = asyncio.create_task(self._supervise(), name="dispatch-pulsar-supervisor")

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        try:
            if self.connected and self._link is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_FLUSH_S):
                        await self.flush()
        finally:  # also when whoever closes is cancelled: nobody would do it a second time
            await self._end()

    async def _end(self) -> None:
        self._closed = True
        self._up.set()
        _open_transports.discard(self)
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._retrying is not None:
            self._retrying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._retrying
        closed = TransportError("closed", "The connection was closed.", sent=False)
        for ticket in self._window.drain():
            ticket.fail(closed)
        for subscription in self._subscriptions:
            subscription.handler = None
        self._subscriptions.clear()
        self._publishers.clear()
        if self._link is not None:
            await self._link.close()
        self._take_receipts()
        self._forget_outstanding("AlreadyClosed")
        self._inbox.clear()
        self._release_writers()

    async def flush(self) -> None:
        await self._wait_until(lambda: not (self._window.queued or self._outstanding))

    # -- publishing ---------------------------------------------------------------------------------------------

    async def publisher(self, topic: str) -> PulsarPublisher:
        async with self._opening.setdefault(topic, asyncio.Lock()):
            publisher = self._publishers.get(topic)
            if publisher is None:
                raw = await self._open(lambda link: link.producer(topic))
                publisher = self._publishers[topic] = PulsarPublisher(self, topic, raw)
            else:
                publisher.users += 1
            return publisher

    async def drop_publisher(self, publisher: PulsarPublisher) -> None:
        if self._publishers.get(publisher.topic) is publisher:
            del self._publishers[publisher.topic]
            self._aside.forget(publisher)
            await close_opened(publisher.raw)

    def submit(self, ticket: PulsarTicket, size: int) -> None:
        if self._closed:
            raise TransportError("closed", "The connection is closed.", sent=False)
        if len(self._aside) and (refusal := self._aside.error(ticket.publisher)) is not None:
            raise TransportError(refusal.type, refusal.message, sent=False)
        window = self._window
        if window.outstanding >= window.size:
            self._take_receipts()
        try:
            if self._down_since is None:
                if window.offer(ticket.flow, ticket, size):
                    self._send(ticket)
                    return
            else:
                # Held back: what waits here can be withdrawn, what pulsar-client holds cannot.
                window.hold(ticket.flow, ticket, size)
        except QueueFull:
            raise TransportError(
                "queue-full",
                f"{window.queued:,} messages wait for the broker already; slow down.",
                sent=False,
                retry_after=1.0,
            ) from None
        self._want_receipts = True
        self._take_receipts()  # a receipt may have come between the look above and the wish for a wake-up

    def withdraw(self, ticket: PulsarTicket) -> bool:
        withdrawn = self._window.withdraw(ticket.flow, ticket)
        if withdrawn and self._writers:
            self._release_writers()  # while the connection is down, no receipt would
        return withdrawn

    async def writable(self, flow: str) -> None:
        await self._wait_until(lambda: not self._window.waiting(flow))

    async def _wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state that receipts bring about."""
        if self._closed or reached():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writers.append((reached, waiter))
        self._want_receipts = True
        self._take_receipts()  # a receipt may have come before the wish for a wake-up was seen
        await waiter

    def _release_writers(self) -> None:
        for _ in range(len(self._writers)):
            reached, waiter = self._writers.popleft()
            if waiter.done():
                continue
            if self._closed or reached():
                waiter.set_result(None)
            else:
                self._writers.append((reached, waiter))

    def _send(self, ticket: PulsarTicket) -> None:
        ticket.generation = self._generation
        self._outstanding.add(ticket)
        payload, properties = ticket.payload, ticket.properties
        ticket.payload = ticket.properties = None
        try:
            ticket.publisher.raw.send_async(payload, partial(self._on_receipt, ticket), properties=properties)
        except Exception as error:  # pulsar-client raises for what it will not take at all
            said = f"pulsar-client does not take the message to {ticket.publisher.topic} ({type(error).__name__})."
            self._receipts.append((ticket, TransportError("send-failed", f"{said} It was not sent.", sent=False)))
            self._look = True
            self._wake()

    def _on_receipt(self, ticket: PulsarTicket, result: Any, message_id: Any) -> None:
        # On pulsar-client's thread. An exception here would end the process, hence nothing that can raise.
        keep_thread_state()
        if result == OK:
            # A receipt without a place in the ledger says that the broker dropped the message at publish.
            dropped = message_id.ledger_id() == -1 and message_id.entry_id() == -1
            self._receipts.append((ticket, "Dropped" if dropped else None))
            if dropped or ticket.on_receipt is not None:
                self._look = True
            elif not self._want_receipts:
                return
        else:
            self._receipts.append((ticket, result.name))
            self._look = True
        self._wake()

    def _take_receipts(self) -> None:
        receipts, outstanding, window = self._receipts, self._outstanding, self._window
        self._look = False  # before looking: one that comes later sets it again, and wakes us
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
        if window.queued and self._down_since is None:
            while (waiting := window.take()) is not None:
                self._send(waiting)
        self._want_receipts = bool(window.queued or self._writers)
        if self._writers:
            self._release_writers()

    def _forget_outstanding(self, problem: str) -> None:
        for ticket in list(self._outstanding):
            self._receipts.append((ticket, problem))
        self._take_receipts()

    # -- receiving ----------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, handler: Handler, *, mode: Mode, name: str) -> PulsarSubscription:
        subscription = PulsarSubscription(self, topic, handler, mode, name)
        subscription.raw = await self._open(
            lambda link: link.consumer(topic, mode, name, partial(self._on_message, subscription, self._generation))
        )
        self._subscriptions.add(subscription)
        return subscription

    async def drop_subscription(self, subscription: PulsarSubscription) -> None:
        if subscription not in self._subscriptions:
            return
        self._subscriptions.discard(subscription)
        self._aside.forget(subscription)
        await close_opened(subscription.raw)
        # What had arrived by then is still handled: on a non-persistent topic nobody else will get it.
        # A copy, because pulsar-client's threads append to it meanwhile.
        while any(waiting is subscription for waiting, _, _ in tuple(self._inbox)):  # noqa: ASYNC110 - the next turn takes it
            await asyncio.sleep(0)
        subscription.handler = None

    def _on_message(self, subscription: PulsarSubscription, generation: int, consumer: Any, message: Any) -> None:
        # On pulsar-client's thread. Waiting here holds the broker back when the loop does not keep up: nothing is
        # unbounded, and the broker's flow control does the rest.
        keep_thread_state()
        while len(self._inbox) >= RECEIVER_QUEUE and not self._closed and generation == self._generation:
            time.sleep(0.002)
        self._inbox.append((subscription, consumer, message))
        self._wake()

    def _wake(self) -> None:
        if not self._wake_pending:
            self._wake_pending = True
            try:  # noqa: SIM105 - on the path of every message, where suppress() costs more
                self._loop.call_soon_threadsafe(self._drain)  # type: ignore[union-attr] # set before any thread starts
            except RuntimeError:
                pass  # the loop is closed already: nobody is left to be told

    def _drain(self) -> None:
        self._wake_pending = False
        if self._want_receipts or self._look or len(self._receipts) >= RECEIPT_BATCH:
            self._take_receipts()
        inbox = self._inbox
        for _ in range(min(len(inbox), DRAIN_BATCH)):
            subscription, consumer, message = inbox.popleft()
            handler = subscription.handler
            if handler is None:
                continue
            try:
                handler(message)
            except Exception as error:
                # Whatever a message holds, the next one is delivered.
                self.handler_errors += 1
                logger.warning("a message on %s could not be handled: %s", subscription.topic, type(error).__name__)
                continue
            if subscription.acknowledge:
                # The first ones come before the consumer is known here; after a reconnect, the new one can say it too.
                with contextlib.suppress(Exception):  # no connection: the broker will send the message again
                    (subscription.raw or consumer).acknowledge(message)
        if inbox:
            self._wake()

    # -- staying connected --------------------------------------------------------------------------------------

    async def _open(self, make: Callable[[Link], Awaitable[Any]]) -> Any:
        while True:
            if self._closed or self._link is None:
                raise TransportError("closed", "The connection is closed.", sent=False)
            if self._down_since is not None:
                raise unreachable(self.url)
            generation = self._generation
            try:
                opened = await make(self._link)
            except TransportError:
                if generation == self._generation:
                    raise
                if self._down_since is not None:  # the new client is being made: seconds, or it fails
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(OPERATION_TIMEOUT_S):
                            await self._up.wait()
                continue
            if generation == self._generation and not self._closed:
                return opened
            await close_opened(opened)

    def _all_connected(self) -> bool:
        aside = self._aside
        return all(p.raw.is_connected() for p in self._publishers.values() if p not in aside) and all(
            s.raw.is_connected() for s in self._subscriptions if s not in aside
        )

    async def _supervise(self) -> None:
        assert self._loop is not None
        while True:
            await asyncio.sleep(POLL_S)
            if self._all_connected():
                if self._down_since is not None:
                    self._back()
                if len(self._aside) and (self._retrying is None or self._retrying.done()):
                    self._retrying = asyncio.create_task(self._retry_aside(), name="dispatch-pulsar-retry")
                continue
            if self._down_since is None:
                self._down_since = self._loop.time()
                self._up.clear()
                logger.info("connection to %s lost", self.url)
            if self._loop.time() - self._down_since >= GRACE_S:
                try:
                    await shake_hands(self.url, self._security, PROBE_TIMEOUT_S)
                except Exception as error:  # whatever it is: without a supervisor the connection would never come back
                    logger.debug("not back yet: %s: %s", type(error).__name__, error)
                    continue
                try:
                    await self._relink()
                except Exception as error:  # as above
                    logger.debug("nothing can be opened yet: %s: %s", type(error).__name__, error)
                    await asyncio.sleep(RELINK_PAUSE_S)

    def _back(self) -> None:
        self._down_since = None
        self._up.set()
        logger.info("connected to %s again", self.url)
        self._take_receipts()

    async def _relink(self) -> None:
        old = self._link
        if old is not None:
            await old.close()
        self._take_receipts()
        self._forget_outstanding("AlreadyClosed")
        self._generation += 1
        self._link = Link(self.url, self._security)
        self.reconnects += 1
        handles: list[PulsarPublisher | PulsarSubscription] = [*self._subscriptions, *self._publishers.values()]
        errors = await asyncio.gather(*(self._reopen(handle) for handle in handles))
        if handles and all(errors):
            raise unreachable(self.url)  # that is no topic's fault
        for handle, error in zip(handles, errors, strict=True):
            self._set_aside(handle, error)
        self._back()

    async def _reopen(self, handle: PulsarPublisher | PulsarSubscription) -> TransportError | None:
        """Open the topic of ``handle`` on the present client. Returns why it cannot be opened."""
        assert self._link is not None
        generation = self._generation
        raw: Any
        try:
            if isinstance(handle, PulsarSubscription):
                listener = partial(self._on_message, handle, self._generation)
                raw = await self._link.consumer(handle.topic, handle.mode, handle.name, listener)
            else:
                raw = await self._link.producer(handle.topic)
        except TransportError as error:
            return error if generation == self._generation else None
        if generation != self._generation or not self._wanted(handle):
            await close_opened(raw)  # of a former client, or closed meanwhile: it would take messages nobody ever gets
            return None
        handle.raw = raw
        return None

    def _set_aside(self, handle: PulsarPublisher | PulsarSubscription, error: TransportError | None) -> None:
        assert self._loop is not None
        if error is None:
            if self._aside.forget(handle):
                logger.info("%s is open again", handle.topic)
        elif self._wanted(handle) and self._aside.failed(handle, error, self._loop.time()):
            logger.warning("%s cannot be opened and is set aside: %s", handle.topic, error.message)

    def _wanted(self, handle: PulsarPublisher | PulsarSubscription) -> bool:
        return handle in self._subscriptions or self._publishers.get(handle.topic) is handle

    async def _retry_aside(self) -> None:
        assert self._loop is not None
        generation = self._generation
        for handle in self._aside.due(self._loop.time()):
            error = await self._reopen(handle)
            if generation != self._generation:
                return
            self._set_aside(handle, error)


_open_transports: weakref.WeakSet[PulsarTransport] = weakref.WeakSet()


@atexit.register
def _close_forgotten() -> None:
    for transport in list(_open_transports):
        if transport._link is not None:
            transport._link.close_now()
