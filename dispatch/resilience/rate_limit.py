"""Rate limits, with a fair queue and a bucket for each user."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from aiolimiter import AsyncLimiter

from dispatch._internal import Clock, Rejection
from dispatch.errors import Outcome

# Leaky bucket, the counter of a rate limit. Sans-I/O: the caller passes the time.


NEVER = float("-inf")
"""The infinite past."""


class Bucket(Protocol):
    """The interface of a bucket. Times are seconds on one monotonic clock; costs are in calls."""

    def try_add(self, cost: float, now: float) -> bool:
        """Add ``cost`` if it fits; return whether it did."""

    def give_back(self, cost: float, added_at: float, now: float) -> None:
        """Remove what remains of ``cost``, which was added at ``added_at``."""

    def time_until_fits(self, cost: float, now: float) -> float:
        """Return the seconds until ``cost`` fits if no other call is added; 0 if it fits now. A cost above the capacity
        stands for several calls, each added as soon as it fits: the result is the wait of the last."""


class LeakyBucket(AsyncLimiter):
    """aiolimiter's leaky bucket, which drains at ``per_second`` and holds ``burst`` (Turner 1986). In any ``t`` seconds, at
    most ``burst + per_second * t`` are added and not returned.

    aiolimiter's level and capacity decide. What it has no function for is added here, on its private level: the caller's
    time instead of an event loop's, the seconds until a cost fits, and the return of a cost. Its ``acquire`` is not used:
    calls that wait there are unordered and unbounded.

    perf: adding a cost takes 0.6 µs; with the level computed beside an AsyncLimiter it took 0.3 µs up to half of the bucket,
    where aiolimiter was not asked, and 2.2 µs above.

    Args:
        burst: capacity, in calls.
        per_second: drain rate, in calls per second.
        empty_at: when the initial content will have drained; at most the time of a full bucket from now.
    """

    __slots__ = ("_largest", "_least", "_low_at", "burst")

    def __init__(self, burst: float, per_second: float, empty_at: float = NEVER) -> None:
        super().__init__(burst, burst / per_second)
        self.burst = burst
        self._level = burst
        self._last_check = empty_at - self.time_period
        self._largest = 0.0  # the largest cost so far
        self._low_at = NEVER  # when the level was last below the largest cost
        self._least = math.inf  # the lowest level that calls found since then, less what was returned since

    @property
    def empty_at(self) -> float:
        """When the bucket is or was empty."""
        return self._last_check + self._level / self._rate_per_sec

    def level(self, now: float) -> float:
        """Return the level, in calls."""
        if now < self._last_check:
            self._last_check = now  # the clock of another loop, with another origin
        level = self._level - (now - self._last_check) * self._rate_per_sec
        return level if level > 0.0 else 0.0

    def _leak(self) -> None:
        """Do nothing: :meth:`try_add` has drained the bucket, at the caller's time instead of an event loop's."""

    def try_add(self, cost: float, now: float) -> bool:
        level = self._level
        if now > self._last_check:  # perf: as level(), without a call of it
            level -= (now - self._last_check) * self._rate_per_sec
            self._level = level = level if level > 0.0 else 0.0
        self._last_check = now
        if not self.has_capacity(cost):
            return False
        self._level = level + cost
        if cost > self._largest:
            self._largest = cost
            level = min(level, self._least)
        if level < self._largest:
            self._low_at = now
            self._least = math.inf
        elif level < self._least:
            self._least = level
        return True

    def give_back(self, cost: float, added_at: float, now: float) -> None:
        # Without the call the level would be lower by its cost, or by the lowest level since if that is less: what drained
        # while the bucket held nothing else must not be returned, or it would be granted twice. While the level never fell
        # below the largest cost, the whole cost is returned. Otherwise all that has drained since is attributed to this
        # call, which never returns too much.
        level = self.level(now)
        if self._low_at > added_at:
            cost -= (now - added_at) * self._rate_per_sec
        if cost > level:
            cost = level
        if cost > 0.0:
            self._level = level - cost
            self._last_check = now
            self._least -= cost
            if self._least < self._largest:
                self._low_at = now
                self._least = math.inf

    def time_until_fits(self, cost: float, now: float) -> float:
        excess = self.level(now) + cost - self.burst
        return excess / self._rate_per_sec if excess > 0.0 else 0.0


class CombinedBucket:
    """Two buckets as one: a cost fits if it fits into both."""

    __slots__ = ("_one", "_other")

    def __init__(self, one: Bucket, other: Bucket) -> None:
        self._one = one
        self._other = other

    def try_add(self, cost: float, now: float) -> bool:
        if self._other.time_until_fits(cost, now) > 0.0 or not self._one.try_add(cost, now):
            return False
        if self._other.try_add(cost, now):
            return True
        self._one.give_back(cost, now, now)
        return False

    def give_back(self, cost: float, added_at: float, now: float) -> None:
        self._one.give_back(cost, added_at, now)
        self._other.give_back(cost, added_at, now)

    def time_until_fits(self, cost: float, now: float) -> float:
        return max(self._one.time_until_fits(cost, now), self._other.time_until_fits(cost, now))


# The queue of the calls that wait: bounded, weighted and fair. Each flow gets its weighted share of the service, whatever
# other flows add.
#
# Self-clocked fair queueing (Golestani 1994): each item has a virtual finish time, at which it would be done if all flows
# were served in parallel at the rate of their weights; the lowest is served first. So an item waits only for the share of
# other flows. All items have the same size.
#
# Slots are allocated by a dynamic threshold (Choudhury and Hahne 1998): a flow may have as many items as there are free
# slots. One flow alone gets half of the queue, nine greedy flows get a tenth each, and one tenth stays free for the next.


T = TypeVar("T")


class Flow(Generic[T]):
    """One flow: ``places`` reserved slots, of which those of ``items`` have a turn each. Turns belong to the flow, not to
    its items: when an item is removed, the later items of its flow move up."""

    __slots__ = ("items", "name", "places", "slots", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.places = 0
        self.items: OrderedDict[T, None] = OrderedDict()
        self.slots: deque[tuple[float, int]] = deque()


class WeightedFairQueue(Generic[T]):
    """A queue of items, in flows with weights.

    An item that counts before it may be served reserves its slot (``reserve``) and gets its turn later (``place``);
    ``unplace`` withdraws the turns and keeps the slots.

    Adding and removing take O(log n) comparisons and move at most n pointers: microseconds for 10,000 items.

    Args:
        max_items: maximum number of items.
        weights: of flows; 1 for flows that are not named.
    """

    __slots__ = ("_flows", "_number", "_time", "_weights", "max_items", "places", "turns")

    def __init__(self, max_items: int, weights: dict[str, float] | None = None) -> None:
        self.max_items = max_items
        self.places = 0
        """Reserved slots, with or without a turn."""
        self.turns: list[tuple[float, int, Flow[T]]] = []
        """All turns in order of service: virtual time, unique number, flow. Read-only."""
        self._flows: dict[str, Flow[T]] = {}
        self._weights = weights or {}
        self._number = 0
        self._time = 0.0

    def reserve(self, flow: str) -> bool:
        """Reserve a slot. False if ``flow`` has reached its threshold."""
        free = self.max_items - self.places
        known = self._flows.get(flow)
        if free <= (0 if known is None else known.places):
            return False
        if known is None:
            known = self._flows[flow] = Flow(flow, self._weights.get(flow, 1.0))
        known.places += 1
        self.places += 1
        return True

    def release(self, flow: str) -> None:
        """Release a slot without a turn."""
        known = self._flows[flow]
        known.places -= 1
        self.places -= 1
        if not known.places:
            del self._flows[flow]

    def place(self, flow: str, item: T) -> None:
        """Assign ``item`` a turn in a reserved slot, at the end of its flow."""
        known = self._flows[flow]
        known.items[item] = None
        slot = self._finish(known, known.weight), self._number
        self._number += 1
        insort(self.turns, (*slot, known))
        known.slots.append(slot)

    def head(self) -> T | None:
        """Return the next item without removing it; None when there is none."""
        return next(iter(self.turns[0][2].items)) if self.turns else None

    def pop(self) -> T | None:
        """Remove and return the next item; None when there is none."""
        if not self.turns:
            return None
        time, _, flow = self.turns.pop(0)
        flow.slots.popleft()
        item, _ = flow.items.popitem(last=False)
        self.release(flow.name)
        # An empty queue has no order to keep: a reset keeps the numbers small.
        self._time = time if self.turns else 0.0
        return item

    def remove(self, flow: str, item: T) -> bool:
        """Remove ``item`` and its slot; the later items of its flow move up. False: it has no turn (any more)."""
        known = self._flows.get(flow)
        if known is None or item not in known.items:
            return False
        del known.items[item]
        self._drop(known.slots.pop())  # of the flow's turns, the last one is free
        self.release(flow)
        return True

    def unplace(self, flow: str) -> list[T]:
        """Withdraw all turns of ``flow`` and keep its slots. Returns the items in order."""
        known = self._flows[flow]
        while known.slots:
            self._drop(known.slots.pop())
        items = list(known.items)
        known.items.clear()
        return items

    def ahead(self, flow: str) -> int:
        """Return the number of items that would be served before one that is added to ``flow`` now."""
        if not self.turns:
            return 0
        finish = self._finish(self._flows.get(flow), self._weights.get(flow, 1.0))
        return bisect_right(self.turns, (finish, math.inf))

    def _finish(self, known: Flow[T] | None, weight: float) -> float:
        """Return the virtual time of the next turn of a flow."""
        start = known.slots[-1][0] if known is not None and known.slots else self._time
        return start + 1.0 / weight

    def _drop(self, slot: tuple[float, int]) -> None:
        del self.turns[bisect_left(self.turns, slot)]


# The rate limiter of one tool: immediate admission, a bounded fair wait, or immediate rejection. Sans-I/O.
#
# A waiting call passes two queues. While its user's own bucket is full, it waits in the queue of that user, where it delays
# no other user. Then it waits in the fair queue of all users in front of the tool's bucket. Both buckets are filled at the
# same moment, when the call is admitted: permits that were acquired early, during another wait, would accumulate to a
# burst.


MAX_QUEUE = 128
"""Calls that wait for the rate limits of one tool, of all users. At 100 calls a second this is 1.28 s of calls, about the
default of ``max-wait``, which is the limit that users set: the queue bounds only memory. One user alone gets half of it."""
STEP_S = 1e-6
"""Times that differ by less are equal: sums of floats and timers are not more accurate."""

BY_TOOL = "rate-limit"
"""``by`` of a rejection by the tool's limit."""
BY_USER = "user-rate-limit"
"""``by`` of a rejection by the user's limit."""
REPLACED = "replaced"
"""``reason`` of the rejection of a waiting call that is to be admitted by another limiter."""

_REJECTED = Outcome.REJECTED  # access to the member of an enumeration costs as much as the rest of finish()


class RatePermit(msgspec.Struct, gc=False, eq=False):
    """The permit of one call, which stays in the buckets unless it is returned. Only its caller refers to it, so that it
    needs no garbage collection."""

    _limiter: RateLimiter | None
    _user: str
    _own: Bucket | None
    _at: float

    def finish(self, outcome: Outcome, *, retry_after: float | None = None) -> None:
        """Record the outcome; see :mod:`dispatch._internal`. REJECTED returns the call; after any other
        outcome it was made.

        THROTTLED returns nothing, and ``retry_after`` is ignored: one instance asked for a pause, which the breakers apply.
        """
        if outcome is _REJECTED:
            self.give_back()
        else:
            self._limiter = None

    def give_back(self) -> None:
        """Remove a call that was not made from the buckets. Does nothing a second time, or after ``finish``."""
        limiter = self._limiter
        if limiter is not None:
            self._limiter = None
            limiter._record_return(self._user, self._own, self._at)


class Waiter(msgspec.Struct, eq=False):
    """A waiting call.

    Attributes:
        number: in order of arrival.
        answer: the permit or the rejection; None until the limiter has decided.
        tag: any object of the caller (a future).
    """

    user: str
    deadline: float
    give_up_at: float
    number: int
    answer: RatePermit | Rejection | None = None
    tag: Any = None


class _UserQueue(msgspec.Struct, eq=False):
    """The waiting calls of one user.

    Attributes:
        waiters: for the user's own bucket.
        placed: number of those in the fair queue.
        due: when the first of ``waiters`` can move there.
    """

    waiters: OrderedDict[Waiter, None]
    placed: int = 0
    due: tuple[float, int, str] | None = None


class RateLimiter:
    """Admits calls at a rate. It has no timer: its owner calls :meth:`admit_waiters` at :meth:`next_at`.

    ``granted`` counts permits, ``returned`` the permits that were returned, ``refused`` the calls that were rejected at once
    or after a wait. ``granted - returned`` is always the exact number of calls made.

    Args:
        clock: seconds.
        bucket: of all users together; None: no limit.
        users: returns the bucket of a user (:meth:`UserBuckets.get`); None: no limit.
        max_queue: maximum number of waiting calls.
        max_wait: maximum wait of a call, in seconds.
        weights: shares of users; 1 for users that are not named.
        on_earlier: called when a waiting call may be admitted earlier than ``next_at`` returned.
    """

    __slots__ = (
        *(
            "_bucket",
            "_due",
            "_expiries",
            "_user_queues",
            "_max_wait",
            "_number",
            "_queue",
            "_on_earlier",
            "_turns",
            "_users",
        ),
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
        on_earlier: Callable[[], object] = lambda: None,
    ) -> None:
        self.clock = clock
        self._bucket = bucket
        self._users = users
        self._max_wait = max_wait
        self._on_earlier = on_earlier
        self._queue: WeightedFairQueue[Waiter] = WeightedFairQueue(max_queue, dict(weights or {}))
        self._turns = self._queue.turns  # empty when no call waits for the tool's bucket
        self._user_queues: dict[str, _UserQueue] = {}
        self._due: list[tuple[float, int, str]] = []  # user queues by when their first waiter can move
        self._expiries: list[tuple[float, int, Waiter]] = []  # all waiters by the end of their waiting time
        self._number = 0
        self.granted = 0
        self.returned = 0
        self.refused = 0

    @property
    def waiting(self) -> int:
        """Waiting calls."""
        return len(self._expiries)

    def admit(self, user: str, deadline: float) -> RatePermit | Waiter | Rejection:
        """Admit, queue or reject a call of ``user``.

        Args:
            user: on whose behalf the call is made.
            deadline: of the call, on the clock.

        Returns:
            A permit; or a waiter, which a later ``admit_waiters`` decides; or a rejection, whose ``retry_after`` is the wait
            that the call would have had without later calls, given the fair order. It is exact, except that it can be less
            when calls ahead also wait for their users' own buckets.
        """
        now = self.clock()
        bucket, own = self._bucket, None
        if self._users is None and bucket is not None:  # what most tools with a limit have
            room = not self._turns and bucket.try_add(1.0, now)
        else:
            own = self._users(user, now) if self._users is not None else None
            room = not self._turns and user not in self._user_queues and self._fill(own, now)
        if room:
            self.granted += 1
            return RatePermit(self, user, own, now)
        return self._enqueue(user, own, now, deadline)

    def leave(self, waiter: Waiter) -> None:
        """Remove the waiter of a cancelled caller; a permit that it has just received is returned."""
        if isinstance(waiter.answer, RatePermit):
            waiter.answer.give_back()
        elif waiter.answer is None:
            self._remove(waiter)
            waiter.answer = Rejection("rate-limit", "left")
            if self._expiries:
                self._on_earlier()

    def admit_waiters(self) -> list[Waiter]:
        """Admit the waiters that can be admitted now, and reject those whose waiting time has ended. Returns both in
        order."""
        now = self.clock()
        answered: list[Waiter] = []
        while self._due and self._due[0][0] <= now:
            self._place(self._due[0][2], now)
        while (waiter := self._queue.head()) is not None:
            if waiter.deadline <= now:  # the timer is late; after max_wait alone a waiter may still be admitted
                answered.append(self._give_up(waiter, now))
                continue
            own = self._users(waiter.user, now) if self._users is not None else None
            if own is not None and own.time_until_fits(1.0, now) > 0.0:
                self._unplace(waiter.user, now)  # a call of the same user at another tool has filled it meanwhile
            elif self._fill(own, now):
                self._queue.pop()
                self._forget(waiter, placed=True)
                self.granted += 1
                waiter.answer = RatePermit(self, waiter.user, own, now)
                answered.append(waiter)
            else:
                break
        while self._expiries and self._expiries[0][0] <= now:
            answered.append(self._give_up(self._expiries[0][2], now))
        return answered

    def next_at(self) -> float | None:
        """Return when the next ``admit_waiters`` is due; None when no call waits."""
        if not self._expiries:
            return None
        at = self._expiries[0][0]
        if self._due:
            at = min(at, self._due[0][0])
        if self._turns:
            now = self.clock()
            # A head that fits now was held back by rounding: soon, not now, or the timer would run in a busy loop.
            wait = 0.0 if self._bucket is None else self._bucket.time_until_fits(1.0, now)
            at = min(at, now + max(wait, STEP_S))
        return at

    def refuse_all(self, reason: str) -> list[Waiter]:
        """Reject all waiters. Returns them in the order of the end of their waiting time."""
        answered = [waiter for _, _, waiter in self._expiries]
        for waiter in answered:
            self._remove(waiter)
            waiter.answer = self._refuse(reason, None)
        return answered

    def _give_up(self, waiter: Waiter, now: float) -> Waiter:
        self._remove(waiter)
        own = self._users(waiter.user, now) if self._users is not None else None
        waiter.answer = self._refuse("too-late", *self._estimate(waiter.user, own, now))
        return waiter

    def _refuse(self, reason: str, retry_after: float | None, by: str = BY_TOOL) -> Rejection:
        self.refused += 1
        return Rejection(by, reason, retry_after)

    def _record_return(self, user: str, own: Bucket | None, at: float) -> None:
        now = self.clock()
        self.returned += 1
        if self._bucket is not None:
            self._bucket.give_back(1.0, at, now)
        if own is not None:
            own.give_back(1.0, at, now)
        if self._expiries:
            if user in self._user_queues:
                self._place(user, now)
            self._on_earlier()

    def _fill(self, own: Bucket | None, now: float) -> bool:
        """Add a call to both buckets, or to neither."""
        bucket = self._bucket
        if own is None:
            return bucket is None or bucket.try_add(1.0, now)
        if not own.try_add(1.0, now):
            return False
        if bucket is None or bucket.try_add(1.0, now):
            return True
        own.give_back(1.0, now, now)
        return False

    def _enqueue(self, user: str, own: Bucket | None, now: float, deadline: float) -> Waiter | Rejection:
        estimate, by = self._estimate(user, own, now)
        wait = self._adjust(estimate, by, user, own)
        if wait > self._max_wait + STEP_S or now + wait >= deadline:
            return self._refuse("too-late", estimate, by)
        if not self._queue.reserve(user):
            return self._refuse("queue-full", estimate, by)
        self._number += 1
        give_up_at = min(deadline, now + self._max_wait + 10 * STEP_S)
        waiter = Waiter(user, deadline, give_up_at, self._number)
        insort(self._expiries, (give_up_at, waiter.number, waiter))
        if own is None:
            self._queue.place(user, waiter)
        else:
            line = self._user_queues.setdefault(user, _UserQueue(OrderedDict()))
            line.waiters[waiter] = None
            if line.due is None:
                self._place(user, now)
        return waiter

    def _adjust(self, estimate: float, by: str, user: str, own: Bucket | None) -> float:
        """Return the wait that a call of ``user`` is to be queued for, if it can be admitted after it; here the estimate."""
        return estimate

    def _estimate(self, user: str, own: Bucket | None, now: float) -> tuple[float, str]:
        """Return the expected wait and the limit that causes it."""
        wait, by = 0.0, BY_TOOL
        if self._bucket is not None:
            wait = self._bucket.time_until_fits(self._queue.ahead(user) + 1.0, now)
        if own is not None:
            line = self._user_queues.get(user)
            mine = own.time_until_fits(1.0 if line is None else line.placed + len(line.waiters) + 1.0, now)
            if mine > wait:
                wait, by = mine, BY_USER
        return wait, by

    def _place(self, user: str, now: float) -> None:
        """Move the waiters that fit into the user's own bucket to the fair queue; note when the next one can move."""
        assert self._users is not None
        line = self._user_queues[user]
        self._clear_due(line)
        own = self._users(user, now)
        moved = False
        while line.waiters:
            waiter = next(iter(line.waiters))
            wait = own.time_until_fits(line.placed + 1.0, now)
            if wait > 0.0:
                # A user may wait at several tools for one bucket: the tool that was just served comes last.
                line.due = (now + max(wait, STEP_S) + (2 * STEP_S if moved else 0.0), waiter.number, user)
                insort(self._due, line.due)
                return
            moved = True
            del line.waiters[waiter]
            line.placed += 1
            self._queue.place(user, waiter)

    def _unplace(self, user: str, now: float) -> None:
        """Move waiters from the fair queue back to the front of the user's queue."""
        line = self._user_queues[user]
        line.waiters = OrderedDict.fromkeys([*self._queue.unplace(user), *line.waiters])
        line.placed = 0
        self._place(user, now)

    def _clear_due(self, line: _UserQueue) -> None:
        if line.due is not None:
            del self._due[bisect_left(self._due, line.due)]
            line.due = None

    def _remove(self, waiter: Waiter) -> None:
        """Remove a waiter that was not admitted; later ones move up."""
        placed = self._queue.remove(waiter.user, waiter)
        if not placed:
            self._queue.release(waiter.user)
        self._forget(waiter, placed=placed)
        if waiter.user in self._user_queues:
            self._place(waiter.user, self.clock())

    def _forget(self, waiter: Waiter, *, placed: bool) -> None:
        """Remove a waiter from all structures but the fair queue, from which it has been removed already."""
        del self._expiries[bisect_left(self._expiries, (waiter.give_up_at, waiter.number))]
        line = self._user_queues.get(waiter.user)
        if line is None:
            return
        if placed:
            line.placed -= 1
        else:
            del line.waiters[waiter]
        if not line.placed and not line.waiters:
            self._clear_due(line)
            del self._user_queues[waiter.user]


# One bucket per user in bounded memory: at the limit, the bucket with the lowest level is evicted, and a new user starts
# with the highest level evicted so far.
#
# This is the Space-Saving algorithm (Metwally, Agrawal and El Abbadi 2005) on leaky buckets. Evicting the least recently
# used bucket would grant a fresh burst to a returning user; one shared bucket for all users beyond the limit would let a
# flood of invented users block real ones. Here no user gains by eviction: a new user starts at least at the level of the
# evicted bucket, and levels only drain with time. New users start at zero as long as they make fewer calls together than
# all remembered users may make, because the lowest level has drained by then. Beyond that, new users share the rest.


B = TypeVar("B", bound=LeakyBucket)

MAX_USERS = 10_000
"""Users remembered for one limit: some megabytes."""
SCAN_LIMIT = 16
"""Buckets examined per eviction to find the lowest level, some ten microseconds; the order is updated only then. If it is
not found, the search continues with the next new user, and the limit is exceeded by one; when it is exceeded by one in this
many, the lowest of the examined buckets is evicted."""


class UserBuckets(Generic[B]):
    """The buckets of users.

    Args:
        make: makes a bucket that will be empty at the given time; a time in the past: an empty bucket.
        most: maximum number of users; exceeded by at most one in :data:`SCAN_LIMIT`.
    """

    __slots__ = ("_buckets", "_make", "_most", "_number", "_order", "floor")

    def __init__(self, make: Callable[[float], B], most: int = MAX_USERS) -> None:
        self._make = make
        self._most = most
        self._buckets: dict[str, B] = {}
        # For each user when its bucket will be empty, as of the last examination: later now, or earlier by a returned cost.
        self._order: list[tuple[float, int, str]] = []
        self._number = 0
        self.floor = NEVER
        """When the last of all evicted buckets will be empty: where the bucket of a new user starts."""

    def __len__(self) -> int:
        return len(self._buckets)

    def get(self, user: str, now: float) -> B:
        """Return the bucket of ``user``. Valid until the next ``get``, which may evict it."""
        bucket = self._buckets.get(user)
        return self._add(user, now) if bucket is None else bucket

    def _add(self, user: str, now: float) -> B:
        if len(self._buckets) >= self._most:
            self._evict(now)
        bucket = self._buckets[user] = self._make(self.floor)
        self._number += 1
        heappush(self._order, (bucket.empty_at, self._number, user))
        return bucket

    def _evict(self, now: float) -> None:
        seen: list[tuple[float, int, str]] = []
        found = False
        while not found and self._order and len(seen) < SCAN_LIMIT:
            then, number, user = heappop(self._order)
            empty_at = self._buckets[user].empty_at
            seen.append((empty_at, number, user))
            found = empty_at <= max(then, now)  # empty, or no later entry can be lower
        if found or len(self._buckets) >= self._most + self._most // SCAN_LIMIT:
            seen.sort()
            least, _, forgotten = seen.pop(0)
            self.floor = max(self.floor, least)
            del self._buckets[forgotten]
        for each in seen:
            heappush(self._order, each)
