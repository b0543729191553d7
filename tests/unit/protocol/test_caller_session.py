"""The caller's end: the handshake, one final event for each request, and exactly whether it may have run."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from dispatch.protocol import OutgoingRequest, Settings
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Failure,
    PeerConflict,
    PeerDraining,
    ReplyReceived,
    RequestDelivered,
    RequestFailed,
    RequestReceived,
    RequestRefused,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.wire.frames import (
    ACCEPT,
    CHUNK,
    CONT,
    END,
    GOAWAY,
    PING,
    REFUSED,
    REPLY,
    RESET,
    VERSION,
    Ack,
    Cancel,
    From,
    Hello,
    Ping,
    Request,
    decode_packet,
    encode,
    encode_packet,
)
from dispatch.protocol.wire.handshake import derive_proof
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair

NONCE = bytes(16)


class HandWritten:
    """A callee whose packets a test writes by hand: each packet has the next number."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.pair = Pair(settings)
        self.pair.exchange()
        self.pair.take(DISPATCHER)
        self.session = self.pair.caller
        self._number = 50

    def send(self, *frames: tuple[Any, ...], number: int | None = None) -> list[Any]:
        self._number += 1
        number = self._number if number is None else number
        packet = encode_packet((VERSION, self.session.id, 0, number, 0, 0, 0, 0, 48_000), list(frames))
        received = self.pair.tables[DISPATCHER].receive_packet(packet, self.pair.now)
        return [event for _, events in received for event in events]

    def frames(self) -> list[Any]:
        """Return the frames that the caller sends."""
        sent = self.session.packets_to_send(self.pair.now)
        return [frame for _, packet in sent for frame in decode_packet(packet).frames]

    def ask(self, payload: bytes = b"{}", **options: Any) -> OutgoingRequest:
        request = OutgoingRequest(**options)
        assert self.session.send_request(request, "tool", payload, None, self.pair.now)
        return request


@pytest.fixture
def peer() -> HandWritten:
    return HandWritten()


def accept(pair: Pair, **changes: Any) -> tuple[Any, ...]:
    """Return the ACCEPT of an instance that knows the secret, with some fields changed."""
    fields = {"version": VERSION, "name": "i", "incarnation": "run", "nonce": NONCE} | changes
    proof = derive_proof("s", pair.caller.id, NONCE, "i", "run")
    proof = changes.get("proof", proof)
    return (ACCEPT, fields["version"], 0, fields["name"], fields["incarnation"], fields["nonce"], proof, 16_000_000)


def receive_accept(pair: Pair, frame: tuple[Any, ...]) -> list[Any]:
    packet = encode_packet((VERSION, pair.caller.id, 0, -1, 0, 0, 0, 0, 48_000), [frame])
    return [event for _, events in pair.tables[DISPATCHER].receive_packet(packet, pair.now) for event in events]


# -- the handshake ----------------------------------------------------------------------------------------------


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
    pair = Pair()
    fields: dict[str, Any] = {"name": "i", "incarnation": "run", "nonce": NONCE} | changes
    proof = derive_proof("s", pair.caller.id, fields["nonce"], fields["name"], fields["incarnation"])
    assert receive_accept(pair, accept(pair, proof=proof, **changes)) == []
    assert not pair.caller.is_open


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
    assert (path, decoded.to, decoded.number) == (0, 0, -1)
    assert decoded.frames == [Hello([VERSION], 0, DISPATCHER, "d1", pair.caller.id, "s", [DISPATCHER], 16_000_000)]


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
    request = OutgoingRequest()
    pair.caller.send_request(request, "tool", b"{}", None, pair.now)
    pair.exchange()
    assert [type(event) for event in pair.take(INSTANCE)] == [RequestReceived]


def test_a_deadline_passes_before_the_handshake_has_ended() -> None:
    pair = Pair()
    pair.lose = lambda _inbox, _packet: True
    request = OutgoingRequest(pair.now + 1.0)
    pair.caller.send_request(request, "tool", b"{}", None, pair.now)
    pair.advance(1.1)
    assert pair.take(DISPATCHER) == [RequestFailed(request, Failure.DEADLINE, False)]


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
    assert peer.send((CHUNK, 1, 0, b"x"), (END, 1, 1, 0, b""), (REPLY, 0, 0, b"x"), (REPLY, 0, 0, b"x")) == []
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
    assert peer.send((CHUNK, 0, 0, b"ab"), (CHUNK, 0, 1, b"c")) == [
        ChunkReceived(request, b"ab"),
        ChunkReceived(request, b"c"),
    ]
    assert peer.send((CHUNK, 0, 2, b"d")) == [RequestFailed(request, Failure.TOO_LARGE, True)]
    assert Cancel(0) in peer.frames()


def test_nothing_is_retained_of_a_request_that_has_ended() -> None:
    peer = HandWritten(Settings(large_bytes=1_000, fragment_bytes=1_000, window=2_000))
    before = peer.session.memory()
    requests = [peer.ask(), peer.ask(), peer.ask(), peer.ask()]
    assert peer.session.memory() == before + 8, "waiting and queued"
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
    assert requests[3].ahead is None
    assert requests[3].large is None
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
    pair.callee.send_reply(first.stream, b"")
    pair.exchange()
    assert window.senders == 1
    pair.callee.send_reply(second.stream, b"")
    pair.exchange()
    assert window.senders == 0
    pair.caller.cancel(pair.ask())
    assert window.senders == 0


def test_too_many_incomplete_payloads_fail_the_request(peer: HandWritten) -> None:
    peer = HandWritten(Settings(max_partials=1))
    peer.ask()
    second = peer.ask()
    peer.frames()
    assert peer.send((CONT, 0, 0, 2_000, 0, None, memoryview(bytes(1_000)))) == []
    failed = peer.send((CONT, 1, 0, 2_000, 1, None, memoryview(bytes(1_000))))
    assert failed == [RequestFailed(second, Failure.TOO_LARGE, True)]


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


# -- may it have run --------------------------------------------------------------------------------------------


def test_a_request_that_was_not_packed_did_not_run(peer: HandWritten) -> None:
    request, other = peer.ask(), peer.ask()
    assert peer.session.cancel(request) is False
    frames = peer.frames()
    assert Cancel(0) in frames, "it fills the number"
    assert [frame.stream for frame in frames if type(frame) is Request] == [other.stream]


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


def test_a_search_for_expired_requests_is_bounded_in_time(peer: HandWritten) -> None:
    """Each search visits all requests: where a thousand wait, deadlines within 16 ms expire together."""
    now = peer.pair.now
    for _ in range(1_000):
        peer.ask()
    first, second = peer.ask(deadline=now + 1.0), peer.ask(deadline=now + 1.001)
    assert peer.session.handle_timer(now + 1.0) == [RequestFailed(first, Failure.DEADLINE, False)]
    assert peer.session.handle_timer(now + 1.01) == []
    assert peer.session.handle_timer(now + 1.016) == [RequestFailed(second, Failure.DEADLINE, False)]


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


# -- signs of life ----------------------------------------------------------------------------------------------


def test_waiting_requests_keep_the_session_alive() -> None:
    settings = Settings()
    pair = Pair(settings)
    pair.exchange()
    pair.ask()
    pair.advance(0.5)
    pair.packets.clear()
    pair.advance(10.0)
    pings = [frame for inbox, packet in pair.packets if inbox == INSTANCE for frame in decode_packet(packet).frames]
    assert 4 <= sum(type(frame) is Ping for frame in pings) <= 5
    assert not pair.caller.is_closed


def test_an_idle_session_pings_every_third_of_the_idle_time() -> None:
    pair = Pair()
    pair.exchange()
    pair.advance(1.0)
    pair.packets.clear()
    pair.advance(30.0)
    pings = [frame for inbox, packet in pair.packets if inbox == INSTANCE for frame in decode_packet(packet).frames]
    assert sum(type(frame) is Ping for frame in pings) in (2, 3)


def test_a_probe_says_where_a_reset_is_sent(peer: HandWritten) -> None:
    peer.session.probe()
    found = [frame for frame in peer.frames() if type(frame) is From]
    assert found == [From(peer.session.id, DISPATCHER, "s")] * 2


def test_a_session_that_is_not_open_sends_no_probe() -> None:
    pair = Pair()
    pair.caller.probe()
    assert not pair.caller._sender.probing


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


def test_packets_are_counted_and_gaps_acknowledged_at_once(peer: HandWritten) -> None:
    peer.frames()
    received, duplicates = peer.session.statistics.packets_received, peer.session.statistics.duplicates
    peer.send((PING,), number=60)
    assert peer.session.is_urgent, "numbers are missing"
    assert [frame.ranges[:2] for frame in peer.frames() if isinstance(frame, Ack)] == [[60, 60]]
    assert not peer.session.is_urgent
    for count in (1, 2):
        peer.send((PING,), number=60)
        assert peer.session.statistics.duplicates == duplicates + count
        assert [type(frame) for frame in peer.frames()] == [Ack], "the acknowledgement was lost"
    assert peer.session.statistics.packets_received == received + 3
    peer.send((PING,), number=61)
    assert not peer.session.is_urgent
    assert peer.frames() == [], "it is not due yet"


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
        pair.callee.send_reply(request.stream, b"x")
        pair.exchange()
        assert ReplyReceived(request, 0, b"x") in pair.events[DISPATCHER]
    assert not pair.caller.is_closed
    assert pair.events[DISPATCHER].count(PeerConflict()) == 1


def test_delivery_is_reported_once_where_it_is_asked_for() -> None:
    pair = Pair()
    pair.exchange()
    pair.take(DISPATCHER)
    pair.ask()
    pair.advance(0.1)
    assert pair.take(DISPATCHER) == []
    pair.caller.reports_delivery = True
    pair.ask()
    pair.ask()
    pair.advance(3.0)
    assert pair.take(DISPATCHER) == [RequestDelivered()]


def test_a_suspect_peer(peer: HandWritten) -> None:
    peer.ask()
    peer.frames()
    now = peer.pair.now
    assert not peer.session.is_suspect
    assert peer.session.handle_timer(now + 0.05) == []
    assert peer.session.packets_to_send(now + 0.05) == [], "no probe is due"
    for at in (now + 0.2, now + 0.6):
        assert peer.session.handle_timer(at) == []
        peer.session.packets_to_send(at)
    assert peer.session.is_suspect
    assert peer.session.handle_timer(now + 9.9) == []


def test_a_probe_is_sent_at_its_time(peer: HandWritten) -> None:
    peer.ask()
    peer.frames()
    at = peer.session.next_timer()
    assert peer.session.handle_timer(at) == []
    assert [type(decode_packet(data).frames[0]) for _, data in peer.session.packets_to_send(at)] == [From, From]


def test_a_silent_peer_is_given_up_at_once_with_its_requests_past_their_deadlines(peer: HandWritten) -> None:
    now = peer.session.heard_at
    late, waiting = peer.ask(deadline=now + 10.0), peer.ask()
    peer.frames()
    for at in (now + 1.0, now + 2.0, now + 3.0):
        peer.session.handle_timer(at)
        peer.session.packets_to_send(at)
    assert peer.session.handle_timer(now + 10.0) == [
        RequestFailed(late, Failure.DEADLINE, True),
        RequestFailed(waiting, Failure.SILENT, True),
        SessionClosed(Failure.SILENT),
    ]


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
    pair.callee.send_reply(request.stream, b"x")
    pair.advance(1.0)
    assert pair.take(DISPATCHER) == [ReplyReceived(request, 0, b"x")]
