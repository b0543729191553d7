"""Two processes over a perfect network: the shortest ways of a request through the protocol."""

from __future__ import annotations

import random

import msgspec
import pytest

from dispatch.protocol import OutgoingRequest, SessionTable, Settings, is_packet
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
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


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
    pair.caller._sender.peer_window = 0
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
