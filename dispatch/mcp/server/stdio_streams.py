"""The standard streams of this process as an MCP connection: stdout carries the protocol and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from mcp.server.stdio import stdio_server

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

    async def __anext__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            lines = await self._queue.get()
            self._room.release()
            if not lines:
                raise StopAsyncIteration
            self._lines = iter(lines)
            line = next(self._lines)
        return line.decode(errors="replace")


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

    async def write(self, text: str) -> None:
        """Write a message.

        Raises:
            OSError: the client has closed stdout.
        """
        written: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((text.encode(), written))
        await written

    async def flush(self) -> None:
        """Do nothing: :meth:`write` does not buffer."""

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


@contextlib.asynccontextmanager
async def open_stdio() -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams for :meth:`mcp.server.Server.run`."""
    with claim_standard_streams() as (source, target):
        async with open_descriptors(source, target) as streams:
            yield streams


@contextlib.asynccontextmanager
async def open_descriptors(source: int, target: int) -> AsyncIterator[tuple[Any, Any]]:
    """Yield streams of messages, one on each line, that are read from ``source`` and written to ``target``."""
    reading: Any = DescriptorLines(source)
    writing: Any = DescriptorWriter(target)
    async with stdio_server(stdin=reading, stdout=writing) as streams:
        yield streams
