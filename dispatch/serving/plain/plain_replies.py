"""The reply to a request of the plain exchange: messages with properties, on the caller's topic or the response topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from dispatch.messaging.wire.codec import ErrorInfo, PayloadTooLargeError, Reply, encode_reply
from dispatch.messaging.wire.fragments import split_text
from dispatch.messaging.wire.properties import Property, utf8_size, whole_number
from dispatch.serving.plain.reply_router import ReplyRouter
from dispatch.serving.reply_channel import ReplyTooLargeError
from dispatch.transports import Ticket

if TYPE_CHECKING:  # it stores these
    from dispatch.serving.plain.durable_requests import DurableRequests


class PlainReplySender(msgspec.Struct, frozen=True, eq=False):
    """Sends the plain replies of one service instance.

    Attributes:
        router: chooses the topics.
        instance: the instance's id.
        load: returns the number of running requests.
        limit: returns the broker's message limit in bytes.
        max_payload_bytes: largest reply sent in fragments.
    """

    router: ReplyRouter
    instance: str
    load: Callable[[], int]
    limit: Callable[[], int]
    max_payload_bytes: int

    def send(
        self, request: Mapping[str, str], payload: bytes, extra: Mapping[str, str], trace: Mapping[str, str]
    ) -> Ticket | None:
        """Send a message to the caller of ``request`` (its properties). Return the publish, if it has begun."""
        properties = {
            Property.ID: request[Property.ID],
            Property.INSTANCE: self.instance,
            Property.IN_FLIGHT: str(self.load()),
            **extra,
            **trace,
        }
        return self.router.send(request, payload, properties)


class PlainReplies:
    """The channel of one request (:class:`~dispatch.serving.reply_channel.ReplyChannel`).

    Args:
        sender: of the instance.
        request: the properties of the request.
        durable: retains the request until its reply has been sent; None: it is not retained.
    """

    __slots__ = ("_chunks", "_durable", "_sender", "request", "ticket")

    def __init__(
        self, sender: PlainReplySender, request: Mapping[str, str], durable: DurableRequests | None = None
    ) -> None:
        self._sender = sender
        self._durable = durable
        self._chunks = 0
        self.request = request
        self.ticket: Ticket | None = None
        """The publish of the last message; None: it waits for its topic."""

    @property
    def topic(self) -> str:
        return self._sender.router.topic_for(self.request)

    @property
    def request_id(self) -> str:
        return self.request[Property.ID]

    def send_result(self, text: str, trace: Mapping[str, str]) -> None:
        payload = self._encode(text, is_last=True)
        if payload is not None:
            self._send(payload, {}, trace)
        else:
            self._send_fragments(text, trace, is_last=True)

    def send_chunk(self, text: str, trace: Mapping[str, str]) -> None:
        payload = self._encode(text, is_last=False)
        if payload is not None:
            self._send_numbered(payload, {}, trace)
        else:
            self._send_fragments(text, trace, is_last=False)

    def send_end(self, trace: Mapping[str, str]) -> None:
        self._send_numbered(encode_reply(Reply(None, "", True)), {}, trace)

    def send_error(self, type: str, message: str, trace: Mapping[str, str]) -> None:
        # Without an index it ends the stream even if a chunk before it was lost.
        self._send(encode_reply(Reply(ErrorInfo(type, message), "", True)), {}, trace)

    def refuse(self, reason: str, retry_after: float | None, message: str, trace: Mapping[str, str]) -> None:
        extra = {Property.REFUSED: reason}
        if retry_after is not None:
            extra[Property.RETRY_AFTER_MS] = str(int(retry_after * 1000))
        self._send(encode_reply(Reply(ErrorInfo(reason, message), "", True)), extra, trace)

    def _encode(self, text: str, *, is_last: bool) -> bytes | None:
        """Return the payload of one message; None if it exceeds the broker's limit."""
        limit = self._sender.limit()
        if len(text) > limit:
            return None
        try:
            return encode_reply(Reply(None, text, is_last), limit=limit)
        except PayloadTooLargeError:
            return None

    def _send_fragments(self, text: str, trace: Mapping[str, str], *, is_last: bool) -> None:
        limit = self._sender.limit()
        accepted = whole_number(self.request, Property.LARGEST)
        if accepted is None:
            raise ReplyTooLargeError(f"more than the {limit:,} bytes of a message, and the caller accepts no fragments")
        size, most = utf8_size(text), min(accepted, self._sender.max_payload_bytes)
        if size > most:
            raise ReplyTooLargeError(f"{size:,} bytes, the limit is {most:,}")
        for part, has_more in split_text(text, size, limit):
            payload = encode_reply(Reply(None, part, is_last and not has_more), limit=limit)
            self._send_numbered(payload, {Property.MORE: "1"} if has_more else {}, trace)

    def _send_numbered(self, payload: bytes, extra: Mapping[str, str], trace: Mapping[str, str]) -> None:
        self._send(payload, {Property.CHUNK: str(self._chunks), **extra}, trace)
        self._chunks += 1

    def _send(self, payload: bytes, extra: Mapping[str, str], trace: Mapping[str, str]) -> None:
        self.ticket = self._sender.send(self.request, payload, extra, trace)

    async def writable(self) -> None:
        await self._sender.router.writable(self.request)

    def release_payload(self) -> None:
        """Nothing counts the bytes of requests."""

    def close(self) -> None:
        if self._durable is not None:
            self._durable.record_end(self)

    def hand_over(self) -> bool:
        return self._durable is not None and self._durable.hand_over(self)
