"""MCP tools in TrustGraph's configuration, called over one session for each server."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import dispatch
from tests.helpers.config_service import ConfigStore, config_service
from tests.helpers.mcp_servers.programs import http_server, until

pytestmark = pytest.mark.wall_clock

URL = "memory://mcp-tools"


def mcp_tool(name: str, key: str, **keys: Any) -> dict[str, Any]:
    arguments = [{"name": "a", "type": "number", "description": "One"}, {"name": "b", "type": "number"}]
    return {"type": "mcp-tool", "name": name, "description": "Add.", "mcp-tool": key, "arguments": arguments, **keys}


async def test_tools_of_the_configuration() -> None:
    store = ConfigStore()
    with http_server("calculator") as server:
        store.write("mcp", "adder", {"url": server.url, "remote-name": "add", "auth-token": "secret"})
        store.write("mcp", "pid", {"url": server.url, "auth-token": "secret"})
        store.write("tool", "sum", mcp_tool("sum", "adder"))
        store.write("tool", "which", mcp_tool("which", "pid", group=["admin"]))
        store.write("tool", "lost", mcp_tool("lost", "gone"))
        store.write("tool", "other", {"type": "prompt", "name": "other", "description": "x", "template": "y"})
        async with config_service(URL, store) as service:
            sources = [dispatch.TrustGraphConfig(), dispatch.TrustGraphMcpTools()]
            async with dispatch.connect(URL, sources) as dispatcher:
                names = sorted(tool.name for tool in dispatcher.registry.list(groups=["*"]))
                assert names == ["lost", "sum", "which"]
                assert dispatcher.registry.get("which").groups == ("admin",)
                found = await dispatcher.execute("sum", {"a": 1, "b": 2}, timeout=20)
                assert (found.text, found.structured_content) == ("3", {"result": 3})
                assert await dispatcher.call("which") == await dispatcher.call("which")
                lost = await dispatcher.execute("lost", {"a": 1, "b": 2})
                assert lost.error.type == "unknown-tool"

                store.write("mcp", "gone", {"url": server.url, "remote-name": "add"})
                service.push({"mcp": ["default"]})
                await until(lambda: dispatcher.registry.source("trustgraph-mcp")._servers.get("default/gone"))  # type: ignore[attr-defined]
                assert await dispatcher.call("lost", {"a": 2, "b": 2}, timeout=20) == "4"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/mcp", "http://agent:secret/@127.0.0.1:1/mcp", "127.0.0.1/secret"])
async def test_a_server_that_is_out_of_reach(url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = ConfigStore()
    store.write("mcp", "adder", {"url": url})
    store.write("tool", "sum", mcp_tool("sum", "adder"))
    async with (
        config_service(URL + "-2", store),
        dispatch.connect(URL + "-2", [dispatch.TrustGraphMcpTools()]) as dispatcher,
    ):
        result = await dispatcher.execute("sum", {"a": 1, "b": 2})
        assert (result.error.type, result.attempts) == ("no-instance", 0)
        assert result.error.retry_after is not None
        assert result.duration < 10, "at once, not after the time for a handshake"
        assert "secret" not in caplog.text + result.error.message
        assert "Fix: " in caplog.text


@pytest.mark.costly
async def test_a_call_of_a_server_that_answers_nothing_was_not_executed() -> None:
    store = ConfigStore()
    store.write("tool", "sum", mcp_tool("sum", "adder"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store.write("mcp", "adder", {"url": f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"})
        async with (
            config_service(URL + "-3", store),
            dispatch.connect(URL + "-3", [dispatch.TrustGraphMcpTools()]) as dispatcher,
        ):
            result = await dispatcher.execute("sum", {"a": 1, "b": 2}, timeout=2)
    assert (result.error.type, result.attempts) == ("no-instance", 0)
