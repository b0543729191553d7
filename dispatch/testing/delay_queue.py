"""Messages that a faulty connection delays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

MAX_DELAYED: Final = 100_000
"""Messages that one connection may delay in each direction; a further one is lost, as in a full queue."""

Deliver = Callable[[], object]
"""Delivers a message: publishes it, or calls its handler."""


class DelayedMessage:
    """A message that is delayed. It is delivered once: when it is due, or earlier."""

    __slots__ = ("_deliver", "_queue", "_timer")

    def __init__(self, queue: DelayQueue, deliver: Deliver, due: float) -> None:
        self._queue = queue
        self._deliver: Deliver | None = deliver
        self._timer = asyncio.get_running_loop().call_at(due, self.deliver)

    @property
    def is_waiting(self) -> bool:
        """It is neither delivered nor cancelled."""
        return self._deliver is not None

    def deliver(self) -> None:
        """Deliver the message now, unless that is done."""
        deliver = self._close()
        if deliver is not None:
            deliver()

    def cancel(self) -> bool:
        """Drop the message. Return False if it is already delivered."""
        return self._close() is not None

    def _close(self) -> Deliver | None:
        deliver, self._deliver = self._deliver, None
        if deliver is not None:
            self._timer.cancel()
            self._queue.remove(self)
        return deliver


class DelayQueue:
    """Delayed messages of a connection in one direction."""

    def __init__(self) -> None:
        self._messages: set[DelayedMessage] = set()
        self._empty: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """No further message can be delayed."""
        return len(self._messages) >= MAX_DELAYED

    def add(self, deliver: Deliver, due: float) -> DelayedMessage:
        """Delay a message until ``due``, on the loop's clock."""
        message = DelayedMessage(self, deliver, due)
        self._messages.add(message)
        return message

    def remove(self, message: DelayedMessage) -> None:
        """Remove a message that is delivered or cancelled."""
        self._messages.discard(message)
        if not self._messages and self._empty is not None:
            self._empty.set_result(None)
            self._empty = None

    async def wait_empty(self) -> None:
        """Wait until no message is delayed."""
        while self._messages:
            if self._empty is None:
                self._empty = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._empty)

    def clear(self) -> None:
        """Drop all delayed messages."""
        for message in list(self._messages):
            message.cancel()
