"""A request in parts, on its way: what leaves when, what is sent again, and when nothing of it can have run."""

from __future__ import annotations

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.rpc.fragmented_publish import FragmentedRequest
from dispatch.messaging.wire.properties import Property
from tests.helpers.clock import advance, idle
from tests.helpers.fakes import FakePublisher, FakeTicket, lost

PAYLOAD = bytes(range(100))
FULL = TransportError("publish-queue-full", "too many wait", sent=False)


class Slow(FakePublisher):
    """Lets a part pass only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0

    async def writable(self, flow: str) -> None:
        while not self.open:
            await idle()
            await advance(0.5)
        self.open -= 1


class Bench:
    def __init__(self, publisher: FakePublisher | None = None, limit: int = 30) -> None:
        self.publisher = publisher or FakePublisher()
        self.request = FragmentedRequest(self.publisher, PAYLOAD, limit)
        self.failures: list[TransportError] = []
        self.send()

    def send(self) -> None:
        properties = {Property.ID: "x-1", Property.REMAINING_MS: "10000", **self.request.about}
        ticket = self.request.publish(PAYLOAD, properties, flow="tool", on_failure=self.failures.append)
        assert ticket is self.request

    @property
    def sent(self) -> list[FakeTicket]:
        return self.publisher.sent

    def indices(self) -> list[int]:
        return [int(ticket.properties[Property.PART]) for ticket in self.sent]


async def test_it_goes_in_parts_that_say_which_and_of_how_many() -> None:
    bench = Bench()
    await idle()
    assert bench.request.topic == bench.publisher.topic
    assert bench.indices() == [0, 1, 2, 3]
    assert b"".join(ticket.payload for ticket in bench.sent) == PAYLOAD
    assert {ticket.properties[Property.PARTS] for ticket in bench.sent} == {"4/100"}
    assert {ticket.flow for ticket in bench.sent} == {"x-1"}, "its parts do not wait for all other requests of the tool"
    assert bench.request.cancel() is False, "all of it has left"


async def test_each_part_says_how_much_time_is_left() -> None:
    slow = Slow()
    bench = Bench(slow)
    for _ in range(3):
        slow.open = 1
        await advance(1.0)
    assert bench.indices() == [0, 1, 2, 3]
    remaining = [int(ticket.properties[Property.REMAINING_MS]) for ticket in bench.sent]
    assert remaining[0] == 10_000
    assert remaining == sorted(remaining, reverse=True)
    assert remaining[-1] < 9_000


@pytest.mark.parametrize("end", ["cancel", "stop", "answered", "mark_received", "close"])
async def test_whatever_ends_it_nothing_more_leaves(end: str) -> None:
    bench = Bench(Slow())
    await idle()
    ended = getattr(bench.request, end)()
    if end == "close":
        await ended
    if end == "cancel":
        assert ended is True, "it is not complete, so that it never runs"
    assert bench.sent[0].proofs == ([end] if end in ("answered", "mark_received") else [])
    bench.request.resend("0-3")
    await advance(20)
    assert bench.indices() == [0]


async def test_it_waits_only_until_its_first_part_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Slow())
    monkeypatch.setattr(FakeTicket, "waits", True)
    assert bench.request.waits
    bench.sent[0].queued = True
    assert bench.request.cancel() is True
    assert bench.sent[0].cancelled
    monkeypatch.setattr(FakeTicket, "waits", False)
    assert not bench.request.waits


async def test_a_part_that_has_arrived_gives_its_credit_back_once() -> None:
    bench = Bench()
    await idle()
    for index in (2, 2, 99):
        bench.request.arrived(index)
    assert [ticket.proofs for ticket in bench.sent] == [[], [], ["mark_received"], []]


async def test_only_what_is_missing_is_sent_again() -> None:
    bench = Bench()
    await idle()
    bench.request.resend("1,3-900")
    await idle()
    assert bench.indices() == [0, 1, 2, 3, 1, 3]
    assert bench.sent[4].payload == bench.sent[1].payload
    bench.request.resend("rubbish")
    await idle()
    assert len(bench.sent) == 6
    bench.request.stop()


async def test_what_has_not_left_is_not_sent_again() -> None:
    bench = Bench(Slow())
    await idle()
    bench.request.resend("0-3")
    assert isinstance(bench.publisher, Slow)
    bench.publisher.open = 9
    await advance(1)
    assert sorted(bench.indices()) == [0, 0, 1, 2, 3]
    bench.request.stop()


async def test_a_part_that_surely_did_not_leave_ends_it_and_it_cannot_have_run() -> None:
    bench = Bench()
    await idle()
    bench.sent[2].on_failure(lost(sent=False))
    assert [error.sent for error in bench.failures] == [False]
    bench.request.resend("2")
    await idle()
    assert len(bench.sent) == 4, "or it might become complete after all"
    assert bench.request.cancel() is True


async def test_a_part_that_may_have_left_is_asked_for() -> None:
    bench = Bench()
    await idle()
    bench.sent[2].on_failure(lost(sent=True))
    assert bench.failures == []
    bench.request.resend("2")
    await idle()
    bench.sent[4].on_failure(lost(sent=False))
    bench.sent[2].on_failure(lost(sent=False))
    assert bench.failures == [], "the other one of the two may be there"
    bench.request.stop()


@pytest.mark.parametrize("left", [0, 2])
async def test_a_queue_that_is_full_ends_it(left: int) -> None:
    slow = Slow()
    if not left:
        slow.refusal = FULL
        with pytest.raises(TransportError, match="too many"):
            Bench(slow)
        return
    bench = Bench(slow)
    slow.open = left - 1
    await advance(1)
    slow.refusal = FULL
    slow.open = 1
    await advance(1)
    assert (bench.failures, len(bench.sent)) == ([FULL], left)
    assert bench.request.cancel() is True


async def test_a_queue_that_is_full_when_it_is_sent_again_does_not_end_it() -> None:
    bench = Bench()
    await idle()
    bench.publisher.refusal = FULL
    bench.request.resend("1")
    await idle()
    assert bench.failures == []
    bench.publisher.refusal = None
    bench.request.resend("1")
    await idle()
    assert bench.indices()[-1] == 1
    bench.request.stop()


async def test_what_is_too_large_for_any_number_of_parts_is_told() -> None:
    with pytest.raises(ValueError, match="too many for 1,000 parts"):
        FragmentedRequest(FakePublisher(), bytes(1_001), 1)
