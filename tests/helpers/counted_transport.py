"""A connection to the embedded broker that counts what is open."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dispatch.errors import TransportError
from dispatch.transports import AnswerLate, Handler, Mode, Subscription, Ticket, TopicPublisher
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER

_SESSION_KEY = re.compile("(?<=dispatch-reply-)[0-9a-f]{24}-")


class _CountedPublisher:
    """See :class:`dispatch.transports.base.Publisher`."""

    def __init__(self, transport: CountedTransport, inner: TopicPublisher) -> None:
        self._transport = transport
        self._inner = inner
        self.topic = inner.topic
        self._closed = False

    def publish(self, payload: bytes, properties: Mapping[str, str], **options: Any) -> Ticket:
        if self._closed:
            raise TransportError("closed", "The publisher is closed.", may_have_run=False)
        return self._inner.publish(payload, properties, **options)

    @property
    def opening_error(self) -> TransportError | None:
        return self._inner.opening_error

    @property
    def is_connected(self) -> bool:
        return self._inner.is_connected

    def send_packet(self, payload: bytes) -> bool:
        return not self._closed and self._inner.send_packet(payload)

    async def writable(self, flow: str) -> None:
        await self._inner.writable(flow)

    async def close(self) -> None:
        assert not self._closed
        self._closed = True
        self._transport.count_close("publisher", self.topic)
        await self._inner.close()


class _CountedSubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    def __init__(self, transport: CountedTransport, inner: Subscription) -> None:
        self._transport = transport
        self._inner = inner
        self.topic = inner.topic

    async def close(self) -> None:
        await asyncio.sleep(0.01)
        await self._inner.close()
        self._transport.count_close(self._transport.kind, self.topic)


class CountedTransport(MemoryTransport):
    """Counts what is open, over all further connections."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.open: Counter[tuple[str, str]] = Counter()
        self.slow = 0.0
        """Seconds that it takes to open a publisher."""
        self.kind = "subscription"
        self.further = 0

    def another(self) -> CountedTransport:
        further = CountedTransport()
        further.open = self.open
        further.kind = f"subscription {1 + self.further}"
        self.further += 1
        return further

    async def publisher(self, topic: str) -> _CountedPublisher:  # type: ignore[override] # a wrapper around its own
        await asyncio.sleep(self.slow)
        self.open["publisher", topic] += 1
        return _CountedPublisher(self, await super().publisher(topic))

    async def subscribe(  # type: ignore[override] # likewise
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> _CountedSubscription:
        assert self.open[self.kind, topic] == 0, "it is not opened before it was closed"
        self.open[self.kind, topic] += 1
        return _CountedSubscription(self, await super().subscribe(topic, handler, mode=mode, name=name))

    def count_close(self, kind: str, topic: str) -> None:
        self.open[kind, topic] -= 1
        if not self.open[kind, topic]:
            del self.open[kind, topic]  # tests with thousands of topics measure memory

    @property
    def left_open(self) -> dict[tuple[str, str], int]:
        """What is open; the key of a dispatcher's session, in the names of its reply topics, is left out."""
        return {(kind, _SESSION_KEY.sub("", topic)): count for (kind, topic), count in self.open.items() if count}
