"""What guards do when it matters, ours beside other libraries': one number each, looked at, not timed.

Ours is always the whole dispatcher. The others get what is called as a function. What each one may do is written out in
docs/explanation/goals.md.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.micro.guard_libraries import (
    BREAKERS,
    BULKHEADS,
    FAILURES,
    FOREVER,
    OPEN_S,
    PLACES,
    RETRIES,
    Guarded,
    Service,
)
from benchmarks.micro.guard_stacks import Call, package
from dispatch.policy import RateLimit
from dispatch.resilience.rate_limit.async_rate_limiter import AsyncRateLimiter

HERD = 200
OLD = 3
"""Successes that come late: as many as any of them wants before it closes."""
REFUSALS = 20_000
WAITERS = 2_000
WEEK_S = 604_800
"""The longest that a policy takes."""


@dataclass(frozen=True)
class Seen:
    """What was seen, and whether it is what one wants."""

    value: float
    ok: bool


@dataclass(frozen=True)
class Behaviour:
    """One thing to look at.

    Attributes:
        name: for JSON.
        title, wanted: for tables.
        libraries: who is looked at, and how.
    """

    name: str
    title: str
    wanted: str
    libraries: Mapping[str, Callable[[], Awaitable[Seen]]]


# -- breakers -------------------------------------------------------------------------------------------------------


async def _fails(call: Call) -> bool:
    try:
        await call()
    except Exception:
        return True
    return False


async def _opened(service: Service, call: Call) -> None:
    service.sick = True
    for _ in range(2 * FAILURES):
        await _fails(call)
    reached = service.requests
    await _fails(call)
    assert service.requests == reached, "the breaker did not open"


async def _leave(tasks: list[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _begun(call: Call, count: int = 1) -> list[asyncio.Task[object]]:
    async def one() -> object:
        return await call()

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    for _ in range(20):
        await asyncio.sleep(0)
    return tasks


async def _herd(guarded: Guarded) -> Seen:
    async with guarded() as (service, call):
        await call()
        await _opened(service, call)
        await asyncio.sleep(1.2 * OPEN_S)
        before = service.requests
        service.silent = True
        tasks = await _begun(call, HERD)
        service.silent = False
        service.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        reached = service.requests - before
        return Seen(reached, 0 < reached <= 3)


async def _stale(guarded: Guarded) -> Seen:
    async with guarded() as (service, call):
        await call()
        service.silent = True
        old = await _begun(call, OLD)  # while it is closed
        service.silent = False
        await _opened(service, call)
        await asyncio.sleep(1.2 * OPEN_S)
        service.silent = True
        probe = await _begun(call)  # now it is half-open
        service.sick = False
        service.release(OLD)
        await asyncio.gather(*old)  # successes that were admitted before the trouble
        service.sick, service.silent = True, False
        service.release()
        await asyncio.gather(*probe, return_exceptions=True)  # the probe says that it is as sick as before
        before = service.requests
        for _ in range(10):
            await _fails(call)
        let = service.requests - before
        return Seen(let, let == 0)


async def _lost_probe(guarded: Guarded) -> Seen:
    async with guarded() as (service, call):
        await call()
        await _opened(service, call)
        await asyncio.sleep(1.2 * OPEN_S)
        service.sick, service.silent = False, True
        await _leave(await _begun(call))  # the probe's caller has gone
        service.silent = False
        service.release()
        failed = sum([await _fails(call) for _ in range(10)])
        return Seen(10 - failed, failed == 0)


async def _cancelled(guarded: Guarded) -> Seen:
    async with guarded() as (service, call):
        await call()
        service.silent = True
        await _leave(await _begun(call, 2 * FAILURES))
        service.silent = False
        service.release()
        failed = sum([await _fails(call) for _ in range(10)])
        return Seen(failed, failed == 0)


async def _retained(guarded: Guarded) -> Seen:
    async with guarded() as (service, call):
        await call()
        # Open for as long as it takes.
        await _opened(service, call)
        for _ in range(100):
            await _fails(call)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        reached = service.requests
        for _ in range(REFUSALS):
            await _fails(call)
        refused = REFUSALS - (service.requests - reached)
        gc.collect()
        grown = max(0, tracemalloc.get_traced_memory()[0] - before)
        tracemalloc.stop()
        return Seen(grown / max(1, refused), grown < 64 * 1024)


# -- bulkheads, retries, rates --------------------------------------------------------------------------------------


async def _free(guarded: Guarded) -> Seen:
    """Fill the places and a line, let the line leave and then the first; how many get in at once after that?"""
    async with guarded() as (service, call):
        await call()
        service.silent = True
        inside = await _begun(call, PLACES)
        await _leave(await _begun(call, PLACES))
        await _leave(inside)
        before = service.requests
        again = await _begun(call, 2 * PLACES)
        reached = service.requests - before
        await _leave(again)
        return Seen(reached, reached == PLACES)


async def _amplified(guarded: Guarded) -> Seen:
    calls = 1_000
    async with guarded() as (service, call):
        service.sick = True
        for _ in range(calls):
            await _fails(call)
        sent = service.requests / calls
        return Seen(sent, sent <= 1.2 + 30 / calls)  # the budget's floor: 3/s over its window of 10 s


async def _aiolimiter_left() -> Seen:
    limiter = package("aiolimiter").AsyncLimiter(1, 3600.0)
    await limiter.acquire()
    await _leave(await _begun(limiter.acquire, WAITERS))
    left = len(limiter._waiters)
    return Seen(left, left == 0)


async def _ours_left() -> Seen:
    limits = AsyncRateLimiter(RateLimit("1/s", burst=1, max_wait=WEEK_S), max_queue=2 * WAITERS)
    deadline = asyncio.get_running_loop().time() + WEEK_S
    await limits.acquire("", deadline)
    # One user has half of the queue at most.
    tasks = await _begun(lambda: limits.acquire("", deadline), WAITERS)
    assert limits.limiter.waiting == WAITERS, "all of them wait"
    await _leave(tasks)
    return Seen(limits.limiter.waiting, limits.limiter.waiting == 0)


def _each(look: Callable[[Guarded], Awaitable[Seen]], guarded: Mapping[str, Guarded]) -> Mapping[str, Any]:
    def bound(one: Guarded) -> Callable[[], Awaitable[Seen]]:
        return lambda: look(one)

    return {library: bound(one) for library, one in guarded.items()}


BEHAVIOURS = (
    Behaviour(
        "herd",
        f"Half-open, {HERD} callers at once, a sick service",
        "how many reach it (3 at most)",
        _each(_herd, BREAKERS),
    ),
    Behaviour(
        "stale",
        f"Half-open: {OLD} successes admitted before the trouble arrive, then the probe fails",
        "how many of 10 calls then reach the sick service (0)",
        _each(_stale, BREAKERS),
    ),
    Behaviour(
        "lost-probe",
        "The caller of the probe leaves; the service is well",
        "how many of 10 calls get through (10)",
        _each(_lost_probe, BREAKERS),
    ),
    Behaviour(
        "cancelled",
        f"{2 * FAILURES} callers leave before their answers; the service is well",
        "how many of 10 calls are refused (0)",
        _each(_cancelled, BREAKERS),
    ),
    Behaviour("retained", f"{REFUSALS:,} refusals while open", "bytes kept of each (0)", _each(_retained, FOREVER)),
    Behaviour(
        "places",
        f"A bulkhead of {PLACES}: those in line leave, then those inside",
        f"places left ({PLACES})",
        _each(_free, BULKHEADS),
    ),
    Behaviour(
        "amplification",
        "1,000 calls, every one fails, 3 attempts",
        "requests for each call (1.23 at most)",
        _each(_amplified, RETRIES),
    ),
    Behaviour(
        "waiters",
        f"{WAITERS:,} callers leave a rate limit's line",
        "how many it still holds (0)",
        {"dispatch": _ours_left, "aiolimiter": _aiolimiter_left},
    ),
)
