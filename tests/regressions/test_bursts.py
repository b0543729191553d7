"""Of 300 concurrent calls of a tool of 2 or 5 s, 65 were answered: the others were refused after 1 s, as calls of an
overloaded tool, though all could be answered within their 30 s.

The wait for a permit follows the tool, and one burst is no overload.
Of 1,000 concurrent calls of a healthy tool 81 % were refused as "too busy": 64 ran, 128 waited, and a line is short.

The line is limited by waiting time, and the refusal names the dispatcher's own limit: the tool is not busy.
Of 100 concurrent calls right after `connect`, all went to one of several instances when it announced itself 10 ms before the
others: its handshake had ended by then.

In the first 50 ms after the first instance four calls at once are sent, so that a burst finds the others, too.
Of 30,000 calls on a busy machine, 500 a second, 305 were refused because calls had waited for 0.4 s.

The queue stands when more calls arrive than are served for 2 s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dispatch import CallResult, Dispatcher, Policy, ThrottledError
from dispatch.policy import Bulkhead
from dispatch.testing import Faults, FaultyTransport
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, virtual_loop
from tests.helpers.dispatcher_and_service import BROKER, Peer, catalog, dispatching, serving, stand

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


@pytest.mark.parametrize(
    ("seconds", "instances", "before", "is_repeatable"),
    [
        (0.1, 1, 0, False),
        (0.1, 4, BURST, True),
        (1, 1, BURST, True),
        (1, 4, 1, False),
        (2, 1, 1, True),
        (2, 4, 0, False),
        (5, 1, 0, True),
        (5, 1, 1, False),
        (5, 1, BURST, False),
        (5, 4, BURST, True),
    ],
)
async def test_burst_is_answered(seconds: float, instances: int, before: int, is_repeatable: bool) -> None:
    """When nothing is known of the tool, after a call, and after another burst."""
    async with fleet(instances, **{"read-only": is_repeatable}) as dispatcher:
        if before:
            await at_once(dispatcher, seconds, before)
        results = await at_once(dispatcher, seconds)
        assert Counter(result.outcome for result in results) == {"success": BURST}


async def test_first_burst_is_spread_over_instances_that_announce_themselves_a_little_later() -> None:
    executed: Counter[str] = Counter()

    def serve_as(name: str) -> Callable[[Any], Awaitable[str]]:
        async def work(_arguments: Any) -> str:
            executed[name] += 1
            await asyncio.sleep(1)
            return "done"

        return work

    later = FaultyTransport(MemoryTransport(BROKER), Faults(latency=0.02, direction="out"))
    await later.start()
    async with serving(serve_as("first")), serving(serve_as("later"), broker=later), dispatching() as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute("work", {}) for _ in range(60)))
        assert Counter(result.outcome for result in results) == {"success": 60}
        assert max(executed.values()) <= 34
    await later.close()


async def test_first_calls_do_not_wait_for_further_instances() -> None:
    async with serving(work), dispatching() as dispatcher:
        began = asyncio.get_running_loop().time()
        await at_once(dispatcher, 0, 4)
        assert asyncio.get_running_loop().time() - began < 0.05


async def test_first_calls_without_time_to_wait_go_to_the_instance_that_is_there() -> None:
    async with serving(work), dispatching() as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute("work", {"seconds": 0}, timeout=0.05) for _ in range(20)))
        assert Counter(result.outcome for result in results) == {"success": 20}


async def test_burst_of_a_new_dispatcher_finds_the_places_that_a_closed_one_had() -> None:
    """They were kept for the closed one for a second: a dispatcher that was restarted waited for places that were free."""
    async with serving(work):
        for _ in range(2):
            async with dispatching() as dispatcher:
                began = asyncio.get_running_loop().time()
                results = await at_once(dispatcher, 1, PERMITS)
                assert Counter(result.outcome for result in results) == {"success": PERMITS}
                assert asyncio.get_running_loop().time() - began < 1.5


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


MAX_WAIT_S = 1.0


PLACES = 10_000


async def answers_at_once(dispatcher: Dispatcher, count: int) -> list[CallResult]:
    return await asyncio.gather(*(dispatcher.execute("work") for _ in range(count)))


def taking(seconds: float) -> Any:
    async def work(_arguments: Any) -> str:
        await asyncio.sleep(seconds)
        return "done"

    return work


@pytest.mark.parametrize("seconds", [0.001, 0.05])
async def test_a_burst_that_is_worked_off_within_the_waiting_time_loses_no_call(seconds: float) -> None:
    """1 ms, and what makes the 1,000th call wait for 0.8 s."""
    async with stand(taking(seconds)) as (dispatcher, server):
        for _ in range(2):  # also when it is known how long the tool takes
            results = await answers_at_once(dispatcher, 1_000)
            assert Counter(result.outcome for result in results) == {"success": 1_000}
            await advance(2)
        assert server.running == 0


async def test_a_burst_after_slow_calls_is_not_refused_by_what_they_took() -> None:
    """By the mean of the calls before it, the last of 1,000 would wait for 1.5 s; in fact for 15 ms."""
    seconds = 0.1

    async def work(_arguments: Any) -> str:
        await asyncio.sleep(seconds)
        return "done"

    async with stand(work) as (dispatcher, _):
        await answers_at_once(dispatcher, 64)
        seconds = 0.001
        results = await answers_at_once(dispatcher, 1_000)
        assert Counter(result.outcome for result in results) == {"success": 1_000}


async def test_no_call_waits_for_longer_than_the_limit() -> None:
    async with stand(taking(0.1), policy=Policy(bulkhead=Bulkhead(max_wait=MAX_WAIT_S))) as (dispatcher, _):
        await dispatcher.call("work", {})  # the first burst waits for further instances
        results = await answers_at_once(dispatcher, 2_000)
        refused = [result for result in results if not result.ok]
        assert 500 <= len(results) - len(refused) <= 64 * 11, "as many as the tool does in that time"
        assert max(result.duration for result in refused) <= MAX_WAIT_S + 0.001


async def test_no_more_wait_than_there_are_places() -> None:
    async with stand(taking(5), policy=Policy(bulkhead=Bulkhead(max_wait=MAX_WAIT_S))) as (dispatcher, _):
        calls = asyncio.create_task(answers_at_once(dispatcher, 64 + PLACES + 100))
        await advance(0.5)
        assert dispatcher._running.queued() == {("work", "lab"): PLACES}
        refused = [result.error.type for result in await calls if result.error is not None]
        assert Counter(refused) == {"bulkhead-full": PLACES + 100}


async def test_the_refusal_names_the_limit_of_the_dispatcher() -> None:
    async with stand(taking(5), policy=Policy(bulkhead=Bulkhead(1, MAX_WAIT_S))) as (dispatcher, _):
        results = await answers_at_once(dispatcher, 2)
        (error,) = (result.error for result in results if result.error is not None)
        assert isinstance(error, ThrottledError)
        assert (error.type, error.rejected_by, error.outcome) == ("bulkhead-full", "bulkhead", "throttled")
        assert error.message.startswith("Tool 'work' was not executed: the limit of calls in flight")
        assert "bulkhead.max-concurrent-calls" in error.message
        assert "bulkhead.max-wait" in error.message
        assert "it has" not in error.message, "nothing is said about the tool"


async def test_a_machine_that_is_too_busy_for_a_second_costs_waiting_and_no_call() -> None:
    """64 calls at once of 0.2 s are 320 a second, and 500 arrive."""
    loop = asyncio.get_running_loop()
    async with serving(work), serving(work), dispatching(catalog(work={})) as dispatcher, asyncio.TaskGroup() as group:
        began, calls = loop.time(), []
        while (elapsed := loop.time() - began) < 4:
            seconds = 0.2 if 1 <= elapsed < 2.2 else 0.02
            calls.append(group.create_task(dispatcher.execute("work", {"seconds": seconds})))
            await asyncio.sleep(0.002)
    assert Counter(call.result().outcome for call in calls) == {"success": len(calls)}
