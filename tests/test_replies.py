"""Where answers go: to the caller's own topic if that may be used, within bounds, and never nowhere without being counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch import replies
from dispatch.delivery import CREDIT_BYTES, MESSAGE_OVERHEAD
from dispatch.outcome import TransportError
from dispatch.replies import ReplyRouter
from dispatch.transports import Mode
from tests.support.clock import advance, idle, run
from tests.support.fakes import FakePublisher, FakeTicket, lost
from tests.support.rubbish import OddMessage
from tests.support.stand import RESPONSES, Peer, serving

OWN = "non-persistent://tg/response/dispatch-reply-1"
CONTROL = "non-persistent://tg/response/dispatch-control-one"


def asked(reply_to: str | None = None, **properties: str) -> dict[str, str]:
    """The properties of a request."""
    named = {"id": "1"} | {key.replace("_", "-"): value for key, value in properties.items()}
    return named if reply_to is None else named | {"reply-to": reply_to}


ANSWER = {"id": "1"}


class Broker:
    """Opens publishers in the hand; what is in ``refusals`` cannot be opened; ``gate`` holds openings back."""

    def __init__(self) -> None:
        self.opened: dict[str, FakePublisher] = {}
        self.refusals: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.flushed = False
        self.handlers: dict[str, Any] = {}

    async def subscribe(self, topic: str, handler: Any, *, mode: Mode, name: str) -> Any:
        assert mode is Mode.FANOUT, "a shared control topic would take others' acknowledgements away"
        self.handlers[topic] = handler
        broker = self

        class Kept:
            async def close(self) -> None:
                del broker.handlers[topic]

        return Kept()

    def acknowledge(self, token: str) -> None:
        """What a caller does for a reply that asks for it."""
        self.handlers[CONTROL](OddMessage(b"", {"acked": token}))

    async def publisher(self, topic: str) -> FakePublisher:
        await self.gate.wait()
        if topic in self.refusals:
            raise self.refusals[topic]
        self.opened[topic] = FakePublisher(topic)
        return self.opened[topic]

    async def flush(self) -> None:
        self.flushed = True

    def sent(self, topic: str) -> list[bytes]:
        return [ticket.payload for ticket in self.opened[topic].sent] if topic in self.opened else []


async def router(broker: Broker, *namespaces: str) -> ReplyRouter:
    made = ReplyRouter(broker, RESPONSES, namespaces, instance="one")  # type: ignore[arg-type]
    await made.start()
    return made


@pytest.mark.parametrize(
    ("reply_to", "allowed"),
    [
        (OWN, True),
        ("persistent://tg/response/mine", True),
        ("non-persistent://tg/responses/mine", False),
        ("non-persistent://tg/response2/mine", False),
        ("non-persistent://other/response/mine", False),
        ("non-persistent://tg/request/lab", False),
        ("non-persistent://tg/response/../request/lab", False),
        ("non-persistent://tg/response/a/b", False),
        ("non-persistent://tg/response/", False),
        ("non-persistent://tg/response/a b", False),
        ("tg/response/mine", False),
        ("http://tg/response/mine", False),
        (f"non-persistent://tg/response/{'x' * 512}", False),
        ("", False),
        (None, False),
        ("non-persistent://extra/space/mine", True),
    ],
)
async def test_only_topics_in_allowed_namespaces_are_answered(reply_to: str | None, allowed: bool) -> None:
    made = await router(Broker(), "extra/space")
    for _ in range(2):  # the second time from memory
        assert made.topic_for(reply_to) == (reply_to if allowed else RESPONSES)


@given(st.text())
def test_any_text_is_a_topic_we_may_use_or_is_not_used(reply_to: str) -> None:
    async def scene() -> None:
        made = await router(Broker())
        assert made.topic_for(reply_to) in (reply_to, RESPONSES)
        assert made.topic_for(reply_to) == RESPONSES or "://tg/response/" in reply_to

    run(scene)


async def test_a_service_answers_where_it_is_asked_to_if_it_may() -> None:
    async with serving(lambda _: "done"), Peer.as_caller(OWN) as mine, Peer.as_caller(RESPONSES) as common:
        await mine.ask(b"{}", id="1", reply_to=OWN)
        assert (await mine.arrived.get()).properties()["id"] == "1"
        await mine.ask(b"{}", id="2", reply_to="non-persistent://secret/place/mine")
        await mine.ask(b"{}", id="3")
        assert [(await common.arrived.get()).properties()["id"] for _ in range(2)] == ["2", "3"]
        await idle()
        assert mine.arrived.empty()
        assert common.arrived.empty()


async def test_what_waits_for_a_topic_goes_out_in_order_when_it_is_open() -> None:
    broker = Broker()
    made = await router(broker)
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


@pytest.mark.parametrize("error", [TransportError("refused", "no", sent=False), RuntimeError("not planned")])
async def test_answers_for_a_topic_that_cannot_be_opened_go_to_the_common_one(error: Exception) -> None:
    broker = Broker()
    made = await router(broker)
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
    monkeypatch.setattr(replies, "MAX_WAITING", 3)
    broker = Broker()
    made = await router(broker)
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
    await made.close()


async def test_open_reply_topics_are_bounded_and_the_quietest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_REPLY_TOPICS", 3)
    broker = Broker()
    made = await router(broker)
    for name in ("a", "b", "a", "c", "d"):  # with the common one that is one too many at c, and at d
        made.send(asked(f"{OWN}-{name}"), b"x", ANSWER)
        await made.flush()
        await idle()
    assert {topic[-1] for topic, publisher in broker.opened.items() if publisher.closed} == {"a", "b"}
    assert not broker.opened[RESPONSES].closed, "the common one stays"
    made.send(asked(f"{OWN}-a"), b"again", ANSWER)
    await made.flush()
    assert broker.sent(f"{OWN}-a") == [b"again"], "a closed one is opened again"
    await made.close()
    await idle()
    assert all(publisher.closed for publisher in broker.opened.values())


async def test_what_is_known_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_REPLY_TOPICS", 8)
    made = await router(Broker())
    for number in range(1_000):
        made.topic_for(f"{OWN}-{number}")
        assert len(made._known) <= 32


@pytest.mark.parametrize("later", [True, False])
async def test_an_answer_that_cannot_be_sent_is_counted_and_told_without_its_content(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker()
    made = await router(broker)
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
    assert "the connection ended" in caplog.text
    assert "SECRET" not in caplog.text


async def test_a_stream_waits_for_its_topic_to_open() -> None:
    broker = Broker()
    made = await router(broker)
    await made.writable(asked(OWN))  # nothing waits: nothing to wait for
    broker.gate.clear()
    made.send(asked(OWN), b"0", ANSWER)
    writable = asyncio.create_task(made.writable(asked(OWN)))
    await idle()
    assert not writable.done()
    broker.gate.set()
    await writable
    assert broker.sent(OWN) == [b"0"]
    await made.close()


async def test_a_stream_that_stops_waiting_does_not_stop_the_opening() -> None:
    broker = Broker()
    made = await router(broker)
    broker.gate.clear()
    made.send(asked(OWN), b"0", ANSWER)
    writable = asyncio.create_task(made.writable(asked(OWN)))
    await idle()
    writable.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writable
    broker.gate.set()
    await idle()
    assert broker.sent(OWN) == [b"0"]
    await made.close()


async def test_flush_waits_for_openings_and_for_the_connection() -> None:
    broker = Broker()
    made = await router(broker)
    broker.gate.clear()
    made.send(asked(OWN), b"0", ANSWER)
    flush = asyncio.create_task(made.flush())
    await idle()
    assert not flush.done()
    broker.gate.set()
    await flush
    assert broker.flushed
    assert broker.sent(OWN) == [b"0"]
    await made.close()


async def test_closing_gives_up_what_is_being_opened() -> None:
    broker = Broker()
    made = await router(broker)
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
        broker = Broker()
        made = await router(broker)
        made.send(asked(), b"x", {"id": "1", "chunk": "0"})
        return broker.opened[RESPONSES].sent[0].properties

    assert run(scene) == {"id": "1", "chunk": "0"}


# -- callers that acknowledge ---------------------------------------------------------------------------------------


def tokens(tickets: list[FakeTicket]) -> list[str]:
    """The acknowledgements that these answers ask for."""
    return [ticket.properties["ack"] for ticket in tickets if "ack" in ticket.properties]


async def sending(broker: Broker, count: int, size: int, credit: str, reply_to: str = OWN) -> ReplyRouter:
    """A router that was asked to send ``count`` answers of ``size`` bytes to one caller."""
    made = await router(broker)
    for number in range(count):
        made.send(asked(reply_to, credit=credit), b"%02d" % number + b"x" * (size - 2), {"id": str(number)})
    await idle()
    return made


async def test_answers_keep_to_their_callers_credit_and_go_on_when_they_are_acknowledged() -> None:
    broker = Broker()
    made = await sending(broker, 10, 1_000, credit="3000")
    out = broker.opened[OWN].sent
    passed = len(out)
    assert 3_000 <= passed * (1_000 + MESSAGE_OVERHEAD) <= 3_000 + 1_000 + MESSAGE_OVERHEAD
    for _ in range(10):
        if len(out) == 10:
            break
        broker.acknowledge(tokens(out)[-1])
    assert [ticket.payload[:2] for ticket in out] == [b"%02d" % number for number in range(10)], "without any time"
    assert {ticket.properties["control"] for ticket in out if "ack" in ticket.properties} == {CONTROL}
    await made.close()


@pytest.mark.parametrize(("reply_to", "credit"), [(None, "3000"), (OWN, ""), (OWN, "lots"), (OWN, "-1")])
async def test_a_caller_that_does_not_acknowledge_gets_its_answers_at_once_and_unmarked(
    reply_to: str | None, credit: str
) -> None:
    broker = Broker()
    made = await router(broker)
    for number in range(100):
        made.send(asked(reply_to, credit=credit), b"x" * 5_000, {"id": str(number)})
    await idle()
    out = broker.opened[reply_to or RESPONSES].sent
    assert len(out) == 100
    assert tokens(out) == []
    await made.close()


async def test_a_callers_credit_is_never_more_than_a_channel_takes() -> None:
    broker = Broker()
    made = await sending(broker, 100, 5_000, credit="999999999")
    assert len(broker.opened[OWN].sent) * 5_000 <= CREDIT_BYTES + 5_000
    await made.close()


async def test_a_caller_that_stops_acknowledging_gets_its_answers_by_time_and_holds_nobody_else_up() -> None:
    broker = Broker()
    made = await sending(broker, 50, 2_000, credit="3000")
    made.send(asked(f"{OWN}-other", credit="3000"), b"other", ANSWER)
    await idle()
    assert broker.sent(f"{OWN}-other") == [b"other"]
    assert len(broker.opened[OWN].sent) < 5
    await advance(60)
    assert len(broker.opened[OWN].sent) == 50
    await made.close()


@pytest.mark.parametrize("token", ["", ":", "1", "1:", "1:x", "99:1", "x:1", "2:-1", "2:²", "2:" + "9" * 30, "2:0", "2"])
async def test_an_odd_acknowledgement_means_nothing(token: str) -> None:
    broker = Broker()
    made = await sending(broker, 10, 1_000, credit="3000")
    before = len(broker.opened[OWN].sent)
    broker.acknowledge(token)
    broker.handlers[CONTROL](OddMessage(b"rubbish", {"id": "x"}))
    assert len(broker.opened[OWN].sent) == before
    await made.close()


async def test_streams_to_one_caller_take_turns_and_each_waits_for_its_own() -> None:
    broker = Broker()
    made = await sending(broker, 3, 2_000, credit="3000")  # uses the credit up
    out = broker.opened[OWN].sent
    passed = len(out)
    for chunk in range(3):
        made.send(asked(OWN, credit="3000"), b"a%d" % chunk, {"id": "a"})
    made.send(asked(OWN, credit="3000"), b"b0", {"id": "b"})
    waiting = {
        name: asyncio.create_task(made.writable({**asked(OWN), "id": name})) for name in ("a", "b", "nothing waits")
    }
    await idle()
    assert [name for name, task in waiting.items() if task.done()] == ["nothing waits"]
    while len(out) < passed + 5:
        broker.acknowledge(tokens(out)[-1]) if tokens(out) else await advance(1)
        await advance(1)
    order = [ticket.payload[:2] for ticket in out if ticket.payload[:1] in b"ab"]
    assert order.index(b"b0") < order.index(b"a1"), "the busy one does not keep the other waiting"
    await asyncio.gather(*waiting.values())
    await made.close()


async def test_closing_counts_what_was_still_waiting_as_lost() -> None:
    broker = Broker()
    made = await sending(broker, 10, 1_000, credit="3000")
    waiting = 10 - len(broker.opened[OWN].sent)
    await made.close()
    assert made.lost == waiting > 0
    assert not broker.handlers, "nobody listens on the control topic any more"


async def test_flush_waits_for_those_who_wait_for_credit() -> None:
    broker = Broker()
    made = await sending(broker, 10, 1_000, credit="3000")
    flush = asyncio.create_task(made.flush())
    await idle()
    assert not flush.done()
    await flush  # by time, in the end
    assert len(broker.opened[OWN].sent) == 10
    await made.close()


async def test_a_request_that_asks_is_told_at_once_that_it_is_here() -> None:
    broker = Broker()
    made = await router(broker)
    made.taken(asked(OWN, ack="1"))
    made.taken(asked(OWN))  # does not ask
    made.taken(asked(None, ack="1"))  # has no topic of its own: the others would get it too
    made.taken(asked("non-persistent://secret/place/mine", ack="1"))
    await made.flush()
    (told,) = broker.opened[OWN].sent
    assert (told.payload, told.properties["id"], "taken" in told.properties) == (b"", "1", True)
    assert not broker.sent(RESPONSES)
    await made.close()
