"""A dispatcher that follows TrustGraph's configuration, on the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dispatch
from dispatch.catalog.sources import SourceStatus
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import run
from tests.helpers.config_service import ConfigService, ConfigStore, config_service
from tests.helpers.followed_config import SERVICE, TOOL, URL, settle
from tests.helpers.run_profile import examples


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


SERVICES_OF = {"t1": "a", "t2": "a", "t3": "b"}
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["a", "b", "t1", "t2", "t3"]), st.booleans()),
    st.tuples(st.just("remove"), st.sampled_from(["a", "b", "t1", "t2", "t3"]), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.04, 0.3, 7.0, 40.0]), st.just(True)),
    st.tuples(st.just("silent"), st.booleans(), st.just(True)),
    st.tuples(st.just("refuse"), st.booleans(), st.just(True)),
    st.tuples(st.just("copies"), st.integers(1, 3), st.just(True)),
    st.tuples(st.just("restart"), st.none(), st.booleans()),
)


async def perform(each: Live, step: tuple[str, Any, bool], number: int) -> None:
    """Perform a step; with false as its last value the notification is lost."""
    action, value, is_announced = step
    service, store = each.service, each.store
    kind = "tool" if value in SERVICES_OF else "tool-service"
    match action:
        case "write" if kind == "tool":
            tool = {"name": value, "service": SERVICES_OF[value], "description": str(number)}
            store.write(kind, value, TOOL | tool)
        case "write":
            store.write(kind, value, SERVICE)
        case "remove":
            store.texts.pop(("default", kind, value), None)
            store.version += 1
        case "wait":
            await asyncio.sleep(value)
        case "silent":
            service.is_silent = value
        case "refuse":
            service.refusal = {"type": "config-error", "message": "refused"} if value else None
        case "copies":
            service.copies = value
        case "restart":
            store.texts.clear()
            store.version = 0
    if action in ("write", "remove") and is_announced:
        service.push({kind: ["default"]})
    elif action == "restart" and is_announced:
        service.push({})


@settings(max_examples=examples(60))
@given(steps=st.lists(STEPS, min_size=1, max_size=25))
def test_the_configuration_is_in_force_whatever_happened_before(steps: list[tuple[str, Any, bool]]) -> None:
    async def scenario() -> None:
        async with live() as each:
            for number, step in enumerate(steps):
                await perform(each, step, number)
            each.service.is_silent, each.service.refusal = False, None
            await asyncio.sleep(80)  # a poll, or the longest wait of the registry after a failure
            expected = {
                raw["name"]: raw["description"]
                for (_, kind, _), text in each.store.texts.items()
                if kind == "tool"
                for raw in [json.loads(text)]
                if ("default", "tool-service", raw["service"]) in each.store.texts
            }
            assert {name: tool.description for name, tool in each.dispatcher.catalog.tools.items()} == expected
            assert each.status.state == "ok"

    run(scenario)
