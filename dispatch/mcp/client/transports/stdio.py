"""An MCP server as a child process: messages on stdin and stdout, stderr in the log.

The SDK's own transport does not notice the end of a server whose children keep its output open, leaves the children of a
server that ends by itself running, and drops replies that it cannot read. This one observes the process, ends its whole
group, and ends the call of an unreadable reply.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, cast

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import PROTOCOL_VERSION_META_KEY
from mcp_types import JSONRPCRequest

from dispatch._internal.clock import loop_clock
from dispatch.mcp.client.transports.replies import (
    MAX_MESSAGE_BYTES,
    UnreadableMessageError,
    is_malformed,
    read_messages,
)
from dispatch.mcp.client.transports.stderr_log import StderrLog

logger = logging.getLogger("dispatch.mcp")

MAX_UNREAD: Final = 1_000
"""Messages that may wait for the session; then the pipe is not read until half of them are read."""
EXIT_S: Final = 1.0
"""Seconds that a server has to end after its stdin was closed, as MCP wants it; then its group receives SIGTERM."""
TERM_S: Final = 1.0
"""Seconds that it has after SIGTERM; then its group receives SIGKILL."""

LAST_OUTPUT_S: Final = 0.05
"""Seconds without output after which a server that has ended has written all, where its children keep the pipe open."""
LAST_OUTPUTS: Final = 20
"""Times that :data:`LAST_OUTPUT_S` is waited at most, for children that write to the same pipe without an end."""

_groups: set[int] = set()
"""Process groups of running servers, for a Python process that ends without closing its dispatchers."""


class StdioTransport:
    """A transport of :class:`mcp.Client`: starts the process on entry, and ends it with its children on exit.

    Args:
        server: name, for the log.
        command, args, env, cwd: of the process; ``env`` is added to what the SDK lets a server inherit.

    Attributes:
        ended: set when the process has ended, or its connection is of no use any more.
    """

    def __init__(self, server: str, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        self._server = server
        self._command = command, *args
        self._env = get_default_environment() | dict(env)
        self._cwd = cwd
        self.ended = asyncio.Event()
        self._process: ServerProcess | None = None

    async def __aenter__(self) -> tuple[ServerProcess, ServerProcess]:
        loop = asyncio.get_running_loop()
        log = StderrLog(logger, self._server, loop_clock())
        _, protocol = await loop.subprocess_exec(
            lambda: ServerProcess(self._server, log, self.ended),
            *self._command,
            env=self._env,
            cwd=self._cwd,
            start_new_session=True,  # a group of its own, which can be ended as a whole; and no Ctrl-C of this terminal
        )
        self._process = protocol
        return protocol, protocol

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            await self._process.end()


class ServerProcess(asyncio.SubprocessProtocol):
    """A running server, as the two streams that a session of the SDK reads and writes.

    Args:
        server: name, for the log.
        log: receives stderr.
        ended: is set when the process has ended, or its connection is of no use any more.

    Attributes:
        pid: of the process and of its group.
    """

    def __init__(self, server: str, log: StderrLog, ended: asyncio.Event) -> None:
        self.ended = ended
        self.pid = 0
        self._server = server
        self._log = log
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._exited = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._unread: deque[SessionMessage] = deque()
        self._parts: list[bytes] = []
        """Parts of a message whose end has not arrived."""
        self._size = 0
        self._is_modern = False
        """The protocol is 2026-07-28 or later."""
        self._is_cut = False
        """The lines since the last readable message may be parts of an unreadable one."""
        self._is_paused = False
        self._has_output = False
        self._reader: asyncio.Future[None] | None = None

    # -- the process --------------------------------------------------------------------------------------------

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended."""
        return self._exited.is_set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.SubprocessProtocol`; likewise the other callbacks."""
        process = self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = process.get_pid()
        _groups.add(self.pid)
        self._stdin = cast(asyncio.WriteTransport, process.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._log.feed(data)
        elif not self.ended.is_set():
            self._has_output = True
            self._feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._finish()
        elif fd == 0:  # it reads no more requests, and may have written replies
            self._await_last_output(LAST_OUTPUTS)

    def process_exited(self) -> None:
        self._exited.set()
        self._await_last_output(LAST_OUTPUTS)  # unless the output ends before

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def _await_last_output(self, checks: int) -> None:
        """Finish when nothing has arrived for a moment."""
        self._has_output = self._is_paused
        asyncio.get_running_loop().call_later(LAST_OUTPUT_S, self._check_last_output, checks - 1)

    def _check_last_output(self, checks: int) -> None:
        if self._is_paused or (self._has_output and checks):
            self._await_last_output(checks)
        else:
            self._finish()

    def _finish(self) -> None:
        self.ended.set()
        self._may_write.set()
        self._wake()

    async def end(self) -> None:
        """End the process and its children. Finishes also when it is cancelled: a process would remain otherwise."""
        task = asyncio.ensure_future(self._end())
        is_cancelled = False
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    async def _end(self) -> None:
        assert self._transport is not None
        self._finish()
        if self._stdin is not None:
            self._stdin.close()
        if not await self._wait_exit(EXIT_S):
            signal_group(self.pid, signal.SIGTERM)
            if not await self._wait_exit(TERM_S):
                signal_group(self.pid, signal.SIGKILL)
                await self._wait_exit(TERM_S)
        signal_group(self.pid, signal.SIGKILL)  # its children
        _groups.discard(self.pid)
        self._transport.close()
        self._log.close()

    async def _wait_exit(self, timeout: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._exited.wait()
        return self._exited.is_set()

    # -- messages from the server -------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > MAX_MESSAGE_BYTES:
            logger.warning("%s: a message of more than %d bytes; the server is restarted", self._server, self._size)
            self._finish()
            return
        if not others:
            return
        *lines, rest = others
        self._read_line(b"".join(self._parts))
        for line in lines:
            self._read_line(line)
        self._parts, self._size = [rest], len(rest)
        if len(self._unread) > MAX_UNREAD and not self._is_paused:
            self._set_paused(True)
        self._wake()

    def _read_line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            messages = read_messages(line, is_modern=self._is_modern)
        except UnreadableMessageError as error:
            self._is_cut |= error.is_cut
            if error.is_message or self._is_cut:  # the log has no replies
                line = b"an unreadable message of %d bytes" % len(line)
            self._log.feed(b"(stdout) " + line + b"\n")  # a server that writes its log to stdout
        else:
            self._unread.extend(map(SessionMessage, messages))
            self._is_cut = any(is_malformed(message) for message in messages)

    def _set_paused(self, is_paused: bool) -> None:
        assert self._transport is not None
        stdout = cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))
        self._is_paused = is_paused
        if is_paused:
            stdout.pause_reading()
        else:
            stdout.resume_reading()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # -- the streams of the SDK ---------------------------------------------------------------------------------

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message of the server.

        Raises:
            anyio.EndOfStream: the process has ended.
        """
        while not self._unread:
            if self.ended.is_set():
                raise anyio.EndOfStream
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._is_paused and len(self._unread) < MAX_UNREAD // 2:
            self._set_paused(False)
        return self._unread.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message to the server, and wait while its pipe is full.

        Raises:
            anyio.BrokenResourceError: the process has ended.
        """
        await self._may_write.wait()
        if self.ended.is_set() or self._stdin is None:
            raise anyio.BrokenResourceError
        if isinstance(item.message, JSONRPCRequest):
            meta = (item.message.params or {}).get("_meta") or {}
            self._is_modern = PROTOCOL_VERSION_META_KEY in meta
        self._stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def aclose(self) -> None:
        """Do nothing: the transport ends the process."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group of a server. Does nothing if all its processes have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _end_groups() -> None:
    for pid in tuple(_groups):
        signal_group(pid, signal.SIGKILL)


atexit.register(_end_groups)
