"""Faults apply to packets of sessions as to messages."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from dispatch.testing import Faults, FaultyTransport, advance, idle
from dispatch.testing.faults import NOT_OF_PACKETS
from dispatch.transports import Message, Mode
from dispatch.transports.memory import MemoryTransport

TOPIC = "non-persistent://tg/request/packets"
names = itertools.count()


@contextlib.asynccontextmanager
async def ends(
    *faults: Faults, direction: str = "out"
) -> AsyncIterator[tuple[FaultyTransport, Callable[[int], bool], list[int]]]:
    """A sender of numbered packets and a receiver; the connection of one of them has the faults. An unreadable packet is
    received as -1."""
    url = f"memory://packets-{next(names)}"
    faulty, plain = FaultyTransport(MemoryTransport(url), *faults), MemoryTransport(url)
    sending, receiving = (faulty, plain) if direction == "out" else (plain, faulty)
    received: list[int] = []

    def on_packet(message: Message) -> None:
        data = message.data()
        received.append(int(data) if data.isdigit() else -1)

    await faulty.start()
    await plain.start()
    try:
        await receiving.subscribe(TOPIC, on_packet, mode=Mode.FANOUT, name="test")
        publisher = await sending.publisher(TOPIC)
        yield faulty, lambda number: publisher.send_packet(str(number).encode()), received
    finally:
        await faulty.close()
        await plain.close()
    assert not publisher.send_packet(b"1"), "closed"


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_dropped_packets_are_lost_and_no_others(direction: str) -> None:
    async with ends(Faults(drop=0.3), direction=direction) as (faulty, send, received):
        assert all(send(number) for number in range(500))
        await advance(60)
        assert len(received) == 500 - faulty.count[f"{direction} drop"]
        assert 100 < faulty.count[f"{direction} drop"] < 200


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_duplicated_packets_arrive_once_more_within_the_delay(direction: str) -> None:
    async with ends(Faults(duplicate=1, max_delay=2), direction=direction) as (_, send, received):
        for number in range(50):
            send(number)
        await idle()
        assert received == list(range(50))
        await advance(2)
        assert sorted(received[50:]) == list(range(50))


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_a_reordered_packet_arrives_after_the_next(direction: str) -> None:
    async with ends(Faults(reorder=1, max_delay=2), direction=direction) as (faulty, send, received):
        send(1)
        await idle()
        assert received == []
        faulty.heal()
        send(2)
        await advance(2)
        assert received == [2, 1]


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_delayed_packets_arrive_within_the_delay_out_of_order(direction: str) -> None:
    async with ends(Faults(delay=1, max_delay=2), direction=direction) as (_, send, received):
        for number in range(50):
            send(number)
        await advance(2)
        assert sorted(received) == list(range(50)) != received


async def test_malformed_packets_arrive_unreadable() -> None:
    async with ends(Faults(malformed=1)) as (_, send, received):
        assert all(send(number) for number in range(100, 150))
        await idle()
        assert len(received) == 50
        assert received.count(-1) > 20


async def test_error_sends_nothing_and_late_error_sends_half() -> None:
    async with ends(Faults(error=1)) as (faulty, send, received):
        assert not send(1)
        faulty.injector.inject(Faults(late_error=1))
        assert all(send(number) for number in range(200))
        await idle()
        assert 50 < len(received) < 150


async def test_an_interrupted_connection_sends_no_packet() -> None:
    async with ends(Faults(disconnect=1, reconnect_after=5)) as (faulty, send, received):
        send(1)
        assert not send(2)
        await advance(4.9)
        assert not send(3)
        assert faulty.count["out disconnected"] == 2
        assert received == []


@pytest.mark.parametrize("kind", sorted(NOT_OF_PACKETS))
async def test_faults_of_ids_and_replies_do_not_apply(kind: str) -> None:
    async with ends(Faults(**{kind: 1.0})) as (faulty, send, received):  # type: ignore[arg-type]
        assert send(1)
        await idle()
        assert received == [1]
        assert not faulty.count


async def test_latency_keeps_the_order_of_packets() -> None:
    async with ends(Faults(latency=(0.0, 0.5))) as (_, send, received):
        for number in range(50):
            send(number)
        await advance(1)
        assert received == list(range(50))
