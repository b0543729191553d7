"""A server that stops, on a broker's non-persistent topic, which redelivers nothing."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pulsar
import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.messaging.wire import encode_request
from dispatch.transports.pulsar import transport
from tests.helpers.catalogs import unique_topic
from tests.helpers.dispatcher_and_service import Service

pytestmark = pytest.mark.pulsar

REQUESTS = 300


async def test_a_server_that_stops_answers_every_request_that_has_arrived(
    pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RECEIVER_QUEUE", 20)  # the others wait in pulsar-client
    url, topic = pulsar_endpoint.service_url, unique_topic("stopped")
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)}
    with closing(pulsar.Client(url, **options)) as client:
        replies = client.subscribe(f"non-persistent://tg/response/{topic}", "caller")
        requests = client.create_producer(f"non-persistent://tg/request/{topic}")
        async with dispatch.ToolServer(Service(lambda arguments: arguments["n"]), url, service=topic) as server:
            for number in range(REQUESTS):  # it blocks the event loop of the server
                payload = encode_request("{}", json.dumps({"n": number}))
                requests.send(payload, properties={"id": f"{number}"})
            assert server.requests == 0
            await server.drain()
            assert server.requests == REQUESTS

            def receive() -> dict[str, str]:
                messages = [replies.receive(10_000) for _ in range(REQUESTS)]
                return {each.properties()["id"]: json.loads(each.data())["response"] for each in messages}

            assert await asyncio.to_thread(receive) == {f"{number}": f"{number}" for number in range(REQUESTS)}
