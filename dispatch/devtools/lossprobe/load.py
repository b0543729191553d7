"""The load: so many callers, each with one call at a time, the same loop for both sides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from dispatch.devtools.lossprobe.results import Run

SILENCE_S = 3.0
"""After so long without any answer, whatever waits since then is lost: longer than a broker's garbage collection or a busy
machine holds everything up, and longer than our dispatcher takes to ask again for what was lost."""
MAX_SILENCES = 2
"""After so many in a row the run ends: nobody is there, or nothing gets through."""


class LostCallError(Exception):
    """No answer will come."""


class FailedCallError(Exception):
    """The call was told of a failure. ``type`` is a short name for it."""

    def __init__(self, type: str) -> None:
        super().__init__(type)
        self.type = type


class Load:
    """One run. A call that raises :class:`LostCallError` is lost, and one that waits through a silence.

    Args:
        call: makes one call, and returns when its answer is here.
        in_flight: callers.
        calls: how many calls at most; None: any number.
        seconds: how long calls are begun; None: until there were ``calls``.
    """

    def __init__(
        self, call: Callable[[], Awaitable[None]], *, in_flight: int, calls: int | None, seconds: float | None
    ) -> None:
        if calls is None and seconds is None:
            raise ValueError("a run needs an end: calls, seconds or both")
        self._call = call
        self._in_flight = in_flight
        self._calls = calls
        self._seconds = seconds
        self._clock = asyncio.get_running_loop().time
        self._end: float | None = None
        self._asked: dict[asyncio.Timeout, float] = {}
        self._begun = self._answered = self._lost = self._silences = 0
        self._errors: Counter[str] = Counter()
        self._heard = 0.0

    async def run(self) -> Run:
        """Make the calls."""
        started = self._heard = self._clock()
        if self._seconds is not None:
            self._end = started + self._seconds
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as callers:
                for _ in range(self._in_flight):
                    callers.create_task(self._caller())
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        return Run(self._begun, self._lost, self._heard - started, dict(self._errors))

    def _more(self) -> bool:
        return (
            (self._calls is None or self._begun < self._calls)
            and (self._end is None or self._clock() < self._end)
            and self._silences < MAX_SILENCES
        )

    async def _caller(self) -> None:
        while self._more():
            self._begun += 1
            try:
                async with asyncio.timeout(None) as limit:
                    self._asked[limit] = self._clock()
                    try:
                        await self._call()
                    finally:
                        self._asked.pop(limit, None)
            except (LostCallError, TimeoutError):
                self._lost += 1
            except FailedCallError as failure:
                self._errors[failure.type] += 1
                self._hear()
                await asyncio.sleep(0)  # a failure may come without any wait
            else:
                self._answered += 1
                self._hear()

    def _hear(self) -> None:
        self._heard = self._clock()
        self._silences = 0

    async def _watch(self) -> None:
        last_silence = self._heard
        while True:
            await asyncio.sleep(SILENCE_S / 12)
            now = self._clock()
            if now - self._heard < SILENCE_S:
                continue
            overdue = [limit for limit, asked in self._asked.items() if now - asked >= SILENCE_S]
            for limit in overdue:
                del self._asked[limit]
                limit.reschedule(now)
            if overdue and now - last_silence >= SILENCE_S:
                last_silence = now
                self._silences += 1
