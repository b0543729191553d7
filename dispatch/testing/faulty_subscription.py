"""Subscriptions on a connection with faults."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from dispatch.testing.faults import FaultSampler
from dispatch.testing.malformed import AlteredDurableMessage, alter_message
from dispatch.transports import DurableMessage, Handler, Message, Subscription

if TYPE_CHECKING:
    from dispatch.testing.faulty_transport import FaultyTransport

logger = logging.getLogger("dispatch.testing")


class FaultySubscription:
    """See :class:`dispatch.transports.base.Subscription`."""

    inner: Subscription

    def __init__(self, transport: FaultyTransport, topic: str, handler: Handler) -> None:
        self._transport = transport
        self.topic = topic
        self._handler: Handler | None = handler
        self._path = transport.message_path("in", topic)

    def on_message(self, message: Message) -> None:
        """Receive a message from the connection, and deliver it as the faults in force say."""
        path = self._path
        sampler = path.sampler
        fault = None if sampler is None else sampler.draw_fault()
        if self._transport.is_disconnected:
            path.count_fault("disconnected")
            _lose(message)
            return
        shown = message if sampler is None or fault is None else alter_message(sampler.rng, message, fault)
        if shown is None:
            fault, shown = None, message
        if fault is not None:
            path.count_fault(fault)
        if sampler is None or fault is None:
            self._deliver_in_order(message, sampler)
        else:
            match fault:
                case "drop":
                    _lose(message)
                case "disconnect":
                    self._transport.disconnect(sampler.faults.reconnect_after)
                    _lose(message)
                case "delay":
                    _keep(message)
                    path.deliver_later(sampler, partial(self._handle_delayed, message))
                case "duplicate":
                    self._deliver_in_order(message, sampler)
                    path.deliver_later(sampler, partial(self._handle_delayed, message))
                case "reorder":
                    _keep(message)
                    path.hold_until_next(sampler, partial(self._handle_delayed, message))
                case _:
                    self._deliver_in_order(shown, sampler)
        if fault != "reorder":
            path.release_held()

    def _deliver_in_order(self, message: Message, sampler: FaultSampler | None) -> None:
        is_synchronous, is_delivered = True, False

        def deliver() -> None:
            nonlocal is_delivered
            is_delivered = True
            if is_synchronous:
                self._handle(message)
            else:
                self._handle_delayed(message)

        self._path.deliver_in_order(deliver, sampler)
        is_synchronous = False
        if not is_delivered:
            _keep(message)

    def _handle(self, message: Message) -> None:
        if self._handler is not None:
            self._handler(message)

    def _handle_delayed(self, message: Message) -> None:
        """Handle a delayed message as a transport does: acknowledge a durable one, and survive an error of the handler."""
        if self._handler is None:
            return  # closed: the broker delivers a durable message to another subscriber
        shown = AlteredDurableMessage(message, message) if isinstance(message, DurableMessage) else None
        try:
            self._handler(message if shown is None else shown)
        except Exception as error:
            self._transport.late_handler_errors += 1
            logger.warning("the handler of a delayed message on %s failed: %s", self.topic, type(error).__name__)
        finally:
            if shown is not None and not shown.kept:
                shown.acknowledge()

    async def close(self) -> None:
        await self.inner.close()
        self._handler = None


def _keep(message: Message) -> None:
    """Keep a durable message from being acknowledged when its handler returns: it is not delivered yet."""
    if isinstance(message, DurableMessage):
        message.keep()


_lose = _keep
"""Lose a message: the broker delivers a durable one to another subscriber after this one has closed."""
