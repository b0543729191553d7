"""The publisher with a pace: what goes when, fairly, within bounds, by time and by receipts. On virtual time.
Requests to a fast service wait for its replies.
The pace as bookkeeping: never too much in any time, never a wait that need not be, whatever the sizes and the clock.
A fast third-party service has no more requests than its replies fit into a channel; slow tools are not held up.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.errors import TransportError
from dispatch.messaging import flow as paced_publisher
from dispatch.messaging.flow import (
    CHANNEL_BYTES,
    GRAIN_S,
    LATE_S,
    MAX_REMEMBERED,
    MESSAGE_OVERHEAD,
    NOTED_BYTES,
    PACE_BURST,
    PACE_RATE,
    PERIOD_S,
    RECEIPT_S,
    STALL_S,
    Pace,
    PacedPublisher,
    ReplyWindow,
)
from dispatch.serving.plain import ReplyRouter
from dispatch.transports import OnReceipt, Ticket
from tests.helpers.clock import START, advance, idle, run, start_task, virtual_loop
from tests.helpers.dispatcher_and_service import RESPONSES
from tests.helpers.fakes import FakePublisher, FakeTicket, lost
from tests.helpers.reply_broker import Broker, asked
from tests.helpers.run_profile import examples

HIGH_WATER = 65_536
"""Bytes in a channel beyond which a broker drops what comes."""
FRAMING = 300
"""What properties and framing add to a payload."""
CHANNEL_RATE = 400e6
"""Bytes a second through a channel that does not stand still: a loopback, or a network of today."""


class Channel:
    """Messages on their way to one receiver.

    Args:
        stalls: how long (in seconds) the channel stands still when it has just been given something and was empty before;
            one for each such time, then none. So a stall is never longer than one of these.
        rate: bytes a second otherwise.
    """

    def __init__(self, stalls: Iterator[float] | None = None, rate: float = CHANNEL_RATE) -> None:
        self.bytes = 0
        self.most = 0
        self.lost = 0
        """Messages that were dropped."""
        self.delivered = 0
        self._rate = rate
        self._stalls = chain(stalls or (), repeat(0.0))
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._empty = asyncio.Event()
        self._empty.set()

    def offer(self, payload: bytes, deliver: Callable[[], object]) -> bool:
        """Take a message on its way: ``deliver`` is called when it is there. False: it was dropped."""
        if self.bytes > HIGH_WATER:
            self.lost += 1
            return False
        size = len(payload) + FRAMING
        self.bytes += size
        self.most = max(self.most, self.bytes)
        self._waiting.append((size, deliver))
        if len(self._waiting) == 1:
            self._empty.clear()
            self._next(next(self._stalls))
        return True

    def _next(self, stall: float) -> None:
        asyncio.get_running_loop().call_later(stall + self._waiting[0][0] / self._rate, self._drain)

    def _drain(self) -> None:
        size, deliver = self._waiting.popleft()
        self.bytes -= size
        self.delivered += 1
        if self._waiting:
            self._next(0.0)
        else:
            self._empty.set()
        deliver()

    async def empty(self) -> None:
        """Wait until everything is there."""
        await self._empty.wait()


class ChannelPublisher:
    """A publisher into a channel. ``receive`` gets what arrives; ``refusal`` is raised instead of publishing, if set."""

    def __init__(self, channel: Channel, receive: Callable[[bytes, Mapping[str, str]], object]) -> None:
        self.topic = "non-persistent://tg/response/caller"
        self.channel = channel
        self.refusal: Exception | None = None
        self.sent: list[tuple[float, int]] = []
        """When each message went, and how many bytes it had."""
        self._receive = receive

    def publish(
        self, payload: bytes, properties: Mapping[str, str], *, on_receipt: OnReceipt | None = None, **options: Any
    ) -> FakeTicket:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append((asyncio.get_running_loop().time(), len(payload)))
        if on_receipt is not None:
            asyncio.get_running_loop().call_soon(on_receipt)
        self.channel.offer(payload, lambda: self._receive(payload, properties))
        return FakeTicket(payload, properties, **options)

    async def writable(self, flow: str) -> None:
        """There is always room: a broker says Ok to what it drops."""

    async def close(self) -> None:
        """Nothing is held."""


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
        self.receipts: list[OnReceipt] = []

    def publish(self, *message: Any, on_receipt: OnReceipt | None = None, **options: Any) -> FakeTicket:
        ticket = super().publish(*message, **options)
        if on_receipt is not None:
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
        payloads = {name: name.encode().ljust(size) for name in names}
        options = {"on_failure": self.failures.append}
        return [self.publisher.publish(payloads[name], {"id": name}, flow=name[0], **options) for name in names]

    @property
    def out(self) -> list[str]:
        return [ticket.properties["id"] for ticket in self.inner.sent]


async def test_a_burst_goes_at_once_and_the_rest_by_time() -> None:
    bench = Bench()
    bench.send(*(f"a{n}" for n in range(8)))
    assert (bench.out, bench.publisher.queued) == (["a0", "a1", "a2", "a3"], 4)
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
    assert bench.publisher.queued == 2
    assert tickets[4].cancel() is True
    assert tickets[4].cancel() is False
    assert tickets[0].cancel() is True, "as the publisher says"
    await bench.publisher.empty()
    assert bench.out == ["a1", "a2", "a3", "a4", "a6"]
    bench.inner.sent[-1].queued = False
    assert tickets[5].cancel() is False
    assert bench.failures == []
    await bench.publisher.close()


async def test_withdrawing_the_last_one_stops_the_clock() -> None:
    bench = Bench()
    tickets = bench.send("a1", "a2", "a3", "a4", "a5")
    empty = await start_task(bench.publisher.empty())
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
    wait = f"2 messages to {bench.publisher.topic} wait to be sent already"
    with pytest.raises(TransportError, match=wait) as caught:
        bench.send("a7")
    error = caught.value
    assert (error.type, error.may_have_run, error.retry_after) == ("publish-queue-full", False, 1.0)
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
    assert bench.send("a8")[0].cancel()
    await advance(EACH_S)
    assert (bench.failures, bench.publisher.queued) == ([error] * 3, 0)
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
    assert passed == pytest.approx(19 * STALL_S if paced else 0.0, rel=0.01)
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
    bench = Bench(Noting())
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
    assert (bench.out, virtual_loop().list_timers()) == (["a1"], [])


# -- in front of a channel that loses -----------------------------------------------------------------------------
@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(16), deadline=None)
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


REPLY = 40_000
"""Bytes of a reply, of which two may be outstanding."""


class Requests:
    """Requests to a service that has replied to some at once."""

    def __init__(self, *, waits_in_client: bool = False) -> None:
        self.inner = FakePublisher(queueing=waits_in_client)
        self.replies = ReplyWindow()
        for number in range(100):
            self.replies.send(str(number), virtual_loop().time())
            self.reply(str(number))
        self.publisher = PacedPublisher(self.inner, Pace(rate=1e12), self.replies)

    def send(self, *names: str, size: int = 100) -> list[Ticket]:
        payload = b"x" * size
        return [
            self.publisher.publish(payload, {"id": name}, flow=name, on_failure=lambda _error: None) for name in names
        ]

    def reply(self, name: str) -> None:
        self.replies.receive(name, REPLY, virtual_loop().time())

    @property
    def out(self) -> str:
        return "".join(ticket.properties["id"] for ticket in self.inner.sent)


@pytest.mark.parametrize("size", [100, 2 * NOTED_BYTES])
async def test_a_request_waits_for_a_reply_or_until_an_unanswered_one_counts_no_more(size: int) -> None:
    requests = Requests()
    requests.send(*"abcdef", size=size)
    assert requests.out == "ab"
    requests.reply("a")
    assert requests.out == "abc"
    await advance(LATE_S / 2)
    assert requests.out == "abc"
    await advance(LATE_S / 2)
    assert requests.out == "abcde"
    await requests.publisher.close()


async def test_publishers_of_one_response_topic_share_its_window() -> None:
    requests = Requests()
    other = FakePublisher()
    requests.send("a", "b")
    PacedPublisher(other, Pace(rate=1e12), requests.replies).publish(
        b"", {"id": "c"}, flow="c", on_failure=lambda _error: None
    )
    assert other.sent == []
    requests.reply("b")
    assert [ticket.properties["id"] for ticket in other.sent] == ["c"]


async def test_a_withdrawn_request_makes_way_for_the_next() -> None:
    requests = Requests(waits_in_client=True)
    first, *_ = requests.send("a", "b", "c")
    assert first.cancel()
    assert requests.out == "abc"


async def test_a_request_that_waits_and_is_withdrawn_did_not_count() -> None:
    requests = Requests()
    *_, third = requests.send("a", "b", "c")
    assert third.cancel()
    requests.reply("a")
    requests.send("d", "e")
    assert requests.out == "abd"
    await requests.publisher.close()


async def test_nothing_is_left_behind_after_the_end() -> None:
    requests = Requests()
    requests.send("a", "b", "c")
    await requests.publisher.close()
    requests.reply("a")
    assert (requests.out, requests.replies.waiting) == ("ab", set())


RATES = st.floats(1e3, 1e10)
BURSTS = st.integers(1, 100_000)
SEEDS = st.integers(0, 2**32)
START_PACER = 1_000.0


class Run:
    """A sender that sends as soon as it may, on a clock of its own, and a broker whose receipts take their time.

    Args:
        receipts: receipts are told; how late, the randomness says.
    """

    def __init__(self, pace: Pace, rng: random.Random, *, receipts: bool) -> None:
        self.pace = pace
        self.rng = rng
        self.receipts = receipts
        self.now = START_PACER
        self.out: list[tuple[float, int]] = []
        self.sent: list[tuple[float, int]] = []

    def _deal(self, until: float) -> None:
        """Let the receipts come that are due."""
        self.out.sort()
        while self.out and self.out[0][0] <= until:
            when, size = self.out.pop(0)
            self.now = max(self.now, when)
            self.pace.receipt(size, self.now)

    def send(self, size: int) -> None:
        while (wait := self.pace.wait(self.now)) != 0.0:
            before = self.now
            due = min((when for when, _ in self.out), default=float("inf"))
            if wait is None or due < self.now + wait:
                assert self.out, "it waits for a receipt that nobody owes"
                self._deal(due)
                assert self.out == [] or self.now >= before
            else:
                self.now += wait
        self.sent.append((self.now, size))
        if self.receipts and self.rng.random() < 0.7:
            self.pace.hold(size)
            self.out.append((self.now + self.rng.random() ** 4 * 0.1, size))
        else:
            self.pace.send(size, self.now)

    def idle(self, seconds: float) -> None:
        self._deal(self.now + seconds)
        self.now = max(self.now, self.now + seconds)


def sizes(rng: random.Random) -> list[int]:
    """From one byte to a megabyte, small ones as often as large ones."""
    return [max(1, int(1e6 ** rng.random())) for _ in range(60)]


def worst_excess(sent: list[tuple[float, int]], pace: Pace) -> float:
    """By how many bytes the worst window, without its last message, is over the burst and what its time allows."""
    worst = float("-inf")
    for first, (start, _) in enumerate(sent):
        total = 0
        for when, size in sent[first:]:
            worst = max(worst, total - pace.burst - pace.rate * (when - start))
            total += size
    return worst


def sloppiness(pace: Pace, sent: list[tuple[float, int]]) -> float:
    """What the grain and the arithmetic may add, in bytes: 1e-12 s is what a clock at 1,000 s can tell apart, tenfold."""
    return pace.rate * (GRAIN_S + len(sent) * 1e-12) + 1e-3


@given(RATES, BURSTS, SEEDS, st.booleans())
def test_in_no_time_more_goes_than_the_burst_and_the_rate(rate: float, burst: int, seed: int, receipts: bool) -> None:
    pace = Pace(rate, burst)
    run = Run(pace, random.Random(seed), receipts=receipts)
    for size in sizes(run.rng):
        run.send(size)
        if run.rng.random() < 0.2:
            run.idle(run.rng.random() ** 4 * 10)
    assert worst_excess(run.sent, pace) <= sloppiness(pace, run.sent)


@given(RATES, BURSTS, SEEDS)
def test_nothing_waits_longer_than_it_must(rate: float, burst: int, seed: int) -> None:
    """By the definition: a message waits exactly until those that are not wholly through are the burst at most."""
    pace = Pace(rate, burst)
    rng = random.Random(seed)
    now = free = START_PACER  # our own account, kept the plain way: a line of messages, one after the other
    line: list[tuple[float, int]] = []
    for size in sizes(rng):
        wait = pace.wait(now)
        assert wait is not None
        instants = [now, *sorted(end for end, _ in line if end > now)]
        must = next(at for at in instants if sum(n for end, n in line if end > at + GRAIN_S) <= burst) - now
        assert wait == pytest.approx(must, rel=1e-6, abs=2 * GRAIN_S)
        now += wait
        pace.send(size, now)
        free = max(free, now) + (size / rate if size <= CHANNEL_BYTES else max(size / rate, STALL_S))
        line.append((free, size))
        if rng.random() < 0.3:
            now += rng.random() ** 3 * 10 * burst / rate


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    pace = Pace(rate=1_000, burst=10)
    pace.send(1_000, 50.0)
    assert pace.wait(40.0) == pytest.approx(11.0)
    pace.send(1_000, 40.0)
    assert pace.wait(51.5) == pytest.approx(0.5)
    assert pace.wait(52.0) == 0.0


@given(BURSTS, st.integers(1, 1_000_000), st.floats(0.001, 100))
def test_what_is_not_receipted_counts_in_full_however_long_it_takes(burst: int, size: int, late: float) -> None:
    pace = Pace(rate=1e6, burst=burst)
    pace.hold(size)
    expected = 0.0 if size <= burst else None
    assert pace.wait(0.0) == expected
    assert pace.wait(late) == expected, "no time makes up for a receipt"
    pace.receipt(size, late)
    assert pace.wait(late) == pytest.approx(size / 1e6 if size > burst else 0.0, abs=2 * GRAIN_S)
    assert pace.unreceipted == 0


def test_what_was_sent_and_what_is_not_receipted_count_together() -> None:
    pace = Pace(rate=1_000, burst=10)
    pace.send(8, 0.0)
    assert pace.wait(0.0) == 0.0
    pace.hold(7)
    assert pace.wait(0.0) == pytest.approx(0.008)
    pace.withdraw(7)
    assert pace.wait(0.0) == 0.0


def test_a_withdrawn_message_costs_nothing_and_a_receipt_too_many_gives_nothing() -> None:
    pace = Pace(rate=1_000, burst=10)
    pace.hold(100)
    assert pace.wait(0.0) is None
    pace.withdraw(100)
    pace.withdraw(100)
    assert pace.wait(0.0) == 0.0
    pace.hold(11)
    assert pace.wait(0.0) is None


def test_a_message_that_is_taken_back_costs_nothing() -> None:
    pace = Pace(rate=1_000, burst=10)
    first, last = pace.send(100, 5.0), pace.send(100, 5.0)
    assert pace.wait(5.0) == pytest.approx(0.2)
    pace.take_back(100, last)
    assert pace.wait(5.0) == pytest.approx(0.1)
    pace.take_back(100, last)
    assert pace.wait(5.0) == pytest.approx(0.1), "once only"
    second = pace.send(100, 5.0)
    assert second == last
    pace.take_back(100, first)
    assert pace.wait(5.0) == pytest.approx(0.2), "the time of what was sent after it stays"
    assert pace.wait(5.2) == 0.0
    pace.take_back(100, second)
    assert pace.wait(5.2) == 0.0


def test_the_defaults_leave_the_channel_writable_and_small_answers_alone() -> None:
    pace = Pace()
    assert (pace.rate, pace.burst) == (PACE_RATE, PACE_BURST)
    assert PACE_BURST < HIGH_WATER
    for number in range(10_000):  # 10,000 answers a second of 700 bytes, more than one process sends
        now = number / 10_000
        assert pace.wait(now) == 0.0
        pace.send(700, now)
    for _ in range(64):  # and 64 at once
        assert pace.wait(5.0) == 0.0
        pace.send(700, 5.0)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0), (1, -1), (float("nan"), 1), (1, float("nan"))])
def test_a_pace_of_nothing_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Pace(rate, burst)


REPLY_REPLY_WINDOW = 10_000
FITS = 1 + PACE_BURST // (REPLY_REPLY_WINDOW + MESSAGE_OVERHEAD)
"""Requests of which the last one goes while the replies of those before it fit into a channel."""


class Service:
    """A caller of a service whose replies the test sends."""

    def __init__(self) -> None:
        self.window = ReplyWindow()
        self.now = 0.0
        self._ids = map(str, itertools.count())

    def ask(self) -> str:
        id = next(self._ids)
        self.window.send(id, self.now)
        return id

    def ask_all(self, most: int = 1_000) -> list[str]:
        """Send requests while they may go."""
        ids: list[str] = []
        while len(ids) < most and self.window.wait(self.now) == 0.0:
            ids.append(self.ask())
        return ids

    def reply(self, id: str, after: float = 0.0, size: int = REPLY_REPLY_WINDOW) -> None:
        self.now += after
        self.window.receive(id, size, self.now)

    def learn(self, round_trip: float, seconds: float = 2 * PERIOD_S) -> None:
        """Let calls succeed one by one until the sizes and the round trip are known."""
        end = self.now + seconds
        while self.now < end:
            self.reply(self.ask(), round_trip)


@pytest.fixture
def service() -> Service:
    return Service()


def test_all_go_until_a_reply_has_arrived(service: Service) -> None:
    assert len(service.ask_all(10 * MAX_REMEMBERED)) == 10 * MAX_REMEMBERED
    assert service.window.unanswered == MAX_REMEMBERED


def test_replies_of_a_fast_service_fit_into_a_channel(service: Service) -> None:
    service.learn(0.001)
    assert len(service.ask_all()) == FITS


def test_one_goes_whatever_its_size(service: Service) -> None:
    for _ in range(100):
        service.reply(service.ask(), 0.001, size=10**7)
    assert len(service.ask_all()) == 1


def test_a_reply_makes_room_and_tells_who_waits_once(service: Service) -> None:
    service.learn(0.001)
    first, *_ = service.ask_all()
    calls: list[int] = []
    service.window.waiting.add(lambda: calls.append(service.window.unanswered))
    service.reply(first, 0.001)
    assert calls == [FITS - 1]
    assert len(service.ask_all()) == 1
    service.reply("unknown")
    assert calls == [FITS - 1]


def test_an_unanswered_request_counts_for_a_while(service: Service) -> None:
    service.learn(0.001)
    service.ask_all()
    assert service.window.wait(service.now) == pytest.approx(LATE_S)
    service.now += LATE_S / 4
    assert service.window.wait(service.now) == pytest.approx(LATE_S * 3 / 4)
    service.now += LATE_S * 3 / 4
    assert len(service.ask_all()) == FITS


def test_lost_replies_open_nothing(service: Service) -> None:
    service.learn(0.001)
    for _ in range(50):
        assert len(service.ask_all()) == FITS
        service.now += LATE_S


def test_a_stall_opens_nothing(service: Service) -> None:
    service.learn(0.001)
    ids = service.ask_all()[: FITS - 1]
    service.now += 2 * LATE_S
    assert len(service.ask_all()) == FITS
    for id in ids:
        service.reply(id)
    assert service.ask_all(1_000) == []


def test_a_slow_tool_gets_all(service: Service) -> None:
    service.learn(10 * LATE_S, 100 * LATE_S)
    assert len(service.ask_all(5_000)) == 5_000


def test_a_slow_tool_that_answers_some_at_once_gets_all(service: Service) -> None:
    service.learn(0.001)
    for _ in range(20):
        service.reply(service.ask(), 0.001)
        service.reply(service.ask(), 5 * LATE_S)
        service.reply(service.ask(), 5 * LATE_S)
    assert len(service.ask_all(500)) == 500
    service.now += LATE_S
    for _ in range(20):
        service.reply(service.ask(), 0.001)
    assert len(service.ask_all()) == FITS, "it is fast again"


def test_the_round_trip_widens_the_window_from_the_next_period_on(service: Service) -> None:
    round_trip = 0.05
    service.learn(round_trip, PERIOD_S / 2)
    assert service.window.capacity == PACE_BURST
    service.learn(round_trip)
    assert service.window.capacity == pytest.approx(PACE_BURST + PACE_RATE * (round_trip - STALL_S))
    service.reply(service.ask(), 0.001)
    assert service.window.capacity == PACE_BURST


def test_a_shorter_round_trip_is_forgotten(service: Service) -> None:
    service.learn(0.001)
    service.learn(0.05, 3 * PERIOD_S)
    assert service.window.capacity > PACE_BURST


def test_a_withdrawn_request_does_not_count(service: Service) -> None:
    service.learn(0.001)
    service.window.withdraw(service.ask_all()[0])
    service.window.withdraw("unknown")
    assert len(service.ask_all()) == 1


def test_what_is_remembered_is_bounded(service: Service) -> None:
    service.learn(0.001, 0.01)
    first = service.ask()
    for _ in range(MAX_REMEMBERED):
        service.now += LATE_S
        service.ask_all()
    service.reply(first, size=0)
    assert service.window.wait(service.now) > 0, "its lateness is not known any more"


@pytest.mark.costly
@settings(max_examples=examples(80))
@given(
    size=st.integers(100, 100_000),
    think_times=st.lists(st.floats(0.0, 0.001), min_size=200, max_size=200),
    stall_at=st.integers(100, 199),
)
def test_a_burst_after_a_stall_fits_into_a_channel(size: int, think_times: list[float], stall_at: int) -> None:
    service = Service()
    for _ in range(200):  # the sizes are known
        service.reply(service.ask(), 0.001, size)
    unanswered: list[str] = []
    for number, think_time in enumerate(think_times):
        unanswered += service.ask_all(64 - len(unanswered))
        if number == stall_at:
            service.now += 0.03  # less than LATE_S for the oldest one
            unanswered += service.ask_all(64 - len(unanswered))
            assert (len(unanswered) - 1) * (size + MESSAGE_OVERHEAD) <= 1.01 * PACE_BURST
        service.reply(unanswered.pop(0), think_time, size)
