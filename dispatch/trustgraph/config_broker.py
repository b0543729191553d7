"""The broker as sources see it, over the connection of a dispatcher."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from dispatch.catalog.sources.broker import BrokerSubscription, OnMessage
from dispatch.errors import TransportError
from dispatch.messaging.rpc.correlation import read_properties
from dispatch.messaging.wire.properties import Property
from dispatch.transports import Message, Mode, Publisher, Subscription, Transport
from dispatch.transports.errors import closed


class ConfigBroker:
    """Implements :class:`dispatch.catalog.sources.broker.Broker`. Topics are opened on first use.

    Args:
        transport: a started connection.
        name: of the dispatcher; part of the names of its subscriptions.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = f"dispatch-config-{name}"
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._opening = asyncio.Lock()
        self._publishers: dict[str, Publisher] = {}
        self._responses: dict[str, Subscription] = {}
        self._notifications: set[_Notifications] = set()
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """See :attr:`dispatch.catalog.sources.broker.Broker.is_connected`."""
        return self._transport.connected

    def was_disconnected_since(self, instant: float) -> bool:
        """See :meth:`dispatch.catalog.sources.broker.Broker.was_disconnected_since`."""
        return self._transport.was_disconnected_since(instant)

    async def request(
        self, topic: str, response_topic: str, payload: bytes, *, timeout: float, resend_after: float | None = None
    ) -> bytes:
        """See :meth:`dispatch.catalog.sources.broker.Broker.request`."""
        async with asyncio.timeout(timeout):
            publisher = await self._open(topic, response_topic)
            response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            # Clients of all processes share the response topic, and each sees the ids of the others' responses.
            id = os.urandom(16).hex()
            self._waiting[id] = response
            try:
                while True:
                    self._send(publisher, payload, {Property.ID: id}, response)
                    answered, _ = await asyncio.wait([response], timeout=resend_after)
                    if answered:
                        return response.result()
                    if resend_after is not None:
                        resend_after *= 2
            finally:
                del self._waiting[id]
                if not response.cancel() and not response.cancelled():
                    response.exception()  # of a failure that came together with the timeout

    def _send(
        self, publisher: Publisher, payload: bytes, properties: Mapping[str, str], response: asyncio.Future[bytes]
    ) -> None:
        def on_failure(error: TransportError) -> None:
            if not response.done():
                response.set_exception(error)

        publisher.publish(payload, properties, flow=publisher.topic, on_failure=on_failure)

    async def _open(self, topic: str, response_topic: str) -> Publisher:
        async with self._opening:
            if self._is_closed:
                raise closed()
            # The response topic first: it must be open when the response arrives.
            if response_topic not in self._responses:
                self._responses[response_topic] = await self._transport.subscribe(
                    response_topic, self._on_response, mode=Mode.FANOUT, name=self._unique_name()
                )
            if topic not in self._publishers:
                self._publishers[topic] = await self._transport.publisher(topic)
            return self._publishers[topic]

    def _unique_name(self) -> str:
        return f"{self._name}-{os.urandom(4).hex()}"

    def _on_response(self, message: Message) -> None:
        response = self._waiting.get(read_properties(message).get(Property.ID, ""))
        # A response to another client, or a late or a duplicate one.
        if response is not None and not response.done():
            response.set_result(message.data())

    async def subscribe(self, topic: str, on_message: OnMessage) -> BrokerSubscription:
        """See :meth:`dispatch.catalog.sources.broker.Broker.subscribe`."""
        if self._is_closed:
            raise closed()

        def handle(message: Message) -> None:
            on_message(message.data())

        subscription = await self._transport.subscribe(topic, handle, mode=Mode.FANOUT, name=self._unique_name())
        notifications = _Notifications(subscription, self._notifications)
        self._notifications.add(notifications)
        return notifications

    async def close(self) -> None:
        """Close all topics. Requests that wait fail. Idempotent."""
        self._is_closed = True
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(closed())
        async with self._opening:
            for notifications in list(self._notifications):
                await notifications.close()
            while self._responses:
                await self._responses.popitem()[1].close()
            while self._publishers:
                await self._publishers.popitem()[1].close()


class _Notifications:
    def __init__(self, subscription: Subscription, open: set[_Notifications]) -> None:
        self._subscription = subscription
        self._open = open

    async def close(self) -> None:
        self._open.discard(self)
        await self._subscription.close()
