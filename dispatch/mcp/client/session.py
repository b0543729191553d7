"""One session with an MCP server: connected, supervised and restarted."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from mcp import Client, MCPError, types

from dispatch._internal.cancellation import cancel_and_wait
from dispatch._internal.permit import Randomness
from dispatch._internal.suggestions import excerpt
from dispatch._internal.version import __version__
from dispatch.mcp.client.callbacks import Callbacks
from dispatch.mcp.client.tool_list import LIST_S, ListedTool, ToolList
from dispatch.mcp.client.transports.http import HttpTransport
from dispatch.mcp.client.transports.replies import describe_invalid, find_retry_after
from dispatch.mcp.client.transports.stdio import StdioTransport

logger = logging.getLogger("dispatch.mcp")

HANDSHAKE_S: Final = 10.0
"""Seconds that the start of a server, the handshake and the first page of its tools may take."""
FIRST_RETRY_S: Final = 0.5
"""Seconds until a server that has ended is started again; doubled each time."""
MAX_RETRY_S: Final = 30.0
MAX_PAUSE_S: Final = 300.0
"""Seconds until the next attempt at most, if a server has asked for a pause."""
STABLE_S: Final = 5.0
"""Seconds after which a session that ends begins with :data:`FIRST_RETRY_S` again."""
JITTER: Final = 0.2
"""Share by which a wait is shorter at most, so that sessions with one server do not connect at the same instant."""

MODE: Final = "auto"
"""The newest protocol that the server speaks: 2026-07-28, or a handshake down to 2024-11-05."""

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
    """

    def __init__(
        self,
        name: str,
        open_transport: Callable[[], SessionTransport],
        callbacks: Callbacks,
        on_change: Callable[[], object],
        *,
        poll: bool,
        is_process: bool = False,
        randomness: Randomness = random.random,
    ) -> None:
        self.name = name
        self.tools: tuple[ListedTool, ...] | None = None
        self.problem = "not connected yet"
        self._open_transport = open_transport
        self._callbacks = callbacks
        self._on_change = on_change
        self._poll = poll
        self._is_process = is_process
        self._randomness = randomness
        self._client: Client | None = None
        self._transport: SessionTransport | None = None
        """Of the client."""
        self._is_reopening = False
        self._opened = asyncio.Event()
        self._opened_at: float | None = None
        self._retry_at = 0.0
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

    async def wait_first(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed."""
        await self._first.wait()

    # -- use ----------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client | None:
        """The client of the SDK; None: there is no session."""
        transport = self._transport
        return None if transport is None or transport.ended.is_set() or self._is_unknown else self._client

    @property
    def is_reopening(self) -> bool:
        """Whether the server has forgotten the session, and a new one is being opened."""
        return self._is_reopening or (self._opened_at is not None and self._is_unknown)

    @property
    def _is_unknown(self) -> bool:
        return isinstance(self._transport, HttpTransport) and self._transport.is_unknown

    async def wait_reopened(self, timeout: float) -> bool:
        """Wait while the session is being opened again, for ``timeout`` seconds at most; return whether it is open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.client is None and self.is_reopening:
                    self._opened.clear()
                    await self._opened.wait()
        return self.client is not None

    @property
    def retry_after(self) -> float:
        """Seconds until the next attempt to connect, at least :data:`FIRST_RETRY_S`."""
        return max(FIRST_RETRY_S, self._retry_at - asyncio.get_running_loop().time())

    # -- supervision --------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        wait = FIRST_RETRY_S
        while True:
            self._opened_at = None
            asked: float | None = None
            try:
                async with self._limit_starts() as started:
                    await self._run(started)
            except Exception as error:  # of a server or of the SDK, which may raise anything; it is reported
                self.problem = describe_failure(error)
                asked = find_retry_after(first_error(error))
            if self._opened_at is not None and loop.time() - self._opened_at >= STABLE_S:
                wait = FIRST_RETRY_S
            if self._is_unknown and self._opened_at is not None:
                self._is_reopening = True
                continue
            self._is_reopening = False
            self._opened.set()  # there is nothing to wait for
            delay = max(wait * (1 - JITTER * self._randomness()), min(asked or 0.0, MAX_PAUSE_S))
            self._retry_at = loop.time() + delay
            logger.warning("%s: %s; the next attempt is in %.1f s", self.name, self.problem, delay)
            self._first.set()
            self._on_change()
            await asyncio.sleep(delay)
            wait = min(2 * wait, MAX_RETRY_S)

    @asynccontextmanager
    async def _limit_starts(self) -> AsyncIterator[Callable[[], object]]:
        """Wait until this session may start; yield a function to be called when it has."""
        if not self._is_process:
            yield lambda: None
            return
        loop = asyncio.get_running_loop()
        starts = _starts.setdefault(loop, asyncio.Semaphore(MAX_STARTS))
        await starts.acquire()
        has_started = False

        def release() -> None:
            nonlocal has_started
            if not has_started:
                has_started = True
                starts.release()

        try:
            yield release
        finally:
            release()

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
            if not done and tools.has_page:
                done, _ = await asyncio.wait(tasks, timeout=LIST_S, return_when=asyncio.FIRST_COMPLETED)
            if opening not in done:
                if holder in done:
                    holder.result()
                raise SessionEndedError(f"no handshake within {HANDSHAKE_S:g} s")
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
            mode=MODE,
            message_handler=tools.on_message,
            client_info=types.Implementation(name="dispatch", version=__version__),
            cache=None,  # lists are read when the server says that they have changed
            **self._callbacks.as_options(),
        )
        async with client:
            ready.set_result(client)
            await transport.ended.wait()
        raise SessionEndedError("it does not know the session any more" if self._is_unknown else "the server has ended")

    async def _open(self, ready: asyncio.Future[Client], tools: ToolList) -> None:
        client = await ready
        found = await tools.read(client)
        self.problem = ""
        self._client = client
        self._opened_at = asyncio.get_running_loop().time()
        self._is_reopening = False
        self._opened.set()
        self._set_tools(found)
        self._first.set()
        logger.info("%s: connected, protocol %s, %d tools", self.name, client.protocol_version, len(found))

    def _set_tools(self, tools: Sequence[ListedTool]) -> None:
        self.tools = tuple(tools)
        self._on_change()


def first_error(error: BaseException) -> BaseException:
    """Return ``error``, or the first one in a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe_failure(error: BaseException) -> str:
    """Return the reason of a failure in one line; of a group of errors, the first one's."""
    error = first_error(error)
    text = " ".join(describe_invalid(error).split())
    if isinstance(error, (SessionEndedError, MCPError)):
        return excerpt(text, 300)
    return excerpt(f"{type(error).__name__}: {text}" if text else type(error).__name__, 300)
