"""A source of a catalogue in every kind of trouble: out of reach, with an invalid item, and with a changed definition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from dispatch.catalog.items import Item, OnChange

SERVICE = {
    "id": "desk",
    "request-queue": "non-persistent://tg/request/desk",
    "response-queue": "non-persistent://tg/response/desk",
}
TOOL: dict[str, Any] = {"type": "tool-service", "name": "stamp", "service": "desk", "description": "Stamps a form."}
SOUND = (Item("tool-service/desk", "tool-service", "desk", SERVICE), Item("tool/stamp", "tool", "stamp", TOOL))
CHANGED = Item("tool/stamp", "tool", "stamp", {**TOOL, "description": "Stamps a form, and sends it to somebody else."})
INVALID = Item("tool/staple", "tool", "staple", {**TOOL, "name": "staple", "service": "no-such-service"})


class TroubledSource:
    """:meth:`deliver` and :meth:`fail` announce a change.

    Args:
        id: of the source.
        on_change: ``hold`` or ``apply``.
    """

    def __init__(self, id: str = "desk", *, on_change: OnChange = "hold") -> None:
        self.id = id
        self.on_change = on_change
        self._items: Sequence[Item] | None = SOUND
        self._change = asyncio.Event()

    def deliver(self, *items: Item) -> None:
        """Have these items from now on."""
        self._items = items
        self._change.set()

    def fail(self) -> None:
        """Be out of reach from now on."""
        self._items = None
        self._change.set()

    async def discover(self) -> Sequence[Item]:
        if self._items is None:
            raise ConnectionError("the desk does not answer")
        return self._items

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self._change.wait()
            self._change.clear()
            yield
