"""An instance announces itself: when it starts, to dispatchers that ask, and when it begins to drain.

Dispatchers ask on the hello topic, in the request namespace. The instance answers on their reply topics, and announces
itself on a topic in the response namespace. A dispatcher believes an announcement once a session with the instance is open.
Third-party peers never see these topics; a broker drops messages to a non-persistent topic without a consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from dispatch.errors import TransportError
from dispatch.messaging.wire.properties import Feature, Property, Refusal
from dispatch.messaging.wire.topics import announcement_topic, hello_topic
from dispatch.serving.plain.reply_router import ReplyRouter
from dispatch.transports import Message, Mode, Publisher, Subscription, Transport

SAID_AT_S = (0.0, 0.1, 0.5)
"""Seconds after the start at which an instance announces itself: each announcement may be lost."""
LINGER_S = 0.1
"""Seconds for which a draining instance still refuses requests: many times the delay of its announcement."""


class Announcer:
    """Announces one instance, and answers ``hello``.

    Args:
        transport: the service's connection.
        replies: sends the answers.
        request_queue, response_queue: the topics of the service.
        instance: the instance's id.
        incarnation: the random name of this run of it.
    """

    def __init__(
        self,
        transport: Transport,
        replies: ReplyRouter,
        request_queue: str,
        response_queue: str,
        *,
        instance: str,
        incarnation: str,
    ) -> None:
        self._transport = transport
        self._replies = replies
        self._request_queue = request_queue
        self._hello_topic = hello_topic(request_queue)
        self._announcements = announcement_topic(request_queue, response_queue)
        self._here = {
            Property.HERE: request_queue,
            Property.INSTANCE: instance,
            Property.INCARNATION: incarnation,
            Property.FEATURES: Feature.SESSION,
        }
        self._subscription: Subscription | None = None
        self._publisher: Publisher | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._leaving = False
        self._left_at = 0.0

    async def start(self) -> None:
        """Listen for hellos, and announce the instance.

        Raises:
            TransportError: a topic cannot be opened.
        """
        self._subscription = await self._transport.subscribe(
            self._hello_topic, self._on_hello, mode=Mode.FANOUT, name="dispatch-hello"
        )
        self._publisher = await self._transport.publisher(self._announcements)
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(delay, self._say, self._here) for delay in SAID_AT_S]

    def _say(self, properties: Mapping[str, str]) -> None:
        assert self._publisher is not None
        with contextlib.suppress(TransportError):  # dispatchers send hellos, too
            self._publisher.publish(b"", properties, flow=self._announcements, on_failure=_unheard)

    def _on_hello(self, message: Message) -> None:
        properties: Mapping[str, str] = message.properties()
        if self._leaving or properties.get(Property.HELLO) != self._request_queue:
            return
        if self._replies.own_topic(properties):
            self._replies.send(properties, b"", self._here)

    def leave(self) -> None:
        """Announce to dispatchers that the instance accepts no further requests."""
        if not self._leaving:
            self._leaving = True
            self._left_at = asyncio.get_running_loop().time()
            self._forget_timers()
            if self._publisher is not None:
                self._say({**self._here, Property.REFUSED: Refusal.DRAINING})

    def _forget_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def close(self) -> None:
        """Close the topics, :data:`LINGER_S` after :meth:`leave`."""
        self._leaving = True
        self._forget_timers()
        if self._publisher is not None:
            await asyncio.sleep(self._left_at + LINGER_S - asyncio.get_running_loop().time())
        if self._subscription is not None:
            await self._subscription.close()
        if self._publisher is not None:
            await self._publisher.close()


def _unheard(_error: TransportError) -> None:
    """Ignore an announcement that could not be sent: dispatchers send hellos, too."""
