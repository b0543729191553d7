"""Correlation: one request and its reply, or its stream of replies, matched by the property ``id``.

Every reply that arrives is counted in exactly one :class:`Disposition`, and every request ends in exactly one of: its
answer, a limit that ran out, an unreadable reply, a transport error, its caller's cancellation. In each case its slot is
gone from the table at once and a tombstone remembers the id for a while, so that what comes later is known for what it is.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from dispatch._internal import DeadlineTimer, Rejection, loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.request import (
    ANSWERED,
    GIVEN_UP,
    STREAM_BUFFER_LIMIT,
    Answer,
    ChunkBuffer,
    Closed,
    Disposition,
    Fate,
    Lost,
    Overflow,
    Restarted,
    Settled,
    Tally,
    TimedOut,
    Unreadable,
)
from dispatch.messaging.wire import (
    SECRET_BYTES,
    ErrorInfo,
    MalformedMessageError,
    Property,
    Reply,
    Session,
    decode_reply,
    is_oversized,
    utf8_size,
    whole_number,
)
from dispatch.protocol.events import Failure
from dispatch.transports.base import Message, Publisher, Ticket

# Requests that wait: for one whole answer, or for a stream of chunks.
#
# A slot puts chunks in order, keeps its limits, and ends exactly once, leaving the table of its exchange at that moment.


MAX_AHEAD = 1_024
"""Chunks of a stream kept while an earlier one is missing."""

# Looked up once: it takes five times as long as the name of a module's own.
_MATCHED, _DUPLICATE = Disposition.MATCHED, Disposition.DUPLICATE
_READ = (Answer, Unreadable)


def create_answer(text: str, properties: Mapping[str, str], chunks: int = 1, error: ErrorInfo | None = None) -> Answer:
    """Return the answer in a reply with these ``properties``."""
    retry_after = whole_number(properties, Property.RETRY_AFTER_MS)
    return Answer(
        text,
        None if error is None else error.type,
        "" if error is None else error.message,
        chunks,
        properties.get(Property.REFUSED),
        None if retry_after is None else retry_after / 1000,
        properties.get(Property.INSTANCE),
        whole_number(properties, Property.IN_FLIGHT),
        trace_context=properties,
    )


class Place(Protocol):
    """A call's place among those in flight."""

    def suspend(self) -> None:
        """Let another call have the place: the request is where it cannot be reached. Idempotent."""

    def resume(self) -> None:
        """Have the place again. Idempotent."""


class Slot(msgspec.Struct, eq=False):
    """A request that waits. Subclasses say what a chunk does.

    Attributes:
        deadline: on the loop's clock; ``clock`` names that limit.
        max_bytes: largest reply, over all chunks.
        tally: counts what comes for it.
    """

    exchange: Correlator
    id: str
    deadline: float
    clock: str
    max_bytes: int
    tally: Tally | None = None
    is_shared: bool | None = None
    """Whether the first reply came on a topic that other agents share."""
    ticket: Ticket | None = None
    channel: object | None = None
    """On whose shared topic it was sent."""
    place: Place | None = None
    """Of its call in the bulkhead."""
    is_repeatable: bool = False
    """It may be sent to an instance, too."""
    settled: Settled | None = None
    next_chunk: int = 0
    chunks: int = 0
    size: int = 0
    ahead: dict[int, tuple[Reply, Mapping[str, str]]] | None = None
    ahead_size: int = 0
    instance: str | None = None
    """Whose chunks these are."""
    former: tuple[str, ...] = ()
    """Whose they no longer are."""

    def offer(self, reply: Reply, properties: Mapping[str, str]) -> Disposition:
        """Take one reply; those with an index are put in order, and taken once."""
        index = whole_number(properties, Property.CHUNK) if Property.CHUNK in properties else None
        if index is None:
            self.accept(reply, properties)
            return _MATCHED
        if not self.same(properties.get(Property.INSTANCE)):
            return _DUPLICATE
        if index < self.next_chunk or (self.ahead is not None and index in self.ahead):
            return _DUPLICATE
        if index > self.next_chunk:
            if self.ahead is None:
                self.ahead = {}
            self.ahead[index] = (reply, properties)
            self.ahead_size += utf8_size(reply.response)
            if len(self.ahead) > MAX_AHEAD:
                self.settle(Overflow("chunks ahead of a missing one"))
            elif self.size + self.ahead_size > self.max_bytes:
                self.settle(Overflow("max-response-bytes"))
            return _MATCHED
        self.next_chunk += 1
        self.accept(reply, properties)
        while self.ahead and self.settled is None and self.next_chunk in self.ahead:
            reply, properties = self.ahead.pop(self.next_chunk)
            self.ahead_size -= utf8_size(reply.response)
            self.next_chunk += 1
            self.accept(reply, properties)
        return _MATCHED

    def same(self, instance: str | None) -> bool:
        """Does a chunk of ``instance`` belong here? When one dies, its broker can give the request to another, which begins
        anew; halves of two answers make none."""
        if instance is None or instance == self.instance:
            return True
        if instance in self.former:
            return False
        if self.instance is not None:
            self.former = (*self.former, self.instance)
            self.restart()
        self.instance = instance
        return self.settled is None

    def restart(self) -> None:
        """Forget what came so far."""
        self.next_chunk = self.chunks = self.size = self.ahead_size = 0
        self.ahead = None

    def accept(self, reply: Reply, properties: Mapping[str, str]) -> None:
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
        if self.settled is None:
            self.settle(self.timed_out(self.clock))

    def timed_out(self, clock: str) -> TimedOut:
        sent = not (self.ticket is not None and self.ticket.cancel())
        return TimedOut(clock, sent, self.chunks, self.next_chunk if self.ahead else None)

    def settle(self, settled: Settled) -> None:
        """The end; only the first one counts."""
        if self.settled is not None:
            return
        self.settled = settled
        self.ahead = None
        of = self.tally
        if type(settled) in _READ:
            self.exchange.bury(self.id, ANSWERED if of is None else of.answered)
        else:
            self.exchange.bury(self.id, GIVEN_UP if of is None else of.given_up)
        self.finished()

    def abandon(self) -> None:
        """The caller has gone: leave nothing behind."""
        if self.settled is None:
            self.settle(self.timed_out("abandoned"))


class Single(Slot, eq=False, kw_only=True):
    """A call that wants its whole answer at once."""

    waiter: asyncio.Future[Settled]
    texts: list[str] | None = None

    def restart(self) -> None:
        super().restart()
        self.texts = None

    def accept(self, reply: Reply, properties: Mapping[str, str]) -> None:
        self.chunks += 1
        text = reply.response
        if reply.error is not None:
            self.settle(create_answer("", properties, self.chunks, reply.error))
            return
        self.size += utf8_size(text)
        if self.size > self.max_bytes:
            self.settle(Overflow("max-response-bytes"))
            return
        if self.texts is None:
            if reply.end_of_stream:
                self.settle(create_answer(text, properties))
                return
            self.texts = []
        self.texts.append(text)
        if reply.end_of_stream:
            self.settle(create_answer("".join(self.texts), properties, self.chunks))

    def finished(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(self.settled)  # type: ignore[arg-type] # set by settle, the only caller


class ReplyStream(Slot, eq=False, kw_only=True):
    """The chunks of one request, in order, as they come: iterate, then look at ``settled``. Close it when you stop early.

    A limit, an error or the end ends the iteration; ``settled`` then says which. Chunks that came before are still given.

    Attributes:
        idle: seconds without a chunk of the tool, or without a read while chunks wait.
        max_buffer: bytes of chunks that wait for the reader: one that is further behind gets an error, because nothing slows
            a third-party service down.
    """

    idle: float
    max_buffer: int
    buffer: ChunkBuffer = None  # type: ignore[assignment] # set by __post_init__
    begun: list[str] = msgspec.field(default_factory=list)
    """Parts of a chunk that is not whole."""
    on_settled: Callable[[], object] | None = None
    """Called once ``settled`` is set."""

    def accept(self, reply: Reply, properties: Mapping[str, str]) -> None:
        self.buffer.record_progress()
        self.chunks += 1
        if reply.error is not None:
            self.settle(create_answer("", properties, self.chunks, reply.error))
            return
        if reply.response:
            self.size += utf8_size(reply.response)
            if self.size > self.max_bytes:
                self.settle(Overflow("max-response-bytes"))
                return
            if Property.MORE in properties and not reply.end_of_stream:
                self.begun.append(reply.response)
                return
            text = reply.response
            if self.begun:
                text = "".join((*self.begun, text))
                self.begun.clear()
            if self.buffer.size >= self.max_buffer:
                self.settle(Overflow(STREAM_BUFFER_LIMIT))
                return
            self.buffer.add(text, utf8_size(text))
        if reply.end_of_stream:
            self.settle(create_answer("", properties, self.chunks))

    def restart(self) -> None:
        if self.chunks == len(self.begun):  # nothing of it was given yet
            self.begun.clear()
            super().restart()
            return
        self.settle(Restarted(self.chunks))

    def __post_init__(self) -> None:
        self.buffer = ChunkBuffer(self.idle, self._on_idle)
        self.buffer.start()

    def _on_idle(self, clock: str) -> None:
        self.settle(self.timed_out(clock))

    def finished(self) -> None:
        self.buffer.end()
        if self.on_settled is not None:
            self.on_settled()

    def __aiter__(self) -> ReplyStream:
        return self

    def __anext__(self) -> Coroutine[Any, Any, str]:
        return self.buffer.read()

    def close(self) -> None:
        """Stop listening. What still comes is counted as late."""
        self.abandon()
        self.buffer.clear()


TOMBSTONE_AGE_S = 60.0
"""How long an ended id is remembered. Late replies come within the service's own time limit; a minute covers most."""
MAX_TOMBSTONES = 100_000
"""Ids remembered at most: about 20 MB."""
_NONCE_BYTES = 6
"""Random bytes in each id: who reads one reply on a shared response topic cannot guess the next request's id."""
MAX_PENDING = 65_536
"""Requests that may wait for replies at once."""
RETRY_AFTER_S = 1.0
"""Seconds after which a caller may call again when the table of pending requests was full."""


class Correlator:
    """The table of requests that wait, for one dispatcher, on the running loop.

    Args:
        max_pending: requests that may wait at once.
        tombstone_age: seconds an ended id is remembered.
        max_tombstones: ended ids remembered at most.
        strange: counts replies that belong to no request we know of.
    """

    def __init__(
        self,
        *,
        max_pending: int = MAX_PENDING,
        tombstone_age: float = TOMBSTONE_AGE_S,
        max_tombstones: int = MAX_TOMBSTONES,
        strange: Tally | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = loop_clock()
        """The loop's clock."""
        self.replies = dict.fromkeys(Disposition, 0)
        """Replies by disposition, since the start."""
        self.received_bytes = 0
        """Payloads of replies that were waited for, since the start."""
        self.session = Session(os.urandom(SECRET_BYTES).hex())
        """Whose requests these are."""
        self._count = 0
        self._pending: dict[str, Slot] = {}
        self._deadlines = DeadlineTimer(self._pending.values(), attrgetter("deadline"), Slot.expire)
        self._max_pending = max_pending
        self._closed = False
        self._strange = strange
        self._tombstones: dict[str, Fate] = {}
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
        """Return an id that was never used before: the session's key, a number that counts up, and random digits."""
        self._count += 1
        return f"{self.session.prefix}{self._count:x}-{os.urandom(_NONCE_BYTES).hex()}"

    def send(self, slot: Slot, publisher: Publisher, payload: bytes, properties: Mapping[str, str], flow: str) -> None:
        """Publish the request of ``slot``; ``properties`` hold its id. It may be settled at once."""
        if self._closed:  # nobody would take its reply
            slot.settle(Closed(sent=False))
            return
        if len(self._pending) >= self._max_pending:
            slot.settle(Rejection("exchange", "pending-limit", RETRY_AFTER_S))
            return
        if self.now() >= slot.deadline:
            slot.settle(TimedOut(slot.clock, sent=False))
            return
        self._pending[slot.id] = slot
        self._deadlines.watch(slot.deadline)
        try:
            slot.ticket = publisher.publish(payload, properties, flow=flow, on_failure=slot.failed)
        except TransportError as error:
            slot.settle(error)
        except BaseException:  # nobody's plan; but nothing may stay behind
            slot.abandon()
            raise

    def on_instance(self, channel: object) -> None:
        """An instance of dispatch's own is known on ``channel`` now. What was sent to the shared topic before has probably
        reached nothing: repeatable requests end, to be sent again, and the others hold no place."""
        for slot in list(self._pending.values()):
            if slot.channel is not channel or slot.chunks:
                continue
            if slot.is_repeatable:
                slot.settle(Lost(Failure.REPLACED, sent=False))
            elif slot.place is not None:
                slot.place.suspend()

    def bury(self, id: str, fate: Fate) -> None:
        """Take ``id`` out of the table and remember it."""
        if self._pending.pop(id, None) is None:
            return  # it never got there: nothing can come for it
        now = self.now()
        self._tombstones[id] = fate
        queue = self._tombstone_queue
        queue.append((now + self._tombstone_age, id))
        while queue and (len(queue) > self._max_tombstones or queue[0][0] <= now):
            del self._tombstones[queue.popleft()[1]]
        if not self._pending:
            self._deadlines.close()

    def on_message(self, message: Message) -> None:
        """Process a message of a response topic that other agents share. Never raises, whatever the message holds."""
        self.receive(message, read_properties(message), is_shared=True)

    def receive(self, message: Message, properties: Mapping[str, str], *, is_shared: bool = False) -> None:
        """As :meth:`on_message`, for a message of any topic, with its properties; none when they cannot be read."""
        if Property.HERE not in properties:  # an announcement is no reply
            id = properties.get(Property.ID)
            slot = self._pending.get(id) if type(id) is str else None
            if slot is not None:
                disposition, tally = self._process_reply(slot, message, properties, is_shared), slot.tally
            else:
                disposition, tally = self._stray(id)
            self.replies[disposition] += 1
            if tally is not None:
                tally.counts[disposition].value += 1

    def _stray(self, id: object) -> Fate:
        """Nobody waits for this reply."""
        if not isinstance(id, str) or not id or is_oversized(id):
            return Disposition.MALFORMED, self._strange
        return self._tombstones.get(id) or (Disposition.UNKNOWN, self._strange)

    def _process_reply(
        self, slot: Slot, message: Message, properties: Mapping[str, str], is_shared: bool
    ) -> Disposition:
        if is_shared and slot.is_shared is False:
            # Any agent can make a service answer any id on a shared topic; its instance answers on the reply topic.
            return Disposition.UNKNOWN
        try:
            payload = message.data()
            self.received_bytes += len(payload)
            reply = decode_reply(payload)
        except MalformedMessageError as error:
            slot.settle(Unreadable(str(error)))
            return Disposition.MALFORMED
        except Exception as error:  # as above: one message may cost its own call, never the pump
            slot.settle(Unreadable(type(error).__name__))
            return Disposition.MALFORMED
        if slot.is_shared is None:
            slot.is_shared = is_shared
        elif slot.is_shared is not is_shared and Property.CHUNK not in properties:
            return Disposition.DUPLICATE  # a stream without numbers: the topic of its first part has all
        return slot.offer(reply, properties)

    def close(self) -> None:
        """End everything that waits, and begin nothing more."""
        self._closed = True
        closed = Closed(sent=True)
        for slot in list(self._pending.values()):
            slot.settle(closed)


def read_properties(message: Message) -> Mapping[str, str]:
    """The properties of ``message``; none, whatever a peer's message makes the client raise."""
    try:
        properties: Mapping[str, str] = message.properties()
    except Exception:
        return {}
    return properties
