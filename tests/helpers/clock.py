"""Virtual time for our own tests: what users get as well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from dispatch.testing.clock import START, DeadlockError, VirtualClockLoop, advance, idle, run, virtual_loop

__all__ = [
    "START",
    "DeadlockError",
    "VirtualClockLoop",
    "advance",
    "cancel_task",
    "idle",
    "now",
    "reply_after",
    "run",
    "start_task",
    "virtual_loop",
    "wait_at",
]

T = TypeVar("T")


def now() -> float:
    """Return the time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()


async def start_task(work: Coroutine[Any, Any, T], seconds: float | None = None) -> asyncio.Task[T]:
    """Return a task that has done all that it can without time, or in so many seconds."""
    task = asyncio.create_task(work)
    await (idle() if seconds is None else advance(seconds))
    return task


async def cancel_task(task: asyncio.Future[Any]) -> None:
    """Cancel a task, and wait for its end as a cancelled one."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def wait_at(gate: asyncio.Event, text: str = "done") -> Callable[[dict[str, Any]], Awaitable[str]]:
    """Return a tool that waits until ``gate`` is set, and then replies ``text``."""

    async def work(_: dict[str, Any]) -> str:
        await gate.wait()
        return text

    return work


def reply_after(seconds: float, text: str = "done") -> Callable[[dict[str, Any]], Awaitable[str]]:
    """Return a tool that replies ``text`` after so many seconds."""
    return lambda _: asyncio.sleep(seconds, text)
