"""The form of packets: what decodes, what is malformed, and what a later version may add.
The proof of a handshake, and the address that never travels towards dispatchers.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.protocol.frames import (
    CANCEL,
    CONT,
    GOAWAY,
    PACKET_START,
    PING,
    PROOF_BYTES,
    REFUSED,
    REPLY,
    REQUEST,
    VERSION,
    Cancel,
    Cont,
    MalformedPacketError,
    Ping,
    Refused,
    Reply,
    Request,
    create_address,
    decode_packet,
    decode_payload_frame,
    derive_address,
    derive_proof,
    encode_packet,
    is_packet,
)
from tests.helpers import sample_frames
from tests.helpers.sample_frames import HEADER

NO_UNICODE = msgspec.msgpack.encode((REQUEST, 4, 0, "abc", None, b"")).replace(b"abc", b"a\xffc")
FRAMES: list[tuple[tuple[Any, ...], Any]] = [
    *((written, read(*written[1:])) for written, read in sample_frames.FRAMES),
    ((REQUEST, 1, 0, "tool", None, b"{}"), Request(1, 0, "tool", None, b"{}")),
]


@pytest.mark.parametrize(("written", "read"), FRAMES, ids=lambda frame: type(frame).__name__)
def test_each_frame_is_read_as_it_is_written(written: tuple[Any, ...], read: Any) -> None:
    assert decode_packet(encode_packet(HEADER, [written])).frames == [read]


def test_header_is_read_as_it_is_written() -> None:
    packet = decode_packet(encode_packet(HEADER, []))
    fields = (packet.version, packet.to, packet.path, packet.number, packet.clock, packet.flags, packet.load)
    assert (*fields, packet.data, packet.window) == HEADER
    assert packet.frames == []


def test_a_packet_carries_many_frames_in_order() -> None:
    frames = [frame for frame, _ in FRAMES]
    assert decode_packet(encode_packet(HEADER, frames)).frames == [read for _, read in FRAMES]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_536, 1_000_000])
def test_a_fragment_is_appended_without_a_copy_of_its_piece(size: int) -> None:
    whole = bytes(range(256)) * (size // 256 + 1)
    piece = memoryview(whole)[:size]
    cont = (CONT, 3, 10, 5_000_000, 8, b"head", piece)
    packet = decode_packet(encode_packet(HEADER, [(PING,), cont]))
    assert (packet.frames, packet.number) == ([Ping(), Cont(3, 10, 5_000_000, 8, b"head", piece)], 5)


def test_a_packet_begins_as_no_text_does() -> None:
    data = encode_packet(HEADER, [(PING,)])
    assert data[0] == PACKET_START
    assert is_packet(data)
    with pytest.raises(UnicodeDecodeError):
        bytes([PACKET_START]).decode()
    assert not is_packet(b'{"a": 1}')
    assert not is_packet(b"")


@given(st.binary())
def test_any_bytes_are_a_packet_or_malformed(data: bytes) -> None:
    try:
        decode_packet(data)
    except MalformedPacketError:
        return
    assert is_packet(data) or data[:1] in (b"\xdc", b"\xdd")  # longer forms of an array's header


MALFORMED = {
    "empty": b"",
    "nil": b"\xc0",
    "JSON": b'{"id": 1}',
    "no elements": msgspec.msgpack.encode([]),
    "no frames": msgspec.msgpack.encode([*HEADER]),
    "nil for frames": msgspec.msgpack.encode([*HEADER, None]),
    "frame without elements": msgspec.msgpack.encode([*HEADER, [[]]]),
    "text for a kind": msgspec.msgpack.encode([*HEADER, [["ping"]]]),
    "text for a number": msgspec.msgpack.encode([*HEADER, [[CANCEL, "one"]]]),
    "missing field": msgspec.msgpack.encode([*HEADER, [[CANCEL]]]),
    "text for a version": msgspec.msgpack.encode(["1", *HEADER[1:], []]),
    "truncated": msgspec.msgpack.encode([*HEADER, []])[:-1],
    "no UTF-8": msgspec.msgpack.encode([*HEADER, [[GOAWAY, "abc"]]]).replace(b"abc", b"a\xffc"),
    "no UTF-8 beside a new frame": msgspec.msgpack.encode([*HEADER, [[99], [GOAWAY, "abc"]]]).replace(
        b"abc", b"a\xffc"
    ),
    "deep": b"\x91" * 5_000,
    "deep frames": msgspec.msgpack.encode([*HEADER, []])[:-1] + b"\x91" * 5_000 + b"\x90",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed(data: bytes) -> None:
    with pytest.raises(MalformedPacketError):
        decode_packet(data)


def test_an_error_says_what_is_wrong() -> None:
    with pytest.raises(MalformedPacketError, match="truncated"):
        decode_packet(msgspec.msgpack.encode([*HEADER, []])[:-1])
    with pytest.raises(MalformedPacketError, match="`int`"):
        decode_packet(msgspec.msgpack.encode(["1", *HEADER[1:], []]))


def test_another_version_is_malformed() -> None:
    with pytest.raises(MalformedPacketError, match="version 2"):
        decode_packet(encode_packet((VERSION + 1, *HEADER[1:]), []))


def test_frames_of_a_later_version_are_left_out() -> None:
    data = encode_packet(HEADER, [(PING,), (99, "new", {}), (CANCEL, 4), (-3,)])
    assert decode_packet(data).frames == [Ping(), Cancel(4)]
    assert decode_packet(data).load == 3


def test_a_packet_with_new_frames_keeps_its_header_and_its_known_frames() -> None:
    known = [frame for frame, _ in FRAMES]
    packet = decode_packet(encode_packet(HEADER, [(99,), *known]))
    assert packet.frames == [read for _, read in FRAMES]
    fields = (packet.version, packet.to, packet.path, packet.number, packet.clock, packet.flags, packet.load)
    assert (*fields, packet.data, packet.window) == HEADER


def test_further_fields_of_a_known_frame_are_ignored() -> None:
    assert decode_packet(encode_packet(HEADER, [(CANCEL, 4, "new")])).frames == [Cancel(4)]


def test_further_fields_of_a_packet_are_ignored() -> None:
    assert decode_packet(msgspec.msgpack.encode([*HEADER, [[PING]], "new"])).frames == [Ping()]


def test_the_message_of_a_refusal_may_be_absent() -> None:
    found = decode_packet(encode_packet(HEADER, [(REFUSED, 1, "draining", -1)])).frames
    assert found == [Refused(1, "draining", -1, "")]


def test_the_head_of_a_fragmented_payload() -> None:
    assert decode_payload_frame(msgspec.msgpack.encode((REPLY, 4, 0, b""))) == Reply(4, 0, b"")


@pytest.mark.parametrize(
    "head",
    [b"", b"\xc0", msgspec.msgpack.encode((PING,)), msgspec.msgpack.encode((REPLY, 4)), b"\x91" * 5_000, NO_UNICODE],
    ids=["empty", "nil", "another kind", "missing field", "deep", "no UTF-8"],
)
def test_a_head_that_is_no_payload_frame(head: bytes) -> None:
    assert decode_payload_frame(head) is None


NONCE = bytes(range(16))
ADDRESS = 7_720_967_916_697_048_404
PROOF = "d80fe87f2589542ca176a5dce7e8fe95"


def test_the_proof_depends_on_everything_that_the_callee_states() -> None:
    proofs = {
        derive_proof("secret", 1, NONCE, "i0", "run"),
        derive_proof("Secret", 1, NONCE, "i0", "run"),
        derive_proof("secret", 2, NONCE, "i0", "run"),
        derive_proof("secret", 1, NONCE[::-1], "i0", "run"),
        derive_proof("secret", 1, NONCE, "i1", "run"),
        derive_proof("secret", 1, NONCE, "i0", "later"),
    }
    assert len(proofs) == 6
    assert {len(proof) for proof in proofs} == {PROOF_BYTES}


def test_no_text_moves_between_the_name_and_the_incarnation() -> None:
    assert derive_proof("s", 1, NONCE, "a b", "c") != derive_proof("s", 1, NONCE, "a", "b c")


def test_the_address_depends_on_the_secret_the_caller_and_the_nonce() -> None:
    addresses = {
        derive_address("secret", 1, NONCE),
        derive_address("Secret", 1, NONCE),
        derive_address("secret", 2, NONCE),
        derive_address("secret", 1, NONCE[::-1]),
    }
    assert len(addresses) == 4


def test_an_address_has_63_bits_and_is_not_0() -> None:
    """0 is the address of a HELLO."""
    assert [create_address(bytes(7) + bytes([low])) for low in range(6)] == [1, 1, 1, 1, 2, 2]
    assert create_address(b"\xff" * 8) == 2**63 - 1


def test_the_proof_does_not_reveal_the_address() -> None:
    address = derive_address("secret", 1, NONCE)
    assert address.to_bytes(8, "big") not in derive_proof("secret", 1, NONCE, "i0", "run")


def test_both_sides_derive_the_same_values() -> None:
    """Peers may run different versions of this module: the values belong to the protocol."""
    assert derive_address("secret", 1, NONCE) == ADDRESS
    assert derive_proof("secret", 1, NONCE, "i0", "run").hex() == PROOF


@given(
    st.text(max_size=64).filter(lambda text: len(text.encode()) <= 64),
    st.integers(0, 2**63 - 1),
    st.binary(max_size=64),
)
def test_an_address_has_63_bits_and_is_not_that_of_a_hello(secret: str, id: int, nonce: bytes) -> None:
    assert 0 < derive_address(secret, id, nonce) < 2**63
