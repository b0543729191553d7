"""The requests of one dispatcher that travel in sessions, and the events of these sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from dispatch._internal import Rejection, loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.plain import MAX_PENDING, RETRY_AFTER_S
from dispatch.messaging.request import (
    Answer,
    Closed,
    Disposition,
    Executor,
    Lost,
    Overflow,
    Request,
    TimedOut,
    Unreadable,
)
from dispatch.messaging.wire import ErrorInfo, Property
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
from dispatch.protocol.frames import Status
from dispatch.protocol.session import CallerSession, Session
from dispatch.telemetry.observers import NO_PROPERTIES

_decode_error = msgspec.json.Decoder(ErrorInfo).decode
_MATCHED, _MALFORMED = Disposition.MATCHED, Disposition.MALFORMED
_TEXT: Final = int(Status.TEXT)
Trace = Mapping[str, str] | None
"""The trace context of a reply; None: it has none."""


class SessionExchange:
    """The requests in sessions of one dispatcher, on the running loop.

    Args:
        replies: replies by disposition, counted here.

    Attributes:
        pending: requests that wait for a reply; their instances count their ends.
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

    def send(self, request: Request, session: CallerSession, executor: Executor) -> bool:
        """Queue ``request`` in a session, whose endpoint is to be woken then. Return False if it was settled at once."""
        now, headers = self.now(), request.properties
        if request.key is not None or request.attempt > 1:
            headers = dict(headers)
            if request.attempt > 1:
                headers[Property.ATTEMPT] = str(request.attempt)
            if request.key is not None:
                headers[Property.IDEMPOTENCY_KEY] = request.key
        if self._is_closed:
            request.settle(Closed(may_have_run=False))
        elif self.pending >= self._max_pending:
            request.settle(Rejection("exchange", "pending-limit", RETRY_AFTER_S))
        elif now >= request.deadline:
            request.settle(TimedOut(request.limit_name, may_have_run=False))
        elif not session.send_request(
            request, request.tool, request.payload, headers or None, now, run_until=request.run_until
        ):
            request.settle(Lost(Failure.CLOSED, may_have_run=False))
        else:
            self.pending += 1
            self._sessions.add(session)
            if request.buffer is None:
                request.executor = executor  # perf: all that begin() does
            else:
                window = session.settings.stream_window
                request.begin(executor, window // 4, window)
            return True
        return False

    def handle_events(self, session: Session, events: list[Event]) -> None:
        """Process the events of a session: the callback of an endpoint."""
        replies = self._replies
        for event in events:
            if type(event) is ReplyReceived:
                disposition, tally = _on_reply(event, session), event.request.tally  # type: ignore[attr-defined] # as below
                replies[disposition] += 1  # perf: as _count, without a call of it
                if tally is not None:
                    tally.counts[disposition].value += 1
            elif type(event) is ChunkReceived:
                self._count(event.request, _on_chunk(event))
            elif type(event) is EndReceived:
                self._count(event.request, _on_end(event, session))
            elif type(event) is RequestRefused:
                self._count(event.request, _on_refusal(event, session))
            elif type(event) is RequestFailed:
                _on_failure(event, session)
            elif self.on_session_event is not None:
                assert isinstance(session, CallerSession)  # a dispatcher accepts no sessions
                if type(event) is SessionClosed and session in self._sessions:
                    self._forget(session)
                self.on_session_event(session, event)

    def _count(self, request: OutgoingRequest, disposition: Disposition) -> None:
        assert isinstance(request, Request)
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
                assert isinstance(request, Request)  # only send() adds requests
                request.settle(Closed(may_have_run))
            self._forget(session)


# What the events of a session do to their request.


def _request_of(event: ReplyReceived | ChunkReceived | EndReceived | RequestRefused | RequestFailed) -> Request:
    return event.request  # type: ignore[return-value] # SessionExchange.send is the only one that adds requests


def _on_reply(event: ReplyReceived, session: Session) -> Disposition:
    """End with a complete reply; in a stream it is the only chunk."""
    request: Request = event.request  # type: ignore[assignment] # as in _request_of
    payload = event.payload
    if event.status != _TEXT:
        return _end_with_error(request, payload, event.trace, session)
    try:
        text = str(payload, "utf-8")  # perf: as _decode_text and _answer, without a call of each
    except UnicodeDecodeError as error:
        return _end_unreadable(request, error)
    if request.buffer is not None and text and not request.is_undecided:
        request.add_text(text, len(payload))
        text = ""
    request.settle(
        Answer(
            text,
            chunks=request.chunks or 1,
            instance=session.peer_name,
            in_flight=session.peer_load,
            trace_context=event.trace or NO_PROPERTIES,
        )
    )
    return _MATCHED


def _on_chunk(event: ChunkReceived) -> Disposition:
    request = _request_of(event)
    text = _decode_text(request, event.payload)
    if text is None:
        if request.executor is not None:
            request.executor.cancel(request)
        return _MALFORMED
    request.add_text(text, len(event.payload))
    return _MATCHED


def _on_end(event: EndReceived, session: Session) -> Disposition:
    request = _request_of(event)
    if event.status != _TEXT:
        return _end_with_error(request, event.payload, event.trace, session)
    text = _decode_text(request, event.payload)
    if text is None:
        return _MALFORMED
    if text and not request.is_undecided:
        request.add_text(text, len(event.payload))
        text = request.text
    request.settle(_answer(request, text or request.text, event.trace, session))
    return _MATCHED


def _on_refusal(event: RequestRefused, session: Session) -> Disposition:
    """End with a refusal: the tool was not executed, or not to its end."""
    request = _request_of(event)
    answer = _answer(request, "", event.trace, session, event.reason, event.message)
    request.settle(msgspec.structs.replace(answer, refused=event.reason, retry_after=event.retry_after))
    return _MATCHED


def _on_failure(event: RequestFailed, session: Session) -> None:
    """End without a reply."""
    request, reason, may_have_run = _request_of(event), event.reason, event.may_have_run
    if reason is Failure.DEADLINE:
        is_last = request.limit_name == "attempt" and request.deadline == request.last_deadline
        request.settle(TimedOut("call" if is_last else request.limit_name, may_have_run, request.chunks))
    elif reason is Failure.TOO_LARGE:
        request.settle(Overflow("max-response-bytes"))
    elif isinstance(error := session.end_error, TransportError) and not may_have_run:
        # A new one: each caller may add to its own.
        request.settle(TransportError(error.type, error.message, may_have_run=False))
    else:
        request.settle(Lost(reason, may_have_run, request.chunks))


def _answer(
    request: Request, text: str, trace: Trace, session: Session, error_type: str | None = None, message: str = ""
) -> Answer:
    return Answer(
        text,
        error_type,
        message,
        request.chunks or 1 if error_type is None else request.chunks + 1,
        instance=session.peer_name,
        in_flight=session.peer_load,
        trace_context=trace or NO_PROPERTIES,
    )


def _decode_text(request: Request, payload: bytes) -> str | None:
    """Return the text of a payload; None: it is not readable, and the request has ended."""
    try:
        return str(payload, "utf-8")
    except UnicodeDecodeError as error:
        _end_unreadable(request, error)
        return None


def _end_unreadable(request: Request, error: UnicodeDecodeError) -> Disposition:
    request.settle(Unreadable(f"the response is not readable: {error}"))
    return _MALFORMED


def _end_with_error(request: Request, payload: bytes, trace: Trace, session: Session) -> Disposition:
    try:
        error = _decode_error(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        request.settle(Unreadable(f"the error is not readable: {problem}"))
        return _MALFORMED
    request.settle(_answer(request, "", trace, session, error.type, error.message))
    return _MATCHED
