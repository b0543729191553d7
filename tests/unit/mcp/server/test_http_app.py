"""The MCP server in an ASGI application of a user."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatch import Dispatcher
from dispatch.mcp import McpServer
from dispatch.mcp.server import protect_against_rebinding
from tests.helpers.dispatcher_and_service import Service, stand
from tests.helpers.mcp_connections import serving, text_of

TOKENS = {"0123456789abcdef": "alice"}


def mount(dispatcher: Dispatcher) -> Starlette:
    tools = McpServer(dispatcher).app(path="/mcp", hosts=["tools.example"], tokens=TOKENS)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with tools.router.lifespan_context(tools):
            yield

    return Starlette(routes=[Mount("/ai", tools)], lifespan=lifespan)


@pytest.mark.wall_clock
async def test_it_is_mounted() -> None:
    service = Service(lambda _: "done")
    async with stand(service) as (dispatcher, _):
        app = mount(dispatcher)
        headers = {"authorization": "Bearer 0123456789abcdef"}
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app), headers=headers) as http,
            Client(streamable_http_client("https://tools.example/ai/mcp", http_client=http)) as client,
        ):
            assert text_of(await client.call_tool("work")) == "done"
    assert [user for *_, user in service.requests] == ["alice"]


def test_names_are_accepted_with_any_port_and_scheme() -> None:
    settings = protect_against_rebinding(["tools.example", "localhost"])
    assert settings.enable_dns_rebinding_protection
    assert settings.allowed_hosts == [
        *("127.0.0.1", "127.0.0.1:*", "localhost", "localhost:*", "[::1]", "[::1]:*"),
        *("tools.example", "tools.example:*"),
    ]
    assert {"http://[::1]:*", "https://tools.example", "https://tools.example:*"} <= set(settings.allowed_origins)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}


@pytest.mark.wall_clock
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_a_request_that_is_not_readable_has_an_answer(version: str) -> None:
    accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    headers = {"authorization": "Bearer 0123456789abcdef", "mcp-protocol-version": version, **accept}
    async with (
        stand(lambda _: "done") as (dispatcher, _),
        serving(McpServer(dispatcher), tokens=TOKENS) as url,
        httpx2.AsyncClient(headers=headers) as http,
    ):
        first = await http.post(url, json=INITIALIZE) if version == "2025-06-18" else None
        session = {} if first is None else {"mcp-session-id": first.headers["mcp-session-id"]}
        ping = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
        for body, code, id in (
            (ping[:-1], -32700, 7),
            (b"\xef\xbb\xbf" + ping, -32700, 7),
            (ping[:-1] + rb',"params":{"a":"\ud83d"}}', -32700, 7),
            (ping[:-1] + b',"params":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_001, -32700, 7),
            (ping.replace(b"7", b"1.5"), -32600, 1.5),
            (b"[]", -32600, None),
            (b"", -32700, None),
        ):
            answer = await http.post(url, content=body, headers=session)
            assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
            assert (answer.json()["error"]["code"], answer.json()["id"]) == (code, id)
        for changed, status in (
            ({"authorization": "Bearer x"}, 401),
            ({"host": "evil.example"}, 421),
            ({"content-type": "text/plain"}, 400),
        ):
            refused = await http.post(url, content=b"{", headers={**session, **changed})
            assert refused.status_code == status
            assert b"-32700" not in refused.content
        if session:
            assert (await http.post(url, content=ping, headers=session)).status_code == 200
