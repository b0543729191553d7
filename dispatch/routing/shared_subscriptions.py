"""The subscriptions of a dispatcher, on its connection and on further ones. Channels share a subscription; it is closed with
its last user.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable
from functools import partial

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.errors import TransportError
from dispatch.transports import Handler, Mode, Subscription, Transport

Key = tuple[int, str]
"""The number of the connection, and the topic."""


class _Shared:
    __slots__ = ("opening", "users")

    def __init__(self, opening: asyncio.Task[Subscription]) -> None:
        self.opening = opening
        self.users: set[Hashable] = set()


class SharedSubscriptions:
    """Opens subscriptions and counts their users.

    Args:
        transport: the connection with the number 0; further ones are opened on demand and stay open.
        name: of the subscriptions at the broker.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name
        self._further: dict[int, asyncio.Task[Transport]] = {}
        self._shared: dict[Key, _Shared] = {}
        self._keys: dict[Hashable, dict[Key, None]] = {}
        """The subscriptions of each user."""
        self._closing: dict[Key, asyncio.Task[None]] = {}

    async def connection(self, number: int) -> Transport:
        """Return the connection with this number.

        Raises:
            TransportError: it cannot be opened.
        """
        if number == 0:
            return self._transport
        opening = self._further.get(number)
        if opening is None:
            opening = self._further[number] = asyncio.create_task(_started(self._transport.another()))
        try:
            return await asyncio.shield(opening)
        except TransportError:
            if self._further.get(number) is opening:
                del self._further[number]
            raise

    async def acquire(self, user: Hashable, topic: str, handler: Handler, number: int = 0) -> None:
        """Subscribe to ``topic`` for ``user``; returns when the subscription is open.

        Args:
            handler: of a new subscription; an open one keeps its own.
            number: of the connection.

        Raises:
            TransportError: it cannot be opened; the next call tries again.
        """
        key = number, topic
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(asyncio.create_task(self._open(key, handler)))
            shared.opening.add_done_callback(_retrieve)
        shared.users.add(user)
        self._keys.setdefault(user, {})[key] = None
        try:
            await asyncio.shield(shared.opening)
        except Exception:
            if self._shared.get(key) is shared:
                del self._shared[key]
            raise

    async def _open(self, key: Key, handler: Handler) -> Subscription:
        number, topic = key
        connection = await self.connection(number)
        if key in self._closing:
            await asyncio.wait([self._closing[key]])  # a broker refuses a second exclusive consumer of that name
        name = f"{self._name}-{number}" if number else self._name
        return await connection.subscribe(topic, handler, mode=Mode.FANOUT, name=name)

    def release(self, user: Hashable) -> list[str]:
        """Remove ``user`` and close subscriptions without users in the background. Return the topics of those on connection
        0."""
        unused = []
        for key in self._keys.pop(user, ()):
            shared = self._shared.get(key)
            if shared is None:  # it could not be opened
                continue
            shared.users.discard(user)
            if not shared.users:
                unused.append(key)
                del self._shared[key]
                closing = self._closing[key] = asyncio.create_task(_close(shared.opening))
                closing.add_done_callback(partial(self._closed, key))
        return [topic for number, topic in unused if number == 0]

    def _closed(self, key: Key, closing: asyncio.Task[None]) -> None:
        _retrieve(closing)
        if self._closing.get(key) is closing:
            del self._closing[key]

    async def abandon(self) -> None:
        """Close the further connections, on another event loop than that of their tasks."""
        further, self._further = self._further, {}
        for starting in further.values():
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                await starting.result().close()

    async def close(self) -> None:
        """Close all subscriptions, and the further connections even if cancelled meanwhile."""
        async with contextlib.AsyncExitStack() as stack:
            for starting in self._further.values():
                stack.push_async_callback(_close_connection, starting)
            shared = list(self._shared.values())
            tasks: list[asyncio.Task[Subscription] | asyncio.Task[None]] = [each.opening for each in shared]
            tasks += self._closing.values()
            if tasks:
                await asyncio.wait(tasks)
            for each in shared:
                await _close(each.opening)
            self._shared.clear()
        self._further.clear()


async def _started(transport: Transport) -> Transport:
    await transport.start()
    return transport


async def _close_connection(starting: asyncio.Task[Transport]) -> None:
    await cancel_and_wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        with contextlib.suppress(TransportError):
            await starting.result().close()


async def _close(opening: asyncio.Task[Subscription]) -> None:
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        with contextlib.suppress(TransportError):
            await opening.result().close()


def _retrieve(task: asyncio.Task[Subscription] | asyncio.Task[None]) -> None:
    """Mark the exception of ``task`` as retrieved: its caller may have been cancelled."""
    if not task.cancelled():
        task.exception()
