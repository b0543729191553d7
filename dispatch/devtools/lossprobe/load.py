"""Closed-loop load: a number of callers, each with one call in flight; the same loop for both variants."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from dispatch.devtools.lossprobe.results import RunResult

SILENCE_S = 3.0
"""Seconds without any reply after which calls that have waited as long count as lost: longer than pauses of a broker's
garbage collection or a busy machine, and longer than the dispatcher takes to request a retransmission."""
MAX_SILENCES = 2
"""Consecutive silences after which the run ends: the service is not reachable."""


class LostCallError(Exception):
    """The call is lost: no reply will arrive."""


class FailedCallError(Exception):
    """The call failed with an error. ``type`` is its short name."""

    def __init__(self, type: str) -> None:
        super().__init__(type)
        self.type = type


class Load:
    """One run. A call is lost if it raises :class:`LostCallError` or waits through a silence.

    Args:
        call: makes one call and returns when its reply has arrived.
        in_flight: number of callers.
        calls: maximum number of calls; None: no limit.
        seconds: duration in which calls are started; None: until ``calls`` were made.
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
        self._started_at: dict[asyncio.Timeout, float] = {}
        self._begun = self._lost = self._silences = 0
        self._errors: Counter[str] = Counter()
        self._last_activity = 0.0

    async def run(self) -> RunResult:
        """Run the load."""
        started = self._last_activity = self._clock()
        if self._seconds is not None:
            self._end = started + self._seconds
        watcher = asyncio.create_task(self._expire_silent_calls())
        try:
            async with asyncio.TaskGroup() as callers:
                for _ in range(self._in_flight):
                    callers.create_task(self._caller())
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
        return RunResult(self._begun, self._lost, self._last_activity - started, dict(self._errors))

    def _should_continue(self) -> bool:
        return (
            (self._calls is None or self._begun < self._calls)
            and (self._end is None or self._clock() < self._end)
            and self._silences < MAX_SILENCES
        )

    async def _caller(self) -> None:
        while self._should_continue():
            self._begun += 1
            try:
                async with asyncio.timeout(None) as limit:
                    self._started_at[limit] = self._clock()
                    try:
                        await self._call()
                    finally:
                        self._started_at.pop(limit, None)
            except (LostCallError, TimeoutError):
                self._lost += 1
            except FailedCallError as failure:
                self._errors[failure.type] += 1
                self._record_activity()
                await asyncio.sleep(0)  # an immediate failure must not starve the event loop
            else:
                self._record_activity()

    def _record_activity(self) -> None:
        self._last_activity = self._clock()
        self._silences = 0

    async def _expire_silent_calls(self) -> None:
        last_silence = self._last_activity
        while True:
            await asyncio.sleep(SILENCE_S / 12)
            now = self._clock()
            if now - self._last_activity < SILENCE_S:
                continue
            overdue = [limit for limit, started_at in self._started_at.items() if now - started_at >= SILENCE_S]
            for limit in overdue:
                del self._started_at[limit]
                limit.reschedule(now)
            if overdue and now - last_silence >= SILENCE_S:
                last_silence = now
                self._silences += 1
