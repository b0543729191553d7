"""Cancels tasks without hiding the cancellation of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel ``tasks`` (None: no task) and wait until they have ended. Their exceptions are dropped.

    ``await task`` under ``suppress(CancelledError)`` would also suppress a cancellation of the caller, which is raised here.
    """
    pending = [task for task in tasks if task is not None]
    for task in pending:
        task.cancel()
        task.add_done_callback(retrieve_error)
    if pending:
        await asyncio.wait(pending)


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task that nothing awaits: asyncio logs errors that are never retrieved."""
    if not task.cancelled():
        task.exception()
