"""The bulkhead against the plainest model of itself: any order of calls, cancellations, and changes of settings.

The law that peers broke: what was granted and not given back is what is in flight, whoever is cancelled when.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch._internal.permit import Rejection
from dispatch.errors import Outcome
from dispatch.policy.bulkhead import Bulkhead
from dispatch.resilience.bulkhead.bulkhead import (
    MARGIN,
    RECENT,
    RESERVE,
    BulkheadGuard,
    BulkheadPermit,
    BulkheadWaiter,
    QueueLimits,
)
from tests.helpers.state_machine_settings import machine

NAMES = ("interactive", "batch", "night")
HELD = {Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS, Outcome.TIMEOUT, Outcome.TRANSPORT}


class Caller:
    """One that waits, as the model has it."""

    def __init__(self, name: str | None, since: float, deadline: float | None, longest: float) -> None:
        self.name = name
        self.since = since
        self.deadline = deadline
        self.expires = since + longest if deadline is None else min(since + longest, deadline)
        self.gone = False
        self.answer: Any = None
        self.waiter: BulkheadWaiter | None = None

    def decide(self, answer: BulkheadPermit | Rejection) -> bool:
        assert self.answer is None, "told twice"
        self.answer = answer
        return not self.gone


class BulkheadMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.settings = Bulkhead(max_concurrent_calls=2, priorities=NAMES[:2])
        self.limits = QueueLimits(max_length=3, overload_after=0.5)
        self.guard = BulkheadGuard(self.settings, lambda: self.now, self.limits)
        self.held: list[tuple[BulkheadPermit, float]] = []
        self.line: list[Caller] = []
        """In order of arrival."""
        self.expected: list[tuple[Caller, str]] = []
        """Who must have been told what: ``place`` or the reason of a rejection."""
        self.since = 0.0
        self.mean: float | None = None

    # --- the model ---------------------------------------------------------------------------------------------

    def _rank(self, caller: Caller) -> int:
        names = self.settings.priorities
        if caller.name is None:
            return 0
        return names.index(caller.name) if caller.name in names else len(names) - 1

    def _overload(self) -> bool:
        return bool(self.line) and self.now - self.since >= self.limits.overload_after

    def _order(self) -> list[Caller]:
        """The line, in the order in which it would be served."""
        arrived = list(enumerate(self.line))
        sign = -1 if self._overload() else 1
        return [caller for _, caller in sorted(arrived, key=lambda each: (self._rank(each[1]), sign * each[0]))]

    def _tell(self, caller: Caller, what: str) -> None:
        self.line.remove(caller)
        self.expected.append((caller, what))

    def _expire(self) -> None:
        for caller in sorted(self.line, key=lambda each: each.expires):
            if caller.expires <= self.now:
                self._tell(caller, "too-late" if caller.deadline == caller.expires else "too-long")

    def _grant_permits(self) -> None:
        self._expire()
        served, free = False, self.settings.max_concurrent_calls - len(self.held)
        while free > 0 and self.line:
            caller = self._order()[0]
            self._tell(caller, "place")
            if not caller.gone:
                free -= 1
                served = True
        if served and self.mean is not None:
            age = max(self.limits.shed_after, RESERVE * self.mean / self.settings.max_concurrent_calls)
            while self._overload() and (old := [each for each in self.line if self.now - each.since >= age]):
                self._tell(old[0], "overload")

    def _answered(self) -> None:
        """Everyone was told what the model says, and nobody else anything."""
        for caller, what in self.expected:
            if what == "place":
                assert isinstance(caller.answer, BulkheadPermit)
                if caller.gone:
                    caller.answer.finish(Outcome.SUCCESS)  # must change nothing
                else:
                    self.held.append((caller.answer, self.now))
            else:
                assert isinstance(caller.answer, Rejection)
                assert caller.answer.reason == what
        self.expected = []
        assert all(caller.answer is None for caller in self.line)

    # --- what may happen ---------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.03125, 0.125, 0.5, 0.75]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_timer_goes_off(self) -> None:
        self._expire()
        self.guard.expire(self.now)
        self._answered()

    @rule()
    def admit(self) -> None:
        answer = self.guard.admit()
        if len(self.held) < self.settings.max_concurrent_calls:
            assert isinstance(answer, BulkheadPermit)
            self.held.append((answer, self.now))
        else:
            wait = None if self.mean is None else (len(self.line) + 1) * self.mean / self.settings.max_concurrent_calls
            assert answer == Rejection("bulkhead", "full", wait)

    @rule(left=st.sampled_from([None, None, 0.0, 0.25, 0.5, 1.0, 2.0]), name=st.sampled_from([None, *NAMES]))
    def enqueue(self, left: float | None, name: str | None) -> None:
        limit = self.settings.max_concurrent_calls
        caller = Caller(name, self.now, None if left is None else self.now + left, self.settings.max_wait)
        order = self._order()
        want: str | None = None
        if len(self.held) >= limit:
            rank = self._rank(caller)
            newest = self._overload()
            first = [each for each in order if self._rank(each) < rank or (self._rank(each) == rank and not newest)]
            wait = 0.0 if self.mean is None else (len(first) + 0.5) * self.mean / limit
            room = len(order) < self.limits.max_length
            if left is not None and (left <= 0 or wait > left):
                want = "too-late"
            elif wait > MARGIN * self.settings.max_wait:
                want = "too-long"
            elif not room and (not order or order[-1] in first):
                want = "queue-full"
            else:
                if not room:
                    self._tell(order[-1], "queue-full")
                if not self.line:
                    self.since = self.now
        answer = self.guard.enqueue(caller.decide, deadline=caller.deadline, priority=name)
        if len(self.held) < limit:
            assert isinstance(answer, BulkheadPermit)
            self.held.append((answer, self.now))
        elif want is not None:
            assert isinstance(answer, Rejection)
            assert answer.reason == want
        else:
            assert isinstance(answer, BulkheadWaiter)
            assert answer.expires == caller.expires
            caller.waiter = answer
            self.line.append(caller)
        self._answered()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.SUCCESS, *Outcome]))
    def finish(self, data: Any, outcome: Outcome) -> None:
        permit, since = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if outcome in HELD:
            took = self.now - since
            self.mean = took if self.mean is None else self.mean + RECENT * (took - self.mean)
        self._grant_permits()
        permit.finish(outcome)
        permit.finish(outcome)
        self._answered()

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def cancel_wait(self, data: Any) -> None:
        caller = self.line.pop(data.draw(st.integers(0, len(self.line) - 1)))
        assert caller.waiter is not None
        assert self.guard.cancel_wait(caller.waiter)
        assert not self.guard.cancel_wait(caller.waiter)

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def be_cancelled_without_a_word(self, data: Any) -> None:
        self.line[data.draw(st.integers(0, len(self.line) - 1))].gone = True

    @rule(
        concurrency=st.integers(1, 3),
        longest=st.sampled_from([0.5, 1.0]),
        names=st.permutations(NAMES).flatmap(lambda names: st.integers(1, 3).map(lambda n: tuple(names[:n]))),
    )
    def reconfigure(self, concurrency: int, longest: float, names: tuple[str, ...]) -> None:
        before = self.settings.priorities
        for caller in self.line:
            rank = self._rank(caller)
            caller.name = before[rank] if rank or before[0] in names else None
        self.settings = msgspec.structs.replace(
            self.settings,
            max_concurrent_calls=concurrency,
            max_wait=longest,
            priorities=names,
        )
        self._grant_permits()
        self.guard.reconfigure(self.settings)
        self._answered()

    @invariant()
    def the_books_are_right(self) -> None:
        guard = self.guard
        assert guard.granted - guard.released == guard.in_flight == len(self.held)
        assert guard.waiting == len(self.line) <= self.limits.max_length
        assert guard.is_overloaded == self._overload()
        assert guard.service_s == self.mean
        assert guard.next_expiry() == min((caller.expires for caller in self.line), default=None)
        assert not self.line or len(self.held) >= self.settings.max_concurrent_calls, "nobody waits beside a free place"
        assert len(guard._queue._expiries) < 40


TestBulkheadMachine = BulkheadMachine.TestCase
TestBulkheadMachine.settings = machine(150, 40)
