"""A dispatcher of a story: one session per instance, calls that may be sent again where that is certainly harmless."""

from __future__ import annotations

import math
from collections import deque

import msgspec

from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Event,
    Failure,
    OutgoingRequest,
    PeerConflict,
    PeerDraining,
    PeerRecovered,
    PeerSuspected,
    ReplyReceived,
    RequestFailed,
    RequestRefused,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.frames import CHUNK_BYTES, Status
from dispatch.protocol.session import CallerSession, Session
from tests.simulation.call import Call, Kind
from tests.simulation.node import Node

MAX_ATTEMPTS = 4
RECONNECT_S = 0.2


class SentRequest(OutgoingRequest, kw_only=True):
    """One attempt of a call."""

    call: Call
    attempt: int
    session: CallerSession
    next_chunk: int = 0
    unread: list[int] = msgspec.field(default_factory=list)


class DispatcherNode(Node):
    def start(self) -> None:
        super().start()
        self._sessions: dict[str, CallerSession] = {}
        self._unsent: dict[str, deque[tuple[Call, int]]] = {}
        self._requests: dict[str, SentRequest] = {}
        self._tokens: set[str] = set()
        self._deadlines: dict[str, float] = {}
        self._is_path_added: set[int] = set()
        self.world.counts["dispatcher starts"] += 1

    def stop(self) -> None:
        super().stop()
        for token in self._tokens:
            self.world.ledger.record_outcome(token, "caller killed")
        self._tokens.clear()

    def close_session(self, instance: str) -> None:
        session = self._sessions.get(instance) if self.is_alive else None
        if session is not None and not session.is_closed:
            self.world.counts["closes"] += 1
            self._handle_events(session, self.table.end(session, self.now))
            self.wake()

    def call(self, call: Call) -> None:
        """Start a call; the story runs this whether the process lives or not."""
        if not self.is_alive:
            self.world.ledger.record_outcome(call.token, "caller killed")
            return
        self._tokens.add(call.token)
        self._deadlines[call.token] = math.inf if call.deadline_s is None else self.now + call.deadline_s
        if call.deadline_s is not None:
            self.schedule(call.deadline_s, self._expire_unsent, call)
        if call.cancel_after_s is not None:
            self.schedule(call.cancel_after_s, self._cancel, call)
        self._send(call, call.instance, 1)

    def _send(self, call: Call, instance: str, attempt: int) -> None:
        session = self._connect(instance)
        if not session.is_open:
            self._unsent.setdefault(instance, deque()).append((call, attempt))
            self.wake()
            return
        deadline = self._deadlines[call.token]
        run_until = None if call.grace_s is None else deadline + call.grace_s
        request = self._requests[call.token] = SentRequest(
            deadline, call.max_reply_bytes, call=call, attempt=attempt, session=session
        )
        self.world.ledger.record_sending(call.token, attempt, (run_until or deadline) - self._clock_offset)
        session.send_request(request, call.token, call.request(attempt), call.headers, self.now, run_until=run_until)
        assert request.session.waiting[request.number] is request
        self.wake()

    def _connect(self, instance: str) -> CallerSession:
        session = self._sessions.get(instance)
        if session is None or session.is_closed:
            session = self._sessions[instance] = self.table.connect(self.world.inbox_of(instance), self.now)
            if not self.is_connected:
                session.suspend()
            self.wake()
        return session

    def _instance_of(self, session: Session) -> str:
        return next((name for name, each in self._sessions.items() if each is session), "")

    def _other_instance(self, instance: str) -> str:
        """The next instance that is not draining, else the same one again."""
        names = self.world.instance_names
        at = names.index(instance)
        for name in (*names[at + 1 :], *names[:at]):
            session = self._sessions.get(name)
            if session is None or not session.is_peer_draining:
                return name
        return instance

    def _expire_unsent(self, call: Call) -> None:
        if self._remove_unsent(call):
            self._end(call, "deadline before sending")

    def _remove_unsent(self, call: Call) -> bool:
        for unsent in self._unsent.values():
            for entry in unsent:
                if entry[0] is call:
                    unsent.remove(entry)
                    return True
        return False

    def _cancel(self, call: Call) -> None:
        if call.token not in self._tokens:
            return
        request = self._requests.get(call.token)
        if request is None:
            assert self._remove_unsent(call), f"{call.token} is neither sent nor waiting for a session"
        elif not request.session.cancel(request):
            self.world.counts["withdrawn"] += 1
            self.world.ledger.record_did_not_run(call.token, request.attempt)
        self._end(call, "cancelled")
        self.wake()

    def _end(self, call: Call, outcome: str) -> None:
        self._requests.pop(call.token, None)
        self._tokens.remove(call.token)
        self.world.ledger.record_outcome(call.token, outcome)

    def handle_event(self, session: Session, event: Event) -> None:
        assert isinstance(session, CallerSession)
        match event:
            case SessionOpened():
                self._send_waiting(session)
            case SessionClosed():
                self._reconnect(session, event.reason)
            case PeerDraining():
                assert session.is_peer_draining
                self.world.counts["peer draining"] += 1
            case PeerConflict():
                assert self.world.conditions.has_twin or self.world.conditions.restarts, (
                    "a conflict without a second process"
                )
                self.world.counts["conflicts"] += 1
            case PeerSuspected():
                self.world.counts["suspicions"] += 1
            case PeerRecovered():
                assert not session.is_suspect
            case ReplyReceived():
                self._on_reply(self._find(event.request), event)
            case ChunkReceived():
                request = self._find(event.request)
                assert bytes(event.payload) == request.call.reply(request.next_chunk), "not the next chunk"
                request.next_chunk += 1
                assert request.chunks >= request.next_chunk
                self._hold_chunk(request, len(event.payload))
            case EndReceived():
                request = self._find(event.request)
                assert request.call.kind is Kind.STREAM
                assert request.next_chunk == request.chunks == request.call.chunks
                assert bytes(event.payload) == b"end"
                self._end(request.call, "answered stream")
            case RequestRefused():
                self._on_refusal(self._find(event.request), event)
            case RequestFailed():
                self._on_failure(self._find(event.request), event)
            case _:
                raise AssertionError(f"a dispatcher receives {event}")

    def _hold_chunk(self, request: SentRequest, size: int) -> None:
        waiting = request.unread
        assert sum(waiting) + CHUNK_BYTES * len(waiting) < self.world.settings.stream_window, "chunks without credit"
        waiting.append(size)
        if len(waiting) == 1:
            self.schedule(request.call.read_s, self._read_chunk, request)

    def _read_chunk(self, request: SentRequest) -> None:
        request.session.consume_chunks(request, request.unread.pop(0) + CHUNK_BYTES)
        self.wake()
        if request.unread:
            self.schedule(request.call.read_s, self._read_chunk, request)

    def _find(self, request: OutgoingRequest) -> SentRequest:
        assert isinstance(request, SentRequest)
        assert self._requests.get(request.call.token) is request, f"{request.call.token} has had its final event"
        return request

    def _send_waiting(self, session: CallerSession) -> None:
        instance = self._instance_of(session)
        if len(self.inboxes) > 1 and session.id not in self._is_path_added:
            self._is_path_added.add(session.id)
            self.schedule(self.world.random.choice((0.0, 0.01, 1.0)), self._add_paths, session)
        for call, attempt in self._unsent.pop(instance, ()):
            self._send(call, instance, attempt)

    def _add_paths(self, session: CallerSession) -> None:
        if not session.is_closed:
            self.world.counts["paths added"] += 1
            session.add_paths(self.inboxes)
            self.wake()

    def _reconnect(self, session: CallerSession, reason: Failure) -> None:
        self.world.counts[f"caller closed: {reason.name.lower()}"] += 1
        instance = self._instance_of(session)
        if self._unsent.get(instance):
            self.schedule(RECONNECT_S, self._connect, instance)

    def _on_reply(self, request: SentRequest, event: ReplyReceived) -> None:
        call = request.call
        assert call.kind in (Kind.REPLY, Kind.ERROR)
        assert event.status == (Status.ERROR if call.kind is Kind.ERROR else Status.TEXT)
        assert bytes(event.payload) == call.reply(), f"{call.token}: not its own reply"
        self._end(call, "answered")

    def _on_refusal(self, request: SentRequest, event: RequestRefused) -> None:
        call = request.call
        self.world.counts[f"refused: {event.reason}"] += 1
        if event.reason == "overloaded":
            assert call.kind is Kind.REFUSAL
            assert event.retry_after == 0.5
            assert event.message == "too many"
            self._end(call, "refused")
        elif event.reason == "stopped":
            assert call.kind is Kind.BROKEN_STREAM
            self._end(call, "refused after chunks")
        elif event.reason == "draining":
            self._retry(request, "refused: draining")
        else:
            self._end(call, f"refused: {event.reason}")

    def _on_failure(self, request: SentRequest, event: RequestFailed) -> None:
        reason = event.reason.name.lower()
        self.world.counts[f"failed: {reason}, {'may have run' if event.may_have_run else 'did not run'}"] += 1
        if event.may_have_run:
            self._end(request.call, f"failed: {reason}")
        else:
            self.world.ledger.record_did_not_run(request.call.token, request.attempt)
            self._retry(request, f"failed: {reason}")

    def _retry(self, request: SentRequest, outcome: str) -> None:
        """Send a request that did not run again: if it ran after all, the ledger sees two executions."""
        call = request.call
        del self._requests[call.token]
        if request.attempt == MAX_ATTEMPTS or self._deadlines[call.token] <= self.now:
            self._end(call, outcome)
        else:
            self.world.counts["retries"] += 1
            self._send(
                call, self._other_instance(self._instance_of(request.session) or call.instance), request.attempt + 1
            )
