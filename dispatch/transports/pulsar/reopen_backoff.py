"""Topics that cannot be opened at present, and when each is to be tried again. Pure bookkeeping, clock handed in.

A topic whose namespace was deleted, or whose rights were withdrawn, must not keep the rest of its connection down.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from dispatch.errors import ErrorType, TransportError

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
"""Between the tries: doubling from the first to the last if the broker refuses. A broker that gives no answer in time (it
has just started, say) is asked again after the first: each try waits for seconds already, and what it says of the topic is
not known."""

T = TypeVar("T")


class _Wait:
    __slots__ = ("delay", "due", "error")

    def __init__(self, due: float, error: TransportError) -> None:
        self.delay = FIRST_RETRY_S
        self.due = due
        self.error = error


class ReopenBackoff(Generic[T]):
    """What was set aside, by its handle."""

    def __init__(self) -> None:
        self._waits: dict[T, _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, handle: object) -> bool:
        return handle in self._waits

    def error(self, handle: T) -> TransportError | None:
        """Why ``handle`` is set aside; None: it is not."""
        wait = self._waits.get(handle)
        return None if wait is None else wait.error

    def failed(self, handle: T, error: TransportError, now: float) -> bool:
        """``handle`` could not be opened. True: for the first time in a row."""
        wait = self._waits.get(handle)
        if wait is None:
            self._waits[handle] = _Wait(now + FIRST_RETRY_S, error)
            return True
        wait.delay = FIRST_RETRY_S if error.type == ErrorType.UNREACHABLE else min(2 * wait.delay, LAST_RETRY_S)
        wait.due = now + wait.delay
        wait.error = error
        return False

    def forget(self, handle: T) -> bool:
        """``handle`` is open, or no longer wanted. False: it was not set aside."""
        return self._waits.pop(handle, None) is not None

    def due(self, now: float) -> list[T]:
        """What is to be tried again."""
        return [handle for handle, wait in self._waits.items() if wait.due <= now]
