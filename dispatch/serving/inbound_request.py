"""A request at a service instance, from its arrival to its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dispatch.messaging.wire.properties import Property
from dispatch.serving.reply_channel import ReplyChannel
from dispatch.telemetry.served_request_observer import NULL_SERVED_REQUEST, ServedRequestObserver

if TYPE_CHECKING:  # the idempotency keys import the reply channel
    from dispatch.serving.idempotency_keys import KeyedExecution


class InboundRequest:
    """A request without a complete reply.

    Args:
        replies: the channel of its reply.
        headers: its trace context and idempotency key, by the names of :class:`Property`; other entries are ignored.
        payload: its JSON.
        deadline: of its caller, on the loop's clock; infinite: none.
        tool, caller: share the instance's places (:mod:`dispatch.serving.fair_places`).
    """

    __slots__ = (
        "caller",
        "deadline",
        "headers",
        "is_cancelled",
        "is_expired",
        "is_refused",
        "is_started",
        "keyed",
        "observer",
        "payload",
        "replies",
        "stop_at",
        "task",
        "tool",
    )

    def __init__(
        self,
        replies: ReplyChannel,
        headers: Mapping[str, str],
        payload: bytes,
        deadline: float,
        tool: str = "",
        caller: str = "",
    ) -> None:
        self.replies = replies
        self.headers = headers
        self.payload = payload
        self.deadline = deadline
        self.tool = tool
        self.caller = caller
        self.stop_at = deadline
        """When its deadline is handled next; under an idempotency key the tool runs on after the caller's deadline."""
        self.keyed: KeyedExecution | None = None
        """Stores its reply for its idempotency key."""
        self.task: asyncio.Task[Any] | None = None
        """The task that executes it; None while it is queued."""
        self.is_started = False
        """Its task has begun; a task that is cancelled before that would not run at all."""
        self.is_cancelled = False
        """Its caller has cancelled it."""
        self.is_expired = False
        """Its tool has been cancelled at the deadline."""
        self.is_refused = False
        """It has been refused; its tool may still run, for the idempotency key."""
        self.observer: ServedRequestObserver = NULL_SERVED_REQUEST
        """Receives the request's events once it runs."""

    @property
    def is_running(self) -> bool:
        """Whether its task is the current one: a coroutine is also entered when it is closed from outside."""
        try:
            return self.task is not None and asyncio.current_task() is self.task
        except RuntimeError:  # no loop is running
            return False

    def stop(self) -> None:
        """Cancel its task, if that has begun; otherwise the task finds that the request is cancelled or expired."""
        if self.task is not None and self.is_started:
            self.task.cancel()

    @property
    def id(self) -> str:
        """The request's id, which its caller knows too."""
        return self.replies.request_id

    @property
    def reply_topic(self) -> str:
        """The topic that its reply goes to."""
        return self.replies.topic

    @property
    def idempotency_key(self) -> str | None:
        """The caller's idempotency key."""
        return self.headers.get(Property.IDEMPOTENCY_KEY)
