"""The caller's end of the handshake: HELLO until ACCEPT, the proof of the secret, and requests that wait for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from dispatch.protocol import OutgoingRequest
from dispatch.protocol.events import Failure, RequestFailed, RequestReceived, SessionClosed, SessionOpened
from dispatch.protocol.frames import (
    ACCEPT,
    GOAWAY,
    REPLY,
    STREAM_CREDIT,
    VERSION,
    Hello,
    decode_packet,
    derive_proof,
    encode_packet,
)
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair

NONCE = bytes(16)


def accept(pair: Pair, **changes: Any) -> tuple[Any, ...]:
    """Return the ACCEPT of an instance that knows the secret, with some fields changed."""
    fields = {"version": VERSION, "name": "i", "incarnation": "run", "nonce": NONCE} | changes
    proof = derive_proof("s", pair.caller.id, NONCE, "i", "run")
    proof = changes.get("proof", proof)
    return (ACCEPT, fields["version"], 0, fields["name"], fields["incarnation"], fields["nonce"], proof, 16_000_000)


def receive_accept(pair: Pair, frame: tuple[Any, ...]) -> list[Any]:
    packet = encode_packet((VERSION, pair.caller.id, 0, -1, 0, 0, 0, 0, 48_000), [frame])
    return [event for _, events in pair.tables[DISPATCHER].receive_packet(packet, pair.now) for event in events]


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
    assert decoded.frames == [Hello([VERSION], STREAM_CREDIT, *about, 16_000_000, 2_000_000)]


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
