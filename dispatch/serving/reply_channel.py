"""The channel of one request's reply: a stream of a session, or messages with properties (the plain exchange)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class ReplyTooLargeError(Exception):
    """A reply that its channel cannot carry. Nothing was sent; ``str()`` names the size and the limit."""


class ReplyChannel(Protocol):
    """Sends the reply to one request: one result, or chunks and an end, or an error, or a refusal.

    ``trace`` is the trace context of the reply, as W3C's headers; a channel without headers ignores it. Nothing is sent to a
    caller that no longer waits.
    """

    @property
    def topic(self) -> str:
        """The topic that the reply goes to."""

    @property
    def request_id(self) -> str:
        """The request's id, which its caller knows too."""

    def send_result(self, text: str, trace: Mapping[str, str]) -> None:
        """Send the whole reply.

        Raises:
            ReplyTooLargeError: it is above the limit.
            ValueError: it cannot be written as UTF-8 (a lone surrogate).
        """

    def send_chunk(self, text: str, trace: Mapping[str, str]) -> None:
        """Send one chunk of a stream. Raises as :meth:`send_result`."""

    def send_end(self, trace: Mapping[str, str]) -> None:
        """Send the end of a stream."""

    def send_error(self, type: str, message: str, trace: Mapping[str, str]) -> None:
        """Send an error, which ends the request."""

    def refuse(self, reason: str, retry_after: float | None, message: str, trace: Mapping[str, str]) -> None:
        """Send a refusal, which ends the request: the tool was not executed, or not to its end.

        Args:
            reason: one of :class:`~dispatch.messaging.wire.properties.Refusal`.
            retry_after: seconds until a retry makes sense; None: unknown.
            message: a text for the caller.
            trace: of the reply.
        """

    async def writable(self) -> None:
        """Wait while chunks of the request are queued, or their reader is far behind, as far as the channel knows that."""

    def release_payload(self) -> None:
        """Record that the request has been decoded: its bytes no longer count towards the caller's window."""

    def close(self) -> None:
        """Record the end of the request: nothing is sent afterwards."""

    def hand_over(self) -> bool:
        """Leave the request to another instance. Return False if no other instance can receive it."""
