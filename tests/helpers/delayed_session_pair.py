"""A dispatcher's and an instance's session table that exchange packets in memory, with a clock of their own."""

from __future__ import annotations

import random

from dispatch.protocol import CalleeSession, CallerSession, OutgoingRequest, SessionTable
from dispatch.protocol.events import RequestReceived

INSTANCE, DISPATCHER = "instance", "dispatcher"


class DelayedSessionPair:
    """Two processes. Packets towards the names in ``down`` are lost; the others arrive 1 ms later."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.down: set[str] = set()
        self.dispatcher = SessionTable(
            DISPATCHER, "d1", [DISPATCHER], random_bytes=random.Random(1).randbytes, secret="secret"
        )
        self.instance = SessionTable(
            INSTANCE,
            "i1",
            [INSTANCE],
            random_bytes=random.Random(2).randbytes,
            may_reply_to=lambda inbox, secret: inbox == DISPATCHER and secret == "secret",
        )
        self.packets: list[tuple[str, bytes]] = []
        """All packets so far, with the inboxes that they went to."""
        self.requests: list[RequestReceived] = []
        self.caller = self.connect()

    def connect(self) -> CallerSession:
        """Open a session and exchange its handshake."""
        self.caller = self.dispatcher.connect(INSTANCE, self.now)
        self.exchange()
        return self.caller

    @property
    def callee(self) -> CalleeSession:
        """The instance's one session."""
        (session,) = self.instance.sessions.values()
        assert isinstance(session, CalleeSession)
        return session

    def ask(self, payload: bytes = b"{}") -> OutgoingRequest:
        """Send a request and deliver it."""
        request = OutgoingRequest()
        assert self.caller.send_request(request, "tool", payload, None, self.now)
        self.exchange()
        return request

    def exchange(self) -> None:
        """Deliver packets until none is due."""
        while due := [*self._collect(self.dispatcher), *self._collect(self.instance)]:
            self.packets += due
            self.now += 0.001
            for inbox, packet in due:
                if inbox not in self.down:
                    table = self.instance if inbox == INSTANCE else self.dispatcher
                    for _session, events in table.receive_packet(packet, self.now):
                        self.requests += [each for each in events if isinstance(each, RequestReceived)]

    def advance(self, seconds: float) -> None:
        """Let time pass in steps of 10 ms, with timers."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.01
            for table in (self.dispatcher, self.instance):
                for session in list(table.sessions.values()):
                    session.handle_timer(self.now)
                    if session.is_closed:
                        table.forget(session)
            self.exchange()

    def _collect(self, table: SessionTable) -> list[tuple[str, bytes]]:
        packets, table.outbox = table.outbox, []
        for session in table.sessions.values():
            packets += [(session.peer_inboxes[at], packet) for at, packet in session.packets_to_send(self.now)]
        return packets
