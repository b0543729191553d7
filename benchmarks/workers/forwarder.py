"""The least relay, without dispatch: a request's bytes go on as they are, and so do those of its reply.

``Spec.more`` has the instance's topics.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pulsar

from benchmarks.workers.channel import Channel
from dispatch.transports.pulsar.client import keep_thread_state


def main() -> None:
    """Forward until stdin closes."""
    channel = Channel()
    spec = channel.spec()
    ((request, response),) = spec.more
    client = pulsar.Client(spec.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for source, target in ((spec.request, request), (response, spec.response)):
        producer = client.create_producer(target, batching_enabled=False)

        def forward(_consumer: Any, message: Any, producer: Any = producer) -> None:
            keep_thread_state()
            with contextlib.suppress(Exception):  # it would end the process
                producer.send_async(message.data(), on_receipt, properties=message.properties())

        client.subscribe(source, "forwarder", consumer_type=pulsar.ConsumerType.Shared, message_listener=forward)
    channel.ready()
    sys.stdin.read()
    client.close()


def on_receipt(_result: Any, _message_id: Any) -> None:
    """Ignore a receipt."""
    keep_thread_state()


if __name__ == "__main__":
    main()
