"""The recent calls of a dispatcher, and what they say about tools and users."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dispatch._internal import Clock, excerpt, scalar_text
from dispatch.errors import DispatchError, ErrorType, Outcome
from dispatch.resilience.retry import may_have_run
from dispatch.results import CallResult
from dispatch.telemetry.events import MAX_USER_CHARS, Listeners
from dispatch.telemetry.observers import CallTrail, RequestRecord, WaitRecord

MAX_CALLS: Final = 1_000
MAX_FAILED: Final = 200
MAX_USERS: Final = 1_000
"""Users whose counts are known: those with the latest calls."""
SLOT_S: Final = 5.0
SLOTS: Final = 60
"""The history of a tool: 5 minutes."""
RATE_SLOTS: Final = 12
"""Slots of a rate: a minute."""
MAX_UNCOUNTED: Final = 500
"""Users of a tool whose calls are not counted yet, and calls of it that did not succeed."""
MAX_MESSAGE_CHARS: Final = 500

_SUCCESS, _CANCELLED = Outcome.SUCCESS, Outcome.CANCELLED
ANSWERED = frozenset({_SUCCESS, Outcome.TOOL_ERROR})
"""Outcomes of calls that the tool has answered."""
_NOT_EXECUTED = frozenset(
    {ErrorType.INVALID_ARGUMENTS, ErrorType.INVALID_REQUEST, ErrorType.REQUEST_TOO_LARGE, ErrorType.EXPIRED}
)
"""Errors of attempts which the service had, and did not execute."""
_PRIVATE = frozenset({Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS})
"""Outcomes whose message may quote arguments, or is text of the tool."""


class RecordedTool(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A version of a tool, as its calls name it.

    Attributes:
        label, version: of the tool.
        service: id of the service that executes it.
    """

    label: str
    version: str | None
    service: str


class RecordedCall(msgspec.Struct, eq=False, gc=False):
    """A call that has ended. It refers to texts and numbers only, not to its arguments or its result.

    Attributes:
        tool: that was called.
        caller: on whose behalf, at most :data:`MAX_USER_CHARS` of the name; empty: it was no text.
        started: on the loop's clock.
        duration, chunks, outcome, error, rejected_by: of its result.
        trace_id: empty: it is in no trace.
        number: of the call, from 1.
        request, wait: the last ones; None: there was none.
        arguments: as JSON, where telemetry has ``content`` on.
        is_refused: it failed for a reason of its caller (:attr:`~dispatch.errors.DispatchError.policy_refusal`).
        message: of its error; empty where it may have user data.
    """

    tool: RecordedTool
    caller: str
    started: float
    duration: float
    trace_id: str
    number: int
    chunks: int
    request: RequestRecord | None = None
    wait: WaitRecord | None = None
    arguments: str | None = None
    outcome: Outcome = _SUCCESS
    error: str = ""
    rejected_by: str = ""
    is_refused: bool = False
    message: str = ""

    @property
    def user(self) -> str:
        """On whose behalf."""
        return scalar_text(self.caller)

    @property
    def ran(self) -> str:
        """Whether the tool was executed: ``yes``, ``no`` or ``maybe``."""
        if self.outcome in ANSWERED:
            return "yes"
        sent = (each for each in self.attempts() if each.error not in _NOT_EXECUTED)
        return "maybe" if any(may_have_run(each.outcome, sent=each.sent) for each in sent) else "no"

    @property
    def ended(self) -> float:
        """When it did, on the loop's clock."""
        return self.started + self.duration

    @property
    def is_failed(self) -> bool:
        """Whether the tool or its service failed."""
        return self.outcome is not _SUCCESS and self.outcome is not _CANCELLED and not self.is_refused

    def attempts(self) -> list[RequestRecord]:
        """Return the attempts in the order in which they began."""
        return sorted(_unlink(self.request), key=lambda each: each.started)

    def waits(self) -> list[WaitRecord]:
        """Return the waits in their order."""
        return _unlink(self.wait)


def _unlink(last: Any) -> list[Any]:
    found = []
    while last is not None:
        found.append(last)
        last = last.previous
    return found[::-1]


class _Nothing(msgspec.Struct, frozen=True):
    """Of a call for which nothing was sent."""

    last_request: None = None
    last_wait: None = None
    arguments: None = None


_NOTHING: Final = _Nothing()
_CANCELLATION: Final = DispatchError(ErrorType.CANCELLED, "")


class ToolCalls:
    """The calls of one version of a tool. See :class:`~dispatch.telemetry.observers.CallRecords`.

    Attributes:
        recent: of the dispatcher.
        tool: whose calls they are.
        content: see :class:`~dispatch.telemetry.observers.CallRecords`.
        calls, failed, refused: numbers since the start.
        uncounted: calls of the current slot that are in no number yet, by user.
        uncounted_failures: those of them that did not succeed.
    """

    __slots__ = (
        *("_failed", "_slot", "_total", "calls", "content", "failed", "recent", "refused", "tool"),
        *("uncounted", "uncounted_failures"),
    )

    def __init__(self, recent: RecentCalls, tool: RecordedTool) -> None:
        self.recent = recent
        self.tool = tool
        self.content = recent.content
        self.calls = self.failed = self.refused = 0
        self._total = array("I", bytes(4 * SLOTS))
        self._failed = array("I", bytes(4 * SLOTS))
        self._slot = 0
        self.uncounted: dict[str, int] = {}
        self.uncounted_failures: list[RecordedCall] = []

    def add(self, user: str, started: float, result: CallResult, trail: CallTrail | None, trace_id: str) -> None:
        """See :meth:`dispatch.telemetry.observers.CallRecords.add`."""
        recent, error, noted = self.recent, result.error, trail or _NOTHING
        recent.total = number = recent.total + 1
        request, wait, arguments = noted.last_request, noted.last_wait, noted.arguments
        seconds, chunks = result.duration, result.chunks
        if type(user) is not str or len(user) > MAX_USER_CHARS:
            user = user[:MAX_USER_CHARS] if isinstance(user, str) else ""
        call = RecordedCall(self.tool, user, started, seconds, trace_id, number, chunks, request, wait, arguments)
        recent.calls.append(call)
        if started + seconds >= recent.slot_end:
            recent.count(started + seconds)
        try:
            self.uncounted[user] += 1
        except KeyError:
            self._add_user(user)
        if error is not None:
            call.outcome = result.outcome
            call.error = str(error.type)
            call.rejected_by = error.rejected_by or ""
            call.is_refused = bool(error.policy_refusal)
            if result.outcome not in _PRIVATE or self.content:
                call.message = excerpt(error.message, MAX_MESSAGE_CHARS)
            self._add_failure(call)
        if recent.listeners.current:
            recent.listeners.publish(call)

    def add_cancelled(self, user: str, started: float, seconds: float, trail: CallTrail | None, trace_id: str) -> None:
        """See :meth:`dispatch.telemetry.observers.CallRecords.add_cancelled`."""
        result = CallResult(self.tool.label, _CANCELLED, error=_CANCELLATION, duration=seconds)
        self.add(user, started, result, trail, trace_id)

    def _add_user(self, user: str) -> None:
        if len(self.uncounted) >= MAX_UNCOUNTED:
            self.recent.count()
        if not self.uncounted:
            self.recent.uncounted.append(self)
        self.uncounted[user] = self.uncounted.get(user, 0) + 1

    def _add_failure(self, call: RecordedCall) -> None:
        self.recent.add_failed(call)
        self.uncounted_failures.append(call)
        if len(self.uncounted_failures) >= MAX_UNCOUNTED:
            self.recent.count()

    def count(self, slot: int) -> None:
        """Count the calls that ended in ``slot``."""
        if slot > self._slot:
            self._advance(slot)
        calls, failed = sum(self.uncounted.values()), sum(call.is_failed for call in self.uncounted_failures)
        self.calls += calls
        self.failed += failed
        self.refused += sum(call.is_refused for call in self.uncounted_failures)
        self._total[slot % SLOTS] += calls
        self._failed[slot % SLOTS] += failed
        self.uncounted.clear()
        self.uncounted_failures.clear()

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

    def count(self, minute: int, calls: int, failures: Sequence[RecordedCall], last: float) -> None:
        """Count calls that ended in ``minute``, the last one at ``last``, and those of them that did not succeed."""
        self.calls += calls
        self.failed += sum(call.is_failed for call in failures)
        self.refused += sum(call.is_refused for call in failures)
        self.last = last
        if minute != self.minute:
            self.before = self.now if minute == self.minute + 1 else 0
            self.now, self.minute = 0, minute
        self.now += calls

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
        calls: the last ones.
        total: calls that have ended.
        slot_end: when the slot ends whose calls are not counted yet.
        listeners: of calls that end.
    """

    def __init__(self, clock: Clock, *, content: bool = False) -> None:
        self.clock = clock
        self.content = content
        self.tools: dict[tuple[str, str | None], ToolCalls] = {}
        self.users: OrderedDict[str, UserCalls] = OrderedDict()
        self.calls: deque[RecordedCall] = deque(maxlen=MAX_CALLS)
        self._failed: deque[RecordedCall] = deque(maxlen=MAX_FAILED)
        self._unsent: deque[RecordedCall] = deque(maxlen=MAX_FAILED)
        """Calls that ended before an attempt: an open circuit must not displace the failures that opened it."""
        self.uncounted: list[ToolCalls] = []
        """Those with uncounted calls."""
        self.total = 0
        self._slot = int(clock() / SLOT_S)
        self.slot_end = (self._slot + 1) * SLOT_S
        self.listeners: Listeners[RecordedCall] = Listeners("a listener of calls")
        self.subscribe = self.listeners.subscribe
        """Call a function with each call that ends; it must not block. Returns a function that removes it."""

    def record_calls(self, label: str, version: str | None, service: str) -> ToolCalls:
        """Return the records of the calls of a tool, which ``service`` executes from now on."""
        tool = RecordedTool(label, version, service)
        known = self.tools.get((label, version))
        if known is None:
            known = self.tools[label, version] = ToolCalls(self, tool)
        known.tool = tool
        return known

    def record_unknown_tool(self, name: str, error: DispatchError, now: float, user: str) -> None:
        """Record a call of a tool that is in no catalogue. It counts for its user, and for no tool."""
        tool = RecordedTool(scalar_text(name), None, "")
        ToolCalls(self, tool).add(user, now, CallResult(name, error.outcome, error=error), None, "")

    def forget_tool(self, label: str) -> None:
        """Forget the counts of a tool that was removed from the catalogue."""
        for key in [key for key in self.tools if key[0] == label]:
            del self.tools[key]

    def add_failed(self, call: RecordedCall) -> None:
        """Remember a call that did not succeed for longer than others."""
        (self._unsent if call.request is None else self._failed).append(call)

    def count(self, now: float | None = None) -> None:
        """Count the calls that have ended since the last time, all of them in one slot. perf: those of a tool and a user
        together, without their records.

        Args:
            now: when a call ends that is not among them; None: the present.
        """
        slot, self._slot = self._slot, int((self.clock() if now is None else now) / SLOT_S)
        self.slot_end = (self._slot + 1) * SLOT_S
        tools, self.uncounted = self.uncounted, []
        users: Counter[str] = Counter()
        failures: defaultdict[str, list[RecordedCall]] = defaultdict(list)
        for tool in tools:
            users.update(tool.uncounted)
            for call in tool.uncounted_failures:
                failures[call.caller].append(call)
            tool.count(slot)
        ends: dict[str, float] = {}
        for call in reversed(self.calls):
            if len(ends) == len(users):
                break
            if call.caller in users:
                ends.setdefault(call.caller, call.ended)
        for caller in sorted(users, key=lambda each: ends.setdefault(each, slot * SLOT_S)):
            user = scalar_text(caller)
            its = self.users.pop(user, None) or UserCalls()
            self.users[user] = its
            if len(self.users) > MAX_USERS:
                self.users.popitem(last=False)
            its.count(slot // RATE_SLOTS, users[caller], failures[caller], ends[caller])

    def latest(self, *, failed: bool = False) -> Iterator[RecordedCall]:
        """Yield the calls, the latest first; ``failed``: those that did not succeed."""
        if not failed:
            return reversed(self.calls)
        return iter(sorted((*self._failed, *self._unsent), key=lambda call: -call.number))

    def close(self) -> None:
        """Forget the calls."""
        for calls in (self.calls, self._failed, self._unsent):
            calls.clear()

    def find(self, id: str) -> RecordedCall | None:
        """Return the call with that number, with a request of that id, or in that trace; None: it is not known."""
        calls: Iterable[RecordedCall] = {
            each.number: each for each in (*self._failed, *self._unsent, *self.calls)
        }.values()
        if id.isascii() and id.isdigit() and len(id) < 16:
            return next((each for each in calls if each.number == int(id)), None)
        return next(
            (each for each in calls if each.trace_id == id or any(one.id == id for one in each.attempts())), None
        )
