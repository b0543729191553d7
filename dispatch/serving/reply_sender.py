"""Replies of a service: a result, a stream, an error, or a refusal, over the channel of the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from dispatch._internal.user_code import read_text
from dispatch._internal.utf8 import scalar_text
from dispatch.errors import ErrorType
from dispatch.messaging.wire.codec import describe_invalid_result, result_text
from dispatch.messaging.wire.properties import Refusal
from dispatch.serving.idempotency_keys import KeyedExecution, StoredReply
from dispatch.serving.inbound_request import InboundRequest
from dispatch.serving.reply_channel import ReplyTooLargeError

OVERLOAD_RETRY_AFTER_S = 1.0
"""Seconds until a retry of a request that was refused as overloaded makes sense, where no duration of its tool is known."""
MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 0.1, 30.0
"""Bounds of the estimated time: shorter pauses spare nothing, and after longer ones the estimate is outdated."""
REASONS = (
    Refusal.OVERLOADED,
    Refusal.DRAINING,
    Refusal.EXPIRED,
    Refusal.STOPPED,
    Refusal.INVALID_REQUEST,
    Refusal.TOO_LARGE,
    Refusal.REPLY_EVICTED,
)


class ReplySender:
    """Sends the replies of one service instance.

    Args:
        refused: counts refusals by reason.
        id: the service's id, for texts.
    """

    def __init__(self, refused: dict[str, int], *, id: str) -> None:
        self._refused = refused
        self._id = id

    def send_result(self, work: InboundRequest, text: str) -> None:
        """Send the tool's result."""
        self._send_text(work, work.replies.send_result, text, is_last=True)

    async def send_stream(self, work: InboundRequest, items: AsyncIterator[Any]) -> None:
        """Send the tool's stream, to its end."""
        replies = work.replies
        try:
            async for item in items:
                if not self._send_text(work, replies.send_chunk, result_text(item), is_last=False):
                    return
                await replies.writable()
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()
        replies.send_end(work.observer.on_reply(is_last=True))

    def send_stored(self, work: InboundRequest, first: KeyedExecution) -> None:
        """Send the stored reply of the ``first`` request with its key to ``work``, at once."""
        for message in first.messages:
            if not self._send_message(work, message):
                return

    async def stream_stored(self, work: InboundRequest, first: KeyedExecution) -> None:
        """Send the stored reply as :meth:`send_stored` does, as fast as the caller reads it."""
        for message in first.messages:
            if not self._send_message(work, message):
                return
            await work.replies.writable()

    def _send_message(self, work: InboundRequest, message: StoredReply) -> bool:
        kind, text, detail = message
        if kind == "error":
            self.send_error(work, text, detail)
        elif kind == "end":
            work.replies.send_end(work.observer.on_reply(is_last=True))
        elif kind == "result":
            self.send_result(work, text)
        else:
            return self._send_text(work, work.replies.send_chunk, text, is_last=False)
        return True

    def send_error(self, work: InboundRequest, type: object, message: object, kind: str = ErrorType.TOOL_ERROR) -> None:
        """Reply with an error: the tool's own, or one of sending its result. ``kind``: the error type in the span."""
        work.observer.on_error(kind)
        work.replies.send_error(_sendable(type), _sendable(message), work.observer.on_reply(is_last=True))

    def count_refusal(self, reason: str) -> None:
        """Count a refusal."""
        self._refused[reason] += 1

    def refuse(self, work: InboundRequest, reason: str, detail: str, *, retry_after: float | None = None) -> None:
        """Reply that the tool is not executed, or not to its end. ``retry_after``: estimated seconds until the instance has
        worked off its queue; None: unknown."""
        self.count_refusal(reason)
        work.is_refused = True
        work.observer.on_error(ErrorType.TIMEOUT if reason == Refusal.STOPPED else reason)
        message = detail or {
            Refusal.DRAINING: f"The tool was not executed: {self._id} is shutting down.",
            Refusal.EXPIRED: "The tool was not executed: the caller's deadline had passed before it could start.",
            Refusal.STOPPED: "The tool was stopped at the caller's deadline, and may have been executed in part.",
            Refusal.REPLY_EVICTED: f"{self._id} no longer keeps the reply, and may have executed the tool.",
        }.get(reason, reason)
        if reason != Refusal.OVERLOADED:
            retry_after = None
        elif retry_after is None:
            retry_after = OVERLOAD_RETRY_AFTER_S
        else:
            retry_after = min(max(retry_after, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
        work.replies.refuse(reason, retry_after, message, work.observer.on_reply(is_last=True))

    def _send_text(
        self, work: InboundRequest, send: Callable[[str, Mapping[str, str]], None], text: str, *, is_last: bool
    ) -> bool:
        """Send ``text``. Return False if an error was sent instead, which ends the request."""
        try:
            send(text, work.observer.on_reply(is_last=is_last))
            return True
        except ReplyTooLargeError as error:
            self.send_error(
                work,
                ErrorType.RESULT_TOO_LARGE,
                f"The tool was executed, but its result is too large to send ({error}). Ask for less in one call.",
            )
        except ValueError as error:
            self.send_error(work, ErrorType.INVALID_RESULT, describe_invalid_result(f"is not valid text ({error})"))
        return False


def _sendable(value: object) -> str:
    """Return ``value`` as valid UTF-8 text: the text of a tool's error must not prevent the reply."""
    return scalar_text(read_text(value))
