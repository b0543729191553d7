"""An MCP server as a child process: messages on stdin and stdout, stderr in the log.

The SDK's own transport does not notice the end of a server whose children keep its output open, leaves the children of a
server that ends by itself running, and drops replies that it cannot read. This one observes the process, ends its whole
group, and ends the call of an unreadable reply.
"""

from __future__ import annotations

import asyncio
import atexit
import codecs
import errno
import json
import logging
import math
import os
import re
import signal
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import anyio
import httpx2
import msgspec
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import LAST_EVENT_ID, MCP_SESSION_ID, streamable_http_client
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import SessionMessage
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    ErrorData,
    RequestId,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from dispatch._internal import Clock, excerpt, loop_clock, wait_set, wait_shared, yield_to_others
from dispatch.mcp.conversion import find_address_problem, find_header_problem
from dispatch.mcp.replies import (
    FAILURES,
    MAX_ASKED,
    MAX_MESSAGE_BYTES,
    NEVER_SENT,
    ONE_LINE,
    AskedRequests,
    MessageStream,
    TransportFailure,
    UnreadableMessageError,
    UnreadableText,
    failed_reply,
    is_malformed,
    read_messages,
)
from dispatch.resilience.rate_limit import LeakyBucket

# What a server process writes to stderr, in the log: lines of bounded length at a bounded rate.


MAX_LINE_CHARS: Final = 1_000
MAX_BURST: Final = 100
"""Lines that may be written at once."""
LINES_PER_S: Final = 20.0
"""Lines per second after a burst: a server that logs each request stays readable, and one that loops fills no disk."""


TOGETHER_S: Final = 1.0
"""Seconds between two lines after which the second one says nothing about the first one: a program that ends with an error
writes all of it at once."""
_FAILURE: Final = re.compile(
    r"(?:[\w./-]+: )?(?:PHP )?(?:[Ff]atal )?error\b"
    r"|(?:[\w./-]+: )?(?:[\w.]*\.)?\w*(?:Error|Exception)\b(?! Group)"
    r"|panic: |thread '.*' .*panicked at "
)
"""A line that names why a program ends: of Python, JavaScript, Java, Go, Rust, PHP and command lines."""
_NPM: Final = re.compile(r"npm (?:error|ERR!) (?!(?:code|syscall|errno|path|dest|command) |A complete log)(?=\S)")
"""The same of npm and npx, whose first such line has the reason."""
_HINT: Final = re.compile(
    r"usage\b|.*--help\b|(?:npm (?:error|ERR!) )?A complete log|note: run with|Node\.js v\d|[-*] |For more information",
    re.IGNORECASE,
)
"""A line that helps a person behind the one that says what is wrong."""
_IN_GROUP: Final = re.compile(r"\s+\| ")
"""In front of a line of a group of exceptions in Python."""


class LastLine:
    """The line of a program that says best why it has ended: the last one, and of an error the one that names it.

    Attributes:
        text: the line; empty: there was none.
    """

    def __init__(self) -> None:
        self.text = ""
        self._at = -math.inf

    def add(self, line: str, now: float) -> None:
        """Take a line into account, without blanks at its end."""
        is_late = now - self._at > TOGETHER_S
        former = "" if is_late else self.text
        line = _IN_GROUP.sub("", line, count=1) if _IN_GROUP.match(line) else line
        if _FAILURE.match(former) and (former.endswith(":") or line.startswith("  cause: ")):  # of Rust and uv
            self.text = f"{former} {line.strip()}"
        elif _FAILURE.match(line) or not (line[0].isspace() or _is_below(line, former)):
            self.text, self._at = line, now


def _is_below(line: str, former: str) -> bool:
    """Whether ``former`` says more than ``line``, which follows it."""
    return bool(former) and bool(_FAILURE.match(former) or _NPM.match(former) or _HINT.match(line))


class StderrLog:
    """Writes the bytes of a server's stderr to the log.

    Args:
        logger: receives each line at the level INFO.
        server: name, in front of each line.
        clock: seconds.

    Attributes:
        last: the last line.
    """

    def __init__(self, logger: logging.Logger, server: str, clock: Clock) -> None:
        self._logger = logger
        self._server = server
        self._clock = clock
        self._rest = b""
        self._bucket = LeakyBucket(MAX_BURST, LINES_PER_S)
        self._dropped = 0
        self.last = LastLine()

    def feed(self, data: bytes) -> None:
        """Write the complete lines in ``data``, and in what came before it."""
        *lines, rest = (self._rest + data).split(b"\n")
        # Four bytes a character at most; more of a line is not needed.
        self._rest = rest[: 4 * MAX_LINE_CHARS + 1]
        for line in lines[:MAX_BURST]:
            self._write(line)
        self._dropped += max(0, len(lines) - 2 * MAX_BURST)  # the last lines say why it ends
        for line in lines[max(MAX_BURST, len(lines) - MAX_BURST) :]:
            self._write(line)

    def close(self) -> None:
        """Write the last line, and the number of lines that were dropped."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""
        self._report_dropped()

    def _write(self, line: bytes) -> None:
        now = self._clock()
        text = line.decode("utf-8", "replace").rstrip()
        if not text:
            return
        self.last.add(text, now)
        if not self._bucket.try_add(1, now):
            self._dropped += 1
            return
        self._report_dropped()
        self._logger.info("%s: %s", self._server, excerpt(text, MAX_LINE_CHARS))

    def _report_dropped(self) -> None:
        if self._dropped:
            self._logger.info("%s: … %d lines are left out", self._server, self._dropped)
            self._dropped = 0


logger = logging.getLogger("dispatch.mcp")

MAX_UNREAD: Final = 1_000
"""Messages that may wait for the session; then the pipe is not read until half of them are read."""
PROBE: Final = "server/discover"
EXIT_S: Final = 1.0
"""Seconds that a server has to end after its stdin was closed, as MCP wants it; then its group receives SIGTERM."""
PROBE_S: Final = 5.0
"""Seconds that a server has to answer ``server/discover``; then it receives ``initialize``, as a server that ignores what
it does not know."""
TERM_S: Final = 1.0
"""Seconds that it has after SIGTERM; then its group receives SIGKILL."""

SPLIT_S: Final = 0.5
"""Seconds after the begin of an unreadable text in which a server may still write the reply that it is a copy of."""
LAST_OUTPUT_S: Final = 0.05
"""Seconds without output after which a server that has ended has written all, where its children keep the pipe open."""
LAST_OUTPUTS: Final = 20
"""Times that :data:`LAST_OUTPUT_S` is waited at most, for children that write to the same pipe without an end."""

_groups: set[int] = set()
"""Process groups of running servers, for a Python process that ends without closing its dispatchers."""


class ServerStartError(OSError):
    """The process of a server cannot be started; ``str()`` says why and what to do."""


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

    @property
    def end(self) -> str:
        """Why the process has ended by itself; empty: it has not, or not yet."""
        return "" if self._process is None else self._process.reason

    def describe_last_line(self) -> str:
        """Return what the process wrote last to stderr, for a message."""
        return "" if self._process is None else self._process.describe_last_line()

    @property
    def is_usable(self) -> bool:
        """Whether requests reach the server."""
        return self._process is not None and self._process.is_reading

    async def __aenter__(self) -> tuple[ServerProcess, ServerProcess]:
        loop = asyncio.get_running_loop()
        log = StderrLog(logger, self._server, loop_clock())
        try:
            _, protocol = await loop.subprocess_exec(
                lambda: ServerProcess(self._server, log, self.ended),
                *self._command,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,  # a group of its own, which can be ended as a whole; no Ctrl-C of this terminal
            )
        except OSError as error:
            raise ServerStartError(self._describe_start_error(error)) from error
        self._process = protocol
        return protocol, protocol

    def _describe_start_error(self, error: OSError) -> str:
        command, reason = self._command[0], error.strerror or str(error)
        fix = ""
        if self._cwd is not None and not os.path.isdir(self._cwd):
            reason, fix = f"there is no folder '{excerpt(self._cwd)}'", "correct 'cwd'"
        elif isinstance(error, FileNotFoundError):
            is_line = " " in command.strip()
            fix = "write its arguments in 'args'" if is_line else "install it, or write its whole path as 'command'"
        elif isinstance(error, PermissionError) or error.errno == errno.ENOEXEC:
            fix = "make it executable, or write its interpreter as 'command'"
        return f"'{excerpt(command)}' cannot be started: {reason}" + f". Fix: {fix}" * bool(fix)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            await self._process.end()


class ServerProcess(asyncio.SubprocessProtocol, MessageStream):
    """A running server, as the two streams that a session of the SDK reads and writes.

    Args:
        server: name, for the log.
        log: receives stderr.
        ended: is set when the process has ended, or its connection is of no use any more.

    Attributes:
        pid: of the process and of its group.
        reason: why it has ended by itself, known after :meth:`end`; empty: it has not.
    """

    def __init__(self, server: str, log: StderrLog, ended: asyncio.Event) -> None:
        self.ended = ended
        self.pid = 0
        self.reason = ""
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
        self._notes: set[bytes] = set()
        """Notifications in what was read last, where another one like them says nothing: servers may write storms."""
        self._logged: list[bytes] = []
        """Lines for the log, of what was read last."""
        self._is_modern = False
        """The protocol is 2026-07-28 or later."""
        self._waiting: dict[str, RequestId] = {}
        """Requests without a reply, by the text of their id."""
        self._text: UnreadableText | None = None
        """The last one, of the last :data:`SPLIT_S`."""
        self._has_grown = False
        """The text has lines since it was last looked at."""
        self._answered: dict[str, str] = {}
        """Requests that were answered by what is no reply to them, and what is wrong with it."""
        self._last_id = 0
        """Of the last request; the SDK counts them, and gives subscriptions a text."""
        self._subscription = ""
        """Id of the last one."""
        self._notified_at = 0
        """:attr:`_last_id` when the last notification was sent."""
        self._notifications = 0
        """Notifications that a server may still answer: none has an answer, but some servers give one."""
        self._is_cut = False
        """The lines since the last readable message may be parts of an unreadable one."""
        self._asked = AskedRequests()
        self._is_end_awaited = False
        self._is_paused = False
        self._has_output = False
        self._reader: asyncio.Future[None] | None = None

    # -- the process --------------------------------------------------------------------------------------------

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended."""
        return self._exited.is_set()

    @property
    def is_reading(self) -> bool:
        """Whether the process reads requests. One that has ended may have written replies that are not read yet."""
        return self._stdin is not None and not self._stdin.is_closing() and not self.ended.is_set()

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
        if not self.ended.is_set() and self._size <= MAX_MESSAGE_BYTES:
            self._read_unended()
        self.ended.set()
        self._may_write.set()
        self._wake()

    async def end(self) -> None:
        """End the process and its children. Finishes also when it is cancelled: a process would remain otherwise."""
        task = asyncio.ensure_future(self._end())
        is_cancelled = False
        while not task.done():
            try:
                await wait_shared(task)
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    async def _end(self) -> None:
        assert self._transport is not None
        has_ended = self.ended.is_set()
        self._finish()
        if self._stdin is not None:
            self._stdin.close()
        has_exited = await wait_set(self._exited, EXIT_S)
        if not has_exited:
            signal_group(self.pid, signal.SIGTERM)
            if not await wait_set(self._exited, TERM_S):
                signal_group(self.pid, signal.SIGKILL)
                await wait_set(self._exited, TERM_S)
        signal_group(self.pid, signal.SIGKILL)  # its children
        _groups.discard(self.pid)
        self._log.close()
        if has_ended and not self.reason:
            end = _describe_end(self._transport.get_returncode()) if has_exited else _CLOSED
            self.reason = end + self.describe_last_line()
        self._transport.close()

    def describe_last_line(self) -> str:
        """Return the last line of stderr, for a message; empty: there is none."""
        last = self._log.last.text
        return f" (its last line: {excerpt(last, 200)})" if last else ""

    # -- messages from the server -------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > MAX_MESSAGE_BYTES:
            self.reason = f"a message has more than {MAX_MESSAGE_BYTES} bytes"
            logger.warning("%s: a message of more than %d bytes; the server is restarted", self._server, self._size)
            self._finish()
            return
        if not others:
            self._await_line_end()
            return
        *lines, rest = others
        self._notes.clear()
        self._read_line(b"".join(self._parts))
        for line in lines:
            self._read_line(line)
        self._write_log()
        self._parts, self._size = [rest], len(rest)
        self._await_line_end()
        if len(self._unread) > MAX_UNREAD and not self._is_paused:
            self._set_paused(True)
        self._wake()

    def _await_line_end(self) -> None:
        if self._size and not self._is_end_awaited:
            self._is_end_awaited = True
            asyncio.get_running_loop().call_later(SPLIT_S, self._check_line_end, self._size)

    def _check_line_end(self, size: int) -> None:
        self._is_end_awaited = False
        if size == self._size:
            self._read_unended()
            self._wake()
        else:
            self._await_line_end()

    def _read_unended(self) -> None:
        """Read a whole message whose line end has not been written: some servers forget it, or write it before the next."""
        data = b"".join(self._parts)
        with suppress(ValueError, RecursionError):
            if data.rstrip().endswith((b"}", b"]")) and isinstance(json.loads(data), (dict, list)):
                self._parts, self._size = [], 0
                self._logged.append(b"a message without a line end")
                self._read_line(data)
                self._write_log()

    def _read_line(self, line: bytes) -> None:
        if not line.strip() or line in self._notes:
            return
        try:
            messages = read_messages(line, is_modern=self._is_modern)
        except UnreadableMessageError as error:
            self._collect(line)
            self._is_cut |= error.is_cut
            if error.is_message or self._is_cut:  # the log has no replies
                line = b"an unreadable message of %d bytes" % len(line)
            self._logged.append(line)  # a server that writes its log to stdout
        else:
            self._unread.extend(SessionMessage(self._find_request(message)) for message in messages)
            self._is_cut = any(is_malformed(message) for message in messages)
            if all(isinstance(message, JSONRPCNotification) for message in messages):
                self._notes.add(line)

    def _write_log(self) -> None:
        """Write what was no message. All lines of one read together: of a storm, the log takes its begin and its end."""
        self._log.feed(b"".join(b"(stdout) %b\n" % line for line in self._logged))
        self._logged.clear()

    def _collect(self, line: bytes) -> None:
        """Read a line of what may be a reply over several lines, or in Python's form."""
        text = self._text
        if line.startswith(b"{") and not (self._is_cut and text is not None and text.is_open):
            self._end_text()
            if text is None:
                asyncio.get_running_loop().call_later(SPLIT_S, self._end_unreadable_replies)
            text = self._text = UnreadableText(None if self._notifications else self._only_waiting)
        if text is not None:
            text.feed(line)
            self._has_grown = True

    def _end_text(self) -> None:
        id = None if self._text is None else self._text.find_answered()
        if id is not None and id in self._waiting:
            self._answered[id] = ONE_LINE

    def _end_unreadable_replies(self) -> None:
        self._end_text()
        if self._text is not None and self._text.is_open and self._has_grown and not self._answered:  # a long one
            self._has_grown = False
            asyncio.get_running_loop().call_later(SPLIT_S, self._end_unreadable_replies)
            return
        answered, self._answered, self._text = self._answered, {}, None
        for text, problem in answered.items():
            id = self._waiting.pop(text, None)
            if id is not None:
                self._unread.append(SessionMessage(failed_reply(id, TransportFailure.MALFORMED, problem)))
        self._wake()

    @property
    def _only_waiting(self) -> str | None:
        """The id of the only request that waits, as text. Of several none is known to be the one that is answered."""
        return next(iter(self._waiting)) if len(self._waiting) == 1 else None

    def _find_request(self, message: JSONRPCMessage) -> JSONRPCMessage:
        """Return ``message``; a reply with ``id: null``, of a server that could not read a request, is that of the only
        request that waits. One to a request that was never sent ends it, unless its own one follows."""
        if not isinstance(message, _REPLIES):
            return message
        id = "" if message.id is None else coerce_request_id(message.id)  # the SDK accepts a number in a text
        if str(message.id).strip() == self._subscription:
            pass
        elif isinstance(id, int) and 0 < id <= self._last_id:
            self._waiting.pop(str(id), None)
            if id > self._notified_at:  # a server reads in order
                self._notifications = 0
        elif self._notifications and not (isinstance(message, JSONRPCError) and message.error.code == PARSE_ERROR):
            self._notifications -= 1
        elif self._only_waiting is None:
            self._logged.append(b"a reply to a request that was never sent")
        elif message.id is None:
            [message.id] = self._waiting.values()
            self._waiting.clear()
        else:
            self._end_later(self._only_waiting, NEVER_SENT)
        return message

    def _end_later(self, id: str, problem: str) -> None:
        """End a request unless its reply follows."""
        if not self._answered and self._text is None:
            asyncio.get_running_loop().call_later(SPLIT_S, self._end_unreadable_replies)
        self._answered[id] = problem

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
        while True:
            while not self._unread:
                if self.ended.is_set():
                    raise anyio.EndOfStream
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
            if self._is_paused and len(self._unread) < MAX_UNREAD // 2:
                self._set_paused(False)
            item = self._unread.popleft()
            message = item.message
            if isinstance(message, (JSONRPCRequest, JSONRPCNotification)):
                await yield_to_others()  # a storm of them must not stop the event loop
            if not isinstance(message, JSONRPCRequest) or not self._asked.is_full:
                self._asked.record(message)
                return item
            if self._may_write.is_set() and self.is_reading:
                self._write(_refuse_request(message.id))

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message to the server, and wait while its pipe is full.

        Raises:
            anyio.BrokenResourceError: the process has ended.
        """
        await self._may_write.wait()
        if self._stdin is None or not self.is_reading:
            raise anyio.BrokenResourceError
        if isinstance(item.message, JSONRPCRequest):
            meta = (item.message.params or {}).get("_meta") or {}
            self._is_modern = PROTOCOL_VERSION_META_KEY in meta
            if isinstance(item.message.id, int):
                self._waiting[str(item.message.id)] = self._last_id = item.message.id
            else:  # a subscription, which waits for no reply
                self._subscription = item.message.id
            if item.message.method == PROBE:
                asyncio.get_running_loop().call_later(PROBE_S, self._end_probe, item.message.id)
        elif isinstance(item.message, JSONRPCNotification):
            self._notifications, self._notified_at = self._notifications + 1, self._last_id
            if item.message.method == "notifications/cancelled":
                self._waiting.pop(str((item.message.params or {}).get("requestId")), None)
        else:
            self._asked.settle(item.message.id)
        self._write(item.message)

    def _write(self, message: JSONRPCMessage) -> None:
        assert self._stdin is not None
        self._stdin.write(_encode(message) + b"\n")

    def _end_probe(self, id: RequestId) -> None:
        if self._waiting.pop(str(id), None) is not None:
            reply = failed_reply(id, TransportFailure.REPLY_LOST, f"no reply to {PROBE} within {PROBE_S:g} s")
            self._unread.append(SessionMessage(reply))
            self._wake()


def _refuse_request(id: RequestId) -> JSONRPCError:
    """Return the answer to a request of a server that has too many."""
    text = f"{MAX_ASKED} requests of this server have no answer yet: send this one again after some of them have."
    return JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=INTERNAL_ERROR, message=text))


_CLOSED: Final = "the server has closed its stdin or stdout, and was ended"


def _describe_end(status: int | None) -> str:
    with suppress(ValueError):  # a number that is no signal
        if status is not None:
            how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
            return f"the server has ended {how}"
    return "the server has ended"


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group of a server. Does nothing if all its processes have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _end_groups() -> None:
    for pid in tuple(_groups):
        signal_group(pid, signal.SIGKILL)


atexit.register(_end_groups)

# Streamable HTTP with the headers of a server's configuration, where one failed request fails alone.


CONNECT_S: Final = 5.0
"""Seconds to connect to a server. There is no limit of the time between two parts of a reply: the calls have deadlines."""
MAX_IDLE_CONNECTIONS: Final = 100
LAST_REPLIES_S: Final = 0.05
"""Seconds in which calls in flight receive their errors before a session that is of no use is closed."""
REFUSALS_S: Final = 3.0
"""Seconds in which a server that has forgotten a session has to refuse the calls in flight, which are then sent again. A
connection that a short queue of the server has lost is repeated by the kernel after 1 s."""
RECONNECT_S: Final = 1.0
"""Seconds until a stream that the server has ended is opened again, at least; doubled each time that it ends at once."""
MAX_RECONNECT_S: Final = 10.0
PING_S: Final = 2.0
"""Seconds in which a server has to answer the ping that shows whether it knows the session."""

_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_REPLIES: Final = (JSONRPCResponse, JSONRPCError)
_BODY_HEADERS: Final = (b"content-length", b"content-encoding", b"content-type", b"transfer-encoding")
_NO_REPLY: Final = httpx2.Timeout(PING_S, connect=CONNECT_S)
"""Of notifications and the end of a session: the SDK sends nothing else before their response, and closing waits for it."""
_PROBE_TIMEOUT: Final = httpx2.Timeout(None, connect=CONNECT_S, read=PROBE_S)
_ABOUT_SESSIONS: Final = re.compile("session|initiali[sz]", re.IGNORECASE)
_OF_CREDENTIALS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses that concern a session only where their text says so."""
_NEVER_OF_A_SESSION: Final = (
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_OF_THE_SESSION: Final = (MCP_SESSION_ID, MCP_PROTOCOL_VERSION_HEADER)
_FORGOTTEN: Final = "the session is unknown"
_ABANDONED: Final = (TransportFailure.REPLY_LOST, "the request was cancelled")
_EVENT_MARK: Final = " of dispatch: "
"""Between the id of a request and that of an event: the SDK resumes a stream by the id of the last event alone."""
OTHER_REQUEST: Final = "the reply names another request"
_NO_SESSION_ID: Final = (TransportFailure.MALFORMED, "its Mcp-Session-Id has other characters than visible ASCII")


class InvalidAddressError(ValueError):
    """Nothing can be sent to an address; the message does not have its text, which may be a secret."""


class InvalidHeaderError(ValueError):
    """A header cannot be sent; the message has its name, and not its value, which may be a secret."""


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without blanks and line ends around their values, as a secret from a file has one.

    Raises:
        InvalidHeaderError: HTTP cannot express a name or a value.
    """
    found = {name: value.strip() for name, value in headers.items()}
    for name, value in found.items():
        shown, problem = find_header_problem(name, value)
        if problem:
            raise InvalidHeaderError(f"the header '{shown}': {problem}")
    return found


class HttpTransport:
    """A transport of :class:`mcp.Client`.

    Args:
        url: address of the server.
        headers: of each request.

    Attributes:
        ended: set when the session is of no use any more.
        is_unknown: the server does not know the session: it has restarted.

    Raises:
        InvalidAddressError: the address is none.
        InvalidHeaderError: a header cannot be sent.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        if problem := find_address_problem(url):
            raise InvalidAddressError(f"{problem}. Fix: write 'url' as https://host/mcp")
        self.ended = asyncio.Event()
        self.is_unknown = False
        self._url = url
        self._headers = check_headers(headers)
        self._stack = AsyncExitStack()
        self._http: HttpClient | None = None

    @property
    def origin(self) -> str:
        """Scheme, host and port of the server. The rest of its address may have secrets."""
        url = httpx2.URL(self._url)
        return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"

    @property
    def is_usable(self) -> bool:
        """Whether requests reach the server, and the server knows the session."""
        return not self.ended.is_set() and not self.is_unknown

    async def __aenter__(self) -> tuple[Any, Any]:
        http = self._http = HttpClient(self._on_unreachable, self._on_unknown, self._headers)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(http)
            streams = await stack.enter_async_context(
                streamable_http_client(self._url, http_client=http, max_sse_event_size=None)  # HttpClient has a limit
            )
            self._stack = stack.pop_all()
        return streams

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.ended.set()
        return await self._stack.__aexit__(exc_type, exc, traceback)

    def _on_unreachable(self) -> None:
        asyncio.get_running_loop().call_later(LAST_REPLIES_S, self.ended.set)

    def _on_unknown(self) -> None:
        self.is_unknown = True
        self._await_refusals(asyncio.get_running_loop().time() + REFUSALS_S)

    def _await_refusals(self, deadline: float) -> None:
        """End the session when the server has refused the other calls in flight, too, or at the deadline."""
        loop = asyncio.get_running_loop()
        if self._http is None or not self._http.in_flight or loop.time() >= deadline:
            self._on_unreachable()
        else:
            loop.call_later(LAST_REPLIES_S, self._await_refusals, deadline)


def trusted_certificates() -> ssl.SSLContext:
    """Return the certificates of the system, or those of ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``.

    All clients share them, because the event loop stands still while they are read: 0.08 s for each session of each user.
    They are read again when their file or folder changes.
    """
    paths = ssl.get_default_verify_paths()
    named = [os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)]
    places = named or [paths.openssl_cafile, paths.openssl_capath]
    return _read_certificates(tuple((place, _changed_at(place)) for place in places))


@lru_cache(maxsize=1)
def _read_certificates(_places: tuple[tuple[str, int], ...]) -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def _changed_at(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


class HttpClient(httpx2.AsyncClient):
    """A client whose replies are messages that the SDK accepts, whatever the server answers. An exception would end the
    SDK's session, and with it all other calls in flight; a reply that the SDK cannot read would be in its log.

    Args:
        on_unreachable: called when there is no connection to the server.
        on_unknown: called when the server does not know the session.
        headers: of each request.

    Attributes:
        in_flight: requests without a reply.
    """

    def __init__(
        self, on_unreachable: Callable[[], object], on_unknown: Callable[[], object], headers: Mapping[str, str]
    ) -> None:
        super().__init__(
            headers=dict(headers),
            timeout=httpx2.Timeout(None, connect=CONNECT_S),
            verify=trusted_certificates(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS),
        )
        self._on_unreachable = on_unreachable
        self._on_unknown = on_unknown
        self.in_flight = 0
        self._exchanges: dict[str, Exchange] = {}
        """Of the requests without a reply, by the texts of their ids."""
        self._asked = AskedRequests()
        self._short_streams = 0
        """Streams in succession that have ended at once, without a message."""
        self._is_forgotten = False
        self._checking = asyncio.Lock()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; see :meth:`httpx2.AsyncClient.send`."""
        if request.method == "DELETE" and self._is_forgotten:  # the end of the session
            return httpx2.Response(HTTPStatus.NO_CONTENT, request=request)
        if request.method == "POST":
            await request.aread()  # that of a redirect is a stream
        exchange = self._find_exchange(request)
        if exchange is None:
            request.extensions = {**request.extensions, "timeout": _NO_REPLY.as_dict()}
            try:
                return await self._send(request, None, **options)
            finally:
                head = _Head.of(request) if request.method == "POST" else _Head()
                if not head.method:
                    self._asked.settle(head.id)
                elif (cancelled := head.cancelled_id) is not None:
                    await self._abandon(str(cancelled))
        if exchange.method == PROBE:
            request.extensions = {**request.extensions, "timeout": _PROBE_TIMEOUT.as_dict()}
        is_request = exchange.id is not None
        self.in_flight += is_request
        try:
            with exchange.scope:
                return await self._send(request, exchange, **options)
            return _response(httpx2.Response(HTTPStatus.OK, request=request), exchange.fail(*_ABANDONED))
        finally:
            self.in_flight -= is_request
            if exchange.stream is None:
                self._exchanges.pop(str(exchange.id), None)

    def _find_exchange(self, request: httpx2.Request) -> Exchange | None:
        """Return the exchange that a request begins or resumes; None: it carries no request of MCP. Behind an event, its id
        names the request whose reply the stream is to have."""
        owner, mark, event = request.headers.get(LAST_EVENT_ID, "").partition(_EVENT_MARK)
        if request.method == "GET" and mark:
            request.headers.encoding = "utf-8"
            request.headers[LAST_EVENT_ID] = unquote(event)
            exchange = self._exchanges.get(owner)
            if exchange is None:  # it was abandoned meanwhile
                exchange = Exchange(owner, is_modern=False)
                exchange.scope.cancel()
            else:
                exchange.scope, exchange.stream = anyio.CancelScope(), None
            return exchange
        begun = Exchange.of(request)
        if begun is not None and begun.id is not None:
            self._exchanges[str(begun.id)] = begun
        return begun

    async def _abandon(self, id: str) -> None:
        """End the exchange of a cancelled request. Up to MCP 2025-11-25 the SDK still awaits the reply, which
        a server need not send."""
        exchange = self._exchanges.pop(id, None)
        if exchange is not None:
            exchange.scope.cancel()
            if exchange.stream is not None:
                await exchange.stream.aclose()

    async def _send(self, request: httpx2.Request, exchange: Exchange | None, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
            if exchange is None or _is_followed(response):
                return response
            if exchange.id is not None and not response.headers.get(MCP_SESSION_ID, "").isascii():
                await response.aclose()
                return _response(httpx2.Response(HTTPStatus.OK, request=request), exchange.fail(*_NO_SESSION_ID))
            if response.has_redirect_location and exchange.id is not None:
                await response.aclose()
                return _response(response, exchange.fail(TransportFailure.HTTP_STATUS, _describe_redirect(response)))
            if response.is_success and _is_event_stream(response):
                exchange.stream = response
                return _stream(response, self._read_events(exchange, response))
            if exchange.id is not None and request.method == "GET":
                await response.aclose()
                return _response(response, exchange.fail(TransportFailure.REPLY_LOST, "the stream is not resumed"))
            if exchange.id is not None:
                return await self._read_reply(exchange, response)
            if response.is_error:
                await self._check_session(request, response.status_code)
            return response
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            if isinstance(error, _NOT_SENT):
                self._on_unreachable()
            if request.method == "DELETE" and isinstance(error, _NOT_SENT):  # the SDK logs an exception as a warning
                return httpx2.Response(HTTPStatus.NO_CONTENT, request=request)
            id = None if exchange is None else exchange.id
            if request.method != "POST" and id is None:
                raise
            failure = TransportFailure.REPLY_LOST
            if isinstance(error, httpx2.DecodingError):
                failure = TransportFailure.MALFORMED
            elif isinstance(error, _NOT_SENT) and request.method == "POST":
                failure = TransportFailure.NOT_SENT
            reply = failed_reply(id, failure, f"{type(error).__name__}: {error}".removesuffix(": "))
            return _response(httpx2.Response(HTTPStatus.OK, request=request), reply)

    async def _read_reply(self, exchange: Exchange, response: httpx2.Response) -> httpx2.Response:
        try:
            body = await _read_limited(response)
        finally:
            await response.aclose()
        if len(body) > MAX_MESSAGE_BYTES:
            problem = f"a message has more than {MAX_MESSAGE_BYTES} bytes"
            return _response(response, exchange.fail(TransportFailure.MALFORMED, problem))
        reply = exchange.find_reply(body)
        if response.is_error:
            text = reply.error.message if isinstance(reply, JSONRPCError) else body[:10_000].decode(errors="replace")
            reply = _failure_of(exchange, response, reply)
            if await self._check_session(response.request, response.status_code, text):
                reply = exchange.fail(TransportFailure.FORGOTTEN, _FORGOTTEN)
        elif reply is None:
            problem = f"HTTP status {response.status_code} without a reply"
            if body.strip() and exchange.problem:
                problem = exchange.problem
            if exchange.method in HANDSHAKES and b"jsonrpc" not in body:
                problem = f"{problem}: {_NO_SERVER}"
            reply = exchange.fail(TransportFailure.MALFORMED, problem)
        return _response(response, await self._check_reply(response.request, exchange, reply))

    async def _read_events(self, exchange: Exchange, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream, with readable messages only."""
        awaits_reply = is_request = exchange.id is not None
        self.in_flight += is_request
        clock = asyncio.get_running_loop().time
        began, wait = clock(), RECONNECT_S
        deadline: float | None = None
        is_resumable = False
        try:
            stream = _EventStream(response)
            events = stream.read()
            while True:
                async with asyncio.timeout_at(deadline):
                    event = await anext(events, None)
                if event is None:
                    break
                if exchange.scope.cancel_called:  # there may be many events in what was read
                    break
                problem = exchange.problem
                data = event.data.encode("latin-1")
                messages = exchange.read(data) if event.event == "message" and data else []
                if stream.has_ended and any(map(is_malformed, messages)):  # it was cut, and may be sent again
                    exchange.problem = problem
                    break
                if awaits_reply:
                    messages = [await self._check_reply(response.request, exchange, each) for each in messages]
                    awaits_reply = not any(isinstance(each, _REPLIES) for each in messages)
                    is_resumable |= bool(event.id)
                    if exchange.problem == OTHER_REQUEST and deadline is None:
                        deadline = clock() + SPLIT_S
                if event.retry is not None:
                    wait = event.retry / 1000
                if messages:
                    self._short_streams = 0
                for message in messages:
                    if isinstance(message, JSONRPCRequest):
                        await self._asked.wait_place()
                    self._asked.record(message)
                for each in exchange.write(event, messages):
                    yield each
            # The SDK opens the stream again without an end, after the time in the last event.
            wait = min(max(wait, RECONNECT_S * 2 ** min(self._short_streams, 10)), MAX_RECONNECT_S)
            self._short_streams = self._short_streams + 1 if clock() - began < RECONNECT_S else 0
            yield f"retry: {wait * 1000:.0f}\ndata:\n\n".encode()
        except (TimeoutError, httpx2.SSEError, httpx2.DecodingError) as error:  # SSEError: an event that is too large
            exchange.problem = str(error) or exchange.problem
        except httpx2.TransportError:
            if not exchange.scope.cancel_called:
                raise
        finally:
            self.in_flight -= is_request
            if not (awaits_reply and is_resumable) or exchange.problem:
                self._exchanges.pop(str(exchange.id), None)
        if awaits_reply and (exchange.problem or exchange.scope.cancel_called):
            reply = exchange.fail(TransportFailure.MALFORMED, exchange.problem)
            for each in exchange.write(httpx2.ServerSentEvent(), [reply]):
                yield each

    async def _check_reply(self, request: httpx2.Request, exchange: Exchange, reply: JSONRPCMessage) -> JSONRPCMessage:
        """Return ``reply``, or the failure of a request in a session that the server has forgotten."""
        if not isinstance(reply, JSONRPCError) or reply.error.code in FAILURES:
            return reply
        is_forgotten = await self._check_session(request, HTTPStatus.OK, reply.error.message)
        return exchange.fail(TransportFailure.FORGOTTEN, _FORGOTTEN) if is_forgotten else reply

    # -- the session --------------------------------------------------------------------------------------------

    async def _check_session(self, request: httpx2.Request, status: int, text: str = "") -> bool:
        """Find out whether a server that has refused a request knows its session; return whether it does not, and has not
        executed the request. Servers say so with many statuses and texts, which they also use for other reasons: a ping in
        the same session shows what is meant.

        Args:
            status, text: of the refusal.
        """
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        has_id = MCP_SESSION_ID in request.headers
        if status in _NEVER_OF_A_SESSION or version is None or version in MODERN_PROTOCOL_VERSIONS:
            return False
        if status >= 500 and not has_id:
            return False
        if (status < 400 or status in _OF_CREDENTIALS) and not _ABOUT_SESSIONS.search(text):
            return False
        async with self._checking:
            is_refused = self._is_forgotten or await self._is_refused(request, status, "ping")
            if not is_refused and status == HTTPStatus.NOT_FOUND and has_id:
                is_refused = await self._is_refused(request, status, "tools/list")  # some answer a ping in any session
            if is_refused and not self._is_forgotten:
                self._is_forgotten = True
                self._on_unknown() if status < 500 else self._on_unreachable()
        return self._is_forgotten and status < 500  # after an error of the server the request may have been executed

    async def _is_refused(self, request: httpx2.Request, status: int, method: str) -> bool:
        """Whether a request of ``method`` in the session of ``request`` is refused in the same way; after the status 404,
        which is MCP's for a session that has ended, in any way."""
        headers = {name: request.headers[name] for name in _OF_THE_SESSION if name in request.headers}
        headers["accept"] = "application/json, text/event-stream"
        message = {"jsonrpc": "2.0", "id": "dispatch-ping", "method": method}
        ping = self.build_request("POST", request.url, headers=headers, json=message)
        exchange = Exchange("dispatch-ping", is_modern=False)
        with suppress(TimeoutError, httpx2.TransportError):
            async with asyncio.timeout(PING_S):
                response = await super().send(ping, stream=True, follow_redirects=False)
                try:
                    is_alike = response.status_code == status or (status == HTTPStatus.NOT_FOUND and response.is_error)
                    if not is_alike or response.status_code in _NEVER_OF_A_SESSION:
                        return False
                    reply = exchange.find_reply(await _read_body(response))
                finally:
                    await response.aclose()
            if not isinstance(reply, JSONRPCError):
                return status >= 400
            is_meant = status >= 400 or _ABOUT_SESSIONS.search(reply.error.message) is not None
            return is_meant and reply.error.code != METHOD_NOT_FOUND
        return False


class Exchange:
    """One request and its reply.

    Args:
        id, method: of the request; None: there is none, the server sends messages of its own.
        is_modern: the protocol is 2026-07-28 or later.

    Attributes:
        problem: of the last data that were not readable or not meant for the request; empty: there were none.
        scope: in which the response is awaited.
        stream: response that has the reply among its events.
    """

    def __init__(self, id: RequestId | None, is_modern: bool, method: str = "") -> None:
        self.id = id
        self.method = method
        self.problem = ""
        self.scope = anyio.CancelScope()
        self.stream: httpx2.Response | None = None
        self._is_modern = is_modern

    @classmethod
    def of(cls, request: httpx2.Request) -> Exchange | None:
        """Return the exchange of a request; None: it carries no request of MCP."""
        is_modern = request.headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS
        if request.method != "POST":
            return cls(None, is_modern) if request.method == "GET" else None
        head = _Head.of(request)
        return cls(head.id, is_modern, head.method) if head.method and head.id is not None else None

    def fail(self, failure: TransportFailure, message: str, data: object = None) -> JSONRPCError:
        """Return the reply that reports a failure of this request."""
        return failed_reply(self.id, failure, message, data)

    def read(self, data: bytes) -> list[JSONRPCMessage]:
        """Return the messages in ``data``; a reply has the id of the request."""
        try:
            messages = read_messages(data, is_modern=self._is_modern)
        except UnreadableMessageError as error:
            if error.is_request:
                return []
            self.problem = str(error)
            is_reply = error.is_message and self.id is not None
            return [self.fail(TransportFailure.MALFORMED, self.problem)] if is_reply else []
        return messages if self.id is None else list(filter(self._assign_id, messages))

    def find_reply(self, data: bytes) -> JSONRPCMessage | None:
        """Return the reply in ``data``; None: there is none."""
        return next((message for message in self.read(data) if isinstance(message, _REPLIES)), None)

    def write(self, event: httpx2.ServerSentEvent, messages: Sequence[JSONRPCMessage]) -> Iterator[bytes]:
        """Yield ``event`` with ``messages`` in place of its data. Its id names the request, too."""
        owner = b"" if self.id is None else f"{self.id}{_EVENT_MARK}".encode()
        head = b"id: %b%b\n" % (owner, quote(event.id.encode("latin-1")).encode()) if event.id else b""
        if head and not messages:
            yield b"%bdata:\n\n" % head
        for message in messages:
            yield b"%bdata: %b\n\n" % (head, _encode(message))

    def _assign_id(self, message: JSONRPCMessage) -> bool:
        """Give a reply the id of the request; return whether it may be the one to it."""
        if isinstance(message, _REPLIES):
            if message.id is not None and str(message.id) != str(self.id):
                self.problem = OTHER_REQUEST
                return False
            assert self.id is not None
            message.id = self.id  # a server that could not read the request writes null
        return True


class _HeadParams(msgspec.Struct):
    """What is read of the parameters of a notification."""

    requestId: int | str | None = None  # noqa: N815 - as MCP has it


class _Head(msgspec.Struct):
    """What is read of a request."""

    id: int | str | None = None
    method: str = ""
    params: _HeadParams | None = None

    @classmethod
    def of(cls, request: httpx2.Request) -> _Head:
        """Read the head of a request or a notification."""
        return msgspec.json.decode(request.content, type=cls)

    @property
    def cancelled_id(self) -> int | str | None:
        """The id of the request that is cancelled by the notification."""
        is_meant = self.method == "notifications/cancelled" and self.params is not None
        return self.params.requestId if is_meant and self.params is not None else None


class _EventStream:
    """The events of a response, with a character for each byte: they are UTF-8 whatever the header says, and a fault costs
    one message. The last one is read also without the blank line behind it, which some servers forget.

    Attributes:
        has_ended: the last one is being read.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self.headers, self.request = response.headers, response.request
        self.has_ended = False
        self._response = response

    def read(self) -> AsyncIterator[httpx2.ServerSentEvent]:
        """Return the events, each up to :data:`MAX_MESSAGE_BYTES`."""
        limit = 2 * MAX_MESSAGE_BYTES  # a byte outside of ASCII counts twice
        return aiter(httpx2.EventSource(cast(httpx2.Response, self), max_event_size=limit))

    async def aiter_text(self) -> AsyncIterator[str]:
        """Return the text without a byte order mark. CR, which is a line end like LF and CRLF, is one at once."""
        begin, is_begun, has_return = b"", False, False
        async for data in self._response.aiter_bytes():
            if not is_begun:
                begin += data
                if len(begin) < len(codecs.BOM_UTF8):
                    continue
                data, is_begun = begin.removeprefix(codecs.BOM_UTF8), True
            if has_return:
                data = data.removeprefix(b"\n")
            has_return = data.endswith(b"\r")
            yield data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode("latin-1")
        self.has_ended = True
        yield "\n\n"


class _EventBytes(httpx2.AsyncByteStream):
    """The body of a response whose events were read and written again."""

    def __init__(self, response: httpx2.Response, events: AsyncGenerator[bytes, None]) -> None:
        self._response = response
        self._events = events

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events

    async def aclose(self) -> None:
        """End the connection."""
        await self._events.aclose()
        await self._response.aclose()


async def _read_limited(response: httpx2.Response) -> bytes:
    """Return the body, as far as it is sure to have more than :data:`MAX_MESSAGE_BYTES`."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_MESSAGE_BYTES:
            break
    return b"".join(parts)


async def _read_body(response: httpx2.Response) -> bytes:
    """Return the body: of a stream of events, the data of the first one."""
    if not _is_event_stream(response):
        return await _read_limited(response)
    async for event in _EventStream(response).read():
        if event.data:
            return event.data.encode("latin-1")
    return b""


def _is_followed(response: httpx2.Response) -> bool:
    """Whether the SDK follows the redirect of a response: with the same method, and to the same origin or its HTTPS."""
    moved = response.next_request
    if moved is None or moved.method != response.request.method:
        return False
    here, there = response.request.url, moved.url
    is_upgrade = (here.scheme, there.scheme) == ("http", "https") and here.port is None and there.port is None
    return here.host == there.host and (is_upgrade or (here.scheme, here.port) == (there.scheme, there.port))


def _describe_redirect(response: httpx2.Response) -> str:
    """Return why a redirect is not followed, and what to write. User, query and fragment may be secrets."""
    text = f"HTTP status {response.status_code} {response.reason_phrase}".rstrip()
    if response.next_request is None:
        return f"{text}: it redirects to what is no address"
    here, there = response.request.url, response.next_request.url.copy_with(userinfo=b"", query=None, fragment=None)
    if (here.scheme, there.scheme) == ("https", "http"):
        there = there.copy_with(scheme="https")
        return f"{text}: it redirects from https to http, as behind a proxy unknown to it; write '{there}' as 'url'"
    return (
        f"{text}: it redirects to '{there}', which is not followed; write this as 'url' if it is the server's address"
    )


def _is_event_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def _response(response: httpx2.Response, reply: JSONRPCMessage) -> httpx2.Response:
    """Return ``response`` with another body and without its status, of which the SDK reports nothing."""
    is_stream = response.request.method == "GET"
    kind = b"text/event-stream" if is_stream else b"application/json"
    headers, body = [*_other_headers(response), (b"content-type", kind)], _encode(reply)
    content = b"data: %b\n\n" % body if is_stream else body
    return httpx2.Response(HTTPStatus.OK, headers=headers, content=content, request=response.request)


def _stream(response: httpx2.Response, events: AsyncGenerator[bytes, None]) -> httpx2.Response:
    headers = [*_other_headers(response), (b"content-type", b"text/event-stream")]
    stream = _EventBytes(response, events)
    return httpx2.Response(response.status_code, headers=headers, stream=stream, request=response.request)


def _other_headers(response: httpx2.Response) -> list[tuple[bytes, bytes]]:
    # As bytes: they may be in any encoding.
    return [(name, value) for name, value in response.headers.raw if name.lower() not in _BODY_HEADERS]


def _encode(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


HANDSHAKES: Final = ("initialize", PROBE)
_NO_SERVER: Final = "the address is not that of an MCP server; write that one, often '…/mcp', as 'url'"
_NO_POST: Final = (
    "the address takes no messages by POST, as one of the SSE transport, which MCP has withdrawn; write the server's "
    "address for streamable HTTP, often '…/mcp', as 'url'"
)


def _failure_of(exchange: Exchange, response: httpx2.Response, reply: JSONRPCMessage | None) -> JSONRPCMessage:
    """Return the reply of a request that was refused with an HTTP status."""
    status = response.status_code
    error = reply if isinstance(reply, JSONRPCError) and not is_malformed(reply) else None
    text = f"HTTP status {status} {response.reason_phrase}".rstrip()
    if error is not None:
        text = f"{text}: {error.error.message}"
    if status == HTTPStatus.UNAUTHORIZED:
        return exchange.fail(TransportFailure.UNAUTHORIZED, text)
    if status == HTTPStatus.FORBIDDEN:
        return exchange.fail(TransportFailure.FORBIDDEN, text)
    retry_after = read_retry_after(response.headers.get("retry-after", ""), time.time())
    if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.SERVICE_UNAVAILABLE and retry_after is not None):
        return exchange.fail(TransportFailure.THROTTLED, text, retry_after)
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # the arguments are what is large
        return JSONRPCError(jsonrpc="2.0", id=exchange.id, error=ErrorData(code=INVALID_PARAMS, message=text))
    if error is not None:
        return error
    is_address_wrong = status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
    if is_address_wrong and exchange.method in HANDSHAKES:
        text = f"{text}: {_NO_POST}"
    if status == HTTPStatus.NOT_FOUND and MCP_SESSION_ID not in response.request.headers:
        return JSONRPCError(jsonrpc="2.0", id=exchange.id, error=ErrorData(code=METHOD_NOT_FOUND, message=text))
    return exchange.fail(TransportFailure.HTTP_STATUS, text)


def read_retry_after(value: str, now: float) -> float | None:
    """Return the seconds of a header ``Retry-After``, which is a number or a date; None: it is neither.

    Args:
        now: Unix time.
    """
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
