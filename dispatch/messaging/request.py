"""How a request can end, and what can become of a reply: the values that an exchange speaks in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from dispatch._internal import Rejection, loop_clock
from dispatch.errors import TransportError
from dispatch.protocol.events import Failure
from dispatch.protocol.frames import CHUNK_BYTES
from dispatch.result import ResultContent
from dispatch.telemetry.observers import NO_PROPERTIES, Counter


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


class Tally:
    """Counts replies by disposition, for whoever wants to know it of one service.

    Attributes:
        counts: what is added to.
        answered, given_up: the fates of its requests. One of each for all of them: a hundred thousand are remembered, and a
            pair of its own for each would be looked through in every collection of garbage.
    """

    __slots__ = ("answered", "counts", "given_up")

    def __init__(self, counts: Mapping[Disposition, Counter]) -> None:
        self.counts = counts
        self.answered: Fate = (Disposition.DUPLICATE, self)
        self.given_up: Fate = (Disposition.LATE, self)


Fate = tuple[Disposition, Tally | None]
"""What a reply is that comes for a request which has ended, and who counts it."""
ANSWERED: Final[Fate] = (Disposition.DUPLICATE, None)
GIVEN_UP: Final[Fate] = (Disposition.LATE, None)
"""Of requests whose service counts nothing."""


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
    """A limit ran out. ``clock`` names it; ``sent`` is False when the request had not even left; ``chunks`` came."""

    clock: str
    sent: bool
    chunks: int = 0
    missing: int | None = None
    """Index of the chunk that never came while later ones did."""


class Unreadable(msgspec.Struct, frozen=True):
    """The reply was no reply. ``problem`` says why, without quoting it."""

    problem: str


STREAM_BUFFER_LIMIT = "stream buffer"
"""The limit of an :class:`Overflow` that a slow reader caused."""


class Overflow(msgspec.Struct, frozen=True):
    """More came than the limits allow: ``limit`` names which."""

    limit: str


class Lost(msgspec.Struct, frozen=True):
    """The session with the instance of the request ended for ``reason``. ``sent`` is False if the tool was not executed and
    never will be; ``chunks`` had arrived."""

    reason: Failure
    sent: bool
    chunks: int = 0


class Restarted(msgspec.Struct, frozen=True):
    """Another instance began a stream anew of which the caller has ``chunks`` chunks already."""

    chunks: int


class Closed(msgspec.Struct, frozen=True):
    """The dispatcher was closed; ``sent`` is False when it was closed before the request was sent."""

    sent: bool


Settled = Answer | TimedOut | Unreadable | Overflow | Lost | Restarted | Closed | Rejection | TransportError
"""How a request ended."""

# The chunks of one stream that wait for their reader, and the limit of idleness, of its tool and of its reader.


TOOL_IDLE = "stream-idle"
"""The limit of a tool that sends no chunk."""
READER_IDLE = "stream-reader"
"""The limit of a reader that reads no chunk while some wait."""


def _ignore(_size: int) -> None:
    """Do nothing."""


class ChunkBuffer:
    """Chunks in order. Its owner adds them and bounds :attr:`size`; its reader awaits :meth:`read`.

    The limit of idleness applies to the reader while chunks wait, and to the tool while none does: an abandoned stream ends
    like one whose tool hangs, and a slow reader is not the tool's fault.

    Args:
        idle: seconds; 0: no limit.
        on_idle: called once, with the limit that passed: :data:`TOOL_IDLE` or :data:`READER_IDLE`.
        on_read: called with the bytes of the chunks, as in :attr:`size`, that were read since it was called last.
        read_step: after how many of them.

    Attributes:
        size: bytes of the chunks that wait: the payload and :data:`CHUNK_BYTES` for each.
        has_ended: no chunk follows those that wait.
    """

    __slots__ = (
        "_chunks",
        "_idle",
        "_last",
        "_loop",
        "_now",
        "_on_idle",
        "_on_read",
        "_read",
        "_read_step",
        "_timer",
        "_waiter",
        "has_ended",
        "size",
    )

    def __init__(
        self,
        idle: float,
        on_idle: Callable[[str], object],
        on_read: Callable[[int], object] = _ignore,
        *,
        read_step: int = 1,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = loop_clock()
        self._idle = idle
        self._on_idle = on_idle
        self._on_read = on_read
        self._chunks: deque[tuple[str, int]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._read = 0
        self._read_step = read_step
        self.size = 0
        self.has_ended = False

    def start(self) -> None:
        """Begin to wait for the first chunk."""
        self._last = self._now()
        if self._idle:
            self._timer = self._loop.call_at(self._last + self._idle, self._check_idle)

    def _check_idle(self) -> None:
        # Checked once an idle limit, instead of a timer that each chunk moves.
        due = self._last + self._idle
        if self._now() < due:
            self._timer = self._loop.call_at(due, self._check_idle)
        else:
            self._timer = None
            self._on_idle(READER_IDLE if self._chunks else TOOL_IDLE)

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
