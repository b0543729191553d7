"""Announced tools in TrustGraph's configuration, on the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dispatch
from dispatch.server import ToolServer
from dispatch.transports.memory import MemoryTransport
from dispatch.trustgraph.config import ConfigBroker
from dispatch.trustgraph.mirror import Mirror
from tests.helpers.announcing import service, tool
from tests.helpers.config_service import ConfigService, ConfigStore, config_service
from tests.helpers.followed_config import URL


class Echo(dispatch.ToolService):
    """Answers with its arguments."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return json.dumps(arguments)


def serving(name: str, *tools: dict[str, Any], **options: Any) -> ToolServer:
    return ToolServer(Echo(), URL, service=name, tools=tools or [tool(service=name)], **options)


@contextlib.asynccontextmanager
async def mirroring(store: ConfigStore) -> AsyncIterator[list[tuple[Any, Any]]]:
    transport = MemoryTransport(URL)
    await transport.start()
    broker = ConfigBroker(transport, "mirror")
    announced, config = dispatch.Announced(), dispatch.TrustGraphConfig()
    announced.connect(broker)
    config.connect(broker)
    changes: list[tuple[Any, Any]] = []
    task = asyncio.create_task(Mirror(announced, config, lambda *each: changes.append(each)).follow())
    try:
        await asyncio.sleep(2)
        yield changes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await announced.close()
        await config.close()
        await broker.close()
        await transport.close()


@contextlib.asynccontextmanager
async def configuration() -> AsyncIterator[tuple[ConfigStore, ConfigService]]:
    store = ConfigStore()
    async with config_service(URL, store) as running:
        yield store, running


def kept(store: ConfigStore) -> set[str]:
    """Return the services and tools of a store."""
    return {f"{kind}/{key}" for _, kind, key in store.texts if kind != "dispatch-mirror"}


async def test_announced_tools_are_written_and_removed_when_their_service_is_gone() -> None:
    async with (
        configuration() as (store, _),
        mirroring(store) as changes,
        dispatch.connect(URL, dispatch.TrustGraphConfig()) as agent,
    ):
        async with serving("shop"):
            await asyncio.sleep(2)
            assert kept(store) == {"tool-service/shop", "tool/price"}
            assert changes[-1] == ([("tool-service", "shop"), ("tool", "price")], [])
            assert await agent.call("price", {"product": "lamp"}) == '{"product": "lamp"}'
        await asyncio.sleep(30)
        assert kept(store) == {"tool-service/shop", "tool/price"}
        await asyncio.sleep(35)
        assert kept(store) == set()
        assert changes[-1] == ([], [("tool", "price"), ("tool-service", "shop")])


async def test_items_of_others_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    async with configuration() as (store, _):
        store.write("tool-service", "own", service("own"))
        store.write("tool", "price", tool(service="own", description="Own"))
        async with mirroring(store), serving("shop", tool(), tool("order")):
            await asyncio.sleep(2)
            assert kept(store) == {"tool-service/own", "tool/price", "tool-service/shop", "tool/order"}
            assert json.loads(store.texts["default", "tool", "price"])["description"] == "Own"
        assert "tool/price is not mirrored: the configuration has another item of that name" in caplog.text


async def test_a_restarted_mirror_removes_what_it_has_written() -> None:
    async with configuration() as (store, _):
        async with mirroring(store), serving("shop"):
            await asyncio.sleep(2)
        assert kept(store) == {"tool-service/shop", "tool/price"}
        async with mirroring(store), serving("bank", tool("balance", service="bank")):
            await asyncio.sleep(2)
            assert kept(store) == {"tool-service/bank", "tool/balance"}


async def test_the_highest_version_is_written_under_its_name() -> None:
    async with (
        configuration() as (store, _),
        mirroring(store),
        serving("shop", descriptor={"version": "1.10.0"}),
        ToolServer(
            Echo(),
            URL,
            request_queue="request:tg:old",
            response_queue="response:tg:old",
            tools=[tool()],
            descriptor={"id": "shop", "version": "1.9.0"},
        ),
    ):
        await asyncio.sleep(2)
        assert kept(store) == {"tool-service/shop", "tool/price"}
        assert json.loads(store.texts["default", "tool", "price"])["version"] == "1.10.0"


async def test_it_catches_up_when_the_config_service_returns(caplog: pytest.LogCaptureFixture) -> None:
    async with configuration() as (store, running), mirroring(store), serving("shop"):
        await asyncio.sleep(2)
        await running.stop()
        async with serving("bank", tool("balance", service="bank")):
            await asyncio.sleep(10)
            await running.start()
            await asyncio.sleep(40)
            assert kept(store) == {"tool-service/shop", "tool/price", "tool-service/bank", "tool/balance"}
    assert "the mirror is behind, and tries again in" in caplog.text
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
