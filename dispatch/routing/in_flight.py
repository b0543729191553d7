"""The number of calls or requests in flight, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class InFlight:
    """Counts calls or requests in flight. A reentrant context manager.

    Attributes:
        count: number in flight.
    """

    __slots__ = ("_callbacks", "count")

    def __init__(self) -> None:
        self.count = 0
        self._callbacks: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        self.count += 1

    def end(self, *_exc: object) -> None:
        """Count the end of one."""
        self.count -= 1
        if not self.count and self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    __exit__ = end

    def await_idle(self, callback: Callable[[], object]) -> bool:
        """Return False if nothing is in flight. Otherwise return True, and call ``callback`` once when nothing is."""
        if not self.count:
            return False
        self._callbacks.append(callback)
        return True

    async def wait_idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.count:
            idle = asyncio.Event()
            self._callbacks.append(idle.set)
            await idle.wait()
