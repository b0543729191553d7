"""Messages of a server process: in parts, at once, too large, or none at all."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification

from dispatch.mcp import transports
from dispatch.mcp.transports import ServerProcess, StdioTransport

PING = '{"jsonrpc": "2.0", "method": "ping/%d"}'


@asynccontextmanager
async def process(code: str) -> AsyncIterator[ServerProcess]:
    async with StdioTransport("server", sys.executable, ["-u", "-c", code], {}, None) as (found, _):
        yield found


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type] # a coroutine


async def methods(found: ServerProcess) -> list[str]:
    return [each.message.method async for each in found if isinstance(each, SessionMessage)]  # type: ignore[union-attr]


def test_messages_in_parts_and_several_at_once() -> None:
    lines = "\n".join(PING % number for number in range(5)) + "\n"
    parts = [lines[:10], lines[10:70], lines[70:], "not JSON\n", f"{PING % 5}\n", PING % 6]
    code = f"""
import sys, time
for part in {parts!r}:
    sys.stdout.write(part)
    time.sleep(0.02)
"""

    async def test() -> None:
        async with process(code) as found:
            # The last one has no end: it may be incomplete.
            assert await methods(found) == [f"ping/{number}" for number in range(6)]
            with pytest.raises(anyio.EndOfStream):
                await found.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await found.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="late")))

    run(test)


def test_a_reader_that_is_slow_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "MAX_UNREAD", 100)
    code = f"for number in range(20_000): print({PING!r} % number)"

    async def test() -> None:
        async with process(code) as found:
            await asyncio.sleep(1)
            assert not found.ended.is_set()  # it waits for the pipe
            assert await methods(found) == [f"ping/{number}" for number in range(20_000)]

    run(test)


def test_a_message_that_is_too_large_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transports, "MAX_MESSAGE_BYTES", 100_000)

    async def test() -> None:
        async with process("import time; print('x' * 1_000_000); time.sleep(60)") as found:
            async with asyncio.timeout(10):
                assert await methods(found) == []

    with caplog.at_level(logging.WARNING, "dispatch.mcp"):
        run(test)
    assert "a message of more than" in caplog.text


def test_messages_to_the_server() -> None:
    async def test() -> None:
        async with process("import sys\nfor line in sys.stdin: sys.stdout.write(line)") as found:
            for number in range(3):
                await found.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=f"größe/{number}")))
            for number in range(3):
                message = await found.receive()
                assert isinstance(message, SessionMessage)
                assert message.message == JSONRPCNotification(jsonrpc="2.0", method=f"größe/{number}")

    run(test)


def test_the_end_of_a_process_is_not_hidden_by_its_cancelled_user() -> None:
    async def test() -> None:
        entered = asyncio.Event()
        found: list[ServerProcess] = []

        async def use() -> None:
            async with process("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)") as server:
                found.append(server)
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(use())
        await entered.wait()
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.sleep(0.1)
        task.cancel()  # during the clean-up, which goes on
        with pytest.raises(asyncio.CancelledError):
            await task
        assert found[0].has_exited

    run(test)
