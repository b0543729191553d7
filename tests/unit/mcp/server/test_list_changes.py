"""Lists that change: clients of both generations of the protocol are notified within a second, once for many changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.session import IncomingMessage
from mcp_types import ToolListChangedNotification

from dispatch import Dispatcher, Grants
from dispatch.mcp import McpServer
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, catalog, dispatching
from tests.helpers.mcp_connections import CHANNELS, MODES, Channel, Mode, connected

pytestmark = pytest.mark.wall_clock


class Notifications:
    """Counts the notifications that a client receives.

    Attributes:
        number: of them.
    """

    def __init__(self) -> None:
        self.number = 0
        self._arrived = asyncio.Event()

    async def on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.number += 1
            self._arrived.set()

    @contextlib.asynccontextmanager
    async def of(self, client: Client, mode: Mode) -> AsyncIterator[None]:
        """Listen, if the client's generation of the protocol has to."""
        if mode == "legacy":
            yield
            return
        async with client.listen(tools_list_changed=True):
            yield

    async def wait(self) -> float:
        """Wait for the next one; return the seconds that it took."""
        started = time.monotonic()
        await asyncio.wait_for(self._arrived.wait(), 10)
        self._arrived.clear()
        return time.monotonic() - started


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_many_changes_are_one_notification(channel: Channel, mode: Mode) -> None:
    seen = Notifications()
    async with (
        dispatching(catalog(work={})) as dispatcher,
        connected(McpServer(dispatcher), channel, mode, message_handler=seen.on_message) as client,
        seen.of(client, mode),
    ):
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "work"]
        await dispatcher.reload(catalog(work={}, more={}))
        for number in range(10):
            await dispatcher.reload(catalog(work={}, **{f"more-{number}": {}}))
        assert await seen.wait() < 1
        assert [tool.name for tool in (await client.list_tools()).tools] == ["more-9", "read_result", "work"]
        await asyncio.sleep(0.6)  # for a notification that must not come
        assert seen.number <= 2
        number = seen.number
        await dispatcher.reload(catalog(work={}, last={}))
        assert await seen.wait() < 1
        assert seen.number == number + 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_a_client_that_does_not_listen_gets_the_new_list(channel: Channel, mode: Mode) -> None:
    async with (
        dispatching(catalog(work={})) as dispatcher,
        connected(McpServer(dispatcher), channel, mode) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "work"]
        await dispatcher.reload(catalog(work={}, more={}))
        assert [tool.name for tool in (await client.list_tools()).tools] == ["more", "read_result", "work"]


@pytest.mark.parametrize("mode", MODES)
async def test_changed_permissions_change_the_list(mode: Mode, tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps({"users": {"alice": []}}))
    tools, seen = catalog(work={}, secret={"permissions": ["secrets"]}), Notifications()
    async with (
        Dispatcher(MemoryTransport(BROKER), tools, grants=Grants.load(file)) as dispatcher,
        connected(McpServer(dispatcher, user="alice"), "stdio", mode, message_handler=seen.on_message) as client,
        seen.of(client, mode),
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "work"]
        file.write_text(json.dumps({"users": {"alice": ["secrets"]}}))
        await seen.wait()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "secret", "work"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_closed_session_leaves_nothing_behind(mode: Mode) -> None:
    async with dispatching(catalog(work={})) as dispatcher:
        server = McpServer(dispatcher)
        before = len(dispatcher._events)
        for _ in range(3):
            seen = Notifications()
            async with (
                connected(server, "stdio", mode, message_handler=seen.on_message) as client,
                seen.of(client, mode),
            ):
                await client.list_tools()
        assert len(dispatcher._events) == before
        await dispatcher.reload(catalog(other={}))  # notifies no closed session


async def test_an_equal_catalogue_is_no_change() -> None:
    seen = Notifications()
    async with (
        dispatching(catalog(work={})) as dispatcher,
        connected(McpServer(dispatcher), "stdio", "legacy", message_handler=seen.on_message) as client,
    ):
        await client.list_tools()
        await dispatcher.reload(catalog(work={}))
        await asyncio.sleep(0.6)  # for a notification that must not come
        assert seen.number == 0
