"""Liveness of the callee as its caller sees it: keep-alive, probes, a suspect or silent callee, and outages."""

from __future__ import annotations

import pytest

from dispatch.protocol import OutgoingRequest, Settings
from dispatch.protocol.events import (
    Failure,
    PeerRecovered,
    PeerSuspected,
    ReplyReceived,
    RequestFailed,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.frames import ALIVE, PING, From, Hello, Ping, decode_packet
from tests.helpers.handwritten_callee import HandWritten
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair

LARGE = bytes(20_000)
"""A reply that travels on the second path, where there is one."""

# -- keep-alive and probes --------------------------------------------------------------------------------------


def test_waiting_requests_keep_the_session_alive() -> None:
    settings = Settings()
    pair = Pair(settings)
    pair.exchange()
    pair.ask()
    pair.advance(0.5)
    pair.packets.clear()
    pair.advance(10.0)
    pings = [frame for inbox, packet in pair.packets if inbox == INSTANCE for frame in decode_packet(packet).frames]
    assert 17 <= sum(type(frame) is Ping for frame in pings) <= 20
    assert not pair.caller.is_closed


def test_an_idle_session_pings_every_third_of_the_idle_time() -> None:
    pair = Pair()
    pair.exchange()
    pair.advance(1.0)
    pair.packets.clear()
    pair.advance(30.0)
    pings = [frame for inbox, packet in pair.packets if inbox == INSTANCE for frame in decode_packet(packet).frames]
    assert sum(type(frame) is Ping for frame in pings) in (2, 3)


def test_a_session_that_is_not_open_sends_no_probe() -> None:
    pair = Pair()
    pair.caller.probe()
    assert not pair.caller._sender.probing


def test_a_probe_is_sent_at_its_time(peer: HandWritten) -> None:
    peer.ask()
    peer.frames()
    at = peer.session.next_timer()
    assert peer.session.handle_timer(at) == []
    assert [type(decode_packet(data).frames[0]) for _, data in peer.session.packets_to_send(at)] == [From, From]


def test_a_silent_peer_gets_several_probe_timeouts_where_a_round_trip_is_long(peer: HandWritten) -> None:
    peer.session._sender.paths[0].rtt = 1.5
    peer.ask()
    peer.frames()
    began, path = peer.pair.now, peer.session._sender.paths[0]
    now, probes = began, 0
    while SessionClosed(Failure.SILENT) not in peer.session.handle_timer(now):
        probes += bool(peer.session.packets_to_send(now))
        now = peer.session.next_timer()
    assert now - began >= Settings().least_probe_timeouts * path.probe_timeout
    assert probes >= 3


def test_an_acknowledgement_a_minute_late_does_not_put_off_the_discovery_of_a_dead_peer() -> None:
    """It took 12 minutes: the minute counted as the round-trip time of the path."""
    pair = Pair()
    pair.exchange()
    path = pair.caller._sender.paths[0]
    path._record_rtt(60.0)
    pair.ask()
    pair.caller.packets_to_send(pair.now)  # and all of them are lost
    began, now = pair.now, pair.now
    while SessionClosed(Failure.SILENT) not in pair.caller.handle_timer(now):
        pair.caller.packets_to_send(now)
        now = pair.caller.next_timer()
    assert now - began <= 11.0


def test_a_process_that_did_not_run_gives_its_peer_time_to_answer(peer: HandWritten) -> None:
    """Packets of the peer may have arrived meanwhile, and are processed after the timers."""
    peer.ask()
    peer.frames()
    now = peer.pair.now
    for at in (now + 0.1, now + 0.3, now + 0.7):
        peer.session.handle_timer(at)
        peer.session.packets_to_send(at)
    assert peer.session.is_suspect
    assert peer.session.handle_timer(now + 5.0) == []
    peer.session.packets_to_send(now + 5.0)
    for step in range(1, 10):
        assert peer.session.handle_timer(now + 5.0 + step / 10) == []
        peer.session.packets_to_send(now + 5.0 + step / 10)
    assert SessionClosed(Failure.SILENT) in peer.session.handle_timer(now + 6.0)


def test_a_peer_whose_event_loop_is_blocked_is_suspect_and_not_gone(pair: Pair) -> None:
    pair.ask()
    pair.advance(0.5)
    pair.take(DISPATCHER)
    alive: list[bytes] = []

    def answer_late(inbox: str, packet: bytes) -> bool:
        if inbox == INSTANCE and (answer := pair.tables[INSTANCE].answer_late(packet)) is not None:
            assert answer[0] == DISPATCHER
            alive.append(answer[1])
        return inbox == INSTANCE

    pair.lose = answer_late
    pair.ask()
    for _ in range(80):
        pair.advance(0.1)
        while alive:
            pair.tables[DISPATCHER].receive_packet(alive.pop(), pair.now)
    assert pair.caller.is_suspect
    assert not pair.caller.is_closed
    assert pair.take(DISPATCHER) == [PeerSuspected()]
    pair.lose = lambda _inbox, _packet: False
    pair.advance(1.0)
    assert pair.take(DISPATCHER) == [PeerRecovered()]
    assert len(pair.callee.running) == 2
    pair.lose = lambda _inbox, _packet: True
    pair.ask()
    pair.advance(2.0)
    assert pair.caller.is_closed


def test_only_probes_of_open_sessions_are_answered_late(pair: Pair) -> None:
    table = pair.tables[INSTANCE]
    pair.ask()
    pair.exchange()
    pair.caller.send_request(OutgoingRequest(), "tool", b"", None, pair.now)
    (packet,) = pair.caller.packets_to_send(pair.now)
    assert table.answer_late(packet[1]) is None, "no probe"
    pair.caller.probe()
    probe = pair.caller.packets_to_send(pair.now)[0][1]
    assert table.answer_late(probe) is not None
    assert table.answer_late(b"\x9a") is None
    table.end(pair.callee, pair.now)
    assert table.answer_late(probe) is None


def test_a_blocked_peer_is_given_up_in_the_end(peer: HandWritten) -> None:
    peer.ask()
    peer.frames()
    began = peer.pair.now
    for step in range(1, 6_500):
        peer.pair.now = began + step / 10
        if SessionClosed(Failure.SILENT) in peer.session.handle_timer(peer.pair.now):
            break
        peer.frames()
        assert peer.send((ALIVE,)) == []
    assert peer.pair.now - began == pytest.approx(Settings().max_blocked, abs=2)


def test_a_suspect_peer(peer: HandWritten) -> None:
    peer.ask()
    peer.frames()
    now = peer.pair.now
    assert not peer.session.is_suspect
    assert peer.session.handle_timer(now + 0.05) == []
    assert peer.session.packets_to_send(now + 0.05) == [], "no probe is due"
    assert peer.session.handle_timer(now + 0.11) == []
    peer.session.packets_to_send(now + 0.11)
    assert not peer.session.is_suspect
    assert peer.session.handle_timer(now + 0.32) == [PeerSuspected()]
    peer.session.packets_to_send(now + 0.32)
    assert peer.session.is_suspect
    assert peer.session.handle_timer(now + 0.9) == []


def test_a_silent_peer_is_given_up_at_once_with_its_requests_past_their_deadlines(peer: HandWritten) -> None:
    now = peer.session.heard_at
    late, waiting = peer.ask(deadline=now + 1.0), peer.ask()
    peer.frames()
    for step in range(1, 10):
        peer.session.handle_timer(now + step / 9.9)
        peer.session.packets_to_send(now + step / 9.9)
    assert peer.session.is_suspect
    assert peer.session.handle_timer(now + 1.0) == [
        RequestFailed(late, Failure.DEADLINE, True),
        RequestFailed(waiting, Failure.SILENT, True),
        SessionClosed(Failure.SILENT),
    ]


@pytest.mark.parametrize("idle", [9.0, 9.99, 10.5])
def test_an_idle_peer_was_not_silent_while_nothing_was_sent_to_it(pair: Pair, idle: float) -> None:
    pair.advance(idle)
    pair.lose = lambda _inbox, _packet: True
    request = pair.ask()
    pair.advance(0.7)
    assert pair.caller.is_suspect
    assert pair.take(DISPATCHER) == [SessionOpened(), PeerSuspected()]
    pair.lose = lambda _inbox, _packet: False
    pair.advance(0.6)
    assert not pair.caller.is_suspect
    assert request in pair.caller.waiting.values()
    assert len(pair.callee.running) == 1


@pytest.mark.parametrize("reply", [b"done", LARGE], ids=["first path", "second path"])
def test_a_caller_was_not_silent_while_nothing_was_sent_to_it(pair: Pair, reply: bytes) -> None:
    pair.caller.add_paths([DISPATCHER, f"{DISPATCHER}-1"])
    request = pair.ask()
    pair.advance(1.0)  # all is acknowledged
    callee = pair.callee
    pair.caller.suspend()
    heard_at, pair.now = callee.heard_at, callee.heard_at + 11.0
    (number,) = callee.running
    assert callee.send_reply(number, reply)
    pair.lose = lambda _inbox, _packet: True
    for _ in range(10):
        pair.exchange()
        pair.now += 0.2
        assert callee.handle_timer(pair.now) in ([], [PeerSuspected()])
    assert callee.is_suspect
    assert callee.heard_at == heard_at
    assert request in pair.caller.waiting.values()


def test_silence_counts_from_the_oldest_packet_of_all_paths(pair: Pair) -> None:
    pair.caller.add_paths([DISPATCHER, f"{DISPATCHER}-1"])
    pair.ask()
    pair.ask()
    pair.advance(1.0)  # all is acknowledged
    callee = pair.callee
    pair.caller.suspend()
    pair.lose = lambda _inbox, _packet: True
    began = pair.now
    first, second = callee.running
    assert callee.send_reply(first, b"done")
    for step in range(1, 100):
        pair.exchange()
        pair.now = began + step / 10
        if step == 50:
            assert callee.send_reply(second, LARGE)
        assert callee.handle_timer(pair.now) in ([], [PeerSuspected()])
    assert callee.handle_timer(began + 10.0) == [SessionClosed(Failure.SILENT)]


def test_a_peer_that_is_heard_is_not_given_up_for_what_it_does_not_acknowledge(peer: HandWritten) -> None:
    peer.ask()
    peer.frames()
    began = peer.pair.now
    for step in range(1, 15):
        peer.pair.now = began + step / 10
        assert peer.session.handle_timer(peer.pair.now) in ([], [PeerSuspected()])
        peer.frames()
        if step == 6:
            assert peer.send((PING,)) == []
    assert peer.session.is_suspect


# -- outages of the connection ----------------------------------------------------------------------------------


OUTAGE_S = Settings().idle
"""Seconds without a packet after which a callee has ended the session."""


def test_a_suspended_session_gives_nothing_up() -> None:
    pair = Pair()
    pair.exchange()
    pair.take(DISPATCHER)
    request = pair.ask()
    pair.lose = lambda _inbox, _packet: True
    for session in (pair.caller, pair.callee):
        session.suspend()
    pair.advance(300.0)
    assert pair.take(DISPATCHER) == []
    pair.lose = lambda _inbox, _packet: False
    for session in (pair.caller, pair.callee):
        session.resume(pair.now)
    pair.callee.send_reply(request.number, b"x")
    pair.advance(1.0)
    assert pair.take(DISPATCHER) == [ReplyReceived(request, 0, b"x")]


@pytest.mark.parametrize("seconds", [OUTAGE_S, 10 * OUTAGE_S])
def test_a_session_that_its_callee_has_ended_during_an_outage_ends(peer: HandWritten, seconds: float) -> None:
    unsent = peer.ask()
    peer.session.suspend()
    now = peer.session.heard_at + seconds
    peer.session.resume(now)
    assert peer.session.packets_to_send(now) == []
    assert peer.session.handle_timer(now) == [
        RequestFailed(unsent, Failure.RESTARTED, False),
        SessionClosed(Failure.RESTARTED),
    ]


def test_a_session_survives_a_shorter_outage(peer: HandWritten) -> None:
    peer.session.suspend()
    now = peer.session.heard_at + OUTAGE_S - 0.1
    peer.session.resume(now)
    assert peer.session.handle_timer(now) == []
    assert not peer.session.is_closed


def test_a_session_survives_an_outage_while_a_request_that_may_have_run_waits(peer: HandWritten) -> None:
    """Its reply may still arrive."""
    peer.ask()
    peer.frames()
    peer.session.suspend()
    now = peer.session.heard_at + OUTAGE_S
    peer.session.resume(now)
    assert peer.session.handle_timer(now) == []
    assert not peer.session.is_closed


def test_the_handshake_begins_anew_after_an_outage() -> None:
    pair = Pair()
    pair.lose = lambda _inbox, _packet: True
    pair.exchange()
    pair.caller.suspend()
    pair.now += OUTAGE_S
    pair.caller.resume(pair.now)
    assert pair.caller.handle_timer(pair.now) == []
    ((_, packet),) = pair.caller.packets_to_send(pair.now)
    assert isinstance(decode_packet(packet).frames[0], Hello)
