"""A dispatcher that follows TrustGraph's configuration, on the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

import dispatch
from dispatch.catalog.sources.base import SourceStatus
from dispatch.transports.memory import MemoryTransport
from tests.helpers.config_service import ConfigService, ConfigStore, config_service
from tests.helpers.followed_config import SERVICE, TOOL, URL, settle


class Joke(dispatch.ToolService):
    """Answers with the config and the arguments."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"{config.get('style', 'plain')} joke about {arguments['topic']}"


class Live(NamedTuple):
    service: ConfigService
    store: ConfigStore
    source: dispatch.TrustGraphConfig
    dispatcher: dispatch.Dispatcher

    @property
    def tools(self) -> list[str]:
        return sorted(self.dispatcher.catalog.tools)

    @property
    def status(self) -> SourceStatus:
        return next(each for each in self.dispatcher.registry.sources() if each.id == "trustgraph")


@contextlib.asynccontextmanager
async def live(*others: Any, is_running: bool = True) -> AsyncIterator[Live]:
    store = ConfigStore()
    store.write("tool-service", "joke-service", SERVICE | {"config-params": ["style"]})
    store.write("tool", "tell-joke", TOOL)
    source = dispatch.TrustGraphConfig(randomness=lambda: 0.5)
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(config_service(URL, store))
        if not is_running:
            await service.stop()
        await stack.enter_async_context(dispatch.ToolServer(Joke(), URL, service="joke"))
        dispatcher = dispatch.Dispatcher(MemoryTransport(URL), [*others, source], randomness=lambda: 0.5)
        yield Live(service, store, source, await stack.enter_async_context(dispatcher))


async def activation() -> None:
    """Wait until a change is in force."""
    await asyncio.sleep(0.2)
    await settle()


async def test_a_tool_that_is_put_can_be_called_and_one_that_is_removed_cannot() -> None:
    async with live() as each:
        await each.source.put("tool", TOOL | {"name": "tell-pun", "style": "pun"})
        await activation()
        assert await each.dispatcher.call("tell-pun", {"topic": "cats"}) == "pun joke about cats"
        assert await each.dispatcher.call("tell-joke", {"topic": "cats"}) == "plain joke about cats"
        await each.source.remove("tool", "tell-pun")
        await activation()
        with pytest.raises(dispatch.RejectedError, match="tell-pun"):
            await each.dispatcher.call("tell-pun", {"topic": "cats"})
        assert each.dispatcher.registry.source("trustgraph") is each.source


async def test_an_invalid_item_keeps_its_last_valid_version() -> None:
    async with live() as each:
        each.store.write("tool", "tell-joke", "{")
        each.store.write("tool", "another", TOOL | {"name": "another", "service": "unknown"})
        each.store.write("tool", "third", TOOL | {"name": "third"})
        each.service.push({"tool": ["default"]})
        await activation()
        assert each.tools == ["tell-joke", "third"]
        assert (each.status.state, each.status.refused) == ("ok", 2)
        each.store.write("tool", "tell-joke", TOOL | {"description": "Mended"})
        each.service.push({"tool": ["default"]})
        await activation()
        assert each.dispatcher.catalog.tools["tell-joke"].description == "Mended"
        assert each.status.refused == 1


async def test_tools_of_other_types_have_an_owner() -> None:
    async with live() as each:
        await each.source.put("tool", {"type": "mcp-tool", "name": "weather", "mcp-tool": "w"}, key="w")
        await activation()
        assert each.tools == ["tell-joke"]
        other = each.dispatcher.registry.others["weather"]
        assert (other.type, other.source, other.origin) == ("mcp-tool", "trustgraph", "trustgraph:default/tool/w")


async def test_without_an_answer_the_items_of_other_sources_are_there() -> None:
    code = dispatch.Catalog.of([SERVICE | {"id": "own"}], [TOOL | {"name": "own-joke", "service": "own"}])
    async with live(code, is_running=False) as each:
        assert each.tools == ["own-joke"]
        assert (each.status.state, each.status.items) == ("failed", 0)
        await asyncio.sleep(20)
        assert "did not answer 'getvalues'" in each.status.problem
        await each.service.start()  # it announces itself
        await activation()
        assert each.tools == ["own-joke", "tell-joke"]
        assert (each.status.state, each.status.problem) == ("ok", "")
        await each.service.stop()
        await asyncio.sleep(60)
        assert (each.status.state, each.tools) == ("stale", ["own-joke", "tell-joke"])


async def test_attempts_to_reach_the_service_are_up_to_thirty_seconds_apart() -> None:
    async with live() as each:
        each.service.is_silent = True
        each.service.ids.clear()
        await asyncio.sleep(
            200
        )  # the poll after 30 s; each attempt has 5 s, then 0.5 s, 1 s, 2 s … 30 s until the next
        assert 9 <= len(set(each.service.ids)) <= 11


async def test_reload_with_the_same_source_and_removal_leave_one_and_no_subscription() -> None:
    async with live() as each:
        transport = each.dispatcher._transport
        assert isinstance(transport, MemoryTransport)

        def notified() -> int:
            return sum(open.topic == each.source.topics.notification for open in transport._subscriptions)

        await each.dispatcher.reload([each.source])
        assert notified() == 1
        another = dispatch.TrustGraphConfig()
        await each.dispatcher.reload([another])
        await activation()
        assert (notified(), each.tools) == (1, ["tell-joke"])
        await each.dispatcher.registry.remove_source("trustgraph")
        assert (notified(), each.tools) == (0, [])
