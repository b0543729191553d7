"""Pacing towards receivers that acknowledge nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dispatch._internal import loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.plain import Correlator, read_properties
from dispatch.messaging.wire import Property
from dispatch.transports import Message, OnFailure, OnReceipt, Publisher, Ticket
from dispatch.transports.base import FairQueue, QueueFullError
from dispatch.transports.errors import closed, publish_queue_full

# Pace: bytes per time towards receivers that acknowledge nothing. Pure bookkeeping, the clock is handed in.
#
# A broker drops a non-persistent message when the receiver's channel holds more than 64 KiB at that instant. There are two
# signs that the channel is clear: time, in which a receiver of ordinary speed has read what was sent, and the broker's
# receipt. A receipt proves no delivery; but while it is missing, the broker is behind and will deliver everything that
# arrived meanwhile in one burst. So a message without a receipt counts in full, and its time begins with its receipt.


PACE_RATE = 50_000_000
"""Bytes a second. Measured with TrustGraph's client: the highest at which, with receipts, none of 24,000 answers of 10 kB at
64 in flight was lost; at twice the rate 0.08 % were, without any pace 1.5 %."""
CHANNEL_BYTES = 65_536
"""High-water mark of a broker's channel."""
PACE_BURST = 48_000
"""Bytes that may be under way at any time, whatever the rate: they leave a broker's channel writable, with room for what the
broker adds."""
MESSAGE_OVERHEAD = 512
"""Bytes of a message beyond its payload: properties and framing (about 300), and what the broker's network layer accounts
for the two buffers that it writes a message as (about 200)."""
STALL_S = 0.005
"""Seconds that receiver and broker may stop on a busy machine. Such a round trip does not widen the reply window (measured
on two processors, 64 calls with replies of 10 kB in flight: 0 of 45,000 lost; 188 with the pace alone). And so long a
message is under way at least that fills a channel alone, until the broker's writing thread runs."""
GRAIN_S = 1e-6
"""Shorter waits are none: no clock and no timer is that exact."""


class Pace:
    """The account of one sender towards one topic: how much of what it sent is still under way.

    A message may go while that is ``burst`` bytes at most, whatever its own size: the broker looks at what is in the
    channel *before* it. A message is under way, as a whole, until its time has passed, which begins when what went before
    it is through: a channel counts one until its last byte has left. So in any time ``t`` all messages but the last are
    ``burst + rate * t`` bytes at most, small ones cost nothing that is seen, and after one of ``n`` bytes, more than the
    burst, the next waits ``n / rate``; after one that fills a channel alone, :data:`STALL_S` at least.

    Args:
        rate: bytes a second.
        burst: bytes.
    """

    def __init__(self, rate: float = PACE_RATE, burst: float = PACE_BURST) -> None:
        if not rate > 0 or not burst > 0:
            raise ValueError(f"a pace needs a rate and a burst above 0, not {rate} and {burst}")
        self.rate = rate
        self.burst = burst
        self.unreceipted = 0
        """Bytes sent whose receipt is awaited."""
        self._under_way = 0
        self._through = float("-inf")
        self._sent: deque[tuple[float, int]] = deque()

    def wait(self, now: float) -> float | None:
        """Seconds until a message may go; 0.0: now. None: a receipt is awaited, no time will do."""
        sent = self._sent
        while sent and sent[0][0] <= now + GRAIN_S:
            self._under_way -= sent.popleft()[1]
        excess = self.unreceipted + self._under_way - self.burst
        if excess <= 0:
            return 0.0
        for through, size in sent:
            excess -= size
            if excess <= 0:
                return through - now
        return None

    def send(self, size: int, now: float) -> float:
        """Count a message of ``size`` bytes whose receipt is not reported. Returns the end of its time."""
        self._through = max(self._through, now) + self._duration(size)
        self._sent.append((self._through, size))
        self._under_way += size
        return self._through

    def _duration(self, size: int) -> float:
        """Return the seconds that a message is under way."""
        through = size / self.rate
        return through if size <= CHANNEL_BYTES else max(through, STALL_S)

    def take_back(self, size: int, through: float) -> None:
        """Uncount a message that :meth:`send` counted, with what that returned: it was not sent after all. The times of
        those counted after it stay as they are."""
        entry = (through, size)
        if entry in self._sent:
            self._sent.remove(entry)
            self._under_way -= size
            if through == self._through:
                self._through -= self._duration(size)

    def hold(self, size: int) -> None:
        """A message of ``size`` bytes goes; :meth:`receipt` or :meth:`withdraw` will follow."""
        self.unreceipted += size

    def receipt(self, size: int, now: float) -> None:
        """The broker has dealt with a message of ``size`` bytes, for good or ill: its time begins."""
        self.withdraw(size)
        self.send(size, now)

    def withdraw(self, size: int) -> None:
        """A message of ``size`` bytes that was held did not go after all."""
        self.unreceipted = max(0, self.unreceipted - size)


# Reply window: how many requests a fast third-party service may have unanswered. Pure, the clock is handed in.
#
# A third-party service has no flow control: it sends replies at once, and the broker drops those that exceed the receiver's
# channel. A pace (:mod:`dispatch.messaging.flow`) assumes a receiver of ordinary speed; when receiver or broker stop for
# some milliseconds, all requests that a fast service has are answered in one burst. The window keeps this burst within the
# channel. Replies of slow tools are spread over their latency: for these the pace is enough.


LATE_S = 0.1
"""Seconds that an unanswered request counts. A later reply is that of a slow tool, or it was lost."""
PERIOD_S = 2.0
"""Seconds over which the shortest round trip is taken. It counts from the next period on: the first replies of a broker that
has just started take 20 ms."""
MAX_REMEMBERED = 1_000
"""Requests without a reply that are remembered, those that count and those that count no more: about 200 kB."""
MEAN_OF = 16
"""Weight of the moving average of reply sizes: a new reply counts one sixteenth."""
LATE_OF = 8
"""Weight of the moving share of late replies. A stall makes about five replies late; more than half in eight is the tool."""


class ReplyWindow:
    """The account of one response topic: bytes of replies that may arrive at once.

    Attributes:
        mean_bytes: moving average of the sizes of replies. Before the first one it is the capacity of a channel.
        waiting: called once, when a reply arrives, by those who wait for room.
    """

    def __init__(self) -> None:
        self.mean_bytes = float(PACE_BURST)
        self.waiting: set[Callable[[], None]] = set()
        self._sent: dict[str, float] = {}
        """When the requests that count were sent, by id, oldest first."""
        self._late: dict[str, float] = {}
        """Ids of those that count no more."""
        self._late_share = 0.0
        self._shortest = self._before = 0.0
        """Shortest round trip of this period, and of the one before."""
        self._period_end: float | None = None
        """None: no reply has arrived yet."""

    @property
    def unanswered(self) -> int:
        """Requests that count, as of the last :meth:`wait`."""
        return len(self._sent)

    @property
    def capacity(self) -> float:
        """Bytes of expected replies up to which a further request may go."""
        return PACE_BURST + PACE_RATE * max(0.0, min(self._shortest, self._before) - STALL_S)

    def wait(self, now: float) -> float:
        """Return the seconds until a request may go if no reply arrives; 0.0: now.

        One may go while nothing is known of the service's replies, and while more than half of them are late.
        """
        sent = self._sent
        reply_bytes = self.mean_bytes + MESSAGE_OVERHEAD
        if len(sent) * reply_bytes <= PACE_BURST or self._period_end is None or self._late_share > 0.5:
            return 0.0
        at_once = 1 + int(self.capacity / reply_bytes)
        while len(sent) >= at_once:
            id, at = next(iter(sent.items()))
            counts_until = at + LATE_S
            if counts_until > now + GRAIN_S:
                return counts_until - now
            del sent[id]
            self._late[id] = at
            _forget_oldest(self._late)
        return 0.0

    def send(self, id: str, now: float) -> None:
        """Count a request."""
        self._sent[id] = now
        _forget_oldest(self._sent)

    def withdraw(self, id: str) -> None:
        """Uncount a request that was not sent after all."""
        self._sent.pop(id, None)

    def receive(self, id: str, size: int, now: float) -> None:
        """Uncount the request whose reply, or the first chunk of it, has arrived with ``size`` bytes."""
        self.mean_bytes += (size - self.mean_bytes) / MEAN_OF
        sent = self._sent.pop(id, None)
        if sent is not None:
            self._record(now, now - sent)
        elif id in self._late:
            del self._late[id]
            self._record(now, LATE_S)
        if self.waiting:
            waiting, self.waiting = self.waiting, set()
            for wake in waiting:
                wake()

    def _record(self, now: float, round_trip: float) -> None:
        if round_trip >= LATE_S:
            self._late_share += (1.0 - self._late_share) / LATE_OF
        else:
            self._late_share -= self._late_share / LATE_OF
        if self._period_end is None or now >= self._period_end:
            self._before, self._shortest, self._period_end = self._shortest, LATE_S, now + PERIOD_S
        if round_trip < self._shortest:
            self._shortest = round_trip


def _forget_oldest(ids: dict[str, float]) -> None:
    if len(ids) > MAX_REMEMBERED:
        del ids[next(iter(ids))]


# A publisher with a pace, for topics whose receivers acknowledge nothing: messages go when the pace lets them, and wait in
# a bounded fair queue otherwise.


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


@dataclass(slots=True, eq=False)  # perf: a struct is slower to write to
class _Paced:
    """A message that waited, or whose receipt is awaited. See :class:`dispatch.transports.base.Ticket`.

    Attributes:
        ticket: of the publish; None: it waits.
        unreceipted: its receipt is awaited.
        booked: bytes that the pace counts for it by time, until ``through``.
    """

    publisher: PacedPublisher
    payload: bytes
    properties: Mapping[str, str]
    flow: str
    on_failure: OnFailure | None
    on_receipt: OnReceipt | None
    size: int
    ticket: Ticket | None = None
    unreceipted: bool = False
    booked: int = 0
    through: float = 0.0

    def cancel(self) -> bool:
        self.on_failure = None
        return self.publisher.withdraw(self)

    def fail(self, error: TransportError) -> None:
        if not error.may_have_run and self.ticket is not None:
            self.publisher.uncount(self)
        callback, self.on_failure = self.on_failure, None
        if callback is not None:
            callback(error)


class PacedPublisher:
    """A :class:`~dispatch.transports.base.Publisher` that keeps to a pace.

    Args:
        publisher: where messages go; closed with this.
        pace: None: the default rate and burst.
        replies: window of the replies to the messages, whose expected bytes the pace counts too. None: nothing is replied.
    """

    def __init__(self, publisher: Publisher, pace: Pace | None = None, replies: ReplyWindow | None = None) -> None:
        self.publisher = publisher
        self._replies = replies
        self.pace = Pace() if pace is None else pace
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

    def publish(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: OnReceipt | None = None,
    ) -> Ticket:
        size = len(payload) + MESSAGE_OVERHEAD
        if not len(self._queue):
            now = self._now()
            if self._wait(now) == 0.0:
                booked = size + self._reply_bytes()
                if booked < NOTED_BYTES:
                    ticket = self.publisher.publish(
                        payload, properties, flow=flow, on_failure=on_failure, on_receipt=on_receipt
                    )
                    self.pace.send(booked, now)
                    if self._replies is not None:
                        self._replies.send(properties[Property.ID], now)
                    return ticket
                paced = _Paced(self, payload, properties, flow, on_failure, on_receipt, size)
                self._send(paced, now)
                return paced
        paced = _Paced(self, payload, properties, flow, on_failure, on_receipt, size)
        try:
            self._queue.put(flow, paced, len(payload))
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
        is_noted = len(payload) >= NOTED_BYTES
        paced.ticket = self.publisher.publish(
            payload,
            properties,
            flow=paced.flow,
            on_failure=paced.fail,
            on_receipt=partial(self._receipted, paced) if is_noted else paced.on_receipt,
        )
        if not is_noted:
            paced.booked = paced.size + self._reply_bytes()
            paced.through = self.pace.send(paced.booked, now)
        else:
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
        on_receipt, paced.on_receipt = paced.on_receipt, None
        if on_receipt is not None:
            on_receipt()

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


# Replies of the plain exchange, counted in a window.
#
# A third-party service has no flow control: it sends replies at once, and the broker drops those that exceed the caller's
# channel. Requests are therefore paced as if they had the size of their replies, and a fast service has no more of them
# than its replies fit into a channel. Single calls are not delayed.


class CountedReplies:
    """The replies to requests whose response topic is the same: on it, and on the dispatcher's own reply topic.

    Args:
        exchange: correlates the replies.

    Attributes:
        window: counts the replies to requests of this dispatcher.
    """

    def __init__(self, exchange: Correlator) -> None:
        self.window = ReplyWindow()
        self._exchange = exchange

    def on_message(self, message: Message) -> None:
        """Handle a message of the response topic, which other agents share."""
        self.receive(message, read_properties(message), is_shared=True)

    def receive(self, message: Message, properties: Mapping[str, str], *, is_shared: bool = False) -> None:
        """Handle a reply; see :meth:`Correlator.receive`."""
        exchange = self._exchange
        before = exchange.received_bytes
        exchange.receive(message, properties, is_shared=is_shared)
        size = exchange.received_bytes - before
        if size:  # otherwise the reply of another dispatcher
            self.window.receive(properties[Property.ID], size, exchange.now())
