"""The reply to a request of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from dispatch.messaging.wire.codec import ErrorInfo
from dispatch.protocol.callee_session import CalleeSession
from dispatch.protocol.wire.frames import Status
from dispatch.serving.reply_channel import ReplyTooLargeError

if TYPE_CHECKING:  # it creates these
    from dispatch.serving.sessions.session_requests import SessionRequests

_encode_error = msgspec.json.Encoder().encode


class SessionReplies:
    """The channel of one request (:class:`~dispatch.serving.reply_channel.ReplyChannel`).

    Args:
        owner: has the sessions of the instance.
        session: the session of the caller.
        stream: the request's number in it.
        size: bytes of the request.
    """

    __slots__ = ("_is_stream", "_owner", "_session", "_size", "_stream")

    def __init__(self, owner: SessionRequests, session: CalleeSession, stream: int, size: int) -> None:
        self._owner = owner
        self._session = session
        self._stream = stream
        self._size = size
        self._is_stream = False

    @property
    def topic(self) -> str:
        return self._session.peer_inboxes[0]

    @property
    def request_id(self) -> str:
        return request_id(self._session.peer_address, self._stream)

    def send_result(self, text: str, trace: Mapping[str, str]) -> None:
        if self._session.send_reply(self._stream, self._encode(text), Status.TEXT, trace):
            self._owner.wake(self._session)

    def send_chunk(self, text: str, trace: Mapping[str, str]) -> None:
        self._is_stream = True
        if self._session.send_chunk(self._stream, self._encode(text)):  # the end has the trace context
            self._owner.wake(self._session)

    def _encode(self, text: str) -> bytes:
        payload = text.encode()
        most = self._owner.max_payload_bytes
        if len(payload) > most:
            raise ReplyTooLargeError(f"{len(payload):,} bytes, the limit is {most:,}")
        return payload

    def send_end(self, trace: Mapping[str, str]) -> None:
        if self._session.send_end(self._stream, trace=trace):
            self._owner.wake(self._session)

    def send_error(self, type: str, message: str, trace: Mapping[str, str]) -> None:
        send = self._session.send_end if self._is_stream else self._session.send_reply
        if send(self._stream, _encode_error(ErrorInfo(type, message)), Status.ERROR, trace):
            self._owner.wake(self._session)

    def refuse(self, reason: str, retry_after: float | None, message: str, trace: Mapping[str, str]) -> None:
        if self._session.refuse(self._stream, reason, retry_after, message, trace):
            self._owner.wake(self._session)

    async def writable(self) -> None:
        await self._owner.writable(self._session, self._stream)

    def release_payload(self) -> None:
        if self._size:
            self._session.consume(self._size)
            self._size = 0

    def close(self) -> None:
        self.release_payload()
        self._owner.forget(self._session, self._stream)

    def hand_over(self) -> bool:
        return False  # its caller learns from the refusal that another instance may run it


def request_id(caller: int, stream: int) -> str:
    """Return the id of a request in traces and logs.

    Args:
        caller: the address of packets to the caller. It is no secret, unlike that of packets to the callee.
        stream: the request's number.
    """
    return f"{caller:016x}-{stream}"
