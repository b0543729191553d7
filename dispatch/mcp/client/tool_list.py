"""The list of a server's tools: read with all pages, and read again after each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from mcp import Client, MCPError, types
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.types import INVALID_PARAMS
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.mcp.client.transports.replies import RefusedTool, describe_invalid, find_refused_tools, find_retry_after

logger = logging.getLogger("dispatch.mcp")

POLL_S: Final = 60.0
"""Seconds between two reads of the list of a server that announces no changes and gives no time to live."""
MIN_POLL_S: Final = 1.0
COALESCE_S: Final = 0.1
"""Seconds between two reads at least: a server that announces each of 200 tools is read a few times."""
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
        try:
            page = await self._client.list_tools(cursor=self.cursor)
        except MCPError as error:
            if self.cursor is None or error.code != INVALID_PARAMS:
                raise
            self._end("has a cursor that the server itself refuses")
            return 0.0
        found: list[ListedTool] = [*page.tools, *find_refused_tools(page)]
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
        self._is_changed = asyncio.Event()
        self._is_announced = False

    async def on_message(self, message: IncomingMessage) -> None:
        """Receive what the server sends on its own."""
        if isinstance(message, types.ToolListChangedNotification):
            self._is_changed.set()

    async def read(self, client: Client) -> list[ListedTool]:
        """Return all tools. A list without an end is used as far as it was read.

        Raises:
            MCPError: the server does not answer, or with an error.
            ValueError: its answer is no list of tools.
            TimeoutError: the pages of a list that was complete before take more than :data:`LIST_S`.
        """
        if client.server_capabilities.tools is None:
            return []
        pages = Pages(client)
        try:
            self._ttl_s = await pages.read_next()
            self.has_page = True
            async with asyncio.timeout(LIST_S):
                while pages.cursor is not None:
                    await pages.read_next()
        except TimeoutError:
            if self._is_read and not self._is_cut:
                raise
            pages.problem = f"takes more than {LIST_S:g} s"
        if pages.problem and not self._is_cut:
            logger.warning("the list of tools %s; its first %d tools are used", pages.problem, len(pages.tools))
        self._is_cut = bool(pages.problem)
        self._is_read = True
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
                    reason = describe_invalid(error) or f"its pages take more than {LIST_S:g} s"
                    logger.warning("the list of tools cannot be read again: %s", reason)
                    await asyncio.sleep(max(LISTEN_AGAIN_S, find_retry_after(error) or 0.0))
                    self._is_changed.set()
                else:
                    await asyncio.sleep(COALESCE_S)
        finally:
            await cancel_and_wait((listening,))

    async def _wait_change(self) -> None:
        timeout = None if self._is_announced and not self._poll else max(self._ttl_s or POLL_S, MIN_POLL_S)
        try:
            async with asyncio.timeout(timeout):
                await self._is_changed.wait()
        except TimeoutError:
            pass

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
