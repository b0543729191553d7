"""The running loop's clock, as cheap as it can be asked: a call looks at it some twenty times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def loop_clock() -> Callable[[], float]:
    """The clock of the running loop, in seconds: what its ``time`` tells. asyncio's own loops tell ``time.monotonic()`` in a
    method written in Python, which costs several times what it tells; they are spared it.

    Raises:
        RuntimeError: no loop is running.
    """
    loop = asyncio.get_running_loop()
    return time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
