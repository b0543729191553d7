"""The MCP server over HTTP: bearer tokens, DNS rebinding, addresses.
The MCP server in an ASGI application of a user.
The file of bearer tokens is followed: a changed one is in force, an invalid one changes nothing.
The file of bearer tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from starlette.applications import Starlette
from starlette.routing import Mount

import dispatch
from dispatch import Dispatcher
from dispatch.admin import is_loopback
from dispatch.admin.http import list_own_hosts
from dispatch.mcp import McpServer
from dispatch.mcp.server import BearerTokens, TokenFileError, protect_against_rebinding, read_tokens, serve_http
from tests.helpers.dispatcher_and_service import Service, stand
from tests.helpers.mcp_connections import serving, text_of

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


@pytest.mark.wall_clock
async def test_a_bearer_token_names_the_user() -> None:
    service = Service(lambda _: "done")
    async with serving_stand(service, tokens=TOKENS, user="other") as url:
        results = await asyncio.gather(*(call_with_token(url, token) for token in TOKENS))
    assert [each.content for each in results] == [[TextContent(text="done")]] * 2
    assert sorted(user for _, _, user in service.requests) == ["alice", "bob"]


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    "header", [None, b"Bearer wrong", b"Bearer", b"Basic YWxpY2U6eA==", "Bearer t\u00e4ken".encode()]
)
async def test_without_a_known_token_nothing_is_served(header: bytes | None) -> None:
    service = Service(lambda _: "done")
    async with serving_stand(service, tokens=TOKENS) as url, httpx2.AsyncClient() as http:
        headers: dict[str, Any] = HEADERS if header is None else HEADERS | {"authorization": header}
        answer = await http.post(url, json=DISCOVER, headers=headers)
    assert answer.status_code == 401
    has_token = header is not None and header.startswith(b"Bearer ")
    reason = "The bearer token is unknown" if has_token else "send the header 'Authorization: Bearer TOKEN'"
    assert reason in answer.json()["error"]["message"]
    challenge = answer.headers["www-authenticate"]
    assert challenge.startswith('Bearer realm="dispatch"')
    assert ('error="invalid_token", error_description="The bearer token is unknown' in challenge) == has_token
    assert service.requests == []


@pytest.mark.wall_clock
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
    if status != 400:
        assert f"'{value}' is not a name of this server" in answer.json()["error"]["message"]
        assert "--allow-host" in answer.json()["error"]["message"]


@pytest.mark.wall_clock
@pytest.mark.parametrize("version", [None, "2025-06-18", "2026-07-28"])
async def test_a_request_in_another_form_is_told_what_to_send(version: str | None) -> None:
    headers = HEADERS | ({"mcp-protocol-version": version} if version else {})
    async with serving_stand(lambda _: "done") as url, httpx2.AsyncClient(headers=headers, timeout=30) as http:

        async def post(message: object, **headers: str) -> tuple[int, Any, str]:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            answer = await http.post(url, json=message, headers=named)
            return answer.status_code, answer.json()["id"], answer.json()["error"]["message"]

        refused, _, reason = await post(DISCOVER, content_type="text/plain")
        assert (refused, "application/json" in reason) == (400, True)
        refused, _, reason = await post(DISCOVER, accept="text/plain")
        assert (refused, "application/json, text/event-stream" in reason) == (406, True)
        large = {**DISCOVER, "id": 7, "params": {"text": "secret" * 2_000_000}}
        refused, id, reason = await post(large)
        assert (refused, id, "more than 4,194,304 bytes" in reason, "secret" in reason) == (413, 7, True, False)


@pytest.mark.wall_clock
async def test_another_address_than_loopback_requires_tokens() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        with pytest.raises(ValueError, match="bearer token"):
            await serve_http(McpServer(dispatcher), "0.0.0.0", 0)


@pytest.mark.wall_clock
async def test_a_port_in_use_is_an_error() -> None:
    async with serving_stand(lambda _: "done") as url, stand(lambda _: "done") as (dispatcher, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(OSError, match="in use"):
            await serve_http(McpServer(dispatcher), "127.0.0.1", port)


@pytest.mark.wall_clock
@pytest.mark.parametrize("host", [*LOOPBACK, *ELSEWHERE])
async def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host) is (host in LOOPBACK)


@pytest.mark.wall_clock
def test_a_server_has_the_names_of_its_address() -> None:
    assert list_own_hosts("tools.example") == ["tools.example"]
    assert list_own_hosts("2001:db8::1") == ["[2001:db8::1]"]
    own = list_own_hosts("0.0.0.0")
    assert len(own) >= 2
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    assert not addresses or own[0].strip("[]") in addresses  # the machine's name often leads to 127.0.1.1 only


@pytest.mark.wall_clock
async def test_a_session_belongs_to_its_user() -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    start = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    alice, bob = (HEADERS | {"authorization": f"Bearer {token}"} for token in TOKENS)
    async with serving_stand(lambda _: "done", tokens=TOKENS) as url, httpx2.AsyncClient() as http:
        session = {"mcp-session-id": (await http.post(url, json=start, headers=alice)).headers["mcp-session-id"]}
        assert (await http.post(url, json=DISCOVER, headers=bob | session)).status_code == 404
        assert (await http.post(url, json=DISCOVER, headers=alice | session)).status_code == 200


@pytest.mark.wall_clock
@pytest.mark.parametrize("name", ["work", " work ", "\twork\t", "  =?base64?d29yaw==?=  "])
async def test_blanks_around_the_value_of_a_header_are_no_part_of_it(name: str) -> None:
    meta = {"protocolVersion": "2026-07-28", "clientInfo": {"name": "test", "version": "1"}, "clientCapabilities": {}}
    params = {"name": "work", "_meta": {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    async with stand(lambda _: "done") as (dispatcher, _), serving(McpServer(dispatcher)) as url:
        address = urlsplit(url)
        lines = [
            *(f"POST {address.path} HTTP/1.1", f"Host: {address.netloc}"),
            "Accept: application/json, text/event-stream",
            *("Content-Type: application/json", "MCP-Protocol-Version: 2026-07-28 ", "Mcp-Method: tools/call\t"),
            *(f"Mcp-Name:{name}", f"Content-Length: {len(body)}", "Connection: close", "", body),
        ]
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write("\r\n".join(lines).encode())
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"done" in answer


TOKENS_APP = {"0123456789abcdef": "alice"}


def mount(dispatcher: Dispatcher) -> Starlette:
    tools = McpServer(dispatcher).app(path="/mcp", hosts=["tools.example"], tokens=TOKENS_APP)

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
        serving(McpServer(dispatcher), tokens=TOKENS_APP) as url,
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


@pytest.mark.wall_clock
async def test_a_batch_has_the_answers_to_its_requests() -> None:
    started = asyncio.Event()

    async def work(arguments: dict[str, Any]) -> str:
        started.set()
        await asyncio.sleep(arguments["seconds"])
        return "done"

    def call(id: int, seconds: float) -> dict[str, Any]:
        return message(id=id, method="tools/call", params={"name": "work", "arguments": {"seconds": seconds}})

    def message(**parts: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", **parts}

    def codes_in(text: str) -> dict[int, int | None]:
        found = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert len({each["id"] for each in found}) == len(found)
        return {each["id"]: each.get("error", {}).get("code") for each in found}

    initialize = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": "2025-03-26"}}
    ping, cancel = message(id=7, method="ping"), message(method="notifications/cancelled", params={"requestId": 3})
    accept = {"accept": "application/json, text/event-stream"}
    async with (
        stand(work) as (dispatcher, _),
        serving(McpServer(dispatcher)) as url,
        httpx2.AsyncClient(headers=accept) as http,
    ):
        http.headers["mcp-session-id"] = (await http.post(url, json=initialize)).headers["mcp-session-id"]
        assert (await http.post(url, json=[message(method="notifications/initialized")])).status_code == 202
        long = asyncio.create_task(http.post(url, json=[call(3, 20), {**ping, "id": 1.5}, call(4, 0.1), ping]))
        await started.wait()
        assert (await http.post(url, json=[cancel, cancel])).status_code == 202
        answer = await long
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
        assert codes_in(answer.text) == {7: None, 4: None, 1.5: -32600, 3: -32800}
        for batch in ([initialize], [{**ping, "id": 1.5}]):
            refused = await http.post(url, json=batch)
            assert (refused.status_code, refused.json()[0]["error"]["code"]) == (400, -32600)
        for headers, status in (
            ({"mcp-session-id": "unknown"}, 404),
            ({"host": "evil.example"}, 421),
            ({"mcp-protocol-version": "2025-06-18"}, 400),
            ({"mcp-protocol-version": "2026-07-28"}, 400),
        ):
            refused = await http.post(url, json=[ping, ping], headers=headers)
            assert refused.status_code == status, refused.text
        assert "send each message by itself" in refused.json()["error"]["message"]


@pytest.mark.wall_clock
async def test_a_client_of_the_withdrawn_transport_is_told_what_to_use() -> None:
    token, accept = {"authorization": "Bearer 0123456789abcdef"}, {"accept": "text/event-stream"}
    async with (
        stand(lambda _: "done") as (dispatcher, _),
        serving(McpServer(dispatcher), tokens=TOKENS_APP) as url,
        httpx2.AsyncClient(headers=accept) as http,
    ):
        answer = await http.get(url, headers=token)
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
        assert "not the HTTP+SSE transport of MCP 2024-11-05: choose 'http'" in answer.json()["error"]["message"]
        assert "mcp-session-id" not in answer.headers
        assert (await http.get(url)).status_code == 401
        assert (await http.get(url, headers=token | {"host": "evil.example"})).status_code == 421
        modern = {"mcp-protocol-version": "2026-07-28"}
        assert (await http.get(url, headers=token | modern)).status_code == 405
        elsewhere = await http.get(url.replace("/mcp", "/sse"), headers=token)
        assert (elsewhere.status_code, "endpoint is /mcp, by streamable HTTP" in elsewhere.text) == (404, True)
        session = (await http.post(url, json=INITIALIZE, headers=token | HEADERS)).headers["mcp-session-id"]
        async with http.stream("GET", url, headers=token | {"mcp-session-id": session}) as listening:
            assert listening.status_code == 200


@pytest.mark.wall_clock
@pytest.mark.parametrize("version", [None, "2025-06-18"])
async def test_a_request_before_the_handshake_is_told_to_send_it(version: str | None) -> None:
    headers = {"accept": "application/json, text/event-stream"} | ({"mcp-protocol-version": version} if version else {})
    async with (
        stand(lambda _: "done") as (dispatcher, _),
        serving(McpServer(dispatcher)) as url,
        httpx2.AsyncClient(headers=headers) as http,
    ):
        answer = await http.post(url, json={"jsonrpc": "2.0", "id": 7, "method": "tools/list"})
        assert (answer.status_code, answer.json()["id"]) == (400, 7)
        assert answer.json()["error"]["code"] == -32600
        assert "send 'initialize' first" in answer.json()["error"]["message"]
        assert "'Mcp-Session-Id'" in answer.json()["error"]["message"]


@pytest.mark.wall_clock
async def test_empty_objects_of_php_are_read_and_wrong_parameters_named() -> None:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
    async with serving_stand(lambda _: "done") as url, httpx2.AsyncClient(headers=headers) as http:

        async def post(message: dict[str, Any]) -> Any:
            answer = await http.post(url, json={"jsonrpc": "2.0", "id": 7, **message})
            http.headers.setdefault("mcp-session-id", answer.headers.get("mcp-session-id", ""))
            return json.loads(answer.text.rpartition("data: ")[2])

        empty = {**INITIALIZE, "params": {**INITIALIZE["params"], "capabilities": []}}
        assert (await post(empty))["result"]["serverInfo"]["name"] == "dispatch"
        call = {"name": "work", "arguments": [], "_meta": []}
        for params in (call, call | {"_meta": {"progressToken": None}}):
            assert (await post({"method": "tools/call", "params": params}))["result"]["content"][0]["text"] == "done"
        assert (await post({"method": "tools/list", "params": []}))["result"]["tools"]
        for params, problem in (
            (call | {"arguments": "secret"}, "params.arguments: Input should be a valid dictionary"),
            (call | {"name": 4711}, "params.name: Input should be a valid string"),
        ):
            error = (await post({"method": "tools/call", "params": params}))["error"]
            assert (error["code"], problem in error["message"]) == (-32602, True)
            assert "Nothing was executed" in error["message"]
            assert not any(each in error["message"] for each in ("secret", "4711"))


@pytest.mark.wall_clock
async def test_two_requests_with_one_id_are_both_answered() -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        begun.set()
        await released.wait()
        return "done"

    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-03-26"}
    async with (
        dispatch.connect("memory://", [dispatch.Functions(wait)]) as dispatcher,
        serving(McpServer(dispatcher)) as url,
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
    ):
        http.headers["mcp-session-id"] = (await http.post(url, json=INITIALIZE)).headers["mcp-session-id"]
        call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "wait"}}
        first = asyncio.create_task(http.post(url, json=call))
        await begun.wait()
        for id in (5, "5"):
            second = await http.post(url, json=call | {"id": id})
            assert (second.status_code, second.json()["id"], second.json()["error"]["code"]) == (400, id, -32600)
            assert "in flight: give each request of a session another id" in second.json()["error"]["message"]
        released.set()
        assert "done" in (await first).text
        for message in (call, [call, call]):
            assert "done" in (await http.post(url, json=message)).text


async def open_session(url: str) -> str:
    """Return the headers of further requests of a session."""
    async with httpx2.AsyncClient(headers=HEADERS) as http:
        session = (await http.post(url, json=INITIALIZE)).headers["mcp-session-id"]
    host = url.split("/")[2]
    return f"Host: {host}\r\nMcp-Session-Id: {session}\r\nContent-Type: application/json\r\nAccept: {HEADERS['accept']}"


@pytest.mark.wall_clock
@pytest.mark.costly
async def test_a_client_that_does_not_read_an_answer_holds_up_no_other_answer_of_its_session() -> None:
    sent = 0

    async def stream() -> AsyncIterator[str]:
        """Stream."""
        nonlocal sent
        while sent < 10_000:
            sent += 1
            yield "x" * 4_000

    async def work() -> str:
        """Work."""
        return "done"

    async with (
        dispatch.connect("memory://", [dispatch.Functions(stream, work)]) as dispatcher,
        serving(McpServer(dispatcher)) as url,
    ):
        headers, port = await open_session(url), urlsplit(url).port

        async def post(id: int, name: str) -> asyncio.StreamReader:
            params = {"name": name, "arguments": {}, "_meta": {"progressToken": id}}
            body = json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
            writers.append(writer)
            writer.write(f"POST /mcp HTTP/1.1\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            return reader

        writers: list[asyncio.StreamWriter] = []
        await post(1, "stream")
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.5)
        assert sent < 9_000
        async with asyncio.timeout(5):
            await (await post(2, "work")).readuntil(b"done")
        for writer in writers:
            writer.close()


@pytest.mark.wall_clock
async def test_an_open_stream_of_notifications_does_not_delay_the_end_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        async with serving(McpServer(dispatcher)) as url:
            headers = await open_session(url)
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(f"GET /mcp HTTP/1.1\r\n{headers}\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            started = time.monotonic()
        assert time.monotonic() - started < 1.5
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.wall_clock
async def test_a_client_that_goes_in_the_middle_of_a_request_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with serving_stand(lambda _: "done") as url, httpx2.AsyncClient() as http:
        host, port = url.split("/")[2].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 50"
        writer.write(f"{head}\r\nAccept: application/json, text/event-stream\r\n\r\n{{".encode())
        await writer.drain()
        assert (await http.post(url, json=DISCOVER, headers=HEADERS)).status_code == 400  # after the other one began
        writer.close()
        await writer.wait_closed()
        assert (await http.post(url, json=DISCOVER, headers=HEADERS)).status_code == 400
    assert "Traceback" not in caplog.text


ALICE, NEXT = "0123456789abcdef", "fedcba9876543210"


async def users(tokens: BearerTokens) -> list[str | None]:
    found = [await tokens.verify_token(token) for token in (ALICE, NEXT)]
    return [each and each.client_id for each in found]


async def test_a_changed_file_is_in_force(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dispatch.mcp")
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"alice": ALICE}))
    tokens = BearerTokens.load(file)
    tokens.close()  # the test makes the checks
    assert await users(tokens) == ["alice", None]
    assert tokens._watch is not None
    file.write_text(json.dumps({"alice": [ALICE, NEXT]}))
    tokens._watch.check()
    assert await users(tokens) == ["alice", "alice"]
    file.write_text(json.dumps({"alice": "short-secret"}))
    tokens._watch.check()
    assert await users(tokens) == ["alice", "alice"]
    assert "the tokens in force stay" in caplog.text
    assert "secret" not in caplog.text
    file.write_text(json.dumps({"bob": NEXT}))
    tokens._watch.check()
    assert await users(tokens) == [None, "bob"]
    assert "tokens loaded from" in caplog.text
    assert ALICE not in caplog.text
    assert NEXT not in caplog.text


def test_every_mistake_of_a_file_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"alice": "short", "bob": ALICE, "carol": ALICE}))
    with pytest.raises(TokenFileError) as caught:
        read_tokens(file)
    first, second = str(caught.value).splitlines()
    assert "A token of user 'alice'" in first
    assert "'bob' and 'carol'" in second


ALICE_TOKEN_FILE, BOB, NEXT_TOKEN_FILE = "0123456789abcdef", "fedcba9876543210", "the-next-token-of-bob"


def write(folder: Path, contents: Any) -> Path:
    file = folder / "tokens.json"
    file.write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return file


def test_a_user_has_a_token_or_several(tmp_path: Path) -> None:
    file = write(tmp_path, {"alice": ALICE_TOKEN_FILE, "bob": [BOB, NEXT_TOKEN_FILE]})
    assert read_tokens(file) == {ALICE_TOKEN_FILE: "alice", BOB: "bob", NEXT_TOKEN_FILE: "bob"}


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"alice": ALICE_TOKEN_FILE}), "utf-8-sig")
    assert read_tokens(file) == {ALICE_TOKEN_FILE: "alice"}


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ("{", "is invalid"),
        ("[]", "is invalid"),
        ({"alice": 3}, "is invalid"),
        ({"alice": [3]}, "is invalid"),
        ({}, "has no tokens"),
        ({"alice": []}, "has no tokens"),
        ({"alice": "short-secret"}, "user 'alice'"),
        ({"alice": "0123456789 abcdef"}, "user 'alice'"),
        ({"alice": "0123456789abcd\u00e9f"}, "user 'alice'"),
        ({"alice": "0123456789\nabcdef"}, "user 'alice'"),
        ({"alice": ALICE_TOKEN_FILE, "bob": ALICE_TOKEN_FILE}, "'alice' and 'bob'"),
    ],
)
def test_a_mistake_is_named_without_a_token(contents: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(TokenFileError) as caught:
        read_tokens(write(tmp_path, contents))
    text = str(caught.value)
    assert problem in text
    assert "tokens.json" in text
    assert "secret" not in text
    assert ALICE_TOKEN_FILE not in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match=r"none\.json' cannot be read"):
        read_tokens(tmp_path / "none.json")
