"""One MCP server as a source of the catalogue, and the executor of its tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
from mcp import MCPError, types
from mcp.types import CONNECTION_CLOSED, HEADER_MISMATCH, INVALID_REQUEST

from dispatch.calls.invokers.local_executor import LocalCall, LocalResult
from dispatch.calls.resolution.local_queues import local_queue
from dispatch.catalog.readers.item import Item
from dispatch.catalog.sources.base import OnChange
from dispatch.mcp.client.callbacks import Callbacks
from dispatch.mcp.client.configuration import ServerSettings
from dispatch.mcp.client.results import (
    error_from_input_required,
    error_from_loss,
    error_from_mcp_error,
    error_from_missing_session,
    error_from_unreadable_result,
    read_result,
)
from dispatch.mcp.client.session import McpSession, SessionTransport
from dispatch.mcp.client.session_pool import SessionPool, UnsentCallError
from dispatch.mcp.client.tool_items import TOOL_PARAM, service_item, tool_item
from dispatch.mcp.client.transports.http import NOT_SENT, REPLY_LOST, HttpTransport
from dispatch.mcp.client.transports.stdio import StdioTransport
from dispatch.policy import Policy

logger = logging.getLogger("dispatch.mcp")

_LOSSES: Final = ("Connection closed", "SSE stream ")
"""Beginnings of the SDK's texts."""
REOPEN_S: Final = 2.0
"""Seconds that a call waits for a new session with a server that has forgotten the former one."""


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
            self._pool = SessionPool(self._create_sessions(), Policy().merged(self.settings.policy))
            self._pool.start()
        return self._pool

    def _create_sessions(self) -> list[McpSession]:
        settings = self.settings
        create = partial(McpSession, callbacks=self._callbacks, on_change=self.announce_change)
        if settings.command:
            return [create(settings.name, self._open_stdio, poll=False)]
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
        pool = self._start()
        await pool.wait_first()
        if not pool.is_connected:
            raise McpServerError(f"{pool.problem}; it is tried again")
        tools = {tool.name: tool for tool in pool.tools or () if self._is_used(tool.name)}
        names = self._names.update(self.settings.name, tuple(tools))
        items: dict[str, tuple[bytes, Item]] = {}
        for name, tool in tools.items():
            key = msgspec.json.encode([names[name], tool.model_dump(mode="json", by_alias=True, exclude_none=True)])
            known = self._items.get(name)
            if known is None or known[0] != key:
                known = key, tool_item(self.id, names[name], tool, self.settings)
            items[name] = known
        self._items = items
        return [self._service, *(item for _, item in items.values())]

    def _is_used(self, tool: str) -> bool:
        return self.settings.only is None or tool in self.settings.only

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
        pool = self._start()
        tried: set[str] = set()
        while True:
            try:
                with pool.pick(tried) as session:
                    if session is None:
                        raise error_from_missing_session(call.tool, pool.retry_after)
                    tried.add(session.name)
                    return await self._execute_at(session, call)
            except UnsentCallError:
                continue  # at another address

    async def _execute_at(self, session: McpSession, call: LocalCall) -> LocalResult:
        try:
            try:
                result = await self._call(session, call)
            except UnsentCallError:
                if not session.is_unknown or not await session.wait_open(REOPEN_S):
                    raise
                result = await self._call(session, call)
        except MCPError as error:
            if error.code == REPLY_LOST or _is_loss(error):
                raise error_from_loss(call.tool, session.name) from None
            raise error_from_mcp_error(error, call.tool, session.name) from None
        except (RuntimeError, ValueError) as error:  # the SDK checks results against the output schema
            raise error_from_unreadable_result(call.tool, session.name, error) from None
        if isinstance(result, types.InputRequiredResult):
            raise error_from_input_required(call.tool, result)
        return read_result(result, session.name)

    async def _call(self, session: McpSession, call: LocalCall) -> types.CallToolResult | types.InputRequiredResult:
        """Return the result.

        Raises:
            UnsentCallError: there is no connection, or the server has forgotten the session.
            MCPError: an error of the server, or of the connection.
        """
        client, name = session.client, call.config[TOOL_PARAM]
        if client is None:
            raise UnsentCallError
        try:
            if self._callbacks.has_any:
                return await client.call_tool(name, call.arguments)
            result = await client.session.call_tool(name, call.arguments, allow_input_required=True)
        except MCPError as error:
            if error.code == NOT_SENT or (error.code == INVALID_REQUEST and session.is_unknown):
                raise UnsentCallError from None
            if error.code != HEADER_MISMATCH:
                raise
            return await client.call_tool(name, call.arguments)  # was not executed; it reads the tool's schema again
        assert isinstance(result, (types.CallToolResult, types.InputRequiredResult))
        return result


def _is_loss(error: MCPError) -> bool:
    """Whether the SDK reports the end of a connection. Servers use the same code for errors of their own."""
    return error.code == CONNECTION_CLOSED and error.message.startswith(_LOSSES)


def _instance_name(server: str, url: str) -> str:
    parts = urlsplit(url)
    return f"{server}:{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
