"""What the admin endpoint refuses: hosts, pages of other sites, tokens, bodies, addresses."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
from typing import Any

import pytest

import dispatch
from dispatch import Admin
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


@pytest.mark.parametrize("missing", ["jinja2", "starlette"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import dispatch.admin.app"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = ended.stderr.splitlines()[-1]
    assert f"ImportError: The admin endpoint needs {missing}. Install what it needs: pip install" in said
    assert "[http]" in said


@pytest.mark.parametrize("tokens", [{"alice": "short"}, {"alice": ACT, "bob": ACT}, {"alice": "with blanks 0123456"}])
def test_a_weak_or_shared_token_is_refused(tokens: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="token"):
        Admin(act=tokens)


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/api/tools", None, 401),
        ("/metrics", None, 401),
        ("/", None, 401),
        ("/api/tools", "unknown-token-0123456789", 401),
        ("/api/tools", READ, 200),
        ("/metrics", ACT, 200),
        ("/healthz", None, 200),
        ("/readyz", None, 200),
    ],
)
async def test_a_token_is_required(path: str, token: str | None, status: int) -> None:
    async with observed(TOKENS) as it:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        assert (await it.client.get(path, headers=headers)).status_code == status


async def test_a_role_limits_what_a_token_does_and_names_the_user() -> None:
    async with observed(TOKENS) as it:

        async def act(token: str) -> Any:
            headers = {"Authorization": f"Bearer {token}"}
            return await it.client.post("/api/circuits/price", json=BODY, headers=headers)

        assert (await act(READ)).status_code == 403
        assert (await act(ACT)).json()["user"] == "alice"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:9464"}, 421),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:9464"}, 200),
        ({"Host": "proxy.example"}, 200),
    ],
)
async def test_another_host_is_refused_against_dns_rebinding(headers: dict[str, str], status: int) -> None:
    async with observed(Admin("127.0.0.1:0", hosts=("proxy.example",))) as it:
        assert (await it.client.get("/api/process", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
async def test_a_page_of_another_site_cannot_act(headers: dict[str, str], status: int) -> None:
    async with observed() as it:
        assert (await it.client.post("/api/circuits/price", json=BODY, headers=headers)).status_code == status


@pytest.mark.parametrize(("size", "status"), [(64 * 1024 + 1, 413), (60 * 1024, 400)])
async def test_a_body_has_a_limit(size: int, status: int) -> None:
    async with observed() as it:
        headers = {"Content-Type": "application/json"}
        answer = await it.client.post("/api/circuits/price", content=b'"' + b"x" * (size - 2) + b'"', headers=headers)
        assert answer.status_code == status


async def test_other_methods_are_refused() -> None:
    async with observed() as it:
        for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
            assert (await it.client.request(method, "/api/tools")).status_code == 405


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
        ):
            await dispatcher.start()
        await dispatcher.close()
