"""Replies of the plain exchange, counted in a window.

A third-party service has no flow control: it sends replies at once, and the broker drops those that exceed the caller's
channel. Requests are therefore paced as if they had the size of their replies, and a fast service has no more of them than
its replies fit into a channel. Single calls are not delayed.
"""

from __future__ import annotations

from collections.abc import Mapping

from dispatch.messaging.flow.reply_window import ReplyWindow
from dispatch.messaging.rpc.correlation import Correlator, read_properties
from dispatch.messaging.wire.properties import Property
from dispatch.transports import Message


class CountedReplies:
    """The replies to requests whose response topic is the same: on it, and on the dispatcher's own reply topic.

    Args:
        exchange: correlates the replies.

    Attributes:
        window: counts the replies to requests of this dispatcher.
    """

    def __init__(self, exchange: Correlator) -> None:
        self.window = ReplyWindow()
        self._exchange = exchange

    def on_message(self, message: Message) -> None:
        """Handle a message of the response topic; see :meth:`Correlator.on_message`."""
        self.receive(message, read_properties(message), is_shared=True)

    def receive(self, message: Message, properties: Mapping[str, str], *, is_shared: bool = False) -> None:
        """Handle a reply; see :meth:`Correlator.receive`."""
        exchange = self._exchange
        before = exchange.received_bytes
        exchange.receive(message, properties, is_shared=is_shared)
        size = exchange.received_bytes - before
        if size:  # otherwise the reply of another dispatcher
            self.window.receive(properties[Property.ID], size, exchange.now())
