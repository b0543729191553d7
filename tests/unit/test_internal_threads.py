"""Work in threads: a saturated event loop pauses for it, and only for as long as it is done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from dispatch._internal import MAX_PAUSE_S, WATCH, WORK, run_in_thread
from dispatch.catalog.folder import watch_folder
from tests.helpers.descriptor_folder import make_folder

pytestmark = pytest.mark.wall_clock


class Pauses:
    """Records the pauses of the event loop instead of making them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[float] = []
        self.came = threading.Event()
        monkeypatch.setattr(time, "sleep", self.record)

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


@pytest.mark.costly
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
    assert sum(pauses.made) <= WORK.share * used


@pytest.mark.costly
async def test_an_event_loop_that_is_idle_is_seldom_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[float] = []
    monkeypatch.setattr(time, "thread_time", lambda: checks.append(0.0) or 0.0)
    end = threading.Event()
    asyncio.get_running_loop().call_later(1.0, end.set)
    await run_in_thread(lambda: end.wait(20), pauses=WATCH)
    assert 2 <= len(checks) / 2 <= 10, "20 checks would come at equal intervals"


async def test_work_without_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(monkeypatch)
    busy = asyncio.create_task(keep_busy())
    end = threading.Event()
    without_end = WORK._replace(limit=0.0)
    work = asyncio.create_task(run_in_thread(lambda: end.wait(20), pauses=without_end))
    await asyncio.sleep(0.05)
    assert len(pauses.made) <= 1
    end.set()
    await work
    busy.cancel()


async def test_a_saturated_event_loop_pauses_for_a_watched_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the thread that waits for changes gets the interpreter lock seconds after a change."""
    async with contextlib.aclosing(watch_folder(os.fspath(make_folder(tmp_path / "tools")))) as watch:
        await anext(watch)
        pauses = Pauses(monkeypatch)
        busy = asyncio.create_task(keep_busy())
        async with asyncio.timeout(20):
            while len(pauses.made) < 3:  # noqa: ASYNC110 - the pauses have no event
                await asyncio.sleep(0.01)
        busy.cancel()
    assert all(pause <= 0.1 * WATCH.interval for pause in pauses.made)
    after = len(pauses.made)
    await asyncio.sleep(2 * WATCH.interval)
    assert len(pauses.made) == after


async def test_an_error_of_the_work_is_raised() -> None:
    def fail() -> None:
        raise LookupError("none")

    with pytest.raises(LookupError, match="none"):
        await run_in_thread(fail)
