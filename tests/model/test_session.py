"""A caller's and a callee's session against a naive account, on a network that Hypothesis controls packet by packet."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Event,
    OutgoingRequest,
    PeerConflict,
    PeerDraining,
    ReplyReceived,
    RequestCancelled,
    RequestFailed,
    RequestReceived,
    RequestRefused,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.frames import CHUNK_BYTES
from dispatch.protocol.session import CalleeSession, CallerSession, Session
from dispatch.protocol.settings import Settings
from dispatch.protocol.table import SessionTable
from tests.helpers.state_machine_settings import machine
from tests.simulation.network import may_reply_to, response_inbox

SETTINGS = Settings(
    window=3_000, packet_bytes=1_500, large_bytes=1_000, fragment_bytes=600, large_at_once=2, data_window=8_000,
    max_ack_ranges=3, stream_window=3_000, max_partial_bytes=12_000,
)  # fmt: skip
SIZES = st.sampled_from([0, 10, 900, 2_500, 5_000])
SECRET = "secret of d0"
CALLER, CALLEE = response_inbox(SECRET, "d0"), "requests/i0"


class Sent(OutgoingRequest):
    key: int = 0
    size: int = 0
    chunks_received: int = 0
    unread: list[int] = msgspec.field(default_factory=list)


class SessionMachine(RuleBasedStateMachine):
    """Every request is known by a number of its own, in ``target``; its account says what may still happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.random = random.Random(0)
        self.in_transit: list[tuple[str, bytes]] = []
        self.pending: dict[int, Sent] = {}
        self.delivered: set[int] = set()
        self.did_not_run: set[int] = set()
        self.running: dict[int, tuple[CalleeSession, int, int]] = {}
        """Chunks that were sent, by request."""
        self.replies: dict[int, str] = {}
        self.count = 0
        self.caller = self._table("d0", CALLER)
        self.callee = self._table("i0", CALLEE)
        self.session = self.caller.connect(CALLEE, self.now)
        self._send_all()

    def _table(self, name: str, inbox: str) -> SessionTable:
        incarnation = f"{self.random.getrandbits(64):016x}"
        return SessionTable(
            name,
            incarnation,
            [inbox],
            random_bytes=self.random.randbytes,
            secret=SECRET,
            may_reply_to=may_reply_to,
            settings=SETTINGS,
        )

    # -- the application ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.session.is_open and not self.session.is_closed and len(self.pending) < 20)
    @rule(size=SIZES, seconds=st.sampled_from([0.0, 0.05, 5.0]))
    def send_request(self, size: int, seconds: float) -> None:
        self.count += 1
        deadline = self.now + seconds if seconds else float("inf")
        request = self.pending[self.count] = Sent(deadline, key=self.count, size=size)
        self.session.send_request(request, str(self.count), bytes(size), None, self.now)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.pending)))
        may_have_run = self.session.cancel(self.pending.pop(key))
        if not may_have_run:
            self._record_did_not_run(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["reply", "error", "chunk", "chunk", "end", "refuse"]), size=SIZES)
    def answer(self, data: Any, how: str, size: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        session, stream, chunks = self.running[key]
        if how == "chunk" and not session.has_credit(stream):
            return
        if how == "chunk":
            assert session.send_chunk(stream, f"{key}.{chunks}.".encode() + bytes(size))
            self.running[key] = (session, stream, chunks + 1)
            return
        del self.running[key]
        if how == "refuse":
            session.refuse(stream, "overloaded", 1.5, "busy")
            self.replies[key] = "refused"
        elif chunks or how == "end":
            assert session.send_end(stream, f"{key}".encode())
            self.replies[key] = f"end {chunks}"
        else:
            status = 1 if how == "error" else 0
            assert session.send_reply(stream, f"{key}:".encode() + bytes(size), status)
            self.replies[key] = f"reply {status}"
        assert not session.send_reply(stream, b"again")

    @precondition(lambda self: any(request.unread for request in self.pending.values()))
    @rule(data=st.data(), count=st.integers(1, 5))
    def read_chunks(self, data: Any, count: int) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, request in self.pending.items() if request.unread)))
        self._read(self.pending[key], count)

    def _read(self, request: Sent, count: int) -> None:
        for size in request.unread[:count]:
            self.session.consume_chunks(request, size + CHUNK_BYTES)
        del request.unread[:count]

    @precondition(lambda self: self.callee.sessions)
    @rule()
    def drain(self) -> None:
        for session in self.callee.sessions.values():
            assert isinstance(session, CalleeSession)
            session.drain()

    # -- the network --------------------------------------------------------------------------------------------

    @rule()
    def send_packets(self) -> None:
        self._send_all()

    @precondition(lambda self: self.in_transit)
    @rule(
        data=st.data(),
        fate=st.sampled_from(["deliver", "deliver", "deliver", "lose", "duplicate"]),
        is_next=st.booleans(),
    )
    def handle_packet(self, data: Any, fate: str, is_next: bool) -> None:
        at = 0 if is_next else data.draw(st.integers(0, len(self.in_transit) - 1))
        inbox, packet = self.in_transit[at] if fate == "duplicate" else self.in_transit.pop(at)
        if fate != "lose":
            self._receive(inbox, packet)

    @rule(seconds=st.sampled_from([0.001, 0.003, 0.1, 0.5, 3.0]))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        self._run_timers()

    def _run_timers(self) -> None:
        for table in (self.caller, self.callee):
            for session in list(table.sessions.values()):
                events = session.handle_timer(self.now)
                if session.is_closed:
                    table.forget(session)
                self._handle(session, events)

    @rule()
    def restart_callee(self) -> None:
        self.running.clear()
        self.callee = self._table("i0", CALLEE)

    @precondition(lambda self: self.session.is_closed)
    @rule()
    def connect(self) -> None:
        self.session = self.caller.connect(CALLEE, self.now)

    def _send_all(self) -> None:
        for table in (self.caller, self.callee):
            self.in_transit.extend(table.outbox)
            table.outbox.clear()
            for session in list(table.sessions.values()):
                packets = session.packets_to_send(self.now)
                self.in_transit.extend((session.peer_inboxes[path], packet) for path, packet in packets)
        del self.in_transit[:-200]  # a full channel

    def _receive(self, inbox: str, packet: bytes) -> None:
        table = self.callee if inbox == CALLEE else self.caller
        for session, events in list(table.receive_packet(packet, self.now)):
            self._handle(session, events)

    # -- the account --------------------------------------------------------------------------------------------

    def _handle(self, session: Session, events: list[Event]) -> None:
        for event in events:
            match event:
                case RequestReceived():
                    self._record_delivery(session, event)
                case RequestCancelled():
                    key = next(key for key, run in self.running.items() if run[0] is session and run[1] == event.number)
                    del self.running[key]
                case ReplyReceived():
                    request = self._settle(event.request)
                    assert self.replies[request.key] == f"reply {event.status}"
                    assert bytes(event.payload).startswith(f"{request.key}:".encode())
                case ChunkReceived():
                    chunk = self.pending[event.request.key]  # type: ignore[attr-defined]  # a Sent
                    assert bytes(event.payload).startswith(f"{chunk.key}.{chunk.chunks_received}.".encode())
                    chunk.chunks_received += 1
                    chunk.unread.append(len(event.payload))
                    assert chunk.chunks >= chunk.chunks_received
                case EndReceived():
                    request = self._settle(event.request)
                    assert self.replies[request.key] == f"end {request.chunks_received}"
                    assert bytes(event.payload) == f"{request.key}".encode()
                case RequestRefused():
                    request = self._settle(event.request)
                    if event.reason == "overloaded":
                        assert self.replies[request.key] == "refused"
                        assert (event.retry_after, event.message) == (1.5, "busy")
                    else:
                        assert event.reason in ("draining", "expired")
                        self._record_did_not_run(request.key)
                case RequestFailed():
                    request = self._settle(event.request)
                    if not event.may_have_run:
                        self._record_did_not_run(request.key)
                case SessionClosed():
                    assert session.is_closed
                    assert not [key for key, run in self.running.items() if run[0] is session]
                    assert session is not self.session or not self.pending
                case SessionOpened() | PeerDraining() | PeerConflict():
                    assert session.is_open

    def _settle(self, request: OutgoingRequest) -> Sent:
        assert isinstance(request, Sent)
        assert self.pending.pop(request.key) is request
        return request

    def _record_delivery(self, session: Session, event: RequestReceived) -> None:
        assert isinstance(session, CalleeSession)
        key = int(event.target)
        assert key not in self.delivered, f"{key} was delivered twice"
        assert key not in self.did_not_run, f"{key} was delivered after its caller was informed that it did not run"
        self.delivered.add(key)
        self.running[key] = (session, event.number, 0)
        session.consume(len(event.payload))

    def _record_did_not_run(self, key: int) -> None:
        assert key not in self.delivered, f"{key} ran, and its caller is informed that it did not"
        self.did_not_run.add(key)

    @invariant()
    def no_reader_has_more_than_a_window_and_a_chunk(self) -> None:
        for request in self.pending.values():
            waiting = request.unread[:-1]
            assert sum(waiting) + CHUNK_BYTES * len(waiting) < SETTINGS.stream_window

    @invariant()
    def requests_wait_until_their_final_event(self) -> None:
        if not self.session.is_closed:
            assert sorted(request.key for request in self.session.waiting.values()) == sorted(self.pending)  # type: ignore[attr-defined]

    def teardown(self) -> None:
        """On a perfect network every request gets its final event, and both sessions come to rest."""
        for _ in range(4_000):
            for key in list(self.running):
                session, stream, chunks = self.running.pop(key)
                self.replies[key] = f"end {chunks}"
                assert session.send_end(stream, f"{key}".encode())
            self._send_all()
            while self.in_transit:
                self._receive(*self.in_transit.pop(0))
                self._send_all()
            self.now += 0.01
            self._run_timers()
            if not self.pending and all(session.is_at_rest for session in self._sessions()):
                break
        assert not self.pending
        assert all(session.is_at_rest for session in self._sessions())

    def _sessions(self) -> list[Session]:
        return [*self.caller.sessions.values(), *self.callee.sessions.values()]


TestSessionMachine = pytest.mark.costly(SessionMachine.TestCase)
TestSessionMachine.settings = machine(40, 60)


def test_a_request_and_its_reply() -> None:
    """The plain case, without chance: the machine above is able to make progress."""
    machine = SessionMachine()
    while not machine.session.is_open:
        machine._send_all()
        machine._receive(*machine.in_transit.pop(0))
    assert isinstance(machine.session, CallerSession)
    machine.send_request(10, 0.0)
    machine.teardown()
    assert machine.delivered == {1}
