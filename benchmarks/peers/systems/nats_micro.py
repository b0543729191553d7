"""NATS: a service of its micro framework, ``nats-py`` and ``nats-server``; retries by tenacity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import nats
import nats.micro
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.micro.request import Request
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from benchmarks.peers.system import SERVICE, Call, Failure, Place, Tool

LABEL: Final = "NATS micro, nats-py, retries by tenacity"
OFFERS: Final = "queue groups, no-responders error, statistics of the service; no guards, at most once"
SERVER: Final[Literal["nats"]] = "nats"
ATTEMPTS: Final = 3


@asynccontextmanager
async def serve(place: Place, instance: int, tool: Tool) -> AsyncIterator[None]:
    """Serve one instance: a task for each request, because the framework awaits one handler after the other."""
    client = await nats.connect(place.url, max_reconnect_attempts=-1)
    tasks: set[asyncio.Task[None]] = set()

    async def answer(request: Request) -> None:
        await request.respond((await tool(json.loads(request.data))).encode())

    async def handle(request: Request) -> None:
        task = asyncio.create_task(answer(request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    service = await nats.micro.add_service(client, name=SERVICE, version="1.0.0")
    await service.add_endpoint(name=SERVICE, subject=place.topic, handler=handle)
    await client.flush()
    try:
        yield
    finally:
        await service.stop()
        if tasks:
            await asyncio.wait(list(tasks), timeout=place.timeout)
        await client.drain()


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Connect a client. A repeatable call is repeated after each error, another one only where no instance subscribes."""
    client = await nats.connect(place.url, max_reconnect_attempts=-1)
    certain, all_errors = retry_if_exception_type(NoRespondersError), retry_if_exception_type(nats.errors.Error)

    async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
        data = json.dumps(arguments).encode()
        try:  # the first attempt without tenacity, which costs as much as the request
            return await attempt(data, place.timeout / ATTEMPTS if repeatable else place.timeout)
        except nats.errors.Error as error:
            if not repeatable and not isinstance(error, NoRespondersError):
                raise
        return await AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS - 1),
            wait=wait_exponential_jitter(0.05, 1.0),
            retry=all_errors if repeatable else certain,
            reraise=True,
        )(attempt, data, place.timeout / ATTEMPTS)

    async def attempt(data: bytes, timeout: float) -> str:
        return (await client.request(place.topic, data, timeout=timeout)).data.decode()

    try:
        yield call
    finally:
        await client.close()


def read_failure(error: Exception) -> Failure:
    """The class of the error; no responders: nothing was executed."""
    kind = "timeout" if isinstance(error, NatsTimeoutError) else type(error).__name__
    return Failure(kind, isinstance(error, NoRespondersError))
