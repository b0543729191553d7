"""Threads of synchronous tools: their number, their end when idle, and calls that their tasks have abandoned."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dispatch.serving.tool_service import ToolExecutor

pytestmark = pytest.mark.wall_clock


def count_threads(name: str) -> int:
    return sum(thread.name.startswith(f"{name}-") for thread in threading.enumerate())


async def await_count(name: str, number: int) -> None:
    async with asyncio.timeout(10):
        while count_threads(name) != number:  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.005)


async def test_an_idle_thread_ends_after_a_while_and_another_one_starts() -> None:
    threads = ToolExecutor(2, "idle-test", idle_s=0.05)
    assert await threads.run(lambda: threading.current_thread().name) == "idle-test-1"
    await await_count("idle-test", 0)
    assert await threads.run(lambda: "again") == "again"
    threads.close()
    await await_count("idle-test", 0)


async def test_calls_that_come_as_threads_end_are_all_served() -> None:
    threads = ToolExecutor(3, "race-test", idle_s=0.001)
    for _ in range(100):
        assert await asyncio.gather(*(threads.run(int, "7") for _ in range(4))) == [7] * 4
        await asyncio.sleep(0.001)
    threads.close()
    await await_count("race-test", 0)


async def test_without_a_limit_in_time_idle_threads_stay() -> None:
    threads = ToolExecutor(1, "stay-test")
    await threads.run(time.sleep, 0)
    await asyncio.sleep(0.1)
    assert count_threads("stay-test") == 1
    threads.close()
    await await_count("stay-test", 0)


async def test_the_number_of_threads_may_be_raised() -> None:
    release = threading.Event()
    threads = ToolExecutor(1, "raise-test", idle_s=0.05)
    first = asyncio.create_task(threads.run(release.wait, 10))
    await await_count("raise-test", 1)
    threads.max_threads = 2
    assert await threads.run(lambda: "second") == "second"
    release.set()
    assert await first
    threads.close()
    await await_count("raise-test", 0)
