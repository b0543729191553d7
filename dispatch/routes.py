"""Routes: what has to be open before a service can be called, opened once, on first use.

For each service: a publisher to its request queue, a subscription to its response queue (where others' services answer),
and one to a topic of our own in the same namespace (where ours answer, so that nobody else receives our replies).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import msgspec

from dispatch.acknowledger import Acknowledger
from dispatch.catalog import ServiceDescriptor
from dispatch.catalog.topics import TopicName
from dispatch.delivery import CREDIT_BYTES
from dispatch.exchange import Exchange
from dispatch.gate import Gate
from dispatch.messages import Property
from dispatch.outcome import TransportError
from dispatch.replies import control_prefix
from dispatch.transports import Handler, Message, Mode, Publisher, Subscription, Transport


class Route(msgspec.Struct, frozen=True):
    """The way to a service and back."""

    publisher: Publisher
    reply_to: str
    acknowledged: bool
    """Replies to ``reply_to`` are acknowledged."""


class Routes:
    """The open routes of one dispatcher.

    Args:
        transport: the connection.
        exchange: takes the replies.
        name: the dispatcher's id, part of its reply topics' names.
    """

    def __init__(self, transport: Transport, exchange: Exchange, name: str) -> None:
        self._transport = transport
        self._exchange = exchange
        self._name = name
        self._acknowledger = Acknowledger(transport)
        self._open: dict[tuple[str, str], Route] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[Route]] = {}
        self._subscriptions: dict[str, asyncio.Task[Subscription]] = {}

    def get(self, service: ServiceDescriptor) -> Route | None:
        """The route to ``service`` if it is open."""
        return self._open.get((service.request_queue, service.response_queue))

    async def open(self, service: ServiceDescriptor) -> Route:
        """The route to ``service``, opening what is not open yet. Callers that come together wait for one opening, and
        one that is cancelled takes nothing from the others.

        Raises:
            TransportError: the broker is out of reach, or refuses.
        """
        key = (service.request_queue, service.response_queue)
        route = self._open.get(key)
        if route is not None:
            return route
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.create_task(self._make(*key))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
            opening.add_done_callback(_seen)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                # Not its caller was cancelled, but the opening, by close.
                raise TransportError("closed", "The dispatcher was closed; nothing was sent.", sent=False) from None
            raise

    async def _make(self, request_queue: str, response_queue: str) -> Route:
        reply_to = str(TopicName.parse(response_queue).sibling(f"dispatch-reply-{self._name}"))
        # Both ends listen before the first request can leave.
        await self._subscribe(response_queue, self._exchange.on_message)
        await self._subscribe(reply_to, self._own_replies(control_prefix(reply_to)))
        publisher = await self._transport.publisher(request_queue)
        if not TopicName.parse(request_queue).persistent:
            # A persistent topic loses nothing, so that nothing is paid for it there.
            publisher = Gate(publisher, _ask_taken, CREDIT_BYTES)
        acknowledged = not TopicName.parse(reply_to).persistent
        route = self._open[request_queue, response_queue] = Route(publisher, reply_to, acknowledged)
        return route

    @property
    def credit(self) -> int:
        """Reply bytes that an instance may have on their way to this dispatcher."""
        return self._acknowledger.credit

    def _own_replies(self, prefix: str) -> Handler:
        """The handler of a reply topic of our own: takes the reply, and acknowledges where that is asked for."""
        receive, acknowledger = self._exchange.receive, self._acknowledger

        def handle(message: Message) -> None:
            properties = receive(message)
            token = properties.get(Property.ACK)
            if token is not None:
                acknowledger.wanted(prefix, properties.get(Property.CONTROL), token)

        return handle

    async def _subscribe(self, topic: str, handler: Handler) -> None:
        task = self._subscriptions.get(topic)
        if task is None:
            task = self._subscriptions[topic] = asyncio.create_task(
                self._transport.subscribe(topic, handler, mode=Mode.FANOUT, name=f"dispatch-{self._name}")
            )
            task.add_done_callback(_seen)
        try:
            await asyncio.shield(task)
        except Exception:
            if self._subscriptions.get(topic) is task:
                del self._subscriptions[topic]  # the next call may find the broker back
            raise

    async def close(self) -> None:
        """Close everything."""
        openings = list(self._opening.values())
        for opening in openings:
            opening.cancel()
        subscriptions = list(self._subscriptions.values())
        if openings or subscriptions:
            await asyncio.wait([*openings, *subscriptions])
        for task in subscriptions:
            if not task.cancelled() and task.exception() is None:
                with contextlib.suppress(TransportError):
                    await task.result().close()
        for route in self._open.values():
            await route.publisher.close()
        await self._acknowledger.close()
        self._subscriptions.clear()
        self._open.clear()


def _ask_taken(_sequence: int) -> Mapping[str, str]:
    """Our services say at once that they have a request with this; others do not know it and answer as ever."""
    return {Property.ACK: "1"}


def _seen(task: asyncio.Task[object]) -> None:
    """Look at a task's error, which every waiter may have stopped waiting for."""
    if not task.cancelled():
        task.exception()
