"""What arrives on a connection with faults."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from dispatch.testing.faults import Dice
from dispatch.testing.malformed import OddKept, odd
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
        self._way = transport.way("in", topic)

    def arrived(self, message: Message) -> None:
        """The connection has a message."""
        way = self._way
        dice = way.dice
        fault = None if dice is None else dice.throw()
        if self._transport.gone:
            way.happened("disconnected")
            _lose(message)
            return
        shown = message if dice is None or fault is None else odd(dice.rng, message, fault)
        if shown is None:
            fault, shown = None, message
        if fault is not None:
            way.happened(fault)
        if dice is None or fault is None:
            self._go(message, dice)
        else:
            match fault:
                case "drop":
                    _lose(message)
                case "disconnect":
                    self._transport.disconnect(dice.faults.reconnect_after)
                    _lose(message)
                case "delay":
                    _keep(message)
                    way.later(dice, partial(self._hand_later, message))
                case "duplicate":
                    self._go(message, dice)
                    way.later(dice, partial(self._hand_later, message))
                case "reorder":
                    _keep(message)
                    way.until_next(dice, partial(self._hand_later, message))
                case _:
                    self._go(shown, dice)
        if fault != "reorder":
            way.release()

    def _go(self, message: Message, dice: Dice | None) -> None:
        at_once, gone = True, False

        def go() -> None:
            nonlocal gone
            gone = True
            if at_once:
                self._hand(message)
            else:
                self._hand_later(message)

        self._way.go(go, dice)
        at_once = False
        if not gone:
            _keep(message)

    def _hand(self, message: Message) -> None:
        if self._handler is not None:
            self._handler(message)

    def _hand_later(self, message: Message) -> None:
        """Do with what was held back as a transport does: acknowledge it where it is kept, and survive its handler."""
        if self._handler is None:
            return  # what its broker keeps, goes to somebody else
        shown = OddKept(message, message) if isinstance(message, DurableMessage) else None
        try:
            self._handler(message if shown is None else shown)
        except Exception as error:
            self._transport.late_handler_errors += 1
            logger.warning("a message on %s could not be handled: %s", self.topic, type(error).__name__)
        finally:
            if shown is not None and not shown.kept:
                shown.acknowledge()

    async def close(self) -> None:
        await self.inner.close()
        self._handler = None


def _keep(message: Message) -> None:
    """That its handler returns must not acknowledge it: nobody has seen it yet."""
    if isinstance(message, DurableMessage):
        message.keep()


_lose = _keep
"""Where a broker keeps it, somebody else gets it once this subscriber has gone."""
