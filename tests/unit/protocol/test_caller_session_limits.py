"""Limits of the caller's end: sizes of replies, chunks ahead, incomplete payloads, window and retained memory."""

from __future__ import annotations

from dispatch.protocol import Settings
from dispatch.protocol.events import ChunkReceived, Failure, ReplyReceived, RequestFailed, RequestRefused
from dispatch.protocol.frames import CHUNK, CONT, GOAWAY, REFUSED, REPLY, VERSION, Cancel, encode, encode_packet
from tests.helpers.handwritten_callee import HandWritten
from tests.helpers.session_pair import DISPATCHER, Pair


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
