"""Requests that wait: for one whole answer, or for a stream of chunks.

A slot puts chunks in order, keeps its limits, and ends exactly once, leaving the table of its exchange at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dispatch.errors import TransportError
from dispatch.messaging.rpc.chunk_buffer import ChunkBuffer
from dispatch.messaging.rpc.exchange_outcome import (
    ANSWERED,
    GIVEN_UP,
    STREAM_BUFFER_LIMIT,
    Answer,
    Disposition,
    Overflow,
    Restarted,
    Settled,
    Tally,
    TimedOut,
    Unreadable,
)
from dispatch.messaging.wire.codec import ErrorInfo, Reply
from dispatch.messaging.wire.properties import Property, utf8_size, whole_number
from dispatch.transports.base import Ticket

if TYPE_CHECKING:
    from dispatch.messaging.rpc.correlation import Correlator

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
