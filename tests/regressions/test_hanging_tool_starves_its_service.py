"""One hanging tool of a service took the other 49 with it: its requests filled the instance's 64 places, the others were
refused as `overloaded`, and their circuits opened.

An instance shares its places, its queue and its threads among tools and callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from typing import Any

import pytest

from dispatch import CallResult, Dispatcher, ToolService
from dispatch.messaging.wire import Refusal
from tests.helpers.clock import advance, idle, virtual_loop
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, Service, catalog, dispatching, serving, stand

TOOLS, RATE = 50, 250.0


async def work(arguments: Any) -> str:
    await asyncio.sleep(arguments.get("seconds", 0.05))
    return "done"


def kind(result: CallResult) -> str:
    return "success" if result.error is None else result.error.type


@pytest.mark.parametrize("hanging", [1, 5])
async def test_other_tools_of_the_service_are_answered(hanging: int) -> None:
    ends: Counter[str] = Counter()
    longest = 0.0
    tools = catalog(**{f"t{number}": {} for number in range(TOOLS)})
    chance = random.Random(hanging)
    async with stand(work, tools) as (dispatcher, server):

        async def call(number: int) -> None:
            nonlocal longest
            is_hanging = number % TOOLS < hanging
            result = await dispatcher.execute(f"t{number % TOOLS}", {"seconds": 3_600} if is_hanging else {})
            if not is_hanging:
                ends[kind(result)] += 1
                longest = max(longest, result.duration)

        calls = []
        for number in range(20 * int(RATE)):
            calls.append(asyncio.create_task(call(number)))
            await asyncio.sleep(chance.expovariate(RATE))
        await advance(1)
        assert ends == {"success": 20 * RATE * (TOOLS - hanging) / TOOLS}
        assert longest <= 0.5
        assert server.running >= 40, "places that the others do not need are used"
        assert server.refused[Refusal.OVERLOADED] == 0
        for each in calls:
            each.cancel()


async def test_caller_with_endless_calls_leaves_places_to_another_caller_of_the_tool() -> None:
    tools = {"work": {"policy": UNGUARDED}}
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serving(work, concurrency=16))
        greedy = await stack.enter_async_context(dispatching(catalog(**tools)))
        modest = await stack.enter_async_context(dispatching(catalog(**tools)))

        async def answered(dispatcher: Dispatcher, seconds: float) -> str:
            return kind(await dispatcher.execute("work", {"seconds": seconds}))

        assert await answered(modest, 0.05) == "success"
        calls = [asyncio.create_task(answered(greedy, 3_600)) for _ in range(100)]
        await advance(1)
        began = virtual_loop().time()
        for _ in range(5):
            assert await answered(modest, 0.05) == "success"
        assert virtual_loop().time() - began == pytest.approx(0.25, abs=0.05)
        for call in calls:
            call.cancel()


async def test_tools_of_third_party_callers_are_told_apart_by_their_config() -> None:
    async def by_config(config: Any, _arguments: Any) -> str:
        await asyncio.sleep(3_600 if config["tool"] == "hangs" else 0.05)
        return "done"

    class Both(ToolService):
        async def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
            return await by_config(config, arguments)

    async with serving(Both(), concurrency=8) as server, Peer.as_caller() as caller:
        await caller.ask(b'{"config": "{\\"tool\\": \\"well\\"}", "arguments": "{}"}', id="0")
        assert (await caller.arrived.get()).properties()["id"] == "0"
        for number in range(1, 21):
            await caller.ask(b'{"config": "{\\"tool\\": \\"hangs\\"}", "arguments": "{}"}', id=str(number))
        await idle()
        assert (server.running, server.queued) == (7, 13)
        await caller.ask(b'{"config": "{\\"tool\\": \\"well\\"}", "arguments": "{}"}', id="last")
        assert (await caller.arrived.get()).properties()["id"] == "last"


class Blocking(ToolService):
    """A synchronous tool; with the argument ``hang`` it returns when it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.began = asyncio.Semaphore(0)
        self._loop = asyncio.get_running_loop()

    def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
        if "hang" in arguments:
            self._loop.call_soon_threadsafe(self.began.release)
            self.release.wait(20)
        return "done"


@pytest.mark.wall_clock
async def test_threads_are_shared_too() -> None:
    service = Blocking()
    tools = catalog(well={}, hangs={"policy": {"timeout": 0.2}})
    async with stand(service, tools, concurrency=4) as (dispatcher, server):
        assert await dispatcher.call("well") == "done"
        for _ in range(2):
            ends = await asyncio.gather(*(dispatcher.execute("hangs", {"hang": True}) for _ in range(6)))
            assert "success" not in {kind(result) for result in ends}
            assert [kind(await dispatcher.execute("well")) for _ in range(5)] == ["success"] * 5
        assert server.abandoned_threads == 3
        refused = await dispatcher.execute("well")
        assert refused.ok
        service.release.set()


async def test_request_whose_threads_are_all_held_is_refused_at_once() -> None:
    service = Blocking()
    tools = catalog(well={}, hangs={"policy": {**UNGUARDED, "timeout": 1}})
    async with stand(service, tools, concurrency=4) as (dispatcher, server):
        assert await dispatcher.call("well") == "done"
        hanging = [asyncio.create_task(dispatcher.execute("hangs", {"hang": True})) for _ in range(3)]
        for _ in hanging:
            await service.began.acquire()
        virtual_loop().threads_may_hang = True
        await asyncio.wait(hanging)
        await idle()
        assert server.abandoned_threads == 3
        result = await dispatcher.execute("hangs", {"hang": True})
        virtual_loop().threads_may_hang = False
        assert kind(result) == "overloaded"
        assert result.duration < 0.1
        assert await dispatcher.call("well") == "done"
        service.release.set()


# -- the queue of an instance ---------------------------------------------------------------------------------------


async def test_queued_request_is_refused_at_its_deadline_and_leaves_the_queue() -> None:
    service = Service(work)
    async with serving(service, concurrency=1, max_queue=1) as server, Peer.as_caller() as caller:
        await caller.ask(b'{"arguments": {"seconds": 60}}', id="1")
        await caller.ask(b"{}", id="2", remaining_ms="1000")
        await idle()
        assert server.queued == 1
        began = virtual_loop().time()
        refused = await caller.arrived.get()
        assert (refused.properties()["id"], refused.properties()["refused"]) == ("2", Refusal.EXPIRED)
        assert virtual_loop().time() - began == pytest.approx(1, abs=0.01)
        assert server.queued == 0
        await caller.ask(b"{}", id="3")
        await idle()
        assert server.queued == 1, "the place in the queue is free"
        assert len(service.requests) == 1


async def test_queued_request_that_is_cancelled_leaves_the_queue() -> None:
    tools = catalog(work={"policy": UNGUARDED})
    async with stand(work, tools, concurrency=1, max_queue=1) as (dispatcher, server):
        calls = [asyncio.create_task(dispatcher.execute("work", {"seconds": seconds})) for seconds in (5, 0.05)]
        await advance(0.1)
        assert server.queued == 1
        calls[1].cancel()
        await idle()
        assert server.queued == 0
        assert server.cancelled == 1
        result = await dispatcher.execute("work")
        assert kind(result) == "success"


async def test_overloaded_instance_says_when_its_queue_will_be_served() -> None:
    tools = catalog(work={"policy": UNGUARDED})
    async with stand(work, tools, concurrency=2, max_queue=3) as (dispatcher, _):
        await asyncio.gather(*(dispatcher.execute("work", {"seconds": 4}) for _ in range(2)))
        calls = [asyncio.create_task(dispatcher.execute("work", {"seconds": 4})) for _ in range(5)]
        await advance(0.1)
        refused = await dispatcher.execute("work", {"seconds": 4})
        assert kind(refused) == "overloaded"
        assert refused.error is not None
        assert refused.error.retry_after == pytest.approx(8, abs=0.1), "three wait and this one, for two places"
        assert [kind(each) for each in await asyncio.gather(*calls)] == ["success"] * 5


async def test_full_queue_makes_room_for_a_tool_that_waits_less() -> None:
    tools = catalog(much={"policy": UNGUARDED}, little={"policy": UNGUARDED})
    async with stand(work, tools, concurrency=1, max_queue=4) as (dispatcher, _):
        await dispatcher.call("little")
        calls = [asyncio.create_task(dispatcher.execute("much", {"seconds": 1})) for _ in range(5)]
        await advance(0.1)
        result = await dispatcher.execute("little")
        assert kind(result) == "success"
        assert result.duration < 2.1, "it waited for its turn, after one call that was queued before"
        assert Counter(kind(each) for each in await asyncio.gather(*calls)) == {"success": 4, "overloaded": 1}
