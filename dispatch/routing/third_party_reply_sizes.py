"""Others' services: how large their answers are, learnt, so that requests leave no faster than the answers can be taken.

A service that knows no credit sends its answers as fast as it has them. What it has at once a broker drops, as soon as that
is more than the caller's channel holds; and it has them at once if it was asked at once. So requests to strangers are paced
as if they were the answers that they bring: a burst of calls is drawn out to the pace at which nothing was seen to be lost,
and calls that come one by one wait for nothing.
"""

from __future__ import annotations

from dispatch.messaging.flow.credit import CREDIT_BYTES
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.transports import Message

MEAN_OF = 16
"""Answers over which their mean size is formed."""


class ThirdPartyReplySizes:
    """The answers that come on one response topic. Until the first has come, they count as what a channel holds.

    Args:
        exchange: takes them.
    """

    def __init__(self, exchange: Correlator) -> None:
        self._exchange = exchange
        self._mean = float(CREDIT_BYTES)

    def on_message(self, message: Message, via: int = 0) -> None:
        """Take a reply (a transport's handler); see :meth:`Correlator.on_message`."""
        exchange = self._exchange
        before = exchange.received_bytes
        exchange.on_message(message, via)
        size = exchange.received_bytes - before
        if size:  # else it was meant for somebody else
            self._mean += (size - self._mean) / MEAN_OF

    def answer_bytes(self) -> float:
        """Bytes of an answer, on average."""
        return self._mean
