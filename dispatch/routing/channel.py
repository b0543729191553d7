"""Channel: what is open to call one service over one pair of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dispatch.messaging.flow.credit import CREDIT_BYTES
from dispatch.messaging.flow.publisher import Gate
from dispatch.messaging.wire.properties import Property
from dispatch.routing.in_flight import InFlight
from dispatch.routing.instance import Instances
from dispatch.routing.reply_connections import ReplyConnections
from dispatch.transports import Publisher


class Channel:
    """Request publisher and reply topics of one service over one pair of topics.

    Attributes:
        publisher: to the service's request topic, which all instances share.
        replies: the dispatcher's own reply topics.
        acknowledged: replies to ``reply_to`` are acknowledged.
        instances: known instances of dispatch's service base; none on a persistent request topic, which loses no
            messages.
        requests: in flight; the topics are closed after the last one.
        unaddressed: number of requests in flight on the topic that all instances share.
    """

    __slots__ = (
        "acknowledged",
        "hello",
        "hello_at",
        "instances",
        "met",
        "publisher",
        "replaced",
        "replies",
        "request_queue",
        "requests",
        "unaddressed",
    )

    def __init__(
        self, request_queue: str, publisher: Publisher, replies: ReplyConnections, *, acknowledged: bool
    ) -> None:
        self.request_queue = request_queue
        self.publisher = publisher
        self.replies = replies
        self.acknowledged = acknowledged
        self.instances = Instances()
        self.requests = InFlight()
        self.unaddressed = 0
        self.hello: Publisher | None = None
        self.hello_at = 0.0
        self.met = asyncio.Event()
        """An instance is known."""
        self.replaced: dict[str, str] = {}
        """By the name of an instance: the incarnation that its current one has replaced."""


def limit_flow(publisher: Publisher, *, acknowledges: bool = False) -> Gate:
    """Return ``publisher`` with flow control by credit, which needs the acknowledgements of dispatch's service base.

    Args:
        publisher: to a request topic.
        acknowledges: every service on that topic acknowledges.
    """
    return Gate(publisher, _ask_for_taken, CREDIT_BYTES, acknowledges=acknowledges)


def _ask_for_taken(_sequence: int) -> Mapping[str, str]:
    """Return the properties with which a request asks for ``taken``. Third-party services ignore them."""
    return {Property.ACK: "1"}
