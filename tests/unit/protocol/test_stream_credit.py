"""Flow control of each stream: the callee's chunks wait for the caller's reads, and no stream waits for ever."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.protocol import OutgoingRequest, Settings
from dispatch.protocol.events import ChunkReceived, EndReceived, RequestCancelled, RequestFailed, RequestReceived
from dispatch.protocol.frames import (
    ACCEPT,
    CHUNK,
    CHUNK_BYTES,
    HELLO,
    VERSION,
    Chunk,
    Credit,
    decode_packet,
    derive_proof,
)
from tests.helpers.handwritten_callee import HandWritten
from tests.helpers.handwritten_packets import hello, packet, receive
from tests.helpers.run_profile import examples
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair

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
