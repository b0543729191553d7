"""Three places waited for a task of their own in a way that swallowed the cancellation of ``close``: it went on as if it had
not been cancelled. Closing raises its cancellation, and has closed the connection by then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

import dispatch
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, Peer, Service, dispatching, serving
from tests.helpers.fake_pulsar import SEEN_S, FakeBroker, connected
from tests.helpers.session import REPLY_TOPIC, from_peer
from tests.unit.transports.pulsar.conftest import broker as broker


async def cancelled(closing: Awaitable[None]) -> None:
    task = asyncio.ensure_future(closing)
    await advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Slow:
    """Something that takes 3 s to end when it is cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(3)
            raise


async def test_a_dispatcher_whose_further_reply_connection_is_just_being_opened() -> None:
    slow = Slow()

    class Further(MemoryTransport):
        async def start(self) -> None:
            await slow.run()

    class First(MemoryTransport):
        def another(self) -> MemoryTransport:
            return Further(self.url)

    transport = First(BROKER)
    async with serving(lambda _: "x" * 100_000), dispatching(transport=transport) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(500)]
        await slow.begun.wait()
        await cancelled(dispatcher.close())
        assert not transport.connected
        assert {result.error is None or result.error.type == "closed" for result in await asyncio.gather(*calls)} == {
            True
        }
        await advance(3)


async def test_a_service_whose_reply_topic_is_just_being_opened() -> None:
    slow = Slow()

    class Transport(MemoryTransport):
        async def publisher(self, topic: str) -> MemoryPublisher:
            if topic == REPLY_TOPIC:
                await slow.run()
            return await super().publisher(topic)

    transport = Transport(BROKER)
    server = dispatch.ToolServer(Service(lambda _: "done"), transport, request_queue=REQUESTS, response_queue=RESPONSES)
    await transport.start()
    await server.start()
    async with Peer.as_caller() as caller:
        await caller.ask(b'{"config": "{}", "arguments": "{}"}', **from_peer(1))
        await slow.begun.wait()
        closing = asyncio.create_task(server.close())
        await advance(3)  # it gives the answer 2 s to leave
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await advance(3)
    await transport.close()


async def test_a_connection_whose_supervisor_is_just_looking_for_the_broker(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    async with connected() as transport:
        await transport.publisher(REQUESTS)
        broker.restarts()
        monkeypatch.setattr("dispatch.transports.pulsar.supervisor.shake_hands", lambda *_: slow.run())
        await advance(SEEN_S)
        await slow.begun.wait()
        await cancelled(transport.close())
        assert broker.link.closed
        await advance(3)
