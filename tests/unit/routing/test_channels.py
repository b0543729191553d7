"""Channels: opened once, closed whole. What callers see of them is in test_dispatcher.py.
Requests to others' services leave no faster than their answers can be taken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch.errors import Outcome, TransportError
from dispatch.messaging.flow import MEAN_OF, PACE_BURST, STALL_S, CountedReplies, PacedPublisher
from dispatch.messaging.plain import Correlator
from dispatch.messaging.request import Settled
from dispatch.messaging.sessions import SessionExchange
from dispatch.messaging.wire import Identity
from dispatch.routing.channels import Channels
from dispatch.transports import Mode
from tests.helpers.clock import advance, idle, virtual_loop
from tests.helpers.dispatcher_and_service import RESPONSES, Peer, catalog, dispatching
from tests.helpers.exchange_harness import request
from tests.helpers.fakes import FakePublisher, lost, reply
from tests.helpers.session import KEY, SECRET

SERVICE = catalog().services["lab"]
QUEUES = SERVICE.request_queue, SERVICE.response_queue


class Broker:
    """A transport that keeps what is opened; what is closed with an error says so all the same."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.close_error: Exception | None = None
        self.refusal: Exception | None = None
        self.handlers: dict[str, Any] = {}
        self.publishers: dict[str, FakePublisher] = {}

    connected = True
    max_message_bytes = 5 * 1024 * 1024

    async def flush(self) -> None:
        """Nothing is queued."""

    def was_disconnected_since(self, instant: float) -> bool:
        return False

    async def publisher(self, topic: str) -> Any:
        await self.gate.wait()
        self.log.append(f"publish {topic}")
        broker = self

        class Kept(FakePublisher):
            async def close(self) -> None:
                broker.log.append(f"closed {topic}")

        self.publishers[topic] = Kept(topic)
        return self.publishers[topic]

    async def subscribe(self, topic: str, handler: Any, *, mode: Mode, name: str) -> Any:
        assert mode is Mode.FANOUT, "a shared subscription would take others' replies away"
        assert name == "dispatch-one"
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        self.log.append(f"listen {topic}")
        self.handlers[topic] = handler
        broker = self

        class Kept:
            async def close(self) -> None:
                broker.log.append(f"closed {topic}")
                if broker.close_error is not None:
                    raise broker.close_error

        return Kept()


REQUEST, RESPONSE = "non-persistent://tg/request/lab", "non-persistent://tg/response/lab"
HELLO = "non-persistent://tg/request/dispatch-hello-lab"
ANNOUNCEMENTS = "non-persistent://tg/response/dispatch-announce-lab"
OWN = f"non-persistent://tg/response/dispatch-reply-{KEY}-one"


def channels(broker: Broker) -> Channels:
    exchange = Correlator()
    exchange.identity = Identity(SECRET)
    return Channels(broker, exchange, SessionExchange(exchange.replies), "one")  # type: ignore[arg-type]


@pytest.fixture
def broker() -> Broker:
    return Broker()


async def test_both_ends_listen_before_the_publisher_is_there(broker: Broker) -> None:
    made = channels(broker)
    channel = await made.open(*QUEUES)
    assert broker.log == [
        f"listen {RESPONSE}",
        f"listen {OWN}",
        f"publish {REQUEST}",
        f"listen {ANNOUNCEMENTS}",
        f"publish {HELLO}",
    ]
    assert channel.reply_topic == OWN
    assert channel is await made.open(*QUEUES)
    await made.close()


async def test_an_own_topic_is_of_the_same_kind_as_the_services(broker: Broker) -> None:
    made = channels(broker)
    found = (await made.open(REQUEST, "persistent://corp/tools/lab")).reply_topic
    assert found == f"persistent://corp/tools/dispatch-reply-{KEY}-one"
    await made.close()


@pytest.mark.parametrize("scheme", ["persistent", "non-persistent"])
async def test_only_where_messages_can_get_lost_is_anything_paid_for_not_losing_them(scheme: str) -> None:
    made = channels(Broker())
    queues = {"request-queue": f"{scheme}://tg/request/x", "response-queue": f"{scheme}://tg/response/x"}
    channel = await made.open(*queues.values())
    publisher = channel.publisher
    assert isinstance(publisher, PacedPublisher) == (channel.endpoint is not None) == (scheme == "non-persistent")
    await made.close()


@pytest.mark.parametrize("error", [None, lost()])
async def test_closing_closes_all_of_it_even_if_some_of_it_cannot(error: Exception | None, broker: Broker) -> None:
    made = channels(broker)
    await made.open(*QUEUES)
    broker.close_error = error
    await made.close()
    found = sorted(line for line in broker.log if line.startswith("closed"))
    assert found == sorted(f"closed {topic}" for topic in (REQUEST, RESPONSE, OWN, HELLO, ANNOUNCEMENTS))


async def test_closing_while_a_subscription_fails_closes_the_rest(broker: Broker) -> None:
    made = channels(broker)
    await made.open(*QUEUES)
    broker.gate.clear()
    opening = asyncio.create_task(made.open(REQUEST, "non-persistent://tg/response/other"))
    await idle()
    broker.refusal = lost()
    closing = asyncio.create_task(made.close())
    await idle()
    broker.gate.set()
    await closing
    assert f"closed {OWN}" in broker.log
    with pytest.raises(TransportError):
        await opening


async def test_closing_that_is_cancelled_is_cancelled(broker: Broker) -> None:
    made = channels(broker)
    broker.gate.clear()
    opening = asyncio.create_task(made.open(*QUEUES))
    await idle()
    closing = asyncio.create_task(made.close())
    await idle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    broker.gate.set()
    with pytest.raises(TransportError, match="closed"):
        await opening
    await made.close()


async def waiting(exchange: Correlator, publisher: FakePublisher) -> asyncio.Task[Settled]:
    task = asyncio.create_task(request(exchange, publisher, id=exchange.new_id(), max_bytes=10**7))
    await idle()
    return task


@pytest.mark.usefixtures("strangers")
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


@pytest.mark.usefixtures("strangers")
async def test_small_answers_are_not_waited_for() -> None:
    assert await burst("x" * 100) < 0.01


@pytest.mark.usefixtures("strangers")
async def test_large_answers_are_asked_for_at_their_pace() -> None:
    size, calls = 100_000, 64
    assert await burst("x" * size, calls) == pytest.approx((calls - 1) * STALL_S, rel=0.1)


@pytest.mark.usefixtures("strangers")
async def test_an_error_is_an_answer() -> None:
    exchange, publisher = Correlator(), FakePublisher()
    replies = CountedReplies(exchange)
    task = await waiting(exchange, publisher)
    replies.on_message(reply(publisher.sent[-1].properties["id"], error=("no", "No.")))
    await task
    assert replies.window.mean_bytes < PACE_BURST


@pytest.mark.usefixtures("strangers")
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
