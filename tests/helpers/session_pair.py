"""A dispatcher's and an instance's session table, joined by a perfect network in virtual time.
A session pair whose packets take time, with counts to be read.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from dispatch.protocol import CalleeSession, CallerSession, OutgoingRequest, Session, SessionTable, Settings
from dispatch.protocol.events import Event, RequestReceived

INSTANCE, DISPATCHER = "instance", "dispatcher"


class Pair:
    """A dispatcher and an instance; packets arrive at once unless ``lose`` says otherwise."""

    delay = 0.0
    """Seconds that a packet takes."""

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.now = 1000.0
        self.lose: Callable[[str, bytes], bool] = lambda _inbox, _packet: False
        self.packets: list[tuple[str, bytes]] = []
        self.tables = {
            DISPATCHER: SessionTable(
                DISPATCHER, "d1", [DISPATCHER], random_bytes=random.Random(1).randbytes, secret="s", settings=settings
            ),
            INSTANCE: self.create_instance("i1", 2, settings),
        }
        self.events: dict[str, list[Event]] = {DISPATCHER: [], INSTANCE: []}
        self.served: list[CalleeSession] = []
        self.caller: CallerSession = self.tables[DISPATCHER].connect(INSTANCE, self.now)

    @staticmethod
    def create_instance(incarnation: str, seed: int, settings: Settings) -> SessionTable:
        return SessionTable(
            INSTANCE,
            incarnation,
            [INSTANCE],
            random_bytes=random.Random(seed).randbytes,
            may_reply_to=lambda inbox, secret: inbox.startswith(DISPATCHER) and secret == "s",
            settings=settings,
        )

    @property
    def callee(self) -> CalleeSession:
        (session,) = (each for each in self.tables[INSTANCE].sessions.values() if isinstance(each, CalleeSession))
        return session

    def exchange(self) -> None:
        """Deliver packets until none is due."""
        while (packets := [packet for name in self.tables for packet in self._collect(name)]) and len(packets) < 10_000:
            self.packets += packets
            self.now += self.delay
            for inbox, packet in packets:
                if not self.lose(inbox, packet):
                    name = inbox.partition("-")[0]
                    for session, events in self.tables[name].receive_packet(packet, self.now):
                        self._record(name, session, events)

    def _collect(self, name: str) -> list[tuple[str, bytes]]:
        table = self.tables[name]
        packets, table.outbox = table.outbox, []
        for session in [*table.sessions.values(), self.caller] if name == DISPATCHER else table.sessions.values():
            packets += [(session.peer_inboxes[at], packet) for at, packet in session.packets_to_send(self.now)]
        return packets

    def _record(self, name: str, session: Session, events: list[Event]) -> None:
        self.events[name] += events
        if isinstance(session, CalleeSession) and session not in self.served:
            self.served.append(session)

    def advance(self, seconds: float) -> None:
        """Let time pass, with every timer."""
        end = self.now + seconds
        while True:
            sessions = [(name, each) for name, table in self.tables.items() for each in table.sessions.values()]
            at = min((each.next_timer() for _, each in sessions), default=math.inf)
            self.now = max(self.now, min(at, end))
            if at > end:
                return
            for name, session in sessions:
                if session.next_timer() <= self.now:
                    self._record(name, session, session.handle_timer(self.now))
                    if session.is_closed:
                        self.tables[name].forget(session)
            self.exchange()
            self.now += 1e-6

    def ask(self, payload: bytes = b"{}", **options: float) -> OutgoingRequest:
        """Send a request."""
        request = OutgoingRequest(**options)  # type: ignore[arg-type] # deadline
        assert self.caller.send_request(request, "tool", payload, None, self.now)
        self.exchange()
        return request

    def take(self, name: str) -> list[Event]:
        """Return and forget the events of a process."""
        events, self.events[name] = self.events[name], []
        return events


class DelayedSessionPair(Pair):
    """An open session. Packets towards the names in ``down`` are lost; the others arrive 1 ms later."""

    delay = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher, self.instance = self.tables[DISPATCHER], self.tables[INSTANCE]
        self.down: set[str] = set()
        self.lose = lambda inbox, _packet: inbox in self.down
        self.exchange()

    def connect(self) -> CallerSession:
        """Open a session and exchange its handshake."""
        self.caller = self.dispatcher.connect(INSTANCE, self.now)
        self.exchange()
        return self.caller

    @property
    def requests(self) -> list[RequestReceived]:
        """All requests that the instance has received."""
        return [each for each in self.events[INSTANCE] if isinstance(each, RequestReceived)]
