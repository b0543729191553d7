"""The asyncio adapter of :mod:`dispatch.resilience.rate_limit.limiter`: one timer per tool, one future per wait.

The buckets are aiolimiter's. No object is bound to an event loop before its first use: a dispatcher that is constructed at
import, or used again after its loop has ended, works on the loop that runs then.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine
from typing import Any

from aiolimiter import AsyncLimiter

from dispatch._internal.clock import loop_clock
from dispatch._internal.permit import Rejection
from dispatch.policy.rate_limit import RateLimit
from dispatch.resilience.rate_limit.leaky_bucket import NEVER, Bucket, CombinedBucket, LeakyBucket
from dispatch.resilience.rate_limit.limiter import MAX_QUEUE, RateLimiter, RatePermit, Waiter
from dispatch.resilience.rate_limit.user_buckets import MAX_USERS, UserBuckets

AMPLE = 0.5
"""Share of a bucket up to which aiolimiter is not asked: rounding cannot make a half-full bucket full."""

_ENDED = object()
_WAITS = "aiolimiter waits although it reported capacity"


class LimiterBucket(LeakyBucket):
    """aiolimiter's :class:`AsyncLimiter` as a bucket. A cost is added only if it fits: no call waits inside AsyncLimiter,
    whose waits are unordered and unbounded.

    AsyncLimiter does not report when capacity will be available, and cannot return a cost. So the level is also computed
    beside it. Up to :data:`AMPLE`, where rounding cannot cause a rejection, the computed level alone decides; above it an
    AsyncLimiter is filled to that level and asked for each cost. It is replaced when a cost was returned or its loop has
    ended.

    Args:
        burst: see :class:`LeakyBucket`.
        per_second: see :class:`LeakyBucket`.
        empty_at: see :class:`LeakyBucket`; on the loop's clock.
    """

    __slots__ = ("_ample", "_limiter", "_loop")

    def __init__(self, burst: float, per_second: float, empty_at: float = NEVER) -> None:
        super().__init__(burst, per_second, empty_at)
        self._ample = burst * AMPLE
        self._limiter: AsyncLimiter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def try_add(self, cost: float, now: float) -> bool:
        fits = LeakyBucket.try_add(self, cost, now)
        if fits and self._level < self._ample:
            self._limiter = None
            return True
        limiter = self._limiter
        if limiter is None or self._loop is not get_running_loop():
            limiter = self._filled(now, cost if fits else 0.0)
            fits = fits or LeakyBucket.try_add(self, cost, now)
        if not fits:
            return False
        # AsyncLimiter reads the clock itself, and later: its level may differ if another thread ran in between.
        if limiter.has_capacity(cost):
            _run_without_wait(limiter.acquire(cost))
            return True
        LeakyBucket.give_back(self, cost, now, now)
        return False

    def give_back(self, cost: float, added_at: float, now: float) -> None:
        super().give_back(cost, added_at, now)
        self._limiter = None

    def _filled(self, now: float, added: float) -> AsyncLimiter:
        """Return an AsyncLimiter at the level of this bucket before ``added`` was added."""
        self._loop = get_running_loop()
        # The clock of another loop may have another origin: at most full, and from now on by this clock.
        self._level = min(self.burst, self.level(now))
        self._at = now
        made = self._limiter = AsyncLimiter(self.burst, self.burst / self.per_second)
        _run_without_wait(made.acquire(max(0.0, self._level - added)))
        return made


def _run_without_wait(step: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that does not suspend.

    Raises:
        RuntimeError: it suspends.
    """
    if next(step.__await__(), _ENDED) is not _ENDED:  # cheaper than send(), which raises StopIteration
        step.close()
        raise RuntimeError(_WAITS)


def user_buckets(rate: RateLimit, most: int = MAX_USERS) -> UserBuckets[LimiterBucket]:
    """One bucket a user, for one tool or (given to several :class:`AsyncRateLimiter`) for all tools together.

    Args:
        rate: of each user.
        most: maximum number of users.
    """
    burst, per_second = rate.capacity, rate.per_second
    return UserBuckets(lambda empty_at: LimiterBucket(burst, per_second, empty_at), most)


class AsyncRateLimiter:
    """The rate limits of one tool.

    Args:
        rate: of all users together, with their weights; None: no limit.
        user_rate: of each user at this tool; None: no limit.
        everywhere: the buckets of each user, shared by several tools; None: no limit.
        shared_rate: the rate of the buckets ``everywhere``.
        max_queue: maximum number of waiting calls.

    The users' weights are those of the first of ``rate``, ``user_rate`` and ``shared_rate`` that is given; ``max_wait`` is
    the shortest of all. Calls of one user that wait at several tools for the user's bucket ``everywhere`` are served in
    turn; a call that is admitted at its tool at once may overtake them.
    """

    def __init__(
        self,
        rate: RateLimit | None = None,
        user_rate: RateLimit | None = None,
        *,
        everywhere: UserBuckets[LimiterBucket] | None = None,
        shared_rate: RateLimit | None = None,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        ruling = rate or user_rate or shared_rate or RateLimit("1/s")
        here = user_buckets(user_rate) if user_rate is not None else None
        self.limiter = RateLimiter(
            time.monotonic,
            bucket=LimiterBucket(rate.capacity, rate.per_second) if rate is not None else None,
            users=_combine(here, everywhere),
            max_queue=max_queue,
            max_wait=min(each.max_wait for each in (rate, user_rate, shared_rate, ruling) if each is not None),
            weights=dict(ruling.weights),
            on_earlier=self._admit_waiters,
        )
        """The sans-I/O core and its counters: ``granted``, ``returned``, ``refused``, ``waiting``."""

    def admit(self, user: str, deadline: float, cost: float = 1.0) -> RatePermit | Waiter | Rejection:
        """:meth:`RateLimiter.admit` on the running loop's clock. A returned :class:`Waiter` is passed to :meth:`wait`."""
        loop = get_running_loop()
        if loop is not self._loop:
            self._bind(loop)
        answer = self.limiter.admit(user, deadline, cost)
        if type(answer) is Waiter:
            answer.tag = loop.create_future()
            self._set_timer()
        return answer

    async def wait(self, waiter: Waiter) -> RatePermit | Rejection:
        """Wait for the decision. If the caller is cancelled, its waiter is removed, and a permit granted meanwhile is
        returned."""
        try:
            await waiter.tag
        except asyncio.CancelledError:
            self.leave(waiter)
            raise
        answer = waiter.answer
        assert answer is not None
        return answer

    def leave(self, waiter: Waiter) -> None:
        """Cancel a wait. A permit granted meanwhile is returned."""
        self.limiter.leave(waiter)
        if not self.limiter.waiting:
            self._cancel_timer()

    async def acquire(self, user: str, deadline: float, cost: float = 1.0) -> RatePermit | Rejection:
        """:meth:`admit`, and :meth:`wait` for a waiter."""
        answer = self.admit(user, deadline, cost)
        return await self.wait(answer) if type(answer) is Waiter else answer  # type: ignore[return-value]

    def close(self, reason: str = "closing") -> None:
        """Reject all waiting calls. Later calls are admitted: the owner must not make any."""
        self._cancel_timer()
        _wake(self.limiter.refuse_all(reason))

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.limiter.clock = loop_clock()
        # The former loop has ended with its timer, so that its waiters will never wake.
        self._cancel_timer()
        self.limiter.refuse_all("loop-ended")

    def _admit_waiters(self) -> None:
        self._cancel_timer()
        _wake(self.limiter.admit_waiters())
        self._set_timer()

    def _set_timer(self) -> None:
        at = self.limiter.next_at()
        timer = self._timer
        if at is None or (timer is not None and timer.when() <= at):
            return  # a timer that fires too early is set again
        if timer is not None:
            timer.cancel()
        assert self._loop is not None
        self._timer = self._loop.call_at(at, self._admit_waiters)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _wake(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        if not waiter.tag.done():  # done: cancelled
            waiter.tag.set_result(None)


def _combine(
    here: UserBuckets[LimiterBucket] | None, everywhere: UserBuckets[LimiterBucket] | None
) -> Callable[[str, float], Bucket] | None:
    if here is None:
        return None if everywhere is None else everywhere.get
    if everywhere is None:
        return here.get
    one, other = here.get, everywhere.get
    return lambda user, now: CombinedBucket(one(user, now), other(user, now))
