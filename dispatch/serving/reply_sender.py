"""Replies of a service: a result, whole or in fragments, a stream, an error, or a refusal.

Each reply is stored by :mod:`dispatch.serving.deduplication.deduplication`, so that it can be sent again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from dispatch.errors import ErrorType
from dispatch.messaging.wire.codec import (
    PLAIN_FROM,
    ErrorInfo,
    PayloadTooLargeError,
    Reply,
    encode_plain,
    encode_reply,
    result_text,
)
from dispatch.messaging.wire.fragments import split_text
from dispatch.messaging.wire.properties import PLAIN_CHUNK, PLAIN_LAST, Property, Refusal, has_bytes, whole_number
from dispatch.serving.deduplication.deduplication import Deduplicator
from dispatch.serving.inbound_request import InboundRequest
from dispatch.serving.reply_destinations import ReplyRouter

OVERLOAD_RETRY_AFTER_MS = 1_000
MAX_ERROR_CHARS = 64 * 1024
"""Longest error message in characters; a longer one is truncated."""
REASONS = (
    Refusal.OVERLOADED,
    Refusal.DRAINING,
    Refusal.EXPIRED,
    Refusal.STOPPED,
    Refusal.INVALID_REQUEST,
    Refusal.INSTANCE_RESTARTED,
    Refusal.REPLY_EVICTED,
)


class ReplySender:
    """Sends the replies of one service instance.

    Args:
        replies, recall: send and store replies.
        refused: counts refusals by reason.
        id: the service's id, for texts.
        instance: the instance's id.
        in_flight: returns the number of running requests.
        limit: returns the broker's message limit in bytes.
        max_payload_bytes: largest reply sent in fragments.
    """

    def __init__(
        self,
        replies: ReplyRouter,
        recall: Deduplicator,
        refused: dict[str, int],
        *,
        id: str,
        instance: str,
        in_flight: Callable[[], int],
        limit: Callable[[], int],
        max_payload_bytes: int,
    ) -> None:
        self._replies = replies
        self._recall = recall
        self._refused = refused
        self._id = id
        self._instance = instance
        self._in_flight = in_flight
        self._limit = limit
        self._max_payload_bytes = max_payload_bytes

    def send_receipt(self, work: InboundRequest) -> None:
        """Send a receipt: the request has arrived."""
        self._replies.send_receipt(work.properties)

    async def result(self, work: InboundRequest, text: str) -> None:
        """Send the tool's result."""
        await self._text(work, text, None, last=True)

    async def stream(self, work: InboundRequest, items: AsyncIterator[Any]) -> None:
        """Send the tool's stream, to its end."""
        index: int | None = 0
        try:
            async for item in items:
                index = await self._text(work, result_text(item), index, last=False)
                if index is None:
                    return
                await self._replies.writable(work.properties)
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()
        # An error ends the stream without an index, so it counts even if a chunk before it was lost.
        self._say(work, Reply(None, "", True), chunk=index)

    def fail(self, work: InboundRequest, type: object, message: object, kind: str = ErrorType.TOOL_ERROR) -> None:
        """Reply with an error: the tool's own, or one of sending its result. ``kind``: the error type in the span."""
        work.observer.on_error(kind)
        self._say(work, Reply(ErrorInfo(_sendable(type), _sendable(message)), "", True))

    def refuse(self, work: InboundRequest, reason: str, detail: str) -> None:
        """Reply that the tool is not executed, or not to its end."""
        self._refused[reason] += 1
        work.observer.on_error(ErrorType.TIMEOUT if reason == Refusal.STOPPED else reason)
        extra = {Property.REFUSED: reason}
        if reason == Refusal.OVERLOADED:
            extra[Property.RETRY_AFTER_MS] = str(OVERLOAD_RETRY_AFTER_MS)
        message = detail or {
            Refusal.DRAINING: f"The tool was not executed: {self._id} is shutting down.",
            Refusal.EXPIRED: "The tool was not executed: the caller's deadline had passed before it could start.",
            Refusal.STOPPED: "The tool was stopped at the caller's deadline, and may have been executed in part.",
            Refusal.INSTANCE_RESTARTED: f"{self._id} has restarted since, and may have executed the tool.",
            Refusal.REPLY_EVICTED: f"{self._id} no longer keeps the reply, and may have executed the tool.",
        }.get(reason, reason)
        self._say(work, Reply(ErrorInfo(reason, message), "", True), extra=extra)

    async def _text(self, work: InboundRequest, text: str, index: int | None, *, last: bool) -> int | None:
        """Send ``text``, in fragments if it exceeds a message and the caller accepts them. ``index`` is None outside
        streams.
        Return the next index; None if an error was sent instead, which ends the request."""
        limit = self._limit()
        # Replies stored for an idempotency key must be readable for all callers with that key.
        plain = has_bytes(text, PLAIN_FROM) and Property.PLAIN in work.properties and work.keyed is None
        payload = None
        try:
            if len(text) <= limit:
                payload = (
                    encode_plain(text, limit=limit) if plain else encode_reply(Reply(None, text, last), limit=limit)
                )
        except PayloadTooLargeError:
            pass
        except ValueError as error:
            self._problem(work, ErrorType.INVALID_RESULT, _invalid_result(error))
            return None
        if payload is not None:
            properties = self._properties(work, index)
            if plain:
                properties[Property.PLAIN] = PLAIN_LAST if last else PLAIN_CHUNK
            self._send(work, payload, properties, last=last)
            return 0 if index is None else index + 1
        return await self._in_parts(work, text, index or 0, limit, last=last)

    async def _in_parts(self, work: InboundRequest, text: str, index: int, limit: int, *, last: bool) -> int | None:
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except ValueError as error:
            self._problem(work, ErrorType.INVALID_RESULT, _invalid_result(error))
            return None
        taken = whole_number(work.properties, Property.LARGEST)
        if taken is None:
            self._too_large(work, f"more than the {limit:,} bytes of a message, and the caller accepts no fragments")
            return None
        most = min(taken, self._max_payload_bytes)
        if size > most:
            self._too_large(work, f"{size:,} bytes, the limit is {most:,}")
            return None
        for part, more in split_text(text, size, limit):
            properties = self._properties(work, index)
            if more:
                properties[Property.MORE] = "1"
            payload = encode_reply(Reply(None, part, last and not more), limit=limit)
            self._recall.widen(work, len(payload), 2 * self._max_payload_bytes)
            self._send(work, payload, properties, last=last and not more)
            index += 1
            if more:
                await self._replies.writable(work.properties)
        return index

    def _too_large(self, work: InboundRequest, why: str) -> None:
        message = f"The tool was executed, but its result is too large to send ({why}). Ask for less in one call."
        self._problem(work, ErrorType.RESULT_TOO_LARGE, message)

    def _problem(self, work: InboundRequest, type: str, message: str) -> None:
        # Without an index it counts even if a chunk before it was lost.
        self.fail(work, type, message)

    def _say(
        self, work: InboundRequest, reply: Reply, *, chunk: int | None = None, extra: Mapping[str, str] | None = None
    ) -> None:
        properties = self._properties(work, chunk)
        if extra is not None:
            properties.update(extra)
        self._send(work, encode_reply(reply), properties, last=True)

    def _properties(self, work: InboundRequest, chunk: int | None) -> dict[str, str]:
        properties = {
            Property.ID: work.id,
            Property.INSTANCE: self._instance,
            Property.IN_FLIGHT: str(self._in_flight()),
        }
        if chunk is not None:
            properties[Property.CHUNK] = str(chunk)
        return properties

    def _send(self, work: InboundRequest, payload: bytes, properties: dict[str, str], *, last: bool) -> None:
        properties.update(work.observer.on_reply(is_last=last))
        self._recall.send(work, payload, properties, last=last)


def _invalid_result(error: ValueError) -> str:
    return (
        f"The tool was executed, but its result is not valid text ({error}). Report the failure, or use another tool."
    )


def _sendable(value: object) -> str:
    """Return ``value`` as valid UTF-8 text: the text of a tool's error must not prevent the reply."""
    try:
        text = str(value)
    except BaseException:  # its own __str__ raises
        text = f"(the text of a {type(value).__name__} cannot be read)"
    return text[:MAX_ERROR_CHARS].encode(errors="replace").decode()
