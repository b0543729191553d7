"""The subscriptions of a dispatcher. Channels share a subscription; it is closed with its last user."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable
from functools import partial

from dispatch._internal.cancellation import retrieve_error
from dispatch.errors import TransportError
from dispatch.transports import Handler, Mode, Subscription, Transport


class _Shared:
    __slots__ = ("opening", "users")

    def __init__(self, opening: asyncio.Task[Subscription]) -> None:
        self.opening = opening
        self.users: set[Hashable] = set()


class SharedSubscriptions:
    """Opens subscriptions and counts their users.

    Args:
        transport: the connection.
        name: of the subscriptions at the broker.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name
        self._shared: dict[str, _Shared] = {}
        """By topic."""
        self._topics: dict[Hashable, dict[str, None]] = {}
        """The topics of each user."""
        self._closing: dict[str, asyncio.Task[None]] = {}

    async def acquire(self, user: Hashable, topic: str, handler: Handler) -> None:
        """Subscribe to ``topic`` for ``user``; returns when the subscription is open.

        Args:
            handler: of a new subscription; an open one keeps its own.

        Raises:
            TransportError: it cannot be opened; the next call tries again.
        """
        shared = self._shared.get(topic)
        if shared is None:
            shared = self._shared[topic] = _Shared(asyncio.create_task(self._open(topic, handler)))
            shared.opening.add_done_callback(retrieve_error)
        shared.users.add(user)
        self._topics.setdefault(user, {})[topic] = None
        try:
            await asyncio.shield(shared.opening)
        except Exception:
            if self._shared.get(topic) is shared:
                del self._shared[topic]
            raise

    async def _open(self, topic: str, handler: Handler) -> Subscription:
        if topic in self._closing:
            await asyncio.wait([self._closing[topic]])  # a broker refuses a second exclusive consumer of that name
        return await self._transport.subscribe(topic, handler, mode=Mode.FANOUT, name=self._name)

    def release(self, user: Hashable) -> list[str]:
        """Remove ``user`` and close subscriptions without users in the background. Return the topics of those."""
        unused = []
        for topic in self._topics.pop(user, ()):
            shared = self._shared.get(topic)
            if shared is None:  # it could not be opened
                continue
            shared.users.discard(user)
            if not shared.users:
                unused.append(topic)
                del self._shared[topic]
                closing = self._closing[topic] = asyncio.create_task(_close(shared.opening))
                closing.add_done_callback(partial(self._closed, topic))
        return unused

    def _closed(self, topic: str, closing: asyncio.Task[None]) -> None:
        retrieve_error(closing)
        if self._closing.get(topic) is closing:
            del self._closing[topic]

    async def close(self) -> None:
        """Close all subscriptions."""
        shared = list(self._shared.values())
        tasks: list[asyncio.Task[Subscription] | asyncio.Task[None]] = [each.opening for each in shared]
        tasks += self._closing.values()
        if tasks:
            await asyncio.wait(tasks)
        for each in shared:
            await _close(each.opening)
        self._shared.clear()


async def _close(opening: asyncio.Task[Subscription]) -> None:
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        with contextlib.suppress(TransportError):
            await opening.result().close()
