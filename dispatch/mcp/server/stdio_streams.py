"""The standard streams of this process as an MCP connection: stdout carries the protocol and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import IO, Any

from mcp.server.stdio import stdio_server

from dispatch._internal.daemon_executor import DaemonThreads


class _Lines:
    """Reads lines in daemon threads: unlike the threads of the SDK, they delay neither a cancellation nor the exit while the
    client sends nothing."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=64)
        self._loop = asyncio.get_running_loop()
        self._reading = DaemonThreads("dispatch-mcp-stdin").submit(self._read)

    def _read(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            while True:
                try:
                    line = self._file.readline()
                except (OSError, ValueError):
                    line = b""
                asyncio.run_coroutine_threadsafe(self._queue.put(line), self._loop).result()
                if not line:
                    return

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        line = await self._queue.get()
        if not line:
            raise StopAsyncIteration
        return line.decode(errors="replace")


class _Writer:
    """Writes whole messages in daemon threads, one at a time: a client that stops reading blocks no other work."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._threads = DaemonThreads("dispatch-mcp-stdout")

    async def write(self, text: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._write, text.encode())

    async def flush(self) -> None:
        """Do nothing: :meth:`write` flushes."""

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()


@contextlib.contextmanager
def claim_standard_streams() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield stdin and stdout as files of the protocol. Meanwhile descriptor 0 is empty and descriptor 1 is stderr, so that
    neither a ``print`` nor a child process reaches the protocol."""
    sys.stdout.flush()
    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
        os.dup2(2, 1)
        # closefd=False: a thread may still read or write there, and the number must not be used again meanwhile.
        with open(stdin, "rb", closefd=False) as source, open(stdout, "wb", closefd=False) as target:
            yield source, target
    finally:
        sys.stdout.flush()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(null)


@contextlib.asynccontextmanager
async def open_stdio() -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams for :meth:`mcp.server.Server.run`."""
    with claim_standard_streams() as (source, target):
        async with stdio_server(stdin=_Lines(source), stdout=_Writer(target)) as streams:  # type: ignore[arg-type] # it iterates and writes only
            yield streams
