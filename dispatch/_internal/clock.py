"""The running event loop: its clock, without overhead, and a turn for its other tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def loop_clock() -> Callable[[], float]:
    """Return the clock of the running loop, in seconds. perf: a call reads it some twenty times, and the ``time`` method of
    asyncio's own loops is Python code that calls ``time.monotonic``, at several times its cost; for those loops the
    function itself is returned.

    Raises:
        RuntimeError: no loop is running.
    """
    loop = asyncio.get_running_loop()
    return time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time


async def yield_to_others() -> None:
    """Let the event loop run its other tasks once.

    Every public coroutine waits at least once, also one that has all it needs and one that fails at once: a caller that
    repeats it without a pause would leave no time to the loop, and so none to the work that it may be waiting for, such as
    the call that closes a circuit again, or the embedding of tools.
    """
    await asyncio.sleep(0)
