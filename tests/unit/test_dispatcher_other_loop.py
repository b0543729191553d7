"""Running a coroutine on the loop of another thread, which may stop at any time."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from dispatch.dispatcher import run_on_loop

pytestmark = pytest.mark.wall_clock


class OtherLoop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.loop.run_forever()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self.thread.start()
        return self.loop

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(RuntimeError):  # closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


async def test_the_coroutine_runs_on_the_other_loop() -> None:
    seen: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        seen.append(asyncio.get_running_loop())

    with OtherLoop() as loop:
        assert await run_on_loop(loop, note)
        assert seen == [loop]


async def test_its_error_is_raised_here() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with OtherLoop() as loop, pytest.raises(ValueError, match="broken"):
        await run_on_loop(loop, fail)


async def test_a_loop_that_does_not_run_is_reported_and_nothing_is_begun() -> None:
    loop = asyncio.new_event_loop()
    begun: list[bool] = []

    async def note() -> None:
        begun.append(True)

    assert not await run_on_loop(loop, note)
    assert not begun
    loop.close()


async def test_a_loop_that_stops_meanwhile_is_reported() -> None:
    async def stop() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

    with OtherLoop() as loop:
        assert not await run_on_loop(loop, stop)
