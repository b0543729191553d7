"""Publishing over Pulsar: the window, receipts from other threads, failures told once, and shared publishers.
From the start to the end of a connection: who shares what is open, and that its end leaves nothing behind.
Receiving over Pulsar: from its threads to handlers on the loop, in bursts, within bounds, and never an exception back.
Inboxes of peers after an outage: opened again with the next message only, since their owners may have ended.
Packets of sessions over Pulsar: best effort, bounded by receipts, and part of the supervision.
Durable subscriptions over Pulsar: what is acknowledged when, and when that is certain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from dispatch.errors import TransportError
from dispatch.messaging.wire import PROPERTIES_BYTES, instance_topic, reply_topic
from dispatch.transports import DurableMessage, Message, Mode, open_transport
from dispatch.transports.base import Security
from dispatch.transports.errors import unreachable
from dispatch.transports.pulsar import transport as transport_module
from dispatch.transports.pulsar.client import DEAF, OPERATION_TIMEOUT_S
from dispatch.transports.pulsar.supervisor import GRACE_S, POLL_S, SILENT_S
from dispatch.transports.pulsar.transport import (
    CLOSE_FLUSH_S,
    DRAIN_BATCH,
    GATHERED_S,
    MAX_PACKETS_IN_DOUBT,
    MAX_WAITING,
    LoopWaker,
    PulsarPublisher,
    PulsarTransport,
    read_batch,
)
from tests.helpers.clock import advance, cancel_task, idle, start_task
from tests.helpers.fake_pulsar import (
    DROPPED,
    KEPT,
    OTHER,
    REPLACED_S,
    SEEN_S,
    TOPIC,
    URL,
    Failures,
    FakeBroker,
    FakeConsumer,
    FakeProducer,
    Kept,
    MessageId,
    connected,
    counting_wakeups,
    listen,
    publishing,
    receiving,
    send,
    started,
    texts,
)


async def test_no_more_receipts_are_out_than_the_window_has_room_for(broker: FakeBroker, failures: Failures) -> None:
    async with publishing(publish_window=8) as (_, publisher):
        names = [f"a{number}" for number in range(50)]
        send(publisher, failures, *names)
        raw = broker.producer()
        assert len(raw.sent) == 8
        raw.receipts(3)
        await idle()
        assert len(raw.sent) == 11
        while len(raw.sent) > raw.settled:
            raw.receipts()
            await idle()
            assert len(raw.sent) - raw.settled <= 8
        assert raw.payloads == [name.encode() for name in names]
        assert raw.sent[0].properties == {"id": "a0"}
    assert not failures.told


async def test_the_window_is_one_for_all_topics_and_fair_between_flows(broker: FakeBroker, failures: Failures) -> None:
    async with connected(publish_window=2) as transport:
        busy, other = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        send(busy, failures, *(f"a{number}" for number in range(6)))
        send(other, failures, "b0", "b1")
        order: list[bytes] = []
        for _ in range(10):
            for raw in (broker.producer(TOPIC), broker.producer(OTHER)):
                order += raw.payloads[raw.settled :]
                raw.receipts()
            await idle()
        assert sorted(order) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5", b"b0", b"b1"]
        assert order.index(b"b0") < order.index(b"a4")


async def test_a_message_that_the_broker_dropped_was_surely_not_sent(broker: FakeBroker, failures: Failures) -> None:
    async with connected() as transport:
        send(await transport.publisher(TOPIC), failures, "a1", "a2", "a3")
        first, second, third = broker.producer().sent
        first.ok(DROPPED)
        second.ok(MessageId(0, 0))  # what a non-persistent topic says
        third.ok(MessageId(-1, 5))
        await idle()
        assert failures.types == [("a1", "publish-dropped", False)]
        assert failures.told[0][1].retryable
        assert TOPIC in failures.told[0][1].message


@pytest.mark.parametrize(
    ("result", "type", "sent"),
    [
        ("Timeout", "send-failed", True),
        ("UnknownError", "send-failed", True),
        ("AlreadyClosed", "connection-lost", True),
        ("MessageTooBig", "request-too-large", False),
        ("ProducerQueueIsFull", "send-failed", False),
        ("NotConnected", "send-failed", False),
        ("TopicTerminated", "send-failed", False),
        ("AuthorizationError", "send-failed", False),
    ],
)
async def test_a_failed_receipt_becomes_a_typed_error_that_is_told_once(
    broker: FakeBroker, result: str, type: str, sent: bool, failures: Failures
) -> None:
    async with connected() as transport:
        send(await transport.publisher(TOPIC), failures, "a1")
        (held,) = broker.producer().sent
        held.fails(result)
        assert failures.told == [], "never from inside a call"
        await idle()
        held.fails(result)
        held.ok()
        await idle()
        assert failures.types == [("a1", type, sent)]
        # What is too large was not sent either, but a repeat is of no use.
        assert failures.told[0][1].retryable is not (sent or type == "request-too-large")


async def test_a_failure_is_told_before_its_receipt(broker: FakeBroker) -> None:
    """The receipt of a reply's last message must not acknowledge a request whose reply has failed."""
    told: list[str] = []
    async with publishing() as (_, publisher):
        for name in ("a1", "a2"):
            publisher.publish(
                name.encode(),
                {},
                flow="a",
                on_failure=lambda error: told.append(error.type),
                on_receipt=partial(told.append, name),
            )
        first, second = broker.producer().sent
        first.ok()
        second.fails("Timeout")
        await idle()
    assert told == ["a1", "send-failed", "a2"]


@pytest.mark.parametrize("refusal", [TypeError("no text"), UnicodeError("no UTF-8"), RuntimeError("odd")])
async def test_what_pulsar_client_does_not_take_at_all_was_surely_not_sent(
    broker: FakeBroker, refusal: Exception, failures: Failures
) -> None:
    async with publishing(publish_window=1) as (_, publisher):
        raw = broker.producer()
        raw.refusal = refusal
        send(publisher, failures, "a1", "a2")
        assert failures.told == []
        await idle()
        assert failures.types == [("a1", "send-failed", False), ("a2", "send-failed", False)]
        assert str(refusal) not in failures.told[0][1].message, "it may quote what a user sent"
        raw.refusal = None
        send(publisher, failures, "a3")
        assert raw.payloads == [b"a3"], "the window has its room back"
        raw.receipts()


async def test_failures_give_their_room_to_those_who_wait(broker: FakeBroker, failures: Failures) -> None:
    async with connected(publish_window=2) as transport:
        send(await transport.publisher(TOPIC), failures, *(f"a{number}" for number in range(6)))
        raw = broker.producer()
        for index in range(6):
            assert len(raw.sent) == min(6, index + 2)
            raw.sent[index].fails("Timeout")
            await idle()
        raw.settled = 6
        assert failures.names == [f"a{number}" for number in range(6)]


async def test_the_queue_is_bounded_and_says_so_without_sending(broker: FakeBroker, failures: Failures) -> None:
    async with publishing(publish_window=1, max_queued=2, max_queued_bytes=100) as (_, publisher):
        send(publisher, failures, "a1", "a2")
        with pytest.raises(TransportError) as caught:
            publisher.publish(b"x" * 99, {}, flow="", on_failure=failures.of("x"))
        assert (caught.value.type, caught.value.may_have_run) == ("publish-queue-full", False)
        assert caught.value.retry_after == 1.0
        send(publisher, failures, "a3")
        with pytest.raises(TransportError, match="wait to be sent already"):
            send(publisher, failures, "a4")
        broker.producer().receipts(1)
        send(publisher, failures, "a5")  # it sees for itself that there is room again
        for _ in range(4):
            broker.producer().receipts()
            await idle()
        assert broker.producer().payloads == [b"a1", b"a2", b"a3", b"a5"]
    assert failures.told == []


async def test_what_waits_can_be_withdrawn_and_what_has_left_cannot(broker: FakeBroker, failures: Failures) -> None:
    async with connected(publish_window=1) as transport:
        tickets = send(await transport.publisher(TOPIC), failures, "a1", "a2", "a3")
        raw = broker.producer()
        assert tickets[0].cancel() is False
        assert tickets[1].cancel() is True
        assert tickets[1].cancel() is False
        raw.sent[0].fails("Timeout")
        await idle()
        raw.sent[1].ok()
        await idle()
        assert raw.payloads == [b"a1", b"a3"]
        raw.settled = 2
    assert failures.told == [], "whoever cancelled wants to hear no more of it"


async def test_a_writer_waits_for_its_own_flow_only(broker: FakeBroker) -> None:
    async with publishing(publish_window=1) as (_, publisher):
        tickets = send(publisher, Failures(), "a1", "a2", "b1")
        waiting = {flow: asyncio.create_task(publisher.writable(flow)) for flow in "abc"}
        await idle()
        assert [flow for flow, task in waiting.items() if task.done()] == ["c"]
        broker.producer().receipts(1)
        await idle()
        assert [flow for flow, task in waiting.items() if task.done()] == ["a", "c"]
        assert tickets[2].cancel()
        await idle()
        assert waiting["b"].done(), "nothing of it waits any more, and no receipt will say so"
        broker.producer().receipts()


async def test_flushing_waits_for_the_queue_and_for_the_receipts(broker: FakeBroker) -> None:
    async with connected(publish_window=1) as transport:
        await transport.flush()
        send(await transport.publisher(TOPIC), Failures(), "a1", "a2")
        flush = asyncio.create_task(transport.flush())
        for _ in range(2):
            await idle()
            assert not flush.done()
            broker.producer().receipts(1)
        await flush


async def test_a_flush_that_is_given_up_leaves_nothing_behind(broker: FakeBroker) -> None:
    async with connected() as transport:
        send(await transport.publisher(TOPIC), Failures(), "a1")
        flush = await start_task(transport.flush())
        flush.cancel()
        broker.producer().receipts()
        await transport.flush()
        assert not transport._sender._writers


async def test_receipts_may_come_from_any_thread_in_any_order(broker: FakeBroker, failures: Failures) -> None:
    async with publishing(publish_window=16) as (transport, publisher):
        send(publisher, failures, *(f"a{number}" for number in range(1_000)))
        raw, loop_thread = broker.producer(), threading.get_ident()
        told_on: set[int] = set()
        publisher.publish(b"last", {}, flow="z", on_failure=lambda error: told_on.add(threading.get_ident()))

        def settle(every: int) -> None:
            assert threading.get_ident() != loop_thread
            for index in range(first, len(raw.sent)):
                if index % 2 == every:
                    fails = raw.sent[index].payload == b"last" or index % 10 == 0
                    raw.sent[index].fails("Timeout") if fails else raw.sent[index].ok()

        first = 0
        while first < 1_001:
            count = len(raw.sent)
            await asyncio.gather(asyncio.to_thread(settle, 0), asyncio.to_thread(settle, 1))
            await idle()
            first = count
        raw.settled = len(raw.sent)
        assert len(raw.sent) == 1_001
        assert told_on == {loop_thread}
        expected = {raw.sent[index].payload.decode() for index in range(0, 1_001, 10)} - {"last"}
        assert sorted(failures.names) == sorted(expected)
        await transport.flush()  # good receipts that nobody waits for wake nobody
        assert (transport._sender.window.outstanding, len(transport._sender.window)) == (0, 0)


async def test_receipts_that_nobody_waits_for_do_not_wake_the_loop(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with publishing(publish_window=64) as (_, publisher):
        raw = broker.producer()
        calls = counting_wakeups(monkeypatch)
        for _ in range(10):
            send(publisher, Failures(), *(f"a{number}" for number in range(64)))
            raw.receipts()
        assert calls == [], "the next publish looks for itself"
        send(publisher, Failures(), *(f"a{number}" for number in range(200)))
        raw.receipts(60)
        assert len(calls) == 1, "one wake-up for the whole burst"
        while raw.settled < len(raw.sent):
            raw.receipts()
            await idle()


async def test_what_has_left_is_not_kept(broker: FakeBroker) -> None:
    """A megabyte whose receipt is out is in pulsar-client's memory; it need not be in ours as well."""
    async with publishing(publish_window=1) as (_, publisher):
        sent, waiting = (publisher.publish(b"x", {"id": "1"}, flow="", on_failure=lambda error: None) for _ in range(2))
        assert (sent.payload, sent.properties) == (b"", {})  # type: ignore[attr-defined]
        assert waiting.payload == b"x"  # type: ignore[attr-defined]
        for _ in range(2):
            broker.producer().receipts()
            await idle()


async def test_a_topic_has_one_producer_however_many_ask_for_it(broker: FakeBroker) -> None:
    async with connected() as transport:
        broker.gate.clear()
        asking = [asyncio.create_task(transport.publisher(TOPIC)) for _ in range(3)]
        await idle()
        broker.gate.set()
        one, two, three = await asyncio.gather(*asking)
        assert one is two is three
        assert broker.openings == [TOPIC]
        raw = broker.producer()
        await one.close()
        await two.close()
        assert not raw.closed
        await three.close()
        assert raw.closed
        again = await transport.publisher(TOPIC)
        assert again is not one
        assert broker.openings == [TOPIC, TOPIC]


async def test_a_publisher_that_cannot_be_opened_is_not_remembered(broker: FakeBroker) -> None:
    async with connected() as transport:
        for number in range(20):
            topic = f"{TOPIC}-{number}"
            broker.refusals[topic] = TransportError("no-such-namespace", "none", may_have_run=False)
            with pytest.raises(TransportError, match="none"):
                await transport.publisher(topic)
            assert (await transport.publisher(topic)).topic == topic
        assert not list(transport._opening.items())


async def test_whoever_gives_up_while_a_topic_opens_leaves_no_orphan(broker: FakeBroker) -> None:
    async with connected() as transport:
        broker.gate.clear()
        first, second = (asyncio.create_task(transport.publisher(TOPIC)) for _ in range(2))
        await idle()
        first.cancel()
        await idle()
        assert broker.link.producers[0].closed
        broker.gate.set()
        publisher = await second
        assert broker.openings == [TOPIC, TOPIC], "the one who waited opens it for itself"
        await publisher.close()
        assert all(raw.closed for raw in broker.link.producers)


async def test_security_is_what_was_given_or_what_the_environment_says(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCH_TOKEN", "from the environment")
    for given, token in ((Security(token="given"), "given"), (Security(), None), (None, "from the environment")):
        transport = PulsarTransport(URL, security=given)
        await transport.start()
        await transport.close()
        assert {security.token for security in broker.securities} == {token}
        broker.securities.clear()


async def test_without_a_handshake_there_is_no_connection(broker: FakeBroker) -> None:
    broker.handshake = TransportError("unauthorized", "no", may_have_run=False)
    transport = PulsarTransport(URL, security=Security())
    with pytest.raises(TransportError, match="no"):
        await transport.start()
    assert broker.links == []
    await transport.close()


async def test_before_the_start_and_after_the_end_everything_says_closed(broker: FakeBroker) -> None:
    transport = open_transport(URL, security=Security())
    with pytest.raises(TransportError) as caught:
        await transport.publisher(TOPIC)
    assert (caught.value.type, caught.value.may_have_run) == ("closed", False)
    await transport.start()
    publisher = await transport.publisher(TOPIC)
    await transport.close()
    with pytest.raises(TransportError, match="closed"):
        send(publisher, Failures(), "a1")
    with pytest.raises(TransportError, match="closed"):
        await transport.publisher(TOPIC)
    await publisher.writable("a")
    await transport.flush()
    await publisher.close()
    assert not transport.connected


async def test_closing_waits_for_what_was_published(broker: FakeBroker, failures: Failures) -> None:
    transport = await started(publish_window=2)
    send(await transport.publisher(TOPIC), failures, "a1", "a2", "a3", "a4")
    closing = asyncio.create_task(transport.close())
    for _ in range(2):
        await idle()
        assert not closing.done()
        broker.producer().receipts()
    await closing
    assert broker.producer().payloads == [b"a1", b"a2", b"a3", b"a4"]
    assert broker.link.closed
    assert failures.told == []


async def test_closing_does_not_wait_for_ever_and_says_what_became_of_each(broker: FakeBroker) -> None:
    failures = Failures()
    loop = asyncio.get_running_loop()
    transport = await started(publish_window=2)
    publisher = await transport.publisher(TOPIC)
    send(publisher, failures, "a1", "a2", "a3", "a4")
    writable = asyncio.create_task(publisher.writable("a"))
    began = loop.time()
    await transport.close()
    await writable
    assert loop.time() - began == pytest.approx(CLOSE_FLUSH_S)
    await idle()
    assert sorted(failures.types) == [
        ("a1", "connection-lost", True),
        ("a2", "connection-lost", True),
        ("a3", "closed", False),
        ("a4", "closed", False),
    ]
    await transport.close()


async def test_what_nobody_closed_is_closed_when_the_process_ends(broker: FakeBroker) -> None:
    """A client of pulsar-client that is still open then would abort the process."""
    forgotten, closed = (PulsarTransport(URL, security=Security()) for _ in range(2))
    for transport in (forgotten, closed):
        await transport.start()
    await closed.close()
    assert closed not in transport_module._open_transports
    transport_module._close_forgotten()
    assert [link.closed for link in broker.links] == [True, True]
    assert [link.closings for link in broker.links] == [0, 1]
    await forgotten.close()
    assert forgotten not in transport_module._open_transports


async def test_closing_twice_closes_once(broker: FakeBroker) -> None:
    transport = await started()
    send(await transport.publisher(TOPIC), Failures(), "a1")
    await asyncio.gather(transport.close(), transport.close())
    await transport.close()
    assert broker.link.closings == 1


async def test_closing_while_it_is_away_is_a_matter_of_no_time(broker: FakeBroker, failures: Failures) -> None:
    loop = asyncio.get_running_loop()
    transport = await started()
    publisher = await transport.publisher(TOPIC)
    await broker.lose()
    send(publisher, failures, "a1")
    began = loop.time()
    await transport.close()
    assert loop.time() == began
    assert failures.types == [("a1", "closed", False)]


async def test_closing_in_the_middle_of_a_reconnect_leaves_nothing(broker: FakeBroker) -> None:
    transport = await started()
    await listen(transport, list[Any]().append)
    broker.restarts()
    broker.gate.clear()
    await advance(REPLACED_S)
    assert len(broker.links) == 2
    await transport.close()
    assert all(link.closed for link in broker.links)
    assert all(not raw.is_connected() for raw in broker.link.consumers)


async def test_whoever_is_cancelled_while_closing_has_closed(broker: FakeBroker) -> None:
    transport = await started()
    send(await transport.publisher(TOPIC), Failures(), "a1")
    closing = await start_task(transport.close())
    await cancel_task(closing)
    assert broker.link.closed
    assert not transport.connected
    await idle()


async def test_closing_a_publisher_waits_for_its_receipts(broker: FakeBroker, failures: Failures) -> None:
    async with connected() as transport:
        publisher, other = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        send(publisher, failures, "a1", "a2")
        send(other, failures, "b1")
        raw = broker.producer(TOPIC)
        closing = asyncio.create_task(publisher.close())
        raw.receipts(1)
        await idle()
        assert not raw.closed
        raw.receipts(1)
        await closing
        assert raw.closed, "the receipts of another publisher are not waited for"
        broker.producer(OTHER).receipts()
    assert failures.told == []


async def test_closing_a_publisher_without_receipts_takes_a_bounded_time(broker: FakeBroker) -> None:
    async with publishing() as (_, publisher):
        send(publisher, Failures(), "a1")
        raw = broker.producer(TOPIC)
        closing = await start_task(publisher.close(), CLOSE_FLUSH_S + 0.01)
        assert closing.done()
        assert raw.closed


async def test_closing_a_publisher_without_a_connection_does_not_wait(broker: FakeBroker) -> None:
    async with publishing() as (_, publisher):
        send(publisher, Failures(), "a1")
        await broker.lose()
        began = asyncio.get_running_loop().time()
        await publisher.close()
        assert asyncio.get_running_loop().time() == began


@pytest.fixture
def small_inbox(monkeypatch: pytest.MonkeyPatch) -> int:
    """Room for so many messages before pulsar-client's thread has to wait."""
    monkeypatch.setattr(transport_module, "RECEIVER_QUEUE", 50)
    return 50


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns as often as they can, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def test_handlers_run_on_the_loop_and_in_order(broker: FakeBroker) -> None:
    got: list[Any] = []
    threads: set[int] = set()

    def handler(message: Any) -> None:
        got.append(message)
        threads.add(threading.get_ident())

    async with connected() as transport:
        await listen(transport, handler)
        await asyncio.to_thread(broker.consumer().deliver, *range(5_000))
        await idle()
        assert got == list(range(5_000))
        assert threads == {threading.get_ident()}


async def test_a_burst_from_a_thread_wakes_the_loop_once(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as (_, got):
        calls = counting_wakeups(monkeypatch)
        burst = threading.Thread(target=broker.consumer().deliver, args=range(DRAIN_BATCH))
        burst.start()
        burst.join()  # the loop stands still meanwhile
        assert len(calls) == 1
        await idle()
        assert len(got) == DRAIN_BATCH
        broker.consumer().deliver("next")
        assert len(calls) == 2
        await idle()


@pytest.mark.parametrize("platform", [sys.platform, "another"])
async def test_a_message_after_the_end_is_harmless_and_no_file_stays_open(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    got: list[Any] = []
    before = os.listdir("/proc/self/fd")
    async with connected() as transport:
        await listen(transport, got.append)
        consumer = broker.consumer()
        await asyncio.to_thread(consumer.deliver, "one")
        await idle()
    await asyncio.to_thread(consumer.deliver, "two")
    await idle()
    assert (got, os.listdir("/proc/self/fd")) == (["one"], before)


async def test_others_get_their_turn_in_a_long_burst(broker: FakeBroker) -> None:
    async with receiving() as (_, got):
        broker.consumer().deliver(*range(4 * DRAIN_BATCH))
        seen = []
        while len(got) < 4 * DRAIN_BATCH:
            await asyncio.sleep(0)
            seen.append(len(got))
        assert max(after - before for before, after in pairwise(seen)) <= DRAIN_BATCH


async def test_a_handler_that_raises_costs_one_message_only(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[Any] = []

    def handler(message: Any) -> None:
        number = int(message.data())
        if number % 3 == 0:
            raise ValueError(f"secret {number}")
        got.append(number)

    async with connected() as transport:
        await listen(transport, handler, KEPT)
        messages = [Kept(str(number)) for number in range(9)]
        broker.consumer(KEPT).deliver(*messages)
        await idle()
        assert got == [1, 2, 4, 5, 7, 8]
        assert transport.handler_errors == 3
        assert broker.consumer(KEPT).acknowledged == messages, "what cannot be handled would come again for ever"
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text, "a message's content is a user's"


@pytest.mark.parametrize(
    ("topic", "mode", "acknowledged"),
    [(KEPT, Mode.SHARED, True), (KEPT, Mode.FANOUT, False), (TOPIC, Mode.SHARED, False), (TOPIC, Mode.FANOUT, False)],
)
async def test_only_a_durable_subscription_is_acknowledged(
    broker: FakeBroker, topic: str, mode: Mode, acknowledged: bool
) -> None:
    async with connected() as transport:
        await listen(transport, lambda message: None, topic, mode)
        broker.consumer(topic).deliver(Kept("one"))
        await idle()
        assert broker.consumer(topic).acknowledged == (["one"] if acknowledged else [])


async def test_what_comes_before_the_subscription_is_known_here_is_acknowledged_too(broker: FakeBroker) -> None:
    """A backlog comes at once, while the subscription's own round trip is still under way."""
    got: list[Any] = []
    async with connected() as transport:
        broker.gate.clear()
        broker.while_opening = lambda consumer: consumer.deliver(Kept("early"))
        opening = await start_task(listen(transport, texts(got), KEPT))
        assert got == ["early"]
        broker.gate.set()
        await opening
        assert broker.consumer(KEPT).acknowledged == ["early"]
        assert transport.handler_errors == 0


async def test_an_acknowledgement_that_cannot_be_said_is_no_failure_of_the_handler(broker: FakeBroker) -> None:
    got: list[Any] = []
    async with connected() as transport:
        await listen(transport, texts(got), KEPT)
        consumer = broker.consumer(KEPT)
        consumer.deliver(Kept("one"))
        consumer.closed = True
        await idle()
        assert (got, consumer.acknowledged, transport.handler_errors) == (["one"], [], 0)


async def test_pulsars_thread_waits_when_the_loop_does_not_keep_up(broker: FakeBroker, small_inbox: int) -> None:
    got: list[Any] = []
    most = 0

    def handler(message: Any) -> None:
        nonlocal most
        most = max(most, len(transport._inbox))
        got.append(message)

    async with connected() as transport:
        await listen(transport, handler)
        await asyncio.to_thread(broker.consumer().deliver, *range(20 * small_inbox))
        await idle()
        assert got == list(range(20 * small_inbox))
        assert most <= small_inbox


async def test_closing_lets_a_waiting_thread_go(
    broker: FakeBroker, small_inbox: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, go_on = threading.Event(), threading.Event()

    def sleep(_seconds: float) -> None:
        waits.set()
        assert go_on.wait(10)

    monkeypatch.setattr(transport_module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    async with connected() as transport:
        await listen(transport, lambda message: None)
        thread = threading.Thread(target=broker.consumer().deliver, args=range(3 * small_inbox))
        thread.start()
        assert waits.wait(10), "the loop stands still here, so that there is no room"
        assert len(transport._inbox) == small_inbox
        transport._closed = True  # what closing does first
        go_on.set()
        thread.join(10)
        assert not thread.is_alive()
    assert not transport._inbox


async def test_the_thread_of_a_client_that_was_replaced_never_waits(broker: FakeBroker, small_inbox: int) -> None:
    """Its connection is gone: there is nobody to hold back, and closing it waits for this very thread."""
    async with receiving() as (transport, got):
        old = broker.consumer()
        await broker.replace()
        assert transport.reconnects == 1
        thread = threading.Thread(target=old.deliver, args=range(3 * small_inbox))
        thread.start()
        thread.join(10)  # the loop stands still meanwhile
        assert not thread.is_alive()
        await idle()
        assert got == list(range(3 * small_inbox)), "they have arrived: nobody else will get them"


async def test_what_has_arrived_is_handled_before_a_subscription_is_closed(broker: FakeBroker) -> None:
    got: list[Any] = []
    async with connected() as transport:
        subscription = await listen(transport, got.append)
        consumer = broker.consumer()
        consumer.on_close = lambda: consumer.deliver(*range(2, 10 * DRAIN_BATCH), "at the last moment")
        consumer.deliver(0, 1)
        await subscription.close()
        assert got == [*range(10 * DRAIN_BATCH), "at the last moment"]
        assert consumer.closed
        consumer.deliver("too late")
        await idle()
        assert got[-1] == "at the last moment"
        await subscription.close()


@pytest.mark.wall_clock
async def test_a_subscription_is_closed_while_others_get_their_messages(
    broker: FakeBroker, quick_switches: None
) -> None:
    """Pulsar's threads go on appending to what the closing one looks through."""
    for _ in range(10):
        async with connected() as transport:
            closing = await listen(transport, lambda message: None, TOPIC)
            await listen(transport, lambda message: None, OTHER)
            mine, others = broker.consumer(TOPIC), broker.consumer(OTHER)
            others.deliver(*range(4_000))
            mine.on_close = lambda: mine.deliver("last")  # noqa: B023 - it is called in this very round
            stop = threading.Event()

            def pump() -> None:
                while not stop.is_set():  # noqa: B023 - as above
                    others.deliver("more")  # noqa: B023

            thread = threading.Thread(target=pump)
            thread.start()
            try:
                await closing.close()
            finally:
                stop.set()
                while thread.is_alive():  # noqa: ASYNC110 - it may wait for the loop to make room
                    await asyncio.sleep(0)


async def test_whoever_gives_up_subscribing_leaves_no_orphan(broker: FakeBroker) -> None:
    got: list[Any] = []
    async with connected() as transport:
        broker.gate.clear()
        subscribing = await start_task(listen(transport, got.append))
        subscribing.cancel()
        await idle()
        assert subscribing.cancelled()
        assert broker.consumer().closed
        assert not transport._subscriptions
        broker.gate.set()
        await listen(transport, got.append)
        broker.consumer().deliver("one")
        await idle()
        assert got == ["one"]


@pytest.mark.parametrize("what", ["subscribe", "publisher"])
async def test_what_opens_while_the_connection_is_closed_is_closed_too(broker: FakeBroker, what: str) -> None:
    transport = await started()
    broker.gate.clear()
    opening: asyncio.Task[object] = asyncio.create_task(
        listen(transport, lambda message: None) if what == "subscribe" else transport.publisher(TOPIC)
    )
    await idle()
    await transport.close()
    broker.link.closed = False  # it was made all the same
    broker.gate.set()
    with pytest.raises(TransportError) as caught:
        await opening
    assert (caught.value.type, caught.value.may_have_run) == ("closed", False)
    opened: list[FakeConsumer] | list[FakeProducer] = broker.link.consumers or broker.link.producers
    assert [raw.closed for raw in opened] == [True]


async def test_no_handler_is_called_after_closing(broker: FakeBroker) -> None:
    async with receiving() as (_, got):
        consumer = broker.consumer()
    consumer.deliver("late")
    await idle()
    assert got == []


def test_nothing_escapes_into_pulsars_threads_even_when_the_loop_is_gone(broker: FakeBroker) -> None:
    """An exception there ends the process."""
    failures = Failures()
    transport = PulsarTransport(URL, security=Security(), publish_window=2)

    async def scenario() -> tuple[FakeConsumer, FakeProducer]:
        await transport.start()
        await listen(transport, lambda message: None)
        publisher = await transport.publisher(TOPIC)
        for number in range(4):
            publisher.publish(b"", {}, flow="", on_failure=failures.of(str(number)))
        return broker.consumer(), broker.producer()  # the loop ends, and nothing was closed

    consumer, producer = asyncio.run(scenario())
    escaped: list[BaseException] = []

    def client() -> None:
        try:
            for number in range(10):
                consumer.deliver(number)
            producer.sent[0].ok()
            producer.sent[1].fails("AlreadyClosed")
            producer.sent[0].fails("Timeout")
        except BaseException as error:
            escaped.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    thread.join()
    assert escaped == []
    assert failures.told == []
    transport_module._open_transports.discard(transport)


async def test_messages_are_answered_on_the_other_thread_while_the_loop_is_blocked(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[int] = []

    def answer_late(payload: bytes) -> tuple[str, bytes] | None:
        answered.append(threading.get_ident())
        if payload == b"broken":
            raise ValueError("a message that cannot be answered")
        return (OTHER, b"alive") if payload == b"probe" else None

    async with connected() as transport:
        await transport.publisher(OTHER)
        await transport.subscribe(TOPIC, lambda _message: None, mode=Mode.FANOUT, name="x", answer_late=answer_late)

        def deliver(*payloads: bytes) -> None:
            """On a thread of pulsar-client, while this one, the loop's, waits."""
            consumer = broker.consumer()
            thread = threading.Thread(
                target=consumer.deliver, args=[SimpleNamespace(data=lambda p=p: p) for p in payloads]
            )
            thread.start()
            thread.join()

        deliver(b"probe", b"probe")
        assert answered == [], "the loop may be about to process them"
        monkeypatch.setattr(transport_module, "LATE_S", 0.0)
        deliver(b"probe", b"broken", b"request")
        assert len(answered) == 3
        assert threading.get_ident() not in answered
        await idle()
        deliver(b"probe")
        assert len(answered) == 3, "the loop runs again"
        assert [bytes(each.payload) for each in broker.producer(OTHER).sent] == [b"alive"]


REPLIES = reply_topic("non-persistent://tg/response/work", "0123456789abcdef-agent")
INSTANCE = instance_topic(TOPIC, "one")
GONE = TransportError("no-such-namespace", "The broker has no namespace 'tg/response'.", may_have_run=False)


@contextlib.asynccontextmanager
async def with_peer(inbox: str = REPLIES, **options: Any) -> AsyncIterator[tuple[PulsarTransport, PulsarPublisher]]:
    """A started transport with a subscription, and a publisher of a peer's inbox."""
    async with connected(**options) as transport:
        await listen(transport, lambda _: None)
        yield transport, await transport.publisher(inbox)


@pytest.mark.parametrize("inbox", [REPLIES, INSTANCE, REPLIES.replace("non-persistent", "persistent")])
async def test_an_inbox_is_opened_again_for_the_next_message_and_not_before(broker: FakeBroker, inbox: str) -> None:
    failures = Failures()
    async with with_peer(inbox) as (transport, peer):
        own = await transport.publisher(OTHER)
        await broker.replace()
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
        assert all(each.closed for each in broker.link.producers), "pulsar-client would open them again by itself"
        await broker.come_back()
        assert transport.connected
        assert broker.openings == [TOPIC]


async def test_what_is_published_during_an_outage_arrives_after_it(broker: FakeBroker, failures: Failures) -> None:
    async with with_peer() as (transport, peer):
        silent = await transport.publisher(INSTANCE)
        broker.up = False
        await advance(5)
        send(peer, failures, "a1", "a2")
        await broker.come_back()
        assert broker.producer(REPLIES).payloads == [b"a1", b"a2"]
        assert [raw.topic for raw in broker.link.producers] == [REPLIES]
        broker.producer(REPLIES).receipts()
        await silent.close()
    assert failures.told == []


async def test_packets_open_an_inbox_too_and_leave_in_order(broker: FakeBroker) -> None:
    async with with_peer() as (_, peer):
        await broker.replace()
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
    async with with_peer(publish_window=1) as (transport, peer):
        own = await transport.publisher(OTHER)
        await broker.replace()
        broker.gate.clear()
        first, *_ = send(peer, failures, *(f"a{number}" for number in range(MAX_WAITING)))
        assert not peer.send_packet(b"p")
        send(peer, failures, "a-one-too-many")
        send(own, failures, "b1")
        await idle()
        assert failures.types == [("a-one-too-many", "publish-queue-full", False)]
        assert broker.producer(OTHER).payloads == [b"b1"]
        broker.producer(OTHER).receipts()
        assert first.cancel()
        writable = await start_task(peer.writable("a"))
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
    async with with_peer() as (_, peer):
        broker.always_refused[REPLIES] = GONE
        await broker.replace()
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
    async with with_peer() as (_, peer):
        await broker.replace()
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
    async with with_peer() as (_, peer):
        await broker.replace()
        broker.gate.clear()
        send(peer, failures, "a1")
        await idle()
    assert failures.types == [("a1", "closed", False)]


async def test_an_inbox_that_is_lost_alone_is_not_opened_again_either(broker: FakeBroker, failures: Failures) -> None:
    async with with_peer() as (transport, peer):
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
        await broker.come_back()
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


async def test_packets_bypass_the_window_and_its_queue(broker: FakeBroker) -> None:
    async with publishing(publish_window=1) as (_, publisher):
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
    async with publishing() as (_, publisher):
        await broker.lose()
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
    async with publishing() as (transport, publisher):
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
    async with publishing() as (transport, publisher):
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
    async with publishing() as (transport, publisher):
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
    async with publishing() as (transport, publisher):
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
    async with publishing() as (transport, publisher):
        for _ in range(MAX_PACKETS_IN_DOUBT):
            publisher.send_packet(b"p")
        old = broker.producer()
        old.sent[0].ok(DROPPED)
        old.settled = len(old.sent)  # as if its callbacks had got lost with it
        await broker.replace()
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
    async with publishing() as (transport, publisher):
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
    async with publishing() as (transport, publisher):
        publisher.send_packet(b"p1")
        publisher.send_packet(b"p2")
        flush = await start_task(transport.flush())
        broker.producer().receipts(1)
        await idle()
        assert not flush.done()
        broker.producer().receipts(1)
        await idle()
        assert flush.done()


ANSWERS = "persistent://tg/response/mine"


class Settling:
    """A handler that settles what it gets."""

    def __init__(self) -> None:
        self.sure: list[str] = []

    def __call__(self, message: DurableMessage) -> None:
        text = message.data().decode()
        message.settle(lambda: self.sure.append(text))


@contextlib.asynccontextmanager
async def settling() -> AsyncIterator[tuple[PulsarTransport, Settling]]:
    handler = Settling()
    async with connected() as transport:
        await listen(transport, handler, KEPT)
        yield transport, handler


async def test_what_is_kept_is_acknowledged_when_its_taker_says_so(broker: FakeBroker) -> None:
    got: list[DurableMessage] = []

    def handler(message: DurableMessage) -> None:
        message.keep()
        got.append(message)

    async with connected() as transport:
        await listen(transport, handler, KEPT)
        broker.consumer(KEPT).deliver(Kept("one"), Kept("two"))
        await idle()
        assert broker.consumer(KEPT).acknowledged == []
        got[1].acknowledge()
        assert broker.consumer(KEPT).acknowledged == ["two"]
        assert got[0].properties() == {"text": "one"}


async def test_it_is_sure_once_the_broker_answers_after_the_acknowledgement_left(broker: FakeBroker) -> None:
    async with settling() as (_, handler):
        broker.consumer(KEPT).deliver(Kept("one"))
        await idle()
        assert broker.consumer(KEPT).acknowledged == ["one"]
        await advance(GATHERED_S / 2)
        broker.consumer(KEPT).deliver(Kept("two"))
        await advance(GATHERED_S / 2 - 0.001)
        assert (handler.sure, broker.asked) == ([], 0)
        await advance(0.002)
        assert (handler.sure, broker.asked) == (["one"], 1)
        await advance(GATHERED_S / 2)
        assert (handler.sure, broker.asked) == (["one", "two"], 2)


async def test_a_burst_costs_one_question(broker: FakeBroker) -> None:
    async with settling() as (_, handler):
        broker.consumer(KEPT).deliver(*(Kept(str(number)) for number in range(500)))
        await advance(GATHERED_S + 0.01)
        assert handler.sure == [str(number) for number in range(500)]
        assert broker.asked == 1


async def test_what_is_not_sure_is_not_done(broker: FakeBroker) -> None:
    """The connection was lost: the broker may give it to somebody else."""
    async with settling() as (transport, handler):
        await transport.publisher(TOPIC)
        broker.consumer(KEPT).deliver(Kept("lost"))
        await idle()
        await broker.replace()
        assert handler.sure == []
        broker.consumer(KEPT).deliver(Kept("new"))
        await advance(GATHERED_S + 0.01)
        assert handler.sure == ["new"]


@pytest.mark.parametrize("at", [0.0, 0.05, GATHERED_S + 0.05])
async def test_what_is_acknowledged_while_a_topic_moves_is_not_done(broker: FakeBroker, at: float) -> None:
    """pulsar-client opens the consumer again by itself; the broker delivers the message again."""
    async with settling() as (transport, handler):
        await transport.publisher(TOPIC)
        consumer, broker.answers_after = broker.consumer(KEPT), 0.2
        consumer.deliver(Kept("lost"))
        await idle()
        await advance(at)
        consumer.closed = True
        await advance(0.09)
        consumer.closed = False
        await advance(1)
        assert handler.sure == []
        consumer.deliver(Kept("lost"))
        await advance(1)
        assert handler.sure == ["lost"]


async def test_a_message_that_is_delivered_twice_is_done_once(broker: FakeBroker) -> None:
    async with settling() as (_, handler):
        consumer = broker.consumer(KEPT)
        consumer.deliver(Kept("one"), Kept("one"))
        await advance(GATHERED_S + 0.01)
        consumer.deliver(Kept("one"))
        await advance(GATHERED_S + 0.01)
        assert (handler.sure, consumer.acknowledged) == (["one"], ["one"] * 3)


class Batched(Kept):
    """The message of a batch of two, with its index as its text."""

    def message_id(self) -> Any:
        return pulsar.MessageId.deserialize(bytes.fromhex(f"086f1000200{self}3002"))


async def test_a_batch_that_is_delivered_twice_is_acknowledged_twice_and_done_once(broker: FakeBroker) -> None:
    """pulsar-client acknowledges a delivery of an entry when all its messages are acknowledged: those of one delivery."""
    sure: list[str] = []
    held: list[DurableMessage] = []

    def handle(message: Message) -> None:
        assert isinstance(message, DurableMessage)
        if message.data() == b"0":
            message.keep()
            held.append(message)
        else:
            message.settle(lambda: sure.append(message.data().decode()))

    async with connected() as transport:
        broker.while_opening = lambda consumer: setattr(consumer, "last", pulsar.MessageId.earliest)
        await listen(transport, handle, KEPT)
        broker.consumer(KEPT).deliver(*map(Batched, "0101"))
        await idle()
        held[0].acknowledge()
        held[0].acknowledge()
        await advance(GATHERED_S + 0.01)
        assert sure == ["1"], "its delivery is acknowledged"
        held[1].acknowledge()
        await advance(GATHERED_S + 0.01)
        assert sure == ["1"]


async def test_what_comes_while_it_is_being_opened_becomes_sure_on_that_consumer(broker: FakeBroker) -> None:
    handler = Settling()
    async with connected() as transport:
        broker.gate.clear()
        broker.while_opening = lambda consumer: consumer.deliver(Kept("early"))
        opening = await start_task(listen(transport, handler, KEPT), 2 * GATHERED_S)
        assert (handler.sure, broker.asked) == ([], 0)
        broker.gate.set()
        await opening
        await idle()
        assert handler.sure == ["early"]


async def test_closing_takes_nothing_new_and_waits_until_all_is_sure(broker: FakeBroker) -> None:
    handler = Settling()
    async with connected() as transport:
        subscription = await listen(transport, handler, KEPT)
        consumer = broker.consumer(KEPT)
        consumer.deliver(Kept("one"))
        seen: list[tuple[bool, list[str]]] = []
        consumer.on_close = lambda: seen.append((consumer.paused, list(handler.sure)))
        await subscription.close()
        assert seen == [(True, ["one"])]


async def test_closing_does_not_wait_for_a_broker_that_never_replies(broker: FakeBroker) -> None:
    handler = Settling()
    async with connected() as transport:
        subscription = await listen(transport, handler, KEPT)
        broker.hung.add(KEPT)
        broker.consumer(KEPT).deliver(Kept("one"))
        began = asyncio.get_running_loop().time()
        await subscription.close()
        assert asyncio.get_running_loop().time() - began == pytest.approx(CLOSE_FLUSH_S)
        assert handler.sure == []


async def test_a_subscription_whose_broker_never_replies_is_opened_again(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with settling() as (transport, handler):
        await transport.publisher(TOPIC)
        first = broker.consumer(KEPT)
        broker.hung.add(KEPT)
        first.deliver(Kept("one"))
        await advance(GATHERED_S + OPERATION_TIMEOUT_S + 1)
        broker.hung.clear()
        assert [record.getMessage() for record in caplog.records] == [f"{KEPT}: {DEAF}"]
        await advance(3)
        second = broker.consumer(KEPT)
        assert second is not first
        second.deliver(Kept("one again"))
        await advance(GATHERED_S + 0.01)
        assert handler.sure == ["one again"]


async def test_a_connection_that_is_closed_is_sure_of_nothing(broker: FakeBroker) -> None:
    async with settling() as (_, handler):
        broker.consumer(KEPT).deliver(Kept("one"))
        await idle()
    await advance(1)
    assert handler.sure == []


async def test_a_message_knows_its_age_and_whether_it_was_there_before(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    got: list[tuple[float, bool]] = []
    async with connected() as transport:
        broker.while_opening = lambda consumer: setattr(consumer, "last", 5)
        await listen(transport, lambda message: got.append((message.lag, message.backlog)), KEPT)
        broker.consumer(KEPT).deliver(Kept("old", 5, 960.0), Kept("new", 6, 1_010.0))
        await idle()
    assert got == [(40.0, True), (-10.0, False)]


async def test_a_subscription_that_cannot_be_looked_at_leaves_no_consumer(broker: FakeBroker) -> None:
    broker.while_looking = RuntimeError("odd")
    async with connected() as transport:
        with pytest.raises(RuntimeError, match="odd"):
            await listen(transport, lambda message: None, KEPT)
        assert broker.consumer(KEPT).closed


@pytest.mark.parametrize(("topic", "after"), [(ANSWERS, 7), (TOPIC, None)])
async def test_a_reader_of_a_persistent_topic_goes_on_where_it_was(
    broker: FakeBroker, topic: str, after: int | None
) -> None:
    got: list[Any] = []
    async with connected() as transport:
        await listen(transport, got.append, topic, Mode.FANOUT)
        assert broker.consumer(topic).after is None
        former = broker.consumer(topic)
        former.deliver(Kept("one", 6), Kept("two", 7))
        await idle()
        await broker.replace()
        assert broker.consumer(topic).after == after
        former.deliver(Kept("late", 1))
        await broker.replace()
        assert broker.consumer(topic).after == after, "a former consumer does not set it back"


@pytest.mark.parametrize(
    ("id", "batch"),
    [
        ("086f1002", None),  # alone
        ("086f100120003001", None),  # a batch of one
        ("086f100020033005", ((111, 0), 5)),
        ("08ac0210ffff7f200030e807", ((300, 2_097_151), 1_000)),
    ],
)
def test_the_batch_of_a_message_is_read_from_its_id(id: str, batch: object) -> None:
    assert read_batch(pulsar.MessageId.deserialize(bytes.fromhex(id))) == batch


def test_a_loop_that_an_exit_has_stopped_ends_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """It finds again what it was woken for, when it cancels the tasks."""
    calls = []

    def leave() -> None:
        raise SystemExit(7)

    async def main() -> None:
        waker = LoopWaker(lambda: calls.append("woken"))
        asyncio.get_running_loop().call_soon(leave)
        waker.wake()
        await asyncio.sleep(10)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert calls == ["woken"]
    assert caplog.records == []
