"""The publisher with a pace: what goes when, fairly, within bounds, by time and by receipts. On virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.errors import TransportError
from dispatch.messaging import flow as paced_publisher
from dispatch.messaging.flow import MESSAGE_OVERHEAD, NOTED_BYTES, PACE_RATE, RECEIPT_S, Pace, PacedPublisher
from dispatch.serving.plain import ReplyRouter
from dispatch.transports import OnFailure, Ticket
from tests.helpers.bounded_channel import Channel, ChannelPublisher
from tests.helpers.clock import START, advance, idle, run, virtual_loop
from tests.helpers.dispatcher_and_service import RESPONSES
from tests.helpers.fakes import FakePublisher, FakeTicket, lost
from tests.helpers.reply_broker import Broker, asked
from tests.helpers.run_profile import examples

MESSAGE = 1_000 - MESSAGE_OVERHEAD
"""A payload that counts as a thousand bytes."""
RATE = 100_000.0
"""Such a message takes 10 ms, then."""
EACH_S = 0.01
LARGE = 2 * NOTED_BYTES


class Noting(FakePublisher):
    """A publisher in the hand that tells of receipts when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts: list[Callable[[], None]] = []

    def publish_noted(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: Callable[[], None],
    ) -> FakeTicket:
        ticket = self.publish(payload, properties, flow=flow, on_failure=on_failure)
        self.receipts.append(on_receipt)
        return ticket


class Bench:
    """Burst for three messages, so that four go at once."""

    def __init__(self, publisher: FakePublisher | None = None, *, burst: int = 3_000, rate: float = RATE) -> None:
        self.inner = FakePublisher() if publisher is None else publisher
        self.publisher = PacedPublisher(self.inner, Pace(rate, burst))
        self.failures: list[TransportError] = []

    def send(self, *names: str, size: int = MESSAGE) -> list[Ticket]:
        """Named for their flow: ``a1`` is of the flow ``a``."""
        return [
            self.publisher.publish(name.encode().ljust(size), {"id": name}, flow=name[0], on_failure=self._failed)
            for name in names
        ]

    def _failed(self, error: TransportError) -> None:
        self.failures.append(error)

    @property
    def out(self) -> list[str]:
        return [ticket.properties["id"] for ticket in self.inner.sent]


async def test_a_burst_goes_at_once_and_the_rest_by_time() -> None:
    bench = Bench()
    bench.send(*(f"a{n}" for n in range(8)))
    assert bench.out == ["a0", "a1", "a2", "a3"]
    assert bench.publisher.queued == 4
    await advance(0.9 * EACH_S)
    assert len(bench.out) == 4
    await advance(0.2 * EACH_S)
    assert len(bench.out) == 5
    await bench.publisher.empty()
    assert bench.out == [f"a{n}" for n in range(8)]
    assert asyncio.get_running_loop().time() == pytest.approx(START + 4 * EACH_S, abs=1e-5)
    await bench.publisher.close()


async def test_the_next_after_a_large_one_goes_when_its_time_has_passed_and_not_later() -> None:
    bench = Bench()
    bench.send("a1", size=100_000 - MESSAGE_OVERHEAD)
    bench.send("b1")
    await bench.publisher.empty()
    assert asyncio.get_running_loop().time() == pytest.approx(START + 1.0, abs=1e-5)
    await bench.publisher.close()


async def test_one_at_a_time_and_seldom_costs_nothing() -> None:
    bench = Bench()
    for number in range(50):
        (ticket,) = bench.send(f"a{number}")
        assert ticket is bench.inner.sent[-1], "not even an object"  # type: ignore[comparison-overlap]
        await advance(EACH_S)
    assert (bench.publisher.queued, virtual_loop().list_timers()) == (0, [])


async def test_what_waits_is_never_overtaken_and_flows_take_turns() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "a6", "a7", "b1")
    await advance(1.5 * EACH_S)
    assert bench.out[4:] == ["a5"]
    bench.send("c1")
    await bench.publisher.empty()
    assert bench.out[4:] == ["a5", "b1", "a6", "c1", "a7"]
    await bench.publisher.close()


async def test_what_waits_can_be_withdrawn_and_what_has_left_is_the_publishers() -> None:
    bench = Bench()
    bench.inner.queueing = True
    tickets = bench.send("a1", "a2", "a3", "a4", "a5", "a6")
    assert [ticket.waits for ticket in tickets[4:]] == [True, True]
    assert tickets[4].cancel() is True
    assert tickets[4].cancel() is False
    assert tickets[0].cancel() is True, "as the publisher says"
    await bench.publisher.empty()
    assert bench.out == ["a1", "a2", "a3", "a4", "a6"]
    assert not tickets[5].waits
    bench.inner.sent[-1].queued = False
    assert tickets[5].cancel() is False
    assert bench.failures == []
    await bench.publisher.close()


async def test_withdrawing_the_last_one_stops_the_clock() -> None:
    bench = Bench()
    tickets = bench.send("a1", "a2", "a3", "a4", "a5")
    empty = asyncio.create_task(bench.publisher.empty())
    await idle()
    assert not empty.done()
    assert tickets[4].cancel()
    await empty
    assert virtual_loop().list_timers() == []


async def test_a_stream_waits_for_its_own_messages_only() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "b1", "b2")
    waiting = {flow: asyncio.create_task(bench.publisher.writable(flow)) for flow in "abc"}
    await idle()
    assert [flow for flow, task in waiting.items() if task.done()] == ["c"]
    await advance(1.5 * EACH_S)
    assert [flow for flow, task in waiting.items() if task.done()] == ["a", "c"]
    waiting["b"].cancel()
    await bench.publisher.empty()
    assert len(bench.out) == 7
    assert bench.publisher._waiters == []
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    await bench.publisher.close()


@pytest.mark.parametrize(("bound", "value"), [("MAX_QUEUED", 2), ("MAX_QUEUED_BYTES", 2 * MESSAGE + 100)])
async def test_the_queue_is_bounded_and_refuses_without_sending(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(paced_publisher, bound, value)
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "a6")
    with pytest.raises(
        TransportError, match=f"2 messages to {bench.publisher.topic} wait to be sent already"
    ) as caught:
        bench.send("a7")
    assert (caught.value.type, caught.value.may_have_run, caught.value.retry_after) == (
        "publish-queue-full",
        False,
        1.0,
    )
    await bench.publisher.empty()
    assert bench.out[-1] == "a6"
    await bench.publisher.close()


async def test_a_publisher_that_refuses_is_told_at_once_or_later_but_once_and_costs_no_time() -> None:
    bench = Bench()
    bench.inner.refusal = error = lost(sent=False)
    for _ in range(10):
        with pytest.raises(TransportError):
            bench.send("a1")
    bench.inner.refusal = None
    bench.send("a1", "a2", "a3", "a4", "a5", "a6", "a7")
    assert len(bench.out) == 4, "the refused ones were not counted"
    bench.inner.refusal = error
    tickets = bench.send("a8")
    assert tickets[0].cancel()
    await advance(EACH_S)
    assert bench.failures == [error] * 3
    assert bench.publisher.queued == 0
    await bench.publisher.close()


async def test_what_was_cancelled_does_not_hear_of_its_failure() -> None:
    bench = Bench()
    tickets = bench.send("a1", "a2", "a3", "a4", "a5")
    await bench.publisher.empty()
    assert tickets[4].cancel() is False
    bench.inner.sent[4].on_failure(lost())
    bench.inner.sent[0].on_failure(error := lost())
    assert bench.failures == [error]
    await bench.publisher.close()


async def test_closing_fails_what_waits_and_closes_the_publisher() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "b1")
    waiting = [asyncio.create_task(bench.publisher.writable("a")), asyncio.create_task(bench.publisher.empty())]
    await idle()
    await bench.publisher.close()
    assert [(error.type, error.may_have_run) for error in bench.failures] == [("closed", False)] * 2
    await asyncio.gather(*waiting)
    assert (bench.inner.closed, virtual_loop().list_timers()) == (True, [])
    assert bench.publisher.topic == bench.inner.topic


# -- where it stands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "paced"), [(RESPONSES, True), ("persistent://tg/response/lab", False)])
async def test_answers_on_a_response_topic_are_paced_unless_it_keeps_them(topic: str, paced: bool) -> None:
    broker = Broker()
    router = ReplyRouter(broker, topic)  # type: ignore[arg-type]
    await router.start()
    for number in range(20):
        router.send(asked(), b"x" * 100_000, {"id": str(number)})
    assert len(broker.sent(topic)) == (1 if paced else 20)
    await router.flush()
    assert len(broker.sent(topic)) == 20
    passed = asyncio.get_running_loop().time() - START
    assert passed == pytest.approx(19 * (100_000 + MESSAGE_OVERHEAD) / PACE_RATE if paced else 0.0, rel=0.01)
    await router.close()


# -- receipts ---------------------------------------------------------------------------------------------------


async def test_the_time_of_a_large_message_begins_with_its_receipt() -> None:
    noting = Noting()
    bench = Bench(noting)
    bench.send("a1", "a2", size=LARGE)
    await advance(1.0)
    assert bench.out == ["a1"], "the broker has not dealt with it"
    noting.receipts[0]()
    assert bench.out == ["a1"]
    spent = (LARGE + MESSAGE_OVERHEAD) / RATE
    await advance(0.9 * spent)
    assert bench.out == ["a1"]
    await advance(0.2 * spent)
    assert bench.out == ["a1", "a2"]
    noting.receipts[1]()
    assert virtual_loop().list_timers() == []
    await bench.publisher.close()


async def test_small_messages_ask_for_no_receipt_but_wait_for_a_large_ones() -> None:
    noting = Noting()
    bench = Bench(noting)
    bench.send("a1", "a2")
    assert noting.receipts == []
    bench.send("b1", size=LARGE)
    bench.send("c1")
    assert bench.out == ["a1", "a2", "b1"]
    noting.receipts[0]()
    await bench.publisher.empty()
    assert bench.out[-1] == "c1"
    await bench.publisher.close()


async def test_a_receipt_twice_counts_once() -> None:
    noting = Noting()
    bench = Bench(noting)
    bench.send("a1", "a2", size=LARGE)
    for _ in range(1_000):
        noting.receipts[0]()
    await bench.publisher.empty()
    assert asyncio.get_running_loop().time() < START + 1
    await bench.publisher.close()


async def test_a_receipt_that_does_not_come_stops_nobody_for_ever() -> None:
    noting = Noting()
    bench = Bench(noting)
    bench.send("a1", "a2", "a3", size=LARGE)
    await advance(0.99 * RECEIPT_S)
    assert bench.out == ["a1"]
    await advance(0.02 * RECEIPT_S)
    assert bench.out == ["a1", "a2"]
    await bench.publisher.empty()
    assert bench.out == ["a1", "a2", "a3"]
    await bench.publisher.close()


async def test_a_message_withdrawn_behind_the_window_makes_way_for_the_next() -> None:
    noting = Noting()
    noting.queueing = True
    bench = Bench(noting)
    first, _ = bench.send("a1", "a2", size=LARGE)
    assert bench.out == ["a1"]
    assert first.cancel()
    assert bench.out == ["a1", "a2"]
    noting.receipts[0]()
    await bench.publisher.close()


async def test_the_time_of_a_message_that_was_not_sent_comes_back() -> None:
    bench = Bench()
    bench.inner.queueing = True
    tickets = bench.send("a1", "a2", size=LARGE)
    assert bench.out == ["a1"]
    assert tickets[0].cancel()
    assert bench.out == ["a1", "a2"]
    bench.send("a3")
    bench.inner.sent[-1].on_failure(lost(sent=True))
    assert bench.out == ["a1", "a2"], "it may have been sent"
    assert bench.publisher.queued == 1
    await bench.publisher.close()
    bench = Bench()
    bench.send("a1", "a2", size=LARGE)
    bench.inner.sent[-1].on_failure(lost(sent=False))
    assert bench.out == ["a1", "a2"]
    await bench.publisher.close()


async def test_a_receipt_after_the_end_does_nothing() -> None:
    noting = Noting()
    bench = Bench(noting)
    bench.send("a1", "a2", size=LARGE)
    await bench.publisher.close()
    noting.receipts[0]()
    assert bench.out == ["a1"]
    assert virtual_loop().list_timers() == []


# -- in front of a channel that loses -----------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_a_receiver_as_fast_as_the_pace_loses_nothing(seed: int, together: bool) -> None:
    """Any sizes, any bursts: the channel never holds more than it may when a message comes."""

    async def scenario() -> None:
        rng = random.Random(seed)
        channel = Channel(rate=50e6)
        arrived: list[str] = []
        failed: list[TransportError] = []
        inner = ChannelPublisher(channel, lambda _payload, properties: arrived.append(properties["id"]))
        publisher = PacedPublisher(inner, Pace(rate=49e6))  # a little slower: the channel counts framing, too
        count = 100
        for number in range(count):
            size = int(1_000_000 ** rng.random())
            publisher.publish(b"x" * size, {"id": str(number)}, flow=str(number), on_failure=failed.append)
            if not together and rng.random() < 0.3:
                await asyncio.sleep(rng.random() ** 4 * 0.1)
        await publisher.empty()
        await channel.empty()
        assert (channel.lost, failed) == (0, [])
        assert arrived == [str(number) for number in range(count)]
        await publisher.close()

    run(scenario)
