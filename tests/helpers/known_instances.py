"""Instances that a dispatcher knows: each has a genuine session, whose packets the test carries, or does not."""

from __future__ import annotations

import os
from typing import cast

from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.sessions import SessionExchange
from dispatch.protocol import CallerSession, OutgoingRequest, SessionTable
from dispatch.protocol.events import Event
from dispatch.routing.instance import SessionInstance

DISPATCHER = "dispatcher"


class Line:
    """The endpoint of a dispatcher that knows one instance, with the instance's own end of the session.

    Args:
        name, incarnation: of the instance.
    """

    def __init__(self, name: str = "a", incarnation: str = "1") -> None:
        self.now = 0.0
        self.table = SessionTable(DISPATCHER, "d", [DISPATCHER], random_bytes=os.urandom, secret="s")
        self.peer = SessionTable(
            name, incarnation, [name], random_bytes=os.urandom, may_reply_to=lambda _inbox, _secret: True
        )
        self.session = self.table.connect(name, self.now)
        self.events: list[Event] = []
        """Of the dispatcher's end."""
        self.peer_events: list[Event] = []
        self.exchange()
        assert self.session.is_open
        self.events.clear()

    def wake(self, session: CallerSession) -> None:
        """See :class:`Endpoint`: nothing is sent before :meth:`exchange`."""

    def exchange(self) -> None:
        """Carry packets until none is due, without a loss."""
        while self._carry(self.table, self.peer, self.peer_events) | self._carry(self.peer, self.table, self.events):
            pass

    def _carry(self, sender: SessionTable, receiver: SessionTable, events: list[Event]) -> bool:
        packets = [packet for _, packet in sender.outbox]
        sender.outbox.clear()
        for session in sender.sessions.values():
            packets += [packet for _, packet in session.packets_to_send(self.now)]
        for packet in packets:
            for _, caused in receiver.receive_packet(packet, self.now):
                events += caused
        return bool(packets)

    def lose(self, seconds: float) -> None:
        """Let time pass while every packet is lost."""
        end = self.now + seconds
        while (at := self.session.next_timer()) <= end:
            self.now = max(self.now, at)
            self.events += self.session.handle_timer(self.now)
            self.session.packets_to_send(self.now)
        self.now = end


def known_instance(name: str = "a", incarnation: str = "1", exchange: SessionExchange | None = None) -> SessionInstance:
    """Return an instance with an open session; ``exchange``: None for one that is sent no requests."""
    line = Line(name, incarnation)
    return SessionInstance(line.session, cast(Endpoint, line), f"topic-{name}", cast(SessionExchange, exchange))


def occupy(instance: SessionInstance) -> OutgoingRequest:
    """Send a request to ``instance``, which does not answer it."""
    request = OutgoingRequest()
    assert instance.session.send_request(request, "tool", b"{}", None, line_of(instance).now)
    return request


def arouse_suspicion(instance: SessionInstance) -> None:
    """Let ``instance`` leave probes unanswered."""
    line = line_of(instance)
    instance.session.probe()
    instance.session.packets_to_send(line.now)
    line.lose(0.6)
    assert instance.is_suspect


def line_of(instance: SessionInstance) -> Line:
    """Return the endpoint of :func:`known_instance`."""
    return cast(Line, instance.endpoint)
