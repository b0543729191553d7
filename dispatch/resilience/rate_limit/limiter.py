"""The rate limiter of one tool: at once when there is room and nobody waits, else a bounded fair wait, or a refusal at once.

A call that has to wait goes through two places. While its user's own bucket is full it stands in that user's line, where
it is in nobody's way. Then it has a turn in the fair queue of all users in front of the tool's bucket. Both buckets are
filled at the same moment, when it goes: rights to go that were kept while waiting for another would add up to a burst.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dispatch._internal.permit import Clock, Rejection
from dispatch.errors import Outcome
from dispatch.resilience.rate_limit.leaky_bucket import Bucket
from dispatch.resilience.rate_limit.weighted_fair_queue import WeightedFairQueue

MAX_QUEUE = 128
"""Calls that wait for the rate limits of one tool, of all users. At 100 calls a second this is 1.28 s of calls, about the
default of ``max-wait``, which is the limit that users set: the queue bounds only memory. One user alone gets half of it."""
STEP_S = 1e-6
"""Two times that differ by less are the same: sums of floats and the turns of a timer are no more exact."""

BY_TOOL = "rate-limit"
"""Who refuses: the limit over all users …"""
BY_USER = "user-rate-limit"
"""… or the user's own."""

_REJECTED = Outcome.REJECTED  # to look a member up costs as much as all the rest of finishing


class RatePermit(msgspec.Struct, gc=False, eq=False):
    """A call may go. What it filled stays filled unless it is given back. Nothing holds on to it but its caller."""

    _limiter: RateLimiter | None
    _user: str
    _own: Bucket | None
    _cost: float
    _at: float

    def finish(self, outcome: Outcome, *, retry_after: float | None = None) -> None:
        """See :class:`dispatch._internal.permit.Permit`. REJECTED gives back; whatever else became of the call, it was made.

        THROTTLED does not, and ``retry_after`` stops nobody here: it is one instance that asked to be left alone, and the
        breakers see to it.
        """
        if outcome is _REJECTED:
            self.give_back()
        else:
            self._limiter = None

    def give_back(self) -> None:
        """The call was not made: others may go in its place. Does nothing after the first time, or after ``finish``."""
        limiter = self._limiter
        if limiter is not None:
            self._limiter = None
            limiter._returned(self._user, self._own, self._cost, self._at)


class Waiter:
    """A call that waits. ``answer`` is None until the limiter has decided.

    Attributes:
        answer: the permit, or why it may not go after all.
        tag: whatever its owner wants to find again (a future).
    """

    __slots__ = ("_number", "answer", "cost", "deadline", "give_up_at", "tag", "user")

    def __init__(self, user: str, cost: float, deadline: float, give_up_at: float, number: int) -> None:
        self.user = user
        self.cost = cost
        self.deadline = deadline
        self.give_up_at = give_up_at
        self._number = number
        self.answer: RatePermit | Rejection | None = None
        self.tag: Any = None


class _Line:
    """One user's calls that wait, for the user's own bucket (``waiters``) or in the fair queue (``placed``)."""

    __slots__ = ("cost", "due", "placed", "placed_cost", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.cost = 0.0  # of all
        self.placed = 0
        self.placed_cost = 0.0
        self.due: tuple[float, int, str] | None = None  # when the first of ``waiters`` can go there


class RateLimiter:
    """Lets calls through at a rate. No loop, no timer: whoever owns it calls :meth:`turn` at :meth:`next_at`.
    ``granted`` counts permits, ``returned`` those given back, ``refused`` calls refused at once or after a wait. So
    ``granted - returned`` is the number of calls that went: exactly and always, as ``waiting`` is of those that wait.

    Args:
        clock: seconds.
        bucket: all users' together; None: no limit there.
        users: one user's bucket at a time (:meth:`Users.get`); None: no limit there.
        max_queue: calls that wait at most.
        max_wait: seconds that a call waits at most.
        weights: shares of users; 1 for those not named.
        stirred: called when somebody who waits may be able to go sooner than ``next_at`` said.
    """

    __slots__ = (
        *("_bucket", "_due", "_expiries", "_lines", "_max_wait", "_number", "_queue", "_stirred", "_turns", "_users"),
        *("clock", "granted", "refused", "returned"),
    )

    def __init__(
        self,
        clock: Clock,
        *,
        bucket: Bucket | None = None,
        users: Callable[[str, float], Bucket] | None = None,
        max_queue: int = MAX_QUEUE,
        max_wait: float = 1.0,
        weights: Mapping[str, float] | None = None,
        stirred: Callable[[], object] = lambda: None,
    ) -> None:
        self.clock = clock
        self._bucket = bucket
        self._users = users
        self._max_wait = max_wait
        self._stirred = stirred
        self._queue: WeightedFairQueue[Waiter] = WeightedFairQueue(max_queue, dict(weights or {}))
        self._turns = self._queue.turns  # empty when nobody waits for the tool's bucket
        self._lines: dict[str, _Line] = {}
        self._due: list[tuple[float, int, str]] = []  # lines by when their first waiter finds room
        self._expiries: list[tuple[float, int, Waiter]] = []  # everybody by when they give up
        self._number = 0
        self.granted = 0
        self.returned = 0
        self.refused = 0

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return len(self._expiries)

    def admit(self, user: str, deadline: float, cost: float = 1.0) -> RatePermit | Waiter | Rejection:
        """May a call of ``user`` go?

        Args:
            user: whose.
            deadline: when, on the clock, its answer is no use any more.
            cost: how many calls it counts as; above 0.

        Returns:
            A permit; or a waiter, which a later ``turn`` answers; or a rejection, whose ``retry_after`` is how long the
            call would have had to wait if nobody else came, all ahead of it in fair order counted. That is exact; when
            calls ahead also wait for their users' own buckets, it can be less.

        Raises:
            ValueError: the cost is not above 0.
        """
        if not cost > 0.0:
            raise ValueError(f"a call costs more than nothing, not {cost!r}")
        now = self.clock()
        bucket, own = self._bucket, None
        if self._users is None and bucket is not None:  # what most tools with a limit have
            room = not self._turns and bucket.take(cost, now)
        else:
            own = self._users(user, now) if self._users is not None else None
            room = not self._turns and user not in self._lines and self._fill(own, cost, now)
        if room:
            self.granted += 1
            return RatePermit(self, user, own, cost, now)
        return self._wait(user, own, cost, now, deadline)

    def leave(self, waiter: Waiter) -> None:
        """Its caller has gone. It leaves at once, with all it has here; a permit that it was just given goes back."""
        if isinstance(waiter.answer, RatePermit):
            waiter.answer.give_back()
        elif waiter.answer is None:
            self._remove(waiter)
            waiter.answer = Rejection("rate-limit", "left")
            if self._expiries:
                self._stirred()

    def turn(self) -> list[Waiter]:
        """Let go who can go now, refuse whose time is up. Those answered, in the order in which they go."""
        now = self.clock()
        answered: list[Waiter] = []
        while self._due and self._due[0][0] <= now:
            self._place(self._due[0][2], now)
        while (head := self._queue.head()) is not None:
            waiter, cost = head
            if waiter.deadline <= now:  # this turn comes late; who has merely waited for long may still go
                answered.append(self._give_up(waiter, now))
                continue
            own = self._users(waiter.user, now) if self._users is not None else None
            if own is not None and own.wait(cost, now) > 0.0:
                self._back(waiter.user, now)  # another tool's call of the same user has filled it meanwhile
            elif self._fill(own, cost, now):
                self._queue.take()
                self._gone(waiter, placed=True)
                waiter.answer = self._grant(waiter.user, own, cost, now)
                answered.append(waiter)
            else:
                break
        while self._expiries and self._expiries[0][0] <= now:
            answered.append(self._give_up(self._expiries[0][2], now))
        return answered

    def next_at(self) -> float | None:
        """When the next ``turn`` is due; None when nobody waits."""
        if not self._expiries:
            return None
        at = self._expiries[0][0]
        if self._due:
            at = min(at, self._due[0][0])
        head = self._queue.head()
        if head is not None:
            now = self.clock()
            # A head that finds room is one whom rounding kept back: soon, not now, or this could go on for ever.
            wait = 0.0 if self._bucket is None else self._bucket.wait(head[1], now)
            at = min(at, now + max(wait, STEP_S))
        return at

    def refuse_all(self, reason: str) -> list[Waiter]:
        """Refuse everybody who waits, because the limiter ends. They, in the order in which they would have given up."""
        answered = [waiter for _, _, waiter in self._expiries]
        for waiter in answered:
            self._remove(waiter)
            waiter.answer = self._refuse(reason, None)
        return answered

    def _grant(self, user: str, own: Bucket | None, cost: float, now: float) -> RatePermit:
        self.granted += 1
        return RatePermit(self, user, own, cost, now)

    def _give_up(self, waiter: Waiter, now: float) -> Waiter:
        self._remove(waiter)
        own = self._users(waiter.user, now) if self._users is not None else None
        waiter.answer = self._refuse("too-late", *self._estimate(waiter.user, own, waiter.cost, now))
        return waiter

    def _refuse(self, reason: str, retry_after: float | None, by: str = BY_TOOL) -> Rejection:
        self.refused += 1
        return Rejection(by, reason, retry_after)

    def _returned(self, user: str, own: Bucket | None, cost: float, at: float) -> None:
        now = self.clock()
        self.returned += 1
        if self._bucket is not None:
            self._bucket.give_back(cost, at, now)
        if own is not None:
            own.give_back(cost, at, now)
        if self._expiries:
            if user in self._lines:
                self._place(user, now)
            self._stirred()

    def _fill(self, own: Bucket | None, cost: float, now: float) -> bool:
        """Pour the cost into both buckets, or into neither."""
        bucket = self._bucket
        if own is None:
            return bucket is None or bucket.take(cost, now)
        if bucket is None:
            return own.take(cost, now)
        if own.wait(cost, now) > 0.0 or not bucket.take(cost, now):
            return False
        if own.take(cost, now):
            return True
        bucket.give_back(cost, now, now)
        return False

    def _wait(self, user: str, own: Bucket | None, cost: float, now: float, deadline: float) -> Waiter | Rejection:
        bucket = self._bucket
        if (bucket is not None and cost > bucket.burst) or (own is not None and cost > own.burst):
            return self._refuse("too-large", None, BY_USER if own is not None and cost > own.burst else BY_TOOL)
        estimate, by = self._estimate(user, own, cost, now)
        if estimate > self._max_wait + STEP_S or now + estimate >= deadline:
            return self._refuse("too-late", estimate, by)
        if not self._queue.reserve(user):
            return self._refuse("queue-full", estimate, by)
        self._number += 1
        give_up_at = min(deadline, now + self._max_wait + 10 * STEP_S)
        waiter = Waiter(user, cost, deadline, give_up_at, self._number)
        insort(self._expiries, (waiter.give_up_at, waiter._number, waiter))
        if own is None:
            self._queue.place(user, waiter, cost)
        else:
            line = self._lines.setdefault(user, _Line())
            line.waiters[waiter] = None
            line.cost += cost
            if line.due is None:
                self._place(user, now)
        return waiter

    def _estimate(self, user: str, own: Bucket | None, cost: float, now: float) -> tuple[float, str]:
        """How long until it would go, and whose rate that is for."""
        wait, by = 0.0, BY_TOOL
        if self._bucket is not None:
            wait = self._bucket.wait(self._queue.ahead(user, cost) + cost, now)
        if own is not None:
            line = self._lines.get(user)
            mine = own.wait(cost if line is None else line.cost + cost, now)
            if mine > wait:
                wait, by = mine, BY_USER
        return wait, by

    def _place(self, user: str, now: float) -> None:
        """Move who finds room in the user's own bucket to the fair queue; note when the next one will."""
        assert self._users is not None
        line = self._lines[user]
        self._undue(line)
        own = self._users(user, now)
        moved = False
        while line.waiters:
            waiter = next(iter(line.waiters))
            wait = own.wait(line.placed_cost + waiter.cost, now)
            if wait > 0.0:
                # A user may wait at several tools for one bucket: who has just been served lets the others go first.
                line.due = (now + max(wait, STEP_S) + (2 * STEP_S if moved else 0.0), waiter._number, user)
                insort(self._due, line.due)
                return
            moved = True
            del line.waiters[waiter]
            line.placed += 1
            line.placed_cost += waiter.cost
            self._queue.place(user, waiter, waiter.cost)

    def _back(self, user: str, now: float) -> None:
        """From the fair queue to the front of the user's line."""
        line = self._lines[user]
        line.waiters = OrderedDict.fromkeys([*self._queue.unplace(user), *line.waiters])
        line.placed = 0
        line.placed_cost = 0.0
        self._place(user, now)

    def _undue(self, line: _Line) -> None:
        if line.due is not None:
            del self._due[bisect_left(self._due, line.due)]
            line.due = None

    def _remove(self, waiter: Waiter) -> None:
        """Somebody leaves without having gone; those behind move up."""
        placed = self._queue.remove(waiter.user, waiter)
        if not placed:
            self._queue.release(waiter.user)
        self._gone(waiter, placed=placed)
        if waiter.user in self._lines:
            self._place(waiter.user, self.clock())

    def _gone(self, waiter: Waiter, *, placed: bool) -> None:
        """Out of everything but the fair queue, which it has left already."""
        del self._expiries[bisect_left(self._expiries, (waiter.give_up_at, waiter._number))]
        line = self._lines.get(waiter.user)
        if line is None:
            return
        line.cost -= waiter.cost
        if placed:
            line.placed -= 1
            line.placed_cost = line.placed_cost - waiter.cost if line.placed else 0.0
        else:
            del line.waiters[waiter]
        if not line.placed and not line.waiters:
            self._undue(line)
            del self._lines[waiter.user]
