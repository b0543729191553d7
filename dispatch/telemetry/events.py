"""What changes, as values: for a user's own alerting, and for whatever shows a dispatcher live."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import msgspec

logger = logging.getLogger("dispatch.telemetry")

MAX_QUEUED = 1_000
"""Events that a stream of them may be behind; the oldest are dropped beyond it, and counted."""


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
        old, new: states, as :class:`dispatch.resilience.breaker.breaker.State` has them.
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
    """Tells of events. A listener's own failures are its own: they are logged, and stop nobody."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._streams: WeakSet[EventStream] = WeakSet()
        self._closed = False

    def __len__(self) -> int:
        """Those who listen."""
        return len(self._listeners) + len(self._streams)

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
            except Exception:
                logger.exception("a listener for dispatch's events failed")
        for stream in tuple(self._streams):
            stream.put(event)

    def stream(self) -> EventStream:
        """Each event from now on."""
        made = EventStream()
        if self._closed:
            made.end()
        else:
            self._streams.add(made)
        return made

    def close(self) -> None:
        """There is nothing more to tell: streams end when they have been read."""
        self._closed = True
        for stream in tuple(self._streams):
            stream.end()
        self._streams.clear()


class EventStream:
    """Each event since it was made, in turn: ``async for event in stream``. One that nobody holds any more is dropped.

    One who is too slow misses the oldest (see :data:`MAX_QUEUED`), and gets on all the same.

    Attributes:
        missed: events so far that were dropped.
    """

    def __init__(self) -> None:
        self.missed = 0
        self._waiting: deque[Event] = deque()
        self._there = asyncio.Event()
        self._ended = False

    def put(self, event: Event) -> None:
        """Something has changed."""
        if len(self._waiting) >= MAX_QUEUED:
            self._waiting.popleft()
            self.missed += 1
        self._waiting.append(event)
        self._there.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._there.set()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._there.clear()
            await self._there.wait()
        return self._waiting.popleft()
