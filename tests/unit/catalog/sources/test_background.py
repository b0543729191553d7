"""Work of the catalogue in threads: a saturated event loop pauses for it, and only for as long as it is done."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dispatch.catalog import sources
from dispatch.catalog.sources import MAX_PAUSE_S, PAUSE_SHARE, run_in_thread

pytestmark = pytest.mark.wall_clock


class Pauses:
    """Records the pauses of the event loop instead of making them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[float] = []
        self.came = threading.Event()
        monkeypatch.setattr(sources.time, "sleep", self.record)

    def record(self, seconds: float) -> None:
        self.made.append(seconds)
        if len(self.made) == 3:
            self.came.set()


async def keep_busy() -> None:
    while True:
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)


async def test_a_saturated_event_loop_pauses_while_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(monkeypatch)
    busy = asyncio.create_task(keep_busy())
    assert await run_in_thread(lambda: pauses.came.wait(20))
    assert all(0 < pause <= MAX_PAUSE_S for pause in pauses.made)
    after = len(pauses.made)
    await asyncio.sleep(0.05)
    assert len(pauses.made) == after
    busy.cancel()


async def test_works_at_the_same_time_share_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(monkeypatch)
    busy = asyncio.create_task(keep_busy())
    ends = [threading.Event(), threading.Event()]
    works = [asyncio.create_task(run_in_thread(lambda end=end: end.wait(20))) for end in ends]
    ends[0].set()
    await works[0]
    assert await run_in_thread(lambda: pauses.came.wait(20))
    ends[1].set()
    await works[1]
    busy.cancel()


async def test_an_event_loop_that_is_idle_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(monkeypatch)
    end = threading.Event()
    asyncio.get_running_loop().call_later(0.05, end.set)
    before = time.thread_time()
    assert await run_in_thread(lambda: end.wait(20))
    used = time.thread_time() - before  # a millisecond or so: to start a thread on a busy machine
    assert sum(pauses.made) <= PAUSE_SHARE * used


async def test_work_without_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_WORK_S", 0.0)
    pauses = Pauses(monkeypatch)
    busy = asyncio.create_task(keep_busy())
    end = threading.Event()
    work = asyncio.create_task(run_in_thread(lambda: end.wait(20)))
    await asyncio.sleep(0.05)
    assert len(pauses.made) <= 1
    end.set()
    await work
    busy.cancel()


async def test_an_error_of_the_work_is_raised() -> None:
    def fail() -> None:
        raise LookupError("none")

    with pytest.raises(LookupError, match="none"):
        await run_in_thread(fail)
