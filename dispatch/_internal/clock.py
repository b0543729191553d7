"""The running loop's clock, without overhead: a call reads it some twenty times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def loop_clock() -> Callable[[], float]:
    """Return the clock of the running loop, in seconds. perf: the ``time`` method of asyncio's own loops is Python code that
    calls ``time.monotonic``, at several times its cost; for those loops the function itself is returned.

    Raises:
        RuntimeError: no loop is running.
    """
    loop = asyncio.get_running_loop()
    return time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
