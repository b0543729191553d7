"""Events of a dispatcher as values, for a user's own alerting and live displays; log lines, limited in rate."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import msgspec

from dispatch._internal import check_function, excerpt, is_kind, read_field, read_text, scalar_text, type_name, unwrap
from dispatch.errors import DispatchError
from dispatch.messaging.wire import InvalidResultError

# Log lines: one for each transition of a circuit or an instance, one for each call, and exceptions without user data.
#
# Lines of a state that flaps are limited in rate. Each record has its facts as attributes (``extra``), for formatters that
# write JSON.


CALLS = logging.getLogger("dispatch.calls")
"""One line for each call, at DEBUG."""

AUDIT = logging.getLogger("dispatch.audit")
"""One line for each decision on a tool with permissions, at INFO."""

REPEAT_INTERVAL_S = 10.0
"""Seconds between two lines for the same change of one circuit or instance. A breaker is open for 5 s at first: one that
flaps writes about one line in two cycles."""
MAX_USER_CHARS = 256
"""Characters of a user's name in a line."""
MAX_KEYS = 1_000
"""Changes whose last line is remembered; beyond that the oldest is evicted, and its next line is written at once."""
MAX_FRAMES = 50
"""Frames of a traceback; of a deeper one the last frames are logged."""
MAX_CHAINED = 10
"""Causes of an exception, and members of a group, whose tracebacks are logged."""


class TransitionLogger:
    """Logs transitions, limited in rate for each key.

    Args:
        logger: receives the lines.
        clock: seconds, monotonic.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock
        self._last: OrderedDict[tuple[str, ...], list[float]] = OrderedDict()

    def log(
        self,
        level: int,
        key: tuple[str, ...],
        text: str | Callable[[], str],
        /,
        **facts: Any,
    ) -> None:
        """Log ``text``, unless ``key`` had a line less than :data:`REPEAT_INTERVAL_S` ago.

        Args:
            level: of :mod:`logging`.
            key: identifies the change.
            text: the line, or what returns it; the number of lines that were suppressed since the last one is appended.
            facts: attributes of the record, each with the prefix ``dispatch_``.
        """
        now = self._clock()
        last = self._last.get(key)
        suffix = ""
        if last is None:
            last = self._last[key] = [now, 0]
            if len(self._last) > MAX_KEYS:
                self._last.popitem(last=False)
        elif now < last[0] + REPEAT_INTERVAL_S:
            last[1] += 1
            return
        else:
            facts["repeated"] = int(last[1])
            if last[1]:
                suffix = f" ({int(last[1])} more since the last line)"
            last[:] = [now, 0]
            self._last.move_to_end(key)
        line = text if isinstance(text, str) else text()
        self._logger.log(level, scalar_text(f"{line}{suffix}"), extra=_name_facts(facts))


def _name_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a record: formatters write them as they are."""
    return {f"dispatch_{name}": scalar_text(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}


class ExceptionLogger:
    """Logs what user code raised unexpectedly: one ERROR with a traceback, limited in rate for each kind of exception. A
    kind is a class and the line that raised it.

    A traceback quotes lines of source code, never values. The text of an exception, which often contains arguments, is
    logged only where user data may be recorded.

    Args:
        logger: receives the lines.
        clock: seconds, monotonic.
        content: user data may be recorded (:attr:`dispatch.Telemetry.content`): log the texts of exceptions, too.
    """

    def __init__(
        self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic, *, content: bool = False
    ) -> None:
        self._lines = TransitionLogger(logger, clock)
        self._content = content

    def log_tool_error(self, text: str, raised: BaseException, **facts: Any) -> None:
        """Log what a tool raised; or of a result that cannot be sent its type and what to return, never its value, which is
        user data. The tool's own errors (:class:`~dispatch.errors.DispatchError`) are not logged.

        Args:
            text: names the tool.
            raised: by the tool, or for its result.
            facts: as of :meth:`TransitionLogger.log`.
        """
        raised = unwrap(raised)
        if is_kind(raised, InvalidResultError):
            with contextlib.suppress(BaseException):  # of a handler of logging
                self._lines.log(
                    logging.ERROR,
                    (text, raised.type, type_name(raised.result)),
                    lambda: (
                        f"{text} returned {raised.name_types()}, which cannot be sent: the call ended as {raised.type}. "
                        "Return a text, a number, a list, a dict, or a dataclass of such values, without NaN, infinity, "
                        "halves of surrogate pairs, and keys that are one in JSON (1 and '1')."
                    ),
                    error=raised.type,
                    **facts,
                )
        elif not is_kind(raised, DispatchError):
            self.log(f"{text} failed", raised, **facts)

    def log(self, text: str, raised: BaseException, **facts: Any) -> None:
        """Log ``raised``. Never raises: the code that reports a failure must go on.

        Args:
            text: what failed; the class of the exception and the traceback are appended.
            raised: by user code.
            facts: as of :meth:`TransitionLogger.log`.
        """
        raised = unwrap(raised)
        kind = type_name(raised)
        with contextlib.suppress(BaseException):  # of a handler of logging
            key = (text, kind, *_find_place(raised))
            self._lines.log(
                logging.ERROR,
                key,
                lambda: f"{text}: {kind}\n{format_traceback(raised, content=self._content)}",
                error=kind,
                **facts,
            )


def _find_place(raised: BaseException) -> tuple[str, ...]:
    """Return the file and the line that raised an exception."""
    found = read_field(raised, "__traceback__")
    if found is None:
        return ()
    while found.tb_next is not None:
        found = found.tb_next
    return found.tb_frame.f_code.co_filename, str(found.tb_lineno)


def format_traceback(raised: BaseException, *, content: bool = False) -> str:
    """Return the traceback of an exception with those of its causes and of a group's members: files, lines, source code,
    classes, and the text of each only with ``content``."""
    return "\n\n".join(_format_chain(raised, set(), content))


def _format_chain(raised: BaseException, seen: set[int], content: bool) -> list[str]:
    seen.add(id(raised))
    cause = read_field(raised, "__cause__")
    context = None if read_field(raised, "__suppress_context__") else read_field(raised, "__context__")
    earlier, how = (cause, _CAUSE) if cause is not None else (context, _CONTEXT)
    parts = []
    if earlier is not None and id(earlier) not in seen and len(seen) < MAX_CHAINED:
        parts += [*_format_chain(earlier, seen, content), how]
    whole = read_field(raised, "__traceback__")
    frames = "".join(traceback.format_tb(_skip_own_frames(whole), limit=-MAX_FRAMES))
    text = read_text(raised) if content else ""
    parts.append(f"Traceback (most recent call last):\n{frames}{type_name(raised)}{text and f': {text}'}")
    members = BaseExceptionGroup.exceptions.__get__(raised) if is_kind(raised, BaseExceptionGroup) else ()
    for number, member in enumerate(members, 1):
        if len(seen) >= MAX_CHAINED:
            break
        if id(member) not in seen:
            parts += [f"Member {number} of {len(members)} of the group:", *_format_chain(member, seen, content)]
    return parts


def _skip_own_frames(whole: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the first frame that is not dispatch's own; the whole one if all of them are."""
    found = whole
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        found = found.tb_next
    return found or whole


_OWN_FILES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def log_decision(user: str, tool: str, is_allowed: bool, reason: str, *, permission: str, trace_id: str) -> None:
    """Log whether a user may call a tool. Arguments are never logged here.

    Args:
        user: on whose behalf the tool is called; empty: the caller gave none.
        tool: label of the tool.
        is_allowed: the decision.
        reason: see :class:`dispatch.permissions.Decision`.
        permission: the first one that the user lacks; empty: none, or not known.
        trace_id: of the call; empty: that of the current span, if there is one.
    """
    decision = "allowed" if is_allowed else "refused"
    facts = {
        "user": user,
        "tool": tool,
        "decision": decision,
        "reason": reason,
        "permission": permission,
        "trace_id": trace_id or _current_trace_id(),
    }
    AUDIT.info(
        "%s: '%s' for user '%s' (%s)",
        decision,
        excerpt(tool),
        excerpt(user, MAX_USER_CHARS),
        f"{reason} {excerpt(permission)}" if permission else reason,
        extra=_name_facts(facts),
    )


def _current_trace_id() -> str:
    from opentelemetry.trace import get_current_span  # perf: most processes have no audit log

    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


def log_call(tool: str, outcome: str, seconds: float, **texts: str) -> None:
    """Log a call that has ended after ``seconds``. ``texts``: ``call_id``, ``error_type`` and ``trace_id``; those that are
    not known are empty."""
    facts = _name_facts({"tool": tool, "outcome": outcome, "seconds": seconds, **texts})
    CALLS.debug("'%s': %s after %.3f s", tool, outcome, seconds, extra=facts)


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
        old, new: states (:class:`dispatch.resilience.breaker.State`).
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
    """An instance of a service joined or left, was ejected, answers nothing while others do, or returned from that.

    Attributes:
        service: id of the service.
        instance: name of the instance.
        change: ``joined``, ``left``, ``ejected``, ``unresponsive`` or ``returned``.
        reason: of the change, in a few words.
    """

    service: str
    instance: str
    change: str
    reason: str


class BrokerChanged(Event, frozen=True, tag="broker"):
    """The connection to the broker was lost, or is back.

    Attributes:
        broker: its address.
        connected: it is back.
        seconds: for how long it was lost; 0 at the loss.
    """

    broker: str
    connected: bool
    seconds: float = 0.0


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


class ActionTaken(Event, frozen=True, tag="action"):
    """An operator has acted at the admin endpoint, or an action was undone by time.

    Attributes:
        user: who acts.
        action: such as ``open``, ``eject``, ``refresh``.
        target: of the action, such as ``circuit price``.
        reason: as the user gave it.
        until: when it is undone, in seconds since the epoch; None: it is not.
    """

    user: str
    action: str
    target: str
    reason: str
    until: float | None = None


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
        """Add a listener; return a function that removes it.

        Raises:
            TypeError: it cannot be called, or is a coroutine function.
        """
        check_function(self._name, listener, "begin the coroutine in it with asyncio.create_task(…)")
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
