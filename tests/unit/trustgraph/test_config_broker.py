"""The broker as sources see it: correlation, repetition, failures and the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dispatch.errors import TransportError
from dispatch.transports import Message, Mode
from dispatch.transports.memory import MemoryTransport
from dispatch.trustgraph.config import ConfigBroker
from tests.helpers.clock import idle

REQUEST, RESPONSE = "non-persistent://tg/request/lab", "non-persistent://tg/response/lab"


class Echo:
    """Answers each request with its payload, unless it is among the first ``lost`` ones."""

    def __init__(self, lost: int = 0) -> None:
        self.ids: list[str] = []
        self._lost = lost

    async def start(self, transport: MemoryTransport) -> None:
        publisher = await transport.publisher(RESPONSE)

        def on_request(message: Message) -> None:
            self.ids.append(message.properties()["id"])
            if len(self.ids) > self._lost:
                for id in ("other", self.ids[-1], self.ids[-1]):
                    publisher.publish(message.data() + id[:5].encode(), {"id": id}, flow="", on_failure=print)

        await transport.subscribe(REQUEST, on_request, mode=Mode.SHARED, name="echo")


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[MemoryTransport, ConfigBroker]]:
    transport = MemoryTransport("memory://")
    await transport.start()
    broker = ConfigBroker(transport, "d1")
    try:
        yield transport, broker
    finally:
        await broker.close()
        await transport.close()


async def test_each_request_gets_its_own_response() -> None:
    async with connected() as (transport, broker):
        echo = Echo()
        await echo.start(transport)
        responses = await asyncio.gather(
            *(broker.request(REQUEST, RESPONSE, b"%d-" % i, timeout=1) for i in range(100))
        )
        assert [response.partition(b"-")[0] for response in responses] == [b"%d" % i for i in range(100)]
        assert [response.partition(b"-")[2].decode() for response in responses] == [id[:5] for id in echo.ids]
        assert len(set(echo.ids)) == 100


async def test_a_request_is_sent_again_with_the_same_id() -> None:
    async with connected() as (transport, broker):
        echo = Echo(lost=2)
        await echo.start(transport)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await broker.request(REQUEST, RESPONSE, b"", timeout=5, resend_after=1)
        assert loop.time() - started == pytest.approx(3, abs=0.01)  # after 1 s, and 2 s later
        assert len(set(echo.ids)) == 1


async def test_without_a_response_the_request_times_out() -> None:
    async with connected() as (transport, broker):
        echo = Echo(lost=100)
        await echo.start(transport)
        with pytest.raises(TimeoutError):
            await broker.request(REQUEST, RESPONSE, b"", timeout=5)
        assert len(echo.ids) == 1


async def test_a_failure_to_send_is_raised() -> None:
    async with connected() as (transport, broker):
        await Echo(lost=1).start(transport)
        waiting = asyncio.create_task(broker.request(REQUEST, RESPONSE, b"", timeout=5))
        await idle()
        await broker.close()
        with pytest.raises(TransportError):
            await waiting
        with pytest.raises(TransportError):
            await broker.request(REQUEST, RESPONSE, b"", timeout=5)
        with pytest.raises(TransportError):
            await broker.subscribe(RESPONSE, print)


async def test_notifications_until_the_subscription_is_closed() -> None:
    async with connected() as (transport, broker):
        received: list[bytes] = []
        subscription = await broker.subscribe(RESPONSE, received.append)
        publisher = await transport.publisher(RESPONSE)
        publisher.publish(b"1", {}, flow="", on_failure=print)
        await idle()
        await subscription.close()
        await subscription.close()
        publisher.publish(b"2", {}, flow="", on_failure=print)
        await idle()
        assert received == [b"1"]


async def test_topics_are_opened_once_and_closed_at_the_end() -> None:
    async with connected() as (transport, broker):
        await Echo().start(transport)
        await asyncio.gather(*(broker.request(REQUEST, RESPONSE, b"", timeout=1) for _ in range(10)))
        await broker.subscribe(RESPONSE, print)
        assert len(transport._subscriptions) == 3  # the echo, the responses, the notifications
        await broker.close()
        assert len(transport._subscriptions) == 1
