"""Pages of the console as HTML, without a browser."""

from __future__ import annotations

import contextlib

import pytest

from dispatch import Admin, DispatchError
from tests.helpers.admin_endpoint import observed

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
        assert f'href="{it.server.admin_url}/"' in overview


async def test_what_users_and_models_write_is_text() -> None:
    async with observed() as it:
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "bad"}, user="<script>alert(1)</script>")
        for path in ("/", "/users", "/calls", "/calls/1", "/tools/%3Cscript%3E", "/calls?tool=%22%3E%3Cscript%3E"):
            assert "<script>" not in (await it.client.get(path, headers=HTML)).text, path


@pytest.mark.parametrize("path", ["/nope", "/tools/none", "/instances/none", "/calls/99", "/static/../app.py"])
async def test_what_does_not_exist_is_a_page_that_leads_back(path: str) -> None:
    async with observed() as it:
        page = await it.client.get(path, headers=HTML)
        assert page.status_code == 404
        assert "To the overview" in page.text
