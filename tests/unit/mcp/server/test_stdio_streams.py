"""The MCP server as a process, on its standard streams."""

from __future__ import annotations

import sys
from typing import Any, Literal

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from tests.helpers.cli_processes import REPO
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
