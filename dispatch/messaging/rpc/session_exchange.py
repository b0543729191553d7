"""The requests of one dispatcher that travel in sessions, and the events of these sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from dispatch._internal.clock import loop_clock
from dispatch._internal.permit import Rejection
from dispatch.messaging.endpoint.endpoint import Endpoint
from dispatch.messaging.rpc.correlation import MAX_PENDING, RETRY_AFTER_S
from dispatch.messaging.rpc.exchange_outcome import Closed, Disposition, Lost, TimedOut
from dispatch.messaging.rpc.session_request import SessionRequest
from dispatch.protocol.caller_session import CallerSession
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Event,
    Failure,
    ReplyReceived,
    RequestFailed,
    RequestRefused,
    SessionClosed,
)
from dispatch.protocol.session import Session


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
