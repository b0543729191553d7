"""A server that speaks just enough of Pulsar's protocol to answer a handshake, or something else entirely."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def text(field_number: int, value: bytes) -> bytes:
    return varint(field_number << 3 | 2) + varint(len(value)) + value


def frame(command: bytes) -> bytes:
    return struct.pack(">II", len(command) + 4, len(command)) + command


def error(code: int, said: bytes) -> bytes:
    """BaseCommand{type=ERROR, error{request_id=2^64-1, error=code, message=said}}, as a broker sends it."""
    details = number(1, 2**64 - 1) + number(2, code) + text(3, said)
    return frame(number(1, 14) + text(14, details))


CONNECTED = frame(number(1, 3) + text(3, text(1, b"Pulsar Server") + number(2, 21) + number(3, 5 << 20)))


def fields(data: bytes) -> dict[int, Any]:
    """A message's fields by number, read by hand."""
    found: dict[int, Any] = {}
    at = 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = read()
        if key & 7:
            size = read()
            found[key >> 3] = data[at : at + size]
            at += size
        else:
            found[key >> 3] = read()
    return found


@dataclass
class Greeter:
    """``url`` to reach it by; ``greetings``: the fields of each CONNECT that came; ``gone``: callers that hung up."""

    port: int
    scheme: str = "pulsar"
    greetings: list[dict[int, Any]] = field(default_factory=list)
    certificates: list[Any] = field(default_factory=list)
    gone: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def url(self, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}"


async def hang(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Say nothing more."""


@contextlib.asynccontextmanager
async def greeter(answer: bytes | Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Greeter]:
    """Serve on a free port of the loopback: read a CONNECT, send ``answer`` (or do it), wait for the caller to hang up."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        made.certificates.append(writer.get_extra_info("peercert"))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            first = await reader.readexactly(8)
            if first[0] == 0x16 and tls is None:  # a TLS hello: Pulsar resets what is no frame of a possible size
                writer.transport.abort()
                return
            total, size = struct.unpack(">II", first)
            assert total == size + 4
            command = fields(await reader.readexactly(size))
            assert command[1] == 2, "BaseCommand.Type CONNECT"
            made.greetings.append(fields(command[2]))
            if isinstance(answer, bytes):
                writer.write(answer)
            else:
                await answer(reader, writer)
            await reader.read()
        made.gone.release()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made = Greeter(server.sockets[0].getsockname()[1], "pulsar+ssl" if tls else "pulsar")
    try:
        yield made
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await server.wait_closed()
