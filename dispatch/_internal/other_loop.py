"""Runs a coroutine on the event loop of another thread, which may stop at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

LOOP_POLL_S = 0.1
"""Seconds between checks whether the other event loop still runs."""


async def run_on_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Run the coroutine that ``function`` returns on ``loop``. Return False if the loop does not run, or stops meanwhile."""
    if not loop.is_running():
        return False
    result = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(), loop))
    while loop.is_running():
        if (await asyncio.wait([result], timeout=LOOP_POLL_S))[0]:
            if result.cancelled():  # a loop that ends cancels its tasks
                return False
            result.result()
            return True
    result.cancel()
    return False
