"""The bulkhead against the plainest model of itself: any order of calls, cancellations, and changes of settings.

The law that peers broke: what was granted and not given back is what is in flight, whoever is cancelled when.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead
from dispatch.resilience.bulkhead import (
    DEADLINE_MARGIN,
    INTERVALS,
    LEAST_S,
    MARGIN,
    RECENT,
    RESERVE,
    STALLED_AFTER,
    STALLED_LEAST_S,
    BulkheadGuard,
    BulkheadPermit,
    BulkheadWaiter,
    QueueLimits,
)
from tests.helpers.state_machine_settings import machine

NAMES = ("interactive", "batch", "night")
ANSWERED = {Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS}
HELD = {*ANSWERED, Outcome.TIMEOUT, Outcome.TRANSPORT}
NEVER = float("inf")


class Caller:
    """One that waits, as the model has it."""

    def __init__(
        self, name: str | None, user: str, since: float, deadline: float | None, longest: float | None
    ) -> None:
        self.name = name
        self.user = user
        self.since = since
        self.deadline = NEVER if deadline is None else deadline
        self.latest = NEVER if longest is None else since + longest
        self.due = 0.0
        """When it is next asked whether its time has ended."""
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
        self.limits = QueueLimits(max_length=4, interval_s=0.125)
        self.guard = BulkheadGuard(self.settings, lambda: self.now, self.limits)
        self.held: list[tuple[BulkheadPermit, float]] = []
        self.line: list[Caller] = []
        """In order of arrival."""
        self.turns: list[tuple[int, str]] = []
        """Rank and user of those who wait, the next first."""
        self.longest: dict[int, str] = {}
        """User of the longest line by rank, when a caller was last added to it."""
        self.expected: list[tuple[Caller, str]] = []
        """Who must have been told what: ``place`` or the reason of a rejection."""
        self.mean: float | None = None
        self.answer: float | None = None
        self.spread = 0.0
        self.granted_at = self.now
        self.since, self.arrived, self.served = 0.0, 0, 0
        self.count: int | None = None
        """Of bad intervals; None: the first is not complete."""
        self.stands = False

    # --- the model ---------------------------------------------------------------------------------------------

    def _rank(self, caller: Caller) -> int:
        names = self.settings.priorities
        if caller.name is None:
            return 0
        return names.index(caller.name) if caller.name in names else len(names) - 1

    def _overload(self) -> bool:
        return bool(self.line) and self.stands

    def _usual(self) -> float:
        return max(LEAST_S, self.answer + self.spread if self.answer is not None else self.mean or 0.0)

    def _expiry(self, caller: Caller) -> float:
        if caller.latest < NEVER:
            return min(caller.latest, caller.deadline)
        if not self.held:  # the place that became free is this caller's
            return caller.deadline - self._usual()
        return min(caller.deadline - self._usual(), (caller.deadline + self.granted_at) / 2)

    def _of(self, rank: int, user: str | None = None) -> list[Caller]:
        """Those who wait with that rank, of one user or of all, in the order in which one user's are served."""
        found = [each for each in self.line if self._rank(each) == rank and user in (None, each.user)]
        return found[::-1] if self._overload() else found

    def _next(self) -> Caller:
        rank, user = min(self.turns, key=lambda turn: turn[0])
        return self._of(rank, user)[0]

    def _join(self, caller: Caller) -> None:
        self.line.append(caller)
        rank = self._rank(caller)
        if (rank, caller.user) not in self.turns:
            self.turns.append((rank, caller.user))
        if len(self._of(rank, caller.user)) >= len(self._of(rank, self.longest.get(rank, "no user"))):
            self.longest[rank] = caller.user

    def _leave(self, caller: Caller) -> None:
        self.line.remove(caller)
        if not self._of(self._rank(caller), caller.user):
            self.turns.remove((self._rank(caller), caller.user))

    def _displaced(self, caller: Caller) -> Caller | None:
        """Return the caller that a newcomer displaces from a full queue; None: there is none."""
        rank = self._rank(caller)
        least = max((self._rank(each) for each in self.line), default=-1)
        if least < rank:
            return None
        line = self._of(least, self.longest.get(least))
        if least > rank:
            return (line or self._of(least))[-1]
        if len(line) > len(self._of(rank, caller.user)) + 1:
            return line[-1]
        return self._of(rank)[-1] if self._overload() else None

    def _tell(self, caller: Caller, what: str) -> None:
        self._leave(caller)
        self.expected.append((caller, what))

    def _expire(self) -> None:
        for caller in sorted(self.line, key=lambda each: each.due):
            if caller.due <= self.now:
                caller.due = self._expiry(caller)
                if caller.due <= self.now:
                    self._tell(caller, "too-long" if caller.latest < caller.deadline else "too-late")

    def _review(self) -> None:
        self.served += 1
        limits = self.limits
        if self.served < limits.interval_rounds * self.settings.max_concurrent_calls:
            return
        if self.now - self.since < limits.interval_s:
            return
        if self.count is None:
            self.count = 0
        else:
            self.count = min(INTERVALS, self.count + 1) if self.arrived > self.served else max(0, self.count - 1)
        if self.count in (0, INTERVALS):
            self.stands = self.count > 0
        self.since, self.arrived, self.served = self.now, 0, 0

    def _grant_permits(self) -> None:
        self._expire()
        served, free = False, self.settings.max_concurrent_calls - len(self.held)
        while free > 0 and self.line:
            caller = self._next()
            turn = (self._rank(caller), caller.user)
            self.turns.remove(turn)
            self.turns.append(turn)
            if self.settings.max_wait is None and caller.deadline - self._usual() <= self.now:
                self._tell(caller, "too-late")
                continue
            self._tell(caller, "place")
            self.granted_at = self.now
            if not caller.gone:
                free -= 1
                served = True
                self._review()
        if served and self.mean is not None:
            age = max(self.limits.shed_after, self.mean, RESERVE * self.mean / self.settings.max_concurrent_calls)
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
            self.granted_at = self.now
        else:
            wait = None if self.mean is None else (len(self.line) + 1) * self.mean / self.settings.max_concurrent_calls
            assert answer == Rejection("bulkhead", "full", wait)

    @rule(
        left=st.sampled_from([None, None, 0.0, 0.25, 0.5, 1.0, 2.0]),
        name=st.sampled_from([None, *NAMES]),
        user=st.sampled_from(["", "a", "b"]),
    )
    def enqueue(self, left: float | None, name: str | None, user: str) -> None:
        limit = self.settings.max_concurrent_calls
        caller = Caller(name, user, self.now, None if left is None else self.now + left, self.settings.max_wait)
        want: str | None = None
        if len(self.held) >= limit:
            rank = self._rank(caller)
            mine = 0 if self._overload() else len(self._of(rank, user))
            others = len({each.user for each in self._of(rank)} - {user})
            first = min(len(self._of(rank)), mine + (mine + 1) * others)
            first += sum(self._rank(each) < rank for each in self.line)
            wait = 0.0 if self.mean is None else (first + 0.5) * self.mean / limit
            room = len(self.line) < self.limits.max_length
            loser = None if room else self._displaced(caller)
            want = self._refusal(wait, left)
            if want is not None:
                pass
            elif not room and loser is None:
                want = "queue-full"
            else:
                if loser is not None:
                    self._tell(loser, "queue-full")
                if not self.line:
                    self.since, self.arrived, self.served = self.now, 0, 0
                    self.count, self.stands = None, False
                caller.due = self._expiry(caller)
        answer = self.guard.enqueue(caller.decide, user=user, deadline=caller.deadline, priority=name)
        if len(self.held) < limit:
            assert isinstance(answer, BulkheadPermit)
            self.held.append((answer, self.now))
            self.granted_at = self.now
        elif want is not None:
            assert isinstance(answer, Rejection)
            assert answer.reason == want
        else:
            assert isinstance(answer, BulkheadWaiter)
            assert answer.expires == caller.due
            caller.waiter = answer
            self._join(caller)
        self._answered()

    def _refusal(self, wait: float, left: float | None) -> str | None:
        if left is not None and left <= 0:
            return "too-late"
        self.arrived += 1
        longest, usual = self.settings.max_wait, self._usual()
        if longest is not None:
            return "too-late" if left is not None and wait > left else "too-long" if wait > MARGIN * longest else None
        if self.mean is None:
            return None
        if left is not None and wait > DEADLINE_MARGIN * (self.now + left - self.now - usual):
            return "too-late"
        is_stalled = self.now - self.granted_at > max(STALLED_LEAST_S, STALLED_AFTER * usual)
        return "stalled" if is_stalled else None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.SUCCESS, *Outcome]))
    def finish(self, data: Any, outcome: Outcome) -> None:
        permit, since = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if outcome in HELD:
            took = self.now - since
            self.mean = took if self.mean is None else self.mean + RECENT * (took - self.mean)
        if outcome in ANSWERED:
            if self.answer is None:
                self.answer = took
            else:
                error = took - self.answer
                self.answer += RECENT * error
                self.spread += RECENT * (abs(error) - self.spread)
        self._grant_permits()
        permit.finish(outcome)
        permit.finish(outcome)
        self._answered()

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def cancel_wait(self, data: Any) -> None:
        caller = data.draw(st.sampled_from(self.line))
        self._leave(caller)
        assert caller.waiter is not None
        assert self.guard.cancel_wait(caller.waiter)
        assert not self.guard.cancel_wait(caller.waiter)

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def be_cancelled_without_a_word(self, data: Any) -> None:
        self.line[data.draw(st.integers(0, len(self.line) - 1))].gone = True

    @rule(
        concurrency=st.integers(1, 3),
        longest=st.sampled_from([0.5, 1.0, None]),
        names=st.permutations(NAMES).flatmap(lambda names: st.integers(1, 3).map(lambda n: tuple(names[:n]))),
    )
    def reconfigure(self, concurrency: int, longest: float | None, names: tuple[str, ...]) -> None:
        before, line = self.settings.priorities, self.line
        for caller in line:
            rank = self._rank(caller)
            caller.name = before[rank] if rank or before[0] in names else None
        self.settings = msgspec.structs.replace(
            self.settings, max_concurrent_calls=concurrency, max_wait=longest, priorities=names
        )
        self.line, self.turns, self.longest = [], [], {}
        for caller in line:
            self._join(caller)
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
        assert guard.next_expiry() == min((caller.due for caller in self.line), default=None)
        assert not self.line or len(self.held) >= self.settings.max_concurrent_calls, "nobody waits beside a free place"
        assert len(guard._queue._expiries) < 40


TestBulkheadMachine = pytest.mark.costly(BulkheadMachine.TestCase)
TestBulkheadMachine.settings = machine(50, 40)
