"""The gate in front of a publisher: credit, fairness, and time as the last resort when nobody acknowledges."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.flow import queue as waitingroom
from dispatch.messaging.flow.credit import MESSAGE_OVERHEAD
from dispatch.messaging.flow.publisher import FIRST_PATIENCE_S, MAX_PATIENCE_S, MAX_PROBES, PATIENCE_S, Gate
from dispatch.transports import Ticket
from tests.helpers.clock import START, advance, idle
from tests.helpers.fakes import FakePublisher, lost

ROOM = 4 * (100 + MESSAGE_OVERHEAD)
"""Credit for four messages of a hundred bytes."""


class Bench:
    def __init__(self, credit: int | None = ROOM, *, acknowledges: bool = False) -> None:
        self.publisher = FakePublisher()
        self.gate = Gate(self.publisher, self._mark, credit, acknowledges=acknowledges)
        self.failures: list[TransportError] = []

    @staticmethod
    def _mark(sequence: int) -> Mapping[str, str]:
        return {"ack": str(sequence)}

    def send(self, *names: str) -> list[Ticket]:
        """Messages of a hundred bytes, named for their flow: ``a1`` is of the flow ``a``."""
        return [
            self.gate.publish(name.encode().ljust(100), {"id": name}, flow=name[0], on_failure=self.failures.append)
            for name in names
        ]

    @property
    def out(self) -> list[str]:
        return [ticket.properties["id"] for ticket in self.publisher.sent]

    @property
    def marks(self) -> list[int]:
        return [int(ticket.properties["ack"]) for ticket in self.publisher.sent if "ack" in ticket.properties]


async def test_messages_pass_while_there_is_credit_and_wait_otherwise() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "a6")
    assert bench.out == ["a1", "a2", "a3", "a4"]
    assert bench.gate.queued == 2
    bench.gate.acknowledge(2)
    assert bench.out == ["a1", "a2", "a3", "a4", "a5", "a6"]
    assert bench.gate.queued == 0
    await bench.gate.close()


async def test_what_waits_is_never_overtaken_and_flows_take_turns() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "a6", "b1")
    bench.gate.acknowledge(1)
    assert bench.out[4:] == ["a5"]
    bench.send("c1")
    bench.gate.acknowledge(4)
    assert bench.out[4:] == ["a5", "b1", "a6", "c1"]
    await bench.gate.close()


async def test_acknowledgements_are_asked_for_before_the_credit_is_used_up() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4")
    assert bench.marks
    assert bench.marks[0] < 4
    await bench.gate.close()


async def test_without_a_credit_everything_passes_as_it_is() -> None:
    bench = Bench(None)
    tickets = bench.send(*(f"a{n}" for n in range(1_000)))
    assert len(bench.out) == 1_000
    assert not bench.marks
    bench.gate.acknowledge(5)
    bench.send("a")
    assert tickets[0] is bench.publisher.sent[0]  # type: ignore[comparison-overlap]
    assert bench.gate.queued == 0


async def test_a_receiver_may_give_credit_later_and_change_it() -> None:
    bench = Bench(None)
    bench.send("a1")
    bench.gate.limit(ROOM)
    bench.send("a2", "a3", "a4", "a5", "a6")
    assert bench.out[-1] == "a5"
    bench.gate.limit(2 * ROOM)
    bench.gate.acknowledge(1)
    bench.send("a7", "a8", "a9", "b1", "b2")
    assert len(bench.out) == 10
    await bench.gate.close()


@pytest.mark.parametrize("how", ["answered", "mark_received"])
async def test_a_reply_clears_the_way_too(how: str) -> None:
    bench = Bench()
    tickets = bench.send("a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9")
    getattr(tickets[-1], how)()  # it still waits: that says nothing
    assert len(bench.out) == 4
    getattr(tickets[3], how)()
    assert len(bench.out) == 8
    assert bench.gate.acknowledges == (how == "mark_received")
    await bench.gate.close()


async def test_a_stranger_gets_a_credits_worth_in_each_spell_of_patience() -> None:
    bench = Bench()
    bench.send(*(f"a{n}" for n in range(11)))
    assert len(bench.out) == 4
    await advance(FIRST_PATIENCE_S - 0.001)
    assert len(bench.out) == 4, "until something is known of it, it may be one that acknowledges"
    await advance(0.001)
    assert len(bench.out) == 8
    await advance(PATIENCE_S)
    assert len(bench.out) == 11
    assert bench.gate.overdue == 2
    await advance(1)
    bench.send("b1")
    assert bench.out[-1] == "b1", "time has given the credit back"
    await bench.gate.close()


async def test_one_that_acknowledges_is_probed_with_one_marked_message_at_a_time() -> None:
    bench = Bench(acknowledges=True)
    bench.send(*(f"a{n}" for n in range(12)))
    before = len(bench.marks)
    await advance(FIRST_PATIENCE_S)
    assert len(bench.out) == 5
    assert len(bench.marks) == before + 1
    bench.gate.acknowledge(bench.marks[-1])
    assert len(bench.out) == 9, "one acknowledgement brings everything back"
    await bench.gate.close()


async def test_probes_come_ever_more_slowly_and_then_it_counts_as_a_stranger() -> None:
    bench = Bench(acknowledges=True)
    bench.send(*(f"a{n}" for n in range(40)))
    times: list[float] = []
    patience = FIRST_PATIENCE_S
    for probe in range(MAX_PROBES):
        assert (len(bench.out), bench.gate.acknowledges) == (4 + probe, True)
        await advance(patience)
        times.append(patience)
        patience = min(2 * patience, MAX_PATIENCE_S)
    assert times == [0.25, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert (len(bench.out), bench.gate.acknowledges) == (4 + MAX_PROBES, False)
    await advance(PATIENCE_S)
    assert len(bench.out) >= 4 + MAX_PROBES + 4
    await bench.gate.close()


async def test_an_acknowledgement_brings_the_patience_back() -> None:
    bench = Bench(acknowledges=True)
    bench.send(*(f"a{n}" for n in range(40)))
    await advance(FIRST_PATIENCE_S + 2 * FIRST_PATIENCE_S)
    assert len(bench.out) == 6
    bench.gate.acknowledge(6)
    assert len(bench.out) == 10
    await advance(PATIENCE_S)
    assert len(bench.out) == 11, "the next probe comes as early as the first did"
    await bench.gate.close()


async def test_what_waits_can_be_withdrawn_and_what_has_passed_is_the_publishers() -> None:
    bench = Bench()
    bench.publisher.queueing = True
    tickets = bench.send("a1", "a2", "a3", "a4", "a5", "a6")
    assert tickets[4].cancel() is True
    assert tickets[4].cancel() is False
    assert tickets[0].cancel() is True, "as the publisher says"
    assert bench.publisher.sent[0].cancelled
    bench.gate.acknowledge(4)
    assert bench.out == ["a1", "a2", "a3", "a4", "a6"]
    await bench.gate.close()


async def test_credit_of_messages_that_were_not_sent_comes_back() -> None:
    bench = Bench()
    bench.publisher.refusal = lost(sent=False)
    for _ in range(4):
        with pytest.raises(TransportError):
            bench.send("z1")
    bench.publisher.refusal, bench.publisher.queueing = None, True
    tickets = bench.send("a1", "a2", "a3", "a4", "a5", "a6", "a7")
    assert bench.out == ["a1", "a2", "a3", "a4"]
    assert tickets[1].cancel(), "withdrawn from the publisher's queue"
    assert bench.out[4:] == ["a5"]
    assert tickets[4].cancel(), "it had waited at the gate before"
    assert bench.out[5:] == ["a6"]
    bench.publisher.sent[-1].on_failure(lost(sent=True))
    assert bench.out[6:] == [], "it may have arrived"
    bench.publisher.sent[0].on_failure(lost(sent=False))
    assert bench.out[6:] == ["a7"]
    await bench.gate.close()


async def test_a_message_that_waited_and_could_not_be_sent_returns_its_credit() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5")
    bench.gate.acknowledge(4)
    bench.send("a6", "a7", "a8", "a9")
    assert bench.out[-1] == "a8"
    bench.publisher.sent[4].on_failure(lost(sent=False))
    assert bench.out[-1] == "a9"
    await bench.gate.close()


async def test_withdrawing_the_last_one_stops_the_clock() -> None:
    bench = Bench()
    tickets = bench.send("a1", "a2", "a3", "a4", "a5")
    empty = asyncio.create_task(bench.gate.empty())
    await idle()
    assert tickets[4].cancel()
    await empty
    await advance(10)
    assert bench.gate.overdue == 0


async def test_a_stream_waits_for_its_own_messages_only() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "b1", "b2")
    waiting = {flow: asyncio.create_task(bench.gate.writable(flow)) for flow in "abc"}
    await idle()
    assert [flow for flow, task in waiting.items() if task.done()] == ["c"]
    bench.gate.acknowledge(2)
    await idle()
    assert [flow for flow, task in waiting.items() if task.done()] == ["a", "c"]
    waiting["b"].cancel()
    bench.gate.acknowledge(4)
    await bench.gate.empty()
    assert len(bench.out) == 7
    assert asyncio.get_running_loop().time() == START
    await bench.gate.close()
    await asyncio.gather(*waiting.values(), return_exceptions=True)


async def test_the_queue_is_bounded_and_refuses_without_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waitingroom, "MAX_QUEUED", 2)
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "a6")
    with pytest.raises(TransportError) as caught:
        bench.send("a7")
    assert (caught.value.type, caught.value.sent, caught.value.retry_after) == ("publish-queue-full", False, 1.0)
    bench.gate.acknowledge(4)
    assert len(bench.out) == 6
    await bench.gate.close()


async def test_the_queue_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waitingroom, "MAX_QUEUED_BYTES", 250)
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "a6")
    with pytest.raises(TransportError, match="wait to be sent already"):
        bench.send("a7")
    await bench.gate.close()


async def test_a_publisher_that_refuses_is_told_at_once_or_later_but_once() -> None:
    bench = Bench()
    bench.publisher.refusal = error = lost(sent=False)
    with pytest.raises(TransportError):
        bench.send("a1")
    bench.publisher.refusal = None
    bench.send("a1", "a2", "a3", "a4", "a5", "a6")
    waiting = bench.gate.queued
    bench.publisher.refusal = error
    bench.gate.acknowledge(4)
    assert bench.failures == [], "never from inside a call"
    await idle()
    assert bench.failures == [error] * waiting
    assert bench.gate.queued == 0
    await bench.gate.close()


async def test_what_was_cancelled_does_not_hear_of_its_failure() -> None:
    bench = Bench()
    tickets = bench.send("a1", "a2", "a3", "a4", "a5")
    bench.publisher.refusal = lost(sent=False)
    bench.gate.acknowledge(4)
    assert tickets[4].cancel() is False
    await idle()
    assert bench.failures == []
    await bench.gate.close()


async def test_a_failure_of_what_has_passed_reaches_its_owner() -> None:
    bench = Bench()
    bench.send("a1")
    bench.publisher.sent[0].on_failure(error := lost())
    assert bench.failures == [error]
    await bench.gate.close()


async def test_closing_fails_what_waits_and_closes_the_publisher() -> None:
    bench = Bench()
    bench.send("a1", "a2", "a3", "a4", "a5", "b1")
    waiting = [asyncio.create_task(bench.gate.writable("a")), asyncio.create_task(bench.gate.empty())]
    await idle()
    await bench.gate.close()
    assert [(error.type, error.sent) for error in bench.failures] == [("closed", False)] * 2
    await asyncio.gather(*waiting)
    assert bench.publisher.closed
    assert bench.gate.topic == bench.publisher.topic
