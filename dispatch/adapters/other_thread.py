"""Synchronous calls, from another thread than that of the dispatcher's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from dispatch.adapters.model_tool import ToolAnswer


def wait_for_answer(answer: Coroutine[Any, Any, ToolAnswer], loop: asyncio.AbstractEventLoop, name: str) -> ToolAnswer:
    """Wait for ``answer`` on the dispatcher's event loop, from another thread.

    Raises:
        RuntimeError: called on that event loop, which it would block, or the loop does not run.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop or not loop.is_running():
        answer.close()
        reason = "it would block the event loop of its dispatcher" if running is loop else "its dispatcher is closed"
        raise RuntimeError(
            f"Tool {name!r} was not executed: {reason}. Use ainvoke, or run the agent in another thread: asyncio.to_thread."
        )
    future = asyncio.run_coroutine_threadsafe(answer, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
