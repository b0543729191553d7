"""Channels: the publishers and subscriptions for calls of a service, opened once, on first use.

For each service: a publisher to its request queue, a subscription to its response queue (where third-party services answer),
one to the dispatcher's own reply topic in the same namespace (which receives the packets of sessions with instances of
dispatch's service base, and their plain replies), and one to the topic on which these announce themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dispatch._internal.cancellation import cancel_and_wait, retrieve_error
from dispatch.errors import TransportError
from dispatch.messaging.endpoint.endpoint import Endpoint
from dispatch.messaging.flow.paced_publisher import PacedPublisher
from dispatch.messaging.flow.pacer import Pace
from dispatch.messaging.rpc.correlation import Correlator, read_properties
from dispatch.messaging.rpc.session_exchange import SessionExchange
from dispatch.messaging.wire.properties import Property
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.messaging.wire.topics import announcement_topic, hello_topic, reply_topic
from dispatch.protocol.session_table import SessionTable
from dispatch.protocol.wire.frames import is_packet
from dispatch.routing.channel import Channel
from dispatch.routing.counted_replies import CountedReplies
from dispatch.routing.discovery import Discovery
from dispatch.routing.shared_subscriptions import SharedSubscriptions
from dispatch.telemetry.call_observer import NULL_DISPATCHER, DispatcherObserver
from dispatch.transports import Handler, Message, Publisher, Transport
from dispatch.transports.errors import closed


class Channels:
    """The open channels of one dispatcher.

    Args:
        transport: the connection.
        exchange: correlates the replies of the plain exchange.
        sessions: the requests in sessions.
        name: the dispatcher's id, part of its reply topics' names, after the key of its secret.
        observer: of the dispatcher.
    """

    def __init__(
        self,
        transport: Transport,
        exchange: Correlator,
        sessions: SessionExchange,
        name: str,
        observer: DispatcherObserver = NULL_DISPATCHER,
    ) -> None:
        self._observer = observer
        self._transport = transport
        self._exchange = exchange
        self._sessions = sessions
        self._name = name
        self._address = f"{exchange.session.key}-{name}"
        self._endpoints: dict[str, Endpoint] = {}
        """By the dispatcher's own reply topic."""
        self._open: dict[tuple[str, str], Channel] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[Channel]] = {}
        self._subscriptions = SharedSubscriptions(transport, f"dispatch-{name}")
        self._closing: set[asyncio.Task[None]] = set()
        self._replies: dict[str, CountedReplies] = {}
        self.discovery = Discovery(exchange, self._open)
        sessions.on_session_event = self.discovery.on_session_event

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
        channel = self._open.get(key)
        if channel is not None:
            return channel
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
        keeps_requests, keeps_replies = (TopicName.parse(name).persistent for name in key)
        has_sessions = not (keeps_requests or keeps_replies)
        # Both ends listen before the first request can leave.
        replies = self._replies.setdefault(response_queue, CountedReplies(self._exchange))
        await self._subscriptions.acquire(key, response_queue, replies.on_message)
        endpoint = self._endpoint(response_queue) if has_sessions else None
        await self._subscriptions.acquire(key, reply_to, self._own_replies(reply_to, replies))
        topic = await self._transport.publisher(request_queue)
        publisher: Publisher = topic
        if not keeps_replies:
            pace = Pace(burst=math.inf) if keeps_requests else None
            publisher = PacedPublisher(publisher, pace, replies.window)
        channel = Channel(request_queue, publisher, reply_to, endpoint, self._exchange.now())
        channel.topic = topic
        if has_sessions:
            # Some brokers refuse topics that do not exist; the exchange is a plain one then.
            with contextlib.suppress(TransportError):
                announcements = announcement_topic(request_queue, response_queue)
                await self._subscriptions.acquire(key, announcements, self.discovery.on_announcement)
                channel.hello = await self._transport.publisher(hello_topic(request_queue))
        self._open[request_queue, response_queue] = channel
        if channel.hello is not None:
            self.discovery.seek(channel)
        return channel

    def _endpoint(self, response_queue: str) -> Endpoint:
        reply_to = reply_topic(response_queue, self._address)
        endpoint = self._endpoints.get(reply_to)
        if endpoint is None:
            secret = self._exchange.session
            table = SessionTable(
                self._address,
                secret.key,
                [reply_to],
                random_bytes=os.urandom,
                secret=secret.secret,
                max_message_bytes=lambda: self._transport.max_message_bytes,
            )
            endpoint = self._endpoints[reply_to] = Endpoint(
                self._transport,
                table,
                self._sessions.handle_events,
                path_inbox=partial(reply_topic, response_queue, self._address),
            )
            self._observer.observe_sessions(table)
        return endpoint

    def _own_replies(self, reply_to: str, replies: CountedReplies) -> Handler:
        """Return the handler of the dispatcher's own reply topic."""
        discovery, endpoints = self.discovery, self._endpoints

        def handle(message: Message) -> None:
            payload = message.data()
            if is_packet(payload):
                endpoint = endpoints.get(reply_to)
                if endpoint is not None:
                    endpoint.receive_packet(payload)
                return
            properties = read_properties(message)
            if Property.HERE in properties:
                discovery.on_here(properties)
            else:
                replies.receive(message, properties)

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
            self._close_channel(key)

    def _close_channel(self, key: tuple[str, str]) -> None:
        channel, endpoint = self._open.pop(key, None), None
        for topic in self._subscriptions.release(key):
            self._replies.pop(topic, None)
            endpoint = self._endpoints.pop(topic, None) or endpoint
        if channel is not None:
            channel.close()
            self.discovery.close_sessions(channel.instances)
        self._close_later(self._end(channel, endpoint))

    async def _end(self, channel: Channel | None, endpoint: Endpoint | None) -> None:
        if endpoint is not None:
            await self.discovery.close_handshakes(endpoint)
            await endpoint.close()
            self._observer.release_sessions(endpoint.table)
        if channel is not None:
            if channel.hello is not None:
                await channel.hello.close()
            await channel.publisher.close()

    def _close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.add_done_callback(retrieve_error)

    async def abandon(self) -> None:
        """Close the further connections of sessions; all else needs the event loop, which has ended."""
        for endpoint in self._endpoints.values():
            await endpoint.abandon()

    async def close(self) -> None:
        """Close all channels."""
        try:
            await cancel_and_wait(list(self._opening.values()))
            await self.discovery.close_handshakes()
            for endpoint in self._endpoints.values():
                await endpoint.close()
        finally:
            await self._subscriptions.close()
        for channel in self._open.values():
            channel.close()
            await channel.publisher.close()
            if channel.hello is not None:
                await channel.hello.close()
        if self._closing:
            await asyncio.wait(list(self._closing))
        self._open.clear()
