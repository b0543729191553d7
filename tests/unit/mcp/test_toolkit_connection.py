"""MCP servers of toolkit files; over HTTP, genuine servers of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatch.errors import ToolError
from dispatch.toolkit import Tool, Toolkit, ToolkitService
from tests.helpers.mcp_servers.programs import http_server
from tests.helpers.mcp_servers.scripted import result, scripted_stdio


def text(value: str, *, is_error: bool = False) -> str:
    return result({"content": [{"type": "text", "text": value}], "isError": is_error})


ANSWERS = {"add": text("3"), "fail": text("no such order", is_error=True), "text.upper": text("ABC"), "wait": text("")}


@pytest.fixture(params=["STDIO", "STREAMABLE_HTTP", "SSE"])
def transport(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The transport of a running server, as a toolkit file has it."""
    kind = request.param
    with ExitStack() as stack:
        if kind == "STDIO":
            found = scripted_stdio(ANSWERS)  # each call starts one, and that of the SDK takes 1.7 s of CPU
        elif kind == "SSE":
            found = {"url": stack.enter_context(http_server("calculator", transport="sse")).url.replace("/mcp", "/sse")}
        else:
            found = {"url": stack.enter_context(http_server("calculator")).url}
        yield {"transport_type": kind, **found}


def write_file(folder: Path, transport: dict[str, Any]) -> Path:
    file = folder / "toolkit.yml"
    tool = {"name": "calculator", "type": "MCP", "desc": "Calculates.", "mcp_transport_config": transport}
    action = {"name": "work", "desc": "Works.", "tools": [tool]}
    file.write_text(yaml.safe_dump({"tools": [tool], "actions": [action], "toolkit": [[action]]}))
    return file


def find_tool(toolkit: Toolkit, name: str) -> Tool:
    return next(tool for id in toolkit.vertices() if (tool := toolkit.get_tool(id)) is not None and tool.name == name)


def test_a_server_is_called_and_lists_its_tools(tmp_path: Path, transport: dict[str, Any]) -> None:
    toolkit = Toolkit.load(write_file(tmp_path, transport))

    async def run() -> None:
        calculator = find_tool(toolkit, "calculator")
        assert await calculator.function(tool_name="add", a=1, b=2) == "3"
        with pytest.raises(ToolError, match="no such order"):
            await calculator.function(tool_name="fail")
        server = next(group for id in toolkit.vertices() if (group := toolkit.get_tool_group(id)) is not None)
        action = next(action for id in toolkit.vertices() if (action := toolkit.get_action(id)) is not None)
        tools = await server.list_tools()
        assert {"add", "text.upper", "wait"} <= {tool.name for tool in tools}
        await asyncio.to_thread(ToolkitService(toolkit).add_tool_group, server, [(action, 1.0)])
        named = {"text": "abc", "tool_name": "x", "self": "y"}
        assert await find_tool(toolkit, "text.upper").function(**named) == "ABC"

    asyncio.run(run())


@pytest.mark.process
def test_a_server_that_cannot_be_reached_is_an_error_of_the_call(tmp_path: Path) -> None:
    toolkit = Toolkit.load(write_file(tmp_path, {"transport_type": "STDIO", "command": "no-such-program"}))

    async def run() -> None:
        with pytest.raises(OSError, match=r"'no-such-program' cannot be started: .* Fix: install it"):
            await find_tool(toolkit, "calculator").function(tool_name="add")

    asyncio.run(run())
