"""The gate before a channel that loses what it cannot hold: nothing is lost, nothing gets stuck, nothing comes in bursts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.errors import TransportError
from dispatch.messaging.flow.credit import CREDIT_BYTES, MESSAGE_OVERHEAD
from dispatch.messaging.flow.publisher import FIRST_PATIENCE_S, MAX_PATIENCE_S, MAX_PROBES, PATIENCE_S, Gate
from dispatch.transports import Ticket
from tests.helpers.bounded_channel import HIGH_WATER, Channel, ChannelPublisher, stalls
from tests.helpers.clock import advance, idle, run
from tests.helpers.run_profile import examples

SEEDS = st.integers(0, 2**32)
LONGEST_STALL_S = 0.04


def sizes(rng: random.Random, count: int, largest: int = 1_000_000) -> list[int]:
    """From one byte to the largest, small ones as often as large ones."""
    return [int(largest ** rng.random()) for _ in range(count)]


class Bench:
    """A gate, a channel, and a peer that acknowledges what asks for it, unless its word gets lost.

    Args:
        credit: None: the peer has said nothing yet (a dispatcher towards a service).
        lost: the chance that an acknowledgement gets lost.
    """

    def __init__(self, rng: random.Random, *, lost: float = 0.0, credit: int | None = CREDIT_BYTES) -> None:
        self.rng = rng
        self.lost = lost
        self.channel = Channel(stalls(rng, LONGEST_STALL_S))
        self.publisher = ChannelPublisher(self.channel, self._receive)
        self.gate = Gate(self.publisher, lambda sequence: {"ack": str(sequence)}, None if credit else CREDIT_BYTES)
        if credit:
            self.gate.limit(credit)
        self.arrived: list[str] = []
        self.failed: Counter[str] = Counter()
        self.acknowledged: list[float] = []
        self.most_queued = 0

    def _receive(self, payload: bytes, properties: Mapping[str, str]) -> None:
        self.arrived.append(properties["id"])
        if "ack" in properties and self.rng.random() >= self.lost:
            delay = self.rng.random() * 0.002
            asyncio.get_running_loop().call_later(delay, self._acknowledge, int(properties["ack"]))

    def _acknowledge(self, sequence: int) -> None:
        self.acknowledged.append(asyncio.get_running_loop().time())
        self.gate.acknowledge(sequence)

    def send(self, id: str, size: int, flow: str = "flow") -> Ticket:
        def failed(error: TransportError) -> None:
            self.failed[id] += 1

        ticket = self.gate.publish(b"x" * size, {"id": id}, flow=flow, on_failure=failed)
        self.most_queued = max(self.most_queued, self.gate.queued)
        return ticket

    async def send_all(self, payloads: list[int]) -> None:
        """Now one at a time, now many at once."""
        for number, size in enumerate(payloads):
            self.send(str(number), size)
            if self.rng.random() < 0.1:
                await asyncio.sleep(self.rng.random() * 0.02)

    async def end(self) -> None:
        await self.gate.empty()
        await self.channel.empty()
        await advance(0.01)  # the last acknowledgements
        await self.gate.close()

    def bursts_keep_to(self, credit: int) -> None:
        """Unless an acknowledgement came meanwhile, what goes within one patience is the credit and one message more."""
        sent = self.publisher.sent
        for first in range(len(sent)):
            start, total = sent[first][0], 0
            for when, size in sent[first:]:
                if when >= start + PATIENCE_S * 0.99 or any(start <= heard <= when for heard in self.acknowledged):
                    break
                assert total < credit, f"{total} bytes at once, from {start} s on"
                total += size + MESSAGE_OVERHEAD


@given(SEEDS, st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_towards_one_that_acknowledges_nothing_is_lost_whatever_the_sizes_and_stalls(seed: int, known: bool) -> None:
    async def scenario() -> None:
        bench = Bench(random.Random(seed), credit=CREDIT_BYTES if known else None)
        payloads = sizes(bench.rng, 80)
        await bench.send_all(payloads)
        await bench.end()
        assert bench.channel.lost == 0
        assert bench.arrived == [str(number) for number in range(len(payloads))], "in order, too"
        assert not bench.failed

    run(scenario)


@given(SEEDS)
@settings(max_examples=examples(20), deadline=None)
def test_a_large_message_on_a_slow_link_is_waited_for(seed: int) -> None:
    """A megabyte takes 80 ms over 100 Mbit/s: what is sent before it is through finds a full channel."""

    async def scenario() -> None:
        bench = Bench(random.Random(seed))
        bench.channel = bench.publisher.channel = Channel(rate=12.5e6)
        await bench.send_all(sizes(bench.rng, 60))
        await bench.end()
        assert bench.channel.lost == 0
        assert len(bench.arrived) == 60

    run(scenario)


async def test_the_same_messages_without_a_gate_get_lost() -> None:
    bench = Bench(random.Random(1))
    for size in sizes(bench.rng, 80):
        bench.publisher.publish(b"x" * size, {"id": ""}, flow="", on_failure=lambda error: None)
    await bench.channel.empty()
    assert bench.channel.lost > 40, "this channel would show it if the gate did nothing"
    assert bench.channel.most > HIGH_WATER


@given(SEEDS, st.sampled_from([0.1, 0.5, 0.9, 1.0]))
@settings(max_examples=examples(40), deadline=None)
def test_lost_acknowledgements_cost_time_but_nothing_gets_stuck_or_comes_in_bursts(seed: int, share: float) -> None:
    async def scenario() -> None:
        bench = Bench(random.Random(seed), lost=share, credit=20_000)
        payloads = sizes(bench.rng, 100, largest=15_000)
        await bench.send_all(payloads)
        await bench.end()
        assert bench.channel.lost == 0
        assert bench.arrived == [str(number) for number in range(len(payloads))]
        bench.bursts_keep_to(20_000)

    run(scenario)


async def test_one_lost_acknowledgement_costs_one_patience() -> None:
    loop = asyncio.get_running_loop()
    bench = Bench(random.Random(3))
    bench.send("first", 1_000)
    bench.gate.acknowledge(1)  # it is known, and patience is short from now on
    bench.lost = 1.0
    started = loop.time()
    for number in range(200):
        bench.send(str(number), 1_000)
    await advance(PATIENCE_S / 2)
    bench.lost = 0.0
    await bench.gate.empty()
    assert PATIENCE_S <= loop.time() - started < PATIENCE_S + 4 * LONGEST_STALL_S
    assert bench.gate.overdue == 1
    await bench.end()


@given(SEEDS)
@settings(max_examples=examples(20), deadline=None)
def test_a_peer_that_vanished_holds_nothing_for_ever(seed: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        bench = Bench(random.Random(seed), lost=1.0)
        payloads = sizes(bench.rng, 300, largest=50_000)
        started = loop.time()
        for number, size in enumerate(payloads):
            bench.send(str(number), size)
        await bench.gate.empty()
        bytes_ = sum(payloads) + len(payloads) * MESSAGE_OVERHEAD
        probing = FIRST_PATIENCE_S * 3 + MAX_PATIENCE_S * (MAX_PROBES - 2)
        assert loop.time() - started <= probing + (bytes_ / CREDIT_BYTES + 1) * PATIENCE_S
        assert len(bench.arrived) + len(bench.channel._waiting) == 300
        assert not bench.gate.acknowledges
        bench.bursts_keep_to(CREDIT_BYTES)
        await bench.end()

    run(scenario)


async def test_a_peer_that_comes_back_after_an_outage_is_one_that_acknowledges_again() -> None:
    """Otherwise its first late acknowledgement would be followed by a burst, for as long as the gate lives."""
    bench = Bench(random.Random(5), lost=1.0)
    for number in range(400):
        bench.send(str(number), 1_000)
    await bench.gate.empty()
    assert not bench.gate.acknowledges
    bench.lost = 0.0
    for number in range(200):
        bench.send(str(number), 1_000)
    await bench.end()
    assert bench.gate.acknowledges
    assert bench.channel.lost == 0


async def test_a_stranger_is_paced_and_loses_nothing_to_a_stall() -> None:
    loop = asyncio.get_running_loop()
    bench = Bench(random.Random(6), credit=None, lost=1.0)
    started = loop.time()
    for number in range(1_000):
        bench.send(str(number), 1_000)
    await bench.gate.empty()
    credits = 1_000 * (1_000 + MESSAGE_OVERHEAD) / CREDIT_BYTES
    took = loop.time() - started - FIRST_PATIENCE_S + PATIENCE_S
    assert credits * PATIENCE_S * 0.9 < took < credits * PATIENCE_S * 1.1
    assert not bench.gate.acknowledges
    await bench.end()
    assert bench.channel.lost == 0
    assert len(bench.arrived) == 1_000


async def test_a_busy_flow_keeps_nobody_waiting_longer_than_its_own_turn() -> None:
    bench = Bench(random.Random(7))
    for number in range(500):
        bench.send(f"busy {number}", 2_000, flow="busy")
    passed = len(bench.publisher.sent)
    for other in "abcde":
        for number in range(2):
            bench.send(f"{other} {number}", 2_000, flow=other)
    await bench.end()
    firsts = [bench.arrived.index(f"{other} 0") for other in "abcde"]
    seconds = [bench.arrived.index(f"{other} 1") for other in "abcde"]
    assert max(firsts) <= passed + 6 + 1, "a turn is one message of each of the six"
    assert max(seconds) <= passed + 2 * 6 + 1


@given(SEEDS)
@settings(max_examples=examples(60), deadline=None)
def test_every_message_has_one_fate(seed: int) -> None:
    """It arrives, or its failure is reported once, or it was withdrawn, or refused: one of these, whatever happens."""

    async def scenario() -> None:
        rng = random.Random(seed)
        bench = Bench(rng, lost=rng.choice((0.0, 0.3)), credit=20_000)
        tickets: dict[str, Ticket] = {}
        refused: set[str] = set()
        withdrawn: set[str] = set()
        given_up: set[str] = set()
        for number in range(150):
            id = str(number)
            try:
                tickets[id] = bench.send(id, rng.randrange(1, 5_000), flow=rng.choice("abc"))
            except TransportError:
                refused.add(id)
            if rng.random() < 0.05:
                sick = bench.publisher.refusal is None and rng.random() < 0.5
                bench.publisher.refusal = TransportError("publish-queue-full", "full", sent=False) if sick else None
            if rng.random() < 0.2 and tickets:
                chosen = rng.choice(list(tickets))
                (withdrawn if tickets[chosen].cancel() else given_up).add(chosen)
            if rng.random() < 0.1:
                await advance(rng.random() * 0.03)
        bench.publisher.refusal = None
        if rng.random() < 0.5:
            await bench.gate.empty()
        await bench.gate.close()
        await bench.channel.empty()
        await advance(0.01)
        arrived = Counter(bench.arrived)
        assert bench.channel.lost == 0
        for number in range(150):
            id = str(number)
            fates = arrived[id] + bench.failed[id] + (id in refused) + (id in withdrawn)
            if id in given_up and id not in withdrawn:
                assert fates <= 1, f"{id}: nobody hears of its failure any more, but it arrives once at most"
            else:
                assert fates == 1, f"{id}: {arrived[id]} {bench.failed[id]} {id in refused} {id in withdrawn}"
        assert bench.gate.queued == 0

    run(scenario)


async def test_more_credit_lets_those_pass_who_wait_already() -> None:
    bench = Bench(random.Random(10), credit=2_000, lost=1.0)
    for number in range(10):
        bench.send(str(number), 1_000)
    assert bench.gate.queued == 8
    bench.gate.limit(1_000)
    assert bench.gate.queued == 8, "less changes nothing for them"
    bench.gate.limit(6_000)
    assert bench.gate.queued == 6
    bench.gate.limit(CREDIT_BYTES)
    assert bench.gate.queued == 0
    await bench.end()


async def test_no_payload_is_kept_after_it_has_passed() -> None:
    bench = Bench(random.Random(11))
    tickets = [bench.send(str(number), 1_000) for number in range(100)]
    assert bench.gate.queued > 50, "of both kinds: those that found the gate open, and those that waited"
    await bench.gate.empty()
    assert [ticket for ticket in tickets if getattr(ticket, "payload", b"")] == []
    await bench.end()


async def test_nothing_is_marked_before_it_matters() -> None:
    bench = Bench(random.Random(11))
    for number in range(10):
        bench.send(str(number), 1_000)
    await bench.channel.empty()
    await advance(0.01)
    assert bench.acknowledged == [], "a few small messages cost no acknowledgement"
    await bench.end()


async def test_a_writer_goes_on_when_what_it_waited_for_was_withdrawn() -> None:
    bench = Bench(random.Random(8), lost=1.0)
    for number in range(60):
        bench.send(str(number), 1_000)
    mine = bench.send("mine", 10, flow="mine")
    writable = asyncio.create_task(bench.gate.writable("mine"))
    await idle()
    assert not writable.done()
    assert mine.cancel()
    await idle()
    assert writable.done(), "others still wait, but nothing of this flow does"
    await bench.end()


async def test_a_waiter_that_gives_up_leaves_the_others_alone() -> None:
    bench = Bench(random.Random(9))
    for number in range(100):
        bench.send(str(number), 1_000)
    waiting = [asyncio.create_task(bench.gate.empty()) for _ in range(2)]
    await idle()
    waiting[0].cancel()
    await waiting[1]
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    await bench.end()
