"""An open load: calls begin at their times, whether or not earlier ones have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import dispatch
from dispatch.errors import CallTimeoutError, ErrorType, Outcome, TransportError

CATCH_UP_S = 1.0
"""Calls later than this are skipped: a stalled process must not send a burst afterwards."""


class Pacer:
    """Begins calls and knows those in flight.

    Args:
        make: makes the next call.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._make = make
        self._issuing: asyncio.Task[None] | None = None
        self.in_flight: set[asyncio.Task[Any]] = set()

    def begin(self, draw_pause: Callable[[], float]) -> None:
        """Begin a call now, and the next ones after pauses of so many seconds."""
        self._issuing = asyncio.create_task(self._issue(draw_pause))

    async def _issue(self, draw_pause: Callable[[], float]) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            now = clock()
            if due > now:
                await asyncio.sleep(due - now)
            elif now - due > CATCH_UP_S:
                due = now
            self.start(self._make())
            due += draw_pause()

    def start(self, call: Coroutine[Any, Any, object]) -> None:
        """Begin a call."""
        task = asyncio.create_task(call)
        self.in_flight.add(task)
        task.add_done_callback(self.in_flight.discard)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until no call is in flight, at most so many seconds."""
        if self.in_flight:
            await asyncio.wait(list(self.in_flight), timeout=seconds)

    async def end(self, seconds: float | None = None) -> None:
        """Begin no more calls, and wait for those in flight, at most so many seconds."""
        if self._issuing is not None:
            self._issuing.cancel()
            await asyncio.wait([self._issuing])
            self._issuing = None
        await self.wait(seconds)


def is_certainly_not_executed(error: dispatch.DispatchError) -> bool:
    """Read from the fields of an error whether it excludes that the tool was executed."""
    if isinstance(error, TransportError):
        return not error.may_have_run
    if isinstance(error, CallTimeoutError):
        return error.type == ErrorType.EXPIRED
    return error.outcome in (Outcome.REJECTED, Outcome.THROTTLED, Outcome.INVALID_ARGUMENTS)
