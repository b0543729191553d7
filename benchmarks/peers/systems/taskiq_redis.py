"""taskiq on Redis: tasks in a stream with acknowledgements, results as keys, awaited by polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from taskiq import TaskiqResultTimeoutError
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.system import SERVICE, Call, Failure, Place, Tool

LABEL: Final = "taskiq on Redis"
OFFERS: Final = "tasks kept in a stream until acknowledged, results kept for a minute; no guards"
SERVER: Final[Literal["redis"]] = "redis"
POLL_S: Final = 0.005
"""Seconds between two looks for a result, 0.2 by default: the latency would be that of the pause."""


def broker_of(place: Place) -> RedisStreamBroker:
    """Return a broker whose tasks go to one worker each."""
    results: Any = RedisAsyncResultBackend(redis_url=place.url, keep_results=False, result_ex_time=60)
    return RedisStreamBroker(url=place.url, queue_name=place.topic).with_result_backend(results)


@asynccontextmanager
async def serve(place: Place, instance: int, tool: Tool) -> AsyncIterator[None]:
    """Serve as one worker."""
    broker = broker_of(place)

    @broker.task(task_name=SERVICE)
    async def run(arguments: dict[str, Any]) -> str:
        return await tool(arguments)

    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker, max_async_tasks=min(place.concurrency, 100)))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.wait([worker], timeout=place.timeout)
        await broker.shutdown()


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Connect a client."""
    broker = broker_of(place)

    @broker.task(task_name=SERVICE)
    async def run(arguments: dict[str, Any]) -> str:
        raise NotImplementedError

    await broker.startup()

    async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
        task = await run.kiq(arguments)
        return (await task.wait_result(check_interval=POLL_S, timeout=place.timeout)).return_value

    try:
        yield call
    finally:
        await broker.shutdown()


def read_failure(error: Exception) -> Failure:
    """The class of the error."""
    return Failure("timeout" if isinstance(error, TaskiqResultTimeoutError) else type(error).__name__)
