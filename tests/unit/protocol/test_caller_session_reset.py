"""RESET as its caller receives it: a doubted callee, its grace, refutations, and two processes of one name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatch.protocol import Settings
from dispatch.protocol.events import Failure, PeerConflict, PeerDraining, ReplyReceived, RequestFailed, SessionClosed
from dispatch.protocol.frames import GOAWAY, RESET, From, Ping
from tests.helpers.handwritten_callee import HandWritten
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


def test_a_probe_says_where_a_reset_is_sent(peer: HandWritten) -> None:
    peer.session.probe()
    found = [frame for frame in peer.frames() if type(frame) is From]
    assert found == [From(peer.session.id, DISPATCHER, "s")] * 2


def test_reset_of_another_address_is_not_believed(peer: HandWritten) -> None:
    peer.frames()
    for address in (0, 1, peer.session.id):
        assert peer.send((RESET, address, "forged"), number=-1) == []
    assert peer.session.handle_timer(peer.pair.now + 1.0) == []
    assert not peer.session.is_closed


def test_reset_of_the_own_address_is_believed_after_a_grace(peer: HandWritten) -> None:
    request = peer.ask()
    peer.frames()
    assert peer.send((RESET, peer.session.peer_address, "run"), number=-1) == []
    until = peer.session.next_timer()
    for _ in range(100):
        if until >= peer.pair.now + Settings().reset_grace:
            break
        peer.session.handle_timer(until)
        peer.frames()
        until = peer.session.next_timer()
    assert peer.session._doubted_until == pytest.approx(peer.pair.now + 0.3)
    events = peer.session.handle_timer(peer.session._doubted_until)
    assert events == [RequestFailed(request, Failure.RESTARTED, True), SessionClosed(Failure.RESTARTED)]


def test_a_session_about_to_end_sends_nothing_more() -> None:
    """What has not left surely does not run."""
    peer = HandWritten(Settings(reset_timeouts=0, reset_grace=0.05))
    peer.send((RESET, peer.session.peer_address, "run"), number=-1)
    until = peer.pair.now + 0.05
    assert peer.session.next_timer() == until
    request = peer.ask()
    assert peer.session.packets_to_send(until) == []
    assert peer.session.handle_timer(until) == [
        RequestFailed(request, Failure.RESTARTED, False),
        SessionClosed(Failure.RESTARTED),
    ]


def test_a_doubted_peer_is_asked_for_a_sign_of_life(peer: HandWritten) -> None:
    """It may have nothing to send. The question carries no FROM, or a twin would answer it with the next RESET."""
    peer.frames()
    for _ in range(2):
        peer.send((RESET, peer.session.peer_address, "run"), number=-1)
    assert peer.frames() == [Ping()]


def test_a_reset_has_no_number(peer: HandWritten) -> None:
    for number in (0, 1):
        peer.send((RESET, peer.session.peer_address, "run"), number=number)
        assert peer.session._doubted_until == math.inf


def test_reset_is_no_sign_of_life(peer: HandWritten) -> None:
    before = peer.session.heard_at
    peer.pair.now += 1.0
    peer.send((RESET, peer.session.peer_address, "run"), number=-1)
    assert peer.session.heard_at == before


def test_a_packet_of_the_session_refutes_a_reset(peer: HandWritten) -> None:
    peer.ask()
    peer.frames()
    events = []
    for _ in range(3):
        peer.send((RESET, peer.session.peer_address, "twin"), number=-1)
        events += peer.send((GOAWAY, "draining"))
    assert events == [PeerDraining("draining"), PeerConflict()], "two refuted ones show a second process, once"
    assert peer.session.handle_timer(peer.pair.now + 1.0) == []


def test_two_processes_of_one_name_keep_the_session() -> None:
    """Both receive everything; the one that does not know the session answers its probes with RESET."""
    pair = Pair()
    twin = pair.create_instance("i2", 9, Settings())
    pair.exchange()
    pair.take(DISPATCHER)
    receive = pair.tables[INSTANCE].receive_packet

    def receive_both(packet: bytes, now: float) -> Any:
        twin.receive_packet(packet, now)
        resets, twin.outbox = twin.outbox, []
        for _, reset in resets:
            for _, events in pair.tables[DISPATCHER].receive_packet(reset, now):
                pair.events[DISPATCHER] += events
        return receive(packet, now)

    pair.tables[INSTANCE].receive_packet = receive_both  # type: ignore[method-assign]  # the topic has two consumers
    for _ in range(20):
        request = pair.ask()
        pair.caller.probe()
        pair.exchange()
        pair.advance(0.2)
        pair.callee.send_reply(request.number, b"x")
        pair.exchange()
        assert ReplyReceived(request, 0, b"x") in pair.events[DISPATCHER]
    assert not pair.caller.is_closed
    assert pair.events[DISPATCHER].count(PeerConflict()) == 1
