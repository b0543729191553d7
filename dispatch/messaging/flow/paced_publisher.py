"""A publisher with a pace, for topics whose receivers acknowledge nothing: messages go when the pace lets them, and wait in
a bounded fair queue otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

from dispatch._internal.clock import loop_clock
from dispatch._internal.fair_queue import FairQueue, QueueFullError
from dispatch.errors import TransportError
from dispatch.messaging.flow.pacer import MESSAGE_OVERHEAD, Pace
from dispatch.messaging.flow.reply_window import ReplyWindow
from dispatch.messaging.wire.properties import Property
from dispatch.transports import OnFailure, Publisher, Ticket
from dispatch.transports.errors import closed, publish_queue_full

NOTED_BYTES = 4_096
"""Messages from this size on wait for their receipt. Smaller ones are counted by time alone: a wake-up for each receipt
would cost them more than it could save. One that is withdrawn is uncounted from this size on, its answer included; a smaller
one takes 80 µs of the pace at most."""
MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 256 * 1024 * 1024
RETRY_AFTER_S = 1.0
"""Seconds after which a caller may call again when the queue was full."""
RECEIPT_S = 2.0
"""How long a receipt is waited for. A broker that takes longer is in trouble; then one message goes in this time."""


@runtime_checkable
class NotingPublisher(Protocol):
    """A :class:`~dispatch.transports.base.Publisher` that can tell of receipts."""

    def publish_noted(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: Callable[[], None],
    ) -> Ticket:
        """As ``publish``. ``on_receipt`` is called on the loop, once, later, when the broker has dealt with the message or
        never will; not when the message was withdrawn or the publisher closed before it left."""


class _Paced:
    """A message that waited, or whose receipt is awaited. See :class:`dispatch.transports.base.Ticket`."""

    __slots__ = (
        "booked",
        "flow",
        "on_failure",
        "payload",
        "properties",
        "publisher",
        "size",
        "through",
        "ticket",
        "unreceipted",
    )

    def __init__(
        self,
        publisher: PacedPublisher,
        payload: bytes,
        properties: Mapping[str, str],
        flow: str,
        on_failure: OnFailure | None,
    ) -> None:
        self.publisher = publisher
        self.payload = payload
        self.properties = properties
        self.flow = flow
        self.on_failure = on_failure
        self.size = len(payload) + MESSAGE_OVERHEAD
        self.ticket: Ticket | None = None
        self.unreceipted = False
        self.booked = 0
        """Bytes that the pace counts for it by time, until ``through``."""
        self.through = 0.0

    @property
    def waits(self) -> bool:
        return self.ticket is None or self.ticket.waits

    def cancel(self) -> bool:
        self.on_failure = None
        return self.publisher.withdraw(self)

    def fail(self, error: TransportError) -> None:
        if not error.sent and self.ticket is not None:
            self.publisher.uncount(self)
        callback, self.on_failure = self.on_failure, None
        if callback is not None:
            callback(error)


class PacedPublisher:
    """A :class:`~dispatch.transports.base.Publisher` that keeps to a pace.

    Args:
        publisher: where messages go; closed with this. One that is a :class:`NotingPublisher` is paced by its receipts
            too.
        pace: None: the default rate and burst.
        replies: window of the replies to the messages, whose expected bytes the pace counts too. None: nothing is replied.
    """

    def __init__(self, publisher: Publisher, pace: Pace | None = None, replies: ReplyWindow | None = None) -> None:
        self.publisher = publisher
        self._replies = replies
        self.pace = Pace() if pace is None else pace
        self._noting = publisher if isinstance(publisher, NotingPublisher) else None
        self._loop = asyncio.get_running_loop()
        self._now = loop_clock()
        self._queue: FairQueue[_Paced] = FairQueue(MAX_QUEUED, MAX_QUEUED_BYTES)
        self._waiters: list[tuple[str | None, asyncio.Future[None]]] = []
        """Callers that wait until no message of a flow waits, or none at all (None)."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def topic(self) -> str:
        return self.publisher.topic

    @property
    def queued(self) -> int:
        """Messages that wait."""
        return len(self._queue)

    def publish(self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure) -> Ticket:
        size = len(payload)
        if not len(self._queue):
            now = self._now()
            if self._wait(now) == 0.0:
                booked = size + MESSAGE_OVERHEAD + self._reply_bytes()
                if booked < NOTED_BYTES:
                    ticket = self.publisher.publish(payload, properties, flow=flow, on_failure=on_failure)
                    self.pace.send(booked, now)
                    if self._replies is not None:
                        self._replies.send(properties[Property.ID], now)
                    return ticket
                paced = _Paced(self, payload, properties, flow, on_failure)
                self._send(paced, now)
                return paced
        paced = _Paced(self, payload, properties, flow, on_failure)
        try:
            self._queue.put(flow, paced, size)
        except QueueFullError:
            raise publish_queue_full(len(self._queue), topic=self.topic, retry_after=RETRY_AFTER_S) from None
        if self._timer is None:
            self._watch(self._now())
        return paced

    def _reply_bytes(self) -> int:
        return 0 if self._replies is None else int(self._replies.mean_bytes)

    def _wait(self, now: float) -> float | None:
        """As :meth:`Pace.wait`, for the window of replies too."""
        wait = self.pace.wait(now)
        return wait if wait is None or self._replies is None else max(wait, self._replies.wait(now))

    def _send(self, paced: _Paced, now: float) -> None:
        """Raises what the publisher raises; then nothing went, and nothing is counted."""
        payload, properties = paced.payload, paced.properties
        if self._noting is None or len(payload) < NOTED_BYTES:
            paced.ticket = self.publisher.publish(payload, properties, flow=paced.flow, on_failure=paced.fail)
            paced.booked = paced.size + self._reply_bytes()
            paced.through = self.pace.send(paced.booked, now)
        else:
            paced.ticket = self._noting.publish_noted(
                payload, properties, flow=paced.flow, on_failure=paced.fail, on_receipt=partial(self._receipted, paced)
            )
            self.pace.hold(paced.size)
            paced.unreceipted = True
        if self._replies is not None:
            self._replies.send(properties[Property.ID], now)
        paced.payload = b""

    def _receipted(self, paced: _Paced) -> None:
        if paced.unreceipted:
            paced.unreceipted = False
            self.pace.receipt(paced.size, self._now())
            self._again()

    def _again(self) -> None:
        """Something has changed: look anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._pass()

    def _pass(self) -> None:
        """Let pass what may, and watch over the rest."""
        self._timer = None
        while len(self._queue):
            now = self._now()
            if self._wait(now) != 0.0:
                self._watch(now)
                break
            self._release(now)
        self._wake_waiters()

    def _release(self, now: float) -> None:
        paced = self._queue.pop()
        if paced is not None:
            try:
                self._send(paced, now)
            except TransportError as error:
                self._loop.call_soon(paced.fail, error)

    def _watch(self, now: float) -> None:
        wait = self._wait(now)
        if self._replies is not None:
            self._replies.waiting.add(self._again)
        if wait is None:
            self._timer = self._loop.call_later(RECEIPT_S, self._overdue)
        else:
            self._timer = self._loop.call_later(wait, self._pass)

    def _overdue(self) -> None:
        self._release(self._now())
        self._pass()

    def withdraw(self, paced: _Paced) -> bool:
        """Take a message back. False when it has left."""
        if paced.ticket is None:
            withdrawn = self._queue.remove(paced.flow, paced)
            if withdrawn and not len(self._queue) and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if withdrawn:
                self._wake_waiters()
            return withdrawn
        withdrawn = paced.ticket.cancel()
        if withdrawn:
            self.uncount(paced)
        return withdrawn

    def uncount(self, paced: _Paced) -> None:
        """``paced`` was not sent after all."""
        if self._replies is not None:
            self._replies.withdraw(paced.properties[Property.ID])
        if paced.unreceipted:
            paced.unreceipted = False
            self.pace.withdraw(paced.size)
        else:
            self.pace.take_back(paced.booked, paced.through)
        self._again()

    async def writable(self, flow: str) -> None:
        await self._wait_empty(flow)
        await self.publisher.writable(flow)

    async def empty(self) -> None:
        """Wait until nothing waits here."""
        await self._wait_empty(None)

    def _is_empty(self, flow: str | None) -> bool:
        return not len(self._queue) if flow is None else not self._queue.has_flow(flow)

    async def _wait_empty(self, flow: str | None) -> None:
        if not self._is_empty(flow):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((flow, waiter))
            await waiter

    def _wake_waiters(self) -> None:
        if self._waiters:
            for flow, waiter in self._waiters:
                if self._is_empty(flow) and not waiter.done():
                    waiter.set_result(None)
            self._waiters = [each for each in self._waiters if not each[1].done()]

    async def close(self) -> None:
        """Fail what waits, and close the publisher."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        error = closed()
        for each in self._queue.clear():
            each.fail(error)
        self._wake_waiters()
        await self.publisher.close()
