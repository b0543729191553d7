"""A TCP relay between a client and what it connects to, which cuts and resets connections."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import AsyncExitStack

from benchmarks.workers.channel import Channel

CHUNK = 1 << 16
LINGER = struct.pack("ii", 1, 0)
"""Of a socket that is closed with a reset."""


class Relay:
    """Listens on a port for each target.

    Args:
        rewrite: replace the first text by the second in what the target sends: a Pulsar broker's lookups name its own
            address, which clients would connect to directly. Both have one length.
    """

    def __init__(self, rewrite: tuple[str, str] | None) -> None:
        self._rewrite = None if rewrite is None else tuple(each.encode() for each in rewrite)
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False

    async def listen(self, port: int, target: int, stack: AsyncExitStack) -> None:
        """Relay connections of ``port`` to ``target``."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._relay(reader, writer, target)

        await stack.enter_async_context(await asyncio.start_server(accept, "127.0.0.1", port))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        self._writers.add(writer)
        try:
            if self._is_cut:
                raise ConnectionResetError
            there, onward = await asyncio.open_connection("127.0.0.1", target)
            self._writers.add(onward)
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(reader, onward, None))
                    pumps.create_task(self._pump(there, writer, self._rewrite))
            finally:
                self._abort(onward)
        except* OSError:
            pass  # one side has closed the connection
        finally:
            self._abort(writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rewrite: tuple[bytes, ...] | None
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                writer.write(data if rewrite is None else data.replace(*rewrite))
                await writer.drain()
        finally:
            writer.close()

    def _abort(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()

    def reset(self) -> None:
        """Reset every connection: what is under way in it is lost."""
        for writer in list(self._writers):
            if (opened := writer.get_extra_info("socket")) is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            self._abort(writer)

    def cut(self, is_cut: bool) -> None:
        """Close every connection and refuse new ones, until it is mended."""
        self._is_cut = is_cut
        self.reset()


async def main() -> None:
    """Execute the driver's commands."""
    channel = Channel()
    spec = channel.first()
    relay = Relay(spec["rewrite"])
    async with AsyncExitStack() as stack:
        for port, target in spec["ports"]:
            await relay.listen(port, target, stack)
        channel.ready()
        async for command in channel.commands():
            match command["do"]:
                case "reset":
                    relay.reset()
                case "cut":
                    relay.cut(True)
                case "restore":
                    relay.cut(False)
            channel.say({})
        relay.cut(True)


if __name__ == "__main__":
    asyncio.run(main())
