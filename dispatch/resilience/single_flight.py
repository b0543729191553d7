"""Single flight: identical concurrent calls share one exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Flight(Generic[T]):
    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


class SingleFlight(Generic[T]):
    """Runs one of several concurrent calls with the same key; the others receive its result.

    That call is a separate task: a cancelled caller does not affect the others, and the last caller that is cancelled
    cancels the task and waits until it has ended.

    Attributes:
        shared: calls so far that received the result of another call.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[T]] = {}
        self.shared = 0

    def __len__(self) -> int:
        """Running calls."""
        return len(self._flights)

    async def share(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T | None:
        """Return the result of the running call of ``key``; starts it with ``make`` if there is none.

        Args:
            key: identifies identical calls.
            make: makes the coroutine of the call.
            deadline: when this caller stops waiting, on the loop's clock.

        Returns:
            The result; None after the deadline. An exception of the call is raised at every caller.
        """
        flight = self._flights.get(key)
        if flight is None or flight.task.done():  # its callback has yet to remove it: awaiting it would not yield
            flight = self._flights[key] = _Flight(asyncio.create_task(make()))
            task = flight.task
            task.add_done_callback(lambda _: self._remove_flight(key, task))
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
                self._remove_flight(key, flight.task)
                await _cancel_and_wait(flight.task)

    def _remove_flight(self, key: Hashable, task: asyncio.Task[T]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]


async def _cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and wait until it has ended, even if the wait is cancelled in turn."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
