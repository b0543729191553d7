"""Ending tasks of one's own without hiding the cancellation of the task that ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel ``tasks`` and wait for their end; None stands for a task that was never made. What they raise is dropped.

    ``task.cancel()`` and ``await task`` under ``suppress(CancelledError)`` would do the same, but cannot tell the task's
    cancellation from that of the caller, which is raised here.
    """
    pending = [task for task in tasks if task is not None]
    for task in pending:
        task.cancel()
        task.add_done_callback(retrieve_error)
    if pending:
        await asyncio.wait(pending)


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task that may have no waiter left: asyncio logs one that is never retrieved."""
    if not task.cancelled():
        task.exception()
