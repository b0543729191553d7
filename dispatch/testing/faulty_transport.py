"""A transport that does to messages what networks, brokers and strange peers do; seeded, so that a run can be repeated.

Wraps any transport and works in both directions: on what is published, and on what arrives at the subscriptions' handlers.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable

from dispatch.testing.delay_queue import Holding, Way
from dispatch.testing.faults import Direction, FaultInjector, Faults
from dispatch.testing.faulty_publisher import FaultyPublisher
from dispatch.testing.faulty_subscription import FaultySubscription
from dispatch.transports import Handler, Mode, Publisher, Subscription, Transport
from dispatch.transports.base import RECONNECT_WAIT_S


class FaultyTransport:
    """A connection with faults. See :class:`dispatch.transports.base.Transport`.

    Args:
        inner: the transport, not yet started.
        faults: for each message the first that is for it; or a :class:`FaultInjector`, which others may share.
    """

    def __init__(self, inner: Transport, *faults: Faults | FaultInjector) -> None:
        self.inner = inner
        self.injector = FaultInjector.of(faults)
        self.closed = False
        self.late_handler_errors = 0
        """Handlers that raised on what had been held back."""
        self._number = self.injector.connection(self)
        self._now: Callable[[], float] = time.monotonic
        self._gone_from = self._gone_until = -math.inf
        self._gone_in_epoch = -1
        self._outgoing = Holding()
        self._incoming = Holding()

    # -- as any transport ---------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def max_message_bytes(self) -> int:
        return self.inner.max_message_bytes

    @property
    def connected(self) -> bool:
        return self.inner.connected and not self.gone

    async def await_connection(self, deadline: float) -> bool:
        ends = min(self._gone_until, self._gone_from + RECONNECT_WAIT_S, deadline)
        if self.gone and (wait := ends - self._now()) > 0:
            await asyncio.sleep(wait)
        return not self.gone and await self.inner.await_connection(deadline)

    def was_disconnected_since(self, instant: float) -> bool:
        # When a change of faults brought the connection back, the moment is not known.
        until = self._gone_until if self._gone_in_epoch == self.injector.epoch else self._gone_from
        return until >= instant or self.inner.was_disconnected_since(instant)

    def another(self) -> FaultyTransport:
        return FaultyTransport(self.inner.another(), self.injector)

    @property
    def handler_errors(self) -> int:
        """Handlers that raised, where the inner transport counts them."""
        return getattr(self.inner, "handler_errors", 0) + self.late_handler_errors

    async def start(self) -> None:
        await self.inner.start()
        self.closed = False

    async def publisher(self, topic: str) -> Publisher:
        return FaultyPublisher(self, await self.inner.publisher(topic))

    async def subscribe(self, topic: str, handler: Handler, *, mode: Mode, name: str) -> Subscription:
        subscription = FaultySubscription(self, topic, handler)
        subscription.inner = await self.inner.subscribe(topic, subscription.arrived, mode=mode, name=name)
        return subscription

    async def flush(self) -> None:
        await self._outgoing.emptied()
        await self.inner.flush()

    async def close(self) -> None:
        self.closed = True
        self._outgoing.clear()
        self._incoming.clear()
        await self.inner.close()

    # -- faults -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> Counter[str]:
        """How often each fault happened: see :attr:`FaultInjector.count`."""
        return self.injector.count

    @property
    def gone(self) -> bool:
        """The connection is gone at the moment."""
        if self._gone_in_epoch != self.injector.epoch:  # a change of faults brings it back
            return False
        return self._now() < self._gone_until

    def disconnect(self, seconds: float) -> None:
        """Interrupt the connection for ``seconds``: publishing fails, and no message arrives. See
        :meth:`FaultInjector.disconnect` for all connections of an injector."""
        self._now = asyncio.get_running_loop().time  # a scrape asks on a thread of its own
        if not self.gone:
            self._gone_from = self._now()
        self._gone_until = self._now() + seconds
        self._gone_in_epoch = self.injector.epoch

    def heal(self) -> None:
        """No more faults, on no connection that has the same injector."""
        self.injector.heal()

    def way(self, direction: Direction, topic: str) -> Way:
        """For its publishers and subscriptions."""
        holding = self._outgoing if direction == "out" else self._incoming
        return Way(self.injector, self._number, holding, direction, topic)
