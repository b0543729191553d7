"""Requests that go in parts were all sent to the instance with the fewest requests of this dispatcher, whatever its health
or earlier attempts: each was throttled by a busy instance while another one was idle. Now the balancer chooses among the
instances that support parts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from dispatch import CallResult, Dispatcher
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, Service, catalog, serving

LIMIT = 1_000
"""Bytes that the broker takes as one message here."""
LARGE = {"text": "x" * 5 * LIMIT}


def memory() -> MemoryTransport:
    transport = MemoryTransport(BROKER)
    transport.max_message_bytes = LIMIT
    return transport


@contextlib.asynccontextmanager
async def dispatching(**policy: Any) -> AsyncIterator[Dispatcher]:
    settings = {**UNGUARDED, **policy}
    async with Dispatcher(memory(), catalog(work={"policy": settings})) as dispatcher:
        yield dispatcher


@contextlib.asynccontextmanager
async def instances(*names: str) -> AsyncIterator[tuple[Counter[str], asyncio.Event]]:
    """Instances with one place each. A request that says ``wait`` holds it until the event is set."""
    ran: Counter[str] = Counter()
    event = asyncio.Event()

    def working(name: str) -> Service:
        async def work(arguments: dict[str, Any]) -> str:
            ran[name] += 1
            if "wait" in arguments:
                await event.wait()
            return name

        return Service(work)

    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            transport = memory()
            await transport.start()
            stack.push_async_callback(transport.close)
            options = {"broker": transport, "instance": name, "concurrency": 1, "max_queue": 0}
            await stack.enter_async_context(serving(working(name), **options))
        yield ran, event


@contextlib.asynccontextmanager
async def one_is_busy(**policy: Any) -> AsyncIterator[Dispatcher]:
    """Of two instances one is busy with the request of another dispatcher."""
    async with instances("a", "b") as (ran, event), dispatching() as other, dispatching(**policy) as dispatcher:
        busy = asyncio.create_task(other.execute("work", {"wait": True}))
        await asyncio.sleep(1)
        assert ran.total() == 1
        yield dispatcher
        event.set()
        assert (await busy).ok


async def _large(dispatcher: Dispatcher, count: int) -> list[CallResult]:
    return [await dispatcher.execute("work", LARGE) for _ in range(count)]


async def test_a_busy_instance_is_passed_over() -> None:
    async with one_is_busy() as dispatcher:
        results = await _large(dispatcher, 8)
        assert sum(not result.ok for result in results) <= 1, "it asked to be spared for a second"


async def test_a_retry_goes_to_another_instance() -> None:
    async with one_is_busy(retry={"max-attempts": 3, "initial-backoff": 0.01, "max-backoff": 0.01}) as dispatcher:
        results = await _large(dispatcher, 8)
        assert [result.ok for result in results] == [True] * 8


async def test_large_requests_are_balanced_as_others_are() -> None:
    async with instances("a", "b", "c", "d") as (ran, _), dispatching() as dispatcher:
        assert all(result.ok for result in await _large(dispatcher, 40))
        assert set(ran.values()) == {10}
