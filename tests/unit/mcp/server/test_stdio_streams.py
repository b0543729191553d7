"""The MCP server as a process, on its standard streams."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Literal

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from dispatch import Policy
from dispatch.mcp.server.stdio_streams import DescriptorLines, open_descriptors
from tests.helpers.cli_processes import REPO
from tests.helpers.dispatcher_and_service import Service, stand
from tests.helpers.mcp_connections import connected, text_of
from tests.helpers.python_processes import environment

PROCESS = StdioServerParameters(
    command=sys.executable,
    args=["-m", "tests.helpers.mcp_server_process"],
    cwd=REPO,
    env=dict(environment()),
)


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_stdout_carries_the_protocol_only(mode: Literal["auto", "legacy"]) -> None:
    async with Client(PROCESS, mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["broken", "city", "read_result", "work"]
        chunks: list[str | None] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            chunks.append(message)

        arguments: dict[str, Any] = {"topic": "cäts\u2028\n", "print": True}
        result = await client.call_tool("work", arguments, progress_callback=on_progress)
    assert result.content == [TextContent(text="about cäts\u2028\n")]
    assert chunks == ["about cäts\u2028\n"]


@pytest.mark.wall_clock
async def test_messages_of_any_length_arrive_whole() -> None:
    """They are longer than a chunk of a pipe, which ends within a character."""
    service = Service(lambda arguments: arguments["text"])
    async with (
        stand(service, policy=Policy(max_result_chars=2_000_000)) as (dispatcher, _),
        connected(dispatcher.mcp_server(), "stdio", "auto") as client,
    ):
        for text in ("三" * 100_000, "🦊größe\u2028" * 30_001):
            assert text_of(await client.call_tool("work", {"text": text})) == text
        many = [client.call_tool("work", {"text": str(number)}) for number in range(200)]
        assert [text_of(each) for each in await asyncio.gather(*many)] == [str(number) for number in range(200)]


@pytest.mark.wall_clock
async def test_a_line_that_is_no_message_ends_nothing() -> None:
    requests, responses = os.pipe(), os.pipe()
    async with stand(lambda _: "done") as (dispatcher, _):
        server = dispatcher.mcp_server().sdk_server

        async def serve() -> None:
            async with open_descriptors(requests[0], responses[1]) as streams:
                await server.run(*streams, server.create_initialization_options())

        task = asyncio.create_task(serve())
        answers = aiter(DescriptorLines(responses[0]))
        ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
        os.write(requests[1], b"\n{\nnull\n[]\n\xff\xfe\n" + json.dumps(ping).encode() + b"\n")
        while json.loads(await anext(answers)).get("id") != 7:
            pass
        os.close(requests[1])
        await task
    os.close(responses[1])
    for descriptor in (requests[0], responses[0]):
        os.close(descriptor)
