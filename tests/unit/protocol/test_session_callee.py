"""The callee's end: each request once, until its deadline, and nothing for a caller that no longer waits.
Two processes over a perfect network: the shortest ways of a request through the protocol.
What both ends of a session have in common.
Counters of sessions that have ended are added up, once each.
Replies to requests that have ended: late, or repeated.
"""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from dispatch.protocol import OutgoingRequest, Session, SessionTable, Settings, is_packet
from dispatch.protocol.delivery import Cargo
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Failure,
    PeerDraining,
    PeerRecovered,
    PeerSuspected,
    ReplyReceived,
    RequestCancelled,
    RequestDeclined,
    RequestFailed,
    RequestReceived,
    RequestRefused,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.frames import (
    ACK,
    ALIVE,
    CANCEL,
    CONT,
    FRAME_BYTES,
    PATHS,
    PING,
    REQUEST,
    TRACE_BYTES,
    UNNUMBERED,
    VERSION,
    Alive,
    Chunk,
    Close,
    End,
    Goaway,
    Refused,
    Reply,
    Reset,
    Window,
    decode_packet,
    encode,
    encode_packet,
)
from dispatch.protocol.session import MAX_GIVEN_UP, SessionState, UnmatchedReplies, check_inboxes, find_state
from tests.helpers.handwritten_peer import HandWritten
from tests.helpers.internals import count_retained
from tests.helpers.session_pair import DISPATCHER, INSTANCE, DelayedSessionPair, Pair


def caller(settings: Settings | None = None) -> HandWritten:
    """Return a caller whose packets a test writes by hand."""
    return HandWritten(settings, of=INSTANCE)


@pytest.fixture
def peer() -> HandWritten:
    return caller()


def request(stream: int, deadline: int = 0, payload: bytes = b"{}") -> tuple[Any, ...]:
    return (REQUEST, stream, deadline, "tool", {"attempt": "1"}, payload)


def test_each_request_is_delivered_once(peer: HandWritten) -> None:
    assert peer.send(request(0)) == [RequestReceived(0, math.inf, "tool", {"attempt": "1"}, b"{}")]
    assert peer.send(request(0)) == []
    assert peer.send(request(0), request(1), request(1))[0].number == 1
    assert list(peer.session.running) == [0, 1]


def test_requests_arrive_in_any_order(peer: HandWritten) -> None:
    assert [event.number for event in peer.send(request(2), request(0), request(1))] == [2, 0, 1]
    assert peer.send(request(0), request(2)) == []


def test_a_request_with_a_negative_number_is_ignored(peer: HandWritten) -> None:
    assert peer.send(request(-1)) == []
    assert not peer.session.running


def test_the_deadline_counts_from_the_clock_of_its_packet(peer: HandWritten) -> None:
    (event,) = peer.send(request(0, deadline=5_000), clock=3_000)
    assert event.deadline == pytest.approx(peer.pair.now + 2.0)
    (event,) = peer.send(request(1, deadline=5_000), clock=4_500)
    assert event.deadline == pytest.approx(peer.pair.now + 0.5)


@pytest.mark.parametrize("clock", [5_000, 9_000])
def test_a_request_past_its_deadline_is_refused_without_execution(peer: HandWritten, clock: int) -> None:
    assert peer.send(request(0, deadline=5_000), clock=clock) == [RequestDeclined(0, "expired")]
    assert Refused(0, "expired", -1, "") in peer.frames()
    assert not peer.session.running


def test_a_cancelled_request_is_reported_once(peer: HandWritten) -> None:
    peer.send(request(0))
    assert peer.send((CANCEL, 0)) == [RequestCancelled(0)]
    assert peer.send((CANCEL, 0)) == []
    assert not peer.session.send_reply(0, b"")
    assert not peer.session.send_chunk(0, b"")
    assert not peer.session.send_end(0)
    assert not peer.session.refuse(0, "overloaded")
    assert peer.session.is_at_rest


def test_a_request_that_arrives_after_its_cancellation_does_not_run(peer: HandWritten) -> None:
    assert peer.send((CANCEL, 0)) == []
    assert peer.send(request(0)) == []
    assert not peer.session.running


def test_an_answered_request_is_not_cancelled(peer: HandWritten) -> None:
    peer.send(request(0))
    assert peer.session.send_reply(0, b"")
    assert peer.send((CANCEL, 0)) == []


def test_a_request_has_one_answer(peer: HandWritten) -> None:
    peer.send(request(0), request(1), request(2))
    assert peer.session.send_reply(0, b"")
    assert not peer.session.send_reply(0, b"")
    assert peer.session.send_chunk(1, b"")
    assert peer.session.send_end(1)
    assert not peer.session.send_chunk(1, b"")
    assert peer.session.refuse(2, "overloaded")
    assert not peer.session.refuse(2, "overloaded")
    assert not peer.session.send_reply(9, b"")


def test_a_stream_that_is_refused_drops_its_fragments() -> None:
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=1_000, window=2_000))
    pair.exchange()
    stopped, other = pair.ask(), pair.ask()
    pair.take(INSTANCE)
    pair.callee.send_chunk(0, bytes(50_000))
    pair.callee.refuse(0, "stopped", message="why")
    pair.callee.send_reply(1, b"x")
    assert pair.callee.queued_bytes < 1_000
    pair.exchange()
    refused = RequestRefused(stopped, "stopped", None, "why")
    assert pair.take(DISPATCHER)[1:] == [refused, ReplyReceived(other, 0, b"x")]


def test_a_cancelled_stream_drops_its_fragments() -> None:
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=1_000, window=2_000))
    pair.exchange()
    request = pair.ask()
    pair.callee.send_chunk(0, bytes(50_000))
    pair.caller.cancel(request)
    pair.exchange()
    assert pair.callee.queued_bytes == 0
    pair.advance(1.0)
    assert pair.caller.is_at_rest
    assert pair.callee.is_at_rest


def test_a_cancelled_stream_is_dropped_before_it_is_sent() -> None:
    peer = caller(Settings(large_bytes=1_000, fragment_bytes=1_000, packet_bytes=1_000, window=2_000))
    peer.send(request(0))
    peer.session.send_chunk(0, bytes(50_000))
    peer.frames()
    assert peer.session.queued_bytes > 40_000
    peer.send((CANCEL, 0))
    assert peer.session.queued_bytes == 0


def test_memory_counts_what_is_retained(peer: HandWritten) -> None:
    peer.send((PING,))
    peer.frames()
    before = count_retained(peer.session)
    peer.send(request(2))
    assert count_retained(peer.session) == before + 2, "the request, and the gap below it"
    peer.send((CONT, 0, 0, 2_000, 7, None, memoryview(bytes(1_000))))
    assert count_retained(peer.session) == before + 3
    peer.session._sender.lost.append(Cargo([], 1))
    assert count_retained(peer.session) == before + 4
    peer.session.send_chunk(2, b"")
    assert count_retained(peer.session) == before + 5


def test_a_large_request_has_its_deadline_and_may_have_exactly_the_largest_size() -> None:
    peer = caller(Settings(max_payload_bytes=1_500))
    head = encode((*request(0, deadline=5_000)[:-1], b""))
    (event,) = peer.send((CONT, 0, 0, 1_500, 0, head, memoryview(bytes(1_500))), clock=3_000)
    assert event.deadline == pytest.approx(peer.pair.now + 2.0)
    assert len(event.payload) == 1_500


def test_acknowledgements_of_unknown_paths_are_ignored(peer: HandWritten) -> None:
    for path in (-1, 1, 3, 2**62):
        assert peer.send((ACK, path, 0, [0, 0])) == []


def test_the_last_packet_of_a_session(peer: HandWritten) -> None:
    peer.session.close(peer.pair.now)
    ((path, data),) = peer.session.packets_to_send(peer.pair.now)
    packet = decode_packet(data)
    assert (path, packet.path, packet.number, packet.flags) == (0, 0, -1, 0)


def test_draining_refuses_new_requests_and_finishes_the_others(peer: HandWritten) -> None:
    peer.send(request(0))
    peer.session.drain("stopping")
    peer.session.drain("again")
    assert [frame for frame in peer.frames() if type(frame) is Goaway] == [Goaway("stopping")]
    assert peer.send(request(1)) == [RequestDeclined(1, "draining")]
    assert peer.send(request(1)) == []
    assert Refused(1, "draining", -1, "") in peer.frames()
    assert peer.session.send_reply(0, b"done")
    assert list(peer.session.running) == []


def test_a_refusal_tells_when_to_retry(peer: HandWritten) -> None:
    peer.send(request(0), request(1))
    peer.session.refuse(0, "overloaded", 1.2345, "why")
    peer.session.refuse(1, "overloaded", 0.0)
    refusals = [frame for frame in peer.frames() if type(frame) is Refused]
    assert refusals == [Refused(0, "overloaded", 1_234, "why"), Refused(1, "overloaded", 0, "")]


def test_too_many_gaps_end_the_session() -> None:
    """No caller that follows the protocol leaves so many; each would need memory for ever."""
    peer = caller(Settings(max_gaps=3))
    assert [event.number for event in peer.send(request(2), request(4), request(6))] == [2, 4, 6]
    *cancelled, closed = peer.send(request(8))
    assert [event.number for event in cancelled] == [2, 4, 6]
    assert closed == SessionClosed(Failure.VIOLATION)
    assert not peer.pair.tables[INSTANCE].sessions


def test_too_many_cancellations_of_unknown_requests_end_the_session() -> None:
    peer = caller(Settings(max_gaps=3))
    assert peer.send((CANCEL, 2), (CANCEL, 4), (CANCEL, 6)) == []
    assert peer.send((CANCEL, 8)) == [SessionClosed(Failure.VIOLATION)]


def test_fragments_of_a_request_that_was_seen_are_ignored(peer: HandWritten) -> None:
    peer.send(request(0), (CANCEL, 1))
    head = encode((*request(0)[:-1], b""))
    for message, stream in enumerate((0, 1)):
        assert peer.send((CONT, message, 0, 2_000, stream, head, memoryview(bytes(1_000)))) == []
    assert len(peer.session._reassembly) == 0
    assert list(peer.session.running) == [0]


def test_a_request_above_the_limits_is_refused_once() -> None:
    peer = caller(Settings(max_payload_bytes=1_500))
    head = encode((*request(0)[:-1], b""))
    piece = memoryview(bytes(1_000))
    events = [peer.send((CONT, 0, offset, 2_000, 0, None if offset else head, piece)) for offset in (0, 1_000)]
    assert events == [[RequestDeclined(0, "request-too-large")], []]
    refusals = [frame for frame in peer.frames() if type(frame) is Refused]
    assert refusals == [Refused(0, "request-too-large", -1, "")]
    assert not peer.session.running


def test_a_request_beside_more_than_may_be_incomplete_is_refused_as_overload_and_its_fragments_are_dropped() -> None:
    """Its size is not the reason: the caller has begun more at once than callers do."""
    peer = caller(Settings(max_partial_bytes=2_500))
    peer.send((PING,))
    before = count_retained(peer.session)
    head = encode((*request(0)[:-1], b""))
    piece = memoryview(bytes(1_000))
    assert peer.send((CONT, 0, 0, 2_000, 0, head, piece)) == []
    assert peer.send((CONT, 1, 0, 2_000, 1, encode((*request(1)[:-1], b"")), piece)) == []
    assert count_retained(peer.session) == before + 2
    assert peer.send((CONT, 1, 1_000, 2_000, 1, None, piece)) == [RequestDeclined(1, "overloaded")]
    (refused,) = [frame for frame in peer.frames() if type(frame) is Refused]
    assert refused == Refused(1, "overloaded", -1, "")
    (event,) = peer.send((CONT, 0, 1_000, 2_000, 0, None, piece))
    assert (event.number, len(event.payload)) == (0, 2_000)


def test_a_trace_context_counts_among_the_bytes_that_wait(peer: HandWritten) -> None:
    peer.send(request(0), request(1))
    trace = {"traceparent": "a"}
    peer.session.send_reply(0, bytes(10), trace=trace)
    assert peer.session.queued_bytes == 10 + TRACE_BYTES + FRAME_BYTES
    peer.session.send_end(1, bytes(20), trace=trace)
    assert peer.session.queued_bytes == 30 + 2 * (TRACE_BYTES + FRAME_BYTES)


def test_released_bytes_are_granted_again_in_quarters_of_the_window() -> None:
    peer = caller(Settings(data_window=4_000))
    (event,) = peer.send(request(0, payload=bytes(2_000)), data=2_000)
    assert not [frame for frame in peer.frames() if type(frame) is Window]
    peer.session.consume(999)
    assert not [frame for frame in peer.frames() if type(frame) is Window]
    peer.session.consume(1)
    assert Window(5_000) in peer.frames()
    peer.session.consume(len(event.payload) - 1_000)
    assert Window(6_000) in peer.frames()


def test_held_requests_stop_the_caller() -> None:
    """Flow control by the application's memory: nothing further is sent until it releases requests."""
    pair = Pair(Settings(data_window=10_000))
    pair.exchange()
    for _ in range(10):
        pair.ask(bytes(3_000))
    held = pair.take(INSTANCE)
    assert len(held) == 4
    assert pair.caller.queued_bytes > 15_000
    while held:
        pair.callee.consume(len(held.pop(0).payload))  # type: ignore[union-attr]  # all are requests
        pair.exchange()
        held += pair.take(INSTANCE)
    assert len(pair.callee.running) == 10
    assert pair.caller.queued_bytes == 0


@pytest.mark.parametrize(
    "inboxes",
    [
        [],
        [DISPATCHER] * 5,
        [DISPATCHER, ""],
        [DISPATCHER, "d" * 513],
        [DISPATCHER, "elsewhere"],
        ["elsewhere", DISPATCHER],
    ],
    ids=["none", "too many", "empty", "too long", "not the caller's", "another first one"],
)
def test_unusable_paths_are_ignored(peer: HandWritten, inboxes: list[str]) -> None:
    peer.send((PATHS, inboxes))
    assert peer.session.peer_inboxes == [DISPATCHER]


def test_a_list_without_some_of_the_paths_is_ignored(peer: HandWritten) -> None:
    paths = [DISPATCHER, f"{DISPATCHER}-1", f"{DISPATCHER}-2"]
    peer.send((PATHS, paths))
    peer.send((PATHS, paths[:2]))
    assert peer.session.peer_inboxes == paths, "packets may be in flight on the third one"
    peer.send((PATHS, [DISPATCHER] * 3))
    assert peer.session.peer_inboxes == [DISPATCHER] * 3


def test_large_replies_use_paths_that_are_added_later() -> None:
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=2_000))
    pair.exchange()
    pair.take(DISPATCHER)
    pair.caller.add_paths([DISPATCHER, f"{DISPATCHER}-1", f"{DISPATCHER}-2"])
    first, second = pair.ask(), pair.ask()
    pair.packets.clear()
    pair.callee.send_reply(first.number, bytes(20_000))
    pair.callee.send_reply(second.number, b"small")
    pair.exchange()
    assert ReplyReceived(first, 0, bytes(20_000)) in pair.take(DISPATCHER)
    used: dict[str, int] = {}
    for inbox, packet in pair.packets:
        used[inbox] = used.get(inbox, 0) + len(packet)
    assert used.pop(DISPATCHER) < 1_500
    assert sum(used.values()) > 20_000


def test_a_streamed_reply(peer: HandWritten) -> None:
    pair = Pair()
    pair.exchange()
    pair.take(DISPATCHER)
    request = pair.ask()
    for text in (b"a", b"b"):
        assert pair.callee.send_chunk(0, text)
    assert pair.callee.send_end(0, b"{}", 1)
    pair.exchange()
    chunks = [ChunkReceived(request, b"a"), ChunkReceived(request, b"b")]
    assert pair.take(DISPATCHER) == [*chunks, EndReceived(request, 1, b"{}")]
    assert request.chunks == 2


@pytest.mark.costly
def test_running_requests_end_with_the_session(peer: HandWritten) -> None:
    peer.send(request(0), request(1))
    assert count_retained(peer.session) > 0
    found = peer.session.close(peer.pair.now)
    assert found == [RequestCancelled(0), RequestCancelled(1), SessionClosed(Failure.CLOSED)]
    assert peer.session.close(peer.pair.now) == []
    assert peer.frames() == [Close("closed")]
    assert peer.frames() == []
    assert peer.session.is_at_rest
    assert count_retained(peer.session) == 0


def test_a_caller_that_never_completes_the_handshake_is_forgotten() -> None:
    pair = Pair(Settings(half_open=10.0))
    pair.lose = lambda inbox, _packet: inbox == DISPATCHER
    pair.exchange()
    session = pair.callee
    assert session.next_timer() == pytest.approx(pair.now + 10.0)
    assert session.handle_timer(pair.now + 9.9) == []
    assert session.handle_timer(pair.now + 10.0) == [SessionClosed(Failure.IDLE)]


def test_a_smaller_window_is_told_once() -> None:
    pair = Pair()
    pair.exchange()
    callee, now = pair.callee, pair.now
    callee.packets_to_send(now + 1)  # acknowledgements
    assert not callee.has_due(now + 1)
    callee.is_window_due = True
    assert callee.has_due(now + 1)
    ((_, packet),) = callee.packets_to_send(now + 1)
    assert decode_packet(packet).frames == []
    assert not callee.has_due(now + 1)
    assert callee.packets_to_send(now + 1) == []


def test_a_suspected_caller_has_recovered_when_it_acknowledges_packets_on_every_path() -> None:
    peer = caller(Settings(large_bytes=1_000))
    peer.send((PATHS, [DISPATCHER, f"{DISPATCHER}-1"]), request(0), request(1))
    session = peer.session
    session.send_reply(0, b"small")
    session.send_reply(1, bytes(2_000))
    assert {path for path, _ in session.packets_to_send(peer.pair.now)} == {0, 1}
    now, events = peer.pair.now, []
    while not session.is_suspect:
        now = session.next_timer()
        events += session.handle_timer(now)
        session.packets_to_send(now)
    assert events == [PeerSuspected()]
    assert peer.send((ACK, 0, 0, [0, 0])) == []
    assert session.is_suspect, "it was probed on the second path, too"
    assert peer.send((ACK, 1, 0, [0, 0])) == [PeerRecovered()]
    assert not session.is_suspect


def test_the_answer_of_another_thread_shows_nothing_but_the_load(peer: HandWritten) -> None:
    """The numbers of packets, the clock and the window belong to the thread of the event loop."""
    peer.session.load = 3
    found = decode_packet(peer.session.alive_packet())
    header = (VERSION, peer.session.peer_address, 0, UNNUMBERED, 0, 0, 3, 0, 0)
    assert found == decode_packet(encode_packet(header, [(ALIVE,)]))
    assert [type(frame) for frame in found.frames] == [Alive]


def test_a_half_open_session_sends_nothing() -> None:
    pair = Pair()
    pair.lose = lambda inbox, _packet: inbox == DISPATCHER
    pair.exchange()
    pair.callee.drain()
    assert pair.callee.packets_to_send(pair.now) == []


def test_a_session_without_packets_of_its_caller_ends(peer: HandWritten) -> None:
    peer.frames()
    peer.send((PING,))
    peer.frames()
    settings = Settings()
    assert peer.session.handle_timer(peer.pair.now + settings.idle - 0.1) == []
    assert peer.session.handle_timer(peer.pair.now + settings.idle) == [SessionClosed(Failure.IDLE)]


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.exchange()
    assert pair.take(DISPATCHER) == [SessionOpened()]
    return pair


def test_a_request_gets_its_reply_and_nothing_is_retained(pair: Pair) -> None:
    request = pair.ask(b'{"a": 1}')
    (received,) = pair.take(INSTANCE)
    assert (received.number, received.target, received.payload) == (0, "tool", b'{"a": 1}')
    assert pair.callee.send_reply(received.number, b"done")
    pair.exchange()
    assert pair.take(DISPATCHER) == [ReplyReceived(request, 0, b"done")]
    pair.advance(1)
    assert pair.caller.is_at_rest
    assert pair.callee.is_at_rest
    assert not pair.callee.send_reply(received.number, b"again")


def test_a_stream_arrives_in_order(pair: Pair) -> None:
    request = pair.ask()
    for text in (b"a", b"b" * 100_000, b"c"):
        pair.callee.send_chunk(0, text)
    pair.callee.send_end(0)
    pair.exchange()
    chunks = [ChunkReceived(request, text) for text in (b"a", b"b" * 100_000, b"c")]
    assert pair.take(DISPATCHER) == [*chunks, EndReceived(request, 0, b"")]


@pytest.mark.parametrize("size", [64_001, 1_000_000, 10_000_001])
def test_large_payloads_arrive_whole_in_both_directions(pair: Pair, size: int) -> None:
    payload = random.Random(size).randbytes(size)
    request = pair.ask(payload)
    (received,) = pair.take(INSTANCE)
    assert received.payload == payload
    pair.callee.consume(size)
    pair.callee.send_reply(0, payload[::-1])
    pair.exchange()
    assert pair.take(DISPATCHER) == [ReplyReceived(request, 0, payload[::-1])]
    pair.advance(1)
    assert pair.caller.is_at_rest
    assert pair.callee.is_at_rest


def test_refusals_draining_and_cancellation_reach_the_other_side(pair: Pair) -> None:
    first = pair.ask()
    pair.callee.refuse(0, "overloaded", 1.5, "full")
    pair.exchange()
    assert pair.take(DISPATCHER) == [RequestRefused(first, "overloaded", 1.5, "full")]
    second = pair.ask()
    assert pair.caller.cancel(second), "it was sent"
    pair.exchange()
    assert pair.take(INSTANCE)[-1] == RequestCancelled(1)
    pair.callee.drain()
    pair.exchange()
    assert pair.take(DISPATCHER) == [PeerDraining("draining")]
    third = pair.ask()
    assert pair.take(DISPATCHER) == [RequestRefused(third, "draining", None, "")]
    assert pair.take(INSTANCE) == [RequestDeclined(2, "draining")]


def test_a_lost_packet_is_sent_again_and_runs_nothing_twice(pair: Pair) -> None:
    pair.advance(0.1)
    lost = iter([True, False])
    pair.lose = lambda inbox, _packet: inbox == INSTANCE and next(lost, False)
    pair.ask()
    assert pair.take(INSTANCE) == []
    pair.advance(0.1)
    (received,) = pair.take(INSTANCE)
    assert isinstance(received, RequestReceived)


def test_a_silent_instance_is_given_up_once_and_each_request_says_whether_it_may_have_run(pair: Pair) -> None:
    pair.advance(0.1)
    pair.lose = lambda _inbox, _packet: True
    sent = pair.ask()
    unsent = OutgoingRequest()
    pair.caller.send_request(unsent, "tool", b"x" * 500_000, None, pair.now)
    pair.caller._sender.set_peer_window(0)
    pair.advance(30)
    assert pair.take(DISPATCHER) == [
        PeerSuspected(),
        RequestFailed(sent, Failure.SILENT, True),
        RequestFailed(unsent, Failure.SILENT, False),
        SessionClosed(Failure.SILENT),
    ]
    assert not pair.tables[DISPATCHER].sessions


def test_a_restarted_instance_is_noticed_by_the_first_probe(pair: Pair) -> None:
    request = pair.ask()
    pair.tables[INSTANCE] = pair.create_instance("i2", 3, Settings())
    pair.caller.send_request(OutgoingRequest(), "tool", b"", None, pair.now)
    before = pair.now
    pair.advance(1)
    suspected, first, _second, closed = pair.take(DISPATCHER)
    assert suspected == PeerSuspected()
    assert first == RequestFailed(request, Failure.RESTARTED, True)
    assert closed == SessionClosed(Failure.RESTARTED)
    assert pair.now - before <= 1


def test_a_deadline_fails_the_request_and_cancels_it(pair: Pair) -> None:
    request = pair.ask(deadline=pair.now + 0.5)
    pair.advance(1)
    assert pair.take(DISPATCHER) == [RequestFailed(request, Failure.DEADLINE, True)]
    assert pair.take(INSTANCE)[-1] == RequestCancelled(0)


def test_an_idle_session_stays_open_and_one_without_its_caller_ends(pair: Pair) -> None:
    pair.advance(120)
    assert pair.caller.is_open
    assert not pair.caller.is_closed
    assert pair.callee.is_open
    del pair.tables[DISPATCHER].sessions[pair.caller.id]
    pair.advance(60)
    assert pair.take(INSTANCE) == [SessionClosed(Failure.IDLE)]


def test_the_address_of_a_session_is_never_sent_towards_dispatchers(pair: Pair) -> None:
    pair.ask()
    pair.callee.send_reply(0, b"x")
    pair.exchange()
    address = msgspec.msgpack.encode(pair.callee.id)
    for inbox, packet in pair.packets:
        assert is_packet(packet)
        assert (address in packet) == (inbox == INSTANCE and msgspec.msgpack.decode(packet)[1] != 0)


@pytest.mark.parametrize("data", [b"", b"{}", b"\x9a", b"\xff" * 50, b"\x9a" + b"\x91" * 100_000])
def test_what_is_no_packet_is_counted(pair: Pair, data: bytes) -> None:
    for count in (1, 2):
        assert not pair.tables[INSTANCE].receive_packet(data, pair.now)
        assert pair.tables[INSTANCE].malformed == count


def test_a_frame_of_a_later_version_is_skipped(pair: Pair) -> None:
    header = [1, pair.callee.id, 0, 1, 0, 0, 0, 0, 48_000]
    frames = [[99, "later"], [2, 0, 0, "tool", None, b"{}", "a later field"]]
    ((_, events),) = pair.tables[INSTANCE].receive_packet(msgspec.msgpack.encode([*header, frames]), pair.now)
    assert [type(event) for event in events] == [RequestReceived]


def test_many_senders_divide_the_window_of_their_receiver() -> None:
    settings = Settings(senders_at_full_window=20)
    table = SessionTable("d", "1", ["d"], random_bytes=random.Random(1).randbytes, secret="s", settings=settings)
    sessions = [table.connect(f"i{number}", 0.0) for number in range(40)]
    for session in sessions:
        session.send_request(OutgoingRequest(), "tool", b"", None, 0.0)
    assert table.receive_window.share == settings.window // 2
    for session in sessions[20:]:
        session.close(0.0)
    assert table.receive_window.share == settings.window


TRACE = {"traceparent": f"00-{1:032x}-{2:016x}-01", "tracestate": "a=b"}


@pytest.mark.parametrize("size", [0, 10, 64_001, 3_000_000])
def test_a_reply_carries_the_trace_context_of_its_span(pair: Pair, size: int) -> None:
    """Also behind a payload that travels in fragments."""
    plain, traced = pair.ask(), pair.ask()
    pair.callee.send_reply(plain.number, bytes(size))
    pair.callee.send_reply(traced.number, bytes(size), trace=TRACE)
    pair.exchange()
    assert sorted(pair.take(DISPATCHER), key=lambda event: event.request.number) == [  # type: ignore[union-attr]
        ReplyReceived(plain, 0, bytes(size)),
        ReplyReceived(traced, 0, bytes(size), TRACE),
    ]
    assert pair.callee.queued_bytes == 0


def test_an_end_and_a_refusal_carry_it_too(pair: Pair) -> None:
    stream, refused = pair.ask(), pair.ask()
    pair.callee.send_chunk(stream.number, b"a")
    pair.callee.send_end(stream.number, trace=TRACE)
    pair.callee.refuse(refused.number, "stopped", trace=TRACE)
    pair.exchange()
    events = pair.take(DISPATCHER)
    assert EndReceived(stream, 0, b"", TRACE) in events
    assert RequestRefused(refused, "stopped", None, "", TRACE) in events


def flags(session: Session) -> dict[str, object]:
    """Return the flags of ``session`` that are not false."""
    values = {name: getattr(session, name) for name in dir(session) if name.startswith("is_")}
    return {name: value for name, value in values.items() if value is not False}


def test_a_new_session_knows_nothing_of_its_peer() -> None:
    caller = Pair().caller
    assert flags(caller) == {"is_at_rest": True}
    assert (caller.peer_name, caller.peer_incarnation, caller.peer_address, caller.peer_load) == ("", "", 0, 0)
    assert (caller.end_reason, caller.end_error) == (None, None)


def test_an_open_session_at_rest_has_no_other_state() -> None:
    pair = Pair()
    pair.advance(1.0)
    for session in (pair.caller, pair.callee):
        assert flags(session) == {"is_at_rest": True, "is_open": True}


def test_a_session_after_an_outage_has_no_other_state() -> None:
    pair = Pair()
    pair.advance(1.0)
    pair.caller.suspend()
    assert flags(pair.caller) == {"is_at_rest": True, "is_open": True, "is_suspended": True}
    pair.caller.resume(pair.now)
    assert flags(pair.caller) == {"is_open": True, "is_suspect": True}
    pair.exchange()
    pair.advance(1.0)
    assert flags(pair.caller) == {"is_at_rest": True, "is_open": True}


def test_the_state_of_a_session_is_the_first_one_that_applies() -> None:
    pair = Pair()
    assert find_state(pair.caller) is SessionState.HALF_OPEN
    pair.advance(1.0)
    ends = pair.caller, pair.callee
    assert [find_state(each) for each in ends] == [SessionState.OPEN] * 2
    pair.callee.drain()
    assert [find_state(each) for each in ends] == [SessionState.OPEN, SessionState.DRAINING], "not told yet"
    pair.exchange()
    assert [find_state(each) for each in ends] == [SessionState.DRAINING] * 2
    pair.caller.suspend()
    assert find_state(pair.caller) is SessionState.SUSPENDED
    pair.caller.resume(pair.now)
    assert find_state(pair.caller) is SessionState.SUSPECT
    pair.caller.suspend()
    assert find_state(pair.caller) is SessionState.SUSPENDED


@pytest.mark.parametrize(
    ("inboxes", "is_usable"),
    [([], False), (["a"], True), (["a", "bcd"], True), (["a", ""], False), (["abcd"], False), (["a", "b", "c"], False)],
)
def test_usable_inboxes_have_names_and_are_not_too_many(inboxes: list[str], is_usable: bool) -> None:
    assert check_inboxes(inboxes, most=2, longest=3) is is_usable


@pytest.mark.parametrize("size", [5_000, 50_000])
def test_nothing_is_retained_of_a_reply_that_is_too_large(size: int) -> None:
    """Neither of one fragment nor of many."""
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=10_000))
    pair.exchange()
    pair.take(DISPATCHER)
    request = pair.ask(max_reply_bytes=4_000)
    pair.callee.send_reply(request.number, bytes(size))
    pair.exchange()
    assert pair.take(DISPATCHER) == [RequestFailed(request, Failure.TOO_LARGE, True)]
    later = pair.ask()
    pair.callee.send_reply(later.number, bytes(5_000))
    pair.exchange()
    assert pair.take(DISPATCHER) == [ReplyReceived(later, 0, bytes(5_000))]
    pair.advance(1.0)
    assert pair.caller.is_at_rest
    assert pair.callee.is_at_rest


@pytest.mark.parametrize("size", [5_000, 50_000])
def test_nothing_is_retained_of_a_request_that_is_too_large(size: int) -> None:
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=10_000, max_payload_bytes=4_000))
    pair.exchange()
    pair.ask(bytes(size))
    assert pair.take(INSTANCE) == [RequestDeclined(0, "request-too-large")]
    later = pair.ask(bytes(3_000))
    assert [type(event) for event in pair.take(INSTANCE)] == [RequestReceived]
    pair.callee.send_reply(later.number, b"")
    pair.advance(1.0)
    found = [event.reason for event in pair.take(DISPATCHER) if isinstance(event, RequestRefused)]
    assert found == ["request-too-large"]
    assert pair.caller.is_at_rest
    assert pair.callee.is_at_rest


def test_a_suspended_session_has_no_timer_but_deadlines() -> None:
    """Otherwise the timer would fire again and again until the connection is back."""
    pair = Pair()
    pair.exchange()
    pair.tables[INSTANCE] = pair.create_instance("i2", 3, Settings())
    request = pair.ask(deadline=pair.now + 40.0)
    pair.advance(0.2)
    frames = [frame for _, packet in pair.packets for frame in decode_packet(packet).frames]
    assert Reset(pair.caller.peer_address, "i2") in frames, "the answer to a probe"
    pair.caller.suspend()
    pair.now += 30.0
    assert pair.caller.next_timer() == request.deadline
    assert pair.caller.handle_timer(pair.now) == []
    pair.now += 11.0
    assert pair.caller.handle_timer(pair.now) == [RequestFailed(request, Failure.DEADLINE, True)]
    pair.caller.resume(pair.now)
    pair.advance(1.0)
    assert pair.take(DISPATCHER)[-1] == SessionClosed(Failure.RESTARTED)


def test_ended_sessions_are_counted_once_with_their_reasons() -> None:
    pair = DelayedSessionPair()
    pair.ask()
    first = pair.caller
    sent = first.statistics.packets_sent
    pair.dispatcher.end(first, pair.now)
    pair.dispatcher.forget(first)  # again
    pair.exchange()
    ended = pair.dispatcher.ended
    assert ended.statistics.packets_sent == sent + 1  # the last packet
    assert ended.reasons == pair.instance.ended.reasons == {Failure.CLOSED: 1}
    assert first.end_reason is Failure.CLOSED
    second = pair.connect()
    pair.dispatcher.end(second, pair.now, Failure.EVICTED)
    assert ended.reasons == {Failure.CLOSED: 1, Failure.EVICTED: 1}
    assert ended.statistics.frames_sent == 3, "PING of each, and REQUEST"
    assert ended.handshakes == 0


def test_a_session_that_was_never_open_counts_as_a_handshake() -> None:
    pair = DelayedSessionPair()
    pair.down = {"dispatcher"}
    pair.dispatcher.end(pair.connect(), pair.now)
    assert (pair.dispatcher.ended.handshakes, pair.dispatcher.ended.reasons) == (1, {})


def reply(stream: int) -> Reply:
    return Reply(stream, 0, b"")


@pytest.mark.parametrize("last", [reply(7), End(7, 1, 0, b""), Refused(7, "stopped", -1)])
def test_a_reply_to_a_request_that_was_given_up_is_late_once(last: Reply | End | Refused) -> None:
    unmatched = UnmatchedReplies()
    unmatched.record_given_up(7)
    unmatched.record_frame(Chunk(7, 0, b""))
    unmatched.record_frame(last)
    assert (unmatched.late, unmatched.repeated, len(unmatched.given_up)) == (2, 0, 0)
    unmatched.record_frame(last)
    assert (unmatched.late, unmatched.repeated) == (2, 1)


def test_a_reply_to_any_other_request_is_repeated() -> None:
    unmatched = UnmatchedReplies()
    unmatched.record_frame(Chunk(7, 0, b""))
    unmatched.record_given_up(8)
    unmatched.given_up.clear()
    unmatched.record_frame(reply(8))
    assert (unmatched.late, unmatched.repeated, len(unmatched.given_up)) == (0, 2, 0)


def test_the_oldest_of_too_many_is_forgotten() -> None:
    unmatched = UnmatchedReplies()
    for stream in range(MAX_GIVEN_UP + 1):
        unmatched.record_given_up(stream)
    assert len(unmatched.given_up) == MAX_GIVEN_UP
    for stream in (0, 1, MAX_GIVEN_UP):
        unmatched.record_frame(reply(stream))
    assert (unmatched.late, unmatched.repeated) == (2, 1)
