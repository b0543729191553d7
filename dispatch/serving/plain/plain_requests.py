"""Requests of the plain exchange: messages with properties on the service's request topic."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping

from dispatch.messaging.wire.codec import config_of
from dispatch.messaging.wire.properties import REPLY_ONLY, Property, Refusal, is_oversized, whole_number
from dispatch.messaging.wire.sessions import is_dispatchers, is_sender
from dispatch.serving.idempotency_keys import IdempotencyKeys, RecordedReplies
from dispatch.serving.inbound_request import InboundRequest
from dispatch.serving.plain.durable_requests import DurableRequests
from dispatch.serving.plain.plain_replies import PlainReplies, PlainReplySender
from dispatch.serving.plain.recent_ids import RecentIds
from dispatch.serving.reply_sender import ReplySender
from dispatch.serving.request_queue import RequestQueue
from dispatch.transports import DurableMessage, Message

logger = logging.getLogger("dispatch.service")


class PlainRequests:
    """Reads the messages on a request topic and gives the requests to the queue.

    Args:
        queue: runs the requests.
        sender, channel: send their replies.
        topic: the request topic.
        now: the loop's clock.
    """

    def __init__(
        self, queue: RequestQueue, sender: ReplySender, channel: PlainReplySender, topic: str, now: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._sender = sender
        self._channel = channel
        self._topic = topic
        self._is_persistent = topic.startswith("persistent://")
        self._now = now
        self._recent = RecentIds()
        self._replies = IdempotencyKeys()
        """Replies to requests on a persistent topic, for the copies that the broker delivers."""
        self.durable = DurableRequests()
        self.malformed = 0
        """Messages without a usable id, which cannot be answered."""
        self.repeats = 0
        """Copies of dispatchers' requests."""

    def receive_message(self, message: Message) -> None:
        """Handle a message on the request topic."""
        properties: Mapping[str, str] = {}
        with contextlib.suppress(Exception):  # any exception of the client for a peer's message
            properties = message.properties()
        if not REPLY_ONLY.isdisjoint(properties):
            self.malformed += 1
            logger.warning("a reply arrived on %s, where requests are expected: it is ignored", self._topic)
            return
        id = properties.get(Property.ID, "")
        if not id or is_oversized(id):
            self._queue.requests += 1
            self.malformed += 1
            logger.warning("a request on %s has no usable property 'id': it is ignored", self._topic)
            return
        if is_dispatchers(id) and not is_sender(properties.get(Property.SESSION), id):
            # Its reply would end the call of another agent.
            self.malformed += 1
            logger.warning("a request on %s has the id of another dispatcher: it is ignored", self._topic)
            return
        durable = message if self._is_persistent and isinstance(message, DurableMessage) else None
        replies = PlainReplies(self._channel, properties, None if durable is None else self.durable)
        try:
            payload = message.data()
        except Exception as error:  # any exception of the client library
            self._queue.requests += 1
            work = InboundRequest(replies, properties, b"", math.inf)
            self._queue.refuse(work, Refusal.INVALID_REQUEST, f"the request is not readable: {type(error).__name__}")
            return
        now = self._now()
        remaining = whole_number(properties, Property.REMAINING_MS)
        if remaining is not None and durable is not None:
            remaining = self.durable.remaining(id, remaining, durable, now)
        deadline = math.inf if remaining is None else now + remaining / 1000
        caller = properties.get(Property.SESSION, "")
        work = InboundRequest(replies, properties, payload, deadline, config_of(payload), caller)
        if durable is None:
            self._accept(work, replies)
        else:
            self.durable.accept_request(work, replies, durable, self._accept)

    def _accept(self, work: InboundRequest, replies: PlainReplies) -> bool:
        """Give ``work`` to the queue. Return False for a copy of an earlier request."""
        now = self._now()
        # The ids of third-party callers may come again.
        if is_dispatchers(replies.request_id):
            is_new = self._recent.add(replies.request_id)
            if self._is_persistent:
                first, _ = self._replies.claim("", replies.request_id, now)
                if is_new:
                    work.replies = RecordedReplies(replies, self._replies, first)
                elif first.ended.is_set():
                    self._sender.send_stored(work, first)
            if not is_new:
                self.repeats += 1
                return False
        self._queue.accept(work, now)
        return True
