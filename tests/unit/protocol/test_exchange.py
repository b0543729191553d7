"""Two processes over a perfect network: the shortest ways of a request through the protocol.
What both ends of a session have in common.
Counters of sessions that have ended are added up, once each.
Replies to requests that have ended: late, or repeated.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from dispatch.protocol import OutgoingRequest, Session, SessionTable, Settings, is_packet
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Failure,
    PeerDraining,
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
from dispatch.protocol.frames import Chunk, End, Refused, Reply, Reset, decode_packet
from dispatch.protocol.session import MAX_GIVEN_UP, UnmatchedReplies, check_inboxes
from tests.helpers.session_pair import DISPATCHER, INSTANCE, DelayedSessionPair, Pair


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.exchange()
    assert pair.take(DISPATCHER) == [SessionOpened()]
    return pair


def test_a_request_gets_its_reply_and_nothing_is_retained(pair: Pair) -> None:
    request = pair.ask(b'{"a": 1}')
    (received,) = pair.take(INSTANCE)
    assert isinstance(received, RequestReceived)
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
    assert isinstance(received, RequestReceived)
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
    assert [event.reason for event in pair.take(DISPATCHER) if isinstance(event, RequestRefused)] == [
        "request-too-large"
    ]
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
    half_open = pair.connect()
    pair.dispatcher.end(half_open, pair.now)
    assert pair.dispatcher.ended.handshakes == 1
    assert pair.dispatcher.ended.reasons == {}


def reply(stream: int) -> Reply:
    return Reply(stream, 0, b"")


@pytest.mark.parametrize("last", [reply(7), End(7, 1, 0, b""), Refused(7, "stopped", -1)])
def test_a_reply_to_a_request_that_was_given_up_is_late_once(last: Reply | End | Refused) -> None:
    unmatched = UnmatchedReplies()
    unmatched.record_given_up(7)
    unmatched.record_frame(Chunk(7, 0, b""))
    unmatched.record_frame(last)
    assert (unmatched.late, unmatched.repeated, len(unmatched)) == (2, 0, 0)
    unmatched.record_frame(last)
    assert (unmatched.late, unmatched.repeated) == (2, 1)


def test_a_reply_to_any_other_request_is_repeated() -> None:
    unmatched = UnmatchedReplies()
    unmatched.record_frame(Chunk(7, 0, b""))
    unmatched.record_given_up(8)
    unmatched.clear()
    unmatched.record_frame(reply(8))
    assert (unmatched.late, unmatched.repeated, len(unmatched)) == (0, 2, 0)


def test_the_oldest_of_too_many_is_forgotten() -> None:
    unmatched = UnmatchedReplies()
    for stream in range(MAX_GIVEN_UP + 1):
        unmatched.record_given_up(stream)
    assert len(unmatched) == MAX_GIVEN_UP
    for stream in (0, 1, MAX_GIVEN_UP):
        unmatched.record_frame(reply(stream))
    assert (unmatched.late, unmatched.repeated) == (2, 1)
