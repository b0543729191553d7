"""10,000 requests with different reply topics stopped a service for 25 s: each was opened at once, and each one that was
closed for another copied the table of all. Openings are bounded, per second and in all, and cost the same however many there
are; what is beyond the bound is answered on the response topic, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.wire import derive_key, reply_topic
from dispatch.serving import plain
from dispatch.serving.plain import MAX_REPLY_TOPICS, OPENINGS_AT_ONCE, OPENINGS_PER_S, TOPICS_OF_ONE
from dispatch.transports import Publisher
from tests.helpers.clock import START, advance, idle
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, UNGUARDED, Peer, catalog, dispatching, serving
from tests.helpers.reply_broker import ANSWER, OWN, Broker, asked, router

FLOOD = 10_000


def topic_of(number: int) -> str:
    """The reply topic of a dispatcher of that number."""
    return reply_topic(RESPONSES, f"{derive_key(str(number))}-flood")


def asked_by(number: int) -> dict[str, str]:
    """The properties of a request of that dispatcher."""
    return asked(topic_of(number), session=str(number))


async def test_a_flood_opens_no_more_topics_than_the_bound_and_loses_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()
    made = await router(broker)
    for number in range(FLOOD):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    assert len(broker.opened) - 1 == OPENINGS_AT_ONCE
    assert sum(len(broker.sent(topic)) for topic in broker.opened) == FLOOD
    assert (made.unopened, made.lost) == (FLOOD - OPENINGS_AT_ONCE, 0)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1

    await advance(1)
    for number in range(FLOOD, 2 * FLOOD):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    passed = asyncio.get_running_loop().time() - START  # the response topic takes its time for so many
    assert passed < 2
    assert len(broker.opened) - 1 <= OPENINGS_AT_ONCE + OPENINGS_PER_S * passed
    await made.close()


async def test_topics_are_bounded_in_all_and_what_was_kept_for_a_closed_one_is_gone() -> None:
    broker = Broker()
    made = await router(broker)
    most = 0
    for number in range(2 * MAX_REPLY_TOPICS):
        made.send(asked_by(number), b"x", ANSWER)
        most = max(most, len(made._topics))
        if number % OPENINGS_PER_S == 0:
            await advance(1)
    await made.flush()
    await idle()
    still_open = [publisher for publisher in broker.opened.values() if not publisher.closed]
    assert (most, len(still_open)) == (MAX_REPLY_TOPICS, MAX_REPLY_TOPICS)
    assert made.unopened == 0
    assert len(made._owned) == MAX_REPLY_TOPICS - 1  # the response topic belongs to the service
    await made.close()


async def test_a_topic_that_cannot_be_closed_is_kept_and_the_rest_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "MAX_REPLY_TOPICS", 3)
    broker = Broker()
    made = await router(broker)
    broker.gate.clear()
    for number in range(5):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    assert broker.sent(RESPONSES) == [b"2", b"3", b"4"], "two topics are being opened"
    broker.gate.set()
    await made.flush()
    assert [broker.sent(topic_of(number)) for number in range(2)] == [[b"0"], [b"1"]]
    made.send(asked_by(5), b"5", ANSWER)
    await made.flush()
    assert broker.sent(topic_of(5)) == [b"5"], "there is room again"
    await made.close()


async def test_one_dispatcher_has_so_many_topics_and_costs_others_no_opening() -> None:
    broker = Broker()
    made = await router(broker)
    for number in range(FLOOD):
        made.send(asked(f"{OWN}-{number}"), b"%d" % number, ANSWER)
    for number in range(OPENINGS_AT_ONCE - TOPICS_OF_ONE):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    assert sum(topic.startswith(OWN) for topic in broker.opened) == TOPICS_OF_ONE
    assert all(topic_of(number) in broker.opened for number in range(OPENINGS_AT_ONCE - TOPICS_OF_ONE))
    assert made.unopened == FLOOD - TOPICS_OF_ONE
    assert sum(len(broker.sent(topic)) for topic in broker.opened) == FLOOD + OPENINGS_AT_ONCE - TOPICS_OF_ONE
    await made.close()


async def test_what_one_dispatcher_has_is_counted_when_topics_close_or_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "TOPICS_OF_ONE", 1)
    monkeypatch.setattr(plain, "MAX_REPLY_TOPICS", 2)
    broker = Broker()
    made = await router(broker)
    broker.refusals[f"{OWN}-0"] = TransportError("connection-refused", "no", may_have_run=False)
    for number, opens in ((0, False), (1, True), (2, False)):
        made.send(asked(f"{OWN}-{number}"), b"x", ANSWER)
        await made.flush()
        assert (f"{OWN}-{number}" in broker.opened) is opens
    made.send(asked_by(1), b"x", ANSWER)
    await made.flush()
    assert broker.opened[f"{OWN}-1"].closed, "it was the quietest"
    made.send(asked(f"{OWN}-3"), b"x", ANSWER)
    await made.flush()
    assert f"{OWN}-3" in broker.opened
    assert made.unopened == 1
    await made.close()


async def test_what_is_no_answer_is_not_sent_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "OPENINGS_AT_ONCE", 1)
    broker = Broker()
    made = await router(broker)
    for number in range(3):
        made.send(asked_by(number), b"", {"here": REQUESTS})
        await made.writable(asked_by(number))
    assert not broker.sent(RESPONSES)
    assert (made.unopened, made.lost) == (2, 0)
    await made.close()


async def test_ordinary_callers_are_answered_at_once_during_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = catalog(work={"policy": UNGUARDED})
    opened: list[str] = []
    async with serving(lambda _: "done", max_queue=FLOOD) as server, dispatching(tools) as known:
        open_publisher = server._transport.publisher

        async def publisher(topic: str) -> Publisher:
            opened.append(topic)
            return await open_publisher(topic)

        monkeypatch.setattr(server._transport, "publisher", publisher)
        assert await known.call("work") == "done"
        async with Peer.as_caller() as flooding:
            for number in range(FLOOD):
                await flooding.send(REQUESTS, b"{}", asked_by(number) | {"id": f"x{number}"})
            await idle()
            before = asyncio.get_running_loop().time()
            assert await known.call("work") == "done"
            assert asyncio.get_running_loop().time() == before, "its topic is open"
            async with dispatching(tools) as new:
                assert await new.call("work", timeout=1) == "done"
        assert OPENINGS_AT_ONCE <= len(opened) < OPENINGS_AT_ONCE + 10
        assert asyncio.get_running_loop().time() < START + 5
