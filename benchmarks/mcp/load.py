"""A load generator for MCP over HTTP: requests of 2026-07-28 on open connections, without the SDK, which costs more than the
server."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final
from urllib.parse import urlsplit

VERSION: Final = "2026-07-28"


def write_request(url: str, text: str) -> bytes:
    """Return a call of the tool ``echo`` as the official client sends it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "echo", "arguments": {"text": text}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    parts = urlsplit(url)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\naccept: application/json, text/event-stream\r\n"
        f"content-type: application/json\r\nmcp-protocol-version: {VERSION}\r\nmcp-method: tools/call\r\n"
        f"mcp-name: echo\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Caller:
    """Calls on one connection, one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self._request = request

    async def call(self) -> bytes:
        """Make one call and return the body of the answer."""
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server answered {head!r}")
        lower = head.lower()
        start = lower.index(b"content-length:") + 15
        return await self._reader.readexactly(int(lower[start : lower.index(b"\r", start)]))


async def measure(url: str, text: str, in_flight: int, seconds: float) -> tuple[float, list[float]]:
    """Call for some seconds on ``in_flight`` connections; return calls per second and the duration of each call in
    milliseconds, all calls included."""
    parts = urlsplit(url)
    request = write_request(url, text)
    connections = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(in_flight)]
    callers = [Caller(reader, writer, request) for reader, writer in connections]
    durations: list[float] = []

    async def call_until(end: float, caller: Caller) -> None:
        while (began := time.perf_counter()) < end:
            body = await caller.call()
            durations.append((time.perf_counter() - began) * 1e3)
            if text.encode() not in body:
                raise RuntimeError(f"the tool did not answer: {body!r}")

    began = time.perf_counter()
    await asyncio.gather(*(call_until(began + seconds, each) for each in callers))
    rate = len(durations) / (time.perf_counter() - began)
    for _, writer in connections:
        writer.close()
    return rate, durations
