"""The plain client of the loss probe: pulsar-client's faster interface, the baseline for every client on it.

``send_async`` without waiting for receipts; a listener on pulsar-client's own thread appends messages to a deque, and one
wake-up of the event loop handles a whole burst. The request is encoded beforehand and the reply is not decoded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.workers.channel import Spec, run_client
from benchmarks.workers.load import Load
from benchmarks.workers.wire import LARGE, REQUEST, large_reply, reply
from dispatch.devtools.lossprobe import FailedCallError, PlainClient
from dispatch.transports import Security


@asynccontextmanager
async def connect(spec: Spec) -> AsyncIterator[Load]:
    """The client, connected."""
    client = PlainClient(spec.url, Security(token=spec.token))
    try:
        await client.open(spec.request, spec.response)

        async def call() -> bytes:
            return await client.call(REQUEST, timeout=spec.timeout)

        async def call_large() -> bytes:
            return await client.call(REQUEST, LARGE, timeout=spec.timeout)

        yield Load(
            call, reply(spec), (TimeoutError, FailedCallError), large_call=call_large, large_answer=large_reply(spec)
        )
    finally:
        await client.close()


if __name__ == "__main__":
    run_client(connect)
