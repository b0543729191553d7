"""The caller's end: one final event for each request, its deadline, and whether it may have been executed.
The caller's end of the handshake: HELLO until ACCEPT, the proof of the secret, and requests that wait for it.
Limits of the caller's end: sizes of replies, chunks ahead, incomplete payloads, window and retained memory.
Liveness of the callee as its caller sees it: keep-alive, probes, a suspect or silent callee, and outages.
RESET as its caller receives it: a doubted callee, its grace, refutations, and two processes of one name.
Flow control of each stream: the callee's chunks wait for the caller's reads, and no stream waits for ever.
"""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.protocol import OutgoingRequest, Settings
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Failure,
    PeerConflict,
    PeerDraining,
    PeerRecovered,
    PeerSuspected,
    ReplyReceived,
    RequestCancelled,
    RequestFailed,
    RequestReceived,
    RequestRefused,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.frames import (
    ACCEPT,
    ACK,
    ALIVE,
    CHUNK,
    CHUNK_BYTES,
    CONT,
    END,
    GOAWAY,
    HELLO,
    PING,
    REFUSED,
    REPLY,
    RESET,
    STREAM_CREDIT,
    VERSION,
    Ack,
    Cancel,
    Chunk,
    Credit,
    From,
    Hello,
    Ping,
    Request,
    decode_packet,
    derive_proof,
    encode,
    encode_packet,
)
from tests.helpers.handwritten_packets import hello, packet, receive
from tests.helpers.handwritten_peer import HandWritten
from tests.helpers.internals import count_retained
from tests.helpers.run_profile import examples
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


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
    assert count_retained(pair.caller) >= 3
    pair.exchange()
    pair.advance(0.1)
    assert count_retained(pair.caller) == 0


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
    assert (request.chunks, request.reply_bytes) == (3, 3)


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
    assert pair.caller.cancel(pair.ask(bytes(5_000))) is True


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


@pytest.mark.parametrize(("is_suspect", "fails_after"), [(False, 0.25), (True, 0.5)])
def test_only_a_request_to_a_suspected_callee_waits_until_its_last_deadline(
    peer: HandWritten, is_suspect: bool, fails_after: float
) -> None:
    """A retry elsewhere might block that instance, too; and if the callee is gone, the session ends soon."""
    now = peer.pair.now
    if is_suspect:
        peer.session.suspend()
        assert peer.session.resume(now) == [PeerSuspected()]
    request = peer.ask(deadline=now + 0.25, last_deadline=now + 0.5)
    other = peer.ask(deadline=now + 0.125, last_deadline=now)
    assert peer.session.handle_timer(now + 0.125) == [RequestFailed(other, Failure.DEADLINE, False)]
    assert peer.session.next_deadline() == now + 0.25
    if is_suspect:
        assert peer.session.handle_timer(now + 0.25) == []
        assert peer.session.next_deadline() == now + fails_after
    assert peer.session.handle_timer(now + fails_after) == [RequestFailed(request, Failure.DEADLINE, False)]


NONCE = bytes(16)


def accept(pair: Pair, **changes: Any) -> tuple[Any, ...]:
    """Return the ACCEPT of an instance that knows the secret, with some fields changed."""
    proof = derive_proof("s", pair.caller.id, NONCE, "i", "run")
    fields = {"version": VERSION, "features": 0, "name": "i", "incarnation": "run", "nonce": NONCE, "proof": proof}
    return (ACCEPT, *(fields | changes).values(), 16_000_000)


def receive_accept(pair: Pair, frame: tuple[Any, ...]) -> list[Any]:
    return receive(pair, DISPATCHER, packet(pair.caller.id, frame, number=-1))


def receive_proven_accept(changes: dict[str, Any]) -> list[Any]:
    """Return the events of an ACCEPT whose proof fits the changed fields."""
    pair = Pair()
    fields: dict[str, Any] = {"name": "i", "incarnation": "run", "nonce": NONCE} | changes
    proof = derive_proof("s", pair.caller.id, fields["nonce"], fields["name"], fields["incarnation"])
    return receive_accept(pair, accept(pair, proof=proof, **changes))


def test_only_a_proof_of_the_secret_opens_a_session() -> None:
    pair = Pair()
    assert receive_accept(pair, accept(pair, proof=bytes(16))) == []
    assert receive_accept(pair, accept(pair, name="other")) == []
    assert receive_accept(pair, accept(pair, incarnation="other")) == []
    assert receive_accept(pair, accept(pair, nonce=bytes(15) + b"1")) == []
    assert not pair.caller.is_open
    assert receive_accept(pair, accept(pair)) == [SessionOpened()]
    assert pair.caller.is_open
    assert (pair.caller.peer_name, pair.caller.peer_incarnation) == ("i", "run")


@pytest.mark.parametrize("changes", [{"name": "n" * 513}, {"incarnation": "n" * 513}, {"nonce": bytes(65)}])
def test_an_accept_with_unusable_names_is_ignored(changes: dict[str, Any]) -> None:
    assert receive_proven_accept(changes) == []


def test_limits_of_a_usable_accept() -> None:
    assert receive_proven_accept({"name": "n" * 512, "incarnation": "n" * 512, "nonce": bytes(64)}) == [SessionOpened()]


def test_a_second_accept_changes_nothing() -> None:
    pair = Pair()
    assert receive_accept(pair, accept(pair)) == [SessionOpened()]
    address = pair.caller.peer_address
    proof = derive_proof("s", pair.caller.id, bytes(15) + b"1", "twin", "run")
    second = accept(pair, nonce=bytes(15) + b"1", name="twin", proof=proof)
    assert receive_accept(pair, second) == []
    assert (pair.caller.peer_address, pair.caller.peer_name) == (address, "i")


def test_peers_without_a_common_version_have_no_session() -> None:
    pair = Pair()
    assert receive_accept(pair, accept(pair, version=0)) == [SessionClosed(Failure.VERSION)]


def test_before_the_handshake_has_ended_other_frames_are_ignored() -> None:
    pair = Pair()
    pair.caller.send_request(OutgoingRequest(), "tool", b"", None, pair.now)
    assert receive_accept(pair, (REPLY, 0, 0, b"forged")) == []
    assert receive_accept(pair, (GOAWAY, "forged")) == []
    assert not pair.caller.is_open


def test_hello_repeats_with_longer_intervals_until_accept() -> None:
    pair = Pair()
    pair.lose = lambda _inbox, _packet: True
    times: list[float] = []
    start = pair.now
    while pair.now < start + 3.0:
        times += [pair.now - start for _ in pair.caller.packets_to_send(pair.now)]
        pair.now = max(pair.caller.next_timer(), pair.now + 1e-6)
        pair.caller.handle_timer(pair.now)
    intervals = [later - earlier for earlier, later in pairwise(times)]
    assert intervals[:4] == pytest.approx([0.1, 0.2, 0.4, 0.5], abs=1e-4)
    assert intervals[4:] == pytest.approx([0.5] * len(intervals[4:]), abs=1e-4)


def test_hello_has_what_the_callee_needs() -> None:
    pair = Pair()
    ((path, packet),) = pair.caller.packets_to_send(pair.now)
    decoded = decode_packet(packet)
    assert (path, decoded.path, decoded.to, decoded.number, decoded.flags) == (0, 0, 0, -1, 0)
    about = (DISPATCHER, "d1", pair.caller.id, "s", [DISPATCHER])
    assert decoded.frames == [Hello([VERSION], STREAM_CREDIT, *about, 16_000_000, 2_000_000, "")]


def test_an_instance_that_does_not_answer_hello_is_given_up() -> None:
    pair = Pair()
    pair.lose = lambda _inbox, _packet: True
    request = OutgoingRequest()
    pair.caller.send_request(request, "tool", b"", None, pair.now)
    late = OutgoingRequest(pair.now + 10.0)
    pair.caller.send_request(late, "tool", b"", None, pair.now)
    assert pair.caller.handle_timer(pair.now + 9.99) == []
    assert pair.caller.handle_timer(pair.now + 10.0) == [
        RequestFailed(late, Failure.DEADLINE, False),
        RequestFailed(request, Failure.SILENT, False),
        SessionClosed(Failure.SILENT),
    ]


def test_a_request_waits_for_the_handshake() -> None:
    pair = Pair()
    pair.caller.send_request(OutgoingRequest(), "tool", b"{}", None, pair.now)
    pair.exchange()
    assert [type(event) for event in pair.take(INSTANCE)] == [RequestReceived]


def test_a_deadline_passes_before_the_handshake_has_ended() -> None:
    pair = Pair()
    pair.lose = lambda _inbox, _packet: True
    request = OutgoingRequest(pair.now + 1.0)
    pair.caller.send_request(request, "tool", b"{}", None, pair.now)
    pair.advance(1.1)
    assert pair.take(DISPATCHER) == [RequestFailed(request, Failure.DEADLINE, False)]


def test_too_many_chunks_ahead_fail_the_request() -> None:
    peer = HandWritten(Settings(max_chunks_ahead=2))
    request = peer.ask()
    assert peer.send((CHUNK, 0, 1, b""), (CHUNK, 0, 2, b"")) == []
    peer.frames()
    assert peer.send((CHUNK, 0, 3, b"")) == [RequestFailed(request, Failure.VIOLATION, True)]
    assert request.ahead is None


def test_a_reply_above_its_limit_fails_the_request(peer: HandWritten) -> None:
    fits, exceeds = peer.ask(max_reply_bytes=3), peer.ask(max_reply_bytes=3)
    assert peer.send((REPLY, 0, 0, b"abc")) == [ReplyReceived(fits, 0, b"abc")]
    assert peer.send((REPLY, 1, 0, b"abcd")) == [RequestFailed(exceeds, Failure.TOO_LARGE, True)]


def test_the_chunks_of_a_stream_are_limited_together(peer: HandWritten) -> None:
    request = peer.ask(max_reply_bytes=3)
    peer.frames()
    found = peer.send((CHUNK, 0, 0, b"ab"), (CHUNK, 0, 1, b"c"))
    assert found == [ChunkReceived(request, b"ab"), ChunkReceived(request, b"c")]
    assert peer.send((CHUNK, 0, 2, b"d")) == [RequestFailed(request, Failure.TOO_LARGE, True)]
    assert Cancel(0) in peer.frames()


def test_too_many_incomplete_payloads_fail_the_request(peer: HandWritten) -> None:
    peer = HandWritten(Settings(max_partials=1))
    peer.ask()
    second = peer.ask()
    peer.frames()
    assert peer.send((CONT, 0, 0, 2_000, 0, None, memoryview(bytes(1_000)))) == []
    failed = peer.send((CONT, 1, 0, 2_000, 1, None, memoryview(bytes(1_000))))
    assert failed == [RequestFailed(second, Failure.VIOLATION, True)], "its size is not the reason"


def test_a_reply_may_be_as_large_as_its_request_allows() -> None:
    """Also where that is above what this process accepts as a request, and above what may be incomplete beside others."""
    peer = HandWritten(Settings(max_payload_bytes=1_000, max_partial_bytes=1_500))
    request = peer.ask(max_reply_bytes=2_000)
    head, piece = encode((REPLY, 0, 0, b"")), memoryview(bytes(1_000))
    assert peer.send((CONT, 0, 0, 2_000, 0, head, piece)) == []
    assert peer.send((CONT, 0, 1_000, 2_000, 0, None, piece)) == [ReplyReceived(request, 0, bytes(2_000))]


def test_nothing_is_retained_of_a_request_that_has_ended() -> None:
    peer = HandWritten(Settings(large_bytes=1_000, fragment_bytes=1_000, window=2_000))
    before = count_retained(peer.session)
    requests = [peer.ask(), peer.ask(), peer.ask(), peer.ask()]
    assert count_retained(peer.session) == before + 8, "waiting and queued"
    peer.frames()
    head = encode((REPLY, 0, 0, b""))
    for stream in range(4):
        peer.send((CONT, stream, 0, 2_000, stream, head, memoryview(bytes(1_000))), (CHUNK, stream, 1, b""))
    assert len(peer.session._reassembly) == 4
    peer.session.cancel(requests[0])
    peer.send((REFUSED, 1, "overloaded", -1, ""))
    assert len(peer.session._reassembly) == 2
    peer.send((REPLY, 2, 0, b""))
    assert [request.ahead for request in requests] == [None, None, None, {1: b""}]
    peer.session.close(peer.pair.now)
    assert (requests[3].ahead, requests[3].large) == (None, None)
    assert peer.session.is_at_rest


def test_a_large_request_that_ends_is_not_sent_any_further() -> None:
    peer = HandWritten(Settings(large_bytes=1_000, fragment_bytes=1_000, packet_bytes=1_000, window=2_000))
    cancelled, refused = peer.ask(bytes(50_000)), peer.ask(bytes(50_000))
    peer.frames()
    assert peer.session.queued_bytes > 90_000
    peer.session.cancel(cancelled)
    assert 40_000 < peer.session.queued_bytes <= 50_000
    assert peer.send((REFUSED, 1, "draining", -1, "")) == [RequestRefused(refused, "draining", None, "")]
    assert peer.session.queued_bytes == 0


def test_a_peer_shares_the_window_while_its_requests_wait() -> None:
    pair = Pair()
    pair.exchange()
    window = pair.tables[DISPATCHER].receive_window
    assert window.senders == 0
    first, second = pair.ask(), pair.ask()
    assert window.senders == 1
    pair.callee.send_reply(first.number, b"")
    pair.exchange()
    assert window.senders == 1
    pair.callee.send_reply(second.number, b"")
    pair.exchange()
    assert window.senders == 0
    pair.caller.cancel(pair.ask())
    assert window.senders == 0


def test_a_request_that_no_longer_fits_into_a_smaller_window_travels_in_fragments(peer: HandWritten) -> None:
    packet = encode_packet((VERSION, peer.session.id, 0, 51, 0, 0, 0, 0, 1_500), [(GOAWAY, "x")])
    peer.pair.tables[DISPATCHER].receive_packet(packet, peer.pair.now)
    assert peer.session.window == 1_500
    request = peer.ask(bytes(5_000))
    assert request.large is None
    peer.frames()
    assert request.large is not None
    assert peer.session.cancel(request) is False, "its last fragment was not packed"
    assert peer.session.queued_bytes == 0


LARGE = bytes(100_000)
"""A reply that travels on the second path, where there is one."""


# -- keep-alive and probes --------------------------------------------------------------------------------------
def test_waiting_requests_keep_the_session_alive() -> None:
    pair = Pair(Settings())
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
    peer.session._sender.paths[0].probe_timeout = 1.5
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


@pytest.mark.parametrize(("late", "is_excused"), [(0.25, True), (0.25 - 1 / 64, False)])
def test_only_a_late_timer_excuses_the_silence_of_the_peer(late: float, is_excused: bool) -> None:
    """Times are exact as binary fractions."""
    peer = HandWritten(Settings(first_rtt=1 / 16, late_timer=0.25))
    sent_at = peer.pair.now
    assert peer.session.next_timer() == sent_at + 1 / 8
    now = sent_at + 1 / 8 + late
    assert peer.session.handle_timer(now) == []
    assert peer.session.silent_since == (now if is_excused else sent_at)


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
    for step in range(1, 6_000):
        peer.pair.now = began + step / 8
        if SessionClosed(Failure.SILENT) in peer.session.handle_timer(peer.pair.now):
            break
        peer.frames()
        assert peer.send((ALIVE,)) == []
    assert peer.pair.now - began == Settings().max_blocked


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
    assert any(inbox == f"{DISPATCHER}-1" for inbox, _ in pair.packets) is (reply is LARGE)
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
    longest = callee.settings.callee_give_up
    for step in range(1, int(10 * longest)):
        pair.exchange()
        pair.now = began + step / 10
        if step == 50:
            assert callee.send_reply(second, LARGE)
        assert callee.handle_timer(pair.now) in ([], [PeerSuspected()])
    assert callee.handle_timer(began + longest) == [SessionClosed(Failure.SILENT)]


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
    assert pair.take(DISPATCHER) == [PeerRecovered(), ReplyReceived(request, 0, b"x")]


def test_a_peer_is_suspect_after_an_outage_until_it_acknowledges(peer: HandWritten) -> None:
    peer.session.suspend()
    assert peer.session.resume(peer.session.heard_at + 5) == [PeerSuspected()]
    assert Ping() in peer.frames()
    assert peer.send((PING,)) == []
    assert peer.session.is_suspect
    assert peer.send((ACK, 0, 0, [0, 10])) == [PeerRecovered()]


@pytest.mark.parametrize("seconds", [OUTAGE_S, 10 * OUTAGE_S])
def test_a_session_that_its_callee_has_ended_during_an_outage_ends(peer: HandWritten, seconds: float) -> None:
    unsent = peer.ask()
    peer.session.suspend()
    now = peer.session.heard_at + seconds
    assert peer.session.resume(now) == [], "there is no doubt that it has ended"
    assert peer.session.packets_to_send(now) == []
    found = peer.session.handle_timer(now)
    assert found == [RequestFailed(unsent, Failure.RESTARTED, False), SessionClosed(Failure.RESTARTED)]


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
    assert pair.caller.resume(pair.now) == [], "a peer that has not answered HELLO yet is not suspect"
    assert pair.caller.handle_timer(pair.now) == []
    ((_, packet),) = pair.caller.packets_to_send(pair.now)
    assert isinstance(decode_packet(packet).frames[0], Hello)


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
    found = peer.session.handle_timer(until)
    assert found == [RequestFailed(request, Failure.RESTARTED, False), SessionClosed(Failure.RESTARTED)]


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


WINDOW = 1_000
SMALL = Settings(stream_window=WINDOW)


def credits(frames: list[Any]) -> list[Credit]:
    return [frame for frame in frames if type(frame) is Credit]


@pytest.fixture
def pair() -> Pair:
    pair = Pair(SMALL)
    pair.exchange()
    return pair


def test_a_stream_has_the_window_of_hello_and_then_what_the_caller_has_read(pair: Pair) -> None:
    request = pair.ask()
    callee, size = pair.callee, 100
    sent = 0
    while callee.has_credit(0):
        assert callee.send_chunk(0, bytes(size))
        sent += size + CHUNK_BYTES
    assert WINDOW <= sent < WINDOW + size + CHUNK_BYTES, "the last chunk may have any size"
    pair.exchange()
    assert not callee.has_credit(0)
    assert not pair.caller.consume_chunks(request, WINDOW // 4 - 1), "the callee learns of it in quarters of the window"
    pair.exchange()
    assert not callee.has_credit(0)
    assert pair.caller.consume_chunks(request, WINDOW // 4 + 1)
    pair.exchange()
    assert callee.has_credit(0)
    callee.send_chunk(0, bytes(WINDOW // 2))
    assert not callee.has_credit(0)


def test_the_callee_learns_of_each_quarter_of_the_window_that_its_caller_has_read(pair: Pair) -> None:
    request = pair.ask()
    quarter = WINDOW // 4
    sizes = [quarter - 1, 1, quarter - 1, 1, 3 * quarter]
    assert [pair.caller.consume_chunks(request, size) for size in sizes] == [False, True, False, True, True]
    sent = [frame for _, data in pair.caller.packets_to_send(pair.now) for frame in decode_packet(data).frames]
    assert credits(sent) == [Credit(0, WINDOW + read * quarter) for read in (1, 2, 5)]


@pytest.mark.parametrize(("bytes_left", "has_credit"), [(1, True), (0, False)])
def test_a_further_chunk_may_be_sent_while_the_window_has_a_byte(pair: Pair, bytes_left: int, has_credit: bool) -> None:
    pair.ask()
    assert pair.callee.send_chunk(0, bytes(WINDOW - CHUNK_BYTES - bytes_left))
    assert pair.callee.has_credit(0) is has_credit


def test_each_stream_has_its_own_credit_and_none_after_its_end(pair: Pair) -> None:
    requests = [pair.ask() for _ in range(5)]
    callee = pair.callee
    for stream in range(5):
        callee.send_chunk(stream, bytes(WINDOW))
    assert not any(map(callee.has_credit, range(5)))
    pair.exchange()
    pair.caller.consume_chunks(requests[0], WINDOW + CHUNK_BYTES)
    pair.caller.cancel(requests[1])
    pair.exchange()
    callee.send_end(2)
    callee.refuse(3, "stopped")
    assert list(map(callee.has_credit, range(5))) == [True, True, True, True, False]
    assert not callee.send_chunk(1, b""), "its caller has gone: nothing to wait for"
    assert not pair.caller.consume_chunks(requests[1], 10 * WINDOW)
    assert list(callee._credits) == [0, 4]
    callee.close(pair.now)
    assert callee.has_credit(4)


def test_a_large_chunk_is_sent_whole_and_the_next_one_waits(pair: Pair) -> None:
    request = pair.ask()
    pair.callee.send_chunk(0, bytes(500_000))
    assert not pair.callee.has_credit(0)
    pair.exchange()
    assert pair.take(DISPATCHER)[-1] == ChunkReceived(request, bytes(500_000))
    pair.caller.consume_chunks(request, 500_000 + CHUNK_BYTES)
    pair.exchange()
    assert pair.callee.has_credit(0)


def test_an_older_credit_and_one_of_an_unknown_stream_change_nothing(pair: Pair) -> None:
    pair.ask()
    callee = pair.callee
    callee.send_chunk(0, bytes(WINDOW))
    callee._on_credit(Credit(0, 5_000), [], None, 0.0)  # type: ignore[arg-type] # no packet
    callee._on_credit(Credit(0, 10), [], None, 0.0)  # type: ignore[arg-type]
    callee._on_credit(Credit(7, 5_000), [], None, 0.0)  # type: ignore[arg-type]
    assert callee.has_credit(0)
    assert list(callee._credits) == [0]


def test_credit_may_arrive_before_the_first_chunk(pair: Pair) -> None:
    pair.ask()
    pair.callee._on_credit(Credit(0, 3 * WINDOW), [], None, 0.0)  # type: ignore[arg-type] # no packet
    pair.callee.send_chunk(0, bytes(2 * WINDOW))
    assert pair.callee.has_credit(0)


def test_a_caller_without_the_feature_gets_chunks_as_they_are_produced() -> None:
    pair = Pair(SMALL)
    receive(pair, INSTANCE, hello(pair))
    ((_, data),) = pair.tables[INSTANCE].outbox
    (accept,) = decode_packet(data).frames
    assert accept.features == 0  # type: ignore[union-attr] # ACCEPT
    (callee,) = pair.tables[INSTANCE].sessions.values()
    callee.running[0] = 0  # type: ignore[attr-defined] # a callee's session
    for _ in range(100):
        assert callee.has_credit(0)  # type: ignore[attr-defined]
        callee.send_chunk(0, bytes(WINDOW))  # type: ignore[attr-defined]


def test_a_caller_with_the_feature_and_without_a_window_grants_every_byte() -> None:
    pair = Pair(SMALL)
    receive(pair, INSTANCE, hello(pair, features=1))
    (callee,) = pair.tables[INSTANCE].sessions.values()
    callee.running[0] = 0  # type: ignore[attr-defined] # a callee's session
    assert not callee.has_credit(0)  # type: ignore[attr-defined]
    assert callee.has_credit(1), "it does not run"  # type: ignore[attr-defined]
    callee._on_credit(Credit(0, 1), [], None, 0.0)  # type: ignore[attr-defined]
    assert callee.has_credit(0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("stream_window", "has_credit"), [(0, False), (1, True)])
def test_the_first_chunk_needs_a_window_of_a_byte(stream_window: int, has_credit: bool) -> None:
    pair = Pair(SMALL)
    receive(pair, INSTANCE, hello(pair, features=STREAM_CREDIT, stream_window=stream_window))
    (callee,) = pair.tables[INSTANCE].sessions.values()
    callee.running[0] = 0  # type: ignore[attr-defined] # a callee's session
    assert callee.has_credit(0) is has_credit  # type: ignore[attr-defined]


def test_a_callee_without_the_feature_gets_no_credit() -> None:
    pair = Pair(SMALL)
    pair.caller.packets_to_send(pair.now)
    nonce = bytes(16)
    proof = derive_proof("s", pair.caller.id, nonce, INSTANCE, "i1")
    accept = (ACCEPT, VERSION, 0, INSTANCE, "i1", nonce, proof, 16_000_000)
    receive(pair, DISPATCHER, packet(pair.caller.id, accept, number=-1))
    request = OutgoingRequest()
    pair.caller.send_request(request, "tool", b"", None, pair.now)
    assert not pair.caller.consume_chunks(request, 10 * WINDOW)
    sent = [frame for _, data in pair.caller.packets_to_send(pair.now) for frame in decode_packet(data).frames]
    assert credits(sent) == []


def test_nothing_is_granted_to_a_stream_whose_end_has_arrived() -> None:
    peer = HandWritten(SMALL)
    request = peer.ask()
    peer.frames()
    peer.send((CHUNK, 0, 0, bytes(WINDOW)))
    assert peer.session.consume_chunks(request, WINDOW + CHUNK_BYTES)
    assert credits(peer.frames()) == [Credit(0, 2 * WINDOW + CHUNK_BYTES)]
    peer.send((5, 0, 3, 0, b""))  # END, before two chunks of it
    assert not peer.session.consume_chunks(request, WINDOW)


def test_hello_has_the_window() -> None:
    pair = Pair(SMALL)
    ((_, data),) = pair.caller.packets_to_send(pair.now)
    (frame,) = decode_packet(data).frames
    assert (type(frame).__struct_config__.tag, frame.stream_window) == (HELLO, WINDOW)  # type: ignore[union-attr]


def test_a_window_of_empty_chunks_may_arrive_ahead_of_a_lost_one() -> None:
    settings = Settings()
    assert settings.max_chunks_ahead * CHUNK_BYTES > settings.stream_window


def test_a_packet_of_many_chunks_may_be_lost() -> None:
    """More than 1,024 chunks that follow a lost packet failed their stream as a violation."""
    pair = Pair()
    pair.exchange()
    pair.take(DISPATCHER)
    request = pair.ask()
    lost: list[bytes] = []

    def lose_first(inbox: str, data: bytes) -> bool:
        if lost or inbox != DISPATCHER or not any(type(frame) is Chunk for frame in decode_packet(data).frames):
            return False
        lost.append(data)
        return True

    pair.lose = lose_first
    for index in range(15_000):
        if not pair.callee.has_credit(0):
            break
        pair.callee.send_chunk(0, b"")
        if index % 5_000 == 10:
            pair.exchange()
    pair.callee.send_end(0)
    pair.advance(5)
    events = pair.take(DISPATCHER)
    assert lost
    assert events[-1] == EndReceived(request, 0, b"")
    assert len(events) == 1 + 15_000


@pytest.mark.costly
@settings(max_examples=examples(24), deadline=None)
@given(st.integers(0, 2**32))
def test_no_stream_waits_for_ever(seed: int) -> None:
    """Random speeds of tools and readers, losses, cancellations and windows: every stream that is read ends with all its
    chunks, in order, and no reader holds more than a window and a chunk."""
    Streams(random.Random(seed)).run()


class Reader:
    """One stream: what its tool still sends, and what its reader has not read."""

    def __init__(self, r: random.Random, request: OutgoingRequest) -> None:
        self.request = request
        self.chunks = r.choice((0, 1, 5, 40))
        self.sent = self.received = 0
        self.unread: list[int] = []
        self.speed = r.choice((0.05, 0.5, 1.0))
        """Probability of reading, or sending, in one turn."""
        self.tool_speed = r.choice((0.05, 1.0))
        self.is_cancelled = self.has_ended = self.is_running = False
        self.cancel_at = r.choice((None, None, None, 0.0, 0.3))


class Streams:
    TURNS = 30_000

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.window = r.choice((65, 300, 5_000))
        self.pair = Pair(
            Settings(
                stream_window=self.window,
                window=r.choice((2_000, 48_000)),
                large_bytes=r.choice((200, 64_000)),
                fragment_bytes=r.choice((150, 1_000_000)),
                max_partial_bytes=r.choice((1_000, 1_000_000)),
            )
        )
        self.sizes = r.choice(((0,), (1, 100), (0, 50, 3_000)))
        self.loss = r.choice(
            (0.0, 0.05, 0.15)
        )  # of both ends: at 0.3 one of 200 sessions is silent for a second, and ends
        self.pair.exchange()
        self.pair.take(DISPATCHER)
        self.pair.lose = lambda _inbox, _packet: r.random() < self.loss
        self.readers = [Reader(r, self.pair.ask()) for _ in range(r.choice((1, 3, 8)))]

    def run(self) -> None:
        for turn in range(self.TURNS):
            for reader in self.readers:
                self._run_tool(reader)
                self._read(reader)
                if reader.cancel_at is not None and turn * 0.01 >= reader.cancel_at and not reader.has_ended:
                    reader.is_cancelled = True
                    self.pair.caller.cancel(reader.request)
            self.pair.exchange()
            self.pair.advance(0.01)
            self._handle_events()
            if all(reader.is_cancelled or (reader.has_ended and not reader.unread) for reader in self.readers):
                break
        for reader in self.readers:
            assert reader.is_cancelled or reader.has_ended, "a stream waits for ever"
            if not reader.is_cancelled:
                assert reader.received == reader.chunks
        self.loss = 0.0
        self.pair.advance(5)
        assert not self.pair.callee._credits
        assert self.pair.callee.is_at_rest

    def _run_tool(self, reader: Reader) -> None:
        callee, stream = self.pair.callee, reader.request.number
        if stream not in callee.running or self.r.random() > reader.tool_speed:
            return
        while reader.sent < reader.chunks and callee.has_credit(stream):
            callee.send_chunk(stream, b"%d:" % reader.sent + bytes(self.r.choice(self.sizes)))
            reader.sent += 1
        if reader.sent == reader.chunks:
            callee.send_end(stream)

    def _read(self, reader: Reader) -> None:
        if reader.unread and self.r.random() < reader.speed:
            self.pair.caller.consume_chunks(reader.request, reader.unread.pop(0) + CHUNK_BYTES)

    def _handle_events(self) -> None:
        self.pair.take(INSTANCE)
        readers = {reader.request.number: reader for reader in self.readers}
        for event in self.pair.take(DISPATCHER):
            assert not isinstance(event, (RequestFailed, RequestCancelled, RequestReceived))
            if isinstance(event, ChunkReceived):
                reader = readers[event.request.number]
                assert bytes(event.payload).startswith(b"%d:" % reader.received)
                reader.received += 1
                reader.unread.append(len(event.payload))
                most = self.window + max(self.sizes) + 4 + CHUNK_BYTES
                assert sum(reader.unread) + CHUNK_BYTES * len(reader.unread) <= most
            elif isinstance(event, EndReceived):
                readers[event.request.number].has_ended = True
