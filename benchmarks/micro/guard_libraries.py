"""Services and libraries of the behaviour comparison: dispatch is the whole dispatcher over an instant transport; the other
libraries call a function.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from benchmarks.micro.guard_stacks import Call, catalog, package
from benchmarks.micro.instant_transport import AnsweringTransport
from dispatch import Dispatcher
from dispatch.policy import Policy
from dispatch.resilience.breaker import BreakerRules

FAILURES = 5
"""Consecutive failures that open every breaker here."""
OPEN_S = 0.05
PLACES = 4
"""Permits of every bulkhead here."""


class Service(Protocol):
    """The called service."""

    failing: bool
    silent: bool
    requests: int

    def release(self, count: int | None = None) -> None:
        """Answer the first ``count`` held requests, or all of them."""


class _Local:
    """A service that is a function."""

    def __init__(self) -> None:
        self.failing = False
        self.silent = False
        self.requests = 0
        self._held: list[asyncio.Future[None]] = []

    def release(self, count: int | None = None) -> None:
        held, self._held = self._held[:count], [] if count is None else self._held[count:]
        for each in held:
            if not each.done():
                each.set_result(None)

    async def __call__(self) -> str:
        self.requests += 1
        if self.silent:
            released = asyncio.get_running_loop().create_future()
            self._held.append(released)
            await released
        else:
            await asyncio.sleep(0)
        if self.failing:
            raise ConnectionError("failing")
        return "done"


Guarded = Callable[[], AbstractAsyncContextManager[tuple[Service, Call]]]
"""Opens a service and a call of it through a library."""


EXACT = Policy(breaker=BreakerRules(jitter=0.0))
"""Open durations without jitter, as in the other libraries."""


def _ours(policy: dict[str, Any], **keys: Any) -> Guarded:
    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[Service, Call]]:
        transport = AnsweringTransport()
        async with Dispatcher(transport, catalog(policy, **keys), policy=EXACT) as dispatcher:
            yield transport, lambda: dispatcher.call("work")

    return make


def _theirs(wrap: Callable[[Callable[[], Awaitable[object]]], Awaitable[Call]]) -> Guarded:
    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[Service, Call]]:
        service = _Local()

        async def work() -> object:  # some libraries require a coroutine function
            return await service()

        yield service, await wrap(work)

    return make


# -- breakers -------------------------------------------------------------------------------------------------------


async def _purgatory(service: Callable[[], Awaitable[object]]) -> Call:
    factory = package("purgatory").AsyncCircuitBreakerFactory(default_threshold=FAILURES, default_ttl=OPEN_S)
    breaker = await factory.get_breaker("work")

    async def call() -> object:
        async with breaker:
            return await service()

    return call


async def _pyresilience(service: Callable[[], Awaitable[object]]) -> Call:
    module = package("pyresilience")

    settings = module.CircuitBreakerConfig(failure_threshold=FAILURES, recovery_timeout=OPEN_S)
    made: Call = module.resilient(circuit_breaker=settings)(service)
    return made


async def _hyx(service: Callable[[], Awaitable[object]]) -> Call:
    breaker = package("hyx.circuitbreaker").consecutive_breaker(
        exceptions=ConnectionError, failure_threshold=FAILURES, recovery_time_secs=OPEN_S
    )

    async def call() -> object:
        async with breaker:
            return await service()

    return call


async def _aioresilience(service: Callable[[], Awaitable[object]]) -> Call:
    module = package("aioresilience")
    settings = module.CircuitConfig(failure_threshold=FAILURES, recovery_timeout=OPEN_S)
    breaker = module.CircuitBreaker("work", settings)
    return lambda: breaker.call(service)


BREAKERS: Mapping[str, Guarded] = {
    "dispatch": _ours({"retry": 1, "breaker": {"consecutive-failures": FAILURES, "open-duration": OPEN_S}}),
    "purgatory": _theirs(_purgatory),
    "pyresilience": _theirs(_pyresilience),
    "hyx": _theirs(_hyx),
    "aioresilience": _theirs(_aioresilience),
}


# -- bulkheads ------------------------------------------------------------------------------------------------------


async def _semaphore(service: Callable[[], Awaitable[object]]) -> Call:
    semaphore = asyncio.Semaphore(PLACES)

    async def call() -> object:
        async with semaphore:
            return await service()

    return call


async def _hyx_bulkhead(service: Callable[[], Awaitable[object]]) -> Call:
    bulkhead = package("hyx.bulkhead").bulkhead(max_concurrency=PLACES, max_capacity=10 * PLACES)

    async def call() -> object:
        async with bulkhead:
            return await service()

    return call


async def _pyresilience_bulkhead(service: Callable[[], Awaitable[object]]) -> Call:
    module = package("pyresilience")

    made: Call = module.resilient(bulkhead=module.BulkheadConfig(max_concurrent=PLACES, max_wait=5.0))(service)
    return made


async def _aioresilience_bulkhead(service: Callable[[], Awaitable[object]]) -> Call:
    module = package("aioresilience")
    bulkhead = module.Bulkhead(config=module.BulkheadConfig(max_concurrent=PLACES, max_waiting=10 * PLACES))
    return lambda: bulkhead.execute(service)


# -- retries --------------------------------------------------------------------------------------------------------


async def _tenacity(service: Callable[[], Awaitable[object]]) -> Call:
    module = package("tenacity")
    rules = {"stop": module.stop_after_attempt(3), "wait": module.wait_none(), "reraise": True}

    @module.retry(**rules)  # type: ignore[untyped-decorator] # imported only if it is there
    async def call() -> object:
        return await service()

    made: Call = call
    return made


async def _stamina(service: Callable[[], Awaitable[object]]) -> Call:
    package("stamina").instrumentation.set_on_retry_hooks([])  # it would write a line for each
    retry = package("stamina").retry(on=ConnectionError, attempts=3, wait_initial=0.0, wait_max=0.0, wait_jitter=0.0)

    made: Call = retry(service)
    return made


async def _pyresilience_retry(service: Callable[[], Awaitable[object]]) -> Call:
    module = package("pyresilience")

    settings = module.RetryConfig(max_attempts=3, delay=0.001, jitter=False, max_delay=0.001)
    made: Call = module.resilient(retry=settings, retry_budget=module.RetryBudgetConfig())(service)
    return made


FOREVER: Mapping[str, Guarded] = {
    **BREAKERS,
    "dispatch": _ours({"retry": 1, "breaker": {"consecutive-failures": FAILURES, "open-duration": 300.0}}),
}
RETRIES: Mapping[str, Guarded] = {
    "dispatch": _ours({"retry": {"initial-backoff": 0.0001, "max-backoff": 0.0001}, "breaker": None}, idempotent=True),
    "tenacity": _theirs(_tenacity),
    "stamina": _theirs(_stamina),
    "pyresilience": _theirs(_pyresilience_retry),
}
BULKHEADS: Mapping[str, Guarded] = {
    "dispatch": _ours({"retry": 1, "bulkhead": PLACES}),
    "asyncio.Semaphore": _theirs(_semaphore),
    "pyresilience": _theirs(_pyresilience_bulkhead),
    "hyx": _theirs(_hyx_bulkhead),
    "aioresilience": _theirs(_aioresilience_bulkhead),
}
