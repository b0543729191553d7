"""Headers that reach the HTTP transport from elsewhere than a configuration, such as TrustGraph's tokens.
Stderr of a server in the log: whole lines, bounded in length and rate.
Messages of a server process: in parts, at once, too large, or none at all.
"""

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
from dispatch.mcp.conversion import Callbacks
from dispatch.mcp.sessions import McpSession
from dispatch.mcp.transports import (
    LINES_PER_S,
    MAX_BURST,
    MAX_LINE_CHARS,
    HttpTransport,
    InvalidHeaderError,
    LastLine,
    ServerProcess,
    StderrLog,
    StdioTransport,
    check_headers,
)


def test_blanks_around_a_value_are_removed() -> None:
    checked = check_headers({"Authorization": "Bearer secret\r\n", "X-Key": " a\tb "})
    assert checked == {"Authorization": "Bearer secret", "X-Key": "a\tb"}


@pytest.mark.parametrize(("name", "value"), [("X-Key", "secret\nsecret"), ("X-Key", "secret-ü"), ("X Key", "secret")])
def test_the_error_has_the_name_and_not_the_value(name: str, value: str) -> None:
    with pytest.raises(InvalidHeaderError, match=name) as caught:
        HttpTransport("http://127.0.0.1:1/mcp", {name: value})
    assert "secret" not in str(caught.value)


async def test_a_session_reports_it() -> None:
    def open_transport() -> HttpTransport:
        return HttpTransport("http://127.0.0.1:1/mcp", {"X-Key": "secret\nsecret"})

    session = McpSession("s", open_transport, Callbacks(), lambda: None, poll=False)
    session.start()
    try:
        async with asyncio.timeout(5):
            await session.wait_first()
        assert "'X-Key'" in session.problem
        assert "secret" not in session.problem
    finally:
        await session.close()


class FakeClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> StderrLog:
    caplog.set_level(logging.INFO, "dispatch.mcp")
    return StderrLog(logging.getLogger("dispatch.mcp"), "files", clock)


def test_lines_that_arrive_in_parts(log: StderrLog, caplog: pytest.LogCaptureFixture) -> None:
    for data in (b"one\ntw", b"o\r\n\n", b"thr\xffee"):
        log.feed(data)
    assert caplog.messages == ["files: one", "files: two"]
    log.close()
    assert caplog.messages[2:] == ["files: thr\ufffdee"]


def test_control_characters_do_not_reach_the_log(log: StderrLog, caplog: pytest.LogCaptureFixture) -> None:
    log.feed(b"\x1b[31mred\n")
    assert caplog.messages == ["files: \\x1b[31mred"]


def test_a_line_without_an_end_uses_bounded_memory(log: StderrLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1_000):
        log.feed(b"x" * 100_000)
    log.feed(b"\n")
    (message,) = caplog.messages
    assert len(message) <= MAX_LINE_CHARS + len("files: ")


def test_a_burst_is_limited_and_counted(log: StderrLog, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    log.feed(b"x\n" * 1_000)
    assert len(caplog.messages) == MAX_BURST
    clock.now += 1
    log.feed(b"y\n" * 100)
    assert caplog.messages[MAX_BURST] == f"files: … {1_000 - MAX_BURST} lines are left out"
    assert len(caplog.messages) == MAX_BURST + LINES_PER_S + 1
    log.close()
    assert caplog.messages[-1] == "files: … 80 lines are left out"


def test_of_many_lines_at_once_the_first_are_logged_and_the_last_are_searched_for_a_reason(
    log: StderrLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    add = LastLine.add
    monkeypatch.setattr(LastLine, "add", lambda last, line, now: (searched.append(line), add(last, line, now)))
    log.feed(b"first\n" + b"x\n" * 5_000 + b"KeyError: 'API_KEY'\n  hint\n")
    assert len(searched) == 2 * MAX_BURST
    assert caplog.messages[0] == "files: first"
    assert len(caplog.messages) == MAX_BURST
    assert log.last.text == "KeyError: 'API_KEY'"
    log.close()
    assert caplog.messages[-1] == f"files: … {5_003 - MAX_BURST:d} lines are left out"


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
    parts = [lines[:10], lines[10:70], lines[70:], "not JSON\n", f"{PING % 5}\n", f"{PING % 6}\n", (PING % 7)[:-3]]
    code = f"""
import sys, time
for part in {parts!r}:
    sys.stdout.write(part)
    time.sleep(0.02)
"""

    async def test() -> None:
        async with process(code) as found:
            assert await methods(found) == [f"ping/{number}" for number in range(7)]
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
