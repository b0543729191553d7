"""Spans: that of the SDK is the parent, and the only one of a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.cli_processes import REPO, environment
from tests.helpers.mcp_connections import MODES, Mode

# In a process of its own: the SDK uses the global provider, which is set once.
PROGRAM = """
import asyncio, sys
from opentelemetry import trace
from tests.helpers.telemetry_capture import Spans

spans = Spans()
trace.set_tracer_provider(spans.provider)

from dispatch import Telemetry
from dispatch.mcp import McpServer
import dispatch
from tests.helpers.mcp_connections import connected

@dispatch.tool(name="work")
async def work() -> str:
    "Work."
    return "done"

async def main():
    async with dispatch.connect("memory://", dispatch.Functions(work), telemetry=Telemetry()) as dispatcher:
        async with connected(McpServer(dispatcher), "stdio", sys.argv[1]) as client:
            with trace.get_tracer("test").start_as_current_span("agent"):
                await client.call_tool("work")

asyncio.run(main())
print(*spans.tree(), sep="\\n")
print([each.name for each in spans.ended if each.kind is trace.SpanKind.SERVER])
assert spans.open == []
"""


@pytest.mark.parametrize("mode", MODES)
def test_the_span_of_the_sdk_is_the_parent(mode: Mode) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], cwd=REPO, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    start = lines.index("agent")
    tree = [line for line in lines[start:-1] if line.startswith(" ") or line == "agent"]
    names = [line.strip() for line in tree]
    assert names.count("tools/call work") == 1, ended.stdout
    server = names.index("tools/call work")
    assert "execute_tool work" in names[server + 1], ended.stdout
    depth = [len(line) - len(line.lstrip()) for line in tree]
    assert depth[server + 1] == depth[server] + 2
    assert lines[-1].count("tools/call work") == 1
    assert "execute_tool" not in lines[-1]
