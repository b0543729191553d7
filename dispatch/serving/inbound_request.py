"""A request at a service instance, from its arrival to its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dispatch.telemetry.served_request_observer import NULL_SERVED_REQUEST, ServedRequestObserver
from dispatch.transports import Message

if TYPE_CHECKING:  # the deduplication imports this module
    from dispatch.serving.deduplication.idempotency_keys import KeyedExecution
    from dispatch.serving.deduplication.request_history import RequestRecord

DEALT_WITH = ""
"""The request needs no further work: it is a duplicate, and its caller has been informed."""


class InboundRequest:
    """A request without a complete reply."""

    __slots__ = (
        "abandoned",
        "deadline",
        "entry",
        "id",
        "keyed",
        "message",
        "observer",
        "problem",
        "properties",
        "refused",
        "task",
    )

    def __init__(self, id: str, properties: Mapping[str, str], deadline: float | None, message: Message) -> None:
        self.id = id
        self.properties = properties
        self.deadline = deadline
        self.message = message
        self.entry: RequestRecord | None = None
        """Stores its replies for retransmissions."""
        self.keyed: KeyedExecution | None = None
        """Stores its replies for its idempotency key."""
        self.task: asyncio.Task[Any] | None = None
        """The task that executes it; None while it is queued."""
        self.abandoned = False
        """Its caller has cancelled it."""
        self.refused = False
        """It has been refused; its tool may still run, for the idempotency key."""
        self.observer: ServedRequestObserver = NULL_SERVED_REQUEST
        """Receives the request's events once it runs."""
        self.problem = ""
        """A detail of the refusal; may be empty."""


class ReassembledMessage:
    """A reassembled request, as one :class:`~dispatch.transports.Message`."""

    def __init__(self, payload: bytes, properties: Mapping[str, str]) -> None:
        self._payload = payload
        self._properties = properties

    def data(self) -> bytes:
        return self._payload

    def properties(self) -> dict[str, str]:
        return dict(self._properties)
