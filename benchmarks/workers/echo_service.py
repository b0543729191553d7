"""The service that all clients of the first suite call: as little as can answer.

A listener on pulsar-client's thread answers at once with bytes made beforehand, unbatched, on the response topic. It takes
as little of the machine as it can, so that clients are compared and not this: hence the kept thread state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar

from benchmarks.workers.channel import Spec, run_service
from benchmarks.workers.wire import client_options, reply
from dispatch.transports.pulsar.io_thread_state import keep_thread_state


@asynccontextmanager
async def serve(spec: Spec) -> AsyncIterator[None]:
    """The service, listening."""
    answer = reply(spec)

    def on_receipt(_result: Any, _id: Any) -> None:
        keep_thread_state()

    def listener(producer: Any) -> Any:
        def on_message(_consumer: Any, message: Any) -> None:
            keep_thread_state()
            producer.send_async(answer, on_receipt, properties={"id": message.properties()["id"]})

        return on_message

    client = pulsar.Client(spec.url, **client_options(spec))
    try:
        for request, response in ((spec.request, spec.response), *spec.more):
            producer = client.create_producer(response, batching_enabled=False, max_pending_messages=20_000)
            client.subscribe(
                request,
                "echo-request",
                consumer_type=pulsar.ConsumerType.Shared,
                message_listener=listener(producer),
                receiver_queue_size=10_000,
            )
        yield
    finally:
        client.close()


if __name__ == "__main__":
    run_service(serve)
