"""``close(drain=…)`` that a timeout or a cancellation cut short left the connection open, and one of two concurrent closers
waited for its whole drain. Closing closes the connection in any case, and all closers end with the last call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dispatch
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle, virtual_loop
from tests.helpers.dispatcher_and_service import BROKER, catalog, dispatching, serving

WORK_S = 5.0


async def work(_arguments: dict[str, Any]) -> str:
    await asyncio.sleep(WORK_S)
    return "done"


async def cancelled(closing: Awaitable[None]) -> None:
    task = asyncio.ensure_future(closing)
    await advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def timed_out(closing: Awaitable[None]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await closing


@pytest.mark.parametrize("cut_short", [cancelled, timed_out])
async def test_a_drain_that_is_cut_short_closes_the_connection(
    cut_short: Callable[[Awaitable[None]], Awaitable[None]],
) -> None:
    async with serving(work):
        dispatcher = dispatch.Dispatcher(MemoryTransport(BROKER), catalog())
        await dispatcher.start()
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        began = virtual_loop().time()
        await cut_short(dispatcher.close(drain=30))
        assert virtual_loop().time() - began == pytest.approx(1)
        assert not dispatcher.is_connected
        result = await call
        assert isinstance(result.error, dispatch.TransportError)
        assert result.error.type == "closed"


async def test_two_concurrent_closers_both_end_with_the_last_call() -> None:
    async with serving(work), dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        began = virtual_loop().time()
        await asyncio.gather(dispatcher.close(drain=30), dispatcher.close(drain=30))
        assert (await call).ok
        assert virtual_loop().time() - began < WORK_S + 1
