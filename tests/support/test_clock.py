"""The harness itself: a test runner that overlooks a leak would make every other test worthless."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.clock import START, Deadlock, advance, idle, run


async def test_thirty_seconds_take_no_time() -> None:
    await asyncio.sleep(30)
    assert asyncio.get_running_loop().time() == START + 30


async def test_advance_lets_everything_due_happen_and_no_more() -> None:
    happened: list[int] = []
    loop = asyncio.get_running_loop()
    timers = [loop.call_later(seconds, happened.append, seconds) for seconds in (1, 2, 3)]
    await advance(2)
    assert happened == [1, 2]
    timers[-1].cancel()


async def test_idle_waits_for_whatever_is_ready_without_time_passing() -> None:
    steps: list[int] = []

    async def many() -> None:
        for step in range(100):
            await asyncio.sleep(0)
            steps.append(step)

    task = asyncio.create_task(many())
    await idle()
    assert len(steps) == 100
    assert asyncio.get_running_loop().time() == START
    await task


async def test_time_stands_still_while_a_thread_works() -> None:
    begun = threading.Event()
    working = asyncio.create_task(asyncio.to_thread(begun.wait, 10))
    asyncio.get_running_loop().call_soon(begun.set)
    assert await working
    assert asyncio.get_running_loop().time() == START


def test_a_wait_that_nothing_can_end_is_told_at_once() -> None:
    async def hangs() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match=r"hangs|create_future"):
        run(hangs)


def test_a_task_left_behind_is_told() -> None:
    async def leaves() -> None:
        leaves.task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match="tasks are left"):
        run(leaves)


def test_a_timer_left_behind_is_told() -> None:
    async def leaves() -> None:
        asyncio.get_running_loop().call_later(5, print)

    with pytest.raises(AssertionError, match="timers are left"):
        run(leaves)


def test_an_exception_nobody_looked_at_is_told() -> None:
    async def fails() -> None:
        raise ValueError("nobody looks")

    async def starts() -> None:
        task = asyncio.create_task(fails())
        await idle()
        del task

    with pytest.raises(AssertionError, match="nobody looks"):
        run(starts)


def test_a_timer_that_is_set_for_ever_is_told() -> None:
    async def spins() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_later(1e6, again)

        again()
        await loop.create_future()

    with pytest.raises(Deadlock, match="days of virtual time"):
        run(spins)
