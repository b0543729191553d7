"""Open-loop load: calls at a fixed rate that do not wait for earlier replies."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.incidents.figures import RIGHT, WRONG
from benchmarks.workers.pacing import Pacer


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
        self._pacer = Pacer(self.call)

    def begin(self, rate: float) -> None:
        """Make ``rate`` calls per second from now on."""
        self._pacer.begin(lambda: 1 / rate)

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
        await self._pacer.end()
