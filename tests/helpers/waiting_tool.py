"""A tool that waits until a test lets it go on, and a stream of numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Gate:
    """A tool that waits until it may go on, and counts."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun: list[Any] = []
        self.cancelled = 0

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.begun.append(arguments.get("n"))
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return f"done {arguments.get('n')}"


async def count(most: int, size: int = 1) -> AsyncIterator[str]:
    for number in range(most):
        yield str(number % 10) * size
