"""Run a coroutine to its end, and end well at Ctrl-C whenever it comes.

``asyncio.run`` listens for Ctrl-C only while the loop runs. A few microseconds earlier, half a loop is thrown away with a
traceback on stderr, and in between its own count of interrupts is set back and a bare ``CancelledError`` comes out. Who
presses Ctrl-C as soon as a command has said its first line meets both.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on a loop of its own.

    The first Ctrl-C cancels it, the second does not wait for it to clean up. Where somebody else handles Ctrl-C, or it is
    ignored, that stays so.

    Args:
        main: what to do.

    Raises:
        KeyboardInterrupt: there was a Ctrl-C, and ``main`` ended because of it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(main)
    interrupt = _Interrupt()
    signal.signal(signal.SIGINT, interrupt)
    try:
        with asyncio.Runner() as runner:
            return runner.run(interrupt.ends(main))
    except asyncio.CancelledError:
        if interrupt.came:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Interrupt:
    """Handles SIGINT before, while and after a task runs."""

    def __init__(self) -> None:
        self.came = 0
        self._cancel: Callable[[], object] | None = None

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.came += 1
        if self.came > 1:
            raise KeyboardInterrupt
        self._pass_on()

    async def ends(self, main: Coroutine[Any, Any, T]) -> T:
        """``main``, cancelled by a Ctrl-C that comes or has come."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)  # wakes the loop as well
        if self.came:
            self._pass_on()
        try:
            return await main
        finally:
            self._cancel = None

    def _pass_on(self) -> None:
        cancel, self._cancel = self._cancel, None  # once
        if cancel is not None:
            cancel()
