"""A request that waits: how it gets its reply, whole or as a stream of chunks, and how it can end.

Whatever executes it (an instance in a session, a shared topic, this process) is its :class:`Executor`, and settles it once.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from dispatch._internal import Clock, Rejection, loop_clock
from dispatch.errors import DispatchError
from dispatch.protocol.events import Failure, OutgoingRequest
from dispatch.protocol.frames import CHUNK_BYTES
from dispatch.results import ResultContent
from dispatch.telemetry.observers import NO_PROPERTIES, Counter


class Disposition(StrEnum):
    """What a reply is counted as."""

    MATCHED = "matched"
    LATE = "late"
    """Its caller had given up (timeout, cancellation)."""
    DUPLICATE = "duplicate"
    """Its request has its reply already, or the chunk has arrived before."""
    UNKNOWN = "unknown"
    """No remembered request has its id; on a shared response topic, also the replies to other agents."""
    MALFORMED = "malformed"
    """No id, or not readable."""


class Tally:
    """Counts the replies of one service by disposition.

    Attributes:
        counts: the counters.
        answered, given_up: how a later reply to one of its requests is counted. Shared by all of them: a pair for each of
            100,000 would be scanned by every garbage collection.
    """

    def __init__(self, counts: Mapping[Disposition, Counter]) -> None:
        self.counts = counts
        self.answered: Fate = (Disposition.DUPLICATE, self)
        self.given_up: Fate = (Disposition.LATE, self)


Fate = tuple[Disposition, Tally | None]
"""How a reply is counted whose request has ended, and by which tally."""
ANSWERED: Final[Fate] = (Disposition.DUPLICATE, None)
GIVEN_UP: Final[Fate] = (Disposition.LATE, None)
"""Of requests without a tally."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A complete reply.

    Attributes:
        text: of the whole result; ``""`` for a stream, and for an error.
        error_type, error_message: the service's error; the type is None for a result.
        chunks: in which the reply arrived.
        refused: why the service did not execute the request, or not to its end: a value of
            :class:`~dispatch.messaging.wire.Refusal`.
        retry_after: seconds until a retry makes sense, with a refusal.
        instance: name of the instance that replied.
        in_flight: requests that the instance was executing when it replied.
        content: what a local tool returned besides the text.
        trace_context: of the span that sent the reply, as ``traceparent`` and ``tracestate``; other keys are ignored.
    """

    text: str
    error_type: str | None = None
    error_message: str = ""
    chunks: int = 1
    refused: str | None = None
    retry_after: float | None = None
    instance: str | None = None
    in_flight: int | None = None
    content: ResultContent | None = None
    trace_context: Mapping[str, str] = NO_PROPERTIES


class TimedOut(msgspec.Struct, frozen=True):
    """A limit passed. ``limit_name`` names it; ``may_have_run`` is False if the tool surely does not run;
    ``chunks`` had arrived."""

    limit_name: str
    may_have_run: bool
    chunks: int = 0
    missing: int | None = None
    """Index of the chunk that is missing while later ones arrived."""


class Unreadable(msgspec.Struct, frozen=True):
    """The reply cannot be read. ``problem`` says why, without quoting it."""

    problem: str


STREAM_BUFFER_LIMIT = "stream buffer"
"""The limit of an :class:`Overflow` that a slow reader caused."""


class Overflow(msgspec.Struct, frozen=True):
    """The reply exceeds a limit, which ``limit`` names."""

    limit: str


class Lost(msgspec.Struct, frozen=True):
    """The session with the instance of the request ended for ``reason``. ``may_have_run`` is False if the tool was not
    executed and never will be; ``chunks`` had arrived."""

    reason: Failure
    may_have_run: bool
    chunks: int = 0


class Restarted(msgspec.Struct, frozen=True):
    """Another instance began a stream anew of which the caller has ``chunks`` chunks already."""

    chunks: int


class Closed(msgspec.Struct, frozen=True):
    """The dispatcher was closed; ``may_have_run`` is False when it was closed before the request was sent."""

    may_have_run: bool


class Refused(msgspec.Struct, frozen=True):
    """What executes tools in this process refuses the request, with the error that its caller gets: the tool was not
    executed. ``elsewhere``: another instance may execute it."""

    error: DispatchError
    elsewhere: bool = False


Settled = Answer | TimedOut | Unreadable | Overflow | Lost | Restarted | Closed | Rejection | Refused | DispatchError
"""How a request ended."""

# The chunks of one stream that wait for their reader, and the limit of idleness, of its tool and of its reader.


TOOL_IDLE = "stream-idle"
"""The limit of a tool that sends no chunk."""
READER_IDLE = "stream-reader"
"""The limit of a reader that reads no chunk while some wait."""
PAUSED_S = 1.0
"""Seconds without a read after which a reader that its tool waits for has paused, and its call needs no place in the
bulkhead. Shorter: a reader that is merely slower than its tool would give its place away again and again."""


@dataclass(slots=True, eq=False)  # perf: a struct is slower to write to
class ChunkBuffer:
    """Chunks in order. Its owner adds them and bounds :attr:`size`; its reader awaits :meth:`read`.

    The limit of idleness applies to the reader while chunks wait, and to the tool while none does: an abandoned stream ends
    like one whose tool hangs, and a slow reader is not the tool's fault.

    Args:
        idle: seconds; 0: no limit.
        on_idle: called once, with the limit that passed: :data:`TOOL_IDLE` or :data:`READER_IDLE`.
        on_read: called with the bytes of the chunks, as in :attr:`size`, that were read since it was called last, in steps
            that :meth:`start` is given.
        on_pause: called with True, each second, while the tool waits for a reader that has read nothing for
            :data:`PAUSED_S`; with False once it reads again.
        loop, now: the running one, and its clock.

    Attributes:
        size: bytes of the chunks that wait: the payload and :data:`CHUNK_BYTES` for each.
        has_ended: no chunk follows those that wait.
    """

    _idle: float
    _on_idle: Callable[[str], object]
    _on_read: Callable[[int], object]
    _on_pause: Callable[[bool], object]
    _loop: asyncio.AbstractEventLoop
    _now: Clock
    _chunks: deque[tuple[str, int]] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _last: float = 0.0
    _read: int = 0
    _read_step: int = 1
    _full: float = math.inf
    _is_paused: bool = False
    size: int = 0
    has_ended: bool = False

    def start(self, read_step: int, full: float) -> None:
        """Begin to wait for the first chunk. ``read_step``: bytes between two calls of ``on_read``; ``full``: bytes from
        which on the tool waits for its reader, infinite: never."""
        self._read_step = read_step
        self._full = full
        self._last = self._now()
        if self._timer is not None:
            self._timer.cancel()
        self._set_timer(self._last)

    def limit_idle(self, idle: float) -> None:
        """Limit the time between two chunks from now on, ``idle`` seconds; 0: no limit. The stream has not ended."""
        self._idle = idle
        self.start(self._read_step, self._full)

    def _set_timer(self, now: float) -> None:
        # Checked once a second, or once an idle limit, instead of a timer that each chunk moves.
        due = self._last + self._idle if self._idle else math.inf
        if self._full < math.inf:
            due = min(due, now + PAUSED_S)
        self._timer = None if due == math.inf else self._loop.call_at(due, self._check)

    def _check(self) -> None:
        now = self._now()
        if self._idle and now >= self._last + self._idle:
            self._timer = None
            self._on_idle(READER_IDLE if self._chunks else TOOL_IDLE)
            return
        if self.size + self._read >= self._full and now >= self._last + PAUSED_S:
            self._is_paused = True
            self._on_pause(True)
        self._set_timer(now)

    @property
    def idle_since(self) -> float:
        """Since when the reader waits for a chunk; infinite: some wait for it."""
        return math.inf if self._chunks or self.has_ended else self._last

    def record_progress(self) -> None:
        """Record that the tool has sent something, perhaps no text."""
        if not self._chunks:
            self._last = self._now()

    def add(self, text: str, size: int) -> None:
        """Add a chunk; ``size``: bytes of its payload."""
        self.record_progress()
        size += CHUNK_BYTES
        self._chunks.append((text, size))
        self.size += size
        if self._waiter is not None:
            self._wake()

    async def read(self) -> str:
        """Wait for the next chunk, and remove it.

        Raises:
            StopAsyncIteration: there is none.
        """
        while not self._chunks:
            if self.has_ended:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter
        text, size = self._chunks.popleft()
        self.size -= size
        self._last = self._now()
        if self._is_paused:
            self._is_paused = False
            self._on_pause(False)
        self._read += size
        if self._read >= self._read_step:
            size, self._read = self._read, 0
            self._on_read(size)
        return text

    def end(self) -> None:
        """Let the reader read what waits, and nothing more. Nothing is idle any more."""
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def clear(self) -> None:
        """Drop what waits: the reader has gone."""
        self._chunks.clear()
        self.size = 0

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


# A request, as its caller waits for it.


class Place(Protocol):
    """The place of a call in the bulkhead.

    Attributes:
        since: when the call had it, or went to another instance; on the loop's clock.
    """

    since: float

    def suspend(self) -> None:
        """Let another call have the place: the request is where it cannot be reached. Idempotent."""

    def pause(self) -> None:
        """Let another call have the place, unless many have let go of theirs already: the tool waits for its reader.
        Idempotent."""

    def resume(self) -> None:
        """Have the place again. Idempotent."""


class Executor(Protocol):
    """What a request was sent to."""

    def cancel(self, request: Request) -> bool:
        """Withdraw a request, or have its execution cancelled. Return whether the tool may have run, or may still run."""

    def on_settled(self, request: Request) -> None:
        """The request has ended; called once, before its caller learns of it."""

    def on_read(self, request: Request, size: int) -> None:
        """The caller has read chunks of ``size`` bytes, the payload and :data:`CHUNK_BYTES` of each."""


class Request(OutgoingRequest):
    """A request until it is settled, by the first of: its reply, an error, a limit, its caller's cancellation.

    Await it for the whole reply. A caller that reads a stream iterates over its chunks, in order, and reads ``settled``
    then: chunks that arrived before the end are still given. A stream that is abandoned early is closed.

    Attributes:
        limit_name: of the limit that the deadline is.
        tally: counts its replies.
        idle: the caller reads a stream; seconds without a chunk of the tool, or without a read while chunks wait, 0: no
            limit. None: it wants the whole reply.
        id: unique in all processes.
        tool: name of the tool.
        payload: the call, encoded.
        began: when its attempt began, on the loop's clock.
        properties: of the message, or headers in a session: the trace context.
        attempt: its number, from 1.
        key: idempotency key of the call; None: it has none.
        run_until: the deadline for the tool, where it is later than the request's own; None: the same.
        is_repeatable: the tool may be executed again: it may be sent to an instance after it was sent to a shared topic.
        is_redeliverable: the broker may give it to another instance if the one that has it dies.
        executor: what it was sent to; None: nothing yet.
        place: of its call in the bulkhead, which other calls may have while the executor cannot be reached, or waits for a
            reader that has paused.
        instance: name of the instance of whose stream a chunk has arrived over a shared topic; None: it says none.
        settled: how it ended; None: it has not.
        on_settled: called once ``settled`` is set.
        missing: index of the chunk that is missing while later ones arrived; None: none is known to be.
        buffer: the chunks of a stream that wait for their reader; None: the whole reply is wanted.
        waiter: of the caller that wants the whole reply, or cannot know whether it is a stream. perf: a caller that knows
            the event loop gives it; asking for the running loop is a system call.
    """

    limit_name: str = "call"
    tally: Tally | None = None
    idle: float | None = None
    id: str = ""
    tool: str = ""
    payload: bytes = b""
    began: float = 0.0
    properties: Mapping[str, str] = NO_PROPERTIES
    attempt: int = 1
    key: str | None = None
    run_until: float | None = None
    is_repeatable: bool = False
    is_redeliverable: bool = False
    place: Place | None = None
    executor: Executor | None = None
    instance: str | None = None
    settled: Settled | None = None
    on_settled: Callable[[], object] | None = None
    missing: int | None = None
    buffer: ChunkBuffer | None = None
    waiter: asyncio.Future[Settled | None] | None = None
    _texts: list[str] | None = None

    def __post_init__(self) -> None:
        if self.idle is not None:
            loop = asyncio.get_running_loop() if self.waiter is None else self.waiter.get_loop()
            now = loop_clock(loop)
            self.buffer = ChunkBuffer(self.idle, self.expire, self._on_read, self._on_pause, loop, now)
        elif self.waiter is None:
            self.waiter = asyncio.get_running_loop().create_future()

    # -- the caller ---------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Settled | None]:
        """Wait for the end; None: it is a stream, whose first chunk has arrived. A cancellation of the caller abandons the
        request."""
        assert self.waiter is not None, "a stream is read, not awaited"
        try:
            return (yield from self.waiter.__await__())
        except asyncio.CancelledError:
            self.abandon()
            raise

    def __aiter__(self) -> Request:
        return self

    async def __anext__(self) -> str:
        assert self.buffer is not None, "the whole reply is awaited, not read"
        return await self.buffer.read()

    def _on_read(self, size: int) -> None:
        if self.executor is not None:
            self.executor.on_read(self, size)

    def _on_pause(self, is_paused: bool) -> None:
        if self.place is not None:
            if is_paused:
                self.place.pause()
            else:
                self.place.resume()

    def close(self) -> None:
        """Stop reading a stream: its tool is cancelled, and chunks that wait are dropped."""
        self.abandon()
        if self.buffer is not None:
            self.buffer.clear()

    def abandon(self) -> None:
        """End and cancel the request: its caller no longer waits."""
        if self.settled is None:
            self.expire("abandoned")

    # -- the executor -------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The chunks of a whole reply, joined; of a stream ``""``."""
        return "".join(self._texts or ())

    def begin(self, executor: Executor, read_step: int = 1, full: float = math.inf) -> None:
        """Record that ``executor`` has the request, and begin to wait for the first chunk of a stream. See
        :meth:`ChunkBuffer.start`."""
        self.executor = executor
        if self.buffer is not None:
            self.buffer.start(read_step, full)

    @property
    def idle_since(self) -> float:
        """Since when a stream that has begun waits for its tool; infinite: it does not."""
        return self.buffer.idle_since if self.buffer is not None and self.chunks else math.inf

    @property
    def is_undecided(self) -> bool:
        """Whether the caller waits to see if the reply is a stream: if it is not, the answer has its text."""
        return self.buffer is not None and self.waiter is not None and not self.waiter.done()

    def begin_stream(self, deadline: float, limit_name: str, idle: float) -> None:
        """The first chunk was read: the limits of a stream are in force, in place of those of a call."""
        if self.settled is None and self.buffer is not None:
            self.deadline = self.last_deadline = deadline
            self.limit_name = limit_name
            self.buffer.limit_idle(idle)

    def add_text(self, text: str, size: int) -> None:
        """Add a chunk, or a part of the whole reply; ``size``: bytes of its payload."""
        buffer = self.buffer
        if buffer is None:
            if self._texts is None:
                self._texts = []
            self._texts.append(text)
            self._on_read(size + CHUNK_BYTES)
        elif text and self.settled is None:
            buffer.add(text, size)
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(None)
        else:
            buffer.record_progress()
            self._on_read(size + CHUNK_BYTES)

    def drop_texts(self) -> None:
        """Forget the parts of a whole reply: another instance begins it anew."""
        self._texts = None

    def expire(self, limit_name: str) -> None:
        """End the request, because the limit that ``limit_name`` names has passed."""
        if self.settled is None:
            may_have_run = self.executor is not None and self.executor.cancel(self)
            self.settle(TimedOut(limit_name, may_have_run, self.chunks, self.missing))

    def settle(self, settled: Settled) -> None:
        """End with ``settled``; only the first end counts."""
        if self.settled is not None:
            return
        self.settled = settled
        if self.executor is not None:
            self.executor.on_settled(self)
        if self.buffer is not None:
            self.buffer.end()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(settled)
        if self.on_settled is not None:
            self.on_settled()
