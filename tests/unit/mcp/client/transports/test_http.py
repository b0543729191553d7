"""Headers that reach the HTTP transport from elsewhere than a configuration, such as TrustGraph's tokens."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.mcp.conversion import Callbacks
from dispatch.mcp.sessions import McpSession
from dispatch.mcp.transports import HttpTransport, InvalidHeaderError, check_headers


def test_blanks_around_a_value_are_removed() -> None:
    assert check_headers({"Authorization": "Bearer secret\r\n", "X-Key": " a\tb "}) == {
        "Authorization": "Bearer secret",
        "X-Key": "a\tb",
    }


@pytest.mark.parametrize(("name", "value"), [("X-Key", "secret\nsecret"), ("X-Key", "secret-ü"), ("X Key", "secret")])
def test_the_error_has_the_name_and_not_the_value(name: str, value: str) -> None:
    with pytest.raises(InvalidHeaderError, match=name) as caught:
        HttpTransport("http://127.0.0.1:1/mcp", {name: value})
    assert "secret" not in str(caught.value)


async def test_a_session_reports_it() -> None:
    def open_transport() -> HttpTransport:
        return HttpTransport("http://127.0.0.1:1/mcp", {"X-Key": "secret\nsecret"})

    session = McpSession("s", open_transport, Callbacks(), lambda: None, poll=False)
    session.start()
    try:
        async with asyncio.timeout(5):
            await session.wait_first()
        assert "'X-Key'" in session.problem
        assert "secret" not in session.problem
    finally:
        await session.close()
