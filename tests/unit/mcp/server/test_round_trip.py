"""The tools of a dispatcher, served over MCP to another dispatcher, which serves them again: the same tools and results."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from mcp import Client

import dispatch
from dispatch import Policy
from dispatch.mcp import McpServer
from tests.helpers.cli_processes import REPO, environment
from tests.helpers.dispatcher_and_service import stand
from tests.helpers.mcp_connections import MODES, Mode, connected
from tests.helpers.mcp_server_process import TOOLS, work

UPSTREAM = {
    "command": sys.executable,
    "args": ["-m", "tests.helpers.mcp_server_process"],
    "cwd": str(REPO),
    "env": environment(),
    "trusted": True,
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("work", {"topic": "größe 🦊\u2028"}),
    ("city", {"city": "Köln"}),
    ("broken", {"topic": "x" * 60_000}),
]


async def describe(client: Client) -> list[dict[str, Any]]:
    return [tool.model_dump(exclude_none=True) for tool in (await client.list_tools()).tools]


async def answers(client: Client) -> list[dict[str, Any]]:
    results = [await client.call_tool(name, arguments) for name, arguments in CALLS]
    return [result.model_dump(exclude={"meta"}, exclude_none=True) for result in results]


@pytest.mark.process
@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
async def test_the_round_trip_is_equal(mode: Mode) -> None:
    servers = dispatch.McpServers({"mcpServers": {"upstream": UPSTREAM}})
    async with (
        stand(work, TOOLS, policy=Policy()) as (original, _),
        dispatch.connect("memory://", [servers]) as copy,
        connected(McpServer(original, user="alice"), "stdio", mode) as client,
        connected(McpServer(copy, user="alice"), "stdio", mode) as other,
    ):
        assert await describe(client) == await describe(other)
        first, second = await answers(client), await answers(other)
        assert first[:2] == second[:2]
        for one in (first[2], second[2]):  # with a handle of its own
            assert one["content"][0]["text"].startswith("about " + "x" * 49_000)
        failed = await other.call_tool("broken", {})
        assert failed.is_error
        assert "no-topic" in str(failed.content)


@pytest.mark.process
@pytest.mark.wall_clock
async def test_a_result_that_the_upstream_server_cut_is_read_there() -> None:
    servers = dispatch.McpServers({"mcpServers": {"upstream": UPSTREAM}})
    async with (
        dispatch.connect("memory://", [servers]) as copy,
        connected(McpServer(copy), "stdio", "auto") as client,
    ):
        shown = str((await client.call_tool("broken", {"topic": "x" * 60_000})).content)
        handle = shown.rpartition('handle="')[2].partition('"')[0]
        rest = await client.call_tool("read_result", {"handle": handle, "offset": 60_000})
        assert not rest.is_error
        assert "xxxxxx" in str(rest.content)
