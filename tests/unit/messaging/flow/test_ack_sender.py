"""Acknowledging replies: once a wake-up, to the instance's own topic, within bounds."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.messaging.flow import ack_sender as acknowledger
from dispatch.messaging.flow.ack_sender import MIN_CREDIT, QUIET_S, AckSender
from dispatch.messaging.flow.credit import CREDIT_BYTES
from tests.helpers.clock import advance, idle
from tests.helpers.fakes import FakePublisher, lost

PREFIX = "non-persistent://tg/request/dispatch-instance-"


class Broker:
    def __init__(self) -> None:
        self.opened: dict[str, FakePublisher] = {}
        self.refuses: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def publisher(self, topic: str) -> FakePublisher:
        await self.gate.wait()
        if self.refuses is not None:
            raise self.refuses
        self.opened[topic] = FakePublisher(topic)
        return self.opened[topic]

    def told(self, instance: str) -> list[str]:
        opened = self.opened.get(PREFIX + instance)
        return [] if opened is None else [ticket.properties["acked"] for ticket in opened.sent]


def made(broker: Broker) -> AckSender:
    return AckSender(broker, "secret")  # type: ignore[arg-type]


async def test_only_the_last_of_a_burst_is_acknowledged_for_each_gate() -> None:
    broker = Broker()
    acknowledging = made(broker)
    for token in ("1:1", "1:2", "2:7", "1:3"):
        acknowledging.wanted((PREFIX,), PREFIX + "one", token)
    await idle()
    assert broker.told("one") == ["1:3,2:7"], "in one message"
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:4")
    await idle()
    assert broker.told("one") == ["1:3,2:7", "1:4"]
    assert acknowledging.sent == 2
    await acknowledging.close()
    assert broker.opened[PREFIX + "one"].closed


async def test_a_request_carries_what_is_due() -> None:
    broker = Broker()
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:1")
    await idle()
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:2")
    acknowledging.wanted((PREFIX,), PREFIX + "one", "2:5")
    assert acknowledging.carried(PREFIX + "one") == "1:2,2:5"
    assert acknowledging.carried(PREFIX + "one") is None, "once"
    assert acknowledging.carried(PREFIX + "two") is None
    await idle()
    assert broker.told("one") == ["1:1"], "no message of its own"
    assert acknowledging.sent == 2
    await acknowledging.close()


async def test_who_got_the_reply_has_a_turn_to_ask_the_next_question() -> None:
    broker = Broker()
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:1")
    await idle()
    got: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def caller() -> str | None:
        await got
        return acknowledging.carried(PREFIX + "one")

    asking = asyncio.create_task(caller())
    await asyncio.sleep(0)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:2")
    got.set_result(None)
    assert await asking == "1:2"
    await acknowledging.close()


async def test_each_instance_is_told_its_own() -> None:
    broker = Broker()
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:1")
    acknowledging.wanted((PREFIX,), PREFIX + "two", "1:2")
    await idle()
    assert (broker.told("one"), broker.told("two")) == (["1:1"], ["1:2"])
    await acknowledging.close()


@pytest.mark.parametrize(
    ("control", "token"),
    [
        (None, "1:1"),
        ("", "1:1"),
        ("non-persistent://tg/request/joke", "1:1"),
        ("non-persistent://secret/place/dispatch-control-one", "1:1"),
        (PREFIX + "one", "1:" + "1" * 100),
        (PREFIX + "x" * 10_000, "1:1"),
    ],
)
async def test_nobody_makes_us_publish_elsewhere_or_endlessly(control: str | None, token: str) -> None:
    broker = Broker()
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), control, token)
    await idle()
    assert not broker.opened
    await acknowledging.close()


async def test_what_comes_while_a_topic_opens_is_told_when_it_is_open() -> None:
    broker = Broker()
    broker.gate.clear()
    acknowledging = made(broker)
    for token in ("1:1", "1:2"):
        acknowledging.wanted((PREFIX,), PREFIX + "one", token)
        await idle()
    broker.gate.set()
    await idle()
    assert broker.told("one") == ["1:2"]
    await acknowledging.close()


async def test_a_topic_that_cannot_be_opened_is_tried_again_at_the_next_wish() -> None:
    broker = Broker()
    broker.refuses = lost(sent=False)
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:1")
    await idle()
    assert not broker.opened
    broker.refuses = None
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:2")
    await idle()
    assert broker.told("one") == ["1:2"]
    await acknowledging.close()


async def test_an_acknowledgement_that_cannot_be_sent_is_nobodys_trouble() -> None:
    broker = Broker()
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:1")
    await idle()
    broker.opened[PREFIX + "one"].sent[0].on_failure(lost())
    broker.opened[PREFIX + "one"].refusal = lost()
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:2")
    await idle()
    assert acknowledging.sent == 1
    await acknowledging.close()


async def test_instances_share_the_credit_but_each_has_some() -> None:
    acknowledging = made(Broker())
    shares = [acknowledging.credit]
    for number in range(20):
        acknowledging.wanted((PREFIX,), f"{PREFIX}{number}", "1:1")
        shares.append(acknowledging.credit)
    assert shares[:4] == [CREDIT_BYTES, CREDIT_BYTES, CREDIT_BYTES // 2, CREDIT_BYTES // 3]
    assert shares[-1] == MIN_CREDIT
    await idle()
    await acknowledging.close()


async def test_an_instance_that_went_quiet_is_forgotten_when_another_comes() -> None:
    broker = Broker()
    acknowledging = made(broker)
    for instance in ("old", "busy"):
        acknowledging.wanted((PREFIX,), PREFIX + instance, "1:1")
    await advance(QUIET_S - 1)
    acknowledging.wanted((PREFIX,), PREFIX + "busy", "1:2")
    await advance(1)
    acknowledging.wanted((PREFIX,), PREFIX + "new", "1:1")
    await idle()
    assert {topic.removeprefix(PREFIX): publisher.closed for topic, publisher in broker.opened.items()} == {
        "old": True,
        "busy": False,
        "new": False,
    }
    assert acknowledging.credit == CREDIT_BYTES // 2
    await acknowledging.close()


async def test_instances_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledger, "MAX_INSTANCES", 3)
    broker = Broker()
    acknowledging = made(broker)
    for number in range(10):
        acknowledging.wanted((PREFIX,), f"{PREFIX}{number}", "1:1")
        await idle()
    assert [topic[-1] for topic, publisher in broker.opened.items() if not publisher.closed] == ["7", "8", "9"]
    await acknowledging.close()


async def test_who_makes_room_is_told_what_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledger, "MAX_INSTANCES", 1)
    broker = Broker()
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:1")
    await idle()
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:2")
    acknowledging.wanted((PREFIX,), PREFIX + "two", "1:1")
    await idle()
    assert broker.told("one") == ["1:1", "1:2"]
    assert broker.told("two") == ["1:1"]
    assert broker.opened[PREFIX + "one"].closed
    await acknowledging.close()


async def test_closing_while_a_topic_opens_leaves_nothing() -> None:
    broker = Broker()
    broker.gate.clear()
    acknowledging = made(broker)
    acknowledging.wanted((PREFIX,), PREFIX + "one", "1:1")
    await idle()
    await acknowledging.close()
    assert not broker.opened
