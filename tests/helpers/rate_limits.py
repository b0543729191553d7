"""Rate limits on the virtual clock, and their figures."""

from __future__ import annotations

from dispatch.policy import RateLimit
from dispatch.resilience.aio import AsyncRateLimiter
from tests.helpers.clock import virtual_loop

FAR = 1e9


def now() -> float:
    return virtual_loop().time()


def limits(
    rate: str | None = "8/s", user_rate: str | None = None, *, burst: float = 1, max_queue: int = 1000, **more: object
) -> AsyncRateLimiter:
    """Limits with a burst of one and a long queue."""
    settings = {"burst": burst, "max_wait": 100.0, **more}
    return AsyncRateLimiter(
        None if rate is None else RateLimit(rate, **settings),  # type: ignore[arg-type]
        None if user_rate is None else RateLimit(user_rate, **settings),  # type: ignore[arg-type]
        max_queue=max_queue,
    )


def figures(made: AsyncRateLimiter) -> tuple[int, int, int, int]:
    limiter = made.limiter
    return limiter.granted, limiter.returned, limiter.refused, limiter.waiting
