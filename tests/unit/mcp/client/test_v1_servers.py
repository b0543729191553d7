"""Servers of the SDK's former line (``mcp<2``), over both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dispatch
from tests.helpers.mcp_servers.programs import FOLDER, HttpServer, connected, free_port, until
from tests.helpers.mcp_servers.v1_environment import v1_python

pytestmark = pytest.mark.slow


@asynccontextmanager
async def entry(transport: str) -> AsyncIterator[dict[str, Any]]:
    program = str(FOLDER / "v1_server.py")
    if transport == "stdio":
        yield {"command": str(v1_python()), "args": [program]}
        return
    port = free_port()
    server = HttpServer(program, str(port), port=port, python=str(v1_python()))
    try:
        await asyncio.to_thread(server.start)
        yield {"url": server.url}
    finally:
        server.kill()


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_server_of_the_former_line(transport: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with entry(transport) as found, connected({"former": found}) as dispatcher:
            result = await dispatcher.execute("add", {"a": 1, "b": 2})
            assert (result.text, result.structured_content) == ("3", {"result": 3})
            failed = await dispatcher.execute("fail")
            assert isinstance(failed.error, dispatch.ToolError)
            assert "no such order" in failed.error.message
            late = await dispatcher.execute("wait", {"seconds": 30, "path": str(tmp_path / "late")}, timeout=0.3)
            assert late.outcome is dispatch.Outcome.TIMEOUT
            await until((tmp_path / "late").exists)
            assert await dispatcher.call("grow") == "grown"
            await until(
                lambda: "new" in [tool.name for tool in dispatcher.registry.list()], 1 if transport == "stdio" else 2
            )
            assert await dispatcher.call("new") == "new"

    asyncio.run(test())
