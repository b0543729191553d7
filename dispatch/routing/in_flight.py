"""Calls in flight by the generation of the catalogue: topics that only a previous catalogue uses stay open until its calls
have ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class ActiveCalls:
    """Counts calls in flight. A reentrant context manager."""

    __slots__ = ("_idle", "count")

    def __init__(self) -> None:
        self.count = 0
        self._idle: asyncio.Event | None = None

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_exc: object) -> None:
        self.count -= 1
        if not self.count and self._idle is not None:
            self._idle.set()
            self._idle = None

    async def wait_idle(self) -> None:
        """Wait until no call is in flight."""
        while self.count:
            if self._idle is None:
                self._idle = asyncio.Event()
            await self._idle.wait()


class CatalogGenerations:
    """Counts calls by generation. A generation lasts until the catalogue is reloaded, and ends with its last call.

    Args:
        loop: the dispatcher's.
        on_ended: called with the number of a generation when that and all earlier ones have ended.

    Attributes:
        current: entered by each call that begins now.
        number: of the current generation.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_ended: Callable[[int], object]) -> None:
        self._loop = loop
        self._on_ended = on_ended
        self.current = ActiveCalls()
        self.number = 1
        self._former: deque[ActiveCalls] = deque()
        self._watching: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Calls in flight, of all generations."""
        return self.current.count + sum(each.count for each in self._former)

    @property
    def are_former_pending(self) -> bool:
        """Whether calls of a previous generation are in flight."""
        return len(self._former) > 0

    def begin(self) -> None:
        """Begin a new generation."""
        self._former.append(self.current)
        self.current = ActiveCalls()
        self.number += 1
        if self._watching is None or self._watching.done():
            self._watching = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        while self._former:
            await self._former[0].wait_idle()
            ended = self.number - len(self._former)
            self._former.popleft()
            self._on_ended(ended)

    async def wait_idle(self) -> None:
        """Wait until no call of any generation is in flight."""
        while self.count:
            await next(each for each in (*self._former, self.current) if each.count).wait_idle()

    async def close(self) -> None:
        """Stop waiting for the end of previous generations."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
