"""Channel: what is open to call one service over one pair of topics."""

from __future__ import annotations

import asyncio

from dispatch.messaging.endpoint.endpoint import Endpoint
from dispatch.routing.in_flight import InFlight
from dispatch.routing.instance import Instances
from dispatch.transports import Publisher


class Channel:
    """Request publisher, reply topic and known instances of one service over one pair of topics.

    Args:
        request_queue: the topic that all instances share.
        publisher: to it, for the plain exchange.
        reply_topic: the dispatcher's own.
        endpoint: of the sessions with instances, whose packets arrive on ``reply_topic``; None on persistent topics, which
            have the plain exchange only.

    Attributes:
        instances: those with an open session.
        requests: in flight; the topics are closed after the last one.
        hello: publisher to the topic on which instances receive hellos; None if there is none.
        hello_at: when the next hello is due.
        met: set while an instance is known.
        had_instances: an instance has been known.
    """

    __slots__ = (
        "endpoint",
        "had_instances",
        "hello",
        "hello_at",
        "instances",
        "met",
        "publisher",
        "reply_topic",
        "request_queue",
        "requests",
    )

    def __init__(self, request_queue: str, publisher: Publisher, reply_topic: str, endpoint: Endpoint | None) -> None:
        self.request_queue = request_queue
        self.publisher = publisher
        self.reply_topic = reply_topic
        self.endpoint = endpoint
        self.instances = Instances()
        self.requests = InFlight()
        self.hello: Publisher | None = None
        self.hello_at = 0.0
        self.met = asyncio.Event()
        self.had_instances = False
