"""One suite over every transport, so that the embedded broker cannot drift away from the genuine one."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.transports import Message, Mode, Publisher, TopicPublisher, Transport, open_transport


@dataclass(frozen=True)
class Kind:
    """A transport and a sort of topic on it."""

    url: str
    scheme: str

    def topic(self) -> str:
        return f"{self.scheme}://tg/request/conformance-{uuid.uuid4().hex}"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Transport]:
        transport = open_transport(self.url)
        await transport.start()
        try:
            yield transport
        finally:
            await transport.close()


@pytest.fixture(
    params=[
        pytest.param("memory"),
        pytest.param("memory-persistent"),
        pytest.param("non-persistent", marks=pytest.mark.pulsar),
        pytest.param("persistent", marks=pytest.mark.pulsar),
    ]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "memory":
        return Kind("memory://", "non-persistent")
    if request.param == "memory-persistent":
        return Kind("memory://", "persistent")
    return Kind(request.getfixturevalue("pulsar_endpoint").service_url, request.param)


class Received:
    """A handler that keeps what it gets, and can be awaited."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, dict[str, str]]] = []
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __call__(self, message: Message) -> None:
        self.messages.append((message.data(), message.properties()))
        for reached, waiter in self._waiters:
            if not waiter.done() and reached():
                waiter.set_result(None)

    @property
    def payloads(self) -> list[bytes]:
        return [payload for payload, _ in self.messages]

    async def count(self, wanted: int) -> list[bytes]:
        """Wait for ``wanted`` messages."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((lambda: len(self.messages) >= wanted, waiter))
        if len(self.messages) < wanted:
            async with asyncio.timeout(20):
                await waiter
        return self.payloads


def unexpected(error: TransportError) -> None:
    raise AssertionError(f"a publish failed: {error}")


def send(publisher: Publisher, *payloads: bytes) -> None:
    for payload in payloads:
        publisher.publish(payload, {}, flow="a", on_failure=unexpected)


@asynccontextmanager
async def receiving(kind: Kind) -> AsyncIterator[tuple[Transport, TopicPublisher, Received]]:
    """A connection, the publisher of a new topic, and what its subscriber receives."""
    topic, got = kind.topic(), Received()
    async with kind.connected() as transport:
        await transport.subscribe(topic, got, mode=Mode.FANOUT, name="test")
        yield transport, await transport.publisher(topic), got


@pytest.mark.costly
async def test_payload_and_properties_arrive_as_they_were_sent(kind: Kind) -> None:
    async with receiving(kind) as (_, publisher, got):
        payload = bytes(range(256)) * 4
        properties = {"id": "1", "unicode": "żółć 🐈 عربى", "empty": ""}
        publisher.publish(payload, properties, flow="a", on_failure=unexpected)
        publisher.publish(b"", {"id": "2"}, flow="a", on_failure=unexpected)
        await got.count(2)
    assert got.messages == [(payload, properties), (b"", {"id": "2"})]


async def test_handlers_run_on_the_loop(kind: Kind) -> None:
    topic, got = kind.topic(), Received()
    threads: list[threading.Thread] = []

    def handler(message: Message) -> None:
        threads.append(threading.current_thread())
        got(message)

    async with kind.connected() as transport:
        await transport.subscribe(topic, handler, mode=Mode.FANOUT, name="test")
        publisher = await transport.publisher(topic)
        send(publisher, b"x")
        await got.count(1)
    assert threads == [threading.current_thread()]


async def test_shared_subscribers_take_turns(kind: Kind) -> None:
    topic = kind.topic()
    everyone = [Received() for _ in range(3)]
    total = Received()

    def both(mine: Received) -> Callable[[Message], None]:
        def handler(message: Message) -> None:
            mine(message)
            total(message)

        return handler

    async with kind.connected() as one, kind.connected() as two, kind.connected() as three:
        for transport, received in zip((one, two, three), everyone, strict=True):
            await transport.subscribe(topic, both(received), mode=Mode.SHARED, name="service")
        publisher = await one.publisher(topic)
        send(publisher, *(str(number).encode() for number in range(90)))
        await total.count(90)
    assert sorted(map(int, total.payloads)) == list(range(90))
    if kind.scheme == "persistent":
        return  # there the broker reads ahead and hands out what it read together
    assert all(20 <= len(received.messages) <= 40 for received in everyone), [len(r.messages) for r in everyone]


async def test_each_shared_group_gets_everything(kind: Kind) -> None:
    topic, one, two = kind.topic(), Received(), Received()
    async with kind.connected() as transport:
        await transport.subscribe(topic, one, mode=Mode.SHARED, name="one")
        await transport.subscribe(topic, two, mode=Mode.SHARED, name="two")
        publisher = await transport.publisher(topic)
        send(publisher, *(str(number).encode() for number in range(10)))
        assert await one.count(10) == await two.count(10) == [str(n).encode() for n in range(10)]


async def test_fan_out_gives_everyone_everything_in_order(kind: Kind) -> None:
    topic, one, two = kind.topic(), Received(), Received()
    async with kind.connected() as transport, kind.connected() as other:
        await transport.subscribe(topic, one, mode=Mode.FANOUT, name="test")
        await other.subscribe(topic, two, mode=Mode.FANOUT, name="test")
        publisher = await transport.publisher(topic)
        send(publisher, *(str(number).encode() for number in range(300)))
        expected = [str(n).encode() for n in range(300)]
        assert await one.count(300) == expected
        assert await two.count(300) == expected


async def test_a_subscriber_gets_nothing_from_before(kind: Kind) -> None:
    topic, got = kind.topic(), Received()
    async with kind.connected() as transport:
        publisher = await transport.publisher(topic)
        send(publisher, b"too early")
        await transport.flush()
        await transport.subscribe(topic, got, mode=Mode.FANOUT, name="test")
        send(publisher, b"in time")
        assert await got.count(1) == [b"in time"]


async def test_the_first_message_after_subscribing_is_delivered(kind: Kind) -> None:
    """Publisher and subscriber on connections of their own: the permits must be there before subscribe returns."""
    async with kind.connected() as here, kind.connected() as there:
        for _ in range(25):
            topic, got = kind.topic(), Received()
            publisher = await there.publisher(topic)
            await here.subscribe(topic, got, mode=Mode.FANOUT, name="test")
            send(publisher, b"first")
            assert await got.count(1) == [b"first"]


async def test_a_handler_that_raises_costs_its_message_only(kind: Kind) -> None:
    topic, got = kind.topic(), Received()

    def handler(message: Message) -> None:
        if message.data() == b"bad":
            raise ValueError("cannot handle this")
        got(message)

    async with kind.connected() as transport:
        await transport.subscribe(topic, handler, mode=Mode.SHARED, name="service")
        publisher = await transport.publisher(topic)
        send(publisher, *(b"one", b"bad", b"two"))
        assert await got.count(2) == [b"one", b"two"]
        assert transport.handler_errors == 1  # type: ignore[attr-defined]


async def test_what_arrived_before_close_is_handled_and_nothing_after_it(kind: Kind) -> None:
    topic, got, witness = kind.topic(), Received(), Received()
    async with kind.connected() as transport, kind.connected() as other:
        await other.subscribe(topic, witness, mode=Mode.FANOUT, name="witness")
        subscription = await transport.subscribe(topic, got, mode=Mode.FANOUT, name="test")
        publisher = await transport.publisher(topic)
        send(publisher, b"before")
        await witness.count(1)
        await got.count(1)
        await subscription.close()
        send(publisher, b"after")
        assert await witness.count(2) == [b"before", b"after"]
        await subscription.close()
    assert got.payloads == [b"before"]


async def test_the_largest_message_passes_and_a_larger_one_is_refused(kind: Kind) -> None:
    async with receiving(kind) as (_, publisher, got):
        publisher.publish(b"x" * MAX_MESSAGE_BYTES, {"id": "x" * 64}, flow="a", on_failure=unexpected)
        assert [len(payload) for payload in await got.count(1)] == [MAX_MESSAGE_BYTES]
        failed: asyncio.Future[TransportError] = asyncio.get_running_loop().create_future()
        publisher.publish(b"x" * (5 * 1024 * 1024 + 1), {}, flow="a", on_failure=failed.set_result)
        assert not failed.done(), "a failure is reported later, never from inside publish"
        async with asyncio.timeout(10):
            error = await failed
    assert (error.type, error.may_have_run, error.retryable) == ("request-too-large", False, False)


async def test_publishers_of_one_topic_are_closed_one_by_one(kind: Kind) -> None:
    topic, got = kind.topic(), Received()
    async with kind.connected() as transport:
        await transport.subscribe(topic, got, mode=Mode.FANOUT, name="test")
        one, two = await transport.publisher(topic), await transport.publisher(topic)
        await one.close()
        send(two, b"still here")
        assert await got.count(1) == [b"still here"]
        await two.close()
        again = await transport.publisher(topic)
        send(again, b"again")
        assert await got.count(2) == [b"still here", b"again"]


async def test_a_burst_beyond_the_window_arrives_in_order_within_each_flow(kind: Kind) -> None:
    async with receiving(kind) as (transport, publisher, got):
        for number in range(200):
            for flow in ("a", "b"):
                publisher.publish(f"{flow}{number}".encode(), {}, flow=flow, on_failure=unexpected)
        await publisher.writable("a")
        await publisher.writable("b")
        await transport.flush()
        payloads = await got.count(400)
    for flow in (b"a", b"b"):
        assert [p for p in payloads if p.startswith(flow)] == [flow + str(n).encode() for n in range(200)]


async def test_a_cancelled_message_does_not_report_its_failure(kind: Kind) -> None:
    topic = kind.topic()
    async with kind.connected() as transport:
        publisher = await transport.publisher(topic)
        ticket = publisher.publish(b"x" * (5 * 1024 * 1024 + 1), {}, flow="a", on_failure=unexpected)
        ticket.cancel()
        await transport.flush()


async def test_packets_arrive_in_order_without_properties(kind: Kind) -> None:
    async with receiving(kind) as (_, publisher, got):
        packets = [bytes([0x99, number]) * 100 for number in range(200)]
        assert all(publisher.send_packet(packet) for packet in packets)
        await got.count(len(packets))
    assert got.messages == [(packet, {}) for packet in packets]
    assert not publisher.send_packet(b"x"), "closed"


async def test_a_closed_transport_says_so(kind: Kind) -> None:
    async with kind.connected() as transport:
        assert transport.connected
        publisher = await transport.publisher(kind.topic())
    assert not transport.connected
    with pytest.raises(TransportError, match="closed"):
        send(publisher, b"x")
    with pytest.raises(TransportError, match="closed"):
        await transport.publisher(kind.topic())
    with pytest.raises(TransportError, match="closed"):
        await transport.subscribe(kind.topic(), Received(), mode=Mode.FANOUT, name="test")
    await transport.close()
