"""The recent calls of a dispatcher, and what they say about tools and users."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from dispatch._internal import Clock, excerpt, scalar_text
from dispatch.errors import ErrorType, Outcome
from dispatch.resilience.retry import may_have_run
from dispatch.result import CallResult
from dispatch.telemetry.events import Listeners
from dispatch.telemetry.observers import CallTrail, ObservedTool, RequestRecord, WaitRecord

MAX_CALLS: Final = 1_000
MAX_FAILED: Final = 200
MAX_USERS: Final = 1_000
"""Users whose counts are known: those with the latest calls."""
SLOT_S: Final = 5.0
SLOTS: Final = 60
"""The history of a tool: 5 minutes."""
RATE_SLOTS: Final = 12
"""Slots of a rate: a minute."""
BATCH: Final = 500
MAX_MESSAGE_CHARS: Final = 500

_SUCCESS, _CANCELLED = Outcome.SUCCESS, Outcome.CANCELLED
ANSWERED = frozenset({_SUCCESS, Outcome.TOOL_ERROR})
"""Outcomes of calls that the tool has answered."""
_PRIVATE = frozenset({Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS})
"""Outcomes whose message may quote arguments, or is text of the tool."""


class RecordedCall(msgspec.Struct, eq=False):
    """A call that has ended.

    Attributes:
        calls: of its tool.
        tool: that was called.
        started: on the loop's clock.
        caller: on whose behalf, as the caller named the user.
        trace_id: empty: it is in no trace.
        request, wait: the last ones; None: there was none.
        arguments: as JSON, where telemetry has ``content`` on.
        number: of the call, from 1.
        duration, chunks, outcome, error, rejected_by: of its result.
        is_refused: it failed for a reason of its caller (:attr:`~dispatch.errors.DispatchError.policy_refusal`).
        message: of its error; empty where it may have user data.
    """

    calls: ToolCalls
    tool: ObservedTool
    started: float
    caller: object
    trace_id: str
    duration: float
    request: RequestRecord | None = None
    wait: WaitRecord | None = None
    arguments: str | None = None
    number: int = 0
    chunks: int = 0
    outcome: Outcome = _SUCCESS
    error: str = ""
    rejected_by: str = ""
    is_refused: bool = False
    message: str = ""

    @property
    def user(self) -> str:
        """On whose behalf; empty: the caller gave no text."""
        return scalar_text(self.caller) if isinstance(self.caller, str) else ""

    @property
    def ran(self) -> str:
        """Whether the tool was executed: ``yes``, ``no`` or ``maybe``."""
        if self.outcome in ANSWERED:
            return "yes"
        return "maybe" if may_have_run(self.outcome, sent=any(each.sent for each in self.attempts())) else "no"

    @property
    def is_failed(self) -> bool:
        """Whether the tool or its service failed."""
        return self.outcome is not _SUCCESS and self.outcome is not _CANCELLED and not self.is_refused

    def attempts(self) -> list[RequestRecord]:
        """Return the attempts in the order in which they began."""
        return _unlink(self.request)

    def waits(self) -> list[WaitRecord]:
        """Return the waits in their order."""
        return _unlink(self.wait)


def _unlink(last: Any) -> list[Any]:
    found = []
    while last is not None:
        found.append(last)
        last = last.previous
    return found[::-1]


class EndedCalls(msgspec.Struct, eq=False, gc=False):
    """Numbers of calls that ended in one slot, and when the last one did."""

    calls: int = 0
    failed: int = 0
    refused: int = 0
    last: float = 0.0


class ToolCalls:
    """The calls of one version of a tool. See :class:`~dispatch.telemetry.observers.CallRecords`.

    Attributes:
        recent: of the dispatcher.
        label, version: of the tool.
        calls, failed, refused: numbers since the start.
        in_flight: calls in flight.
    """

    __slots__ = (
        *("_failed", "_slot", "_total", "calls", "failed", "in_flight", "label", "recent"),
        *("refused", "version"),
    )

    def __init__(self, recent: RecentCalls, label: str, version: str | None) -> None:
        self.recent = recent
        self.label = label
        self.version = version
        self.calls = self.failed = self.refused = self.in_flight = 0
        self._total = array("I", bytes(4 * SLOTS))
        self._failed = array("I", bytes(4 * SLOTS))
        self._slot = 0

    @property
    def content(self) -> bool:
        """See :class:`~dispatch.telemetry.observers.CallRecords`."""
        return self.recent.content

    def add(
        self, tool: ObservedTool, user: str, started: float, result: CallResult, trail: CallTrail | None, trace_id: str
    ) -> None:
        """See :meth:`dispatch.telemetry.observers.CallRecords.add`."""
        if trail is None:
            call = RecordedCall(self, tool, started, user, trace_id, result.duration)
        else:
            request, wait = trail.last_request, trail.last_wait
            call = RecordedCall(self, tool, started, user, trace_id, result.duration, request, wait, trail.arguments)
        if result.chunks > 1:
            call.chunks = result.chunks
        error = result.error
        if error is not None:
            call.outcome = result.outcome
            call.error = str(error.type)
            call.rejected_by = error.rejected_by or ""
            call.is_refused = bool(error.policy_refusal)
            if result.outcome not in _PRIVATE or self.content:
                call.message = excerpt(error.message, MAX_MESSAGE_CHARS)
        self.recent.add(call)

    def add_cancelled(
        self, tool: ObservedTool, user: str, started: float, seconds: float, trail: CallTrail | None, trace_id: str
    ) -> None:
        """See :meth:`dispatch.telemetry.observers.CallRecords.add_cancelled`."""
        call = RecordedCall(self, tool, started, user, trace_id, seconds)
        if trail is not None:
            call.request, call.wait, call.arguments = trail.last_request, trail.last_wait, trail.arguments
        call.outcome = _CANCELLED
        call.error = str(ErrorType.CANCELLED)
        self.recent.add(call)

    def count(self, slot: int, ended: EndedCalls) -> None:
        """Count calls that ended in ``slot``."""
        if slot > self._slot:
            self._advance(slot)
        self.calls += ended.calls
        self.failed += ended.failed
        self.refused += ended.refused
        self._total[slot % SLOTS] += ended.calls
        self._failed[slot % SLOTS] += ended.failed

    def _advance(self, slot: int) -> None:
        """Clear the slots that have begun since the last call."""
        for each in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            self._total[each % SLOTS] = self._failed[each % SLOTS] = 0
        self._slot = max(self._slot, slot)

    def history(self, slots: int = SLOTS) -> tuple[list[int], list[int]]:
        """Return the calls and the failed calls of the last ``slots`` slots, the oldest first; the last one is not over."""
        slot = int(self.recent.clock() / SLOT_S)
        self._advance(slot)
        places = [each % SLOTS for each in range(slot - slots + 1, slot + 1)]
        return [self._total[place] for place in places], [self._failed[place] for place in places]


class UserCalls:
    """The calls of one user: numbers since the start, of the current minute and the one before, and the end of the last."""

    __slots__ = ("before", "calls", "failed", "last", "minute", "now", "refused")

    def __init__(self) -> None:
        self.calls = self.failed = self.refused = self.minute = self.now = self.before = 0
        self.last = 0.0

    def count(self, minute: int, ended: EndedCalls) -> None:
        """Count calls that ended in ``minute``."""
        self.calls += ended.calls
        self.failed += ended.failed
        self.refused += ended.refused
        self.last = ended.last
        if minute != self.minute:
            self.before = self.now if minute == self.minute + 1 else 0
            self.now, self.minute = 0, minute
        self.now += ended.calls

    def rate(self, now: float, started: float) -> float:
        """Return the calls a second over the last minute, about; since ``started`` if that is later."""
        minute, part = divmod(now / 60.0, 1.0)
        late = int(minute) - self.minute
        current, former = (self.now, self.before) if late == 0 else (0, self.now if late == 1 else 0)
        return (current + former * (1.0 - part)) / min(60.0, max(now - started, 1.0))


class RecentCalls:
    """The recent calls of one dispatcher: the last :data:`MAX_CALLS`; and of those that did not succeed, the last
    :data:`MAX_FAILED` that had an attempt, and as many that had none.

    Args:
        clock: of the event loop.
        content: arguments, and texts of tools' errors, may be recorded.

    Attributes:
        tools: calls by label and version of the tool.
        users: calls by user, the one of the last call last.
        total: calls that have ended.
    """

    def __init__(self, clock: Clock, *, content: bool = False) -> None:
        self.clock = clock
        self.content = content
        self.tools: dict[tuple[str, str | None], ToolCalls] = {}
        self.users: OrderedDict[str, UserCalls] = OrderedDict()
        self._calls: deque[RecordedCall] = deque(maxlen=MAX_CALLS)
        self._failed: deque[RecordedCall] = deque(maxlen=MAX_FAILED)
        self._unsent: deque[RecordedCall] = deque(maxlen=MAX_FAILED)
        """Calls that ended before an attempt: an open circuit must not displace the failures that opened it."""
        self.total = self._uncounted = 0
        self._listeners: Listeners[RecordedCall] = Listeners("a listener of calls")
        self.subscribe = self._listeners.subscribe
        """Call a function with each call that ends; it must not block. Returns a function that removes it."""

    def record_calls(self, label: str, version: str | None) -> ToolCalls:
        """Return the records of the calls of a tool."""
        known = self.tools.get((label, version))
        if known is None:
            known = self.tools[label, version] = ToolCalls(self, label, version)
        return known

    def forget_tool(self, label: str) -> None:
        """Forget the counts of a tool that was removed from the catalogue."""
        for key in [key for key in self.tools if key[0] == label]:
            del self.tools[key]

    def add(self, call: RecordedCall) -> None:
        """Record a call that has ended."""
        call.calls.in_flight -= 1
        self.total = call.number = self.total + 1
        self._calls.append(call)
        if call.outcome is not _SUCCESS:
            (self._unsent if call.request is None else self._failed).append(call)
        self._uncounted += 1
        if self._uncounted >= BATCH:
            self.count()
        self._listeners.publish(call)

    def count(self) -> None:
        """Count the calls that have ended since the last time. perf: those of one tool, user and slot together."""
        uncounted, self._uncounted = self._uncounted, 0
        groups: dict[tuple[ToolCalls, str, int], EndedCalls] = {}
        slot, ends = 0, 0.0
        for call in islice(self._calls, len(self._calls) - uncounted, None):
            now, caller = call.started + call.duration, call.caller
            if not ends - SLOT_S <= now < ends:
                slot = int(now / SLOT_S)
                ends = (slot + 1) * SLOT_S
            key = call.calls, caller if isinstance(caller, str) else "", slot
            group = groups.get(key)
            if group is None:
                group = groups[key] = EndedCalls()
            group.calls += 1
            group.last = now
            if call.outcome is not _SUCCESS:
                group.failed += call.is_failed
                group.refused += call.is_refused
        users = self.users
        for (tool, caller, slot), group in sorted(groups.items(), key=lambda each: each[1].last):
            tool.count(slot, group)
            user = scalar_text(caller)
            its = users.get(user)
            if its is None:
                its = users[user] = UserCalls()
                if len(users) > MAX_USERS:
                    users.popitem(last=False)
            else:
                users.move_to_end(user)
            its.count(slot // RATE_SLOTS, group)

    def latest(self, *, failed: bool = False) -> Iterator[RecordedCall]:
        """Yield the calls, the latest first; ``failed``: those that did not succeed."""
        if not failed:
            return reversed(self._calls)
        return iter(sorted((*self._failed, *self._unsent), key=lambda call: -call.number))

    def close(self) -> None:
        """Forget the calls."""
        self._calls.clear()
        self._failed.clear()
        self._unsent.clear()
        self._uncounted = 0

    def find(self, id: str) -> RecordedCall | None:
        """Return the call with that number, with a request of that id, or in that trace; None: it is not known."""
        calls: Iterable[RecordedCall] = {
            each.number: each for each in (*self._failed, *self._unsent, *self._calls)
        }.values()
        if id.isascii() and id.isdigit() and len(id) < 16:
            return next((each for each in calls if each.number == int(id)), None)
        return next(
            (each for each in calls if each.trace_id == id or any(one.id == id for one in each.attempts())), None
        )
