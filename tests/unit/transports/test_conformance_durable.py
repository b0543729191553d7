"""The same over every transport, for durable subscriptions: what a broker keeps, gives again, and forgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dispatch.transports import DurableMessage, Message, Mode
from dispatch.transports.base import MAX_RELEASES
from tests.unit.transports.test_conformance import Kind, Received, unexpected


@pytest.fixture(params=[pytest.param("memory"), pytest.param("pulsar", marks=pytest.mark.pulsar)])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "memory":
        return Kind("memory://", "persistent")
    return Kind(request.getfixturevalue("pulsar_endpoint").service_url, "persistent")


class Keeping(Received):
    """Keeps what it gets, and acknowledges nothing by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[DurableMessage] = []

    def __call__(self, message: Message) -> None:
        message.keep()
        self.kept.append(message)
        super().__call__(message)


async def publish(kind: Kind, topic: str, *payloads: bytes) -> None:
    async with kind.connected() as transport:
        publisher = await transport.publisher(topic)
        for payload in payloads:
            publisher.publish(payload, {"of": payload.decode()}, flow="a", on_failure=unexpected)
        await transport.flush()


async def test_what_comes_while_nobody_listens_is_kept_for_those_who_did(kind: Kind) -> None:
    topic, first, second = kind.topic(), Received(), Received()
    async with kind.connected() as witness:
        await witness.subscribe(
            topic, Received(), mode=Mode.FANOUT, name="witness"
        )  # an embedded broker ends with its last
        async with kind.connected() as transport:
            await transport.subscribe(topic, first, mode=Mode.SHARED, name="service")
            await publish(kind, topic, b"one")
            await first.count(1)
        await publish(kind, topic, b"two", b"three")
        async with kind.connected() as transport:
            await transport.subscribe(topic, second, mode=Mode.SHARED, name="service")
            assert await second.count(2) == [b"two", b"three"]
    assert second.messages[0] == (b"two", {"of": "two"})


async def test_what_was_not_acknowledged_goes_to_another_subscriber_and_nothing_else(kind: Kind) -> None:
    topic, first, second = kind.topic(), Keeping(), Received()
    async with kind.connected() as other:
        async with kind.connected() as transport:
            subscription = await transport.subscribe(topic, first, mode=Mode.SHARED, name="service")
            await publish(kind, topic, *(b"%d" % number for number in range(10)))
            await first.count(10)
            for message in first.kept[::2]:
                message.acknowledge()
                message.acknowledge()
            await other.subscribe(topic, second, mode=Mode.SHARED, name="service")
            await subscription.close()
            assert await second.count(5) == [b"1", b"3", b"5", b"7", b"9"]
        await publish(kind, topic, b"new")
        assert (await second.count(6))[-1] == b"new"


async def test_what_is_released_comes_again_so_many_times_and_is_acknowledged_then(kind: Kind) -> None:
    topic, first, second = kind.topic(), Keeping(), Keeping()
    async with kind.connected() as transport, kind.connected() as other:
        subscription = await transport.subscribe(topic, first, mode=Mode.SHARED, name="service")
        await publish(kind, topic, b"1", b"2")
        for number in range(1 + MAX_RELEASES):
            await first.count(2 + number)
            next(each for each in reversed(first.kept) if each.data() == b"1").release()
        await subscription.close()
        await other.subscribe(topic, second, mode=Mode.SHARED, name="service")
        await publish(kind, topic, b"3")
        assert await second.count(2) == [b"2", b"3"]
    assert [each.data() for each in first.kept] == [b"1", b"2", *[b"1"] * MAX_RELEASES]


async def test_then_is_called_later_and_what_was_settled_comes_to_nobody_else(kind: Kind) -> None:
    topic, second, settled = kind.topic(), Received(), asyncio.Event()
    called: list[bytes] = []

    def handler(message: Message) -> None:
        payload = message.data()
        message.settle(then(payload))
        assert payload not in called, "never from inside"

    def then(payload: bytes) -> Callable[[], None]:
        def call() -> None:
            called.append(payload)
            if len(called) == 3:
                settled.set()

        return call

    async with kind.connected() as other, kind.connected() as transport:
        subscription = await transport.subscribe(topic, handler, mode=Mode.SHARED, name="service")
        await publish(kind, topic, b"1", b"2", b"3")
        async with asyncio.timeout(10):
            await settled.wait()
        await subscription.close()
        await other.subscribe(topic, second, mode=Mode.SHARED, name="service")
        await publish(kind, topic, b"4")
        assert await second.count(1) == [b"4"]
    assert called == [b"1", b"2", b"3"]


async def test_a_message_knows_how_long_it_was_under_way(kind: Kind) -> None:
    topic, first, second = kind.topic(), Keeping(), Keeping()
    async with kind.connected() as other:
        await other.subscribe(topic, Received(), mode=Mode.FANOUT, name="witness")
        async with kind.connected() as transport:
            await transport.subscribe(topic, first, mode=Mode.SHARED, name="service")
            await publish(kind, topic, b"fresh")
            await first.count(1)
        await asyncio.sleep(0.3)  # time is what is measured
        await publish(kind, topic, b"late")
        await other.subscribe(topic, second, mode=Mode.SHARED, name="service")
        await second.count(2)
    fresh, (again, late) = first.kept[0], second.kept
    assert (again.data(), late.data()) == (b"fresh", b"late")
    assert not fresh.backlog
    assert again.backlog
    assert again.lag - fresh.lag >= 0.25
    assert again.lag - late.lag >= 0.25
