"""Requests to others' services leave no faster than their answers can be taken."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.errors import Outcome
from dispatch.messaging.flow import MEAN_OF, PACE_BURST, PACE_RATE, CountedReplies
from dispatch.messaging.plain import Correlator
from dispatch.messaging.request import Settled
from tests.helpers.clock import advance, idle, virtual_loop
from tests.helpers.dispatcher_and_service import RESPONSES, Peer, dispatching
from tests.helpers.exchange_harness import request
from tests.helpers.fakes import FakePublisher, reply

pytestmark = pytest.mark.usefixtures("strangers")


async def waiting(exchange: Correlator, publisher: FakePublisher) -> asyncio.Task[Settled]:
    id = exchange.new_id()
    task = asyncio.create_task(request(exchange, publisher, id=id, max_bytes=10**7))
    await idle()
    return task


async def test_the_size_of_answers_is_learnt_from_those_that_are_ours() -> None:
    exchange, publisher = Correlator(), FakePublisher()
    replies = CountedReplies(exchange)
    assert replies.window.mean_bytes == PACE_BURST, "until one has come"
    size = 0
    for _ in range(20 * MEAN_OF):
        task = await waiting(exchange, publisher)
        message = reply(publisher.sent[-1].properties["id"], "x" * 1_000)
        size = len(message.data())
        replies.on_message(reply("somebody-elses", "y" * 100_000))
        replies.on_message(message)
        replies.on_message(message)
        await task
    assert replies.window.mean_bytes == pytest.approx(size, rel=0.01)


async def burst(answer: str, calls: int = 64) -> float:
    """Seconds over which the second of two bursts of calls leaves."""
    async with Peer.as_service() as peer, dispatching() as dispatcher:

        async def serve() -> None:
            while True:
                _, properties = await peer.request()
                arrived.append(virtual_loop().time())
                await peer.answer(properties, answer, topic=RESPONSES)

        arrived: list[float] = []
        serving = asyncio.create_task(serve())
        try:
            for _ in range(3):
                arrived.clear()
                results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(calls)))
                assert {result.outcome for result in results} == {Outcome.SUCCESS}
                await advance(1.0)
        finally:
            serving.cancel()
    return arrived[-1] - arrived[0]


async def test_small_answers_are_not_waited_for() -> None:
    assert await burst("x" * 100) < 0.01


async def test_large_answers_are_asked_for_at_their_pace() -> None:
    size, calls = 100_000, 64
    took = await burst("x" * size, calls)
    assert took == pytest.approx((calls - 1) * size / PACE_RATE, rel=0.1)


async def test_an_error_is_an_answer() -> None:
    exchange, publisher = Correlator(), FakePublisher()
    replies = CountedReplies(exchange)
    task = await waiting(exchange, publisher)
    replies.on_message(reply(publisher.sent[-1].properties["id"], error=("no", "No.")))
    await task
    assert replies.window.mean_bytes < PACE_BURST


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_reply_on_either_topic_answers_a_request_in_the_window(is_shared: bool) -> None:
    exchange, publisher = Correlator(), FakePublisher()
    replies = CountedReplies(exchange)
    task = await waiting(exchange, publisher)
    id = publisher.sent[-1].properties["id"]
    replies.window.send(id, exchange.now())
    message = reply(id, "there")
    replies.receive(message, message.properties(), is_shared=is_shared)
    await task
    assert replies.window.unanswered == 0
