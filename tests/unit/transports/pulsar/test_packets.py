"""Packets of sessions over Pulsar: best effort, bounded by receipts, and part of the supervision."""

from __future__ import annotations

import asyncio

from dispatch.messaging.wire import PROPERTIES_BYTES
from dispatch.transports.errors import unreachable
from dispatch.transports.pulsar.supervisor import GRACE_S, POLL_S, SILENT_S
from dispatch.transports.pulsar.transport import MAX_PACKETS_IN_DOUBT
from tests.helpers.clock import advance, idle
from tests.helpers.fake_pulsar import (
    DROPPED,
    OTHER,
    REPLACED_S,
    SEEN_S,
    TOPIC,
    URL,
    Failures,
    FakeBroker,
    connected,
    send,
)


async def test_packets_bypass_the_window_and_its_queue(broker: FakeBroker) -> None:
    async with connected(publish_window=1) as transport:
        publisher = await transport.publisher(TOPIC)
        send(publisher, Failures(), "a1", "a2")
        assert publisher.send_packet(b"p1")
        assert publisher.send_packet(b"p2")
        assert broker.producer().payloads == [b"a1", b"p1", b"p2"]
        assert broker.producer().sent[1].properties == {}
        broker.producer().receipts()


async def test_packets_without_a_receipt_are_bounded(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher, other = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        for _ in range(MAX_PACKETS_IN_DOUBT):
            assert publisher.send_packet(b"p")
        assert not publisher.send_packet(b"p")
        assert not other.send_packet(b"p"), "the broker's limit counts all producers of a connection"
        broker.producer().receipts(3)
        assert [other.send_packet(b"p") for _ in range(5)] == [True, True, True, False, False]
        assert len(broker.producer(OTHER).sent) == 3


async def test_a_packet_is_not_sent_while_the_connection_is_down(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        broker.up = False
        await advance(SEEN_S)
        assert not publisher.send_packet(b"p1")
        broker.up = True
        await advance(SEEN_S)
        assert publisher.send_packet(b"p2")
        assert broker.producer().payloads == [b"p2"], "pulsar-client would send it long afterwards"
        broker.producer().receipts()
    assert not publisher.send_packet(b"p3")


async def test_a_packet_is_not_sent_to_a_topic_that_cannot_be_opened(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher, other = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        broker.always_refused[TOPIC] = unreachable(URL)
        broker.producer(TOPIC).closed = True
        await advance(GRACE_S + 2 * POLL_S)
        assert not publisher.send_packet(b"p")
        assert other.send_packet(b"p")
        broker.producer(OTHER).receipts()


async def test_packets_that_were_dropped_or_not_sent_are_counted(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        for _ in range(3):
            publisher.send_packet(b"p")
        first, second, third = broker.producer().sent
        first.ok(DROPPED)
        second.ok()
        third.fails("Timeout")
        assert transport.packets_dropped == 2
        broker.producer().refusal = RuntimeError("too large")
        assert not publisher.send_packet(b"p")
        assert transport.packets_dropped == 3
        await transport.flush()


async def test_a_broker_that_confirms_no_packet_is_out_of_reach_until_it_answers(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        publisher.send_packet(b"p1")
        broker.handshake = unreachable(URL)
        await advance(SILENT_S + 2 * POLL_S)
        assert not transport.connected
        assert not publisher.send_packet(b"p2")
        broker.handshake = None
        broker.producer().receipts()
        await advance(SEEN_S)
        assert transport.connected
        assert publisher.send_packet(b"p3")
        broker.producer().receipts()


async def test_a_broker_that_stalls_excuses_the_silence_of_peers_until_it_confirms_again(broker: FakeBroker) -> None:
    """Its handshakes are answered, so that the connection is kept; packets of living peers came a second late."""
    loop = asyncio.get_running_loop()
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        publisher.send_packet(b"p1")
        began = loop.time()
        await advance(SILENT_S + 2 * POLL_S)
        assert transport.connected
        assert transport.was_disconnected_since(began, [TOPIC])
        broker.producer().receipts()
        await advance(2 * POLL_S)
        assert transport.was_disconnected_since(began, [TOPIC])
        assert not transport.was_disconnected_since(loop.time() - POLL_S / 2, [TOPIC])


async def test_a_broker_that_confirms_one_packet_after_the_other_is_not_asked(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        asked = broker.handshakes
        for _ in range(20):
            publisher.send_packet(b"p")
            publisher.send_packet(b"p")
            await advance(POLL_S)
            broker.producer().receipts(1)
        assert transport.connected
        assert broker.handshakes == asked
        broker.producer().receipts()


async def test_receipts_of_packets_that_the_old_client_did_not_bring_are_not_waited_for(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        for _ in range(MAX_PACKETS_IN_DOUBT):
            publisher.send_packet(b"p")
        old = broker.producer()
        old.sent[0].ok(DROPPED)
        old.settled = len(old.sent)  # as if its callbacks had got lost with it
        broker.restarts()
        await advance(REPLACED_S)
        assert transport.reconnects == 1
        assert publisher.send_packet(b"q")
        old.sent[1].ok()
        assert transport.packets_dropped == 1
        await advance(POLL_S)
        broker.producer().receipts()
        await advance(2 * SILENT_S)
        assert transport.connected


async def test_a_packet_that_is_too_large_makes_the_transport_ask_for_the_limit(broker: FakeBroker) -> None:
    """pulsar-client has reconnected by itself, and learned of a lower limit."""
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        asked = broker.handshakes
        broker.limit = 1_000_000
        publisher.send_packet(b"p1")
        broker.producer().sent[0].fails("Timeout")
        await advance(SEEN_S)
        assert broker.handshakes == asked
        publisher.send_packet(b"p2")
        broker.producer().sent[1].fails("MessageTooBig")
        broker.handshake = unreachable(URL)
        await advance(SEEN_S)
        assert transport.connected
        broker.handshake = None
        await advance(SEEN_S)
        assert transport.max_message_bytes == 1_000_000 - PROPERTIES_BYTES
        asked = broker.handshakes
        await advance(10 * POLL_S)
        assert broker.handshakes == asked, "once"


async def test_flush_waits_for_the_receipts_of_packets(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        publisher.send_packet(b"p1")
        publisher.send_packet(b"p2")
        flush = asyncio.create_task(transport.flush())
        await idle()
        broker.producer().receipts(1)
        await idle()
        assert not flush.done()
        broker.producer().receipts(1)
        await idle()
        assert flush.done()
