"""Behaviour of guards under failures, dispatch beside other libraries: one number each, not a time.

For dispatch it is the whole dispatcher; the other libraries call a function. docs/explanation/goals.md has the expected
values.
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
from dispatch.resilience.aio import AsyncRateLimiter

HERD = 200
OLD = 3
"""Late successes: enough to close the breaker of any of the libraries."""
REJECTIONS = 20_000
WAITERS = 2_000
WEEK_S = 604_800
"""The longest wait that a policy accepts."""


@dataclass(frozen=True)
class Seen:
    """An observed value; ``ok``: it is the expected one."""

    value: float
    ok: bool


@dataclass(frozen=True)
class Behaviour:
    """One observed behaviour.

    Attributes:
        name: for JSON.
        title, wanted: for tables.
        libraries: library → function that observes it.
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
    service.failing = True
    for _ in range(2 * FAILURES):
        await _fails(call)
    reached = service.requests
    await _fails(call)
    assert service.requests == reached, "the breaker did not open"


async def _cancel(tasks: list[asyncio.Task[object]]) -> None:
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
        service.failing = False
        service.release(OLD)
        await asyncio.gather(*old)  # successes that were admitted before the failures
        service.failing, service.silent = True, False
        service.release()
        await asyncio.gather(*probe, return_exceptions=True)  # the probe fails
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
        service.failing, service.silent = False, True
        await _cancel(await _begun(call))  # the probe's caller is cancelled
        service.silent = False
        service.release()
        failed = sum([await _fails(call) for _ in range(10)])
        return Seen(10 - failed, failed == 0)


async def _cancelled(guarded: Guarded) -> Seen:
    async with guarded() as (service, call):
        await call()
        service.silent = True
        await _cancel(await _begun(call, 2 * FAILURES))
        service.silent = False
        service.release()
        failed = sum([await _fails(call) for _ in range(10)])
        return Seen(failed, failed == 0)


async def _retained(guarded: Guarded) -> Seen:
    async with guarded() as (service, call):
        await call()
        await _opened(service, call)
        for _ in range(100):
            await _fails(call)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        reached = service.requests
        for _ in range(REJECTIONS):
            await _fails(call)
        rejected = REJECTIONS - (service.requests - reached)
        gc.collect()
        grown = max(0, tracemalloc.get_traced_memory()[0] - before)
        tracemalloc.stop()
        return Seen(grown / max(1, rejected), grown < 64 * 1024)


# -- bulkheads, retries, rates --------------------------------------------------------------------------------------


async def _free(guarded: Guarded) -> Seen:
    """Fill the permits and the queue, cancel the queue and then the holders of permits; count the calls admitted next."""
    async with guarded() as (service, call):
        await call()
        service.silent = True
        inside = await _begun(call, PLACES)
        await _cancel(await _begun(call, PLACES))
        await _cancel(inside)
        before = service.requests
        again = await _begun(call, 2 * PLACES)
        reached = service.requests - before
        await _cancel(again)
        return Seen(reached, reached == PLACES)


async def _amplified(guarded: Guarded) -> Seen:
    calls = 1_000
    async with guarded() as (service, call):
        service.failing = True
        for _ in range(calls):
            await _fails(call)
        sent = service.requests / calls
        return Seen(sent, sent <= 1.2 + 30 / calls)  # the budget's floor: 3/s over its window of 10 s


async def _aiolimiter_waiters() -> Seen:
    limiter = package("aiolimiter").AsyncLimiter(1, 3600.0)
    await limiter.acquire()
    await _cancel(await _begun(limiter.acquire, WAITERS))
    waiting = len(limiter._waiters)
    return Seen(waiting, waiting == 0)


async def _dispatch_waiters() -> Seen:
    limits = AsyncRateLimiter(RateLimit("1/s", burst=1, max_wait=WEEK_S), max_queue=2 * WAITERS)
    deadline = asyncio.get_running_loop().time() + WEEK_S
    await limits.acquire("", deadline)
    # One user has half of the queue at most.
    tasks = await _begun(lambda: limits.acquire("", deadline), WAITERS)
    assert limits.limiter.waiting == WAITERS, "all of them wait"
    await _cancel(tasks)
    return Seen(limits.limiter.waiting, limits.limiter.waiting == 0)


def _each(look: Callable[[Guarded], Awaitable[Seen]], guarded: Mapping[str, Guarded]) -> Mapping[str, Any]:
    def bound(one: Guarded) -> Callable[[], Awaitable[Seen]]:
        return lambda: look(one)

    return {library: bound(one) for library, one in guarded.items()}


BEHAVIOURS = (
    Behaviour(
        "herd",
        f"Half-open, {HERD} concurrent callers, a failing service",
        "calls that reach it (at most 3)",
        _each(_herd, BREAKERS),
    ),
    Behaviour(
        "stale",
        f"Half-open: {OLD} successes admitted before the failures arrive, then the probe fails",
        "of 10 calls after that, those that reach the failing service (0)",
        _each(_stale, BREAKERS),
    ),
    Behaviour(
        "lost-probe",
        "The caller of the probe is cancelled; the service is healthy",
        "of 10 calls, those that succeed (10)",
        _each(_lost_probe, BREAKERS),
    ),
    Behaviour(
        "cancelled",
        f"{2 * FAILURES} calls are cancelled before their replies; the service is healthy",
        "of 10 calls, those that are rejected (0)",
        _each(_cancelled, BREAKERS),
    ),
    Behaviour(
        "retained", f"{REJECTIONS:,} rejections while open", "bytes retained by each (0)", _each(_retained, FOREVER)
    ),
    Behaviour(
        "places",
        f"A bulkhead of {PLACES}: the queued calls are cancelled, then those in flight",
        f"permits available ({PLACES})",
        _each(_free, BULKHEADS),
    ),
    Behaviour(
        "amplification",
        "1,000 calls, every one fails, 3 attempts",
        "requests per call (at most 1.23)",
        _each(_amplified, RETRIES),
    ),
    Behaviour(
        "waiters",
        f"{WAITERS:,} calls are cancelled in a rate limit's queue",
        "calls that still wait (0)",
        {"dispatch": _dispatch_waiters, "aiolimiter": _aiolimiter_waiters},
    ),
)
