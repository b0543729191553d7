"""A service instance says that it is here, when it comes, to dispatchers that ask, and when it leaves: on a topic beside the
one it answers on.

Others' services and clients never see that topic, and a broker drops what is said where nobody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from dispatch.messages import Feature, Property, Refusal
from dispatch.outcome import TransportError
from dispatch.owntopics import hello_topic
from dispatch.replies import ReplyRouter
from dispatch.transports import Message, Mode, Publisher, Subscription, Transport

SAID_AT_S = (0.0, 0.1, 0.5)
"""When that is said after coming: each may be lost."""


class Presence:
    """Answers ``hello`` for one instance.

    Args:
        transport: the service's connection.
        replies: sends the answers.
        request_queue, response_queue: the topics of the service.
        instance: the instance's id.
        incarnation: which life of it this is.
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
        self._topic = hello_topic(request_queue, response_queue)
        self._here = {
            Property.HERE: request_queue,
            Property.INSTANCE: instance,
            Property.INCARNATION: incarnation,
            Property.CONTROL: replies.control,
            Property.FEATURES: ",".join((Feature.REPAIR, Feature.PARTS, Feature.CANCEL)),
        }
        self._subscription: Subscription | None = None
        self._publisher: Publisher | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._leaving = False

    async def start(self) -> None:
        """Listen for whoever asks, and say that it is here.

        Raises:
            TransportError: the topic cannot be opened.
        """
        self._subscription = await self._transport.subscribe(
            self._topic, self._on_hello, mode=Mode.FANOUT, name="dispatch-hello"
        )
        self._publisher = await self._transport.publisher(self._topic)
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(delay, self._say, self._here) for delay in SAID_AT_S]

    def _say(self, properties: Mapping[str, str]) -> None:
        assert self._publisher is not None
        with contextlib.suppress(TransportError):  # whoever needs to know will ask
            self._publisher.publish(b"", properties, flow=self._topic, on_failure=_unheard)

    def _on_hello(self, message: Message) -> None:
        properties: Mapping[str, str] = message.properties()
        if self._leaving or properties.get(Property.HELLO) != self._request_queue:
            return
        if self._replies.own_topic(properties):
            self._replies.send({Property.REPLY_TO: properties[Property.REPLY_TO]}, b"", self._here)

    def leave(self) -> None:
        """Tell everyone to send nothing new."""
        if not self._leaving:
            self._leaving = True
            self._forget_timers()
            if self._publisher is not None:
                self._say({**self._here, Property.REFUSED: Refusal.DRAINING})

    def _forget_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def close(self) -> None:
        """Listen no more."""
        self._leaving = True
        self._forget_timers()
        if self._subscription is not None:
            await self._subscription.close()
        if self._publisher is not None:
            await self._publisher.close()


def _unheard(_error: TransportError) -> None:
    """Whoever needs to know will ask."""
