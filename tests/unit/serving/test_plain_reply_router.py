"""Where answers go: to the caller's own topic if that may be used, within bounds, and nothing lost uncounted.
How old a request is: by two clocks that need not agree, the difference learnt.
Requests that are none: counted or answered, and the next one is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.errors import InvalidArgumentsError, TransportError
from dispatch.messaging.wire import MAX_PROPERTY_BYTES, Refusal, decode_reply, derive_key
from dispatch.serving import plain
from dispatch.serving.plain import LEAST_UNUSED_S, SWEEP_S, TOPICS_OF_ONE, UNUSED_S, WINDOW_S, ClockOffset
from tests.helpers.clock import advance, cancel_task, idle, run, start_task
from tests.helpers.dispatcher_and_service import RESPONSES, Peer, Service, dispatching, serving, stand
from tests.helpers.fakes import lost
from tests.helpers.reply_broker import ANSWER, CONTROL, OWN, Broker, asked, router, routing
from tests.helpers.session import KEY, SECRET


@pytest.mark.parametrize(
    ("reply_to", "allowed"),
    [
        (OWN, True),
        (OWN.replace("non-persistent", "persistent"), True),
        (OWN.replace("/response/", "/responses/"), False),
        (OWN.replace("/response/", "/response2/"), False),
        (OWN.replace("tg/", "other/"), False),
        ("non-persistent://tg/response/mine", False),
        (OWN.replace(KEY, derive_key("another dispatcher's")), False),
        (OWN.replace(KEY, ""), False),
        ("non-persistent://tg/request/lab", False),
        ("non-persistent://tg/response/lab", False),
        ("non-persistent://tg/response/dispatch-announce-lab", False),
        ("non-persistent://tg/request/dispatch-hello-lab", False),
        (CONTROL, False),
        ("non-persistent://tg/response/../request/lab", False),
        ("non-persistent://tg/response/a/b", False),
        ("non-persistent://tg/response/", False),
        ("non-persistent://tg/response/a b", False),
        ("tg/response/mine", False),
        ("http://tg/response/mine", False),
        (OWN.ljust(512, "x"), True),
        (OWN.ljust(513, "x"), False),
        ("", False),
        (None, False),
        (OWN.replace("tg/response", "extra/space"), True),
    ],
)
async def test_only_the_senders_reply_topics_in_allowed_namespaces_are_answered(
    reply_to: str | None, allowed: bool
) -> None:
    made = await router(Broker(), "extra/space")
    for _ in range(2):  # the second time from memory
        assert made.topic_for(asked(reply_to)) == (reply_to if allowed else RESPONSES)
        assert made.topic_for({"reply-to": reply_to or ""}) == RESPONSES


@given(st.text())
def test_any_text_is_a_topic_we_may_use_or_is_not_used(reply_to: str) -> None:
    async def scene() -> None:
        made = await router(Broker())
        assert made.topic_for(asked(reply_to)) == RESPONSES or "://tg/response/dispatch-reply-" in reply_to

    run(scene)


async def test_a_service_answers_where_it_is_asked_to_if_it_may() -> None:
    async with serving(lambda _: "done"), Peer.as_caller(OWN) as mine, Peer.as_caller(RESPONSES) as common:
        await mine.ask(b"{}", id="1", reply_to=OWN, session=SECRET)
        assert (await mine.arrived.get()).properties()["id"] == "1"
        await mine.ask(b"{}", id="2", reply_to=OWN.replace("tg/response", "secret/place"), session=SECRET)
        await mine.ask(b"{}", id="3")
        assert [(await common.arrived.get()).properties()["id"] for _ in range(2)] == ["2", "3"]
        await idle()
        assert mine.arrived.empty()
        assert common.arrived.empty()


async def test_what_waits_for_a_topic_goes_out_in_order_when_it_is_open() -> None:
    broker, made = await routing()
    broker.gate.clear()
    for number in range(5):
        made.send(asked(OWN), b"%d" % number, ANSWER)
    await idle()
    assert not broker.sent(OWN)
    broker.gate.set()
    await idle()
    made.send(asked(OWN), b"5", ANSWER)
    assert broker.sent(OWN) == [b"%d" % number for number in range(6)]
    assert not broker.sent(RESPONSES)
    await made.close()


@pytest.mark.parametrize("error", [TransportError("refused", "no", may_have_run=False), RuntimeError("not planned")])
async def test_answers_for_a_topic_that_cannot_be_opened_go_to_the_common_one(error: Exception) -> None:
    broker, made = await routing()
    broker.refusals[OWN] = error
    for number in range(3):
        made.send(asked(OWN), b"%d" % number, ANSWER)
    await made.flush()
    assert broker.sent(RESPONSES) == [b"0", b"1", b"2"]
    del broker.refusals[OWN]
    made.send(asked(OWN), b"3", ANSWER)
    await made.flush()
    assert broker.sent(OWN) == [b"3"], "the next answer tries again"
    await made.close()


async def test_answers_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MAX_WAITING", 3)
    broker, made = await routing()
    broker.gate.clear()
    for number in range(5):
        made.send(asked(f"{OWN}-{number % 2}"), b"%d" % number, ANSWER)
    assert made.lost == 2
    broker.gate.set()
    await made.flush()
    assert broker.sent(f"{OWN}-0") == [b"0", b"2"]
    assert broker.sent(f"{OWN}-1") == [b"1"]
    for _ in range(10):  # their places are free again
        made.send(asked(f"{OWN}-3"), b"x", ANSWER)
        await made.flush()
    assert made.lost == 2
    broker.gate.clear()
    for number in range(5):
        made.send(asked(f"{OWN}-{number + 4}"), b"x", ANSWER)
    assert made.lost == 4, "and no more than there were"
    await made.close()


async def test_open_reply_topics_are_bounded_and_the_quietest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MAX_REPLY_TOPICS", 3)
    broker, made = await routing()
    # With the common one that is one too many at c, and at d.
    for name, closed in (("a", ""), ("b", ""), ("a", ""), ("c", "b"), ("d", "ab")):
        made.send(asked(f"{OWN}-{name}"), b"x", ANSWER)
        await made.flush()
        await idle()
        assert sorted(topic[-1] for topic, publisher in broker.opened.items() if publisher.closed) == list(closed)
    assert not broker.opened[RESPONSES].closed, "the common one stays"
    made.send(asked(f"{OWN}-a"), b"again", ANSWER)
    await made.flush()
    assert broker.sent(f"{OWN}-a") == [b"again"], "a closed one is opened again"
    await made.close()
    await idle()
    assert all(publisher.closed for publisher in broker.opened.values())


def open_topics(broker: Broker) -> set[str]:
    return {topic for topic, publisher in broker.opened.items() if not publisher.closed}


async def test_the_topic_of_a_caller_of_one_request_is_closed_soon() -> None:
    broker, made = await routing()
    for number in range(100):
        made.send(asked(f"{OWN}-{number}"), b"x", ANSWER)
    await made.flush()
    await advance(LEAST_UNUSED_S - 0.1)
    assert len(open_topics(broker)) == TOPICS_OF_ONE + 1
    await advance(SWEEP_S + 0.2)
    assert open_topics(broker) == {RESPONSES}
    made.send(asked(OWN), b"again", ANSWER)
    await made.flush()
    assert broker.sent(OWN) == [b"again"], "and opened again when it is back"
    await made.close()


async def test_a_topic_stays_open_for_as_long_as_it_was_in_use_and_at_most_a_minute() -> None:
    broker, made = await routing()
    for _ in range(10):
        made.send(asked(OWN), b"x", ANSWER)
        await advance(4)
    publisher = broker.opened[OWN]
    await advance(36 - 4 - 0.1)
    assert not publisher.closed
    await advance(SWEEP_S + 0.2)
    assert publisher.closed
    for _ in range(100):
        made.send(asked(OWN), b"x", ANSWER)
        await advance(4)
    await advance(UNUSED_S - 4 - 0.1)
    assert not broker.opened[OWN].closed
    await advance(SWEEP_S + 0.2)
    assert broker.opened[OWN].closed
    await made.close()


async def test_a_topic_with_replies_that_wait_stays_open() -> None:
    broker, made = await routing()
    broker.gate.clear()
    made.send(asked(OWN), b"late", ANSWER)
    await advance(2 * UNUSED_S)
    broker.gate.set()
    await idle()
    assert broker.sent(OWN) == [b"late"]
    await made.close()


async def test_many_topics_that_cannot_be_opened_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    broker, made = await routing()
    for number in range(10):
        broker.refusals[f"{OWN}-{number}"] = lost()
        made.send(asked(f"{OWN}-{number}"), b"x", ANSWER)
    await made.flush()
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    await made.close()


@pytest.mark.parametrize("later", [True, False])
async def test_an_answer_that_cannot_be_sent_is_counted_and_told_without_its_content(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker, made = await routing()
    if not later:
        broker.opened[RESPONSES].refusal = lost()
    for _ in range(3):
        made.send(asked(), b"SECRET", ANSWER)
    if later:
        for ticket in broker.opened[RESPONSES].sent:
            ticket.on_failure(lost())
    assert made.lost == 3
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "once, not once an answer"
    assert "connection-lost" in caplog.text
    assert "SECRET" not in caplog.text


async def test_a_stream_waits_for_its_topic_to_open() -> None:
    broker, made = await routing()
    await made.writable(asked(OWN))  # nothing waits: nothing to wait for
    broker.gate.clear()
    made.send(asked(OWN), b"0", ANSWER)
    writable = await start_task(made.writable(asked(OWN)))
    assert not writable.done()
    broker.gate.set()
    await writable
    assert broker.sent(OWN) == [b"0"]
    await made.close()


async def test_a_stream_that_stops_waiting_does_not_stop_the_opening() -> None:
    broker, made = await routing()
    broker.gate.clear()
    made.send(asked(OWN), b"0", ANSWER)
    writable = await start_task(made.writable(asked(OWN)))
    await cancel_task(writable)
    broker.gate.set()
    await idle()
    assert broker.sent(OWN) == [b"0"]
    await made.close()


async def test_flush_waits_for_openings_and_for_the_connection() -> None:
    broker, made = await routing()
    broker.gate.clear()
    made.send(asked(OWN), b"0", ANSWER)
    flush = await start_task(made.flush())
    assert not flush.done()
    broker.gate.set()
    await flush
    assert broker.flushed
    assert broker.sent(OWN) == [b"0"]
    await made.close()


async def test_closing_gives_up_what_is_being_opened() -> None:
    broker, made = await routing()
    broker.gate.clear()
    made.send(asked(OWN), b"0", ANSWER)
    await idle()
    await made.close()
    assert broker.opened[RESPONSES].closed
    assert OWN not in broker.opened


async def test_without_its_response_topic_nothing_starts() -> None:
    broker = Broker()
    broker.refusals[RESPONSES] = lost()
    with pytest.raises(TransportError):
        await router(broker)


def test_properties_travel_as_they_are() -> None:
    async def scene() -> Mapping[str, Any]:
        broker, made = await routing()
        made.send(asked(), b"x", {"id": "1", "chunk": "0"})
        return broker.opened[RESPONSES].sent[0].properties

    assert run(scene) == {"id": "1", "chunk": "0"}


@pytest.fixture
def ages() -> ClockOffset:
    return ClockOffset()


@pytest.mark.parametrize("skew", [0.0, 40.0, -40.0, 86_400.0])
def test_clocks_that_disagree_make_nothing_old(skew: float, ages: ClockOffset) -> None:
    assert ages.age("one", 0.01 + skew, 0.0, backlog=False) == 0.0
    for number in range(100):
        assert ages.age("one", 0.012 + skew, number * 0.1, backlog=False) == pytest.approx(0.002)


@pytest.mark.parametrize("skew", [0.0, 40.0, -40.0])
def test_what_came_again_is_as_old_as_it_is(skew: float, ages: ClockOffset) -> None:
    ages.age("one", 0.01 + skew, 0.0, backlog=False)
    assert ages.age("one", 12.01 + skew, 12.0, backlog=False) == pytest.approx(12.0)
    assert ages.age("one", 30.01 + skew, 30.0, backlog=True) == pytest.approx(30.0)


def test_what_waited_before_anything_is_known_is_taken_at_its_word_and_teaches_nothing(ages: ClockOffset) -> None:
    assert ages.age("one", 300.0, 0.0, backlog=True) == 300.0
    assert ages.age("one", 200.0, 0.0, backlog=True) == 200.0
    assert ages.age("one", -40.0, 0.0, backlog=True) == 0.0, "a clock behind the sender's makes nothing younger"
    assert len(ages) == 0


def test_a_clock_that_is_set_is_believed_after_two_windows(ages: ClockOffset) -> None:
    now = 0.0
    while now < 3 * WINDOW_S:
        age = ages.age("one", 0.01 if now < WINDOW_S else 40.01, now, backlog=False)
        if now < WINDOW_S:
            assert age == 0.0
        elif now < 2 * WINDOW_S:
            assert age == pytest.approx(40.0)
        now += 1.0
    assert ages.age("one", 40.01, now, backlog=False) == 0.0


def test_a_window_ends_with_the_best_of_the_one_before(ages: ClockOffset) -> None:
    ages.age("one", 0.01, 0.0, backlog=False)
    assert ages.age("one", 5.01, WINDOW_S, backlog=False) == pytest.approx(5.0)


def test_who_was_silent_for_long_is_learnt_anew(ages: ClockOffset) -> None:
    ages.age("one", 0.0, 0.0, backlog=False)
    assert ages.age("one", 7.0, 2 * WINDOW_S, backlog=False) == 0.0


def test_each_sender_has_a_clock_of_its_own_and_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MAX_PEERS", 2)
    ages = ClockOffset()
    for number, name in enumerate(("one", "two", "one", "three")):
        ages.age(name, 10.0 * len(name), float(number), backlog=False)
    assert len(ages) == 2
    assert ages.age("one", 35.0, 4.0, backlog=False) == 5.0, "it was heard of after the one that went"
    assert ages.age("two", 35.0, 4.0, backlog=False) == 0.0


@pytest.mark.parametrize(
    "properties", [{}, {"id": ""}, {"id": "x" * (MAX_PROPERTY_BYTES + 1)}], ids=["none", "empty", "oversized"]
)
async def test_a_request_without_a_usable_id_is_counted_and_the_next_is_served(properties: dict[str, str]) -> None:
    service = Service(lambda _: "done")
    async with stand(service) as (dispatcher, server), Peer.as_caller() as caller:
        await caller.ask(b"{}", **properties)
        await idle()
        assert (server.malformed, server.requests) == (1, 1)
        assert not service.requests
        assert caller.arrived.empty()
        assert await dispatcher.call("work") == "done"


async def test_an_id_of_just_the_limit_is_served() -> None:
    async with serving(lambda _: "done"), Peer.as_caller() as caller:
        await caller.ask(b"{}", id="x" * MAX_PROPERTY_BYTES)
        assert decode_reply((await caller.arrived.get()).data()).response == "done"


class Unreadable:
    """A message as a broken client library may hand it over."""

    def __init__(self, breaks: str) -> None:
        self.breaks = breaks

    def properties(self) -> dict[str, str]:
        if self.breaks == "properties":
            raise RuntimeError("cannot be read")
        return {"id": "1"} if self.breaks == "data" else {"id": 5}  # type: ignore[dict-item]

    def data(self) -> bytes:
        raise RuntimeError("cannot be read")


async def test_a_message_that_raises_costs_nothing_but_itself() -> None:
    async with stand(lambda _: "done") as (dispatcher, server), Peer.as_caller() as caller:
        for breaks in ("properties", "data"):
            server._plain.receive_message(Unreadable(breaks))
        answer = await caller.arrived.get()
        assert answer.properties()["refused"] == Refusal.INVALID_REQUEST, "its caller is told"
        assert (server.malformed, server.refused[Refusal.INVALID_REQUEST]) == (1, 1)
        assert await dispatcher.call("work") == "done"


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b'{"config": "[1]"}', b'{"arguments": "SECRET"}'])
async def test_an_unreadable_request_is_answered_as_the_callers_mistake(payload: bytes) -> None:
    service = Service(lambda _: "done")
    async with serving(service) as server, Peer.as_caller() as caller:
        await caller.ask(payload, id="1")
        message = await caller.arrived.get()
        assert message.properties()["refused"] == Refusal.INVALID_REQUEST
        error = decode_reply(message.data()).error
        assert error.type == "invalid-request"
        assert "SECRET" not in error.message
        assert server.refused[Refusal.INVALID_REQUEST] == 1
        assert not service.requests


async def test_the_caller_of_an_unreadable_request_gets_a_typed_error() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, error=("invalid-request", "no JSON"), refused=Refusal.INVALID_REQUEST)
        error = (await call).error
        assert isinstance(error, InvalidArgumentsError)
        assert "no JSON" in error.message
