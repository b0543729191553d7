"""Changes of a server's list of tools come into force within a second, however they are announced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dispatch
import dispatch.mcp.sessions
from tests.helpers.mcp_servers.programs import connected, http_server, stdio, until
from tests.helpers.run_profile import by_profile

TOOLS = 124
"""Tools of the server at its start, on three pages."""


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type] # a coroutine


def names(dispatcher: dispatch.Dispatcher) -> set[str]:
    return {tool.name for tool in dispatcher.registry.list()}


CHANGES = by_profile(short=20, long=200)
"""Changes of the list, 20 each second."""


async def follow_changes(entry: dict[str, Any]) -> None:
    async with connected({"server": entry}) as dispatcher:
        assert len(names(dispatcher)) == TOOLS
        await dispatcher.call("change", {"count": CHANGES, "seconds": CHANGES / 20})
        began = time.monotonic()
        delays: dict[str, float] = {}
        while len(delays) < CHANGES:
            assert time.monotonic() - began < 30
            await asyncio.sleep(0.05)
            for tool in dispatcher.registry.list(text="new-"):
                delays.setdefault(tool.name, time.monotonic() - float(tool.description))
        assert max(delays.values()) < 1
        await dispatcher.call("remove", {"name": "new-0"})
        await until(lambda: "new-0" not in names(dispatcher), 1)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_20_changes_per_second_are_followed(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "MODE", mode)
    run(lambda: follow_changes(stdio("changing")))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_changes_over_http_and_after_a_restart(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "MODE", mode)

    async def test() -> None:
        with http_server("changing") as server:
            async with connected({"server": {"url": server.url}}) as dispatcher:
                assert len(names(dispatcher)) == TOOLS
                await dispatcher.call("remove", {"name": "tool-0"})
                await until(lambda: "tool-0" not in names(dispatcher), 1)
                server.kill()
                await asyncio.to_thread(server.start)
                await until(lambda: "tool-0" in names(dispatcher), 20)
                await until(lambda: dispatcher.registry.sources()[0].state == "ok", 20)
                await dispatcher.call("remove", {"name": "tool-1"})
                await until(lambda: "tool-1" not in names(dispatcher), 5)

    run(test)


@pytest.mark.parametrize("ttl", [[], ["ttl=1000"]], ids=["every minute", "time to live"])
def test_a_server_that_announces_nothing_is_polled(ttl: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not ttl:
        monkeypatch.setattr(dispatch.mcp.sessions, "POLL_S", 1.0)

    async def test() -> None:
        async with connected({"server": stdio("changing", "silent", *ttl)}) as dispatcher:
            await dispatcher.call("remove", {"name": "tool-0"})
            assert "tool-0" in names(dispatcher)
            await until(lambda: "tool-0" not in names(dispatcher), 3)

    run(test)


def test_a_change_leaves_the_other_items_as_they_are() -> None:
    async def test() -> None:
        async with connected({"server": stdio("changing")}) as dispatcher:
            former = dispatcher.registry.get("tool-7")
            await dispatcher.call("remove", {"name": "tool-0"})
            await until(lambda: "tool-0" not in names(dispatcher))
            assert dispatcher.registry.get("tool-7") is former
            gone = await dispatcher.execute("tool-0")
            assert gone.error is not None
            assert gone.error.type == "unknown-tool"

    run(test)


@pytest.mark.parametrize(
    ("code", "kind", "type"),
    [
        (-32602, dispatch.InvalidArgumentsError, "invalid-arguments"),
        (-32601, dispatch.RejectedError, "unknown-tool"),
        (-32603, dispatch.TransportError, "server-failed"),
        (-32000, dispatch.TransportError, "server-failed"),
    ],
)
def test_errors_of_the_protocol(code: int, kind: type[dispatch.DispatchError], type: str) -> None:
    async def test() -> None:
        async with connected({"server": stdio("changing")}) as dispatcher:
            result = await dispatcher.execute("break", {"code": code})
            assert isinstance(result.error, kind)
            assert result.error.type == type
            assert "it broke" in result.error.message

    run(test)
