"""A caller and a callee in the middle of their work, which hostile packets reach between genuine ones."""

from __future__ import annotations

import random
from collections import Counter

from dispatch.protocol.events import OutgoingRequest, RequestReceived
from dispatch.protocol.session import CalleeSession, CallerSession, Session
from dispatch.protocol.settings import Settings
from dispatch.protocol.table import SessionTable
from tests.helpers.internals import count_retained
from tests.simulation.network import may_reply_to, response_inbox
from tests.simulation.packet_fuzzer import SECRET, PacketFuzzer

SETTINGS = Settings(
    large_bytes=2_000, fragment_bytes=700, max_payload_bytes=100_000, max_partial_bytes=200_000, max_gaps=500,
    max_chunks_ahead=50, max_half_open=16, max_sessions=32,
)  # fmt: skip
TURN_PACKETS = 50
"""Hostile packets between two turns, in which timers run and genuine packets are exchanged."""
MAX_MEMORY = 400
"""Objects that one session may retain: a few requests in flight and the bounds of ``SETTINGS``."""


class FuzzedPair:
    """Both tables receive every hostile packet. The fuzzer knows all addresses: more than any adversary."""

    def __init__(self, seed: int) -> None:
        self._random = r = random.Random(seed)
        self._now = 1_000.0
        self._addresses: list[int] = []
        self._fuzzer = PacketFuzzer(r, self._addresses)
        self._caller = SessionTable(
            "d0", "d0-run", [response_inbox(SECRET, "d0")], secret=SECRET, random_bytes=r.randbytes, settings=SETTINGS
        )
        self._callee = SessionTable(
            "i0", "i0-run", ["requests/i0"], random_bytes=r.randbytes, settings=SETTINGS, may_reply_to=may_reply_to
        )
        self._session: CallerSession | None = None
        self.counts: Counter[str] = Counter()

    def run(self, packets: int) -> None:
        """Send so many hostile packets to both tables."""
        for _ in range(packets // TURN_PACKETS):
            for _ in range(TURN_PACKETS):
                packet = self._fuzzer.next_packet()
                self._receive(self._callee, packet)
                self._receive(self._caller, packet)
                if not self._is_whole():
                    self._connect()
            self._run_turn()
            self._check_bounds()
        self.counts["packets"] += packets // TURN_PACKETS * TURN_PACKETS

    def _receive(self, table: SessionTable, packet: bytes) -> None:
        for session, events in table.receive_packet(packet, self._now):
            self.counts["events"] += len(events)
            for event in events:
                if isinstance(event, RequestReceived) and isinstance(session, CalleeSession):
                    self._answer(session, event)

    def _answer(self, session: CalleeSession, event: RequestReceived) -> None:
        session.consume(len(event.payload))
        kind = self._random.random()
        if kind < 0.5:
            session.send_reply(event.number, b"r" * self._random.choice((1, 5_000)))
        elif kind < 0.7:
            session.send_chunk(event.number, b"c")
            session.send_end(event.number)
        elif kind < 0.9:
            session.refuse(event.number, "overloaded")

    def _run_turn(self) -> None:
        self._now += 0.005
        if self._session is not None and len(self._session.waiting) < 20:
            payload = b"q" * self._random.choice((1, 5_000))
            deadline = self._now + self._random.choice((0.02, 10.0))
            self._session.send_request(OutgoingRequest(deadline), "t", payload, None, self._now)
        self._exchange_packets()

    def _is_whole(self) -> bool:
        """Both ends of the session live."""
        return self._session is not None and {self._session.id, self._session.peer_address} == self._open_addresses()

    def _open_addresses(self) -> set[int]:
        tables = (self._caller, self._callee)
        return {session.id for table in tables for session in table.sessions.values() if session.is_open}

    def _connect(self) -> None:
        """Replace a session that a hostile packet has ended: most packets must meet a live one."""
        self.counts["sessions"] += 1
        for table in (self._caller, self._callee):
            for session in list(table.sessions.values()):
                table.end(session, self._now)
            table.outbox.clear()
        self._session = self._caller.connect("requests/i0", self._now)
        for _ in range(3):
            self._exchange_packets()
        assert self._is_whole()

    def _exchange_packets(self) -> None:
        for table, other in ((self._caller, self._callee), (self._callee, self._caller)):
            for session in list(table.sessions.values()):
                session.handle_timer(self._now)
                if session.is_closed:
                    table.forget(session)
                self._exchange(session, other)
            for _, packet in table.outbox:
                self._receive(other, packet)
            table.outbox.clear()
        self._addresses[:] = [*self._caller.sessions, *self._callee.sessions]

    def _exchange(self, session: Session, other: SessionTable) -> None:
        for path, packet in session.packets_to_send(self._now):
            assert 0 <= path < len(session.peer_inboxes)
            self._fuzzer.record_genuine(packet)
            self.counts["genuine packets"] += 1
            self._receive(other, packet)

    def _check_bounds(self) -> None:
        assert len(self._caller.sessions) <= 2
        assert len(self._callee.sessions) <= SETTINGS.max_half_open + SETTINGS.max_sessions
        for table in (self._caller, self._callee):
            for session in table.sessions.values():
                assert count_retained(session) <= MAX_MEMORY, (
                    f"{count_retained(session)} objects in a session of {table}"
                )
