"""Calls under way, by the catalogue with which they began: what only a former catalogue uses stays open until they end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class ActiveCalls:
    """Counts what is under way, and knows when it is nothing. Enter it as often as you like."""

    __slots__ = ("_nothing", "count")

    def __init__(self) -> None:
        self.count = 0
        self._nothing: asyncio.Event | None = None

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_exc: object) -> None:
        self.count -= 1
        if not self.count and self._nothing is not None:
            self._nothing.set()
            self._nothing = None

    async def nothing(self) -> None:
        """Wait until nothing is."""
        while self.count:
            if self._nothing is None:
                self._nothing = asyncio.Event()
            await self._nothing.wait()


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
        """Calls under way, of all generations."""
        return self.current.count + sum(each.count for each in self._former)

    @property
    def are_former_pending(self) -> bool:
        """A former generation has not ended."""
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
            await self._former[0].nothing()
            ended = self.number - len(self._former)
            self._former.popleft()
            self._on_ended(ended)

    async def nothing(self) -> None:
        """Wait until nothing is under way, of any generation."""
        while self.count:
            await next(each for each in (*self._former, self.current) if each.count).nothing()

    async def close(self) -> None:
        """Watch no more for the end of former generations."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
