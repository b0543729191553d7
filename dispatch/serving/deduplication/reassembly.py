"""Reassembly of fragmented requests at the service.

A request is in the history from its first fragment on, so that it is deduplicated like any other.
"""

from __future__ import annotations

import asyncio

from dispatch.messaging.wire.fragments import FragmentBuffer, FragmentedPayload, FragmentError, read_parts
from dispatch.messaging.wire.properties import Property, Refusal, whole_number
from dispatch.serving.deduplication.request_history import RequestHistory
from dispatch.serving.inbound_request import DEALT_WITH, InboundRequest, ReassembledMessage
from dispatch.serving.reply_destinations import ReplyRouter


class Reassembly:
    """The incomplete requests of one service instance, on the running loop.

    Args:
        replies: sends receipts for fragments.
        ledger: the request history.
        max_payload_bytes: limit of one request, and of all together.
    """

    def __init__(self, replies: ReplyRouter, ledger: RequestHistory, max_payload_bytes: int) -> None:
        self._replies = replies
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._joins = FragmentBuffer(max_payload_bytes)
        self._latest: dict[str, InboundRequest] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._leaving = False

    def __len__(self) -> int:
        return len(self._joins)

    def __contains__(self, id: str) -> bool:
        return id in self._joins

    @property
    def size(self) -> int:
        """Bytes reserved."""
        return self._joins.size

    def add_fragment(self, work: InboundRequest) -> str | None:
        """Add a fragment, or answer a request for the missing ones. Return None if the request is complete,
        :data:`DEALT_WITH` if it is not, otherwise the reason to refuse it."""
        properties = work.properties
        said = read_parts(properties.get(Property.PARTS, ""))
        index = whole_number(properties, Property.PART)
        if self._leaving:
            self._release(work.id)
            return Refusal.DRAINING
        try:
            if said is None or (index is None and Property.PART in properties):
                raise FragmentError("the properties 'parts' and 'part' of the request cannot be read")
            join = self._joins.join(work.id, *said, self._loop.time())
            if index is not None:
                join.add(index, work.message.data())
        except FragmentError as refused:
            self._release(work.id)
            work.problem = str(refused)
            return Refusal.OVERLOADED if refused.full else Refusal.INVALID_REQUEST
        if not join.missing:
            work.message = ReassembledMessage(join.payload(), properties)
            self._release(work.id)
            return None
        work.message = ReassembledMessage(b"", properties)  # its payload is in the buffer
        self._latest[work.id] = work
        self._watch()
        self.acknowledge(work, join)
        return DEALT_WITH

    def acknowledge(self, work: InboundRequest, join: FragmentedPayload | None = None) -> None:
        """Send a receipt for the fragment if one is requested; answer a retransmission with the missing fragments."""
        properties = work.properties
        part = properties.get(Property.PART)
        if not self._replies.own_topic(properties) or (part is not None and Property.ACK not in properties):
            return
        said = {Property.ID: work.id, Property.TAKEN: "1"}
        if part is not None:
            said[Property.PART] = part
        elif join is not None:
            said[Property.MISSING] = join.missing_ranges()
        self._replies.send(properties, b"", said)

    def leave(self) -> list[InboundRequest]:
        """Stop accepting fragments. Return the incomplete requests, which must be refused."""
        self._leaving = True
        incomplete = list(self._latest.values())
        for work in incomplete:
            self._release(work.id)
        return incomplete

    def _release(self, id: str) -> None:
        self._joins.drop(id)
        self._latest.pop(id, None)
        if not len(self._joins) and self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _watch(self) -> None:
        due = self._joins.next_expiry()
        if self._expiry is None and due is not None:
            self._expiry = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        for id in self._joins.remove_expired(self._loop.time()):
            entry = self._latest.pop(id).entry
            if entry is not None:
                self._ledger.undo(entry)
        self._watch()
