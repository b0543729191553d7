"""Pages of the console as HTML, without a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
from uuid import uuid4

import httpx2
import pytest

import dispatch
from dispatch import Admin, Announce, DispatchError, ToolServer
from dispatch.admin.console import tell_event, write_duration
from dispatch.telemetry.events import BrokerChanged
from tests.helpers.admin_endpoint import eventually, observed, price

pytestmark = pytest.mark.wall_clock
PAGES = ("/", "/tools", "/tools/price", "/instances", "/instances/shop-1", "/calls", "/catalogue", "/users")
HTML = {"Accept": "text/html"}


async def test_every_page_is_there_for_a_dispatcher_and_for_a_service() -> None:
    async with observed(Admin("127.0.0.1:0", peers=("http://127.0.0.1:9",))) as it:
        await it.dispatcher.call("price", {"item": "a"})
        for base in (it.dispatcher.admin_url, it.server.admin_url):
            for path in PAGES:
                page = await it.client.get(f"{base}{path}", headers=HTML)
                assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8"), path
        overview = (await it.client.get("/")).text
        assert "out of reach" in overview
        assert f'href="{it.server.admin_url}"' in overview


async def test_what_users_and_models_write_is_text() -> None:
    async with observed() as it:
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "bad"}, user="<script>alert(1)</script>")
        for path in ("/", "/users", "/calls", "/calls/1", "/tools/%3Cscript%3E", "/calls?tool=%22%3E%3Cscript%3E"):
            assert "<script>" not in (await it.client.get(path, headers=HTML)).text, path


async def test_what_a_process_announces_as_its_console_is_a_link_only_if_it_is_http() -> None:
    script = "javascript:alert(1)"
    broker = f"memory://{uuid4().hex}"
    announce = Announce(labels={"admin": script})
    async with (
        ToolServer(functions=[price], service="shop", instance="shop-1", broker=broker, announce=announce),
        dispatch.connect(broker, dispatch.Announced(), admin=Admin(peers=(script,))) as dispatcher,
        httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False) as client,
    ):
        await dispatcher.call("price", {"item": "a"})
        overview = (await client.get("/", headers=HTML)).text
        assert f"{script}: no admin endpoint" in overview
        assert "shop-1: no admin endpoint" in overview
        for page in (overview, (await client.get("/instances/shop-1", headers=HTML)).text):
            assert 'href="javascript' not in page


async def test_pages_have_what_concerns_them_and_links_that_lead_there() -> None:
    broker = f"memory://{uuid4().hex}"
    async with (
        ToolServer(functions=[price], service="shop", instance="..", broker=broker),
        ToolServer(functions=[price], service="shop", instance="i-1", broker=broker),
        ToolServer(functions=[price], service="shop", instance="i-10", broker=broker),
        dispatch.connect(broker, dispatch.Announced(), admin="127.0.0.1:0") as dispatcher,
        httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False, headers=HTML) as client,
    ):
        await dispatcher.call("price", {"item": "a"}, user="alice")
        await eventually(lambda: len(dispatcher.instances("shop")) == 3)
        body = {"action": "eject", "reason": "new disk", "user": "alice"}
        for path in ("i-10", "%252E%252E"):
            assert (await client.post(f"/api/instances/{path}", json=body)).status_code == 200
        assert 'href="/instances/%252E%252E"' in (await client.get("/instances")).text
        dots, one, ten = [(await client.get(f"/instances/{path}")).text for path in ("%252E%252E", "i-1", "i-10")]
        assert "alice: eject instance .. (new disk)" in dots
        assert "alice: eject instance i-10 (new disk)" in ten
        assert "new disk" not in one
        await dispatcher.call("price", {"item": "a"})
        assert 'href="/calls?user=%28no%20user%29"' in (await client.get("/users")).text
        calls = (await client.get("/calls?user=%28no%20user%29")).text
        assert "alice" not in calls
        assert 'href="/calls/2"' in calls


async def test_a_version_has_a_page_and_actions_of_its_own_and_a_service_has_no_circuits() -> None:
    service = {"id": "lab", "request-queue": "request:tg:lab", "response-queue": "response:tg:lab"}
    tools = [
        {"type": "tool-service", "name": "work", "description": "Works", "service": "lab", "version": version}
        for version in ("1.0.0", "2.0.0")
    ]
    async with (
        dispatch.connect("memory://versions", dispatch.Catalog.of([service], tools), admin="127.0.0.1:0") as dispatcher,
        httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False, headers=HTML) as client,
    ):
        catalogue = (await client.get("/catalogue")).text
        for version in ("1.0.0", "2.0.0"):
            assert f'href="/tools/work?version={version}"' in catalogue
            page = (await client.get(f"/tools/work?version={version}")).text
            assert page.count(f'data-version="{version}"') == 3
    async with observed() as it:
        page = (await it.client.get(f"{it.server.admin_url}/tools/price", headers=HTML)).text
        assert "data-path" not in page
        assert "the dispatchers that call it" in page


def test_the_broker_is_named_when_it_is_lost_and_back() -> None:
    lost = BrokerChanged(0.0, "pulsar://host:6650", False).as_dict()
    back = BrokerChanged(0.0, "pulsar://host:6650", True, 12.0).as_dict()
    assert tell_event(lost) == "broker pulsar://host:6650: lost"
    assert tell_event(back) == "broker pulsar://host:6650: back after 12.0 s"


async def test_a_peer_that_answers_otherwise_does_not_hurt_the_overview() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop())
        writer.close()

    http = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    process = {"kind": "service", "name": "x", "ready": 1, "reasons": 5, "host": {}, "tools": "many", "uptime": None}
    answers = [b"SSH-2.0-OpenSSH_9.2\r\n", http + b"\xff", http + json.dumps(process).encode()]
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with observed(Admin(peers=tuple(f"http://127.0.0.1:{port}/{each}" for each in range(3)))) as it:
            overview = await it.client.get("/", headers=HTML)
            assert overview.text.count("no admin endpoint") == 6
            assert not answers


async def test_a_peer_that_wants_a_sign_in_is_no_trouble() -> None:
    async with (
        observed(Admin(read={"bob": "read-token-0123456789"})) as peer,
        observed(Admin(peers=(str(peer.dispatcher.admin_url),))) as it,
    ):
        overview = (await it.client.get("/", headers=HTML)).text
        assert '<span class="state warn">sign-in needed</span>' in overview
        assert '<span class="state bad">' not in overview


async def test_every_response_has_the_headers_that_protect_a_browser() -> None:
    async with observed() as it:
        for path in ("/", "/tools/none", "/static/console.css", "/api/process", "/metrics", "/healthz"):
            headers = (await it.client.get(path, headers=HTML)).headers
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'"), path
            assert "frame-ancestors 'none'; base-uri 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Referrer-Policy"] == "no-referrer"


async def test_what_does_not_exist_is_a_page_that_leads_back() -> None:
    paths = ("/nope", "/tools/none", "/instances/none", "/calls/99", "/static/../app.py", "/static/%00")
    async with observed() as it:
        for path in (*paths, "/static/%2e%2e%2fapp.py", f"/static/{'a' * 300}.css"):
            page = await it.client.get(path, headers=HTML)
            assert page.status_code == 404, path
            assert "To the overview" in page.text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0005, "500 µs"),
        (0.05, "50.0 ms"),
        (0.9996, "1.00 s"),
        (90, "90.0 s"),
        (600, "10 min"),
        (10_800, "3 h"),
        (259_200, "3 d"),
    ],
)
def test_a_duration_has_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert write_duration(seconds) == shown
