"""Backoff for topics that cannot be opened. Pure; the clock is passed in.

A topic whose namespace was deleted, or whose permissions were revoked, must not keep the rest of its connection down.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from dispatch.errors import ErrorType, TransportError

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
"""Seconds between attempts: doubled from the first to the last while the broker refuses. If the broker does not reply in
time (it has just started, for example), the next attempt follows after the first delay, because each attempt takes seconds
already and the state of the topic is unknown."""

T = TypeVar("T")


class _Wait:
    __slots__ = ("delay", "due", "error")

    def __init__(self, due: float, error: TransportError) -> None:
        self.delay = FIRST_RETRY_S
        self.due = due
        self.error = error


class ReopenBackoff(Generic[T]):
    """The handles that could not be opened, with the time of their next attempt."""

    def __init__(self) -> None:
        self._waits: dict[T, _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, handle: object) -> bool:
        return handle in self._waits

    def error(self, handle: T) -> TransportError | None:
        """Return why ``handle`` could not be opened; None if it is not in backoff."""
        wait = self._waits.get(handle)
        return None if wait is None else wait.error

    def record_failure(self, handle: T, error: TransportError, now: float) -> bool:
        """Record a failed attempt. Return whether it is the first in a row."""
        wait = self._waits.get(handle)
        if wait is None:
            self._waits[handle] = _Wait(now + FIRST_RETRY_S, error)
            return True
        wait.delay = FIRST_RETRY_S if error.type == ErrorType.UNREACHABLE else min(2 * wait.delay, LAST_RETRY_S)
        wait.due = now + wait.delay
        wait.error = error
        return False

    def forget(self, handle: T) -> bool:
        """Remove ``handle``, which is open or closed for good. Return whether it was in backoff."""
        return self._waits.pop(handle, None) is not None

    def due(self, now: float) -> list[T]:
        """Return the handles whose next attempt is due."""
        return [handle for handle, wait in self._waits.items() if wait.due <= now]
