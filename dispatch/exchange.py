"""Correlation: one request and its reply, or its stream of replies, matched by the property ``id``.

Every reply that arrives is counted in exactly one :class:`Disposition`, and every request ends in exactly one of: its
answer, a limit that ran out, an unreadable reply, a transport error, its caller's cancellation. In each case its slot is
gone from the table at once and a tombstone remembers the id for a while, so that what comes later is known for what it is.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dispatch.messages import (
    MAX_PROPERTY_CHARS,
    MalformedMessage,
    Property,
    Reply,
    decode_reply,
    whole_number,
)
from dispatch.outcome import Throttled, TransportError
from dispatch.transports.base import Message, Publisher, Ticket

TOMBSTONE_AGE_S = 60.0
"""How long an ended id is remembered. Late replies come within the service's own time limit; a minute covers most."""
MAX_TOMBSTONES = 100_000
"""Ids remembered at most: about 20 MB."""
MAX_PENDING = 65_536
"""Requests that may wait for replies at once."""
MAX_AHEAD = 1_024
"""Chunks of a stream kept while an earlier one is missing."""


class Disposition(StrEnum):
    """What became of a reply."""

    MATCHED = "matched"
    LATE = "late"
    """Its caller had given up (timeout, cancellation)."""
    DUPLICATE = "duplicate"
    """Its request was answered already, or this chunk was here before."""
    UNKNOWN = "unknown"
    """No request of ours that we remember; on a shared response topic also everybody else's replies."""
    MALFORMED = "malformed"
    """No id, or not readable."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: the texts of all its chunks, or the service's error; ``properties`` of the last message."""

    text: str
    error_type: str | None
    error_message: str
    properties: Mapping[str, str]
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A limit ran out. ``clock`` names it; ``sent`` is False when the request had not even left; ``chunks`` came."""

    clock: str
    sent: bool
    chunks: int = 0
    missing: int | None = None
    """Index of the chunk that never came while later ones did."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The reply was no reply. ``problem`` says why, without quoting it."""

    problem: str


@dataclass(frozen=True, slots=True)
class Overflow:
    """More came than the limits allow: ``limit`` names which."""

    limit: str


Settled = Answer | TimedOut | Unreadable | Overflow | TransportError | Throttled
"""How a request ended."""

_LATE, _ANSWERED = Disposition.LATE, Disposition.DUPLICATE


@dataclass(slots=True, eq=False)
class _Slot:
    """A request that waits. Subclasses say what a chunk does."""

    exchange: Exchange
    id: str
    deadline: float
    clock: str
    max_bytes: int
    ticket: Ticket | None = None
    timer: asyncio.TimerHandle | None = None
    settled: Settled | None = None
    next_chunk: int = 0
    chunks: int = 0
    size: int = 0
    ahead: dict[int, tuple[Reply, Mapping[str, str]]] | None = None
    ahead_size: int = 0
    heard: bool = False

    def offer(self, reply: Reply, properties: Mapping[str, str]) -> Disposition:
        """Take one reply; those with an index are put in order, and taken once."""
        index = whole_number(properties, Property.CHUNK)
        if index is None:
            self.take(reply, properties)
            return Disposition.MATCHED
        if index < self.next_chunk or (self.ahead is not None and index in self.ahead):
            return Disposition.DUPLICATE
        if index > self.next_chunk:
            if self.ahead is None:
                self.ahead = {}
            self.ahead[index] = (reply, properties)
            self.ahead_size += len(reply.response)
            if len(self.ahead) > MAX_AHEAD:
                self.settle(Overflow("chunks ahead of a missing one"))
            elif self.size + self.ahead_size > self.max_bytes:
                self.settle(Overflow("max-result"))
            return Disposition.MATCHED
        self.next_chunk += 1
        self.take(reply, properties)
        while self.ahead and self.settled is None and self.next_chunk in self.ahead:
            reply, properties = self.ahead.pop(self.next_chunk)
            self.ahead_size -= len(reply.response)
            self.next_chunk += 1
            self.take(reply, properties)
        return Disposition.MATCHED

    def take(self, reply: Reply, properties: Mapping[str, str]) -> None:
        """The next reply in order."""
        raise NotImplementedError

    def finished(self) -> None:
        """``settled`` has just been set."""
        raise NotImplementedError

    def failed(self, error: TransportError) -> None:
        """The publish failed (a transport's callback)."""
        self.settle(error)

    def expire(self) -> None:
        """The absolute limit ran out."""
        self.settle(self.timed_out(self.clock))

    def timed_out(self, clock: str) -> TimedOut:
        sent = not (self.ticket is not None and self.ticket.cancel())
        return TimedOut(clock, sent, self.chunks, self.next_chunk if self.ahead else None)

    def settle(self, settled: Settled) -> None:
        """The end; only the first one counts."""
        if self.settled is not None:
            return
        self.settled = settled
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.ahead = None
        self.exchange.bury(self.id, _ANSWERED if isinstance(settled, Answer | Unreadable) else _LATE)
        self.finished()

    def abandon(self) -> None:
        """The caller has gone: leave nothing behind."""
        if self.settled is None:
            if self.ticket is not None:
                self.ticket.cancel()
            self.settle(TimedOut("abandoned", sent=True, chunks=self.chunks))


@dataclass(slots=True, eq=False)
class _Single(_Slot):
    """A call that wants its whole answer at once."""

    waiter: asyncio.Future[Settled] = field(kw_only=True)
    texts: list[str] | None = None

    def take(self, reply: Reply, properties: Mapping[str, str]) -> None:
        self.chunks += 1
        text = reply.response
        if reply.error is not None:
            self.settle(Answer("", reply.error.type, reply.error.message, properties, self.chunks))
            return
        self.size += len(text)
        if self.size > self.max_bytes:
            self.settle(Overflow("max-result"))
            return
        if self.texts is None:
            if reply.end_of_stream:
                self.settle(Answer(text, None, "", properties))
                return
            self.texts = []
        self.texts.append(text)
        if reply.end_of_stream:
            self.settle(Answer("".join(self.texts), None, "", properties, self.chunks))

    def finished(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(self.settled)  # type: ignore[arg-type] # set by settle, the only caller


@dataclass(slots=True, eq=False)
class ReplyStream(_Slot):
    """The chunks of one request, in order, as they come: iterate, then look at ``settled``. Close it when you stop early.

    A limit, an error or the end ends the iteration; ``settled`` then says which. Chunks that came before are still given.
    """

    idle: float = field(kw_only=True)
    max_buffer: int = field(kw_only=True)
    buffer: deque[str] = field(default_factory=deque)
    waiter: asyncio.Future[None] | None = None
    idle_timer: asyncio.TimerHandle | None = None
    last: float = 0.0

    def take(self, reply: Reply, properties: Mapping[str, str]) -> None:
        self.last = self.exchange.loop.time()
        self.chunks += 1
        if reply.error is not None:
            self.settle(Answer("", reply.error.type, reply.error.message, properties, self.chunks))
            return
        if reply.response:
            self.size += len(reply.response)
            if self.size > self.max_bytes:
                self.settle(Overflow("max-result"))
                return
            if len(self.buffer) >= self.max_buffer:
                self.settle(Overflow("stream-buffer"))
                return
            self.buffer.append(reply.response)
        if reply.end_of_stream:
            self.settle(Answer("", None, "", properties, self.chunks))
        else:
            self._wake()

    def start(self) -> None:
        """Start the idle limit."""
        loop = self.exchange.loop
        self.last = loop.time()
        self.idle_timer = loop.call_at(self.last + self.idle, self._check_idle)

    def _check_idle(self) -> None:
        # Looked at once an idle limit, instead of a timer moved at every chunk.
        due = self.last + self.idle
        if self.settled is None:
            loop = self.exchange.loop
            if loop.time() >= due:
                self.settle(self.timed_out("stream-idle"))
            else:
                self.idle_timer = loop.call_at(due, self._check_idle)

    def finished(self) -> None:
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None
        self._wake()

    def _wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __aiter__(self) -> ReplyStream:
        return self

    async def __anext__(self) -> str:
        while not self.buffer:
            if self.settled is not None:
                raise StopAsyncIteration
            self.waiter = self.exchange.loop.create_future()
            await self.waiter
        return self.buffer.popleft()

    def close(self) -> None:
        """Stop listening. What still comes is counted as late."""
        self.abandon()
        self.buffer.clear()


class Exchange:
    """The table of requests that wait, for one dispatcher, on the running loop.

    Args:
        max_pending: requests that may wait at once.
        tombstone_age: seconds an ended id is remembered.
        max_tombstones: ended ids remembered at most.
    """

    def __init__(
        self,
        *,
        max_pending: int = MAX_PENDING,
        tombstone_age: float = TOMBSTONE_AGE_S,
        max_tombstones: int = MAX_TOMBSTONES,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.replies = dict.fromkeys(Disposition, 0)
        """Replies by disposition, since the start."""
        # 64 random bits name this table, a counter its requests: an id can never come twice.
        self._prefix = f"{secrets.token_hex(8)}-"
        self._count = 0
        self._pending: dict[str, _Slot] = {}
        self._max_pending = max_pending
        self._tombstones: dict[str, Disposition] = {}
        self._tombstone_queue: deque[tuple[float, str]] = deque()
        self._tombstone_age = tombstone_age
        self._max_tombstones = max_tombstones

    @property
    def pending(self) -> int:
        """Requests that wait for a reply."""
        return len(self._pending)

    @property
    def tombstones(self) -> int:
        """Ended ids that are remembered."""
        return len(self._tombstones)

    def new_id(self) -> str:
        """An id that was never used before."""
        self._count += 1
        return f"{self._prefix}{self._count:x}"

    async def request(
        self,
        id: str,
        publisher: Publisher,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        deadline: float,
        clock: str = "call",
        max_bytes: int,
    ) -> Settled:
        """Publish, and wait for the whole answer. ``properties`` hold ``id``; ``deadline`` is on the loop's clock."""
        slot = _Single(self, id, deadline, clock, max_bytes, waiter=self.loop.create_future())
        self._send(slot, publisher, payload, properties, flow)
        try:
            return await slot.waiter
        except asyncio.CancelledError:
            slot.abandon()
            raise

    def stream(
        self,
        id: str,
        publisher: Publisher,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        deadline: float,
        clock: str = "stream",
        idle: float,
        max_bytes: int,
        max_buffer: int,
    ) -> ReplyStream:
        """Publish, and give the chunks as they come. The caller closes the stream."""
        slot = ReplyStream(self, id, deadline, clock, max_bytes, idle=idle, max_buffer=max_buffer)
        self._send(slot, publisher, payload, properties, flow)
        if slot.settled is None:
            slot.start()
        return slot

    def _send(
        self, slot: _Slot, publisher: Publisher, payload: bytes, properties: Mapping[str, str], flow: str
    ) -> None:
        if len(self._pending) >= self._max_pending:
            slot.settle(
                Throttled(
                    "too-many-pending",
                    f"{self._max_pending:,} calls wait for replies already. Stop; come back after 1 s.",
                    retryable=True,
                    retry_after=1.0,
                    rejected_by="exchange",
                )
            )
            return
        if self.loop.time() >= slot.deadline:
            slot.settle(TimedOut(slot.clock, sent=False))
            return
        self._pending[slot.id] = slot
        slot.timer = self.loop.call_at(slot.deadline, slot.expire)
        try:
            slot.ticket = publisher.publish(payload, properties, flow=flow, on_failure=slot.failed)
        except TransportError as error:
            slot.settle(error)
        except BaseException:  # nobody's plan; but nothing may stay behind
            slot.abandon()
            raise

    def bury(self, id: str, why: Disposition) -> None:
        """Take ``id`` out of the table and remember it."""
        if self._pending.pop(id, None) is None:
            return  # it never got there: nothing can come for it
        now = self.loop.time()
        self._tombstones[id] = why
        queue = self._tombstone_queue
        queue.append((now + self._tombstone_age, id))
        while queue and (len(queue) > self._max_tombstones or queue[0][0] <= now):
            del self._tombstones[queue.popleft()[1]]

    def on_message(self, message: Message) -> None:
        """Take a reply from any topic (a transport's handler). Never raises, whatever the message holds."""
        self.receive(message)

    def receive(self, message: Message) -> Mapping[str, str]:
        """As :meth:`on_message`; returns the message's properties, none when they cannot be read."""
        try:
            properties: Mapping[str, str] = message.properties()
            if Property.TAKEN in properties:
                # Not a reply: the request has arrived, nothing more.
                slot = self._pending.get(properties.get(Property.ID, ""))
                if slot is not None and slot.ticket is not None:
                    slot.ticket.taken()
                return properties
        except Exception:  # whatever a peer's message makes the client raise
            properties = {}
        self.replies[self._dispose(message, properties)] += 1
        return properties

    def _dispose(self, message: Message, properties: Mapping[str, str]) -> Disposition:
        id = properties.get(Property.ID)
        if not isinstance(id, str) or not 0 < len(id) <= MAX_PROPERTY_CHARS:
            return Disposition.MALFORMED
        slot = self._pending.get(id)
        if slot is None:
            return self._tombstones.get(id, Disposition.UNKNOWN)
        if not slot.heard:
            slot.heard = True
            if slot.ticket is not None:
                slot.ticket.answered()
        try:
            reply = decode_reply(message.data())
        except MalformedMessage as error:
            slot.settle(Unreadable(str(error)))
            return Disposition.MALFORMED
        except Exception as error:  # as above: one message may cost its own call, never the pump
            slot.settle(Unreadable(type(error).__name__))
            return Disposition.MALFORMED
        return slot.offer(reply, properties)

    def close(self) -> None:
        """End everything that waits."""
        closed = TransportError("closed", "The dispatcher was closed while the call was under way.")
        for slot in list(self._pending.values()):
            slot.settle(closed)
