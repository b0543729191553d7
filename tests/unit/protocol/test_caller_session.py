"""The caller's end: one final event for each request, its deadline, and whether it may have been executed."""

from __future__ import annotations

import math

import pytest

from dispatch.protocol import OutgoingRequest, Settings
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Failure,
    PeerDraining,
    ReplyReceived,
    RequestFailed,
    RequestRefused,
    SessionClosed,
)
from dispatch.protocol.frames import CHUNK, END, GOAWAY, PING, REFUSED, REPLY, Ack, Cancel, Request, decode_packet
from tests.helpers.handwritten_callee import HandWritten
from tests.helpers.session_pair import INSTANCE, Pair

# -- one final event --------------------------------------------------------------------------------------------


def test_a_request_has_one_final_event(peer: HandWritten) -> None:
    request = peer.ask()
    assert peer.send((REPLY, 0, 0, b"x"), (REPLY, 0, 0, b"x")) == [ReplyReceived(request, 0, b"x")]
    for frame in ((REPLY, 0, 0, b"x"), (CHUNK, 0, 0, b"x"), (END, 0, 0, 0, b""), (REFUSED, 0, "overloaded", 0, "")):
        assert peer.send(frame) == []
    assert (peer.session.unmatched.late, peer.session.unmatched.repeated) == (0, 5)
    assert not peer.session.waiting


def test_a_reply_after_its_request_was_given_up_is_late(peer: HandWritten) -> None:
    request, streamed, waiting = peer.ask(), peer.ask(), peer.ask()
    peer.session.cancel(request)
    peer.session.cancel(streamed)
    assert peer.send((CHUNK, 1, 0, b"x")) == []
    assert peer.send((END, 1, 1, 0, b""), (REPLY, 0, 0, b"x"), (REPLY, 0, 0, b"x")) == []
    assert (peer.session.unmatched.late, peer.session.unmatched.repeated) == (3, 1)
    assert peer.send((REPLY, 2, 0, b"x")) == [ReplyReceived(waiting, 0, b"x")]


def test_requests_given_up_are_forgotten_at_rest() -> None:
    pair = Pair()
    pair.exchange()
    requests = [OutgoingRequest() for _ in range(3)]
    for request in requests:
        pair.caller.send_request(request, "tool", b"{}", None, pair.now)
    pair.exchange()
    for request in requests:
        assert pair.caller.cancel(request)
    assert pair.caller.memory() >= 3
    pair.exchange()
    pair.advance(0.1)
    assert pair.caller.memory() == 0


def test_a_packet_that_arrives_twice_counts_once(peer: HandWritten) -> None:
    request = peer.ask()
    assert peer.send((CHUNK, 0, 0, b"x"), number=70) == [ChunkReceived(request, b"x")]
    assert peer.send((CHUNK, 0, 1, b"y"), number=70) == []
    assert peer.session.statistics.duplicates == 1


def test_packets_are_counted_and_gaps_acknowledged_at_once(peer: HandWritten) -> None:
    peer.frames()
    received, duplicates = peer.session.statistics.packets_received, peer.session.statistics.duplicates
    peer.send((PING,), number=60)
    assert peer.session.is_urgent, "numbers are missing"
    assert [frame.ranges[:2] for frame in peer.frames() if isinstance(frame, Ack)] == [[60, 60]]
    assert peer.session.is_urgent is False
    for count in (1, 2):
        peer.send((PING,), number=60)
        assert peer.session.statistics.duplicates == duplicates + count
        assert [type(frame) for frame in peer.frames()] == [Ack], "the acknowledgement was lost"
    assert peer.session.statistics.packets_received == received + 3
    peer.send((PING,), number=61)
    assert not peer.session.is_urgent
    assert peer.frames() == [], "it is not due yet"


def test_chunks_are_ordered(peer: HandWritten) -> None:
    request = peer.ask()
    assert peer.send((CHUNK, 0, 2, b"c"), (CHUNK, 0, 1, b"b")) == []
    assert peer.send((CHUNK, 0, 1, b"b")) == []
    assert peer.send((CHUNK, 0, 0, b"a")) == [ChunkReceived(request, text) for text in (b"a", b"b", b"c")]
    assert peer.send((CHUNK, 0, 0, b"a"), (CHUNK, 0, 2, b"c")) == []
    assert request.chunks == 3
    assert request.reply_bytes == 3


def test_the_end_of_a_stream_waits_for_its_chunks(peer: HandWritten) -> None:
    request = peer.ask()
    assert peer.send((END, 0, 2, 1, b"error")) == []
    assert peer.send((CHUNK, 0, 1, b"b")) == []
    chunks = [ChunkReceived(request, b"a"), ChunkReceived(request, b"b")]
    assert peer.send((CHUNK, 0, 0, b"a")) == [*chunks, EndReceived(request, 1, b"error")]


def test_a_refusal_has_its_reason(peer: HandWritten) -> None:
    first, second, third = peer.ask(), peer.ask(), peer.ask()
    now = (REFUSED, 2, "overloaded", 0, "")
    assert peer.send((REFUSED, 0, "overloaded", 1_500, "full"), (REFUSED, 1, "draining", -1, ""), now) == [
        RequestRefused(first, "overloaded", 1.5, "full"),
        RequestRefused(second, "draining", None, ""),
        RequestRefused(third, "overloaded", 0.0, ""),
    ]


def test_a_draining_peer_is_reported_once(peer: HandWritten) -> None:
    assert not peer.session.is_peer_draining
    assert peer.send((GOAWAY, "stopping"), (GOAWAY, "again")) == [PeerDraining("stopping")]
    assert peer.session.is_peer_draining


def test_requests_fail_with_the_session(peer: HandWritten) -> None:
    sent = peer.ask()
    peer.frames()
    unsent = peer.ask()
    assert peer.session.close(peer.pair.now) == [
        RequestFailed(sent, Failure.CLOSED, True),
        RequestFailed(unsent, Failure.CLOSED, False),
        SessionClosed(Failure.CLOSED),
    ]
    assert not peer.session.send_request(OutgoingRequest(), "tool", b"", None, peer.pair.now)
    assert peer.session.next_timer() == math.inf
    assert peer.session.handle_timer(peer.pair.now + 100.0) == []
    assert peer.session.is_at_rest


# -- whether a request may have been executed -------------------------------------------------------------------


def test_a_request_that_was_not_packed_did_not_run(peer: HandWritten) -> None:
    request, other = peer.ask(), peer.ask()
    assert peer.session.cancel(request) is False
    frames = peer.frames()
    assert Cancel(0) in frames, "it fills the number"
    assert [frame.number for frame in frames if type(frame) is Request] == [other.number]


def test_a_request_that_was_packed_may_have_run(peer: HandWritten) -> None:
    request = peer.ask()
    peer.frames()
    assert peer.session.cancel(request) is True
    assert peer.frames() == [Cancel(0)]


def test_a_request_is_cancelled_once(peer: HandWritten) -> None:
    request = peer.ask()
    assert peer.session.cancel(request) is False
    assert peer.session.cancel(request) is True, "unknown: the answer of the first one counts"
    assert not [frame for frame in peer.frames() if type(frame) is Request]


def test_a_large_request_did_not_run_until_its_last_fragment_is_packed() -> None:
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=1_000, packet_bytes=1_000, window=3_000))
    pair.exchange()
    pair.lose = lambda _inbox, _packet: True
    request = pair.ask(bytes(100_000))
    assert request.large is not None
    assert request.large.offset > 0
    assert pair.caller.cancel(request) is False
    pair.lose = lambda _inbox, _packet: False
    pair.advance(2.0)
    assert pair.take(INSTANCE) == []
    assert pair.caller.is_at_rest
    assert pair.callee.is_at_rest


def test_a_large_request_may_have_run_after_its_last_fragment() -> None:
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=1_000))
    pair.exchange()
    request = pair.ask(bytes(5_000))
    assert pair.caller.cancel(request) is True


# -- deadlines --------------------------------------------------------------------------------------------------


def test_requests_fail_at_their_deadlines(peer: HandWritten) -> None:
    now = peer.pair.now
    later, sooner, never = peer.ask(deadline=now + 2.0), peer.ask(deadline=now + 1.0), peer.ask()
    peer.frames()
    assert peer.session.next_timer() <= now + 1.0
    assert peer.session.handle_timer(now + 0.999) == []
    assert peer.session.handle_timer(now + 1.0) == [RequestFailed(sooner, Failure.DEADLINE, True)]
    assert peer.session.handle_timer(now + 1.999) == []
    assert peer.session.handle_timer(now + 2.0) == [RequestFailed(later, Failure.DEADLINE, True)]
    assert list(peer.session.waiting.values()) == [never]


@pytest.mark.parametrize(("waiting", "step"), [(500, 0.008), (1_000, 0.016), (2_000, 0.016)])
def test_a_search_for_expired_requests_is_bounded_in_time(peer: HandWritten, waiting: int, step: float) -> None:
    """Each search visits all requests: the more wait, the longer until the next search, at most 16 ms."""
    now = peer.pair.now
    for _ in range(waiting - 2):
        peer.ask()
    first, second = peer.ask(deadline=now + 1.0), peer.ask(deadline=now + 1.001)
    assert peer.session.handle_timer(now + 1.0) == [RequestFailed(first, Failure.DEADLINE, False)]
    assert peer.session.handle_timer(now + 1.0 + step - 1e-6) == []
    assert peer.session.handle_timer(now + 1.0 + step + 1e-6) == [RequestFailed(second, Failure.DEADLINE, False)]


def test_the_instance_learns_the_deadline_on_the_callers_clock(peer: HandWritten) -> None:
    peer.pair.now += 3.0
    now = peer.pair.now
    peer.ask(deadline=now + 1.5)
    peer.ask()
    peer.ask(deadline=now - 100.0)
    (packet,) = (decode_packet(packet) for _, packet in peer.session.packets_to_send(now))
    limits = [frame.deadline for frame in packet.frames if type(frame) is Request]
    assert limits[0] - packet.clock in (1_499, 1_500, 1_501)
    assert limits[1:] == [0, 1], "0: none; 1: long ago"


def test_an_idempotent_request_may_run_after_its_caller_has_given_up(peer: HandWritten) -> None:
    now = peer.pair.now
    request = OutgoingRequest(now + 1.0)
    peer.session.send_request(request, "tool", b"", None, now, run_until=now + 60.0)
    peer.session.send_request(OutgoingRequest(now + 1.0), "tool", b"", None, now, run_until=math.inf)
    (packet,) = (decode_packet(packet) for _, packet in peer.session.packets_to_send(now))
    first, second = (frame.deadline for frame in packet.frames if type(frame) is Request)
    assert first - packet.clock in (59_999, 60_000, 60_001)
    assert second == 0
    assert peer.session.handle_timer(now + 1.0)[0] == RequestFailed(request, Failure.DEADLINE, True)
