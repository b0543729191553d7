"""MCP servers over dispatchers of this process, and the official client, on each transport."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, Literal

import anyio
from mcp import Client
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, TextContent, jsonrpc_message_adapter

from dispatch._internal import cancel_and_wait
from dispatch.mcp.server import DescriptorLines, DescriptorWriter, McpServer, StdioMessages, serve_http

Mode = Literal["auto", "legacy"]
Channel = Literal["process", "stdio", "http"]
"""``process``: without a transport. ``stdio``: pipes, as those of a process."""

CHANNELS: tuple[Channel, ...] = ("stdio", "http")
MODES: tuple[Mode, ...] = ("auto", "legacy")


@contextlib.asynccontextmanager
async def connected(server: McpServer, channel: Channel, mode: Mode, **options: Any) -> AsyncIterator[Client]:
    """A client of ``server``."""
    async with contextlib.AsyncExitStack() as stack:
        if channel == "process":
            target: Any = server.sdk_server
        elif channel == "http":
            target = await stack.enter_async_context(serving(server))
        else:
            target = _piped(server)
        yield await stack.enter_async_context(Client(target, mode=mode, **options))


@contextlib.asynccontextmanager
async def serving(server: McpServer, **options: Any) -> AsyncIterator[str]:
    """Serve HTTP on a free port of the loopback interface; yield the URL."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_http(server, "127.0.0.1", 0, on_ready=url.set_result, **options))
    await asyncio.wait([task, url], return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            task.result()
        yield url.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
        # sse-starlette starts one such task for each event loop, and never ends it.
        watchers = [each for each in asyncio.all_tasks() if "_shutdown_watcher" in repr(each.get_coro())]
        await cancel_and_wait(watchers)


@contextlib.asynccontextmanager
async def _piped(server: McpServer) -> AsyncIterator[tuple[Any, Any]]:
    """Serve one client on two pipes; yield the streams of the client."""
    requests, responses = os.pipe(), os.pipe()
    sdk_server = server.sdk_server

    async def serve() -> None:
        messages = StdioMessages(requests[0], responses[1])
        await sdk_server.run(messages, messages, sdk_server.create_initialization_options())

    # The SDK's stdio_server() is not used here: it fails where a client ends before the last message has arrived.
    arrived, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, departing = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with arrived:
            async for line in DescriptorLines(responses[0]):
                with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    await arrived.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))

    async def write() -> None:
        writer = DescriptorWriter(requests[1])
        async with departing:
            async for each in departing:
                await writer.write(each.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n")

    serving, reading, writing = (asyncio.create_task(each()) for each in (serve, read, write))
    try:
        yield received, sent
    finally:
        sent.close()
        received.close()
        await asyncio.wait([writing])
        os.close(requests[1])  # the end of the connection, for the server
        await asyncio.wait([serving])
        os.close(responses[1])
        await asyncio.wait([reading])
        for descriptor in (requests[0], responses[0]):
            os.close(descriptor)
        for task in (serving, reading, writing):
            task.result()


def text_of(result: CallToolResult) -> str:
    """The text of a result that has one part."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text
