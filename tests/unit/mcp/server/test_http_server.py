"""The MCP server over HTTP: bearer tokens, DNS rebinding, addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from dispatch.admin import is_loopback
from dispatch.admin.http import list_own_hosts
from dispatch.mcp import McpServer
from dispatch.mcp.server import serve_http
from tests.helpers.dispatcher_and_service import Service, stand
from tests.helpers.mcp_connections import serving

pytestmark = pytest.mark.wall_clock
TOKENS = {"0123456789abcdef-alice": "alice", "0123456789abcdef-bob": "bob"}
LOOPBACK = ("127.0.0.1", "127.1.2.3", "::1", "localhost")
ELSEWHERE = ("0.0.0.0", "::", "10.1.2.3", "localhost.example", "")
DISCOVER: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
HEADERS = {"accept": "application/json, text/event-stream"}


@contextlib.asynccontextmanager
async def serving_stand(work: Callable[..., Any] | Service, *, user: str = "", **options: Any) -> AsyncIterator[str]:
    """Serve the stand's tools; yield the URL."""
    async with stand(work) as (dispatcher, _), serving(McpServer(dispatcher, user=user), **options) as url:
        yield url


async def call_with_token(url: str, token: str) -> CallToolResult:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        return await client.call_tool("work")


async def test_a_bearer_token_names_the_user() -> None:
    service = Service(lambda _: "done")
    async with serving_stand(service, tokens=TOKENS, user="other") as url:
        results = await asyncio.gather(*(call_with_token(url, token) for token in TOKENS))
    assert [each.content for each in results] == [[TextContent(text="done")]] * 2
    assert sorted(user for _, _, user in service.requests) == ["alice", "bob"]


@pytest.mark.parametrize(
    "header", [None, b"Bearer wrong", b"Bearer", b"Basic YWxpY2U6eA==", "Bearer t\u00e4ken".encode()]
)
async def test_without_a_known_token_nothing_is_served(header: bytes | None) -> None:
    service = Service(lambda _: "done")
    async with serving_stand(service, tokens=TOKENS) as url, httpx2.AsyncClient() as http:
        headers: dict[str, Any] = HEADERS if header is None else HEADERS | {"authorization": header}
        answer = await http.post(url, json=DISCOVER, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert service.requests == []


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("host", "evil.example", 421),
        ("host", "evil.example:80", 421),
        ("origin", "http://evil.example", 403),
        ("host", "tools.example:8443", 400),  # accepted; the request has no session
        ("origin", "https://tools.example", 400),
        ("host", "localhost:1", 400),
    ],
)
async def test_requests_by_other_names_are_refused(header: str, value: str, status: int) -> None:
    async with serving_stand(lambda _: "done", hosts=["tools.example"]) as url, httpx2.AsyncClient() as http:
        answer = await http.post(url, json=DISCOVER, headers=HEADERS | {header: value})
    assert answer.status_code == status, answer.text


async def test_another_address_than_loopback_requires_tokens() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        with pytest.raises(ValueError, match="bearer token"):
            await serve_http(McpServer(dispatcher), "0.0.0.0", 0)


async def test_a_port_in_use_is_an_error() -> None:
    async with serving_stand(lambda _: "done") as url, stand(lambda _: "done") as (dispatcher, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(OSError, match="in use"):
            await serve_http(McpServer(dispatcher), "127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in LOOPBACK),
        *((host, False) for host in ("0.0.0.0", "::", "10.1.2.3", "localhost.example", "")),
    ],
)
async def test_loopback_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


async def test_a_server_has_the_names_of_its_address() -> None:
    assert list_own_hosts("tools.example") == ["tools.example"]
    assert list_own_hosts("2001:db8::1") == ["[2001:db8::1]"]
    assert len(list_own_hosts("0.0.0.0")) >= 2


async def test_a_session_belongs_to_its_user() -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    start = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    alice, bob = (HEADERS | {"authorization": f"Bearer {token}"} for token in TOKENS)
    async with serving_stand(lambda _: "done", tokens=TOKENS) as url, httpx2.AsyncClient() as http:
        session = {"mcp-session-id": (await http.post(url, json=start, headers=alice)).headers["mcp-session-id"]}
        assert (await http.post(url, json=DISCOVER, headers=bob | session)).status_code == 404
        assert (await http.post(url, json=DISCOVER, headers=alice | session)).status_code == 200


@pytest.mark.parametrize("name", ["work", " work ", "\twork\t", "  =?base64?d29yaw==?=  "])
async def test_blanks_around_the_value_of_a_header_are_no_part_of_it(name: str) -> None:
    meta = {"protocolVersion": "2026-07-28", "clientInfo": {"name": "test", "version": "1"}, "clientCapabilities": {}}
    params = {"name": "work", "_meta": {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    async with stand(lambda _: "done") as (dispatcher, _), serving(McpServer(dispatcher)) as url:
        address = urlsplit(url)
        lines = [
            *(
                f"POST {address.path} HTTP/1.1",
                f"Host: {address.netloc}",
                "Accept: application/json, text/event-stream",
            ),
            *("Content-Type: application/json", "MCP-Protocol-Version: 2026-07-28 ", "Mcp-Method: tools/call\t"),
            *(f"Mcp-Name:{name}", f"Content-Length: {len(body)}", "Connection: close", "", body),
        ]
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write("\r\n".join(lines).encode())
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"done" in answer
