"""The recent calls of a dispatcher, and what they say about tools and users."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from dispatch._internal import Clock, excerpt, scalar_text, write_json
from dispatch.errors import DispatchError, ErrorType, Outcome
from dispatch.resilience.retry import may_have_run
from dispatch.result import CallResult
from dispatch.telemetry.events import Listeners
from dispatch.telemetry.observers import NULL_CALL, NULL_REQUEST, CallObserver, ObservedTool, RequestObserver

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
MAX_ARGUMENTS_CHARS: Final = 4_000

_SUCCESS, _CANCELLED = Outcome.SUCCESS, Outcome.CANCELLED
ANSWERED = frozenset({_SUCCESS, Outcome.TOOL_ERROR})
"""Outcomes of calls that the tool has answered."""
_PRIVATE = frozenset({Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS})
"""Outcomes whose message may quote arguments, or is text of the tool."""


class RecordedWait(NamedTuple):
    """A wait in a queue: ``start`` on the loop's clock, and seconds. ``previous``: the wait before it in the same call."""

    start: float
    duration: float
    previous: RecordedWait | None


class RecordedAttempt(RequestObserver):
    """An attempt of a recorded call. ``previous``: the attempt that began before it in the same call."""

    ended: float | None = None
    outcome: Outcome = _CANCELLED
    instance = error = ""
    sent = True

    def __init__(
        self, inner: RequestObserver, clock: Clock, id: str, number: int, reason: str, previous: RecordedAttempt | None
    ) -> None:
        self.inner = inner
        self.clock = clock
        self.started = clock()
        self.id = id
        self.number = number
        self.reason = reason
        self.previous = previous
        if inner.properties:
            self.properties = inner.properties

    def activate(self) -> None:
        self.inner.activate()

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        self.inner.on_end(outcome, error, instance=instance, sent=sent)
        self.inner = NULL_REQUEST
        self.ended = self.clock()
        self.outcome = outcome
        self.instance = instance
        if error is not None:
            self.error = str(error.type)
            self.sent = sent


class RecordedCall(CallObserver):
    """A call of a tool: observed while it runs, and a record of it afterwards. Records of attempts and waits are linked, the
    last one first. perf: defaults are attributes of the class, which cost nothing at the start of a call.

    Attributes:
        calls: of its tool.
        inner: receives the same events.
        tool: that was called.
        started: on the loop's clock.
        user: on whose behalf.
        number: of the call, from 1; 0 until it ends.
        outcome, duration, error, rejected_by, chunks: of its result.
        is_refused: it failed for a reason of its caller (:attr:`~dispatch.errors.DispatchError.policy_refusal`).
        message: of its error; empty where it may have user data.
        arguments: as JSON, where telemetry has ``content`` on.
    """

    attempt: RecordedAttempt | None = None
    wait: RecordedWait | None = None
    number = chunks = 0
    outcome: Outcome = _SUCCESS
    duration = 0.0
    error = rejected_by = message = _trace_id = ""
    is_refused = False
    arguments: str | None = None

    def __init__(self, calls: ToolCalls, inner: CallObserver, tool: ObservedTool, started: float, user: str) -> None:
        self.calls = calls
        self.inner = inner
        self.tool = tool
        self.started = started
        self.user = user

    @property
    def trace_id(self) -> str:
        return self._trace_id or self.inner.trace_id

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

    def attempts(self) -> list[RecordedAttempt]:
        """Return the attempts in the order in which they began."""
        return _unlink(self.attempt)

    def waits(self) -> list[RecordedWait]:
        """Return the waits in their order."""
        return _unlink(self.wait)

    # -- while the call runs ------------------------------------------------------------------------------------

    def on_arguments(self, arguments: Mapping[str, Any]) -> None:
        self.inner.on_arguments(arguments)
        if self.calls.recent.content:
            self.arguments = excerpt(write_json(arguments), MAX_ARGUMENTS_CHARS)

    def on_queued(self, seconds: float) -> None:
        self.inner.on_queued(seconds)
        self.wait = RecordedWait(self.calls.recent.clock() - seconds, seconds, self.wait)

    def on_rejected(self, error: DispatchError) -> None:
        self.inner.on_rejected(error)

    def on_refused(self, user: str, reason: str) -> None:
        self.inner.on_refused(user, reason)

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> RequestObserver:
        inner, clock = self.inner.on_request(topic, template, id, number, reason), self.calls.clock
        self.attempt = attempt = RecordedAttempt(inner, clock, id, number, reason, self.attempt)
        return attempt

    def on_retry(self, wait: float) -> None:
        self.inner.on_retry(wait)

    def on_hedge(self) -> None:
        self.inner.on_hedge()

    def on_budget_exhausted(self) -> None:
        self.inner.on_budget_exhausted()

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self.inner.on_first_chunk(seconds, exemplar)

    def on_chunk(self, text: str) -> None:
        self.inner.on_chunk(text)

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        inner, self.inner = self.inner, NULL_CALL
        if trace_id := inner.trace_id:
            self._trace_id = trace_id
        inner.on_end(result, reply, exemplar)
        self.duration = result.duration
        error = result.error
        if result.chunks > 1:
            self.chunks = result.chunks
        if error is not None:
            self.outcome = result.outcome
            self.error = str(error.type)
            self.rejected_by = error.rejected_by or ""
            self.is_refused = bool(error.policy_refusal)
            if result.outcome not in _PRIVATE or self.calls.recent.content:
                self.message = excerpt(error.message, MAX_MESSAGE_CHARS)
        self.calls.recent.add(self)

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        inner, self.inner = self.inner, NULL_CALL
        if trace_id := inner.trace_id:
            self._trace_id = trace_id
        inner.on_cancel(seconds, attempts, exemplar)
        self.duration = seconds
        self.outcome = _CANCELLED
        self.error = str(ErrorType.CANCELLED)
        self.calls.recent.add(self)


def _unlink(last: Any) -> list[Any]:
    found = []
    while last is not None:
        found.append(last)
        last = last.previous
    return found[::-1]


class ToolCalls(CallObserver):
    """The calls of one version of a tool.

    Attributes:
        recent: of the dispatcher.
        label, version: of the tool.
        calls, failed, refused: numbers since the start.
        in_flight: calls in flight.
    """

    __slots__ = (
        *("_failed", "_inner", "_slot", "_total", "calls", "clock", "failed", "in_flight", "label", "recent"),
        *("refused", "version"),
    )

    def __init__(self, recent: RecentCalls, inner: CallObserver, label: str, version: str | None) -> None:
        self.recent = recent
        self.clock = recent.clock
        self._inner = inner
        self.label = label
        self.version = version
        self.calls = self.failed = self.refused = self.in_flight = 0
        self._total = array("I", bytes(4 * SLOTS))
        self._failed = array("I", bytes(4 * SLOTS))
        self._slot = 0

    def start_call(self, tool: ObservedTool, started: float, user: str = "") -> CallObserver:
        self.in_flight += 1
        inner = self._inner.start_call(tool, started, user)
        return RecordedCall(self, inner, tool, started, scalar_text(user) if isinstance(user, str) else "")

    def count(self, call: RecordedCall, now: float) -> None:
        """Count a call that ended ``now``."""
        slot = int(now / SLOT_S)
        if slot > self._slot:
            self._advance(slot)
        place = slot % SLOTS
        self.calls += 1
        self._total[place] += 1
        if call.outcome is _SUCCESS:
            return
        if call.is_failed:
            self.failed += 1
            self._failed[place] += 1
        self.refused += call.is_refused

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

    def count(self, call: RecordedCall, now: float) -> None:
        """Count a call that ended ``now``."""
        self.calls += 1
        if call.outcome is not _SUCCESS:
            self.failed += call.is_failed
            self.refused += call.is_refused
        self.last = now
        minute = int(now / 60.0)
        if minute != self.minute:
            self.before = self.now if minute == self.minute + 1 else 0
            self.now, self.minute = 0, minute
        self.now += 1

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

    def observe_tool(self, label: str, version: str | None, inner: CallObserver) -> CallObserver:
        """Return an observer of the calls of a tool that passes all events on to ``inner``."""
        known = self.tools.get((label, version))
        calls = self.tools[label, version] = ToolCalls(self, inner, label, version)
        if known is not None:  # the tool was removed and has returned
            calls.calls, calls.failed, calls.refused = known.calls, known.failed, known.refused
        return calls

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
            (self._unsent if call.attempt is None else self._failed).append(call)
        self._uncounted += 1
        if self._uncounted >= BATCH:
            self.count()
        self._listeners.publish(call)

    def count(self) -> None:
        """Count the calls that have ended since the last time. perf: in batches, which cost half of a count at each end."""
        uncounted, self._uncounted = self._uncounted, 0
        users = self.users
        for call in islice(self._calls, len(self._calls) - uncounted, None):
            now = call.started + call.duration
            call.calls.count(call, now)
            its = users.get(call.user)
            if its is None:
                its = users[call.user] = UserCalls()
                if len(users) > MAX_USERS:
                    users.popitem(last=False)
            else:
                users.move_to_end(call.user)
            its.count(call, now)

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
