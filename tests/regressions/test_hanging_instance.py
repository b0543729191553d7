"""One of two instances accepted calls and did not answer them: the 64 calls there that must not be repeated held all places
of the tool's bulkhead, and 17 % of the calls were refused as ``bulkhead-full`` while the other instance was idle.

Calls at an ejected instance hold no places. An instance that has many more old calls than another one is ejected when calls
must wait, though none of its calls has failed yet: those that must not be repeated end after their whole timeout only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dispatch import CallResult, Dispatcher
from tests.helpers.dispatcher_and_service import catalog, dispatching, serving

HANG_S, RATE, TIMEOUT_S = 6.0, 200, 5.0


async def load(dispatcher: Dispatcher, seconds: float, tools: tuple[str, ...]) -> list[CallResult]:
    """Begin calls of the tools in turn, at ``RATE``, whether or not earlier ones have ended."""
    calls = []
    for number in range(round(seconds * RATE)):
        calls.append(asyncio.ensure_future(dispatcher.execute(tools[number % len(tools)], {})))
        await asyncio.sleep(1 / RATE)
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("called", [("read", "write"), ("write",)], ids=["mixed", "not-repeatable"])
async def test_an_instance_that_hangs_costs_only_the_calls_that_it_has(called: tuple[str, ...]) -> None:
    is_well = asyncio.Event()
    is_well.set()

    async def answer(_arguments: Any) -> str:
        await asyncio.sleep(0.01)
        return "done"

    async def hang(arguments: Any) -> str:
        await is_well.wait()
        return await answer(arguments)

    tools = {"read": {"read-only": True, "policy": {"timeout": TIMEOUT_S}}, "write": {"policy": {"timeout": TIMEOUT_S}}}
    async with serving(answer), serving(hang), dispatching(catalog(**tools)) as dispatcher:
        await load(dispatcher, 3, called)
        is_well.clear()
        asyncio.get_running_loop().call_later(HANG_S, is_well.set)
        results = await load(dispatcher, HANG_S, called)
    ends = Counter(result.outcome for result in results)
    assert ends["success"] >= 0.9 * len(results), ends
    assert ends["throttled"] == 0
