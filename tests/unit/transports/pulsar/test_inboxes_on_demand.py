"""Inboxes of peers after an outage: opened again with the next message only, since their owners may have ended."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.wire import instance_topic, reply_topic
from dispatch.transports.pulsar.supervisor import GRACE_S, POLL_S
from dispatch.transports.pulsar.transport import MAX_WAITING
from tests.helpers.clock import advance, idle
from tests.helpers.fake_pulsar import OTHER, REPLACED_S, SEEN_S, TOPIC, Failures, FakeBroker, connected, listen, send

REPLIES = reply_topic("non-persistent://tg/response/work", "0123456789abcdef-agent")
INSTANCE = instance_topic(TOPIC, "one")
GONE = TransportError("no-such-namespace", "The broker has no namespace 'tg/response'.", may_have_run=False)


@pytest.mark.parametrize("inbox", [REPLIES, INSTANCE, REPLIES.replace("non-persistent", "persistent")])
async def test_an_inbox_is_opened_again_for_the_next_message_and_not_before(broker: FakeBroker, inbox: str) -> None:
    failures = Failures()
    async with connected() as transport:
        await listen(transport, lambda _: None)
        own, peer = await transport.publisher(OTHER), await transport.publisher(inbox)
        broker.restarts()
        await advance(REPLACED_S)
        assert transport.reconnects == 1
        await advance(60)
        assert [raw.topic for raw in broker.link.producers] == [OTHER]
        send(peer, failures, "a1", "a2")
        send(own, failures, "b1")
        await idle()
        assert broker.producer(inbox).payloads == [b"a1", b"a2"]
        assert broker.producer(OTHER).payloads == [b"b1"]
        for topic in (inbox, OTHER):
            broker.producer(topic).receipts()
    assert failures.told == []


async def test_thousands_of_inboxes_do_not_delay_the_end_of_an_outage(broker: FakeBroker) -> None:
    async with connected() as transport:
        await listen(transport, lambda _: None)
        for number in range(2_000):
            await transport.publisher(f"{REPLIES}-{number}")
        broker.openings.clear()
        broker.up = False
        await advance(GRACE_S + 2 * POLL_S)
        assert all(producer.closed for producer in broker.link.producers), (
            "pulsar-client would open them again by itself"
        )
        broker.restarts()
        broker.up = True
        await advance(REPLACED_S)
        assert transport.connected
        assert broker.openings == [TOPIC]


async def test_what_is_published_during_an_outage_arrives_after_it(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected() as transport:
        await listen(transport, lambda _: None)
        peer, silent = await transport.publisher(REPLIES), await transport.publisher(INSTANCE)
        broker.up = False
        await advance(5)
        send(peer, failures, "a1", "a2")
        broker.restarts()
        broker.up = True
        await advance(REPLACED_S)
        assert broker.producer(REPLIES).payloads == [b"a1", b"a2"]
        assert [raw.topic for raw in broker.link.producers] == [REPLIES]
        broker.producer(REPLIES).receipts()
        await silent.close()
    assert failures.told == []


async def test_packets_open_an_inbox_too_and_leave_in_order(broker: FakeBroker) -> None:
    async with connected() as transport:
        await listen(transport, lambda _: None)
        peer = await transport.publisher(REPLIES)
        broker.restarts()
        await advance(REPLACED_S)
        broker.gate.clear()
        for number in range(3):
            assert peer.send_packet(b"%d" % number)
        await idle()
        assert broker.openings.count(REPLIES) == 2, "once for all of them"
        broker.gate.set()
        await idle()
        assert broker.producer(REPLIES).payloads == [b"0", b"1", b"2"]
        assert peer.send_packet(b"3")
        broker.producer(REPLIES).receipts()


async def test_what_waits_for_an_inbox_is_bounded_can_be_withdrawn_and_delays_nothing_else(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected(publish_window=1) as transport:
        await listen(transport, lambda _: None)
        own, peer = await transport.publisher(OTHER), await transport.publisher(REPLIES)
        broker.restarts()
        await advance(REPLACED_S)
        broker.gate.clear()
        first, *_ = send(peer, failures, *(f"a{number}" for number in range(MAX_WAITING)))
        assert first.waits
        assert not peer.send_packet(b"p")
        send(peer, failures, "a-one-too-many")
        send(own, failures, "b1")
        await idle()
        assert failures.types == [("a-one-too-many", "publish-queue-full", False)]
        assert broker.producer(OTHER).payloads == [b"b1"]
        broker.producer(OTHER).receipts()
        assert first.cancel()
        writable = asyncio.create_task(peer.writable("a"))
        await idle()
        assert not writable.done()
        broker.gate.set()
        producer = broker.producer(REPLIES)
        while not writable.done():
            await idle()
            producer.receipts()
        assert producer.payloads == [b"a%d" % number for number in range(1, MAX_WAITING)]
        await transport.flush()


async def test_an_inbox_that_is_refused_fails_what_waited_for_it_and_says_why(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected() as transport:
        await listen(transport, lambda _: None)
        peer = await transport.publisher(REPLIES)
        broker.always_refused[REPLIES] = GONE
        broker.restarts()
        await advance(REPLACED_S)
        assert peer.opening_error is None
        send(peer, failures, "a1")
        await advance(60)
        assert failures.types == [("a1", "no-such-namespace", False)]
        assert peer.opening_error is GONE
        assert broker.openings.count(REPLIES) == 2, "not again without a message"
        broker.always_refused.clear()
        send(peer, failures, "a2")
        await idle()
        assert peer.opening_error is None
        assert broker.producer(REPLIES).payloads == [b"a2"]
        broker.producer(REPLIES).receipts()


async def test_a_connection_that_is_lost_while_an_inbox_is_opened_loses_nothing(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected() as transport:
        await listen(transport, lambda _: None)
        peer = await transport.publisher(REPLIES)
        broker.restarts()
        await advance(REPLACED_S)
        broker.gate.clear()
        send(peer, failures, "a1")
        await idle()
        broker.restarts()
        broker.up = False
        await advance(5)
        broker.gate.set()
        broker.up = True
        await advance(2 * REPLACED_S)
        assert broker.producer(REPLIES).payloads == [b"a1"]
        broker.producer(REPLIES).receipts()
    assert failures.told == []


async def test_what_waits_for_an_inbox_fails_when_the_connection_is_closed(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected() as transport:
        await listen(transport, lambda _: None)
        peer = await transport.publisher(REPLIES)
        broker.restarts()
        await advance(REPLACED_S)
        broker.gate.clear()
        send(peer, failures, "a1")
        await idle()
    assert failures.types == [("a1", "closed", False)]


async def test_an_inbox_that_is_lost_alone_is_not_opened_again_either(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected() as transport:
        await listen(transport, lambda _: None)
        peer = await transport.publisher(REPLIES)
        broker.producer(REPLIES).closed = True
        await advance(60)
        assert broker.openings == [TOPIC, REPLIES]
        assert transport.connected
        send(peer, failures, "a1")
        await idle()
        assert broker.producer(REPLIES).payloads == [b"a1"]
        broker.producer(REPLIES).receipts()
    assert failures.told == []


async def test_a_connection_of_inboxes_alone_is_back_when_the_broker_is(broker: FakeBroker) -> None:
    async with connected() as transport:
        await transport.publisher(REPLIES)
        broker.up = False
        await advance(10)
        assert not transport.connected, "no handle is left that could show it"
        broker.restarts()
        broker.up = True
        await advance(REPLACED_S)
        assert transport.connected


async def test_a_reconnection_logs_one_line_however_many_topics_cannot_be_opened(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dispatch.transport")
    async with connected() as transport:
        topics = [f"{TOPIC}-{number}" for number in range(12)] + [f"non-persistent://tg/response/{n}" for n in "ab"]
        for topic in topics:
            await transport.publisher(topic)
            broker.always_refused[topic] = TransportError("no-such-namespace", "x" * 500, may_have_run=False)
        await transport.publisher("non-persistent://tg/other/work")
        broker.restarts()
        await advance(REPLACED_S + 60)
        (warning,) = (text for record in caplog.records if "cannot be opened" in (text := record.getMessage()))
        assert warning.startswith(
            "14 topics cannot be opened (no namespace tg/request, no namespace tg/response); retrying"
        )
        assert len(warning) < 200
        caplog.clear()
        broker.always_refused.clear()
        await advance(31 + SEEN_S)
        assert "14 topics are open again" in caplog.text
        assert len(caplog.records) == 1
