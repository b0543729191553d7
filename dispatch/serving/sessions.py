"""Requests and replies over the sessions of dispatchers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from dispatch._internal import loop_clock
from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.wire import ErrorInfo
from dispatch.protocol.events import Event, RequestCancelled, RequestDeclined, RequestReceived, SessionClosed
from dispatch.protocol.frames import Status
from dispatch.protocol.session import CalleeSession, Session
from dispatch.protocol.settings import DEFAULT_SETTINGS
from dispatch.protocol.table import SessionTable
from dispatch.serving.replies import InboundRequest, ReplyTooLargeError
from dispatch.serving.requests import RequestQueue
from dispatch.telemetry.observers import NO_PROPERTIES
from dispatch.transports import Message, Mode, Subscription, Transport

# The reply to a request of a session.


_encode_error = msgspec.json.Encoder().encode


class SessionReplies:
    """The channel of one request (:class:`~dispatch.serving.replies.ReplyChannel`).

    Args:
        owner: has the sessions of the instance.
        session: the session of the caller.
        number: of the request in it.
        size: bytes of the request.
    """

    __slots__ = ("_is_stream", "_number", "_owner", "_session", "_size")

    def __init__(self, owner: SessionRequests, session: CalleeSession, number: int, size: int) -> None:
        self._owner = owner
        self._session = session
        self._number = number
        self._size = size
        self._is_stream = False

    @property
    def topic(self) -> str:
        return self._session.peer_inboxes[0]

    @property
    def request_id(self) -> str:
        return request_id(self._session.peer_address, self._number)

    def send_result(self, text: str, trace: Mapping[str, str]) -> None:
        if self._session.send_reply(self._number, self._encode(text), Status.TEXT, trace):
            self._owner.endpoint.wake(self._session)

    def send_chunk(self, text: str, trace: Mapping[str, str]) -> None:
        self._is_stream = True
        if self._session.send_chunk(self._number, self._encode(text)):  # the end has the trace context
            self._owner.endpoint.wake(self._session)

    def _encode(self, text: str) -> bytes:
        payload = text.encode()
        most = self._owner.max_payload_bytes
        if len(payload) > most:
            raise ReplyTooLargeError(f"{len(payload):,} bytes, the limit is {most:,}")
        return payload

    def send_end(self, trace: Mapping[str, str]) -> None:
        if self._session.send_end(self._number, trace=trace):
            self._owner.endpoint.wake(self._session)

    def send_error(self, type: str, message: str, trace: Mapping[str, str]) -> None:
        send = self._session.send_end if self._is_stream else self._session.send_reply
        if send(self._number, _encode_error(ErrorInfo(type, message)), Status.ERROR, trace):
            self._owner.endpoint.wake(self._session)

    def refuse(self, reason: str, retry_after: float | None, message: str, trace: Mapping[str, str]) -> None:
        if self._session.refuse(self._number, reason, retry_after, message, trace):
            self._owner.endpoint.wake(self._session)

    async def writable(self) -> None:
        await self._owner.endpoint.writable(self._session, self._number)

    def release_payload(self) -> None:
        if self._size:
            self._session.consume(self._size)
            self._size = 0

    def close(self) -> None:
        if self._size:
            self.release_payload()
        self._owner.forget(self._session, self._number)

    def hand_over(self) -> bool:
        return False  # its caller learns from the refusal that another instance may run it


def request_id(caller: int, number: int) -> str:
    """Return the id of a request in traces and logs.

    Args:
        caller: the address of packets to the caller. It is no secret, unlike that of packets to the callee.
        number: of the request.
    """
    return f"{caller:016x}-{number}"


# Requests over the sessions of dispatchers.


logger = logging.getLogger("dispatch.service")

WARN_EVERY_S = 60.0
"""Seconds between two warnings about another instance of the same name."""


class SessionRequests:
    """Accepts the sessions of dispatchers on the instance's inbox, and gives their requests to the queue.

    Args:
        queue: runs the requests.
        transport: the service's connection.
        inbox: the instance's own topic.
        service: the request topic, for warnings.
        instance: the instance's id.
        incarnation: the random name of this run of it.
        may_reply_to: whether a topic may be answered, and belongs to the holder of a secret.
        on_named: see :class:`~dispatch.protocol.table.SessionTable`.
        max_payload_bytes: of a request, and of a reply.

    Attributes:
        endpoint: of the sessions.
    """

    def __init__(
        self,
        queue: RequestQueue,
        transport: Transport,
        inbox: str,
        *,
        service: str,
        instance: str,
        incarnation: str,
        may_reply_to: Callable[[str, str], bool],
        on_named: Callable[[str], None],
        max_payload_bytes: int,
    ) -> None:
        self.max_payload_bytes = max_payload_bytes
        self.table = SessionTable(
            instance,
            incarnation,
            [inbox],
            random_bytes=os.urandom,
            may_reply_to=may_reply_to,
            on_named=on_named,
            settings=msgspec.structs.replace(DEFAULT_SETTINGS, max_payload_bytes=max_payload_bytes),
            max_message_bytes=lambda: transport.max_message_bytes,
        )
        self._queue = queue
        self._transport = transport
        self._inbox = inbox
        self._now = loop_clock()
        self.endpoint = Endpoint(transport, self.table, self._on_events)
        self._subscription: Subscription | None = None
        self._requests: dict[tuple[int, int], InboundRequest] = {}
        self._is_draining = False
        self._service = service
        self._unknown = 0
        self._warn_at = 0.0

    @property
    def malformed(self) -> int:
        """Packets that belong to no session: malformed, late or forged."""
        return self.table.malformed + self.table.unknown + self.table.refused_hellos

    def find_owed(self) -> list[Session]:
        """Return the sessions whose callers have not received all replies to their requests."""
        return [session for session in self.table.sessions.values() if not session.is_at_rest]

    async def start(self) -> None:
        """Consume the inbox.

        Raises:
            TransportError: it cannot be opened.
        """
        self._subscription = await self._transport.subscribe(
            self._inbox,
            self._on_message,
            mode=Mode.FANOUT,
            name="dispatch-instance",
            answer_late=self.table.answer_late,
        )

    def _on_message(self, message: Message) -> None:
        self.endpoint.receive_packet(message.data())

    def _on_events(self, session: Session, events: Sequence[Event]) -> None:
        assert isinstance(session, CalleeSession)  # the table of an instance has no others
        queue, requests, now, caller = self._queue, self._requests, self._now(), str(session.id)
        for event in events:
            if type(event) is RequestReceived:
                number = event.number
                replies = SessionReplies(self, session, number, len(event.payload))
                headers = event.headers or NO_PROPERTIES
                work = InboundRequest(replies, headers, event.payload, event.deadline, event.target, caller)
                requests[session.id, number] = work
                queue.accept(work, now)
            elif type(event) is RequestDeclined:
                queue.record_declined(event.reason)
            elif type(event) is RequestCancelled:
                cancelled = requests.get((session.id, event.number))
                if cancelled is not None:
                    queue.cancel(cancelled)
            elif type(event) is SessionClosed:
                queue.forget_caller(caller)
                if not session.is_open:
                    self._check_name(now)
        self.endpoint.load = queue.occupied
        if self._is_draining and not session.is_closed:
            session.drain()

    def _check_name(self, now: float) -> None:
        """Warn of another instance of the same name: callers have opened no session here after their handshakes, and send
        packets for sessions that are not here."""
        unknown = self.table.unknown
        if unknown > self._unknown and now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            logger.warning(
                "another instance of %s is named %s: give each instance a name of its own, or wait until that one stops",
                self._service,
                self.table.name,
            )
        self._unknown = unknown

    def forget(self, session: CalleeSession, number: int) -> None:
        """Record the end of a request."""
        self.endpoint.load = self._queue.occupied
        self._requests.pop((session.id, number), None)

    def drain(self) -> None:
        """Tell the callers to send further requests elsewhere; those that arrive all the same are refused."""
        self._is_draining = True
        self.table.is_accepting = False
        for session in self.table.sessions.values():
            if isinstance(session, CalleeSession):
                session.drain()
                self.endpoint.wake(session)

    async def flush(self, sessions: Collection[Session] | None = None) -> None:
        """Wait until everything that ``sessions`` (None: all) have sent has arrived."""
        await self.endpoint.flush(sessions)

    async def close(self) -> None:
        """End the sessions, and stop consuming the inbox."""
        await self.endpoint.close()
        if self._subscription is not None:
            await self._subscription.close()
