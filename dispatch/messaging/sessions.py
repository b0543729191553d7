"""The requests of one dispatcher that travel in sessions, and the events of these sessions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec

from dispatch._internal import Rejection, loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.plain import MAX_PENDING, RETRY_AFTER_S, Place
from dispatch.messaging.request import (
    Answer,
    ChunkBuffer,
    Closed,
    Disposition,
    Lost,
    Overflow,
    Settled,
    Tally,
    TimedOut,
    Unreadable,
)
from dispatch.messaging.wire import ErrorInfo
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Event,
    Failure,
    OutgoingRequest,
    ReplyReceived,
    RequestFailed,
    RequestRefused,
    SessionClosed,
)
from dispatch.protocol.frames import CHUNK_BYTES, Status
from dispatch.protocol.session import CallerSession, Session
from dispatch.telemetry.observers import NO_PROPERTIES

# Requests that travel in a session: one that wants its whole reply, and one that reads a stream of chunks.
#
# Each ends exactly once, in the values of :mod:`dispatch.messaging.request`, as requests of the plain exchange.


_decode_error = msgspec.json.Decoder(ErrorInfo).decode
_MATCHED, _MALFORMED = Disposition.MATCHED, Disposition.MALFORMED
_TEXT: Final = int(Status.TEXT)
Trace = Mapping[str, str] | None
"""The trace context of a reply; None: it has none."""


def _unreadable(error: UnicodeDecodeError) -> Unreadable:
    return Unreadable(f"the response is not readable: {error}")


class SessionRequest(OutgoingRequest):
    """A request whose caller wants the whole reply at once.

    Args:
        exchange: counts it while it is pending.
        peer: the instance.
        deadline: on the loop's clock; ``clock`` names that limit.
        last_deadline: of the call, see :class:`OutgoingRequest`.
        max_bytes: largest reply, over all chunks.
        tally: counts its replies.

    Attributes:
        place: of its call in the bulkhead, which other calls may have while the peer cannot be reached.
        settled: how it ended; None: it has not.
        waiter: has ``settled`` as its result, except for a stream.
    """

    __slots__ = ("_exchange", "_texts", "clock", "peer", "place", "settled", "tally", "waiter")

    def __init__(
        self,
        exchange: SessionExchange,
        peer: Peer,
        deadline: float,
        clock: str,
        max_bytes: int,
        tally: Tally | None,
        last_deadline: float = -math.inf,
    ) -> None:
        super().__init__(deadline, max_bytes, last_deadline)
        self._exchange = exchange
        self.peer = peer
        self.place: Place | None = None
        self.clock = clock
        self.tally = tally
        self.waiter: asyncio.Future[Settled] = exchange.loop.create_future()
        self.settled: Settled | None = None
        self._texts: list[str] | None = None

    # -- events of the session ----------------------------------------------------------------------------------

    def on_reply(self, status: int, payload: bytes, trace: Trace = None) -> Disposition:
        """End with a complete reply."""
        if status != _TEXT:
            return self._end_with_error(payload, trace)
        try:
            text = str(payload, "utf-8")
        except UnicodeDecodeError as error:
            self.settle(_unreadable(error))
            return _MALFORMED
        self.settle(self._answer(text, trace))
        return _MATCHED

    def on_chunk(self, payload: bytes) -> Disposition:
        """Add the next chunk."""
        text = self._decode_text(payload)
        if text is None:
            self._cancel()
            return _MALFORMED
        self._add_text(text, len(payload))
        return _MATCHED

    def on_end(self, status: int, payload: bytes, trace: Trace = None) -> Disposition:
        """End with the end of a stream."""
        if status != _TEXT:
            return self._end_with_error(payload, trace)
        text = self._decode_text(payload)
        if text is None:
            return _MALFORMED
        if text:
            self._add_text(text, len(payload))
        self.settle(self._answer("".join(self._texts or ()), trace))
        return _MATCHED

    def _add_text(self, text: str, size: int) -> None:
        self._record_read(size + CHUNK_BYTES)
        if self._texts is None:
            self._texts = []
        self._texts.append(text)

    def _record_read(self, size: int) -> None:
        """Let the instance send as many bytes of chunks as were read."""
        if self.peer.session.consume_chunks(self, size):
            self.peer.endpoint.wake(self.peer.session)

    def _decode_text(self, payload: bytes) -> str | None:
        """Return the text of a payload; None: it is not readable, and the request has ended."""
        try:
            return str(payload, "utf-8")
        except UnicodeDecodeError as error:
            self.settle(_unreadable(error))
            return None

    def on_refusal(self, reason: str, retry_after: float | None, message: str, trace: Trace = None) -> Disposition:
        """End with a refusal: the tool was not executed, or not to its end."""
        session = self.peer.session
        self.settle(
            Answer(
                "",
                reason,
                message,
                self.chunks + 1,
                refused=reason,
                retry_after=retry_after,
                instance=session.peer_name,
                in_flight=session.peer_load,
                trace_context=trace or NO_PROPERTIES,
            )
        )
        return _MATCHED

    def on_failure(self, reason: Failure, *, may_have_run: bool) -> None:
        """End without a reply."""
        if reason is Failure.DEADLINE:
            clock = "call" if self.clock == "attempt" and self.deadline == self.last_deadline else self.clock
            self.settle(TimedOut(clock, may_have_run, self.chunks))
        elif reason is Failure.TOO_LARGE:
            self.settle(Overflow("max-response-bytes"))
        elif isinstance(error := self.peer.session.end_error, TransportError) and not may_have_run:
            # A new one: each caller may add to its own.
            self.settle(TransportError(error.type, error.message, sent=False))
        else:
            self.settle(Lost(reason, may_have_run, self.chunks))

    def _answer(self, text: str, trace: Trace) -> Answer:
        session = self.peer.session
        return Answer(
            text,
            chunks=self.chunks or 1,
            instance=session.peer_name,
            in_flight=session.peer_load,
            trace_context=trace or NO_PROPERTIES,
        )

    def _end_with_error(self, payload: bytes, trace: Trace) -> Disposition:
        try:
            error = _decode_error(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            self.settle(Unreadable(f"the error is not readable: {problem}"))
            return _MALFORMED
        session = self.peer.session
        self.settle(
            Answer(
                "",
                error.type,
                error.message,
                self.chunks + 1,
                instance=session.peer_name,
                in_flight=session.peer_load,
                trace_context=trace or NO_PROPERTIES,
            )
        )
        return _MATCHED

    # -- the end ------------------------------------------------------------------------------------------------

    def settle(self, settled: Settled) -> None:
        """End with ``settled``; only the first end counts."""
        if self.settled is None:
            self.settled = settled
            if self.stream >= 0:
                self._exchange.pending -= 1
            self._wake()

    def _wake(self) -> None:
        waiter = self.waiter
        if not waiter.done():
            waiter.set_result(self.settled)  # type: ignore[arg-type] # set by settle, the only caller

    def _cancel(self) -> bool:
        """Withdraw the request, or have its execution cancelled. Return whether the tool may have run."""
        may_have_run = self.peer.session.cancel(self)
        self.peer.endpoint.wake(self.peer.session)
        return may_have_run

    def abandon(self) -> None:
        """End and cancel the request: its caller no longer waits."""
        if self.settled is None:
            self.settle(TimedOut("abandoned", self._cancel(), self.chunks))


class SessionStream(SessionRequest):
    """A request whose caller reads chunks as they arrive: iterate, then read ``settled``. Close it to stop early.

    A limit, an error or the end ends the iteration. Chunks that arrived before are still given. The tool waits while the
    reader is behind it by :attr:`Settings.stream_window` bytes.

    Args:
        idle: seconds without a chunk of the tool, or without a read while chunks wait.

    Attributes:
        on_settled: called once ``settled`` is set.
    """

    __slots__ = ("_buffer", "on_settled")

    def __init__(
        self,
        exchange: SessionExchange,
        peer: Peer,
        deadline: float,
        max_bytes: int,
        tally: Tally | None,
        *,
        idle: float,
    ) -> None:
        super().__init__(exchange, peer, deadline, "stream", max_bytes, tally)
        self._buffer = ChunkBuffer(
            idle, self._on_idle, self._record_read, read_step=peer.session.settings.stream_window // 4
        )
        self._buffer.start()
        self.on_settled: Callable[[], object] | None = None

    def on_reply(self, status: int, payload: bytes, trace: Trace = None) -> Disposition:
        """End with a complete reply: a stream of one chunk."""
        return self.on_end(status, payload, trace)

    def _add_text(self, text: str, size: int) -> None:
        if text and self.settled is None:
            self._buffer.add(text, size)
        else:
            self._buffer.record_progress()
            self._record_read(size + CHUNK_BYTES)

    def settle(self, settled: Settled) -> None:
        """See :meth:`SessionRequest.settle`."""
        is_first = self.settled is None
        super().settle(settled)
        if is_first and self.on_settled is not None:
            self.on_settled()

    def _on_idle(self, clock: str) -> None:
        self.settle(TimedOut(clock, self._cancel(), self.chunks))

    def _wake(self) -> None:
        self._buffer.end()

    def __aiter__(self) -> SessionStream:
        return self

    def __anext__(self) -> Coroutine[Any, Any, str]:
        return self._buffer.read()

    def close(self) -> None:
        """Stop reading: the execution of the tool is cancelled."""
        self.abandon()
        self._buffer.clear()


class Peer(Protocol):
    """An instance with an open session."""

    session: CallerSession
    endpoint: Endpoint


class SessionExchange:
    """The requests in sessions of one dispatcher, on the running loop.

    Args:
        replies: replies by disposition, counted here.

    Attributes:
        pending: requests that wait for a reply.
        on_session_event: called with the events that concern no single request; set before the first session is opened.
    """

    def __init__(self, replies: dict[Disposition, int]) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = loop_clock()
        self.pending = 0
        self.on_session_event: Callable[[CallerSession, Event], object] | None = None
        self._replies = replies
        self._max_pending = MAX_PENDING
        self._sessions: set[CallerSession] = set()
        self._is_closed = False

    def unmatched_replies(self) -> dict[Disposition, int]:
        """Return how many replies of open sessions came for requests that had ended; those of ended sessions are in
        ``replies``."""
        sessions = list(self._sessions)  # of another thread, during a scrape
        return {
            Disposition.LATE: sum(session.unmatched.late for session in sessions),
            Disposition.DUPLICATE: sum(session.unmatched.repeated for session in sessions),
        }

    def send(
        self,
        request: SessionRequest,
        target: str,
        payload: bytes,
        headers: Mapping[str, str] | None,
        run_until: float | None = None,
    ) -> None:
        """Send ``request`` to its peer, at the end of this turn of the loop; it may be settled at once.

        Args:
            target: the tool.
            headers: None: none.
            run_until: when the execution ends, where that is later than the request's deadline.
        """
        peer, now = request.peer, self.now()
        if self._is_closed:
            request.settle(Closed(sent=False))
        elif self.pending >= self._max_pending:
            request.settle(Rejection("exchange", "pending-limit", RETRY_AFTER_S))
        elif now >= request.deadline:
            request.settle(TimedOut(request.clock, sent=False))
        elif not peer.session.send_request(request, target, payload, headers, now, run_until=run_until):
            request.settle(Lost(Failure.CLOSED, sent=False))
        else:
            self.pending += 1
            self._sessions.add(peer.session)
            peer.endpoint.wake(peer.session)

    def handle_events(self, session: Session, events: list[Event]) -> None:
        """Process the events of a session: the callback of an endpoint."""
        for event in events:
            if type(event) is ReplyReceived:
                request = _request_of(event)
                self._count(request, request.on_reply(event.status, event.payload, event.trace))
            elif type(event) is ChunkReceived:
                request = _request_of(event)
                self._count(request, request.on_chunk(event.payload))
            elif type(event) is EndReceived:
                request = _request_of(event)
                self._count(request, request.on_end(event.status, event.payload, event.trace))
            elif type(event) is RequestRefused:
                request = _request_of(event)
                disposition = request.on_refusal(event.reason, event.retry_after, event.message, event.trace)
                self._count(request, disposition)
            elif type(event) is RequestFailed:
                _request_of(event).on_failure(event.reason, may_have_run=event.may_have_run)
            elif self.on_session_event is not None:
                assert isinstance(session, CallerSession)  # a dispatcher accepts no sessions
                if type(event) is SessionClosed and session in self._sessions:
                    self._forget(session)
                self.on_session_event(session, event)

    def _count(self, request: SessionRequest, disposition: Disposition) -> None:
        self._replies[disposition] += 1
        if request.tally is not None:
            request.tally.counts[disposition].value += 1

    def _forget(self, session: CallerSession) -> None:
        self._sessions.discard(session)
        self._replies[Disposition.LATE] += session.unmatched.late
        self._replies[Disposition.DUPLICATE] += session.unmatched.repeated

    def close(self) -> None:
        """End everything that waits, and begin nothing more."""
        self._is_closed = True
        for session in list(self._sessions):
            for request in list(session.waiting.values()):
                may_have_run = session.cancel(request)
                assert isinstance(request, SessionRequest)  # only send() adds requests
                request.settle(Closed(may_have_run))
            self._forget(session)


def _request_of(event: ReplyReceived | ChunkReceived | EndReceived | RequestRefused | RequestFailed) -> SessionRequest:
    return event.request  # type: ignore[return-value] # send() is the only one that adds requests
