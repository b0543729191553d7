"""Retention of removed things: each is dropped after a time, once nothing uses it, unless it returns meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

RETENTION_S = 60.0
"""Seconds that the state of a removed tool is retained at least. A tool that an operator or a deployment deletes and creates
again returns within seconds; without retention that would reset its rate limits, bulkhead and breaker."""
MAX_RETAINED = 10_000
"""Removed things at most; beyond that the oldest expires early, so that names that come and go use bounded memory."""
BATCH = 100
"""Things dropped in one turn of the event loop: some milliseconds."""


class Retention(Generic[K]):
    """Retains the state of removed things by key, on the running event loop. One timer serves all.

    Args:
        drop: drops the state of a key. It is called once, :data:`RETENTION_S` after :meth:`add`, when the thing is not in
            use.
        await_idle: receives a key and a callback: returns False if the thing is not in use; otherwise returns True and calls
            the callback once when that use has ended.
    """

    def __init__(self, drop: Callable[[K], object], await_idle: Callable[[K, Callable[[], object]], bool]) -> None:
        self._drop = drop
        self._await_idle = await_idle
        self._due: dict[K, float] = {}
        """When each key expires, the earliest first: all have the same retention."""
        self._busy: dict[K, object] = {}
        """Expired keys that are in use, each with a token of its wait: the callback of an earlier wait has no effect."""
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, key: object) -> bool:
        return key in self._due or key in self._busy

    def __len__(self) -> int:
        return len(self._due) + len(self._busy)

    def add(self, key: K) -> None:
        """Retain ``key``, which was removed now. Does nothing for a retained one."""
        if key in self:
            return
        loop = asyncio.get_running_loop()
        self._due[key] = loop.time() + RETENTION_S
        if len(self._due) > MAX_RETAINED:
            self._expire(next(iter(self._due)))
        if self._timer is None:
            self._set_timer(loop)

    def restore(self, key: K) -> bool:
        """Stop the retention of ``key``, which is in use again. Return whether it was retained."""
        is_due = self._due.pop(key, None) is not None
        return self._busy.pop(key, None) is not None or is_due

    def close(self) -> None:
        """Cancel the timer: nothing is dropped any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        self._busy.clear()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        first = next(iter(self._due.values()), None)
        self._timer = None if first is None else loop.call_at(first, self._expire_due, loop)

    def _expire_due(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        # A timer may fire early, by the resolution of the loop's clock; it is set again then.
        for key in [key for _, (key, due) in zip(range(BATCH), self._due.items(), strict=False) if due <= now]:
            self._expire(key)
        self._set_timer(loop)

    def _expire(self, key: K) -> None:
        del self._due[key]
        token = self._busy[key] = object()

        def on_idle() -> None:
            if self._busy.get(key) is token:
                self._expire_idle(key)

        if not self._await_idle(key, on_idle):
            self._expire_idle(key)

    def _expire_idle(self, key: K) -> None:
        del self._busy[key]
        self._drop(key)
