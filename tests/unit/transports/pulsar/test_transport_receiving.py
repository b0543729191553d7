"""Receiving over Pulsar: from its threads to handlers on the loop, in bursts, within bounds, and never an exception back."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from dispatch.errors import TransportError
from dispatch.transports import Message, Mode
from dispatch.transports.base import Security
from dispatch.transports.pulsar import transport as transport_module
from dispatch.transports.pulsar.transport import DRAIN_BATCH, PulsarTransport
from tests.helpers.clock import advance, idle
from tests.helpers.fake_pulsar import (
    KEPT,
    OTHER,
    REPLACED_S,
    TOPIC,
    URL,
    Failures,
    FakeBroker,
    FakeConsumer,
    FakeProducer,
    Kept,
    connected,
    counting_wakeups,
    listen,
    texts,
)


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
    got: list[Any] = []
    async with connected() as transport:
        await listen(transport, got.append)
        calls = counting_wakeups(monkeypatch)
        burst = threading.Thread(target=broker.consumer().deliver, args=range(DRAIN_BATCH))
        burst.start()
        burst.join()  # the loop stands still meanwhile
        assert calls == ["_drain"]
        await idle()
        assert len(got) == DRAIN_BATCH
        broker.consumer().deliver("next")
        assert calls == ["_drain", "_drain"]
        await idle()


async def test_others_get_their_turn_in_a_long_burst(broker: FakeBroker) -> None:
    got: list[Any] = []
    async with connected() as transport:
        await listen(transport, got.append)
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
        opening = asyncio.create_task(listen(transport, texts(got), KEPT))
        await idle()
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
    got: list[Any] = []
    async with connected() as transport:
        await listen(transport, got.append)
        old = broker.consumer()
        broker.restarts()
        await advance(REPLACED_S)
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
        subscribing = asyncio.create_task(listen(transport, got.append))
        await idle()
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
    transport = PulsarTransport(URL, security=Security())
    await transport.start()
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
    got: list[Message] = []
    async with connected() as transport:
        await listen(transport, got.append)
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
        assert transport._supervisor is not None
        transport._supervisor.cancel()  # the loop ends without anybody having closed anything
        return broker.consumer(), broker.producer()

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
