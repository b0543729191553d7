"""Staying connected: what happens to messages while the broker is away, how the connection comes back, and how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch.errors import TransportError
from dispatch.transports.errors import unreachable
from dispatch.transports.pulsar.supervisor import POLL_S, RELINK_PAUSE_S
from tests.helpers.clock import advance, idle
from tests.helpers.fake_pulsar import (
    KEPT,
    OTHER,
    REPLACED_S,
    SEEN_S,
    TOPIC,
    URL,
    Failures,
    FakeBroker,
    Kept,
    connected,
    listen,
    publishing,
    send,
    texts,
)


async def test_a_moments_absence_costs_nothing(broker: FakeBroker) -> None:
    failures, got = Failures(), list[Any]()
    async with publishing() as (transport, publisher):
        await listen(transport, got.append)
        send(publisher, failures, "a1")
        broker.up = False
        await advance(SEEN_S)
        assert not transport.connected
        send(publisher, failures, "a2", "a3")
        assert broker.producer().payloads == [b"a1"], "held back: nobody could take it back from pulsar-client"
        broker.up = True
        await advance(SEEN_S)
        assert transport.connected
        assert broker.producer().payloads == [b"a1", b"a2", b"a3"]
        assert (len(broker.links), transport.reconnects, broker.handshakes) == (1, 0, 1)
        broker.producer().receipts()
    assert failures.told == []


async def test_an_outage_ends_with_new_producers_and_new_subscriptions(broker: FakeBroker) -> None:
    failures, got = Failures(), list[Any]()
    async with connected() as transport:
        publishers = [await transport.publisher(topic) for topic in (TOPIC, OTHER)]
        for topic in (TOPIC, KEPT):
            await listen(transport, texts(got), topic)
        old = broker.link
        broker.up = False
        await advance(10)
        assert (len(broker.links), transport.reconnects) == (1, 0), "nobody answers the handshake"
        assert broker.handshakes > 10
        broker.restarts()
        broker.up = True
        await advance(SEEN_S)
        assert (len(broker.links), transport.reconnects, transport.connected) == (2, 1, True)
        assert old.closed
        assert sorted(raw.topic for raw in broker.link.producers) == sorted([TOPIC, OTHER])
        assert sorted(raw.topic for raw in broker.link.consumers) == sorted([TOPIC, KEPT])
        for publisher in publishers:
            send(publisher, failures, "a1")
            assert broker.producer(publisher.topic).payloads == [b"a1"]
            broker.producer(publisher.topic).receipts()
        broker.consumer(TOPIC).deliver("one")
        broker.consumer(KEPT).deliver(Kept("two"))
        await idle()
        assert got == ["one", "two"]
        assert broker.consumer(KEPT).acknowledged == ["two"]
    assert failures.told == []


async def test_what_was_under_way_fails_once_and_its_late_receipts_mean_nothing(broker: FakeBroker) -> None:
    failures = Failures()
    async with publishing(publish_window=4) as (transport, publisher):
        send(publisher, failures, "a1", "a2", "a3")
        old = broker.producer()
        broker.restarts()
        await advance(REPLACED_S)
        assert transport.reconnects == 1
        assert sorted(failures.types) == [(f"a{n}", "connection-lost", True) for n in (1, 2, 3)]
        send(publisher, failures, "b1", "b2", "b3", "b4", "b5")
        for sent in old.sent:
            sent.ok()
            sent.fails("Timeout")
        await idle()
        assert broker.producer().payloads == [b"b1", b"b2", b"b3", b"b4"], "the window counts the new ones only"
        assert len(failures.told) == 3
        broker.producer().receipts()
        await idle()
        broker.producer().receipts()


async def test_receipts_that_the_end_of_the_old_client_did_not_bring_are_not_waited_for(broker: FakeBroker) -> None:
    failures = Failures()
    async with publishing() as (transport, publisher):
        send(publisher, failures, "a1", "a2")
        broker.producer().settled = 2  # as if its callbacks had got lost with it
        broker.restarts()
        await advance(REPLACED_S)
        assert sorted(failures.types) == [("a1", "connection-lost", True), ("a2", "connection-lost", True)]
        await transport.flush()


async def test_while_it_is_away_messages_wait_within_bounds_and_can_be_withdrawn(broker: FakeBroker) -> None:
    failures = Failures()
    async with publishing(max_queued=3) as (transport, publisher):
        broker.restarts()
        broker.up = False
        await advance(SEEN_S)
        tickets = send(publisher, failures, "a1", "a2", "a3")
        with pytest.raises(TransportError) as caught:
            send(publisher, failures, "a4")
        assert (caught.value.type, caught.value.may_have_run) == ("publish-queue-full", False)
        writable = asyncio.create_task(publisher.writable("a"))
        flush = asyncio.create_task(transport.flush())
        await advance(1)
        assert tickets[1].cancel() is True
        broker.up = True
        await advance(REPLACED_S)
        assert writable.done()
        assert broker.producer().payloads == [b"a1", b"a3"]
        broker.producer().receipts()
        await flush
    assert failures.told == []


async def test_withdrawing_the_last_one_ends_the_waiting_for_it(broker: FakeBroker) -> None:
    async with publishing() as (transport, publisher):
        broker.up = False
        await advance(SEEN_S)
        (ticket,) = send(publisher, Failures(), "a1")
        waiting = [asyncio.create_task(publisher.writable("a")), asyncio.create_task(transport.flush())]
        await idle()
        assert ticket.cancel()
        await asyncio.gather(*waiting)


async def test_nothing_is_opened_while_it_is_away(broker: FakeBroker) -> None:
    async with connected() as transport:
        await transport.publisher(TOPIC)
        broker.up = False
        await advance(SEEN_S)
        for opening in (transport.publisher(OTHER), listen(transport, list[Any]().append)):
            with pytest.raises(TransportError) as caught:
                await opening
            assert (caught.value.type, caught.value.may_have_run) == ("unreachable", False)
        assert (await transport.publisher(TOPIC)).topic == TOPIC, "what is open stays usable: messages wait"
        broker.up = True
        await advance(SEEN_S)
        await transport.publisher(OTHER)


@pytest.mark.parametrize(
    "problem", [unreachable(URL), RuntimeError("a token function of the user's"), ValueError("odd"), OSError("odd")]
)
async def test_the_supervisor_outlives_whatever_a_handshake_raises(broker: FakeBroker, problem: Exception) -> None:
    async with connected() as transport:
        await transport.publisher(TOPIC)
        broker.restarts()
        broker.handshake = problem
        await advance(30)
        assert not transport.connected
        broker.handshake = None
        await advance(SEEN_S)
        assert transport.connected


async def test_a_topic_that_cannot_be_opened_again_is_tried_again_by_itself(broker: FakeBroker) -> None:
    failures, got = Failures(), list[Any]()
    async with publishing() as (transport, publisher):
        await listen(transport, got.append)
        await listen(transport, got.append, OTHER)
        broker.restarts()
        broker.refusals[TOPIC] = unreachable(URL)
        await advance(REPLACED_S)
        assert transport.connected, "the others are there"
        await advance(1)
        assert len(broker.links) == 2, "no new client for one topic"
        send(publisher, failures, "a1")
        assert broker.producer().payloads == [b"a1"]
        for topic in (TOPIC, OTHER):
            broker.consumer(topic).deliver(topic)
        await idle()
        assert got == [TOPIC, OTHER]
        broker.producer().receipts()


async def test_what_is_closed_while_the_client_is_replaced_stays_closed(broker: FakeBroker) -> None:
    """Otherwise a service that has gone would go on taking requests, and nobody would answer them."""
    got: list[Any] = []
    async with connected() as transport:
        publisher = await transport.publisher(OTHER)
        subscription = await listen(transport, got.append)
        broker.restarts()
        broker.gate.clear()
        await advance(REPLACED_S)
        assert len(broker.links) == 2
        await subscription.close()
        await publisher.close()
        broker.gate.set()
        await advance(SEEN_S)
        assert [raw.topic for raw in [*broker.link.consumers, *broker.link.producers] if raw.is_connected()] == []
        assert transport.connected


async def test_a_publisher_that_is_closed_while_its_own_successor_is_made_leaves_none(broker: FakeBroker) -> None:
    async with publishing() as (_, publisher):
        broker.restarts()
        broker.gate.clear()
        await advance(REPLACED_S)
        assert broker.openings == [TOPIC, TOPIC]
        await publisher.close()
        broker.gate.set()
        await advance(SEEN_S)
        assert broker.producer().closed


async def test_whoever_subscribes_while_the_client_is_replaced_gets_the_new_one(broker: FakeBroker) -> None:
    got: list[Any] = []
    async with connected() as transport:
        await transport.publisher(TOPIC)
        broker.gate.clear()
        waiting = asyncio.create_task(listen(transport, got.append, OTHER))
        also = asyncio.create_task(listen(transport, texts(got), KEPT))
        await idle()
        broker.restarts()
        await advance(REPLACED_S)
        assert len(broker.links) == 2, "one slow topic holds nobody up"
        broker.gate.set()
        await also
        await waiting
        await advance(REPLACED_S)
        assert transport.connected
        for topic in (OTHER, KEPT):
            broker.consumer(topic).deliver(Kept(topic))
        await idle()
        assert sorted(got) == sorted([OTHER, KEPT])
        assert all(raw.link is broker.link for raw in (broker.consumer(OTHER), broker.consumer(KEPT)))


async def test_one_lost_topic_leaves_the_rest_alone_and_comes_back_by_itself(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its namespace was deleted, or its rights withdrawn."""
    failures, got = Failures(), list[Any]()
    gone = TransportError("no-such-namespace", "The broker has no namespace 'tg/request'.", may_have_run=False)
    async with connected() as transport:
        lost = await transport.publisher(TOPIC)
        fine = await transport.publisher(OTHER)
        await listen(transport, texts(got), KEPT)
        broker.always_refused[TOPIC] = gone
        broker.producer(TOPIC).close()
        await advance(REPLACED_S)
        for _ in range(60):
            assert transport.connected
            with pytest.raises(TransportError) as caught:
                send(lost, failures, "a1")
            assert (caught.value.type, caught.value.may_have_run) == ("no-such-namespace", False)
            send(fine, failures, "b1")
            broker.producer(OTHER).receipts()
            broker.consumer(KEPT).deliver(Kept("one"))
            await advance(1)
        assert got == ["one"] * 60
        assert len(broker.links) == 1, "the rest does not notice"
        assert 5 < broker.openings.count(TOPIC) < 12, "ever less often"
        assert caplog.text.count("retrying in the background") == 1
        del broker.always_refused[TOPIC]
        await advance(31)
        send(lost, failures, "a2")
        assert broker.producer(TOPIC).payloads == [b"a2"]
        broker.producer(TOPIC).receipts()
    assert failures.told == []


async def test_what_is_closed_while_it_is_set_aside_is_not_tried_again(broker: FakeBroker) -> None:
    async with connected() as transport:
        lost, _ = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        broker.always_refused[TOPIC] = TransportError("no-such-namespace", "None.", may_have_run=False)
        broker.producer(TOPIC).close()
        await advance(REPLACED_S)
        await lost.close()
        tried = broker.openings.count(TOPIC)
        await advance(60)
        assert broker.openings.count(TOPIC) == tried


async def test_a_slow_opening_holds_no_other_one_up(broker: FakeBroker) -> None:
    async with connected() as transport:
        broker.gate.clear()
        slow = asyncio.create_task(transport.publisher(TOPIC))
        await idle()
        broker.gate.set()
        other = await transport.publisher(OTHER)
        assert other.topic == OTHER
        await slow


async def test_when_nothing_can_be_opened_the_connection_is_down(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as transport:
        await transport.publisher(TOPIC)
        await listen(transport, lambda _: None, OTHER)
        for topic in (TOPIC, OTHER):
            broker.always_refused[topic] = unreachable(URL)
        broker.restarts()
        await advance(REPLACED_S + 5)
        assert not transport.connected
        assert len(broker.links) <= 2 + 5 / (RELINK_PAUSE_S + POLL_S), "a new one each half second"
        assert "retrying in the background" not in caplog.text
        broker.always_refused.clear()
        await advance(RELINK_PAUSE_S + SEEN_S)
        assert transport.connected
        assert all(raw.is_connected() for raw in (broker.producer(TOPIC), broker.consumer(OTHER)))
