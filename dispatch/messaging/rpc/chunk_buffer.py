"""The chunks of one stream that wait for their reader, and the limit of idleness, of its tool and of its reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from dispatch._internal.clock import loop_clock
from dispatch.protocol.wire.frames import CHUNK_BYTES

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
