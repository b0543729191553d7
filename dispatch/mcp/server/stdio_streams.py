"""The standard streams of this process as an MCP connection: stdout carries the protocol and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Final, Self

import anyio
from mcp.shared.message import SessionMessage

from dispatch._internal.utf8 import encode_text
from dispatch.mcp.server.messages import UnreadableMessageError, read_message, write_message

logger = logging.getLogger("dispatch.mcp")

CHUNK_BYTES: Final = 65_536


class DescriptorLines:
    """Reads lines in a daemon thread: unlike the threads of the SDK, it delays neither a cancellation nor the exit while the
    client sends nothing.

    Args:
        source: descriptor.
    """

    def __init__(self, source: int) -> None:
        self._source = source
        self._queue: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._room = threading.Semaphore(2)  # chunks of lines: a fast client waits
        self._loop = asyncio.get_running_loop()
        self._lines: Iterator[bytes] = iter(())
        self._is_ended = False
        threading.Thread(target=self._read, name="dispatch-mcp-stdin", daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            rest = bytearray()
            while chunk := self._read_chunk():
                rest += chunk
                if b"\n" in chunk:
                    *lines, end = bytes(rest).split(b"\n")
                    rest = bytearray(end)
                    self._hand_over(lines)
            if rest:  # without a line end
                self._hand_over([bytes(rest)])
            self._hand_over([])

    def _read_chunk(self) -> bytes:
        try:
            return os.read(self._source, CHUNK_BYTES)
        except OSError:
            return b""

    def _hand_over(self, lines: list[bytes]) -> None:
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._queue.put_nowait, lines)

    def __aiter__(self) -> DescriptorLines:
        return self

    async def __anext__(self) -> bytes:
        line = next(self._lines, None)
        if line is None:
            lines = [] if self._is_ended else await self._queue.get()
            if not lines:
                self._is_ended = True  # a server asks again
                raise StopAsyncIteration
            self._room.release()
            self._lines = iter(lines)
            line = next(self._lines)
        return line

    def end(self) -> None:
        """End the lines behind those that have arrived."""
        self._queue.put_nowait([])


class DescriptorWriter:
    """Writes whole messages in a daemon thread: a client that stops reading blocks no other work.

    Args:
        target: descriptor.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._write_all, name="dispatch-mcp-stdout", daemon=True).start()

    async def write(self, text: str | bytes) -> None:
        """Write a message, with its line end.

        Raises:
            OSError: the client has closed stdout.
        """
        written: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((encode_text(text) if isinstance(text, str) else text, written))
        await written

    def _write_all(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            while True:
                data, written = self._queue.get()
                error: OSError | None = None
                try:
                    while data:
                        data = data[os.write(self._target, data) :]
                except OSError as failure:
                    error = failure
                self._loop.call_soon_threadsafe(_settle, written, error)


def _settle(future: asyncio.Future[None], error: OSError | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


@contextlib.contextmanager
def claim_standard_streams() -> Iterator[tuple[int, int]]:
    """Yield descriptors of stdin and stdout for the protocol. Meanwhile descriptor 0 is empty and descriptor 1 is stderr, so
    that neither a ``print`` nor a child process reaches the protocol.

    The descriptors stay open afterwards: a thread may still read or write there, and their numbers must not be used again.
    """
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
        os.dup2(2, 1)
        yield source, target
    finally:
        sys.stdout.flush()
        os.dup2(source, 0)
        os.dup2(target, 1)
        os.close(null)


class StdioMessages:
    """Messages, one on each line, as the two streams that a server of the SDK reads and writes.

    The SDK's own streams drop a request that they cannot read, and end the server at a message that they cannot write.

    Args:
        source: descriptor to read.
        target: descriptor to write.
    """

    def __init__(self, source: int, target: int) -> None:
        self._lines = DescriptorLines(source)
        self._writer = DescriptorWriter(target)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message of the client; a request that is not readable is answered.

        Raises:
            anyio.EndOfStream: the client has closed stdin.
        """
        async for line in self._lines:
            if not line.strip():
                continue
            try:
                return SessionMessage(read_message(line))
            except UnreadableMessageError as error:
                logger.debug("a message of the client is not readable: %s", error)
                if error.is_answered:
                    with contextlib.suppress(anyio.BrokenResourceError):
                        await self._write(error.answer)
        raise anyio.EndOfStream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message to the client.

        Raises:
            anyio.BrokenResourceError: the client has closed stdout.
        """
        await self._write(write_message(item.message))

    async def _write(self, message: bytes) -> None:
        try:
            await self._writer.write(message + b"\n")
        except OSError:  # a client that reads nothing has no use for the answers to further requests
            self._lines.end()
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Do nothing: the descriptors belong to the caller."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


Streams = tuple[StdioMessages, StdioMessages]
"""To read and to write: the arguments of :meth:`mcp.server.Server.run`."""


@contextlib.asynccontextmanager
async def open_stdio() -> AsyncIterator[Streams]:
    """Yield the streams of this process."""
    with claim_standard_streams() as (source, target):
        async with open_descriptors(source, target) as streams:
            yield streams


@contextlib.asynccontextmanager
async def open_descriptors(source: int, target: int) -> AsyncIterator[Streams]:
    """Yield streams of messages that are read from ``source`` and written to ``target``."""
    messages = StdioMessages(source, target)
    yield messages, messages
