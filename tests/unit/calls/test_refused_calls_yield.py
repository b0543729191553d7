"""A caller that repeats refused calls in a loop leaves the event loop to others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dispatch import Dispatcher, DispatchError
from tests.helpers.dispatcher_and_service import stand
from tests.helpers.guarded_tool import tools

CALLS = 20


async def by_call(dispatcher: Dispatcher, tool: str) -> None:
    await dispatcher.call(tool)


async def by_execute(dispatcher: Dispatcher, tool: str) -> None:
    result = await dispatcher.execute(tool)
    assert result.error is not None
    raise result.error


async def by_stream(dispatcher: Dispatcher, tool: str) -> None:
    async for _ in dispatcher.stream(tool):
        pass


@contextlib.asynccontextmanager
async def counted_turns() -> AsyncIterator[list[int]]:
    """Count the turns of the event loop that another task gets meanwhile."""
    turns = [0]

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            turns[0] += 1

    task = asyncio.create_task(count())
    await asyncio.sleep(0)
    try:
        yield turns
    finally:
        task.cancel()


@pytest.mark.parametrize("tool", ["work", "nothing"], ids=["open circuit", "unknown tool"])
@pytest.mark.parametrize("call", [by_call, by_execute, by_stream])
async def test_a_loop_of_refused_calls(call: Callable[[Dispatcher, str], Awaitable[None]], tool: str) -> None:
    async with stand(lambda _: "done", tools()) as (dispatcher, _):
        dispatcher.breaker("work").force_open()
        async with counted_turns() as turns:
            for _ in range(CALLS):
                with pytest.raises(DispatchError):
                    await call(dispatcher, tool)
            assert turns[0] >= CALLS
