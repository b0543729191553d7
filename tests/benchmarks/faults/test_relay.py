"""The relay between a client and what it connects to."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from benchmarks.faults.roles.relay import Relay
from dispatch.devtools.localbroker import find_free_ports


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while line := await reader.readline():
            writer.write(b"pulsar://127.0.0.1:10001 " + line)
            await writer.drain()
    writer.close()


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    try:
        return await asyncio.wait_for(reader.readline(), 5)
    finally:
        writer.close()


async def is_cut(port: int) -> bool:
    try:
        return not await ask(port)
    except ConnectionError:
        return True


async def test_a_relay_rewrites_cuts_and_mends() -> None:
    port, target = find_free_ports(2)
    relay = Relay(("pulsar://127.0.0.1:10001", "pulsar://127.0.0.1:10002"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", target))
        await relay.listen(port, target, stack)
        assert await ask(port) == b"pulsar://127.0.0.1:10002 hello\n"
        relay.cut(True)
        assert await is_cut(port)
        relay.cut(False)
        assert await ask(port) == b"pulsar://127.0.0.1:10002 hello\n"
        relay.reset()
