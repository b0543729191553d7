"""Catalogue work in threads, which progresses beside an event loop that is never idle.

A thread needs the interpreter lock again after each system call and at its begin. An event loop that is saturated by callers
holds that lock, and gives it up only when it is asked to, 5 ms later (``sys.getswitchinterval()``): a reading of a folder,
hundreds of system calls, takes seconds instead of milliseconds. Therefore the loop pauses briefly while such work is done.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from types import TracebackType
from typing import Final, TypeVar

from dispatch._internal.daemon_executor import DaemonThreads

T = TypeVar("T")

PAUSE_SHARE: Final = 0.25
"""Seconds of pauses for each second of the event loop's processor time, while there is work."""
MAX_PAUSE_S: Final = 0.005
"""Seconds of one pause, at most: as long as a thread may hold the interpreter lock while the event loop waits for it."""
MIN_BUSY_S: Final = 0.0005
"""Seconds of processor time since the last check, below which there is no pause: an event loop that was idle in between has
left the lock to others anyway."""
INTERVAL_S: Final = 0.001
"""Seconds between two pauses, at least: as long as a turn of a saturated event loop takes."""
MAX_WORK_S: Final = 10.0
"""Seconds of work for which the event loop pauses. Work that takes longer waits for something else, such as a network file
system that does not answer."""

_threads = DaemonThreads("dispatch-folder")


async def run_in_thread(function: Callable[[], T], executor: Executor = _threads) -> T:
    """Return the result of ``function``, called in a thread of ``executor``.

    The default is a daemon thread: the exit of the interpreter waits for the threads of ``asyncio.to_thread``, and a network
    file system may never answer.
    """
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(executor, function)
    with _pauses.setdefault(loop, _Pauses(loop)):
        return await work


class _Pauses:
    """Pauses of one event loop, in the context of work that is done in threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._works = 0
        self._ends_at = 0.0
        self._paused_at = 0.0
        """Processor time of the event loop's thread at the last check."""
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._works += 1
        self._ends_at = time.monotonic() + MAX_WORK_S
        if self._timer is None:
            self._paused_at = time.thread_time()
            self._schedule()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._works -= 1
        if not self._works and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        loop = self._loop()
        assert loop is not None  # it runs
        self._timer = loop.call_later(INTERVAL_S, self._pause)

    def _pause(self) -> None:
        self._timer = None
        busy = time.thread_time() - self._paused_at
        if busy >= MIN_BUSY_S:
            time.sleep(min(busy * PAUSE_SHARE, MAX_PAUSE_S))
        self._paused_at = time.thread_time()
        if time.monotonic() < self._ends_at:
            self._schedule()


_pauses: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pauses] = weakref.WeakKeyDictionary()
