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
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from dispatch._internal import cancel_and_wait, retrieve_error, wait_shared
from dispatch.errors import TransportError
from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.flow import CountedReplies, Pace, PacedPublisher
from dispatch.messaging.plain import Correlator, read_properties
from dispatch.messaging.sessions import SessionExchange
from dispatch.messaging.wire import Property, TopicName, announcement_topic, hello_topic, is_local_queue, reply_topic
from dispatch.protocol.frames import is_packet
from dispatch.protocol.table import SessionTable
from dispatch.routing.discovery import Discovery
from dispatch.routing.instance import Channel, Instances, TopicChannel
from dispatch.telemetry.observers import NULL_DISPATCHER, DispatcherObserver
from dispatch.transports import Handler, Message, Mode, Publisher, Subscription, Transport
from dispatch.transports.errors import closed

# The subscriptions of a dispatcher. Channels share a subscription; it is closed with its last user.


class _Shared(msgspec.Struct, eq=False):
    opening: asyncio.Task[Subscription]
    users: set[Hashable] = set()


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
        try:
            await wait_shared(shared.opening)
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
        for topic, shared in [each for each in self._shared.items() if user in each[1].users]:
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
        self._address = f"{exchange.identity.key}-{name}"
        self._endpoints: dict[str, Endpoint] = {}
        """By the dispatcher's own reply topic."""
        self._open: dict[tuple[str, str], TopicChannel] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[TopicChannel]] = {}
        self._local: dict[str, Channel] = {}
        """Of services that this process has, by their request topics."""
        self._local_instances: WeakValueDictionary[str, Instances[Any]] = WeakValueDictionary()
        """The same; their sources own them."""
        self._shares: dict[str, Mapping[str, float]] = {}
        """By request topic; see :attr:`Instances.shares`."""
        self._subscriptions = SharedSubscriptions(transport, f"dispatch-{name}")
        self._closing: set[asyncio.Task[None]] = set()
        self._replies: dict[str, CountedReplies] = {}
        self.discovery = Discovery(exchange, sessions, self._open)
        sessions.on_session_event = self.discovery.on_session_event

    def get(self, key: tuple[str, str]) -> Channel | None:
        """Return the channel over a request topic and a response topic if it is open; one in this process always is."""
        if not is_local_queue(key[0]):
            return self._open.get(key)
        channel = self._local.get(key[0])
        if channel is None:
            channel = self._local[key[0]] = Channel(self._local_instances.get(key[0]) or Instances())
        return channel

    def set_local(self, request_queue: str, instances: Instances[Any]) -> None:
        """Let ``instances`` execute the tools of a service that this process has, in place of former ones."""
        self._local_instances[request_queue] = instances
        channel = self._local.get(request_queue)
        if channel is not None:
            channel.replace_instances(instances)

    def set_shares(self, request_queue: str, shares: Mapping[str, float]) -> None:
        """Set the shares of the instances of a service; empty: all have the same."""
        if shares:
            self._shares[request_queue] = shares
        else:
            self._shares.pop(request_queue, None)
        for (queue, _), channel in self._open.items():
            if queue == request_queue:
                channel.instances.share(shares)

    async def open(self, request_queue: str, response_queue: str, service: str = "") -> Channel:
        """Return the channel over these topics, opened if necessary for the service of this id. Concurrent callers share one
        opening, which the cancellation of one of them does not cancel.

        Raises:
            TransportError: the broker is out of reach, or refuses.
        """
        key = (request_queue, response_queue)
        channel = self.get(key)
        if channel is not None:
            return channel
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.create_task(self._make(*key, service))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
            opening.add_done_callback(retrieve_error)
        try:
            return await wait_shared(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                # close() has cancelled the opening; the caller was not cancelled.
                raise closed() from None
            raise

    async def _make(self, request_queue: str, response_queue: str, service: str) -> TopicChannel:
        key = request_queue, response_queue
        reply_to = reply_topic(response_queue, self._address)
        keeps_requests, keeps_replies = (TopicName.parse(name).persistent for name in key)
        has_sessions = not (keeps_requests or keeps_replies)
        # Both ends listen before the first request can leave.
        replies = self._replies.setdefault(response_queue, CountedReplies(self._exchange))
        await self._subscriptions.acquire(key, response_queue, replies.on_message)
        endpoint = self._endpoint(response_queue, reply_to) if has_sessions else None
        await self._subscriptions.acquire(key, reply_to, self._own_replies(reply_to, replies))
        topic = await self._transport.publisher(request_queue)
        publisher: Publisher = topic
        if not keeps_replies:
            pace = Pace(burst=math.inf) if keeps_requests else None
            publisher = PacedPublisher(publisher, pace, replies.window)
        exchange, now = self._exchange, self._exchange.now()
        channel = TopicChannel(
            request_queue, publisher, reply_to, endpoint, exchange, self.discovery, self._transport, now, service
        )
        channel.instances.share(self._shares.get(request_queue, {}))
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

    def _endpoint(self, response_queue: str, reply_to: str) -> Endpoint:
        endpoint = self._endpoints.get(reply_to)
        if endpoint is None:
            identity = self._exchange.identity
            table = SessionTable(
                self._address,
                identity.key,
                [reply_to],
                random_bytes=os.urandom,
                secret=identity.secret,
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

    def session_tables(self) -> list[SessionTable]:
        """Return the sessions with instances."""
        return [each.table for each in self._endpoints.values()]

    # -- the end ------------------------------------------------------------------------------------------------

    def close_unused(self, key: tuple[str, str], is_wanted: Callable[[], bool]) -> None:
        """Close, in the background, a channel that is no longer used, with its unshared subscriptions.

        Args:
            key: the request topic, and the response topic that belongs to it.
            is_wanted: whether the channel is used again; called at once, or when it has been opened.
        """
        opening = self._opening.get(key)
        if key[0] in self._local:
            if not is_wanted():
                self._local.pop(key[0]).close()
        elif opening is not None:
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
        task = asyncio.create_task(self._end(channel, endpoint))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.add_done_callback(retrieve_error)

    async def _end(self, channel: TopicChannel | None, endpoint: Endpoint | None) -> None:
        if endpoint is not None:
            await self.discovery.close_handshakes(endpoint)
            await endpoint.close()
            self._observer.release_sessions(endpoint.table)
        if channel is not None:
            await channel.publisher.close()
            if channel.hello is not None:
                await channel.hello.close()

    async def abandon(self) -> None:
        """Close the further connections of sessions; all else needs the event loop, which has ended."""
        for endpoint in self._endpoints.values():
            await endpoint.abandon()

    @property
    def local_instances(self) -> list[Any]:
        """What executes tools in this process."""
        return [instance for channel in self._local.values() for instance in channel.instances]

    async def close(self) -> None:
        """Close all channels."""
        for local in self._local.values():
            local.close()
        try:
            await cancel_and_wait(list(self._opening.values()))
            await self.discovery.close_handshakes()
            for endpoint in self._endpoints.values():
                await endpoint.close()
        finally:
            await self._subscriptions.close()
        for channel in self._open.values():
            channel.close()
            await self._end(channel, None)
        if self._closing:
            await asyncio.wait(list(self._closing))
        self._open.clear()
