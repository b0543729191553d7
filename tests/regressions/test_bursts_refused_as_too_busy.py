"""Of 1,000 concurrent calls of a healthy tool 81 % were refused as "too busy": 64 ran, 128 waited, and a line is short.

The line is limited by waiting time, and the refusal names the dispatcher's own limit: the tool is not busy.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dispatch import CallResult, Dispatcher, Policy, ThrottledError
from dispatch.policy import Bulkhead
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import stand

MAX_WAIT_S = 1.0
PLACES = 10_000


async def at_once(dispatcher: Dispatcher, count: int) -> list[CallResult]:
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
            results = await at_once(dispatcher, 1_000)
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
        await at_once(dispatcher, 64)
        seconds = 0.001
        results = await at_once(dispatcher, 1_000)
        assert Counter(result.outcome for result in results) == {"success": 1_000}


async def test_no_call_waits_for_longer_than_the_limit() -> None:
    async with stand(taking(0.1), policy=Policy(bulkhead=Bulkhead(max_wait=MAX_WAIT_S))) as (dispatcher, _):
        results = await at_once(dispatcher, 2_000)
        refused = [result for result in results if not result.ok]
        assert 500 <= len(results) - len(refused) <= 64 * 11, "as many as the tool does in that time"
        assert max(result.duration for result in refused) <= MAX_WAIT_S + 0.001


async def test_no_more_wait_than_there_are_places() -> None:
    async with stand(taking(5), policy=Policy(bulkhead=Bulkhead(max_wait=MAX_WAIT_S))) as (dispatcher, _):
        calls = asyncio.create_task(at_once(dispatcher, 64 + PLACES + 100))
        await advance(0.5)
        assert dispatcher._running.queued() == {"work": PLACES}
        refused = [result.error.type for result in await calls if result.error is not None]
        assert Counter(refused) == {"bulkhead-full": PLACES + 100}


async def test_the_refusal_names_the_limit_of_the_dispatcher() -> None:
    async with stand(taking(5), policy=Policy(bulkhead=Bulkhead(1, MAX_WAIT_S))) as (dispatcher, _):
        results = await at_once(dispatcher, 2)
        (error,) = (result.error for result in results if result.error is not None)
        assert isinstance(error, ThrottledError)
        assert (error.type, error.rejected_by, error.outcome) == ("bulkhead-full", "bulkhead", "throttled")
        assert error.message.startswith("Tool 'work' was not executed: the dispatcher's limit of calls in flight")
        assert "bulkhead.max-concurrent-calls" in error.message
        assert "bulkhead.max-wait" in error.message
        assert "it has" not in error.message, "nothing is said about the tool"
