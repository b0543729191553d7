"""A request that a service instance took, from its arrival to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dispatch.telemetry.served_request_observer import NULL_SERVED_REQUEST, ServedRequestObserver
from dispatch.transports import Message

if TYPE_CHECKING:  # the deduplication keeps inbound requests: it imports this module
    from dispatch.serving.deduplication.idempotency_keys import KeyedExecution
    from dispatch.serving.deduplication.request_history import RequestRecord

DEALT_WITH = ""
"""Not a reason to refuse: its caller was told what there is to tell."""


class InboundRequest:
    """A request that was taken and is not answered yet."""

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
        """Where its replies are kept, should its caller ask again."""
        self.keyed: KeyedExecution | None = None
        """The same under its idempotency key."""
        self.task: asyncio.Task[Any] | None = None
        """Runs it; None: it waits."""
        self.abandoned = False
        """Nobody waits for it any more."""
        self.refused = False
        """Its caller was told that it is refused; its tool may run on, for the idempotency key."""
        self.observer: ServedRequestObserver = NULL_SERVED_REQUEST
        """Receives the request's events once it runs."""
        self.problem = ""
        """Why it is refused, where there is more to say than the reason."""


class ReassembledMessage:
    """A request that came in parts, as one :class:`~dispatch.transports.Message`."""

    def __init__(self, payload: bytes, properties: Mapping[str, str]) -> None:
        self._payload = payload
        self._properties = properties

    def data(self) -> bytes:
        return self._payload

    def properties(self) -> dict[str, str]:
        return dict(self._properties)
