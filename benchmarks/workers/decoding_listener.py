"""The plain client of the loss probe, which decodes replies: a relay writes the same reply in other bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.workers.channel import Spec, run_client
from benchmarks.workers.load import Load
from benchmarks.workers.wire import REQUEST
from dispatch.devtools.lossprobe import FailedCallError, PlainClient
from dispatch.messaging.wire import decode_reply
from dispatch.transports import Security


@asynccontextmanager
async def connect(spec: Spec) -> AsyncIterator[Load]:
    """The client, connected."""
    client = PlainClient(spec.url, Security(token=spec.token))
    try:
        await client.open(spec.request, spec.response)

        async def call() -> str:
            return decode_reply(await client.call(REQUEST, timeout=spec.timeout)).response

        yield Load(call, spec.text, (TimeoutError, FailedCallError))
    finally:
        await client.close()


if __name__ == "__main__":
    run_client(connect)
