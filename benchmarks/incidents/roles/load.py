"""Open-loop load: calls at a fixed rate that do not wait for earlier replies."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.incidents.figures import RIGHT, WRONG

CATCH_UP_S = 1.0
"""Calls later than this are skipped: a stalled process must not send a burst afterwards."""


def answer_to(secret: str) -> str:
    """Return the service's response to an argument."""
    return hashlib.sha256(secret.encode()).hexdigest()[:16]


class Load:
    """Makes calls in the background and records how each ended, with times on the loop's (the machine's monotonic) clock.

    Args:
        execute: makes one call of an argument; its result has ``ok``, ``text`` and ``error`` as
            :class:`dispatch.CallResult` has.
        mark: the beginning of every argument, by which a reader of others' messages knows them.
    """

    def __init__(self, execute: Callable[[str], Awaitable[Any]], mark: str) -> None:
        self._execute = execute
        self._mark = mark
        self._numbers = itertools.count()
        self._records: list[tuple[float, float, str]] = []
        self._tasks: set[asyncio.Task[str]] = set()
        self._issuing: asyncio.Task[None] | None = None

    def begin(self, rate: float) -> None:
        """Make ``rate`` calls per second from now on."""
        self._issuing = asyncio.create_task(self._issue(1 / rate))

    async def _issue(self, pause: float) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            now = clock()
            if due > now:
                await asyncio.sleep(due - now)
            elif now - due > CATCH_UP_S:
                due = now
            task = asyncio.create_task(self.call())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            due += pause

    async def call(self) -> str:
        """Make one call, record it, and return its kind."""
        secret = f"{self._mark}{next(self._numbers):06}"
        clock = asyncio.get_running_loop().time
        began = clock()
        result = await self._execute(secret)
        kind = result.error.type if result.error is not None else RIGHT if result.text == answer_to(secret) else WRONG
        self._records.append((began, clock(), kind))
        return kind

    def take(self) -> list[tuple[float, float, str]]:
        """Return the calls that ended since the last request for them."""
        taken, self._records = self._records, []
        return taken

    async def end(self) -> None:
        """Stop making calls, and wait for those in flight."""
        if self._issuing is not None:
            self._issuing.cancel()
            await asyncio.wait([self._issuing])
            self._issuing = None
        if self._tasks:
            await asyncio.wait(list(self._tasks))
