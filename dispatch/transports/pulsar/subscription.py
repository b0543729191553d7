"""Subscriptions on Pulsar; messages of durable ones stay at the broker until they are acknowledged.

pulsar-client groups acknowledgements for a tenth of a second before it sends them, and Python cannot configure that. The
broker redelivers the received messages of an instance that is killed in that time, indistinguishable from new ones.
Therefore a receiver that must process a message only once waits until the acknowledgement is sent, and then for replies of
the broker on the same connection, which follow it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dispatch.transports.base import AnswerLate, DurableMessage, Handler, Mode
from dispatch.transports.pulsar.client import OPERATION_TIMEOUT_S, close_opened

if TYPE_CHECKING:
    from dispatch.transports.pulsar.client import PulsarClient
    from dispatch.transports.pulsar.transport import PulsarTransport

GATHERED_S = 0.15
"""Seconds after which an acknowledgement has been sent: pulsar-client groups them for 0.1 s; half of that as a margin."""


class Delivery(DurableMessage):
    """See :class:`dispatch.transports.base.DurableMessage`."""

    __slots__ = ("_consumer", "_durable", "_message", "backlog", "kept", "lag")

    def __init__(self, durable: DurableSubscription, consumer: Any, message: Any) -> None:
        self._durable = durable
        self._consumer = consumer
        self._message = message
        self.kept = False
        self.lag = time.time() - message.publish_timestamp() / 1000
        self.backlog = durable.in_backlog(message)

    def properties(self) -> dict[str, str]:
        properties: dict[str, str] = self._message.properties()
        return properties

    def data(self) -> bytes:
        data: bytes = self._message.data()
        return data

    def keep(self) -> None:
        self.kept = True

    def acknowledge(self) -> None:
        # The first ones come before the consumer is known here; after a reconnection, the new one can say it too.
        with contextlib.suppress(Exception):  # no connection: the broker will send the message again
            (self._durable.raw or self._consumer).acknowledge(self._message)

    def settle(self, then: Callable[[], object]) -> None:
        self.kept = True
        self.acknowledge()
        self._durable.settle(then)


class DurableSubscription:
    """The acknowledgement state of one durable subscription."""

    def __init__(self) -> None:
        self.raw: Any = None
        """Its consumer, once it is open."""
        self._life = 0
        self._known = asyncio.Event()
        self._link: PulsarClient | None = None
        self._last: Any = None
        self._unsure: deque[tuple[float, int, Callable[[], object]]] = deque()
        self._asking: asyncio.Task[None] | None = None

    def opening(self, link: PulsarClient) -> None:
        """Record that a consumer is being opened on ``link``; messages may arrive before it is known."""
        self.raw = self._last = None
        self._link = link
        self._life += 1
        self._known.clear()

    def opened(self, raw: Any, last: Any) -> None:
        """Record the consumer ``raw``; ``last`` is the last message of the topic at that time."""
        self.raw, self._last = raw, last
        self._known.set()

    def in_backlog(self, message: Any) -> bool:
        """Return whether ``message`` may be older than the consumer."""
        return self._last is None or bool(message.message_id() <= self._last)

    def deliver(self, handler: Handler, consumer: Any, message: Any) -> None:
        """Call ``handler`` with ``message``. A message whose handler raises is acknowledged too: a redelivery would fail
        again."""
        delivery = Delivery(self, consumer, message)
        try:
            handler(delivery)
        finally:
            if not delivery.kept:
                delivery.acknowledge()

    def settle(self, then: Callable[[], object]) -> None:
        """Call ``then`` when the broker has the acknowledgements sent so far."""
        loop = asyncio.get_running_loop()
        self._unsure.append((loop.time() + GATHERED_S, self._life, then))
        if self._asking is None:
            self._asking = loop.create_task(self._ask(loop))

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._unsure:
                await asyncio.sleep(self._unsure[0][0] - loop.time())
                now, life = loop.time(), self._life
                due = []
                while self._unsure and self._unsure[0][0] <= now:
                    due.append(self._unsure.popleft())
                sure = await self._answers()
                for _, acknowledged_in, then in due:
                    if sure and acknowledged_in == life == self._life:
                        loop.call_soon(then)
        finally:
            self._asking = None

    async def _answers(self) -> bool:
        if self.raw is None:  # messages came while it was being opened
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OPERATION_TIMEOUT_S):
                    await self._known.wait()
        return self.raw is not None and self._link is not None and await self._link.answers(self.raw)

    async def settled(self) -> None:
        """Wait until every acknowledgement is confirmed."""
        if self._asking is not None:
            await asyncio.wait([self._asking])

    def end(self) -> None:
        """Cancel all waits."""
        self.raw = self._link = None
        self._unsure.clear()
        if self._asking is not None:
            self._asking.cancel()


class PulsarSubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    __slots__ = ("_owner", "answer_late", "durable", "handler", "last", "mode", "name", "raw", "resumes", "topic")

    def __init__(
        self,
        owner: PulsarTransport,
        topic: str,
        handler: Handler,
        mode: Mode,
        name: str,
        answer_late: AnswerLate | None = None,
    ) -> None:
        self._owner = owner
        self.topic = topic
        self.handler: Handler | None = handler
        self.mode = mode
        self.name = name
        self.answer_late = answer_late
        self.raw: Any = None
        self.durable = DurableSubscription() if mode is Mode.SHARED and topic.startswith("persistent://") else None
        self.resumes = mode is Mode.FANOUT and topic.startswith("persistent://")
        """Whether messages published during a disconnection are delivered after it."""
        self.last: Any = None
        """The last message received, after which deliveries resume."""

    async def open(self, link: PulsarClient, generation: int) -> Any:
        """See :class:`dispatch.transports.pulsar.supervisor.TopicHandle`."""
        listener = partial(self._owner.on_message, self, generation)
        if self.durable is not None:
            self.durable.opening(link)
        raw = await link.consumer(self.topic, self.mode, self.name, listener, after=self.last)
        if self.durable is not None:
            try:
                self.durable.opened(raw, await link.last_message(raw))
            except BaseException:
                await asyncio.shield(close_opened(raw))  # without an owner it would consume messages
                raise
        return raw

    async def close(self) -> None:
        await self._owner.drop_subscription(self)
