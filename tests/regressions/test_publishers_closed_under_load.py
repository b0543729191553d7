"""A publisher that was closed while the receipts of its messages were under way reported them as failed, and pulsar-client
wrote a line for each. Closing a publisher waits for its receipts: nothing fails and nothing is logged."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pulsar
import pytest

from dispatch.devtools.localbroker import Endpoint
from dispatch.errors import TransportError
from dispatch.transports.pulsar.client import client_logger
from dispatch.transports.pulsar.transport import PulsarTransport

pytestmark = pytest.mark.pulsar

TOPICS, MESSAGES = 8, 50
LOGGER = "dispatch.pulsar"


async def last_line(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Make pulsar-client write a line and wait for it: the lines before it have come by then."""
    topic = f"non-persistent://tg/response/refused-{uuid.uuid4().hex}"
    client = pulsar.Client(url, logger=client_logger())

    def refused() -> None:
        client.subscribe(topic, "exclusive")
        with pytest.raises(pulsar.PulsarException):
            client.subscribe(topic, "exclusive")

    try:
        await asyncio.to_thread(refused)
    finally:
        await asyncio.to_thread(client.close)
    async with asyncio.timeout(20):
        while not any(topic in record.getMessage() for record in caplog.records):  # noqa: ASYNC110 - a thread reads it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("scheme", ["non-persistent", "persistent"])
async def test_closing_publishers_under_load_fails_nothing_and_logs_nothing(
    pulsar_endpoint: Endpoint, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    failures: list[TransportError] = []
    transport = PulsarTransport(pulsar_endpoint.service_url, publish_window=TOPICS * MESSAGES)
    await transport.start()
    try:
        for _ in range(3):
            topics = [f"{scheme}://tg/response/closed-{uuid.uuid4().hex}" for _ in range(TOPICS)]
            publishers = await asyncio.gather(*(transport.publisher(topic) for topic in topics))
            for publisher in publishers:
                for _ in range(MESSAGES):
                    publisher.publish(b"x" * 1_000, {}, flow="a", on_failure=failures.append)
            await asyncio.gather(*(publisher.close() for publisher in publishers))
    finally:
        await transport.close()
    await last_line(pulsar_endpoint.service_url, caplog)
    lines = [each.getMessage() for each in caplog.records if each.name == LOGGER and "SendReceipt" in each.getMessage()]
    assert (len(failures), lines) == (0, [])
