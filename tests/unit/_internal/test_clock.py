"""The loop's clock: the same time, whoever tells it."""

from __future__ import annotations

import asyncio
import time

import pytest

from dispatch._internal import loop_clock
from tests.helpers.clock import advance


async def test_virtual_loop_time_is_used() -> None:
    clock = loop_clock()
    before = clock()
    await advance(30)
    assert clock() - before == 30
    assert clock() == asyncio.get_running_loop().time()


@pytest.mark.wall_clock
async def test_clock_of_asyncio_loops_is_time_monotonic() -> None:
    assert loop_clock() is time.monotonic
    loop = asyncio.get_running_loop()
    assert loop.time() <= loop_clock()() <= loop.time()


def test_custom_loop_clock_is_used() -> None:
    class Late(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return super().time() + 1_000_000

    async def read() -> float:
        return loop_clock()()

    with asyncio.Runner(loop_factory=Late) as runner:
        assert runner.run(read()) > time.monotonic() + 999_000


def test_loop_clock_requires_a_running_loop() -> None:
    with pytest.raises(RuntimeError):
        loop_clock()
