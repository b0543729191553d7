"""Tools of genuine MCP servers, called through a dispatcher."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dispatch
from tests.helpers.mcp_servers.programs import stdio


@asynccontextmanager
async def connected(servers: Mapping[str, Any], **options: Any) -> AsyncIterator[dispatch.Dispatcher]:
    async with dispatch.connect("memory://", [dispatch.McpServers({"mcpServers": servers}, **options)]) as dispatcher:
        yield dispatcher


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type] # a coroutine


def test_calls_of_a_server() -> None:
    async def test() -> None:
        async with connected({"calc": stdio("calculator")}) as dispatcher:
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
            plain = await dispatcher.execute("text_upper", {"text": "größe 🦊"})
            assert (plain.text, plain.content, plain.instance) == ("GRÖSSE 🦊", (), "calc")
            structured = await dispatcher.execute("add", {"a": 1, "b": 2})
            assert structured.structured_content == {"result": 3}
            picture = await dispatcher.execute("picture")
            assert picture.text == "a cat\n[image: image/png, 4 bytes]"
            assert [block["type"] for block in picture.content] == ["text", "image"]
            failed = await dispatcher.execute("fail")
            assert isinstance(failed.error, dispatch.ToolError)
            assert "no such order" in failed.error.message

    run(test)


def test_invalid_entries_are_reported_by_name_and_the_others_work() -> None:
    async def test() -> None:
        servers = {"calc": stdio("calculator"), "broken": {"args": 3}, "gone": {"command": "/no/such/program"}}
        async with connected(servers) as dispatcher:
            states = {each.id: each for each in dispatcher.registry.sources()}
            assert {id: each.state for id, each in states.items()} == {
                "mcp-calc": "ok",
                "mcp-broken": "failed",
                "mcp-gone": "failed",
            }
            assert "broken.command: neither" in states["mcp-broken"].problem
            assert "No such file" in states["mcp-gone"].problem
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"

    run(test)


def test_hints_are_believed_of_trusted_servers_only() -> None:
    async def test() -> None:
        for trusted in (False, True):
            async with connected({"calc": stdio("calculator", trusted=trusted)}) as dispatcher:
                assert dispatcher.registry.get("add").read_only is trusted
                assert dispatcher.registry.get("add").destructive is None

    run(test)


def test_an_import_of_dispatch_imports_no_mcp() -> None:
    code = "import sys, dispatch; sys.exit(any(name.split('.')[0] in ('mcp', 'mcp_types') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_sdk_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['mcp'] = None; import dispatch; dispatch.McpServers"
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "pip install 'tool-dispatch[mcp]'" in found.stderr


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(dispatch.CatalogError, match="No such file"):
        dispatch.McpServers(tmp_path / "mcp.json")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {,}}')
    with pytest.raises(dispatch.CatalogError, match="line 1, column 17"):
        dispatch.McpServers(tmp_path / "mcp.json")
