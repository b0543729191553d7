"""What the admin endpoint refuses: hosts, pages of other sites, tokens, bodies, addresses."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

import dispatch
from dispatch import Admin
from dispatch.admin.app import MAX_SESSIONS, SESSION_S, Caller, Callers
from tests.helpers.admin_endpoint import observed

pytestmark = pytest.mark.wall_clock
READ, ACT = "read-token-0123456789", "act-token-0123456789"
TOKENS = Admin("127.0.0.1:0", read={"bob": READ}, act={"alice": ACT})
BODY: dict[str, Any] = {"action": "open", "reason": "wrong prices", "user": "eve"}


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9464", "example.org:9464"])
def test_an_address_that_others_reach_requires_tokens(address: str) -> None:
    with pytest.raises(ValueError, match="there are no tokens"):
        dispatch.connect("memory://", admin=address)


@pytest.mark.parametrize("address", ["9464", "127.0.0.1:99999", "::1:9464", ""])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValueError, match=r"such as |ambiguous: write "):
        dispatch.connect("memory://", admin=address)


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("http://127.0.0.1:9464", "127.0.0.1:9464"),
        ("https://localhost:9464/metrics", "localhost:9464"),
        ("http://[::1]:9464/", "[::1]:9464"),
        ("http://", "127.0.0.1:9464"),
    ],
)
def test_an_address_that_is_a_url_is_told_what_to_write(address: str, fix: str) -> None:
    with pytest.raises(ValueError, match=rf"'{re.escape(address)}' is a URL: write {re.escape(fix)}$"):
        dispatch.connect("memory://", admin=address)


@pytest.mark.parametrize("missing", ["jinja2", "starlette"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import dispatch.admin.app"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = ended.stderr.splitlines()[-1]
    assert f"ImportError: The admin endpoint needs {missing}. Install what it needs: pip install" in said
    assert "[http]" in said


@pytest.mark.parametrize("keys", [{"peers": "http://10.0.0.7:9464"}, {"hosts": "proxy.example"}])
def test_one_text_is_no_list(keys: dict[str, Any]) -> None:
    (name, value), *_ = keys.items()
    with pytest.raises(ValueError, match=re.escape(f"Fix: Admin({name}=('{value}',))")):
        Admin(**keys)


@pytest.mark.parametrize("tokens", [{"alice": "short"}, {"alice": ACT, "bob": ACT}, {"alice": "with blanks 0123456"}])
def test_a_weak_or_shared_token_is_refused(tokens: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="token"):
        Admin(act=tokens)


async def test_a_token_is_required() -> None:
    cases = [
        ("/api/tools", None, 401),
        ("/metrics", None, 401),
        ("/", None, 401),
        ("/api/tools", "unknown-token-0123456789", 401),
        ("/api/tools", READ, 200),
        ("/metrics", ACT, 200),
        ("/healthz", None, 200),
        ("/readyz", None, 200),
    ]
    async with observed(TOKENS) as it:
        for path, token, status in cases:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            assert (await it.client.get(path, headers=headers)).status_code == status, (path, token)


async def test_a_role_limits_what_a_token_does_and_names_the_user() -> None:
    async with observed(TOKENS) as it:

        async def act(token: str) -> Any:
            headers = {"Authorization": f"Bearer {token}"}
            return await it.client.post("/api/circuits/price", json=BODY, headers=headers)

        assert (await act(READ)).status_code == 403
        assert (await act(ACT)).json()["user"] == "alice"


async def test_another_host_is_refused_against_dns_rebinding() -> None:
    cases = [
        ("evil.example", 421),
        ("evil.example:9464", 421),
        ("localhost", 200),
        ("[::1]:9464", 200),
        ("proxy.example", 200),
        ("192.0.2.7:9464", 200),  # an address is no name that could be bound to another one
        ("[2001:db8::1]", 200),
        ("192.0.2.7.evil.example", 421),
    ]
    async with observed(Admin("127.0.0.1:0", hosts=("proxy.example",))) as it:
        for host, status in cases:
            assert (await it.client.get("/api/process", headers={"Host": host})).status_code == status, host


async def test_a_page_of_another_site_cannot_act() -> None:
    cases = [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ]
    async with observed() as it:
        for headers, status in [*cases, ({"Origin": str(it.dispatcher.admin_url)}, 200)]:
            answer = await it.client.post("/api/circuits/price", json=BODY, headers=headers)
            assert answer.status_code == status, headers


async def test_a_body_has_a_limit() -> None:
    async with observed() as it:
        headers = {"Content-Type": "application/json"}
        for size, status in ((64 * 1024 + 1, 413), (60 * 1024, 400)):
            body = b'"' + b"x" * (size - 2) + b'"'
            answer = await it.client.post("/api/circuits/price", content=body, headers=headers)
            assert answer.status_code == status, size


@pytest.mark.parametrize(("size", "status"), [(10**12, 413), (100, 408)])
async def test_a_body_that_does_not_arrive_holds_nothing(
    size: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.admin.app.BODY_S", 0.3)
    async with observed() as it:
        port = int(str(it.dispatcher.admin_url).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /api/circuits/price HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {size}\r\n\r\n{{".encode())
        async with asyncio.timeout(10):
            assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()
        await writer.wait_closed()


async def test_other_methods_are_refused() -> None:
    async with observed() as it:
        for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
            assert (await it.client.request(method, "/api/tools")).status_code == 405
        assert (await it.client.post("/metrics", json={})).status_code == 405


async def test_a_browser_gets_a_session_of_its_own_and_never_its_token() -> None:
    async with observed(TOKENS) as it:
        path, origin = "/api/tools", str(it.dispatcher.admin_url)
        cookie = (await it.client.post("/sign-in", json={"token": READ})).headers["Set-Cookie"]
        name, _, rest = cookie.partition("=")
        assert name == f"dispatch-session-{origin.rpartition(':')[2]}"
        assert READ not in cookie
        assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(rest.split("; "))
        assert (await it.client.get(path)).status_code == 200  # the client has the cookie
        assert (await it.client.post("/api/circuits/price", json=BODY)).status_code == 403
        it.client.cookies.set(name, READ)
        for headers in ({}, {"Cookie": f"{name}=unknown"}, {"Cookie": f"{name}={READ}"}):
            it.client.cookies.clear()
            assert (await it.client.get(path, headers=headers)).status_code == 401


async def test_a_sign_out_ends_the_session_of_one_browser() -> None:
    async with observed(TOKENS) as it:
        path, json = "/api/tools", {"Content-Type": "application/json"}
        cookies = []
        for token in (READ, ACT):
            answer = await it.client.post("/sign-in", json={"token": token})
            cookies.append(answer.headers["Set-Cookie"].partition(";")[0])
            it.client.cookies.clear()
        left, stays = ({"Cookie": cookie} for cookie in cookies)
        foreign = {**left, "Origin": "http://evil.example"}
        assert (await it.client.post("/sign-out", json={}, headers=foreign)).status_code == 403
        assert (await it.client.get(path, headers=left)).status_code == 200
        for _ in range(2):
            answer = await it.client.post("/sign-out", json={}, headers=left)
            assert answer.status_code == 200
            name, _, rest = answer.headers["Set-Cookie"].partition("=")
            assert name == cookies[0].partition("=")[0]
            assert {"Max-Age=0", "Path=/", "HttpOnly", "SameSite=strict"} <= set(rest.split("; "))
            assert (await it.client.get(path, headers=left)).status_code == 401
        assert (await it.client.get(path, headers=stays)).status_code == 200
        assert (await it.client.post("/sign-out", content=b"", headers=json)).status_code == 200  # without a session
        assert (await it.client.get(path, headers={"Authorization": f"Bearer {READ}"})).status_code == 200


async def test_over_tls_the_cookie_is_of_this_host_alone() -> None:
    async with observed(TOKENS) as it:
        secure = {"X-Forwarded-Proto": "https"}
        cookie = (await it.client.post("/sign-in", json={"token": READ}, headers=secure)).headers["Set-Cookie"]
        assert cookie.startswith("__Host-dispatch-session-")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
        pair = {"Cookie": cookie.partition(";")[0]}
        it.client.cookies.clear()
        assert (await it.client.get("/api/tools", headers={**secure, **pair})).status_code == 200
        assert (await it.client.get("/api/tools", headers=pair)).status_code == 401
        ended = (await it.client.post("/sign-out", json={}, headers={**secure, **pair})).headers["Set-Cookie"]
        assert ended.startswith("__Host-")
        assert "Secure" in ended.split("; ")
        assert (await it.client.get("/api/tools", headers={**secure, **pair})).status_code == 401


def test_a_session_ends_after_half_a_day_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(id: str | None) -> Caller | None:
        cookie = f"dispatch-session-9464={id}".encode()
        return callers.find(Request({"type": "http", "headers": [(b"host", b"localhost:9464"), (b"cookie", cookie)]}))

    callers = Callers(TOKENS)
    ids = [callers.sign_in(ACT) for _ in range(MAX_SESSIONS + 1)]
    assert (find(ids[0]), find(ids[1]), find(ids[-1])) == (None, Caller("alice", True), Caller("alice", True))
    now = time.monotonic() + SESSION_S
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert find(ids[-1]) is None


async def test_an_odd_body_of_a_sign_in_is_refused() -> None:
    bodies = [
        b"",
        b"[]",
        b"null",
        b'{"token": 5}',
        b'{"token": null}',
        b"{}",
        b"\xff",
        b'"\xff"',
        b'{"token": "\\ud800"}',
    ]
    bodies.append(b'{"a":' + b"[" * 60_000)
    async with observed(TOKENS) as it:
        for body in bodies:
            answer = await it.client.post("/sign-in", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400, body


async def test_head_of_a_stream_leaves_the_connection_usable() -> None:
    async with observed() as it, asyncio.timeout(10):
        host, _, port = str(it.dispatcher.admin_url).removeprefix("http://").partition(":")
        for path in ("/api/events/stream", "/api/calls/stream"):
            reader, writer = await asyncio.open_connection(host, int(port))
            for method in ("HEAD", "GET"):
                writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert b": open" in await reader.readuntil(b": open")
            writer.close()


async def test_a_format_that_no_one_knows_is_answered_in_the_usual_one() -> None:
    async with observed() as it:
        for accept in ("application/openmetrics-text; version=abc", "text/plain; version=1.a"):
            assert (await it.client.get("/metrics", headers={"Accept": accept})).status_code == 200


async def test_metrics_are_compressed_where_the_client_accepts_it() -> None:
    async with observed() as it:
        headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
        async with it.client.stream("GET", "/metrics", headers=headers) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            text = gzip.decompress(b"".join([part async for part in response.aiter_raw()])).decode()
        assert text.endswith("# EOF\n")


async def test_a_port_that_is_taken_is_told_without_a_word_about_tools() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dispatcher = dispatch.connect("memory://", admin=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(
            dispatch.TransportError, match=r"^The admin endpoint cannot be served on .*Use another port"
        ) as refused:
            await dispatcher.start()
        assert (refused.value.type, refused.value.may_have_run) == ("port-taken", False)
        await dispatcher.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel of Linux closes such connections")
async def test_a_reader_that_takes_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.admin.http.UNREAD_S", 1)
    async with observed() as it, asyncio.timeout(20):
        host, _, port = str(it.dispatcher.admin_url).removeprefix("http://").partition(":")
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # soon full
            reader.connect((host, int(port)))
            reader.sendall(f"GET /api/calls/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            await asyncio.to_thread(reader.recv, 10)
            assert is_open(int(port), reader.getsockname()[1])
            while is_open(int(port), reader.getsockname()[1]):
                await asyncio.gather(*(it.dispatcher.execute("price", {"item": "a"}) for _ in range(100)))


def is_open(port: int, peer: int) -> bool:
    """Whether this machine has the connection of the server's ``port`` to the port ``peer``."""
    _, *rows = Path("/proc/net/tcp").read_text().splitlines()
    found = [row.split() for row in rows]
    return any(row[1].endswith(f":{port:04X}") and row[2].endswith(f":{peer:04X}") and row[3] == "01" for row in found)
