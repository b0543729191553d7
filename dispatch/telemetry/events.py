"""What changes, as values: for a user's own alerting, and for whatever shows a dispatcher live."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

MAX_QUEUED = 1_000
"""Events that an iterator may be behind; the oldest are dropped beyond it, and counted."""


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Something has changed.

    Attributes:
        at: when, in seconds since the epoch.
    """

    at: float

    def as_dict(self) -> dict[str, Any]:
        """As plain values; ``event`` is its kind."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


class CircuitChanged(Event, frozen=True, tag="circuit"):
    """A circuit breaker has another state.

    Attributes:
        tool: whose.
        instance: of the tool at this instance alone; None: of the tool.
        old, new: states, as :class:`dispatch.guards.breaker.State` has them.
        why: in a word.
    """

    tool: str
    instance: str | None
    old: str
    new: str
    why: str


class InstanceChanged(Event, frozen=True, tag="instance"):
    """An instance of a service came, went, was ejected or may be called again.

    Attributes:
        service: its id.
        instance: its name.
        change: ``joined``, ``left``, ``ejected``, ``returned``.
        why: in a word.
    """

    service: str
    instance: str
    change: str
    why: str


class CatalogChanged(Event, frozen=True, tag="catalog"):
    """Another catalogue or policy is in force, or was refused.

    Attributes:
        source: where it came from.
        ok: it is in force; else the former one still is.
        tools: in force.
        problem: why it was refused.
    """

    source: str
    ok: bool
    tools: int
    problem: str = ""


Listener = Callable[[Event], object]


class Events:
    """Tells of events. A listener's own failures are its own: they go to the loop's exception handler and stop nobody."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def __len__(self) -> int:
        return len(self._listeners)

    def on(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each event. Returns what takes it away again."""
        self._listeners.append(listener)

        def off() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return off

    def tell(self, event: Event) -> None:
        """Something has changed."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a listener for dispatch's events failed", "exception": error}
                )

    async def stream(self) -> AsyncIterator[Event]:
        """Each event from now on. One who is too slow misses the oldest, and gets on all the same."""
        waiting: deque[Event] = deque(maxlen=MAX_QUEUED)
        there = asyncio.Event()

        def put(event: Event) -> None:
            waiting.append(event)
            there.set()

        off = self.on(put)
        try:
            while True:
                while waiting:
                    yield waiting.popleft()
                there.clear()
                await there.wait()
        finally:
            off()
