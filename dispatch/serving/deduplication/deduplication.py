"""Deduplication of requests: a known request is answered from the history and never executed again."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping

from dispatch._internal.clock import loop_clock
from dispatch.messaging.wire.fragments import MAX_PAYLOAD_BYTES
from dispatch.messaging.wire.properties import Property, Refusal, whole_number
from dispatch.messaging.wire.sessions import is_sender
from dispatch.serving.deduplication.idempotency_keys import IdempotencyKeys, KeyedExecution
from dispatch.serving.deduplication.reassembly import Reassembly
from dispatch.serving.deduplication.request_history import RequestHistory, RequestRecord
from dispatch.serving.inbound_request import DEALT_WITH, InboundRequest
from dispatch.serving.reply_destinations import ReplyRouter

MAX_SETTLED_CHARS = 1_024
"""Longest accepted property ``settled``, in characters; dispatchers send a tenth of that."""
MAX_OTHERS = 16
"""Other instances of the same name that are remembered; usually one at most, during a restart."""
MAX_RESENT = 256
"""Chunks of a stream sent for one retransmission; the next one requests more."""
MAX_RESENT_BYTES = 4 * 1024 * 1024
"""The same limit in bytes; at least one chunk is sent."""


class Deduplicator:
    """The request history of one incarnation of a service instance, on the running loop.

    Args:
        replies: sends stored replies.
        incarnation: the random name of this run of the instance.
        max_payload_bytes: limit of one fragmented request, and of all incomplete ones.
    """

    def __init__(self, replies: ReplyRouter, incarnation: str, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._replies = replies
        self._incarnation = incarnation
        self._others: OrderedDict[str, None] = OrderedDict()
        self._now = loop_clock()
        self.ledger = RequestHistory()
        self.keys = IdempotencyKeys()
        self.gathering = Reassembly(replies, self.ledger, max_payload_bytes)
        """Incomplete fragmented requests."""
        self.repeats = 0
        """Retransmissions received."""

    def meet(self, incarnation: str) -> None:
        """Record another running instance of the same name, which answers requests for its own incarnation."""
        self._others[incarnation] = None
        while len(self._others) > MAX_OTHERS:
            self._others.popitem(last=False)

    def check_request(self, work: InboundRequest) -> str | None:
        """Check whether ``work`` is new. Return None if it must be executed, :data:`DEALT_WITH` if it is a duplicate that
        has been answered, otherwise the reason to refuse it."""
        properties = work.properties
        if not is_sender(properties.get(Property.SESSION), work.id) or not RequestHistory.knows(work.id):
            return None  # from a third-party caller: its ids have no numbers
        meant = properties.get(Property.INCARNATION, self._incarnation)
        if meant != self._incarnation:
            # An instance of the same name that is running answers for itself.
            return DEALT_WITH if meant in self._others else Refusal.INSTANCE_RESTARTED
        ledger, now = self.ledger, self._now()
        again = (whole_number(properties, Property.TRANSMISSION) or 1) > 1
        found = ledger.find(work.id, now, is_again=again)
        settled = properties.get(Property.SETTLED)
        if settled is not None and len(settled) <= MAX_SETTLED_CHARS:
            with contextlib.suppress(ValueError):
                below, *excepted = (int(each[:15], 16) for each in settled.split(","))
                ledger.settled(work.id, below, now, excepted)
        in_parts = Property.PARTS in properties
        if isinstance(found, RequestRecord):
            if work.id in self.gathering:
                work.entry = found
                return self.gathering.add_fragment(work)
            if in_parts and Property.PART in properties:
                self.gathering.acknowledge(work)  # a duplicate fragment of a complete request
                return DEALT_WITH
            return self._repeat(work, found)
        if found or (again and not in_parts and not work.message.data()):
            return Refusal.REPLY_EVICTED
        work.entry = ledger.begin(work.id, now)
        return self.gathering.add_fragment(work) if in_parts else None

    def leave(self, id: str) -> None:
        """Drop the history of the dispatcher of ``id``, which closes."""
        if RequestHistory.knows(id):
            self.ledger.leave(id, self._now())

    def _repeat(self, work: InboundRequest, entry: RequestRecord) -> str:
        """Answer a retransmission of the request of ``entry``."""
        self.repeats += 1
        if entry.ticket is not None and entry.ticket.waits:
            self._replies.send_receipt(work.properties)  # its reply is queued; it is not sent twice
            return DEALT_WITH
        first, last = _wanted(work.properties.get(Property.NEXT, ""))
        messages = entry.since(first)
        if messages is None:
            return Refusal.REPLY_EVICTED
        transmission = work.properties.get(Property.TRANSMISSION, "1")
        sent = 0
        for payload, properties in messages[: min(MAX_RESENT, last - first + 1)]:
            sent += len(payload)
            if sent > max(MAX_RESENT_BYTES, len(payload)):
                break
            again = {**properties, Property.TRANSMISSION: transmission}
            entry.ticket = self._replies.send(work.properties, payload, again)
        if not messages:
            self._replies.send_receipt(work.properties)
        return DEALT_WITH

    def claim(self, work: InboundRequest, user: str, key: str) -> KeyedExecution | None:
        """Claim the idempotency ``key`` for ``work``. Return None if it is the first request with the key, whose replies are
        stored; otherwise the execution of the first one, which may not have ended."""
        keyed, first = self.keys.claim(user, key, self._now())
        if first:
            work.keyed = keyed
            return None
        return keyed

    def widen(self, work: InboundRequest, size: int, most: int) -> None:
        """Allow ``size`` more bytes of stored replies for ``work``; see :meth:`RequestHistory.widen`."""
        if work.entry is not None and not work.refused:
            self.ledger.widen(work.entry, size, most)

    def send(self, work: InboundRequest, payload: bytes, properties: Mapping[str, str], *, last: bool) -> None:
        """Send a reply to ``work`` and store it; ``last``: it is the final one. Replies after a refusal are stored for the
        idempotency key only, and the refusal is not."""
        message = (payload, properties)
        is_refusal = Property.REFUSED in properties
        if work.keyed is not None and not is_refusal:
            self.keys.record(work.keyed, message, last=last)
        if work.refused:
            return
        work.refused = is_refusal
        ticket = self._replies.send(work.properties, payload, properties)
        if work.entry is not None:
            work.entry.ticket = ticket
            self.ledger.record(work.entry, message, last=last)

    def replay(self, work: InboundRequest, first: KeyedExecution) -> None:
        """Send the replies of the ``first`` request with its key to ``work``."""
        for number, (payload, properties) in enumerate(first.messages, 1):
            self.send(work, payload, {**properties, Property.ID: work.id}, last=number == len(first.messages))

    def record_end(self, work: InboundRequest) -> None:
        """Record the end of ``work``, answered or not."""
        if work.entry is not None:
            self.ledger.end(work.entry)
        if work.keyed is not None:
            work.keyed.ended.set()


def _wanted(text: str) -> tuple[int, int]:
    """Return first and last chunk requested by the property ``next``; all chunks if it is missing or malformed."""
    first, _, last = text.partition("-")
    start = int(first) if _is_number(first) else 0
    return start, max(start, int(last)) if _is_number(last) else start + MAX_RESENT


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
