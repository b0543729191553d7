"""The loop's clock: the same time, whoever tells it."""

from __future__ import annotations

import asyncio
import time

import pytest

from dispatch._internal.clock import loop_clock
from tests.helpers.clock import advance


async def test_on_virtual_time_it_is_virtual() -> None:
    clock = loop_clock()
    before = clock()
    await advance(30)
    assert clock() - before == 30
    assert clock() == asyncio.get_running_loop().time()


@pytest.mark.wall_clock
async def test_on_asyncios_own_loop_it_is_what_the_loop_asks() -> None:
    assert loop_clock() is time.monotonic
    loop = asyncio.get_running_loop()
    assert loop.time() <= loop_clock()() <= loop.time()


def test_a_loop_with_a_clock_of_its_own_keeps_it() -> None:
    class Late(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return super().time() + 1_000_000

    async def read() -> float:
        return loop_clock()()

    with asyncio.Runner(loop_factory=Late) as runner:
        assert runner.run(read()) > time.monotonic() + 999_000


def test_without_a_loop_there_is_none() -> None:
    with pytest.raises(RuntimeError):
        loop_clock()
