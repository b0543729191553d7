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
from dispatch.mcp.server.http_app import protect_against_rebinding
from tests.helpers.dispatcher_and_service import Service, stand
from tests.helpers.mcp_connections import text_of

TOKENS = {"0123456789abcdef": "alice"}


def mount(dispatcher: Dispatcher) -> Starlette:
    tools = dispatcher.mcp_server().app(path="/mcp", hosts=["tools.example"], tokens=TOKENS)

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
