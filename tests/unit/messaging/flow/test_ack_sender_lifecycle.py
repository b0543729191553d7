"""The acknowledger over time and in bursts: how often it speaks, whom it forgets, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.messaging.flow import ack_sender as acknowledger
from dispatch.messaging.flow.ack_sender import MAX_GATES, QUIET_S, AckSender
from dispatch.messaging.flow.credit import CREDIT_BYTES
from dispatch.messaging.wire.properties import Property
from dispatch.transports import Message, Mode
from dispatch.transports.memory import DRAIN_BATCH, MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.fakes import FakePublisher

PREFIX = "non-persistent://tg/request/dispatch-instance-"
REPLIES = "non-persistent://tg/response/dispatch-reply-me"


class Broker:
    """Opens publishers in the hand, when ``gate`` lets it."""

    def __init__(self) -> None:
        self.opened: dict[str, FakePublisher] = {}
        self.openings = 0
        self.refuses: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.close_gate = asyncio.Event()
        self.close_gate.set()

    async def publisher(self, topic: str) -> FakePublisher:
        self.openings += 1
        await self.gate.wait()
        if self.refuses is not None:
            raise self.refuses
        broker = self

        class Kept(FakePublisher):
            async def close(self) -> None:
                await broker.close_gate.wait()
                await super().close()

        self.opened[topic] = Kept(topic)
        return self.opened[topic]

    def open_now(self) -> set[str]:
        return {topic.removeprefix(PREFIX) for topic, publisher in self.opened.items() if not publisher.closed}


def made(broker: Broker) -> AckSender:
    return AckSender(broker, "secret")  # type: ignore[arg-type]


async def test_a_burst_of_replies_is_acknowledged_once_for_each_turn_of_the_loop() -> None:
    """As it is in life: replies come out of a transport in batches, and a batch costs one message back."""
    transport = MemoryTransport("memory://acknowledger")
    await transport.start()
    told: list[str] = []
    await transport.subscribe(
        PREFIX + "one", lambda message: told.append(message.properties()["acked"]), mode=Mode.FANOUT, name="service"
    )
    acknowledging = AckSender(transport, "secret")

    def handle(message: Message) -> None:
        properties = message.properties()
        acknowledging.wanted((PREFIX,), properties[Property.CONTROL], properties[Property.ACK])

    await transport.subscribe(REPLIES, handle, mode=Mode.FANOUT, name="dispatcher")
    publisher = await transport.publisher(REPLIES)
    count = 4 * DRAIN_BATCH
    for number in range(1, count + 1):
        properties = {Property.ACK: f"1:{number}", Property.CONTROL: PREFIX + "one"}
        publisher.publish(b"", properties, flow="", on_failure=lambda error: None)
    await idle()
    assert told[-1] == f"1:{count}"
    assert len(told) <= count // DRAIN_BATCH + 1
    assert acknowledging.sent == len(told)
    await acknowledging.close()
    await transport.close()


async def test_whoever_went_quiet_gives_its_share_back_even_if_nobody_new_comes() -> None:
    broker = Broker()
    acknowledging = made(broker)
    for number in range(100):
        acknowledging.wanted((PREFIX,), f"{PREFIX}{number}", "1:1")
    await idle()
    assert acknowledging.credit < CREDIT_BYTES // 10
    await advance(QUIET_S)
    acknowledging.wanted((PREFIX,), f"{PREFIX}7", "1:2")
    await idle()
    assert acknowledging.credit == CREDIT_BYTES
    assert broker.open_now() == {"7"}
    await acknowledging.close()


async def test_as_many_as_may_be_open_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledger, "MAX_INSTANCES", 3)
    broker = Broker()
    acknowledging = made(broker)
    for turn in range(3):
        for instance in "abc":
            acknowledging.wanted((PREFIX,), PREFIX + instance, f"1:{turn}")
            await idle()
    assert broker.openings == 3, "none was closed for another that was there already"
    await acknowledging.close()


async def test_the_one_that_spoke_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledger, "MAX_INSTANCES", 2)
    broker = Broker()
    acknowledging = made(broker)
    for instance in ("a", "b", "a", "c"):
        acknowledging.wanted((PREFIX,), PREFIX + instance, "1:1")
        await idle()
    assert broker.open_now() == {"a", "c"}
    await acknowledging.close()


async def test_instances_that_come_and_go_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledger, "MAX_INSTANCES", 3)
    broker = Broker()
    acknowledging = made(broker)
    for turn in range(5):
        for number in range(10):
            acknowledging.wanted((PREFIX,), f"{PREFIX}{turn}-{number}", "1:1")
            assert acknowledging.credit >= CREDIT_BYTES // 3, "bounded at every moment, not only after the turn"
        await idle()
    assert broker.open_now() == {"4-7", "4-8", "4-9"}
    assert broker.openings == 5 * 3, "for those that were forgotten in the same turn nothing was opened"
    assert not acknowledging._closing
    await acknowledging.close()


async def test_what_waits_for_a_topic_is_bounded_whatever_a_peer_makes_up() -> None:
    broker = Broker()
    broker.gate.clear()
    acknowledging = made(broker)
    for number in range(1_000):
        acknowledging.wanted((PREFIX,), PREFIX + "one", f"{number}:1")
        acknowledging.wanted((PREFIX,), PREFIX + "one", f"0:{number}")
        await idle()
    broker.gate.set()
    await idle()
    (message,) = broker.opened[PREFIX + "one"].sent
    told = message.properties["acked"].split(",")
    assert len(told) == MAX_GATES
    assert "0:999" in told, "one that waits already is brought up to date"
    await acknowledging.close()


@pytest.mark.parametrize("error", [ValueError("no such topic"), UnicodeError("not a text"), OSError()])
async def test_a_topic_that_cannot_be_opened_for_an_odd_reason_is_nobodys_trouble(error: Exception) -> None:
    broker = Broker()
    broker.refuses = error
    acknowledging = made(broker)
    for number in range(3):
        acknowledging.wanted((PREFIX,), PREFIX + "odd", f"1:{number}")
        await idle()
    assert broker.openings == 3
    assert acknowledging.sent == 0
    await acknowledging.close()


async def test_one_opening_at_a_time_for_each_instance() -> None:
    broker = Broker()
    broker.gate.clear()
    acknowledging = made(broker)
    for number in range(20):
        acknowledging.wanted((PREFIX,), PREFIX + "one", f"1:{number}")
        await idle()
    assert broker.openings == 1
    await acknowledging.close()


async def test_closing_waits_for_those_that_are_being_closed_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledger, "MAX_INSTANCES", 1)
    broker = Broker()
    acknowledging = made(broker)
    for instance in "ab":
        acknowledging.wanted((PREFIX,), PREFIX + instance, "1:1")
        await idle()
        broker.close_gate.clear()
    acknowledging.wanted((PREFIX,), PREFIX + "c", "1:1")  # b's closing hangs, and a's before it
    await idle()
    closing = asyncio.create_task(acknowledging.close())
    await idle()
    assert not closing.done()
    broker.close_gate.set()
    await closing
    assert broker.open_now() == set()


async def test_closing_can_be_cancelled_while_a_topic_still_opens() -> None:
    broker = Broker()
    broker.gate.clear()
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:1")
    await idle()
    closing = asyncio.create_task(acknowledging.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await idle()
    assert broker.open_now() == set()
