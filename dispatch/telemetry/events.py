"""Events of a dispatcher as values, for a user's own alerting and live displays."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import msgspec

from dispatch.telemetry.logs import ExceptionLogger

logger = logging.getLogger("dispatch.telemetry")

MAX_QUEUED = 1_000
"""Events that an :class:`EventStream` queues; beyond that it drops the oldest and counts them."""
MAX_NAMES = 1_000
"""Names of each kind in a :class:`CatalogChanged`: the load of 10,000 tools would otherwise be an event of a megabyte. Also
the events for refused, shadowed or held items of one report, as many as a stream queues."""


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """A change that a dispatcher has noticed.

    Attributes:
        at: time of the change, in seconds since the epoch.
    """

    at: float

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain values; ``event`` is its kind."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values


class CircuitChanged(Event, frozen=True, tag="circuit"):
    """A circuit breaker changed its state.

    Attributes:
        tool: label of the tool.
        instance: name of the instance if the breaker is the tool's at that instance; None: the tool's own breaker.
        old, new: states (:class:`dispatch.resilience.breaker.breaker.State`).
        reason: of the transition, in a few words.
        version: of the tool; None: not declared.
    """

    tool: str
    instance: str | None
    old: str
    new: str
    reason: str
    version: str | None = None


class InstanceChanged(Event, frozen=True, tag="instance"):
    """An instance of a service joined or left, was ejected, or returned from an ejection.

    Attributes:
        service: id of the service.
        instance: name of the instance.
        change: ``joined``, ``left``, ``ejected`` or ``returned``.
        reason: of the change, in a few words.
    """

    service: str
    instance: str
    change: str
    reason: str


class CatalogChanged(Event, frozen=True, tag="catalog"):
    """Another catalogue or policy is in force, or a reload failed.

    Attributes:
        source: id of the source that changed; several are separated by commas.
        ok: the new one is in force; otherwise the previous one still is.
        tools: number of tools in force.
        problem: reason of the failure; empty: none.
        added, changed, removed: names of tools, at most 1,000 each.
        added_count, changed_count, removed_count: their numbers.
        fingerprints: SHA-256 of the definitions of ``added`` and ``changed``, by name.
    """

    source: str
    ok: bool
    tools: int
    problem: str = ""
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    added_count: int = 0
    changed_count: int = 0
    removed_count: int = 0
    fingerprints: dict[str, str] = {}  # msgspec copies an empty default


class SourceChanged(Event, frozen=True, tag="source"):
    """A source of the catalogue was added or removed, failed or recovered, or fails for another reason.

    Attributes:
        source: its id.
        old: the former state: ``ok``, ``stale`` (its last valid items are in force) or ``failed`` (it has none); empty: the
            source was added.
        new: the state; ``removed``: the source was removed. Equal to ``old``: only the problem is another one.
        problem: why it is not ``ok``; empty: it is.
    """

    source: str
    old: str
    new: str
    problem: str


class ItemRefused(Event, frozen=True, tag="item-refused"):
    """An item of a source is invalid. Its last valid version stays in force; without one it is not in the catalogue.

    Attributes:
        source: id of the source.
        origin: path or position of the item.
        key: path of the invalid value inside the descriptor; empty: the whole item.
        problem: description of the problem.
        fix: how to correct it.
    """

    source: str
    origin: str
    key: str
    problem: str
    fix: str


class ItemShadowed(Event, frozen=True, tag="item-shadowed"):
    """An item is not in force, because a source that comes earlier has an item with the same name.

    Attributes:
        name: of both tools, or id of both services.
        source, origin: of the shadowed item.
        active_source, active_origin: of the item that is in force.
    """

    name: str
    source: str
    origin: str
    active_source: str
    active_origin: str


class ChangeHeld(Event, frozen=True, tag="change-held"):
    """A changed definition waits for ``dispatch tools approve``; the former one stays in force.

    Attributes:
        source: id of the source.
        name: of the tool.
        old: fingerprint of the definition in force; empty: the tool is new and not in force.
        new: fingerprint of the definition that waits.
    """

    source: str
    name: str
    old: str
    new: str


T = TypeVar("T")
U = TypeVar("U")


class Listeners(Generic[T]):
    """Functions of the application that receive values. What one of them raises is logged, and affects nothing else.

    Args:
        name: of the listeners, for the log, such as ``a listener of events``.
        content: texts of exceptions may be logged.

    Attributes:
        current: the listeners. perf: the call path reads it; without listeners it does nothing else.
    """

    def __init__(self, name: str, *, content: bool = False) -> None:
        self.current: tuple[Callable[[T], object], ...] = ()
        self._name = name
        self._log = ExceptionLogger(logger, content=content)

    def subscribe(self, listener: Callable[[T], object]) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        self.current = (*self.current, listener)

        def unsubscribe() -> None:
            listeners = list(self.current)
            with contextlib.suppress(ValueError):
                listeners.remove(listener)
            self.current = tuple(listeners)

        return unsubscribe

    def publish(self, value: T) -> None:
        """Call every listener with ``value``."""
        for listener in self.current:
            self.call(listener, value)

    def call(self, listener: Callable[[U], object], value: U) -> None:
        """Call one function with ``value``, as a listener."""
        try:
            listener(value)
        except BaseException as raised:  # anything: it must not end what it listens to, nor cancel the caller
            self._log.log(f"{self._name} failed", raised)


class Events(Listeners[Event]):
    """Delivers events to listeners and streams.

    Args:
        content: texts of listeners' exceptions may be logged.
    """

    def __init__(self, *, content: bool = False) -> None:
        super().__init__("a listener of events", content=content)
        self._streams: WeakSet[EventStream] = WeakSet()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of listeners and streams."""
        return len(self.current) + len(self._streams)

    def publish(self, event: Event) -> None:
        """Deliver ``event``."""
        super().publish(event)
        for stream in tuple(self._streams):
            stream.append(event)

    def open_stream(self) -> EventStream:
        """Return a stream of all events from now on."""
        stream = EventStream()
        if self._closed:
            stream.close()
        else:
            self._streams.add(stream)
        return stream

    def close(self) -> None:
        """Close the streams: each ends when its queued events have been read."""
        self._closed = True
        for stream in tuple(self._streams):
            stream.close()
        self._streams.clear()


class EventStream:
    """An asynchronous iterator over the events since it was opened: ``async for event in stream``.

    It queues at most :data:`MAX_QUEUED` events and drops the oldest beyond that. A stream without references is removed.

    Attributes:
        dropped: number of events that were dropped.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._queue: deque[Event] = deque()
        self._is_readable = asyncio.Event()
        self._is_closed = False

    def append(self, event: Event) -> None:
        """Queue ``event``."""
        if len(self._queue) >= MAX_QUEUED:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._is_readable.set()

    def close(self) -> None:
        """End the iteration once the queued events have been read."""
        self._is_closed = True
        self._is_readable.set()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._is_closed:
                raise StopAsyncIteration
            self._is_readable.clear()
            await self._is_readable.wait()
        return self._queue.popleft()
