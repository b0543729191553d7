"""pulsar-client in the hand: a link whose producers and consumers do what a test says, from whatever thread it says it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pulsar
import pytest

from dispatch.errors import TransportError
from dispatch.transports import DurableMessage, Mode, Publisher, Ticket
from dispatch.transports.base import Security
from dispatch.transports.errors import unreachable
from dispatch.transports.pulsar.client import OPERATION_TIMEOUT_S, close_opened
from dispatch.transports.pulsar.supervisor import GRACE_S, POLL_S
from dispatch.transports.pulsar.transport import LoopWaker, PulsarPublisher, PulsarSubscription, PulsarTransport
from tests.helpers.clock import advance

URL = "pulsar://broker.example:6650"
TOPIC = "non-persistent://tg/request/work"
OTHER = "non-persistent://tg/request/other"
KEPT = "persistent://tg/request/work"
SEEN_S = POLL_S + 0.01
"""By then an outage has been noticed."""
REPLACED_S = GRACE_S + 2 * POLL_S
"""By then the client has been replaced, if the broker answers."""


class MessageId:
    """A receipt's place in the ledger."""

    def __init__(self, ledger: int = 7, entry: int = 7) -> None:
        self._ledger, self._entry = ledger, entry

    def ledger_id(self) -> int:
        return self._ledger

    def entry_id(self) -> int:
        return self._entry


DROPPED = MessageId(-1, -1)


class Place(int):
    """The id of a message that is in no batch; ``text`` tells messages apart that are in one place."""

    text = ""

    def batch_index(self) -> int:
        return -1

    def serialize(self) -> bytes:
        return f"{int(self)} {self.text}".encode()


class Kept(str):
    """A message on a persistent topic, which is its own text; ``place`` is where it is in the ledger."""

    place: int
    published: float

    def __new__(cls, text: str, place: int = 0, published: float = 0.0) -> Kept:
        made = super().__new__(cls, text)
        made.place, made.published = place, published
        return made

    def message_id(self) -> Any:
        place = Place(self.place)
        place.text = str(self)
        return place

    def publish_timestamp(self) -> int:
        return int(self.published * 1000)

    def properties(self) -> dict[str, str]:
        return {"text": str(self)}

    def data(self) -> bytes:
        return self.encode()


@dataclass(eq=False)
class Sent:
    """A message that pulsar-client holds; ``receipt`` is what its thread calls."""

    payload: bytes
    properties: Mapping[str, str]
    receipt: Callable[[Any, Any], None]

    def ok(self, place: MessageId | None = None) -> None:
        self.receipt(pulsar.Result.Ok, place or MessageId())

    def fails(self, name: str) -> None:
        self.receipt(getattr(pulsar.Result, name), MessageId(-1, -1))


@dataclass(eq=False)
class Raw:
    """A producer, a consumer or a reader."""

    topic: str
    link: FakeLink
    closed: bool = False
    on_close: Callable[[], object] | None = None

    def is_connected(self) -> bool:
        return self.link.broker.up and not self.closed and not self.link.closed

    def close(self) -> None:
        if self.on_close is not None:
            self.on_close()
        self.closed = True


@dataclass(eq=False)
class FakeProducer(Raw):
    sent: list[Sent] = field(default_factory=list)
    refusal: Exception | None = None
    settled: int = 0

    def send_async(self, payload: bytes, receipt: Callable[[Any, Any], None], *, properties: Mapping[str, str]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(Sent(payload, properties, receipt))

    @property
    def _producer(self) -> FakeRawProducer:
        """The producer of ``_pulsar`` inside."""
        return FakeRawProducer(self)

    @property
    def payloads(self) -> list[bytes]:
        return [sent.payload for sent in self.sent]

    def receipts(self, count: int | None = None) -> None:
        """The broker says Ok to the next ``count`` messages, or to all of them."""
        upto = len(self.sent) if count is None else self.settled + count
        while self.settled < upto:
            self.settled += 1
            self.sent[self.settled - 1].ok()


class FakeRawProducer:
    """A producer without the wrapper of ``pulsar``."""

    def __init__(self, producer: FakeProducer) -> None:
        self._wrapper = producer

    def send_async(self, message: Any, receipt: Callable[[Any, Any], None]) -> None:
        self._wrapper.send_async(message.data(), receipt, properties=message.properties())


@dataclass(eq=False)
class FakeConsumer(Raw):
    mode: Mode = Mode.SHARED
    listener: Callable[[Any, Any], None] = lambda consumer, message: None
    acknowledged: list[Any] = field(default_factory=list)
    after: Any = None
    paused: bool = False
    last: int = -1
    attached: list[bool | None] = field(default_factory=list)
    """What is found out about it, one after the other; then that it is attached."""

    def pause_message_listener(self) -> None:
        self.paused = True

    def deliver(self, *messages: Any) -> None:
        for message in messages:
            self.listener(self, message)

    def acknowledge(self, message: Any) -> None:
        if self.closed or self.link.closed:
            raise RuntimeError("AlreadyClosed")
        self.acknowledged.append(message)


class FakeLink:
    """See :class:`dispatch.transports.pulsar.client.Link`."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.producers: list[FakeProducer] = []
        self.consumers: list[FakeConsumer] = []
        self.closed = False
        self.closings = 0
        self._opening: set[asyncio.Task[bool]] = set()

    def fail_openings(self, error: TransportError) -> None:
        for task in self._opening:
            task.cancel(error)

    async def producer(self, topic: str) -> FakeProducer:
        return await self._open(self.producers, FakeProducer(topic, self))

    async def consumer(
        self, topic: str, mode: Mode, name: str, listener: Callable[[Any, Any], None], *, after: Any = None
    ) -> FakeConsumer:
        return await self._open(self.consumers, FakeConsumer(topic, self, mode=mode, listener=listener, after=after))

    async def last_message(self, consumer: FakeConsumer) -> int:
        if self.broker.while_looking is not None:
            raise self.broker.while_looking
        return consumer.last

    async def close_listening(self, consumer: FakeConsumer, _topic: str) -> None:
        await close_opened(consumer)

    async def replies(self, consumer: FakeConsumer) -> bool:
        self.broker.questions.append(consumer.topic)
        if consumer.topic in self.broker.hung:
            await asyncio.sleep(OPERATION_TIMEOUT_S)
            return False
        return consumer.is_connected()

    async def is_attached(self, consumer: FakeConsumer) -> bool | None:
        self.broker.verified.append(consumer.topic)
        await asyncio.sleep(0)
        return consumer.attached.pop(0) if consumer.attached else True

    async def answers(self, consumer: FakeConsumer) -> bool | None:
        self.broker.asked += 1
        if consumer.topic in self.broker.hung:
            await asyncio.sleep(OPERATION_TIMEOUT_S)
            return None
        await asyncio.sleep(self.broker.answers_after)
        return consumer.is_connected()

    async def _open(self, opened: list[Any], raw: Any) -> Any:
        broker = self.broker
        broker.openings.append(raw.topic)
        opened.append(raw)
        if broker.while_opening is not None:
            broker.while_opening(raw)
        task = asyncio.create_task(broker.gate.wait())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        try:
            await task
        except asyncio.CancelledError as cancelled:
            raw.close()  # what the real one does when it is there
            if cancelled.args and isinstance(cancelled.args[0], TransportError):
                raise cancelled.args[0] from None
            raise
        refusal = broker.refusals.pop(raw.topic, None) or broker.always_refused.get(raw.topic)
        if refusal is not None or self.closed:
            raw.closed = True
            raise refusal or unreachable(URL)
        return raw

    async def close(self) -> None:
        self.closings += 1
        await asyncio.sleep(0)
        self.end()

    def end(self) -> None:
        if self.closed:
            return
        self.closed = True
        for producer in self.producers:
            for sent in producer.sent[producer.settled :]:
                sent.fails("AlreadyClosed")
            producer.settled = len(producer.sent)

    close_now = end


class FakeBroker:
    """Whether it answers (``up``), and all the links that were made to it."""

    def __init__(self) -> None:
        self.up = True
        self.handshake: Exception | None = None
        self.handshakes = 0
        self.limit: int | None = None
        """``maxMessageSize`` of a handshake."""
        self.links: list[FakeLink] = []
        self.openings: list[str] = []
        self.securities: list[Security] = []
        self.refusals: dict[str, Exception] = {}
        """Once, by topic."""
        self.always_refused: dict[str, Exception] = {}
        self.while_opening: Callable[[Any], object] | None = None
        self.while_looking: Exception | None = None
        self.asked = 0
        """Round trips that were asked for, to be sure of acknowledgements."""
        self.answers_after = 0.0
        """Seconds of these."""
        self.hung: set[str] = set()
        """Topics whose owners do not reply, while their connections are open."""
        self.questions: list[str] = []
        """Topics whose owners were asked whether they reply."""
        self.verified: list[str] = []
        """Topics whose subscriptions were verified."""
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def link(self) -> FakeLink:
        return self.links[-1]

    def connect(self, url: str, security: Security) -> FakeLink:
        assert url == URL
        self.securities.append(security)
        self.links.append(FakeLink(self))
        return self.link

    async def shake_hands(self, url: str, security: Security, timeout: float = 3.0) -> int | None:
        self.handshakes += 1
        self.securities.append(security)
        if self.handshake is not None:
            raise self.handshake
        if not self.up:
            raise unreachable(url)
        return self.limit

    def producer(self, topic: str = TOPIC) -> FakeProducer:
        """The one for ``topic`` that was opened last."""
        return next(each for each in reversed(self.link.producers) if each.topic == topic)

    def consumer(self, topic: str = TOPIC) -> FakeConsumer:
        return next(each for each in reversed(self.link.consumers) if each.topic == topic)

    async def come_back(self) -> None:
        """Restart after an outage, and wait until the transport has another client."""
        self.up = True
        await self.replace()

    def restarts(self) -> None:
        """What was open is no longer; new links are served."""
        for link in self.links:
            link.broker = _GONE

    async def replace(self) -> None:
        """Restart, and wait until the transport has another client."""
        self.restarts()
        await advance(REPLACED_S)

    async def lose(self) -> None:
        """Be out of reach, until the transport has noticed."""
        self.up = False
        await advance(SEEN_S)


_GONE = FakeBroker()
_GONE.up = False


async def started(**options: Any) -> PulsarTransport:
    """A started transport on the fake broker, which the test closes."""
    transport = PulsarTransport(URL, security=Security(), **options)
    await transport.start()
    return transport


@contextlib.asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[PulsarTransport]:
    """A started transport on the fake broker. Its supervisor never rests, so that a test that hangs has to be ended."""
    transport = await started(**options)
    try:
        async with asyncio.timeout(600):
            yield transport
    finally:
        await transport.close()


@contextlib.asynccontextmanager
async def receiving(topic: str = TOPIC) -> AsyncIterator[tuple[PulsarTransport, list[Any]]]:
    """A started transport, and the messages of ``topic`` that it has received."""
    got: list[Any] = []
    async with connected() as transport:
        await listen(transport, got.append, topic)
        yield transport, got


@contextlib.asynccontextmanager
async def publishing(**options: Any) -> AsyncIterator[tuple[PulsarTransport, PulsarPublisher]]:
    """A started transport, and a publisher of :data:`TOPIC`."""
    async with connected(**options) as transport:
        yield transport, await transport.publisher(TOPIC)


class Failures:
    """What ``on_failure`` was told, by name."""

    def __init__(self) -> None:
        self.told: list[tuple[str, TransportError]] = []

    def of(self, name: str) -> Callable[[TransportError], None]:
        return lambda error: self.told.append((name, error))

    @property
    def types(self) -> list[tuple[str, str, bool]]:
        """Name, type, and whether it may have been sent."""
        return [(name, error.type, error.may_have_run) for name, error in self.told]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.told]


def counting_wakeups(monkeypatch: pytest.MonkeyPatch) -> list[LoopWaker]:
    """What has woken the loop from elsewhere, as it happens."""
    calls: list[LoopWaker] = []
    inner = LoopWaker.wake

    def counted(waker: LoopWaker) -> None:
        calls.append(waker)
        inner(waker)

    monkeypatch.setattr(LoopWaker, "wake", counted)
    return calls


def send(publisher: Publisher, failures: Failures, *names: str) -> list[Ticket]:
    """Messages named for their flow: ``a1`` is of the flow ``a``."""
    return [
        publisher.publish(name.encode(), {"id": name}, flow=name[0], on_failure=failures.of(name)) for name in names
    ]


async def listen(
    transport: PulsarTransport, handler: Callable[[Any], object], topic: str = TOPIC, mode: Mode = Mode.SHARED
) -> PulsarSubscription:
    return await transport.subscribe(topic, handler, mode=mode, name="test")


def texts(into: list[Any]) -> Callable[[Any], None]:
    """A handler that keeps what it gets; of a durable subscription, the text."""

    def handler(message: Any) -> None:
        into.append(message.data().decode() if isinstance(message, DurableMessage) else message)

    return handler
