"""A service instance of a story."""

from __future__ import annotations

from dispatch.protocol.events import (
    Event,
    PeerConflict,
    PeerDraining,
    PeerRecovered,
    PeerSuspected,
    RequestCancelled,
    RequestDeclined,
    RequestReceived,
    SessionClosed,
)
from dispatch.protocol.frames import Status
from dispatch.protocol.session import CalleeSession, Session
from tests.simulation.call import Call, Kind
from tests.simulation.node import Node

MAX_QUEUED_BYTES = 100_000
"""A stream waits while more than this is queued in its session."""
BACKPRESSURE_POLL_S = 0.05


class InstanceNode(Node):
    """Executes requests: each call says what its tool does."""

    def start(self) -> None:
        super().start()
        self.is_draining = False
        self._drained: set[int] = set()
        """Sessions whose callers were told to send requests elsewhere."""
        self._running: set[tuple[int, int]] = set()
        self.world.counts["instance starts"] += 1

    def drain(self) -> None:
        if self.is_alive:
            self.is_draining = True
            self.world.counts["drains"] += 1
            for session in self.table.sessions.values():
                assert isinstance(session, CalleeSession)
                self._drain_session(session)
            self.wake()

    def handle_event(self, session: Session, event: Event) -> None:
        assert isinstance(session, CalleeSession)
        match event:
            case RequestReceived():
                self._execute(session, event)
            case RequestCancelled():
                assert (session.id, event.number) in self._running, "a request that does not run is cancelled"
                self._running.remove((session.id, event.number))
                self.world.counts["cancelled while running"] += 1
                assert not session.send_reply(event.number, b""), "a cancelled request still accepts a reply"
            case SessionClosed():
                assert not [each for each in self._running if each[0] == session.id], "requests outlive their session"
                self.world.counts[f"callee closed: {event.reason.name.lower()}"] += 1
            case RequestDeclined():
                assert (session.id, event.number) not in self._running, "a request that runs is declined"
                self.world.counts[f"declined: {event.reason}"] += 1
            case PeerDraining() | PeerConflict() | PeerSuspected() | PeerRecovered():
                pass
            case _:
                raise AssertionError(f"an instance receives {event}")

    def _handle_events(self, session: Session, events: list[Event]) -> None:
        super()._handle_events(session, events)
        if self.is_draining and isinstance(session, CalleeSession):
            self._drain_session(session)  # of a caller that connects meanwhile

    def _drain_session(self, session: CalleeSession) -> None:
        self._drained.add(session.id)
        session.drain()

    def _execute(self, session: CalleeSession, event: RequestReceived) -> None:
        call = self.world.ledger.record_delivery(
            bytes(event.payload), event.target, event.headers, self.world.scheduler.now, self.packet_delay
        )
        assert session.id not in self._drained, f"{call.token} starts at a draining instance"
        assert event.deadline > self.now, f"{call.token} starts after its deadline"
        session.load = len(self._running)
        if call.kind is Kind.REFUSAL:
            session.consume(len(event.payload))
            session.refuse(event.number, "overloaded", 0.5, "too many")
            self.wake()
            return
        self.world.ledger.record_execution(call.token)
        self._running.add((session.id, event.number))
        self.schedule(call.duration_s, self._answer, session, event.number, call, len(event.payload))

    def _answer(self, session: CalleeSession, stream: int, call: Call, size: int) -> None:
        if not session.is_closed:
            session.consume(size)
        is_running = (session.id, stream) in self._running
        if call.kind in (Kind.STREAM, Kind.BROKEN_STREAM):
            if is_running:
                self._send_chunk(session, stream, call, 0)
            return
        self._running.discard((session.id, stream))
        status = Status.ERROR if call.kind is Kind.ERROR else Status.TEXT
        assert session.send_reply(stream, call.reply(), status) == is_running, "a reply without a caller"
        self.wake()

    def _send_chunk(self, session: CalleeSession, stream: int, call: Call, index: int) -> None:
        if (session.id, stream) not in self._running:
            assert not session.send_chunk(stream, b"")
            return
        if not session.has_credit(stream):
            self.world.counts["without credit"] += 1
            self.schedule(BACKPRESSURE_POLL_S, self._send_chunk, session, stream, call, index)
        elif session.queued_bytes > MAX_QUEUED_BYTES:
            self.world.counts["backpressure"] += 1
            self.schedule(BACKPRESSURE_POLL_S, self._send_chunk, session, stream, call, index)
        elif index < call.chunks:
            assert session.send_chunk(stream, call.reply(index))
            self.schedule(call.duration_s / 10, self._send_chunk, session, stream, call, index + 1)
        else:
            self._running.remove((session.id, stream))
            if call.kind is Kind.BROKEN_STREAM:
                session.refuse(stream, "stopped")
            else:
                assert session.send_end(stream, b"end")
        self.wake()
