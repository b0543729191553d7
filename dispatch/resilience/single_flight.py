"""Single-flight: calls that are the same, and under way at once, share one exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class _Flight(Generic[R]):
    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[R]) -> None:
        self.task = task
        self.waiting = 0


class SingleFlight(Generic[R]):
    """Runs one of several calls of the same key that are under way at once; the others get its result.

    The one that runs is a task of its own: whoever is cancelled takes nothing from the others, and the last to leave
    cancels it, and waits until it has ended.

    Attributes:
        shared: calls so far that got the result of another one.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[R]] = {}
        self.shared = 0

    def __len__(self) -> int:
        """Calls that run."""
        return len(self._flights)

    async def share(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, R]], deadline: float) -> R | None:
        """The result of the call that runs under ``key``, begun with ``make`` if none does.

        Args:
            deadline: when this caller waits no longer, on the loop's clock.

        Returns:
            None: its time was over before that. What is thrown, is thrown at every caller.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(make()))
            task = flight.task
            task.add_done_callback(lambda _: self._landed(key, task))
        else:
            self.shared += 1
        flight.waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(flight.task)
        except TimeoutError:
            if flight.task.done() and not flight.task.cancelled():
                return flight.task.result()
            return None
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._landed(key, flight.task)
                await _ended(flight.task)

    def _landed(self, key: Hashable, task: asyncio.Task[R]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and wait until it has ended, even if that is cancelled in turn."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
