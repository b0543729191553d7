"""The bare pulsar-client with ``pulsar.asyncio``: each receipt is awaited, one ``receive()`` at a time.

Otherwise as :mod:`benchmarks.workers.bare_listener`, unbatched too.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pulsar.asyncio

from benchmarks.workers.channel import Spec, run_client
from benchmarks.workers.load import Load
from benchmarks.workers.wire import REQUEST, client_options, reply


@asynccontextmanager
async def connect(spec: Spec) -> AsyncIterator[Load]:
    """The client, connected."""
    loop = asyncio.get_running_loop()
    pending: dict[str, asyncio.Future[bytes]] = {}
    count = 0
    client = pulsar.asyncio.Client(spec.url, **client_options(spec))
    producer = await client.create_producer(spec.request, batching_enabled=False, max_pending_messages=20_000)
    consumer = await client.subscribe(spec.response, f"bare-{uuid.uuid4().hex}", receiver_queue_size=10_000)

    async def pump() -> None:
        with suppress(pulsar.asyncio.PulsarException):  # closed
            while True:
                message = await consumer.receive()
                waiting = pending.get(message.properties().get("id"))
                if waiting is not None and not waiting.done():
                    waiting.set_result(message.data())

    def expire(waiting: asyncio.Future[bytes]) -> None:
        if not waiting.done():
            waiting.set_exception(TimeoutError())

    async def call() -> bytes:
        nonlocal count
        count += 1
        id = f"bare-{count}"
        waiting: asyncio.Future[bytes] = loop.create_future()
        pending[id] = waiting
        timer = loop.call_later(spec.timeout, expire, waiting)
        try:
            await producer.send(REQUEST, properties={"id": id})
            return await waiting
        finally:
            timer.cancel()
            del pending[id]

    pumping = asyncio.create_task(pump())
    try:
        yield Load(call, reply(spec), TimeoutError)
    finally:
        await consumer.close()
        await pumping
        await client.close()


if __name__ == "__main__":
    run_client(connect)
