"""Running of a coroutine with orderly shutdown on Ctrl-C at any time.

``asyncio.run`` handles Ctrl-C only while the loop runs: shortly before, a half-created loop ends with a traceback; in
between its interrupt count is reset and a bare ``CancelledError`` escapes. Ctrl-C right after a command's first output
triggers both.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on a new event loop.

    The first Ctrl-C cancels it; the second does not wait for its cleanup. An existing handler of SIGINT stays in place.

    Args:
        main: the coroutine to run.

    Raises:
        KeyboardInterrupt: ``main`` ended because of Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(main)
    interrupt = _InterruptHandler()
    signal.signal(signal.SIGINT, interrupt)
    try:
        with asyncio.Runner() as runner:
            return runner.run(interrupt.run(main))
    except asyncio.CancelledError:
        if interrupt.count:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _InterruptHandler:
    """Handles SIGINT before, during and after a task."""

    def __init__(self) -> None:
        self.count = 0
        self._cancel: Callable[[], object] | None = None

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        self._cancel_task()

    async def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Await ``main``; a Ctrl-C before or during it cancels it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)  # also wakes the loop
        if self.count:
            self._cancel_task()
        try:
            return await main
        finally:
            self._cancel = None

    def _cancel_task(self) -> None:
        cancel, self._cancel = self._cancel, None  # at most once
        if cancel is not None:
            cancel()
