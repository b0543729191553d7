"""Reply sizes of third-party services, for pacing requests to them.

A third-party service has no flow control: it sends replies at once, and the broker drops those that exceed the caller's
channel. Requests are therefore paced as if they had the size of their replies. A burst of calls is spread at a rate at which
no loss was measured; single calls are not delayed.
"""

from __future__ import annotations

from dispatch.messaging.flow.pacer import PACE_BURST
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.transports import Message

MEAN_OF = 16
"""Weight of the moving average of reply sizes: a new reply counts one sixteenth."""


class ThirdPartyReplySizes:
    """The moving average of reply sizes on one response topic. Before the first reply it is the capacity of a channel.

    Args:
        exchange: correlates the replies.
    """

    def __init__(self, exchange: Correlator) -> None:
        self._exchange = exchange
        self._mean = float(PACE_BURST)

    def on_message(self, message: Message) -> None:
        """Handle a reply; see :meth:`Correlator.on_message`."""
        exchange = self._exchange
        before = exchange.received_bytes
        exchange.on_message(message)
        size = exchange.received_bytes - before
        if size:  # otherwise the reply of another dispatcher
            self._mean += (size - self._mean) / MEAN_OF

    def answer_bytes(self) -> float:
        """Return the average size of a reply in bytes."""
        return self._mean
