"""Channels: the publishers and subscriptions for calls of a service, opened once, on first use.

For each service: a publisher to its request queue, a subscription to its response queue (where third-party services answer),
one to the dispatcher's own reply topic in the same namespace (where instances of dispatch's service base answer), and one to
the topic on which these announce themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dispatch._internal.cancellation import cancel_and_wait, retrieve_error
from dispatch.errors import TransportError
from dispatch.messaging.flow.ack_sender import AckSender
from dispatch.messaging.flow.paced_publisher import PacedPublisher
from dispatch.messaging.rpc.correlation import Correlator, read_properties
from dispatch.messaging.wire.properties import Property
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.messaging.wire.topics import announcement_topic, hello_topic, instance_prefix, reply_topic
from dispatch.routing.channel import Channel, limit_flow
from dispatch.routing.discovery import Discovery
from dispatch.routing.instance import Instance
from dispatch.routing.reply_connections import ReplyConnection, ReplyConnections
from dispatch.routing.shared_subscriptions import SharedSubscriptions
from dispatch.routing.third_party_reply_sizes import ThirdPartyReplySizes
from dispatch.transports import Handler, Message, Publisher, Transport
from dispatch.transports.errors import closed


class Channels:
    """The open channels of one dispatcher.

    Args:
        transport: the connection.
        exchange: correlates the replies.
        name: the dispatcher's id, part of its reply topics' names, after the key of its session.
    """

    def __init__(self, transport: Transport, exchange: Correlator, name: str) -> None:
        self._transport = transport
        self._exchange = exchange
        self._name = name
        self._address = f"{exchange.session.key}-{name}"
        self._acknowledger = AckSender(transport, exchange.session.secret)
        self._prefixes: dict[str, tuple[str, ...]] = {}
        self._open: dict[tuple[str, str], Channel] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[Channel]] = {}
        self._subscriptions = SharedSubscriptions(transport, f"dispatch-{name}")
        self._closing: set[asyncio.Task[None]] = set()
        self._lanes: dict[str, ReplyConnections] = {}
        self._strangers: dict[str, ThirdPartyReplySizes] = {}
        self.discovery = Discovery(transport, exchange, self._open, self._close_later)

    def get(self, key: tuple[str, str]) -> Channel | None:
        """Return the channel over a request topic and a response topic if it is open."""
        return self._open.get(key)

    async def open(self, request_queue: str, response_queue: str) -> Channel:
        """Return the channel over these topics, opened if necessary. Concurrent callers share one opening, which the
        cancellation of one of them does not cancel.

        Raises:
            TransportError: the broker is out of reach, or refuses.
        """
        key = (request_queue, response_queue)
        route = self._open.get(key)
        if route is not None:
            return route
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.create_task(self._make(*key))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
            opening.add_done_callback(retrieve_error)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                # close() has cancelled the opening; the caller was not cancelled.
                raise closed() from None
            raise

    async def _make(self, request_queue: str, response_queue: str) -> Channel:
        key = request_queue, response_queue
        reply_to = reply_topic(response_queue, self._address)
        prefixes = self._prefixes.get(reply_to, ())
        if (prefix := instance_prefix(request_queue)) not in prefixes:
            self._prefixes[reply_to] = (*prefixes, prefix)
        # Both ends listen before the first request can leave.
        strangers = self._strangers.setdefault(response_queue, ThirdPartyReplySizes(self._exchange))
        await self._subscriptions.acquire(key, response_queue, strangers.on_message)
        lanes = self._lanes.get(reply_to)
        if lanes is None:
            lanes = ReplyConnections(
                ReplyConnection(reply_to, self._transport), partial(self._open_lane, response_queue)
            )
            lanes = self._lanes.setdefault(reply_to, lanes)
        await self._subscriptions.acquire(key, reply_to, self._own_replies(reply_to, lanes))
        publisher: Publisher = await self._transport.publisher(request_queue)
        if not TopicName.parse(request_queue).persistent:
            # A persistent topic loses no messages and needs no retransmission.
            publisher = limit_flow(publisher)
            if not TopicName.parse(response_queue).persistent:
                publisher = PacedPublisher(publisher, brings=strangers.answer_bytes)
        acknowledged = not TopicName.parse(reply_to).persistent
        route = Channel(request_queue, publisher, lanes, acknowledged=acknowledged)
        if acknowledged and not TopicName.parse(request_queue).persistent:
            # Some brokers refuse topics that do not exist; the exchange is a plain one then.
            with contextlib.suppress(TransportError):
                announcements = announcement_topic(request_queue, response_queue)
                await self._subscriptions.acquire(key, announcements, self.discovery.on_announcement)
                route.hello = await self._transport.publisher(hello_topic(request_queue))
        self._open[request_queue, response_queue] = route
        if route.hello is not None:
            await self.discovery.await_first(route)
        return route

    async def _open_lane(self, response_queue: str, number: int) -> ReplyConnection:
        topic = reply_topic(response_queue, self._address, number)
        first = reply_topic(response_queue, self._address)
        lanes = self._lanes.get(first)
        if lanes is None:
            raise closed()
        await self._subscriptions.acquire(lanes, topic, self._own_replies(first, lanes), number)
        return ReplyConnection(topic, await self._subscriptions.connection(number))

    # -- replies ------------------------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Unacknowledged reply bytes that an instance may have in flight to this dispatcher."""
        return self._acknowledger.credit

    def carried(self, instance: Instance) -> str | None:
        """Return the acknowledgements that a request to ``instance`` carries as ``acked``; None if there are none."""
        return self._acknowledger.carried(instance.topic) if instance.publisher.open else None

    def _own_replies(self, first: str, lanes: ReplyConnections) -> Handler:
        """Return the handler of a reply topic: acknowledges on request, then handles the reply. In this order, because
        decoding a large reply takes as long as a round trip to the service."""
        exchange, acknowledger, prefixes = self._exchange, self._acknowledger, self._prefixes
        discovery = self.discovery

        def handle(message: Message) -> None:
            properties = read_properties(message)
            token = properties.get(Property.ACK)
            if token is not None:
                acknowledger.wanted(prefixes.get(first, ()), properties.get(Property.CONTROL), token)
            if Property.HERE in properties:
                discovery.on_here(properties)
                return
            before = exchange.received_bytes
            exchange.receive(message, properties)
            lanes.record_reply(exchange.received_bytes - before)

        return handle

    # -- the end ------------------------------------------------------------------------------------------------

    def close_unused(self, key: tuple[str, str], is_wanted: Callable[[], bool]) -> None:
        """Close, in the background, a channel that is no longer used, with its unshared subscriptions.

        Args:
            key: the request topic, and the response topic that belongs to it.
            is_wanted: whether the channel is used again; called at once, or when it has been opened.
        """
        opening = self._opening.get(key)
        if opening is not None:
            opening.add_done_callback(lambda _: self.close_unused(key, is_wanted))
        elif not is_wanted():
            self._close_route(key)

    def _close_route(self, key: tuple[str, str]) -> None:
        route, lanes = self._open.pop(key, None), None
        for topic in self._subscriptions.release(key):
            self._strangers.pop(topic, None)
            lanes = self._lanes.pop(topic, None) or lanes
            self._prefixes.pop(topic, None)
        self._close_later(self._end(route, lanes))

    async def _end(self, route: Channel | None, lanes: ReplyConnections | None) -> None:
        if lanes is not None:
            await lanes.close()
            self._subscriptions.release(lanes)
        if route is None:
            return
        if self.discovery.verifying:  # one of these instances may be about to become known
            await asyncio.wait(list(self.discovery.verifying.values()))
        known = {instance.topic for other in self._open.values() for instance in other.instances}
        for instance in (*route.instances, *self.discovery.retired):
            if instance.topic not in known:
                self._acknowledger.forget(instance.topic)
        self.discovery.close_retired()
        for instance in route.instances:
            await instance.publisher.close()
        if route.hello is not None:
            await route.hello.close()
        await route.publisher.close()

    def _close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.add_done_callback(retrieve_error)

    async def abandon(self) -> None:
        """Close the further connections; the rest needs the event loop, which has ended."""
        await self._subscriptions.abandon()

    async def close(self) -> None:
        """Close all channels, and the further connections even if cancelled meanwhile."""
        for route in self._open.values():
            for instance in route.instances:
                instance.say_goodbye(
                    {Property.ID: self._exchange.new_id(), Property.SESSION: self._exchange.session.secret}
                )
        try:
            for lanes in self._lanes.values():
                await lanes.close()
            await cancel_and_wait([*self._opening.values(), *self.discovery.verifying.values()])
        finally:
            await self._subscriptions.close()
        for route in self._open.values():
            await route.publisher.close()
            if route.hello is not None:
                await route.hello.close()
            for instance in route.instances:
                await instance.publisher.close()
        for instance in self.discovery.retired:
            await instance.publisher.close()
        self.discovery.retired.clear()
        if self._closing:
            await asyncio.wait(list(self._closing))
        await self._acknowledger.close()
        self._open.clear()
