"""Contenders of the guard benchmark: no guards, dispatch's guards, libraries stacked by hand, and stacks of other libraries.

Each contender is a coroutine function that makes one call of the same empty function. Every guard is on, with limits that
never reject a call. The report names contenders whose package is not installed.
"""

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from benchmarks.micro.instant_instances import instance_pool
from benchmarks.micro.instant_transport import AnsweringTransport
from dispatch import Catalog, Dispatcher, RejectedError
from dispatch.calls.attempt import Admission
from dispatch.calls.guards import GuardRegistry
from dispatch.calls.resolution import ToolResolver
from dispatch.errors import Outcome
from dispatch.permissions import GrantsFunction
from dispatch.policy import Policy
from dispatch.telemetry.observers import NULL_DISPATCHER, SILENT, Telemetry

Call = Callable[[], Awaitable[object]]
"""Makes one call."""

RATE = 1_000_000
"""Calls per second that every rate limit here admits."""
PLACES = 64
"""Concurrent calls that every bulkhead here admits: dispatch's default."""
INSTALL = "pip install 'tool-dispatch[peers]'"
OFF: dict[str, Any] = {"retry": 1, "breaker": None, "bulkhead": None}
"""A policy without guards."""
ON: dict[str, Any] = {"rate-limit": f"{RATE}/s"}
"""The default guards, and a rate limit."""


class Absent(Exception):
    """A package is not installed; its name is the argument."""


def package(name: str) -> Any:
    """The package, imported.

    Raises:
        Absent: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Absent(name.partition(".")[0]) from error


@dataclass(frozen=True)
class Stack:
    """A contender.

    Attributes:
        name: for ``--only`` and JSON.
        label: for tables.
        make: opens it on the running loop.
    """

    name: str
    label: str
    make: Callable[[], AbstractAsyncContextManager[Call]]


async def nothing() -> str:
    """The called function: it does nothing."""
    return "done"


def _chain(instances: int) -> Callable[[], AbstractAsyncContextManager[Call]]:
    @asynccontextmanager
    async def make() -> AsyncIterator[Call]:
        clock = asyncio.get_running_loop().time
        policy = Policy(rate_limit=ON["rate-limit"])
        tool = ToolResolver(catalog(ON), policy).tool("work")
        table = GuardRegistry(clock, random.random, NULL_DISPATCHER, lambda _key: tool, None)
        pool = instance_pool(instances)

        async def call() -> object:
            # As Calls.perform and Attempts.call do, without the exchange in between.
            guards = table.of_tool(tool)
            guards.budget.record_call()
            admission = Admission(guards)
            began = clock()
            rejection = admission.try_acquire("user", began + 30.0, began)
            assert rejection is None
            assert not admission.must_wait
            place = pool.pick(guards)
            assert place is not None
            answer = await nothing()
            guards.durations.record(clock() - began)
            place.release(Outcome.SUCCESS, retry_after=None, in_flight=None, slowness=None, outpaced=False)
            admission.finish(Outcome.SUCCESS, sent=True)
            return answer

        yield call

    return make


def catalog(policy: dict[str, Any], **keys: Any) -> Catalog:
    """One tool, ``work``. Its topics are persistent: they lose no message, so retransmission costs nothing."""
    service = {
        "id": "double",
        "request-queue": "persistent://tg/request/double",
        "response-queue": "persistent://tg/response/double",
    }
    tool = {"type": "tool-service", "name": "work", "description": "Does nothing.", "service": "double"}
    return Catalog.of([service], [{**tool, "policy": policy, **keys}])


def whole_call(
    policy: dict[str, Any], telemetry: Telemetry = SILENT, *, grants: GrantsFunction | None = None, **keys: Any
) -> Callable[[], AbstractAsyncContextManager[Call]]:
    """A whole call of dispatch over an instant transport.

    Args:
        policy, keys: of its tool.
        telemetry, grants: of the dispatcher.
    """

    @asynccontextmanager
    async def make() -> AsyncIterator[Call]:
        tools = catalog(policy, **keys)
        async with Dispatcher(AnsweringTransport(), tools, telemetry=telemetry, grants=grants) as dispatcher:

            async def call() -> object:
                return await dispatcher.call("work", user="alice")

            yield call

    return make


@asynccontextmanager
async def _permitted_call() -> AsyncIterator[Call]:
    """A call of a tool with permissions. The answer of the callable is cached: it is asked once a minute."""

    async def ask(_user: str) -> list[str]:
        return [*(f"tools:work:{number}" for number in range(100)), "tools:*", "!tools:admin"]

    permissions = ["tools:work:read", "tools:service"]
    async with whole_call(ON, grants=ask, permissions=permissions)() as call:
        yield call


@asynccontextmanager
async def _rejected() -> AsyncIterator[Call]:
    """A rejection as a value, as the guards return it."""
    clock = asyncio.get_running_loop().time
    policy = Policy(rate_limit=ON["rate-limit"])
    tool = ToolResolver(catalog(ON), policy).tool("work")
    guards = GuardRegistry(clock, random.random, NULL_DISPATCHER, lambda _key: tool, None).of_tool(tool)
    assert guards.breaker is not None
    guards.breaker.open_until(clock() + 3600.0)

    async def call() -> object:
        rejection = Admission(guards).try_acquire("user", 0.0, clock())
        return "done" if rejection is not None else "admitted"

    yield call


@asynccontextmanager
async def _rejected_call() -> AsyncIterator[Call]:
    """A rejection as the caller receives it: an error with its text."""
    async with Dispatcher(AnsweringTransport(), catalog(ON), telemetry=SILENT) as dispatcher:
        await dispatcher.call("work")
        dispatcher.breaker("work").open_until(asyncio.get_running_loop().time() + 3600.0)

        async def call() -> object:
            try:
                await dispatcher.call("work")
            except RejectedError:
                return "done"
            return "admitted"

        yield call


@asynccontextmanager
async def _guarded_by_hand(inner: Call = nothing) -> AsyncIterator[Call]:
    """aiolimiter, a semaphore, purgatory and asyncio's timeout around the call; the retry goes around all of them."""
    limiter = package("aiolimiter").AsyncLimiter(RATE, 1.0)
    semaphore = asyncio.Semaphore(PLACES)
    breaker = (
        await package("purgatory").AsyncCircuitBreakerFactory(default_threshold=10, default_ttl=5.0).get_breaker("work")
    )

    async def guarded() -> object:
        async with asyncio.timeout(30.0), limiter, semaphore, breaker:
            return await inner()

    yield guarded


def _tenacity_rules() -> dict[str, Any]:
    tenacity = package("tenacity")
    return {
        "stop": tenacity.stop_after_attempt(3),
        "wait": tenacity.wait_random_exponential(multiplier=0.05, max=2.0),
        "retry": tenacity.retry_if_exception_type(ConnectionError),
        "reraise": True,
    }


@asynccontextmanager
async def _tenacity_decorator() -> AsyncIterator[Call]:
    async with _guarded_by_hand() as guarded:
        yield package("tenacity").retry(**_tenacity_rules())(guarded)


@asynccontextmanager
async def _tenacity_around_a_call() -> AsyncIterator[Call]:
    async with whole_call(OFF)() as call, _guarded_by_hand(call) as guarded:
        yield package("tenacity").retry(**_tenacity_rules())(guarded)


@asynccontextmanager
async def _tenacity_loop() -> AsyncIterator[Call]:
    async with _guarded_by_hand() as guarded:
        retrying, rules = package("tenacity").AsyncRetrying, _tenacity_rules()

        async def call() -> object:
            async for attempt in retrying(**rules):
                with attempt:
                    return await guarded()
            raise AssertionError("tenacity ends by itself")

        yield call


@asynccontextmanager
async def _stamina() -> AsyncIterator[Call]:
    async with _guarded_by_hand() as guarded:
        yield package("stamina").retry(on=ConnectionError, attempts=3, wait_initial=0.05, wait_max=2.0)(guarded)


@asynccontextmanager
async def _pyresilience() -> AsyncIterator[Call]:
    module = package("pyresilience")
    yield module.resilient(
        retry=module.RetryConfig(max_attempts=3, delay=0.05),
        timeout=module.TimeoutConfig(seconds=30.0),
        circuit_breaker=module.CircuitBreakerConfig(
            failure_threshold=10, recovery_timeout=5.0, sliding_window_size=100
        ),
        bulkhead=module.BulkheadConfig(max_concurrent=PLACES),
        rate_limiter=module.RateLimiterConfig(max_calls=RATE, period=1.0),
    )(nothing)


@asynccontextmanager
async def _hyx() -> AsyncIterator[Call]:
    breaker = package("hyx.circuitbreaker").consecutive_breaker(failure_threshold=10, recovery_time_secs=5.0)
    limiter = package("hyx.ratelimit").tokenbucket(RATE, 1.0)
    bulkhead = package("hyx.bulkhead").bulkhead(max_concurrency=PLACES, max_capacity=3 * PLACES)
    timeout = package("hyx.timeout").timeout(30.0)
    retry = package("hyx.retry").retry(on=ConnectionError, attempts=3, backoff=0.05)
    yield retry(breaker(limiter(bulkhead(timeout(nothing)))))


@asynccontextmanager
async def _aioresilience() -> AsyncIterator[Call]:
    module = package("aioresilience")
    breaker = module.CircuitBreaker("work", module.CircuitConfig(failure_threshold=10, recovery_timeout=5.0))
    bulkhead = module.Bulkhead(config=module.BulkheadConfig(max_concurrent=PLACES, max_waiting=2 * PLACES))
    timeout = module.TimeoutManager(config=module.TimeoutConfig(timeout=30.0))
    limiter = module.RateLimiter()
    retry = module.RetryPolicy(config=module.RetryConfig(max_attempts=3, initial_delay=0.05))

    async def timed() -> object:  # it asks whether it is a coroutine function
        return cast(object, await timeout.execute(nothing))

    async def guarded() -> object:
        assert await limiter.check_rate_limit("user", f"{RATE}/second")
        return cast(object, await bulkhead.execute(timed))

    async def attempt() -> object:
        return await breaker.call(guarded)

    async def call() -> object:
        return cast(object, await retry.execute(attempt))

    yield call


@asynccontextmanager
async def bare() -> AsyncIterator[Call]:
    """The function without guards."""
    yield nothing


STACKS = (
    Stack("bare", "the function alone", bare),
    Stack("chain", "dispatch's guards, one instance", _chain(1)),
    Stack("chain-8", "dispatch's guards, 8 instances, each with a breaker", _chain(8)),
    Stack("call-off", "a whole call of dispatch, no guards", whole_call(OFF)),
    Stack("call", "a whole call of dispatch, all guards", whole_call(ON)),
    Stack("permission", "the same, of a tool that requires two permissions", _permitted_call),
    Stack("rejected", "dispatch's rejection while the circuit is open", _rejected),
    Stack("rejected-call", "the same, as the error of a call", _rejected_call),
    Stack("call-by-hand", "a whole call of dispatch with the guards of 'by-hand'", _tenacity_around_a_call),
    Stack("by-hand", "@tenacity.retry, aiolimiter, semaphore, purgatory, asyncio.timeout", _tenacity_decorator),
    Stack("by-hand-loop", "the same, with 'async for attempt in AsyncRetrying(…)'", _tenacity_loop),
    Stack("stamina", "the same, with @stamina.retry", _stamina),
    Stack("pyresilience", "pyresilience: retry, timeout, breaker, bulkhead, rate", _pyresilience),
    Stack("hyx", "hyx: the same five", _hyx),
    Stack("aioresilience", "aioresilience: the same five", _aioresilience),
)


async def opened(stack: Stack, exits: AsyncExitStack) -> Call:
    """Open a contender and make one call to check it. ``exits`` closes it.

    Raises:
        Absent: a package is missing.
    """
    call = await exits.enter_async_context(stack.make())
    answer = await call()
    assert answer == "done", f"{stack.name} answered {answer!r}"
    return call
