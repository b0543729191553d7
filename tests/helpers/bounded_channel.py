"""The one thing about a genuine broker that the embedded one lacks: a receiver's channel that is full takes nothing more.

A broker writes non-persistent messages to the receiver's connection as they come. When that holds more than 64 KiB at the
instant a message comes, because the network or the broker's own thread stood still, the message is gone without a word.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from random import Random

from dispatch.transports import Handler, Message, Mode, OnFailure, Publisher, Subscription, Ticket, Transport
from tests.helpers.fakes import FakeTicket

HIGH_WATER = 65_536
"""Bytes in a channel beyond which a broker drops what comes."""
FRAMING = 300
"""What properties and framing add to a payload."""
RATE = 400e6
"""Bytes a second through a channel that does not stand still: a loopback, or a network of today."""


class Channel:
    """Messages on their way to one receiver.

    Args:
        stalls: how long (in seconds) the channel stands still when it has just been given something and was empty before;
            one for each such time, then none. So a stall is never longer than one of these.
        rate: bytes a second otherwise.
    """

    def __init__(self, stalls: Iterator[float] | None = None, rate: float = RATE) -> None:
        self.bytes = 0
        self.most = 0
        self.lost = 0
        """Messages with a payload, requests and answers, that were dropped."""
        self.lost_words = 0
        """Messages without one (acknowledgements) that were dropped: nothing depends on those."""
        self.delivered = 0
        self._rate = rate
        self._stalls = chain(stalls or (), repeat(0.0))
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._empty = asyncio.Event()
        self._empty.set()

    def offer(self, payload: bytes, deliver: Callable[[], object]) -> bool:
        """Take a message on its way: ``deliver`` is called when it is there. False: it was dropped."""
        if self.bytes > HIGH_WATER:
            if payload:
                self.lost += 1
            else:
                self.lost_words += 1
            return False
        size = len(payload) + FRAMING
        self.bytes += size
        self.most = max(self.most, self.bytes)
        self._waiting.append((size, deliver))
        if len(self._waiting) == 1:
            self._empty.clear()
            self._next(next(self._stalls))
        return True

    def _next(self, stall: float) -> None:
        asyncio.get_running_loop().call_later(stall + self._waiting[0][0] / self._rate, self._drain)

    def _drain(self) -> None:
        size, deliver = self._waiting.popleft()
        self.bytes -= size
        self.delivered += 1
        if self._waiting:
            self._next(0.0)
        else:
            self._empty.set()
        deliver()

    async def empty(self) -> None:
        """Wait until everything is there."""
        await self._empty.wait()


class ChannelPublisher:
    """A publisher into a channel. ``receive`` gets what arrives; ``refusal`` is raised instead of publishing, if set."""

    def __init__(self, channel: Channel, receive: Callable[[bytes, Mapping[str, str]], object]) -> None:
        self.topic = "non-persistent://tg/response/caller"
        self.channel = channel
        self.refusal: Exception | None = None
        self.sent: list[tuple[float, int]] = []
        """When each message went, and how many bytes it had."""
        self._receive = receive

    def publish(self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure) -> FakeTicket:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append((asyncio.get_running_loop().time(), len(payload)))
        self.channel.offer(payload, lambda: self._receive(payload, properties))
        return FakeTicket(payload, properties, flow, on_failure)

    async def writable(self, flow: str) -> None:
        """There is always room: a broker says Ok to what it drops."""

    async def close(self) -> None:
        """Nothing is held."""


def stalls(rng: Random, longest: float, share: float = 0.3) -> Iterator[float]:
    """Stalls without end, each up to ``longest`` seconds; ``share`` of the time there is one at all."""
    while True:
        yield rng.random() * longest if rng.random() < share else 0.0


class ChannelTransport:
    """A connection whose receiving end is a channel: everything for its subscriptions comes through it.

    Args:
        inner: the transport.
        channel: the way to this connection.
        without: properties that are taken off what is published: a peer that does not know them.
    """

    def __init__(self, inner: Transport, channel: Channel, without: frozenset[str] = frozenset()) -> None:
        self.inner = inner
        self.channel = channel
        self._without = without

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def max_message_bytes(self) -> int:
        return self.inner.max_message_bytes

    @property
    def connected(self) -> bool:
        return self.inner.connected

    async def await_connection(self, deadline: float) -> bool:
        return await self.inner.await_connection(deadline)

    def was_disconnected_since(self, instant: float) -> bool:
        return self.inner.was_disconnected_since(instant)

    async def start(self) -> None:
        await self.inner.start()

    async def publisher(self, topic: str) -> Publisher:
        inner = await self.inner.publisher(topic)
        return _Without(inner, self._without) if self._without else inner

    async def subscribe(self, topic: str, handler: Handler, *, mode: Mode, name: str) -> Subscription:
        def arrived(message: Message) -> None:
            self.channel.offer(message.data(), lambda: handler(message))

        return _Subscription(self.channel, await self.inner.subscribe(topic, arrived, mode=mode, name=name))

    async def flush(self) -> None:
        await self.inner.flush()

    async def close(self) -> None:
        await self.inner.close()
        await self.channel.empty()


class _Subscription:
    def __init__(self, channel: Channel, inner: Subscription) -> None:
        self.topic = inner.topic
        self._channel = channel
        self._inner = inner

    async def close(self) -> None:
        await self._inner.close()
        await self._channel.empty()  # what has arrived is still handled


class _Without:
    def __init__(self, inner: Publisher, names: frozenset[str]) -> None:
        self.topic = inner.topic
        self._inner = inner
        self._names = names
        self.writable = inner.writable
        self.close = inner.close

    def publish(self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure) -> Ticket:
        kept = {name: value for name, value in properties.items() if name not in self._names}
        return self._inner.publish(payload, kept, flow=flow, on_failure=on_failure)
