"""Rate limits on an event loop: aiolimiter's bucket for each tool and each user, one timer a tool, one future a wait.

The rules are those of :mod:`dispatch.resilience.rate_limit.limiter`; this module adds what they need of a loop. Nothing is
bound to a loop before its first use: a dispatcher that is made at import, or used again after its loop has ended, works on
the loop that runs then.
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
from dispatch.resilience.rate_limit.leaky_bucket import NEVER, Both, Bucket, LeakyBucket
from dispatch.resilience.rate_limit.limiter import MAX_QUEUE, RateLimiter, RatePermit, Waiter
from dispatch.resilience.rate_limit.user_buckets import MAX_USERS, UserBuckets

AMPLE = 0.5
"""The part of a bucket up to which it is not worth asking aiolimiter: no rounding makes half full of full."""

_ENDED = object()
_WAITS = "aiolimiter waits although it said that there is room"


class LimiterBucket(LeakyBucket):
    """aiolimiter's :class:`AsyncLimiter` as a bucket. What comes has to fit into it; nobody ever waits inside, where others
    could overtake him and nothing is bounded.

    It does not say when there will be room, and takes nothing back. So what should be in it is reckoned beside it. While
    that is so little that no rounding could make a refusal of it (:data:`AMPLE`), the reckoning alone decides; above it an
    AsyncLimiter is filled to that level and asked each time, and a new one when something was given back or its loop has
    ended.

    Args:
        burst: see :class:`LeakyBucket`.
        per_second: likewise.
        empty_at: likewise, on the loop's clock.
    """

    __slots__ = ("_ample", "_limiter", "_loop")

    def __init__(self, burst: float, per_second: float, empty_at: float = NEVER) -> None:
        super().__init__(burst, per_second, empty_at)
        self._ample = burst * AMPLE
        self._limiter: AsyncLimiter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self, cost: float, now: float) -> bool:
        fits = LeakyBucket.take(self, cost, now)
        if fits and self._level < self._ample:
            self._limiter = None
            return True
        limiter = self._limiter
        if limiter is None or self._loop is not get_running_loop():
            limiter = self._filled(now, cost if fits else 0.0)
            fits = fits or LeakyBucket.take(self, cost, now)
        if not fits:
            return False
        # It reads the clock itself, and later: when another thread had the interpreter in between, it may be fuller by far.
        if limiter.has_capacity(cost):
            _at_once(limiter.acquire(cost))
            return True
        LeakyBucket.give_back(self, cost, now, now)
        return False

    def give_back(self, cost: float, taken_at: float, now: float) -> None:
        super().give_back(cost, taken_at, now)
        self._limiter = None

    def _filled(self, now: float, taken: float) -> AsyncLimiter:
        """One that holds what this bucket held before ``taken`` was."""
        self._loop = get_running_loop()
        # Another loop's clock may have begun elsewhere: never fuller than full, and from now on by this one.
        self._level = min(self.burst, self.level(now))
        self._at = now
        made = self._limiter = AsyncLimiter(self.burst, self.burst / self.per_second)
        _at_once(made.acquire(max(0.0, self._level - taken)))
        return made


def _at_once(step: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that has nothing to wait for.

    Raises:
        RuntimeError: it has.
    """
    if next(step.__await__(), _ENDED) is not _ENDED:  # cheaper than send(), which raises to say that it has ended
        step.close()
        raise RuntimeError(_WAITS)


def user_buckets(rate: RateLimit, most: int = MAX_USERS) -> UserBuckets[LimiterBucket]:
    """One bucket a user, for one tool or (given to several :class:`RateLimits`) for all tools together.

    Args:
        rate: of each user.
        most: users remembered at most.
    """
    burst, per_second = rate.capacity, rate.per_second
    return UserBuckets(lambda empty_at: LimiterBucket(burst, per_second, empty_at), most)


class RateLimits:
    """The rate limits of one tool.

    Args:
        rate: all users' together, and how they share it; None: no limit.
        user_rate: each user's at this tool; None: no limit.
        everywhere: each user's at all tools that are given the same; None: no limit.
        shared_rate: the rate that ``everywhere`` was made of.
        max_queue: calls that wait at most.

    The users' weights are those of the first of ``rate``, ``user_rate`` and ``shared_rate`` that is
    given; nobody waits for longer than any of them allows. With ``everywhere`` alone it is as the defaults say. Calls of one
    user at several tools that wait for his bucket ``everywhere`` take turns; one that finds room at its own tool at once may
    go before them.
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
            users=_joined(here, everywhere),
            max_queue=max_queue,
            max_wait=min(each.max_wait for each in (rate, user_rate, shared_rate, ruling) if each is not None),
            weights=dict(ruling.weights),
            stirred=self._turn,
        )
        """The rules and their figures: ``granted``, ``returned``, ``refused``, ``waiting``."""

    def admit(self, user: str, deadline: float, cost: float = 1.0) -> RatePermit | Waiter | Rejection:
        """:meth:`RateLimiter.admit` on the running loop's clock. Who gets a :class:`Waiter` must :meth:`wait` for it."""
        loop = get_running_loop()
        if loop is not self._loop:
            self._bind(loop)
        answer = self.limiter.admit(user, deadline, cost)
        if type(answer) is Waiter:
            answer.tag = loop.create_future()
            self._arm()
        return answer

    async def wait(self, waiter: Waiter) -> RatePermit | Rejection:
        """Wait for the answer. A caller who is cancelled leaves nothing behind, even if he is given a permit just then."""
        try:
            await waiter.tag
        except asyncio.CancelledError:
            self.leave(waiter)
            raise
        answer = waiter.answer
        assert answer is not None
        return answer

    def leave(self, waiter: Waiter) -> None:
        """Do not wait, or no longer. A permit that was given just then goes back."""
        self.limiter.leave(waiter)
        if not self.limiter.waiting:
            self._disarm()

    async def acquire(self, user: str, deadline: float, cost: float = 1.0) -> RatePermit | Rejection:
        """:meth:`admit`, and :meth:`wait` if it takes a wait."""
        answer = self.admit(user, deadline, cost)
        return await self.wait(answer) if type(answer) is Waiter else answer  # type: ignore[return-value]

    def close(self, reason: str = "closing") -> None:
        """Refuse all who wait. Those who come later are served: whoever closes lets nobody in."""
        self._disarm()
        _wake(self.limiter.refuse_all(reason))

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.limiter.clock = loop_clock()
        # Whoever waited on the former loop will never wake: it has ended, with its timer.
        self._disarm()
        self.limiter.refuse_all("loop-ended")

    def _turn(self) -> None:
        self._disarm()
        _wake(self.limiter.turn())
        self._arm()

    def _arm(self) -> None:
        at = self.limiter.next_at()
        timer = self._timer
        if at is None or (timer is not None and timer.when() <= at):
            return  # a timer that comes too soon looks again
        if timer is not None:
            timer.cancel()
        assert self._loop is not None
        self._timer = self._loop.call_at(at, self._turn)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _wake(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        if not waiter.tag.done():  # cancelled, and its task will say so when it runs
            waiter.tag.set_result(None)


def _joined(
    here: UserBuckets[LimiterBucket] | None, everywhere: UserBuckets[LimiterBucket] | None
) -> Callable[[str, float], Bucket] | None:
    if here is None:
        return None if everywhere is None else everywhere.get
    if everywhere is None:
        return here.get
    one, other = here.get, everywhere.get
    return lambda user, now: Both(one(user, now), other(user, now))
