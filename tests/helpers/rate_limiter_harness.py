"""A rate limiter with a clock that the test moves."""

from __future__ import annotations

import math

from dispatch._internal import Rejection
from dispatch.resilience.rate_limit import LeakyBucket, RateLimiter, RatePermit, UserBuckets, Waiter

NEVER = math.inf


class World:
    """A limiter with a clock that the test moves. Rates are calls a second; None: no such bucket."""

    def __init__(
        self,
        rate: float | None = 8.0,
        burst: float = 2.0,
        *,
        user_rate: float | None = None,
        user_burst: float = 2.0,
        queue: int = 100,
        max_wait: float = 100.0,
        **weights: float,
    ) -> None:
        self.now = 100.0
        self.on_earlier = 0
        self.bucket = None if rate is None else LeakyBucket(burst, rate)
        self.users: UserBuckets[LeakyBucket] | None = None
        if user_rate is not None:
            per_second = user_rate
            self.users = UserBuckets(lambda empty_at: LeakyBucket(user_burst, per_second, empty_at))
        self.limiter = RateLimiter(
            lambda: self.now,
            bucket=self.bucket,
            users=None if self.users is None else self.users.get,
            max_queue=queue,
            max_wait=max_wait,
            weights=weights,
            on_earlier=self.stir,
        )

    def stir(self) -> None:
        self.on_earlier += 1

    def admit(self, user: str = "ann", deadline: float = NEVER, cost: float = 1.0) -> RatePermit | Waiter | Rejection:
        return self.limiter.admit(user, deadline, cost)

    def permit(self, user: str = "ann", cost: float = 1.0) -> RatePermit:
        answer = self.admit(user, cost=cost)
        assert isinstance(answer, RatePermit)
        return answer

    def waiter(self, user: str = "ann", deadline: float = NEVER, cost: float = 1.0) -> Waiter:
        answer = self.admit(user, deadline, cost)
        assert isinstance(answer, Waiter)
        assert (answer.answer, answer.tag) == (None, None)
        return answer

    def refused(self, user: str = "ann", deadline: float = NEVER, cost: float = 1.0) -> Rejection:
        answer = self.admit(user, deadline, cost)
        assert isinstance(answer, Rejection)
        return answer

    def until(self, end: float = NEVER) -> list[tuple[float, Waiter]]:
        """Turn whenever it is due, up to ``end``; who was answered when."""
        answered = []
        while (at := self.limiter.next_at()) is not None and at <= end:
            assert at > self.now or self.limiter.next_at() == at
            self.now = max(self.now, at)
            answered += [(self.now, waiter) for waiter in self.limiter.admit_waiters()]
        self.now = max(self.now, end) if end is not NEVER else self.now
        return answered

    def times(self, end: float = NEVER) -> list[tuple[float, str]]:
        """When whose calls went, in seconds from the start and to the hundredth."""
        went = [(at, waiter) for at, waiter in self.until(end) if isinstance(waiter.answer, RatePermit)]
        return [(round(at - 100.0, 2), waiter.user) for at, waiter in went]

    def figures(self) -> tuple[int, int, int, int]:
        limiter = self.limiter
        return limiter.granted, limiter.returned, limiter.refused, limiter.waiting
