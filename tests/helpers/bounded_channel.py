"""The one thing about a genuine broker that the embedded one lacks: a receiver's channel that is full takes nothing more.

A broker writes non-persistent messages to the receiver's connection as they come. When that holds more than 64 KiB at the
instant a message comes, because the network or the broker's own thread stood still, the message is gone without a word.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat

from dispatch.transports import OnFailure
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
        """Messages that were dropped."""
        self.delivered = 0
        self._rate = rate
        self._stalls = chain(stalls or (), repeat(0.0))
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._empty = asyncio.Event()
        self._empty.set()

    def offer(self, payload: bytes, deliver: Callable[[], object]) -> bool:
        """Take a message on its way: ``deliver`` is called when it is there. False: it was dropped."""
        if self.bytes > HIGH_WATER:
            self.lost += 1
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
