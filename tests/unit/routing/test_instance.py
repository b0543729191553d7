"""Which instance gets the next request, and how its answer is asked for."""

from __future__ import annotations

import pytest

from dispatch.messaging.rpc.retransmission import SUSPECT_AFTER, Repair
from dispatch.messaging.rpc.retransmittable_request import RetransmittableRequest
from dispatch.routing.instance import MAX_EXCEPTED, SETTLED_EVERY, STALE_S, Instance, Instances
from dispatch.routing.reply_connections import ReplyConnection
from dispatch.transports.memory import MemoryTransport
from tests.helpers.fakes import FakePublisher, lost


def instance(name: str, *, incarnation: str = "1", now: float = 0.0) -> Instance:
    return Instance(name, incarnation, f"topic-{name}", FakePublisher(), now)


def known(*names: str) -> Instances:
    made = Instances()
    for name in names:
        made.add(instance(name))
    return made


def line(to: Instance, payload: bytes = b"request", id: str = "x-1") -> RetransmittableRequest:
    properties = {"id": id, "remaining-ms": "30000"}
    return RetransmittableRequest(
        to, Repair(0.0, 0.2, 10.0), payload, properties, "flow", ReplyConnection("lane", MemoryTransport("memory://"))
    )


def test_the_version_changes_when_somebody_comes_or_goes() -> None:
    made = known("a")
    before = made.version
    each = instance("b")
    made.add(each)
    assert made.version != before
    before = made.version
    assert made.remove(each)
    assert made.version != before
    before = made.version
    assert not made.remove(each)
    assert made.version == before


def test_a_request_ends_once() -> None:
    busy = instance("a")
    open_line = line(busy)
    assert busy.in_flight == 1
    open_line.end(1.0, answered=True)
    open_line.end(1.0, answered=True)
    assert busy.in_flight == 0


def test_suspicion_is_told() -> None:
    told = []
    each = Instance("a", "1", "topic", FakePublisher(), 0.0, lambda: told.append(True))
    for number in range(1, 5):
        each.missed()
        assert len(told) == max(0, number - SUSPECT_AFTER + 1)


def test_a_new_life_takes_the_place_of_the_former() -> None:
    made = known("a")
    former = made.get("a")
    again = instance("a", incarnation="2")
    assert made.add(again) is former
    assert made.get("a") is again
    assert not made.remove(former)  # type: ignore[arg-type] # it was there
    assert list(made) == [again]


def test_those_that_were_not_heard_of_for_long_are_stale() -> None:
    made = known("a", "b")
    heard = made.get("a")
    assert heard is not None
    line(heard).heard(50.0)
    assert [each.name for each in made.stale(STALE_S + 1)] == ["b"]


def test_it_is_time_to_say_what_is_settled_now_and_then() -> None:
    each = instance("a")
    said = [each.settled(f"x-{number:x}") for number in range(1, 3 * SETTLED_EVERY + 1)]
    assert {number: text for number, text in enumerate(said, 1) if text is not None} == {
        SETTLED_EVERY * n: f"{SETTLED_EVERY * n:x}" for n in (1, 2, 3)
    }


@pytest.mark.parametrize("waiting", [0, 1, MAX_EXCEPTED, MAX_EXCEPTED + 1, 100])
def test_what_is_settled_leaves_out_the_oldest_that_are_waited_for(waiting: int) -> None:
    each = instance("a")
    lines = [line(each, id=f"x-{2 * number:x}") for number in range(1, waiting + 2)]
    lines.pop(0).end(1.0, answered=True)
    said = [each.settled("x-fff") for _ in range(SETTLED_EVERY)][-1]
    assert said is not None
    below, *excepted = (int(number, 16) for number in said.split(","))
    numbers = [2 * number for number in range(2, waiting + 2)]
    assert excepted == numbers[:MAX_EXCEPTED]
    assert below == (0xFFF if waiting <= MAX_EXCEPTED else numbers[MAX_EXCEPTED])


def test_a_question_is_the_request_again_until_it_is_known_to_be_there() -> None:
    to = instance("a")
    asking = line(to)
    publisher = to.publisher
    assert isinstance(publisher, FakePublisher)
    assert asking.ask(0.2, 29.8, "0")
    assert asking.asked_at == 0.2
    asking.heard(0.21)
    assert asking.ask(0.6, 29.4, "3-5")
    first, second = publisher.sent
    assert (first.payload, first.properties) == (
        b"request",
        {"id": "x-1", "remaining-ms": "29800", "transmission": "2"},
    )
    assert (second.payload, second.properties) == (
        b"",
        {"id": "x-1", "remaining-ms": "29400", "transmission": "3", "next": "3-5"},
    )
    assert asking.asked_at == 0.2


def test_a_question_that_cannot_leave_is_asked_again() -> None:
    to = instance("a")
    publisher = to.publisher
    assert isinstance(publisher, FakePublisher)
    publisher.refusal = lost()
    asking = line(to)
    assert asking.ask(0.2, 1.0, "0")
    assert asking.ticket is None
    publisher.refusal = None
    assert asking.ask(0.3, 1.0, "0")
    assert len(publisher.sent) == 1


@pytest.mark.parametrize("answered", [True, False])
def test_only_an_answer_clears_its_name(answered: bool) -> None:
    to = instance("a")
    asking = line(to)
    for now in (1.0, 2.0, 3.0, 4.0):
        assert asking.ask(now, 1.0, "0")
    assert to.suspect
    asking.end(5.0, answered=answered)
    assert to.suspect is not answered
    publisher = to.publisher
    assert isinstance(publisher, FakePublisher)
    assert publisher.sent[-1].cancelled, "a question that nobody waits for is taken back"
