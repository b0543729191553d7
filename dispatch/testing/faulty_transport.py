"""A transport with injected faults of networks, brokers and peers; seeded, so that a run can be repeated.

It wraps any transport and acts in both directions: on published messages, and on those that arrive at subscriptions.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection

from dispatch.testing.delay_queue import DelayQueue
from dispatch.testing.faults import Direction, FaultInjector, Faults
from dispatch.testing.faulty_publisher import FaultyPublisher
from dispatch.testing.faulty_subscription import FaultySubscription
from dispatch.testing.message_path import MessagePath
from dispatch.transports import AnswerLate, Handler, Mode, Subscription, TopicPublisher, Transport
from dispatch.transports.base import RECONNECT_WAIT_S


class FaultyTransport:
    """A connection with faults. See :class:`dispatch.transports.base.Transport`.

    Args:
        inner: the transport, not yet started.
        faults: the first one that applies to a message decides; or a :class:`FaultInjector`, which connections may share.
    """

    def __init__(self, inner: Transport, *faults: Faults | FaultInjector) -> None:
        self.inner = inner
        self.injector = FaultInjector.of(faults)
        self.is_closed = False
        self.late_handler_errors = 0
        """Errors of handlers on delayed messages."""
        self._number = self.injector.add_connection(self)
        self._now: Callable[[], float] = time.monotonic
        self._disconnected_from = self._disconnected_until = -math.inf
        self._disconnected_in_epoch = -1
        self._outgoing = DelayQueue()
        self._incoming = DelayQueue()

    # -- as any transport ---------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def max_message_bytes(self) -> int:
        return self.inner.max_message_bytes

    @property
    def connected(self) -> bool:
        return self.inner.connected and not self.is_disconnected

    async def await_connection(self, deadline: float) -> bool:
        ends = min(self._disconnected_until, self._disconnected_from + RECONNECT_WAIT_S, deadline)
        if self.is_disconnected and (wait := ends - self._now()) > 0:
            await asyncio.sleep(wait + 1e-6)  # a sleep may end a rounding error early
        return not self.is_disconnected and await self.inner.await_connection(deadline)

    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool:
        # The time at which a change of the faults restored the connection is not known.
        until = (
            self._disconnected_until if self._disconnected_in_epoch == self.injector.epoch else self._disconnected_from
        )
        return until >= instant or self.inner.was_disconnected_since(instant)

    def another(self) -> FaultyTransport:
        return FaultyTransport(self.inner.another(), self.injector)

    @property
    def handler_errors(self) -> int:
        """Errors of handlers, including those that the inner transport counts."""
        return getattr(self.inner, "handler_errors", 0) + self.late_handler_errors

    async def start(self) -> None:
        await self.inner.start()
        self.is_closed = False

    def has_subscriber(self, topic: str) -> bool:
        return self.inner.has_subscriber(topic)

    async def publisher(self, topic: str) -> TopicPublisher:
        return FaultyPublisher(self, await self.inner.publisher(topic))

    async def subscribe(
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> Subscription:
        # ``answer_late`` is not passed on: its answers would bypass the faults.
        subscription = FaultySubscription(self, topic, handler)
        subscription.inner = await self.inner.subscribe(topic, subscription.on_message, mode=mode, name=name)
        return subscription

    async def flush(self) -> None:
        await self._outgoing.wait_empty()
        await self.inner.flush()

    async def close(self) -> None:
        self.is_closed = True
        self._outgoing.clear()
        self._incoming.clear()
        await self.inner.close()

    # -- faults -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> Counter[str]:
        """Number of messages by direction and fault: see :attr:`FaultInjector.count`."""
        return self.injector.count

    @property
    def is_disconnected(self) -> bool:
        """The connection is interrupted now."""
        if self._disconnected_in_epoch != self.injector.epoch:  # a change of the faults restores it
            return False
        return self._now() < self._disconnected_until

    def disconnect(self, seconds: float) -> None:
        """Interrupt the connection for ``seconds``: publishing fails, and no message arrives. See
        :meth:`FaultInjector.disconnect` for all connections of an injector."""
        self._now = (
            asyncio.get_running_loop().time
        )  # read before: scrapes read `is_disconnected` on threads without a loop
        if not self.is_disconnected:
            self._disconnected_from = self._now()
        self._disconnected_until = self._now() + seconds
        self._disconnected_in_epoch = self.injector.epoch

    def heal(self) -> None:
        """Remove all faults, on all connections that share the injector."""
        self.injector.heal()

    def message_path(self, direction: Direction, topic: str) -> MessagePath:
        """Return the path of the messages of ``topic`` in that direction."""
        queue = self._outgoing if direction == "out" else self._incoming
        return MessagePath(self.injector, self._number, queue, direction, topic)
