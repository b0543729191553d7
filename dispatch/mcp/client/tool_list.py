"""The list of a server's tools: read with all pages, and read again after each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from mcp import Client, MCPError, types
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from dispatch._internal.cancellation import cancel_and_wait

logger = logging.getLogger("dispatch.mcp")

POLL_S: Final = 60.0
"""Seconds between two reads of the list of a server that announces no changes and gives no time to live."""
MIN_POLL_S: Final = 1.0
COALESCE_S: Final = 0.1
"""Seconds between two reads at least: a server that announces each of 200 tools is read a few times."""
LISTEN_AGAIN_S: Final = 1.0
"""Seconds until a subscription that has ended is opened again; at most 30 while each one fails."""
MAX_LISTEN_AGAIN_S: Final = 30.0
MAX_PAGES: Final = 1_000
"""Pages of one list: a server whose list has no end must not be read for ever."""


class ToolList:
    """Reads and follows the list of one session.

    Args:
        poll: also read it every :data:`POLL_S` from a server that announces changes: its stream of notifications may have
            ended without a sign.
    """

    def __init__(self, *, poll: bool) -> None:
        self._poll = poll
        self._ttl_s = 0.0
        self._is_changed = asyncio.Event()
        self._is_announced = False

    async def on_message(self, message: IncomingMessage) -> None:
        """Receive what the server sends on its own."""
        if isinstance(message, types.ToolListChangedNotification):
            self._is_changed.set()

    async def read(self, client: Client) -> list[types.Tool]:
        """Return all tools.

        Raises:
            MCPError: the server does not answer, or with an error.
        """
        tools: list[types.Tool] = []
        cursor: str | None = None
        capabilities = client.server_capabilities
        if capabilities.tools is None:
            return []
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                self._ttl_s = page.ttl_ms / 1000
                return tools
        logger.warning("the list of tools has more than %d pages; the others are left out", MAX_PAGES)
        return tools

    async def follow(self, client: Client, on_tools: Callable[[Sequence[types.Tool]], object]) -> None:
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
                except MCPError as error:
                    logger.warning("the list of tools cannot be read again: %s", error.message)
                    await asyncio.sleep(LISTEN_AGAIN_S)
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
