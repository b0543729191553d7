"""One MCP server as a source of the catalogue, and the executor of its tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from dispatch._internal.clock import yield_to_others
from dispatch.calls.invokers.local_executor import LocalCall, LocalResult
from dispatch.calls.resolution.local_queues import local_queue
from dispatch.catalog.readers.item import Item
from dispatch.catalog.sources.base import OnChange
from dispatch.mcp.client.callbacks import Callbacks
from dispatch.mcp.client.configuration import ServerSettings
from dispatch.mcp.client.session import McpSession, SessionTransport
from dispatch.mcp.client.session_pool import SessionPool
from dispatch.mcp.client.tool_items import refused_item, service_item, tool_item
from dispatch.mcp.client.tool_list import ListedTool
from dispatch.mcp.client.transports.http import HttpTransport
from dispatch.mcp.client.transports.replies import RefusedTool
from dispatch.mcp.client.transports.stdio import StdioTransport
from dispatch.policy import Policy

logger = logging.getLogger("dispatch.mcp")


class McpServerError(RuntimeError):
    """An MCP server is out of reach; ``str()`` says why and for how long."""


class Names(Protocol):
    """Chooses the names of all tools of a configuration."""

    def update(self, server: str, tools: Sequence[str]) -> Mapping[str, str]:
        """Set the tools of a server; return their names in the catalogue. Other servers are told where theirs change."""


class McpServerSource:
    """One MCP server: a service, and a tool for each of its tools.

    Args:
        id: of the source and of the service.
        settings: of the server.
        names: of all servers.
        callbacks: answers to requests of the server.
    """

    is_atomic = False

    def __init__(self, id: str, settings: ServerSettings, names: Names, callbacks: Callbacks) -> None:
        self.id = id
        self.settings = settings
        self.on_change: OnChange = settings.on_change
        self.request_queue = local_queue(id, "extension")
        self._names = names
        self._callbacks = callbacks
        self._service = service_item(id, settings)
        self._reported: set[str] = set()
        self._items: dict[str, tuple[bytes, Item]] = {}
        self._is_changed = asyncio.Event()
        self._pool: SessionPool | None = None

    @property
    def executor(self) -> McpServerSource:
        """Executes the tools."""
        return self

    # -- the source ---------------------------------------------------------------------------------------------

    def announce_change(self) -> None:
        """Have the items read again."""
        self._is_changed.set()

    def _start(self) -> SessionPool:
        if self._pool is None:
            self._is_changed = asyncio.Event()  # the former one may belong to another event loop
            self._pool = SessionPool(self._create_sessions(), Policy().merged(self.settings.policy), self._callbacks)
            self._pool.start()
        return self._pool

    def _create_sessions(self) -> list[McpSession]:
        settings = self.settings
        create = partial(McpSession, callbacks=self._callbacks, on_change=self.announce_change)
        if settings.command:
            return [create(settings.name, self._open_stdio, poll=False, is_process=True)]
        several = len(settings.urls) > 1
        return [
            create(
                _instance_name(settings.name, url) if several else settings.name,
                partial(HttpTransport, url, settings.headers),
                poll=True,
            )
            for url in settings.urls
        ]

    def _open_stdio(self) -> SessionTransport:
        settings = self.settings
        return StdioTransport(settings.name, settings.command, settings.args, settings.env, settings.cwd)

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each change of the tools or of the connection."""
        self._start()
        while True:
            await self._is_changed.wait()
            self._is_changed.clear()
            yield

    async def discover(self) -> Sequence[Item]:
        """Return the service and its tools. A tool that did not change is the same object as before.

        Raises:
            McpServerError: the server is out of reach.
        """
        await yield_to_others()
        pool = self._start()
        await pool.wait_first()
        if not pool.is_connected:
            raise McpServerError(f"{pool.problem}; it is tried again")
        tools = {tool.name: tool for tool in pool.tools or () if self._is_used(tool.name)}
        self._report_unknown(tools)
        names = self._names.update(self.settings.name, [name for name in tools if name])
        items: dict[str, tuple[bytes, Item]] = {}
        for name, tool in tools.items():
            items[name] = self._find_item(names.get(name, ""), tool)
        self._items = items
        return [self._service, *(item for _, item in items.values())]

    def _find_item(self, name: str, tool: ListedTool) -> tuple[bytes, Item]:
        if isinstance(tool, RefusedTool):
            key = msgspec.json.encode([name, tool])
            create = partial(refused_item, name, tool, self.settings)
        else:
            key = msgspec.json.encode([name, tool.model_dump(mode="json", by_alias=True, exclude_none=True)])
            create = partial(tool_item, self.id, name, tool, self.settings)
        known = self._items.get(tool.name)
        return known if known is not None and known[0] == key else (key, create())

    def _is_used(self, tool: str) -> bool:
        return self.settings.only is None or tool in self.settings.only

    def _report_unknown(self, tools: Collection[str]) -> None:
        unknown = set(self.settings.only or ()).difference(tools, self._reported)
        if unknown:
            self._reported |= unknown
            logger.warning(
                "%s: 'only' names tools that the server does not have: %s", self.id, ", ".join(sorted(unknown))
            )

    async def close(self) -> None:
        """End the sessions and the processes of the server."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    # -- the executor -------------------------------------------------------------------------------------------

    async def execute(self, call: LocalCall) -> LocalResult:
        """Call the tool at the server. Cancelling this cancels the call there.

        Raises:
            ToolError: of the tool.
            RefusedCallError: the server is out of reach, or refuses the call.
            FailedCallError: the server ended, or did not answer by the protocol; the tool may have been executed.
        """
        return await self._start().execute(call)


def _instance_name(server: str, url: str) -> str:
    parts = urlsplit(url)
    return f"{server}:{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
