"""Answers to callers that acknowledge: within their credit, fair, and never stuck when an acknowledgement is lost."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.messaging.flow.credit import CREDIT_BYTES, MESSAGE_OVERHEAD
from dispatch.serving.reply_destinations import ReplyRouter
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import RESPONSES
from tests.helpers.fakes import FakeTicket
from tests.helpers.malformed_messages import AlteredMessage
from tests.helpers.reply_broker import ANSWER, CONTROL, OWN, Broker, asked, router
from tests.helpers.session import SECRET, request_id


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


async def test_each_callers_acknowledgements_clear_its_own_way() -> None:
    broker = Broker()
    made = await sending(broker, 6, 1_000, credit="3000")
    for number in range(6):
        made.send(asked(f"{OWN}-other", credit="3000"), b"x" * 1_000, {"id": str(number)})
    await idle()
    mine, other = broker.opened[OWN].sent, broker.opened[f"{OWN}-other"].sent
    passed = len(mine)
    assert len(other) == passed < 6
    broker.acknowledge(tokens(mine)[-1])
    assert len(mine) > passed == len(other)
    broker.acknowledge(tokens(other)[-1])
    assert len(other) > passed
    await made.close()


@pytest.mark.parametrize(("reply_to", "credit"), [(None, "3000"), (OWN, ""), (OWN, "lots"), (OWN, "-1")])
async def test_a_caller_that_does_not_acknowledge_gets_its_answers_unmarked(reply_to: str | None, credit: str) -> None:
    broker = Broker()
    made = await router(broker)
    for number in range(100):
        made.send(asked(reply_to, credit=credit), b"x" * 5_000, {"id": str(number)})
    await idle()
    out = broker.opened[reply_to or RESPONSES].sent
    if reply_to is None:
        assert 0 < len(out) < 100, "on the topic that all share, they are paced"
        await made.flush()
    assert len(out) == 100
    assert tokens(out) == []
    await made.close()


async def test_a_dispatchers_credit_is_limited_whatever_it_asks_for() -> None:
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


@pytest.mark.parametrize(
    "token",
    ["", ":", "1", "{0}", "{0}:", "{0}:x", "99:1", "x:1", "{0}:-1", "{0}:²", "{0}:" + "9" * 30, "{0}:0", ",,:,"],
)
async def test_an_odd_acknowledgement_means_nothing(token: str) -> None:
    broker = Broker()
    made = await sending(broker, 10, 1_000, credit="3000")
    out = broker.opened[OWN].sent
    before = len(out)
    gate = tokens(out)[-1].partition(":")[0]
    broker.acknowledge(token.format(gate))
    broker.handlers[CONTROL](AlteredMessage(b"rubbish", {"id": "x"}))
    assert len(out) == before
    broker.acknowledge(f"{token.format(gate)},{tokens(out)[-1]}")
    assert len(out) > before, "the one that is right counts all the same"
    await made.close()


async def test_what_was_meant_for_a_former_life_opens_no_gate() -> None:
    broker = Broker()
    former = await sending(broker, 10, 1_000, credit="3000")
    late = tokens(broker.opened[OWN].sent)[-1]
    await former.close()
    made = await sending(broker, 10, 1_000, credit="3000")
    before = len(broker.opened[OWN].sent)
    broker.acknowledge(late)
    assert len(broker.opened[OWN].sent) == before
    await made.close()


async def test_one_message_acknowledges_for_several_gates_and_may_be_a_request_too() -> None:
    broker = Broker()
    requests: list[str] = []
    made = ReplyRouter(
        broker,  # type: ignore[arg-type]
        RESPONSES,
        control=CONTROL,
        on_request=lambda message, properties: requests.append(properties["id"]),
    )
    await made.start()
    for number in range(6):
        for topic in (OWN, f"{OWN}-1"):
            made.send(asked(topic, credit="3000"), b"x" * 1_000, {"id": str(number)})
    await idle()
    lanes = [broker.opened[topic].sent for topic in (OWN, f"{OWN}-1")]
    before = [len(out) for out in lanes]
    acked = ",".join(tokens(out)[-1] for out in lanes)
    broker.handlers[CONTROL](AlteredMessage(b"work", {"id": request_id(1), "acked": acked, "session": SECRET}))
    assert all(len(out) > passed for out, passed in zip(lanes, before, strict=True))
    assert requests == [request_id(1)]
    broker.handlers[CONTROL](AlteredMessage(b"", {"acked": acked, "session": SECRET}))
    assert requests == [request_id(1)], "an acknowledgement alone is no request"
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
        if tokens(out):
            broker.acknowledge(tokens(out)[-1])
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


async def test_a_caller_is_told_that_its_request_is_here() -> None:
    broker = Broker()
    made = await router(broker)
    made.send_receipt(asked(OWN, ack="1"))
    made.send_receipt(asked(None, ack="1"))  # has no topic of its own: the others would get it too
    made.send_receipt(asked("non-persistent://secret/place/mine", ack="1"))
    await made.flush()
    (told,) = broker.opened[OWN].sent
    assert (told.payload, told.properties["id"], "taken" in told.properties) == (b"", "1", True)
    assert not broker.sent(RESPONSES)
    await made.close()
