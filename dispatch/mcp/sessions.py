"""One session with an MCP server: connected, supervised and restarted."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from mcp import Client, MCPError, types
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.types import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from dispatch import __version__
from dispatch._internal import Randomness, cancel_and_wait, excerpt, wait_set
from dispatch.calls.attempt import LEAST_REST
from dispatch.calls.local import LocalCall, LocalInstance, LocalResult, RefusedCallError
from dispatch.catalog.versions import is_version
from dispatch.errors import DispatchError
from dispatch.mcp import conversion
from dispatch.mcp.replies import RefusedTool, TransportFailure, describe_invalid, find_refused_tools, find_retry_after
from dispatch.mcp.transports import HttpTransport, ServerStartError, StdioTransport

# The list of a server's tools: read with all pages, and read again after each change.


logger = logging.getLogger("dispatch.mcp")

POLL_S: Final = 60.0
"""Seconds between two reads of the list of a server that announces no changes and gives no time to live."""
MIN_POLL_S: Final = 1.0
COALESCE_S: Final = 0.1
"""Seconds between two reads at least: a server that announces each of 200 tools is read a few times."""
MAX_COALESCE_S: Final = 0.8
"""The same while the list stays as it is, doubled with each read: some servers announce a change at each read."""
LISTEN_AGAIN_S: Final = 1.0
"""Seconds until a subscription that has ended is opened again; at most 30 while each one fails."""
MAX_LISTEN_AGAIN_S: Final = 30.0
LIST_S: Final = 5.0
"""Seconds that the pages behind the first one may take: a server whose list has no end must not be read for ever."""
MAX_PAGES: Final = 1_000
"""Pages of one list."""
MAX_EMPTY_PAGES: Final = 10
"""Pages in succession without a tool."""

ListedTool = types.Tool | RefusedTool


class Pages:
    """Reads a list of tools page by page.

    Attributes:
        tools: of the pages that were read.
        cursor: of the next page; None: there is none.
        problem: why the list was not read to its end; empty: it was.
    """

    def __init__(self, client: Client) -> None:
        self.tools: list[ListedTool] = []
        self.cursor: str | None = None
        self.problem = ""
        self._client = client
        self._followed: set[str] = set()
        self._names: set[str] = set()
        self._empty = 0

    async def read_next(self) -> float:
        """Read a page; return the seconds for which it is valid.

        Raises:
            MCPError: the server does not answer, or with an error.
            ValueError: its answer is no list of tools.
        """
        page = await self._client.list_tools(cursor=self.cursor)
        listed = (tool if tool.name else RefusedTool("", "it has no name") for tool in page.tools)
        found: list[ListedTool] = [*listed, *find_refused_tools(page)]
        names = {tool.name for tool in found}
        is_repeated = bool(found) and names <= self._names
        if not is_repeated:
            self.tools += found
            self._names |= names
        self._empty = 0 if found else self._empty + 1
        self.cursor = page.next_cursor or None  # some servers write "" on the last page
        if self.cursor is None:
            pass
        elif self.cursor in self._followed or is_repeated:
            self._end("repeats itself")
        elif self._empty > MAX_EMPTY_PAGES or len(self._followed) + 1 >= MAX_PAGES:
            self._end("has no end")
        else:
            self._followed.add(self.cursor)
        return page.ttl_ms / 1000

    def _end(self, problem: str) -> None:
        self.problem = problem
        self.cursor = None


class ToolList:
    """Reads and follows the list of one session.

    Args:
        poll: also read it every :data:`POLL_S` from a server that announces changes: its stream of notifications may have
            ended without a sign.

    Attributes:
        has_page: the first page was read.
    """

    def __init__(self, *, poll: bool) -> None:
        self._poll = poll
        self.has_page = False
        self._is_read = False
        self._is_cut = False
        self._ttl_s = 0.0
        self._found: list[ListedTool] = []
        """By the last read."""
        self._pause = COALESCE_S
        self._is_changed = asyncio.Event()
        self._is_announced = False

    async def on_message(self, message: IncomingMessage) -> None:
        """Receive what the server sends on its own."""
        if isinstance(message, types.ToolListChangedNotification):
            self._is_changed.set()

    async def read(self, client: Client) -> list[ListedTool]:
        """Return all tools. A list that cannot be read to its end is used as far as it was read, unless it was complete
        before.

        Raises:
            MCPError: the server does not answer, or with an error.
            ValueError: its answer is no list of tools.
            TimeoutError: the further pages take more than :data:`LIST_S`.
        """
        if client.server_capabilities.tools is None:
            return []
        pages = Pages(client)
        try:
            self._ttl_s = await pages.read_next()
            self.has_page = True
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return []
        try:
            async with asyncio.timeout(LIST_S):
                while pages.cursor is not None:
                    await pages.read_next()
        except (MCPError, ValueError, TimeoutError) as error:
            is_refused = isinstance(error, MCPError) and error.code == INVALID_PARAMS  # a cursor of the server itself
            if self._is_read and not self._is_cut and not is_refused:
                raise
            pages.problem = f"cannot be read to its end ({_describe_list_error(error)})"
        if pages.problem and not self._is_cut:
            logger.warning("the list of tools %s; its first %d tools are used", pages.problem, len(pages.tools))
        self._is_cut = bool(pages.problem)
        self._is_read = True
        self._pause = COALESCE_S if pages.tools != self._found else min(2 * self._pause, MAX_COALESCE_S)
        self._found = pages.tools
        return pages.tools

    async def follow(self, client: Client, on_tools: Callable[[Sequence[ListedTool]], object]) -> None:
        """Call ``on_tools`` with all tools after each change. Does not return."""
        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        tools = client.server_capabilities.tools
        announces = tools is not None and bool(tools.list_changed)
        self._is_announced = announces and not is_modern
        listening = asyncio.create_task(self._listen(client)) if announces and is_modern else None
        try:
            while True:
                await self._wait_change()
                self._is_changed.clear()
                try:
                    on_tools(await self.read(client))
                except (MCPError, ValueError, TimeoutError) as error:
                    logger.warning("the list of tools cannot be read again: %s", _describe_list_error(error))
                    await asyncio.sleep(max(LISTEN_AGAIN_S, find_retry_after(error) or 0.0))
                    self._is_changed.set()
                else:
                    await asyncio.sleep(self._pause)
        finally:
            await cancel_and_wait((listening,))

    async def _wait_change(self) -> None:
        is_polled = self._poll or self._is_cut or not self._is_announced
        await wait_set(self._is_changed, max(self._ttl_s or POLL_S, MIN_POLL_S) if is_polled else None)

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes, again whenever the subscription ends; what changed in between is read."""
        loop = asyncio.get_running_loop()
        wait = LISTEN_AGAIN_S
        while True:
            began = loop.time()
            try:
                async with client.listen(tools_list_changed=True) as subscription:
                    self._is_announced = bool(subscription.honored.tools_list_changed)
                    self._is_changed.set()
                    async for _ in subscription:
                        self._is_changed.set()
            except (MCPError, SubscriptionLost) as error:
                logger.debug("the subscription to the list of tools has ended: %s", error)
            self._is_announced = False
            if loop.time() - began > MAX_LISTEN_AGAIN_S:
                wait = LISTEN_AGAIN_S
            await asyncio.sleep(wait)
            wait = min(2 * wait, MAX_LISTEN_AGAIN_S)


def _describe_list_error(error: Exception) -> str:
    reason = f"its pages take more than {LIST_S:g} s" if isinstance(error, TimeoutError) else describe_invalid(error)
    return excerpt(" ".join(reason.split()), 300)


HANDSHAKE_S: Final = 10.0
"""Seconds that the start of a server, the handshake and the first page of its tools may take."""
MAX_PATIENCE: Final = 6
"""Multiples of :data:`HANDSHAKE_S` that a process may take, doubled with each failed attempt: ``npx`` and ``uvx`` download a
server at its first start, and begin again if they are stopped meanwhile."""
FIRST_RETRY_S: Final = 0.5
"""Seconds until a server that has ended is started again; doubled each time."""
MAX_RETRY_S: Final = 30.0
MAX_PAUSE_S: Final = 300.0
"""Seconds until the next attempt at most, if a server has asked for a pause."""
TRY_AGAIN_S: Final = 0.5
"""Seconds after an attempt in which no call has another one made."""
OPENING_S: Final = 2.0
"""Seconds that a call waits for a session that is being opened, within its own deadline."""
STABLE_S: Final = 5.0
"""Seconds after which a session that ends begins with :data:`FIRST_RETRY_S` again, if it has not answered a call."""
RESTART_S: Final = 0.5
"""Seconds that a process must have served before it is started again at once."""
JITTER: Final = 0.2
"""Share by which a wait is shorter at most, so that sessions with one server do not connect at the same instant."""

MODE: Final = "auto"
"""The newest protocol that the server speaks: 2026-07-28, or a handshake down to 2024-11-05. It begins with
``server/discover``, at which some servers end or hang: they accept nothing before ``initialize``."""
LEGACY: Final = "legacy"
"""A handshake, which begins with ``initialize``."""

MAX_STARTS: Final = 2 * (os.cpu_count() or 1)
"""Processes that start at the same time. Fifty at once on two processors would all exceed :data:`HANDSHAKE_S`, again and
again."""

SessionTransport = StdioTransport | HttpTransport

_starts: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class SessionEndedError(Exception):
    """A session cannot be opened, or has ended; ``str()`` says why."""


class McpSession:
    """A session with one server, which is opened again whenever it ends.

    Args:
        name: of the instance, unique in the server; for messages and results.
        open_transport: returns a new transport.
        callbacks: answers to requests of the server.
        on_change: called after each change of the state or of the tools.
        is_process: dispatch starts the server: not many at the same time.
        poll: the list of tools is also read from time to time, whatever the server announces.
        randomness: of the waits.

    Attributes:
        tools: of the server; None: never read. They stay while the server is out of reach.
        problem: why there is no session; empty: there is one.
        version: of the server; None: unknown, or no semantic version.
        has_served: the session has answered a call. A process that ends then is started again at once: one that is killed
            from time to time must not be taken for one that cannot run.
    """

    def __init__(
        self,
        name: str,
        open_transport: Callable[[], SessionTransport],
        callbacks: conversion.Callbacks,
        on_change: Callable[[], object],
        *,
        poll: bool,
        is_process: bool = False,
        randomness: Randomness = random.random,
    ) -> None:
        self.name = name
        self.tools: tuple[ListedTool, ...] | None = None
        self.problem = "not connected yet"
        self.version: str | None = None
        self.has_served = False
        self._open_transport = open_transport
        self._callbacks = callbacks
        self._on_change = on_change
        self._poll = poll
        self._is_process = is_process
        self._randomness = randomness
        self._outputs = conversion.OutputSchemas()
        self._client: Client | None = None
        self._transport: SessionTransport | None = None
        """Of the client."""
        self._mode = MODE
        self._patience = 1
        self._is_reopening = False
        self._opened = asyncio.Event()
        self._opened_at: float | None = None
        self._began_at: float | None = None
        """When the attempt under way began; None: there is none."""
        self._retry_at = 0.0
        self._may_try_at = 0.0
        """When a call may have the next attempt made at once."""
        self._is_wanted = asyncio.Event()
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- life cycle ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the session, and keep it open, in a task."""
        if self._task is None:
            self._task = asyncio.create_task(self._supervise(), name=f"dispatch-mcp-{self.name}")

    async def close(self) -> None:
        """End the session; the process of the server ends with it."""
        task, self._task = self._task, None
        await cancel_and_wait((task,))

    async def wait_first(self, limit: float | None = None) -> None:
        """Wait until the first attempt to connect has succeeded or failed.

        Args:
            limit: seconds, at most; None: as long as it takes.
        """
        await wait_set(self._first, limit)

    # -- use ----------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client | None:
        """The client of the SDK; None: there is no session."""
        return self._client if self._transport is not None and self._transport.is_usable else None

    @property
    def is_reopening(self) -> bool:
        """Whether the session has ended, and a new one is being opened at once."""
        return self._is_reopening or (self.client is None and self._is_reopened_at_once)

    @property
    def _is_reopened_at_once(self) -> bool:
        """The server has forgotten the session, or was ended after it had served."""
        if self._opened_at is None:
            return False
        is_restarted = self._is_process and self.has_served
        return self._is_unknown or (is_restarted and asyncio.get_running_loop().time() - self._opened_at >= RESTART_S)

    @property
    def _is_unknown(self) -> bool:
        return isinstance(self._transport, HttpTransport) and self._transport.is_unknown

    def try_now(self) -> bool:
        """Have the session opened for a call, if the last attempt was not just now: the server may be back long before the
        next attempt is due. A process is not started for each call. Return whether the call should wait for an attempt."""
        if self._is_process or self._task is None:
            return False
        now = asyncio.get_running_loop().time()
        if self._began_at is not None:
            return now - self._began_at < OPENING_S
        if now >= self._may_try_at:
            self._began_at = now
            self._is_wanted.set()
        return self._began_at is not None

    async def wait_opened(self, limit: float) -> None:
        """Wait while the session is being opened: :data:`REOPEN_S` seconds at most where the former one has just ended,
        otherwise :data:`OPENING_S`.

        Args:
            limit: seconds, at most.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(min(limit, REOPEN_S if self.is_reopening else OPENING_S)):
                while self.client is None and (self.is_reopening or self.try_now()):
                    self._opened.clear()
                    await self._opened.wait()

    @property
    def retry_after(self) -> float:
        """Seconds until the next attempt to connect, at least :data:`FIRST_RETRY_S`."""
        return max(FIRST_RETRY_S, self._retry_at - asyncio.get_running_loop().time())

    # -- supervision --------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        wait = FIRST_RETRY_S
        is_wanted = False
        while True:
            former, self._opened_at, self.has_served = self.problem, None, False
            self._began_at = loop.time()
            asked: float | None = None
            try:
                async with self._limit_starts() as started:
                    await self._run(started)
            except Exception as error:  # of a server or of the SDK, which may raise anything; it is reported
                self.problem = self._describe_end() or describe_failure(error, self._find_origin())
                asked = find_retry_after(first_error(error))
                if self._opened_at is None and not _is_unsent(first_error(error)):
                    self._mode = MODE if self._mode == LEGACY else LEGACY
                    if self._mode == LEGACY and self._is_process and not self._first.is_set():
                        logger.info("%s: %s; it is started again without 'server/discover'", self.name, self.problem)
                        continue
            if self._opened_at is not None and (self.has_served or loop.time() - self._opened_at >= STABLE_S):
                wait = FIRST_RETRY_S
            if self._is_reopened_at_once:
                if not self._is_unknown:
                    logger.warning("%s: %s; it is started again", self.name, self.problem)
                self._is_reopening = True
                continue
            self._is_reopening = False
            self._began_at = None
            pause = min(asked or 0.0, MAX_PAUSE_S)
            delay = max(wait * (1 - JITTER * self._randomness()), pause)
            self._retry_at = loop.time() + delay
            self._may_try_at = loop.time() + max(TRY_AGAIN_S, pause)
            self._opened.set()  # there is nothing to wait for
            if not is_wanted or self._opened_at is not None or self.problem != former:
                logger.warning("%s: %s; the next attempt is in %.1f s", self.name, self.problem, delay)
            self._first.set()
            if self._is_process:
                self._patience = 1 if self._opened_at is not None else min(2 * self._patience, MAX_PATIENCE)
            self._on_change()
            self._is_wanted.clear()
            is_wanted = await wait_set(self._is_wanted, delay)
            if not is_wanted:
                wait = min(2 * wait, MAX_RETRY_S)

    def _describe_end(self) -> str:
        return self._transport.end if isinstance(self._transport, StdioTransport) else ""

    def _find_origin(self) -> str:
        return self._transport.origin if isinstance(self._transport, HttpTransport) else ""

    @asynccontextmanager
    async def _limit_starts(self) -> AsyncIterator[Callable[[], object]]:
        """Wait until this session may start; yield a function to be called when it has."""
        with ExitStack() as stack:
            if self._is_process:
                starts = _starts.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_STARTS))
                await starts.acquire()
                stack.callback(starts.release)
            yield stack.close  # releases once, however often it is called

    async def _run(self, on_started: Callable[[], object]) -> None:
        """Open a session and wait for its end; call ``on_started`` when it is open.

        Raises:
            Exception: why it has ended. It always has a reason.
        """
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[Client] = loop.create_future()
        tools = ToolList(poll=self._poll)
        holder = asyncio.create_task(self._hold(ready, tools))
        opening = asyncio.create_task(self._open(ready, tools))
        tasks: list[asyncio.Task[Any]] = [holder, opening]
        try:
            done, _ = await asyncio.wait(tasks, timeout=HANDSHAKE_S, return_when=asyncio.FIRST_COMPLETED)
            if not done and self._patience > 1:
                on_started()  # others may start
                more = HANDSHAKE_S * (self._patience - 1)
                done, _ = await asyncio.wait(tasks, timeout=more, return_when=asyncio.FIRST_COMPLETED)
            if not done and tools.has_page:
                done, _ = await asyncio.wait(tasks, timeout=LIST_S, return_when=asyncio.FIRST_COMPLETED)
            if opening not in done:
                if holder in done:
                    holder.result()
                what = "no reply to tools/list" if ready.done() else "no handshake"
                last = self._transport.describe_last_line() if isinstance(self._transport, StdioTransport) else ""
                raise SessionEndedError(f"{what} within {HANDSHAKE_S * self._patience:g} s{last}")
            opening.result()
            on_started()
            following = asyncio.create_task(tools.follow(ready.result(), self._set_tools))
            tasks.append(following)
            await asyncio.wait((holder, following), return_when=asyncio.FIRST_COMPLETED)
            self._client = None
            holder.result() if holder.done() else following.result()
        finally:
            self._client = None
            await cancel_and_wait(tasks)

    async def _hold(self, ready: asyncio.Future[Client], tools: ToolList) -> None:
        """Hold the client of one session, whose context one task must enter and leave."""
        transport = self._open_transport()
        self._transport = transport
        client = Client(
            transport,
            mode=self._mode,
            message_handler=tools.on_message,
            client_info=types.Implementation(name="dispatch", version=__version__),
            cache=None,  # lists are read when the server says that they have changed
            **self._callbacks.as_options(),
        )
        async with client:
            self._outputs.use_in(client.session)
            ready.set_result(client)
            await transport.ended.wait()
        raise SessionEndedError("it does not know the session any more" if self._is_unknown else "the server has ended")

    async def _open(self, ready: asyncio.Future[Client], tools: ToolList) -> None:
        client = await ready
        found = await tools.read(client)
        self.problem = ""
        info = client.server_info
        self.version = info.version if info is not None and is_version(info.version) else None
        self._client = client
        self._opened_at = asyncio.get_running_loop().time()
        self._began_at = None
        self._is_reopening = False
        self._opened.set()
        self._set_tools(found)
        self._first.set()
        logger.info("%s: connected, protocol %s, %d tools", self.name, client.protocol_version, len(found))

    def _set_tools(self, tools: Sequence[ListedTool]) -> None:
        self.tools = tuple(tools)
        self._outputs.set_tools(tool for tool in tools if isinstance(tool, types.Tool))
        self._on_change()


def first_error(error: BaseException) -> BaseException:
    """Return ``error``, or the first one in a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_unsent(error: BaseException) -> bool:
    """Whether the server has received nothing, so that the failure says nothing about the protocol that it speaks."""
    return isinstance(error, OSError) or (isinstance(error, MCPError) and error.code == TransportFailure.NOT_SENT)


def describe_failure(error: BaseException, origin: str = "") -> str:
    """Return the reason of a failure in one line; of a group of errors, the first one's. ``origin``: of the server."""
    error = first_error(error)
    text = " ".join(describe_invalid(error).split())
    if origin and isinstance(error, MCPError) and (described := _describe_http_failure(error.code, text, origin)):
        return excerpt(described, 400)
    if isinstance(error, (SessionEndedError, MCPError, ServerStartError)):
        return excerpt(text, 300)
    return excerpt(f"{type(error).__name__}: {text}" if text else type(error).__name__, 300)


def _describe_http_failure(code: int, text: str, origin: str) -> str:
    """Return why a server does not serve this client, and what to correct; empty: for another reason."""
    if code in (TransportFailure.UNAUTHORIZED, TransportFailure.FORBIDDEN):
        fix = 'write its credentials as \'headers\', such as {"Authorization": "Bearer ${TOKEN}"}'
        return f"{text.rstrip('.')}. Fix: {fix}"
    if code == TransportFailure.NOT_SENT:
        fix = "start it, or correct 'url'"
        if "CERTIFICATE_VERIFY_FAILED" in text:
            fix = "set SSL_CERT_FILE to the certificate of its authority, or correct its certificate or 'url'"
        elif "[SSL" in text:
            fix = "write http:// in 'url' if it has no TLS, or correct its TLS"
        return f"{origin} cannot be reached ({text}). Fix: {fix}"
    if code == TransportFailure.REPLY_LOST and text.startswith(("ReadError", "RemoteProtocolError", "WriteError")):
        fix = "write https:// in 'url' if it has TLS, or " * origin.startswith("http:") + "correct 'url'"
        return f"{origin} has closed the connection without an answer of HTTP ({text}). Fix: {fix}"
    return ""


# The sessions of one server, as instances of its service.


REOPEN_S: Final = HANDSHAKE_S
"""Seconds that a call waits for a new session where the former one has just ended, within its own deadline."""
WAITING_SHARE: Final = 1 - LEAST_REST
"""Share of its time that a call may wait for a session. One that still waits at its deadline would count as executed."""


def find_waiting_time(call: LocalCall) -> float:
    """Return the seconds that a call may wait for a session."""
    return call.context.remaining * WAITING_SHARE


class UnsentCallError(Exception):
    """A session cannot be used, and the server did not execute the call."""


class ForgottenSessionError(UnsentCallError):
    """The server does not know the session."""


class McpInstance(LocalInstance):
    """Executes the tools of a server over one session, which has them under the config value :data:`TOOL_PARAM`.

    Args:
        session: with the server.
        callbacks: that the session has.
    """

    def __init__(self, session: McpSession, callbacks: conversion.Callbacks) -> None:
        super().__init__(self.call, session.name)
        self.session = session
        self._callbacks = callbacks

    @property
    def version(self) -> str | None:
        """The version of the server, if it is a semantic one."""
        return self.session.version

    @property
    def is_suspect(self) -> bool:
        """See :class:`~dispatch.routing.instance.Instance`."""
        return self.session.client is None and not self.session.is_reopening

    def find_absence(self, tool: str) -> DispatchError | None:
        """See :class:`~dispatch.calls.local.LocalInstance`."""
        if not self.is_suspect or self.session.try_now():
            return None
        return conversion.error_from_missing_session(tool, self.session.retry_after)

    async def call(self, call: LocalCall) -> LocalResult:
        """Call the tool at the server. Cancelling this cancels the call there.

        Raises:
            ToolError: of the tool.
            RefusedCallError: the server is out of reach, or refuses the call.
            FailedCallError: the server ended, or did not answer by the protocol; the tool may have been executed.
        """
        session = self.session
        try:
            if session.client is None:
                await session.wait_opened(find_waiting_time(call))
            try:
                result = await self._call(call)
            except ForgottenSessionError:
                await session.wait_opened(find_waiting_time(call))
                result = await self._call(call)
            session.has_served = True
        except UnsentCallError:
            error = conversion.error_from_missing_session(call.tool, session.retry_after)
            raise RefusedCallError(error, elsewhere=True) from None
        except MCPError as error:
            if error.code == TransportFailure.INVALID_RESULT:
                raise conversion.error_from_invalid_result(call.tool, session.name, error) from None
            raise conversion.error_from_mcp_error(error, call.tool, session.name) from None
        except (RuntimeError, ValueError) as error:  # of the SDK, or of the check against the output schema
            raise conversion.error_from_unreadable_result(call.tool, session.name, error) from None
        if isinstance(result, types.InputRequiredResult):
            raise conversion.error_from_input_required(call.tool, result)
        return conversion.read_result(result, session.name)

    async def _call(self, call: LocalCall) -> types.CallToolResult | types.InputRequiredResult:
        """Return the result.

        Raises:
            UnsentCallError: there is no connection, or the server has forgotten the session.
            MCPError: an error of the server, or of the connection.
        """
        client, name = self.session.client, call.config[conversion.TOOL_PARAM]
        if client is None:
            raise UnsentCallError
        try:
            if self._callbacks.has_any:
                return await client.call_tool(name, call.arguments)
            result = await client.session.call_tool(name, call.arguments, allow_input_required=True)
        except MCPError as error:
            if error.code == TransportFailure.FORGOTTEN:
                raise ForgottenSessionError from None
            if error.code == TransportFailure.NOT_SENT:
                raise UnsentCallError from None
            if error.code != HEADER_MISMATCH:
                raise
            return await client.call_tool(name, call.arguments)  # was not executed; it reads the tool's schema again
        assert isinstance(result, (types.CallToolResult, types.InputRequiredResult))
        return result
