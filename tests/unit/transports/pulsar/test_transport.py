"""Publishing over Pulsar: the window, receipts from other threads, failures told once, and shared publishers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dispatch.errors import TransportError
from tests.helpers.clock import idle
from tests.helpers.fake_pulsar import (
    DROPPED,
    OTHER,
    TOPIC,
    Failures,
    FakeBroker,
    MessageId,
    connected,
    counting_wakeups,
    send,
)


async def test_no_more_receipts_are_out_than_the_window_has_room_for(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected(publish_window=8) as transport:
        publisher = await transport.publisher(TOPIC)
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


async def test_the_window_is_one_for_all_topics_and_fair_between_flows(broker: FakeBroker) -> None:
    failures = Failures()
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


async def test_a_message_that_the_broker_dropped_was_surely_not_sent(broker: FakeBroker) -> None:
    failures = Failures()
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
    broker: FakeBroker, result: str, type: str, sent: bool
) -> None:
    failures = Failures()
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


@pytest.mark.parametrize("refusal", [TypeError("no text"), UnicodeError("no UTF-8"), RuntimeError("odd")])
async def test_what_pulsar_client_does_not_take_at_all_was_surely_not_sent(
    broker: FakeBroker, refusal: Exception
) -> None:
    failures = Failures()
    async with connected(publish_window=1) as transport:
        publisher = await transport.publisher(TOPIC)
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


async def test_failures_give_their_room_to_those_who_wait(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected(publish_window=2) as transport:
        send(await transport.publisher(TOPIC), failures, *(f"a{number}" for number in range(6)))
        raw = broker.producer()
        for index in range(6):
            assert len(raw.sent) == min(6, index + 2)
            raw.sent[index].fails("Timeout")
            await idle()
        raw.settled = 6
        assert failures.names == [f"a{number}" for number in range(6)]


async def test_the_queue_is_bounded_and_says_so_without_sending(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected(publish_window=1, max_queued=2, max_queued_bytes=100) as transport:
        publisher = await transport.publisher(TOPIC)
        send(publisher, failures, "a1", "a2")
        with pytest.raises(TransportError) as caught:
            publisher.publish(b"x" * 99, {}, flow="", on_failure=failures.of("x"))
        assert (caught.value.type, caught.value.may_have_run, caught.value.retry_after) == (
            "publish-queue-full",
            False,
            1.0,
        )
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


async def test_what_waits_can_be_withdrawn_and_what_has_left_cannot(broker: FakeBroker) -> None:
    failures = Failures()
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
    async with connected(publish_window=1) as transport:
        publisher = await transport.publisher(TOPIC)
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
        flush = asyncio.create_task(transport.flush())
        await idle()
        flush.cancel()
        broker.producer().receipts()
        await transport.flush()
        assert not transport._sender._writers


async def test_receipts_may_come_from_any_thread_in_any_order(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected(publish_window=16) as transport:
        publisher = await transport.publisher(TOPIC)
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
        assert (transport._sender.window.outstanding, transport._sender.window.queued) == (0, 0)


async def test_receipts_that_nobody_waits_for_do_not_wake_the_loop(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(publish_window=64) as transport:
        publisher = await transport.publisher(TOPIC)
        raw = broker.producer()
        calls = counting_wakeups(monkeypatch)
        for _ in range(10):
            send(publisher, Failures(), *(f"a{number}" for number in range(64)))
            raw.receipts()
        assert calls == [], "the next publish looks for itself"
        send(publisher, Failures(), *(f"a{number}" for number in range(200)))
        raw.receipts(60)
        assert calls == ["_drain"], "one wake-up for the whole burst"
        while raw.settled < len(raw.sent):
            raw.receipts()
            await idle()


async def test_what_has_left_is_not_kept(broker: FakeBroker) -> None:
    """A megabyte whose receipt is out is in pulsar-client's memory; it need not be in ours as well."""
    async with connected(publish_window=1) as transport:
        publisher = await transport.publisher(TOPIC)
        sent, waiting = (publisher.publish(b"x", {"id": "1"}, flow="", on_failure=lambda error: None) for _ in range(2))
        assert (sent.payload, sent.properties) == (None, None)  # type: ignore[attr-defined]
        assert waiting.payload == b"x"  # type: ignore[attr-defined]
        for _ in range(2):
            broker.producer().receipts()
            await idle()
