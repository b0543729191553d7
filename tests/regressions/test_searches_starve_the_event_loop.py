"""A loop of searches kept the event loop for itself: none of them waited for anything, so that the tools were never embedded
and every search remained one by words. Each public coroutine gives other tasks a turn, however little it has to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

import dispatch
from dispatch.toolkit import ToolPackage
from tests.helpers.dispatcher_and_service import BROKER, catalog, dispatching, serving
from tests.unit.search.embedders import WordEmbedder

REPEATS = 100
DESCRIPTOR = {"type": "tool-service", "name": "other", "description": "Does other work.", "service": "lab"}


async def count_turns(call: Callable[[], Awaitable[object]]) -> int:
    """Return how often another task ran during so many calls in a row."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    for _ in range(REPEATS):
        # What is refused at once leaves time to others, too.
        with contextlib.suppress(LookupError, ValueError, RuntimeError):
            await call()
    other.cancel()
    return turns


Calls = Callable[[dispatch.Dispatcher], Awaitable[object]]
CALLS: dict[str, Calls] = {
    "find": lambda d: d.find("work"),
    "find without a match": lambda d: d.find("zzz"),
    "find in a category": lambda d: d.find("work", category="none"),
    "tools": lambda d: d.tools(),
    "tools by a query": lambda d: d.tools(find="work"),
    "search.rank": lambda d: d.search.rank("work", {}),
    "search.refresh": lambda d: d.search.refresh(),
    "call of an unknown tool": lambda d: d.call("none"),
    "execute of an unknown tool": lambda d: d.execute("none"),
    "start": lambda d: d.start(),
    "reload": lambda d: d.reload(),
    "registry.refresh": lambda d: d.registry.refresh(d.registry.sources()[0].id),
    "registry.refresh of an unknown source": lambda d: d.registry.refresh("none"),
    "registry.remove_source": lambda d: d.registry.remove_source("none"),
    "registry.remove": lambda d: d.registry.remove("tool", "none"),
    "result_reader": lambda d: d.results.tool("").invoke("none"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("is_started", [True, False])
async def test_coroutines_of_a_dispatcher_yield(call: Calls, is_started: bool) -> None:
    if is_started:
        async with serving(lambda _: "done"), dispatching(catalog()) as dispatcher:
            dispatcher.search.use_embedder(None)
            assert await count_turns(lambda: call(dispatcher)) >= REPEATS
    elif call not in (CALLS["start"], CALLS["call of an unknown tool"], CALLS["execute of an unknown tool"]):
        dispatcher = dispatch.connect(BROKER, catalog())
        dispatcher.search.use_embedder(None)
        assert await count_turns(lambda: call(dispatcher)) >= REPEATS


async def test_putting_a_tool_before_the_start_yields() -> None:
    dispatcher = dispatch.connect(BROKER, catalog())
    assert await count_turns(lambda: dispatcher.registry.put("tool", DESCRIPTOR)) >= REPEATS


async def test_coroutines_of_a_server_and_of_a_toolkit_yield() -> None:
    async with serving(lambda _: "done") as server:
        await server.drain()
        assert await count_turns(server.drain) >= REPEATS
        await server.close()
        assert await count_turns(server.close) >= REPEATS
    assert await count_turns(ToolPackage("json").list_tools) >= REPEATS


async def test_tools_are_embedded_beside_searches_without_a_pause() -> None:
    async with serving(lambda _: "done"), dispatching(catalog(rain={})) as dispatcher:
        dispatcher.search.use_embedder(WordEmbedder())
        for _ in range(30_000):
            if "similar meaning" in (await dispatcher.find("forecast of rain"))[0].why:
                break
        else:
            pytest.fail("the tools were not embedded during 30,000 searches")
