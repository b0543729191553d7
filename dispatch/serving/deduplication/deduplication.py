"""What a service instance does with a request that was here before: it is answered, never run again."""

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
"""Longest property ``settled`` that is looked at. Ours have a tenth of that."""
MAX_OTHERS = 16
"""Other instances of the same name that are remembered; there should be one at most, during a restart."""
MAX_RESENT = 256
"""Chunks of a stream that one question brings; the next question brings more."""
MAX_RESENT_BYTES = 4 * 1024 * 1024
"""The same in bytes, but one chunk at the least."""


class Deduplicator:
    """The memory of one life of a service instance, on the running loop.

    Args:
        replies: sends what is answered from memory.
        incarnation: the random name of this run of the instance.
        max_payload_bytes: bytes of requests that come in parts, of one and of all that are not complete.
    """

    def __init__(self, replies: ReplyRouter, incarnation: str, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._replies = replies
        self._incarnation = incarnation
        self._others: OrderedDict[str, None] = OrderedDict()
        self._now = loop_clock()
        self.ledger = RequestHistory()
        self.keys = IdempotencyKeys()
        self.gathering = Reassembly(replies, self.ledger, max_payload_bytes)
        """Requests of which some parts are here."""
        self.repeats = 0
        """Requests that came again, because their answer was asked for."""

    def meet(self, incarnation: str) -> None:
        """Remember that another instance of the same name runs: requests that are meant for it are its business."""
        self._others[incarnation] = None
        while len(self._others) > MAX_OTHERS:
            self._others.popitem(last=False)

    def check_request(self, work: InboundRequest) -> str | None:
        """Has ``work`` been here? None: it is new, run it. :data:`DEALT_WITH`: yes, and its caller was told what there is to
        tell. Else why it is refused."""
        properties = work.properties
        if not is_sender(properties.get(Property.SESSION), work.id) or not RequestHistory.knows(work.id):
            return None  # not from a dispatcher of ours: the ids of others have no numbers
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
                self.gathering.acknowledge(work)  # a copy of a part of what is complete
                return DEALT_WITH
            return self._repeat(work, found)
        if found or (again and not in_parts and not work.message.data()):
            return Refusal.REPLY_EVICTED
        work.entry = ledger.begin(work.id, now)
        return self.gathering.add_fragment(work) if in_parts else None

    def leave(self, id: str) -> None:
        """The dispatcher of ``id`` says goodbye: forget what nobody will ask for any more."""
        if RequestHistory.knows(id):
            self.ledger.leave(id, self._now())

    def _repeat(self, work: InboundRequest, entry: RequestRecord) -> str:
        """Answer a question for what ``entry`` is or was about."""
        self.repeats += 1
        if entry.ticket is not None and entry.ticket.waits:
            self._replies.send_receipt(work.properties)  # its answer waits for its turn; once is enough
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
        """Claim the idempotency ``key`` for ``work``. None: it is the first with it, and its replies are kept. Else the work
        of the first one, which may not have ended."""
        keyed, first = self.keys.claim(user, key, self._now())
        if first:
            work.keyed = keyed
            return None
        return keyed

    def widen(self, work: InboundRequest, size: int, most: int) -> None:
        """Keep what is sent next to ``work``, ``size`` bytes, although it is much; see :meth:`RequestHistory.widen`."""
        if work.entry is not None and not work.refused:
            self.ledger.widen(work.entry, size, most)

    def send(self, work: InboundRequest, payload: bytes, properties: Mapping[str, str], *, last: bool) -> None:
        """Send a reply to ``work``, and keep it; ``last``: it ends with that. What follows a refusal is kept for the
        idempotency key alone, which in turn has no use for the refusal."""
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
        """Answer ``work`` as the ``first`` one with its key was."""
        for number, (payload, properties) in enumerate(first.messages, 1):
            self.send(work, payload, {**properties, Property.ID: work.id}, last=number == len(first.messages))

    def record_end(self, work: InboundRequest) -> None:
        """``work`` runs no more, answered or not."""
        if work.entry is not None:
            self.ledger.end(work.entry)
        if work.keyed is not None:
            work.keyed.ended.set()


def _wanted(text: str) -> tuple[int, int]:
    """The chunks that the property ``next`` asks for, from the first to the last; all when it says nothing readable."""
    first, _, last = text.partition("-")
    start = int(first) if _is_number(first) else 0
    return start, max(start, int(last)) if _is_number(last) else start + MAX_RESENT


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
