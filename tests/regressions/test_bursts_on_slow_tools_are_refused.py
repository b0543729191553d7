"""Of 300 concurrent calls of a tool of 2 or 5 s, 65 were answered: the others were refused after 1 s, as calls of an
overloaded tool, though all could be answered within their 30 s.

The wait for a permit follows the tool, and one burst is no overload.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import CallResult, Dispatcher
from tests.helpers.clock import advance, virtual_loop
from tests.helpers.dispatcher_and_service import Peer, catalog, dispatching, serving

BURST, PERMITS = 300, 64


async def work(arguments: Any) -> str:
    await asyncio.sleep(arguments["seconds"])
    return "done"


@contextlib.asynccontextmanager
async def fleet(instances: int, **keys: Any) -> AsyncIterator[Dispatcher]:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(instances):
            await stack.enter_async_context(serving(work))
        yield await stack.enter_async_context(dispatching(catalog(work=keys)))


async def at_once(dispatcher: Dispatcher, seconds: float, count: int = BURST) -> list[CallResult]:
    return await asyncio.gather(*(dispatcher.execute("work", {"seconds": seconds}) for _ in range(count)))


@pytest.mark.parametrize("keys", [{}, {"read-only": True}], ids=["not-repeatable", "repeatable"])
@pytest.mark.parametrize("before", [None, 1, BURST], ids=["cold", "warm", "second-burst"])
@pytest.mark.parametrize("instances", [1, 4])
@pytest.mark.parametrize("seconds", [0.1, 1, 2, 5])
async def test_burst_is_answered(seconds: float, instances: int, before: int | None, keys: dict[str, Any]) -> None:
    async with fleet(instances, **keys) as dispatcher:
        if before:
            await at_once(dispatcher, seconds, before)
        results = await at_once(dispatcher, seconds)
        assert Counter(result.outcome for result in results) == {"success": BURST}


@pytest.mark.parametrize("seconds", [1, 2, 5])
async def test_burst_of_slow_calls_after_fast_ones_is_answered(seconds: float) -> None:
    async with fleet(1) as dispatcher:
        await at_once(dispatcher, 0.1)
        results = await at_once(dispatcher, seconds)
        assert Counter(result.outcome for result in results) == {"success": BURST}


async def test_burst_that_cannot_be_answered_whole_is_answered_as_far_as_it_can() -> None:
    """Cold: 8 s each, so that three rounds of 64 end within the 30 s."""
    async with fleet(1) as dispatcher:
        results = await at_once(dispatcher, 8)
        ends = Counter("success" if result.error is None else result.error.type for result in results)
        assert ends["success"] >= 3 * (PERMITS - 4), "an instance keeps some of its places for other tools"
        assert set(ends) == {"success", "bulkhead-full"}, "no call was executed in vain"


async def test_tool_that_hangs_refuses_quickly_after_many_of_its_durations() -> None:
    async with fleet(1) as dispatcher:
        await at_once(dispatcher, 0.05, 10)
        hanging = asyncio.create_task(at_once(dispatcher, 60, PERMITS))
        await advance(1.5)
        began = virtual_loop().time()
        results = await at_once(dispatcher, 0.05, 100)
        assert virtual_loop().time() == began
        assert Counter(result.error.type for result in results if result.error is not None) == {"bulkhead-full": 100}
        hanging.cancel()


async def test_tool_of_which_nothing_is_known_and_that_hangs_refuses_after_half_of_the_time() -> None:
    async with fleet(1) as dispatcher:
        hanging = asyncio.create_task(at_once(dispatcher, 60, PERMITS))
        await advance(0.01)
        results = await at_once(dispatcher, 60, 100)
        assert {result.error.type for result in results if result.error is not None} == {"bulkhead-full"}
        assert max(result.duration for result in results) == pytest.approx(15, abs=0.1)
        hanging.cancel()


async def test_burst_on_a_third_party_service_that_does_one_request_at_a_time_is_answered() -> None:
    """As TrustGraph's own joke service: 300 calls of 50 ms each take 15 s."""
    async with Peer.as_service() as peer, dispatching() as dispatcher:

        async def serve() -> None:
            while True:
                _, properties = await peer.request()
                await asyncio.sleep(0.05)
                await peer.answer(properties, "ha")

        serving_all = asyncio.create_task(serve())
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(BURST)))
        assert Counter(result.outcome for result in results) == {"success": BURST}
        serving_all.cancel()
