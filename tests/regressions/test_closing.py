"""``close(drain=…)`` that a timeout or a cancellation cut short left the connection open, and one of two concurrent closers
waited for its whole drain. Closing closes the connection in any case, and all closers end with the last call.
A publisher that was closed while the receipts of its messages were under way reported them as failed, and pulsar-client
wrote a line for each. Closing a publisher waits for its receipts: nothing fails and nothing is logged.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pulsar
import pytest

import dispatch
from dispatch.devtools.localbroker import Endpoint
from dispatch.errors import TransportError
from dispatch.transports.memory import MemoryTransport
from dispatch.transports.pulsar.client import client_logger
from dispatch.transports.pulsar.transport import PulsarTransport
from tests.helpers.clock import advance, idle, virtual_loop
from tests.helpers.dispatcher_and_service import BROKER, catalog, dispatching, serving

WORK_S = 5.0


async def work(_arguments: dict[str, Any]) -> str:
    await asyncio.sleep(WORK_S)
    return "done"


async def cancelled(closing: Awaitable[None]) -> None:
    task = asyncio.ensure_future(closing)
    await advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def timed_out(closing: Awaitable[None]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await closing


@pytest.mark.parametrize("cut_short", [cancelled, timed_out])
async def test_a_drain_that_is_cut_short_closes_the_connection(
    cut_short: Callable[[Awaitable[None]], Awaitable[None]],
) -> None:
    async with serving(work):
        dispatcher = dispatch.Dispatcher(MemoryTransport(BROKER), catalog())
        await dispatcher.start()
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        began = virtual_loop().time()
        await cut_short(dispatcher.close(drain=30))
        assert virtual_loop().time() - began == pytest.approx(1)
        assert not dispatcher.is_connected
        result = await call
        assert isinstance(result.error, dispatch.TransportError)
        assert result.error.type == "closed"


async def test_two_concurrent_closers_both_end_with_the_last_call() -> None:
    async with serving(work), dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        began = virtual_loop().time()
        await asyncio.gather(dispatcher.close(drain=30), dispatcher.close(drain=30))
        assert (await call).ok
        assert virtual_loop().time() - began < WORK_S + 1


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


@pytest.mark.pulsar
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
