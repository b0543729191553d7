"""Durable subscriptions over Pulsar: what is acknowledged when, and when that is certain."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pulsar
import pytest

from dispatch.transports import DurableMessage, Message, Mode
from dispatch.transports.pulsar.client import DEAF, OPERATION_TIMEOUT_S
from dispatch.transports.pulsar.transport import CLOSE_FLUSH_S, GATHERED_S, read_batch
from tests.helpers.clock import advance, idle
from tests.helpers.fake_pulsar import (
    KEPT,
    REPLACED_S,
    TOPIC,
    FakeBroker,
    Kept,
    connected,
    listen,
)

ANSWERS = "persistent://tg/response/mine"


class Settling:
    """A handler that settles what it gets."""

    def __init__(self) -> None:
        self.sure: list[str] = []

    def __call__(self, message: DurableMessage) -> None:
        text = message.data().decode()
        message.settle(lambda: self.sure.append(text))


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
    handler = Settling()
    async with connected() as transport:
        await listen(transport, handler, KEPT)
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
    handler = Settling()
    async with connected() as transport:
        await listen(transport, handler, KEPT)
        broker.consumer(KEPT).deliver(*(Kept(str(number)) for number in range(500)))
        await advance(GATHERED_S + 0.01)
        assert handler.sure == [str(number) for number in range(500)]
        assert broker.asked == 1


async def test_what_is_not_sure_is_not_done(broker: FakeBroker) -> None:
    """The connection was lost: the broker may give it to somebody else."""
    handler = Settling()
    async with connected() as transport:
        await transport.publisher(TOPIC)
        await listen(transport, handler, KEPT)
        broker.consumer(KEPT).deliver(Kept("lost"))
        await idle()
        broker.restarts()
        await advance(REPLACED_S)
        assert handler.sure == []
        broker.consumer(KEPT).deliver(Kept("new"))
        await advance(GATHERED_S + 0.01)
        assert handler.sure == ["new"]


@pytest.mark.parametrize("at", [0.0, 0.05, GATHERED_S + 0.05])
async def test_what_is_acknowledged_while_a_topic_moves_is_not_done(broker: FakeBroker, at: float) -> None:
    """pulsar-client opens the consumer again by itself; the broker delivers the message again."""
    handler = Settling()
    async with connected() as transport:
        await transport.publisher(TOPIC)
        await listen(transport, handler, KEPT)
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
    handler = Settling()
    async with connected() as transport:
        await listen(transport, handler, KEPT)
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
        opening = asyncio.create_task(listen(transport, handler, KEPT))
        await advance(2 * GATHERED_S)
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
    handler = Settling()
    async with connected() as transport:
        await transport.publisher(TOPIC)
        await listen(transport, handler, KEPT)
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
    handler = Settling()
    async with connected() as transport:
        await listen(transport, handler, KEPT)
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
        broker.restarts()
        await advance(REPLACED_S)
        assert broker.consumer(topic).after == after
        former.deliver(Kept("late", 1))
        broker.restarts()
        await advance(REPLACED_S)
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
