"""The bare pulsar-client's better way: what no client on it can beat.

``send_async`` without waiting for receipts; a listener on pulsar-client's own thread puts messages into a deque, and one
wake-up of the loop takes a whole burst. Of what a client needs it has the least that is usable: a future a call, correlated
by id, and a timeout. The payload is made beforehand and the answer is not decoded.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar

from benchmarks.workers.channel import Spec, run_client
from benchmarks.workers.load import Load
from benchmarks.workers.wire import REQUEST, client_options, reply


@asynccontextmanager
async def connect(spec: Spec) -> AsyncIterator[Load]:
    """The client, connected."""
    loop = asyncio.get_running_loop()
    pending: dict[str, asyncio.Future[bytes]] = {}
    arrived: deque[Any] = deque()
    wake_pending = False
    count = 0

    def drain() -> None:
        nonlocal wake_pending
        wake_pending = False
        while arrived:
            message = arrived.popleft()
            waiting = pending.get(message.properties().get("id"))
            if waiting is not None and not waiting.done():
                waiting.set_result(message.data())

    def on_message(_consumer: Any, message: Any) -> None:
        nonlocal wake_pending
        arrived.append(message)
        if not wake_pending:
            wake_pending = True
            loop.call_soon_threadsafe(drain)

    def on_receipt(_result: Any, _id: Any) -> None:
        pass

    def expire(waiting: asyncio.Future[bytes]) -> None:
        if not waiting.done():
            waiting.set_exception(TimeoutError())

    client = pulsar.Client(spec.url, **client_options(spec))
    try:
        producer = client.create_producer(spec.request, batching_enabled=False, max_pending_messages=20_000)
        client.subscribe(
            spec.response, f"bare-{uuid.uuid4().hex}", message_listener=on_message, receiver_queue_size=10_000
        )

        async def call() -> bytes:
            nonlocal count
            count += 1
            id = f"bare-{count}"
            waiting: asyncio.Future[bytes] = loop.create_future()
            pending[id] = waiting
            timer = loop.call_later(spec.timeout, expire, waiting)
            producer.send_async(REQUEST, on_receipt, properties={"id": id})
            try:
                return await waiting
            finally:
                timer.cancel()
                del pending[id]

        yield Load(call, reply(spec), TimeoutError)
    finally:
        client.close()


if __name__ == "__main__":
    run_client(connect)
