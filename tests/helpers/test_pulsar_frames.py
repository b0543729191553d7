"""Frames are found however the stream is cut, and what the proxy reads of a command is what was written."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.pulsar_frames import (
    FLOW,
    MAX_FRAME,
    Frames,
    batch_size,
    body_of,
    decode,
    encode,
    frame,
    numbers_of,
    type_of,
)

FIELDS = st.lists(st.tuples(st.integers(1, 2**29 - 1), st.integers(0, 2**64 - 1) | st.binary(max_size=300)))
FLOW_OF_100 = bytes.fromhex("0000000c 00000008 080b 5a04 0807 1064")
"""BaseCommand{type=FLOW, flow{consumer_id=7, messagePermits=100}}, written down by hand."""


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """``data`` in pieces, cut at these places (modulo its length); no piece is empty, as with a socket."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(st.binary(min_size=1, max_size=400), max_size=30), st.lists(st.integers(0, 20_000), max_size=60))
@example([b"x" * 3, b"y" * 300], list(range(400)))
def test_frames_are_found_however_the_stream_is_cut(contents: list[bytes], cuts: list[int]) -> None:
    written = [struct.pack(">II", len(content) + 4, 0) + content for content in contents]
    frames = Frames()
    found = [bytes(whole) for piece in cut(b"".join(written), cuts) for whole in frames.feed(piece)]
    assert found == written


def test_a_frame_comes_out_as_soon_as_it_is_there_and_not_before() -> None:
    frames = Frames()
    data = FLOW_OF_100 * 2
    for end in range(1, len(data) + 1):
        found = list(frames.feed(data[end - 1 : end]))
        assert found == ([FLOW_OF_100] if end in (len(FLOW_OF_100), len(data)) else [])


def test_what_came_in_one_piece_is_not_copied() -> None:
    data = FLOW_OF_100 * 3
    assert [whole.obj is data for whole in Frames().feed(data)] == [True] * 3


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", 0, 0),
        struct.pack(">II", 4, 0),
        struct.pack(">II", MAX_FRAME + 1, 4),
        b"GET / HTTP/1.1\r\n",
        bytes.fromhex("16030100f8010000f40303"),  # TLS
    ],
)
def test_another_protocol_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not Pulsar's protocol"):
        list(Frames().feed(data))


@given(FIELDS)
def test_fields_are_read_as_they_were_written(fields: list[tuple[int, int | bytes]]) -> None:
    assert list(decode(encode(fields))) == fields


@given(st.binary(max_size=200))
@example(b"\x80" * 11 + b"\x01")
@example(b"\x0a\xff\xff\xff\xff\x0f")
@example(b"\x0d\x00\x00\x00\x00")  # a fixed-width field
def test_any_bytes_are_fields_or_an_error(data: bytes) -> None:
    try:
        fields = list(decode(data))
    except ValueError:
        return
    size = sum(2 if isinstance(value, int) else 2 + len(value) for _, value in fields)
    assert size <= len(data), "nothing was read twice, and nothing beyond the end"


def test_a_command_is_written_and_read_as_the_protocol_says() -> None:
    assert frame(FLOW, [(1, 7), (2, 100)]) == FLOW_OF_100
    whole = memoryview(FLOW_OF_100)
    assert type_of(whole) == FLOW
    assert body_of(whole) == [(1, 7), (2, 100)]
    assert numbers_of(whole) == {1: 7, 2: 100}


def test_a_type_that_does_not_come_first_is_found() -> None:
    command = encode([(FLOW, encode([(1, 7)])), (1, FLOW)])
    whole = memoryview(struct.pack(">II", len(command) + 4, len(command)) + command)
    assert type_of(whole) == FLOW
    assert numbers_of(whole) == {1: 7}


@pytest.mark.parametrize(
    "command",
    [b"", b"\x08\x0b", b"\x08\x0b\x58\x01", b"\x5a\x00", b"\xff\xff"],
    ids=["nothing", "no body", "a number for a body", "no type", "no fields"],
)
def test_a_command_without_its_body_is_an_error(command: bytes) -> None:
    whole = memoryview(struct.pack(">II", len(command) + 5, len(command)) + command + b"\0")
    with pytest.raises(ValueError, match=r"body|does not end"):
        body_of(whole)


def test_a_command_longer_than_its_frame_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer than its frame"):
        body_of(memoryview(struct.pack(">II", 6, 3) + b"\x08\x0b"))


@pytest.mark.parametrize("broker_metadata", [b"", b"\x0e\x02" + struct.pack(">I", 5) + b"\x58\x63\x58\x63\x58"])
@pytest.mark.parametrize("checksum", [b"", b"\x0e\x01\x58\x63\x58\x63"])
@pytest.mark.parametrize(
    ("fields", "count"),
    [([], 1), ([(11, 1)], 1), ([(11, 300)], 300), ([(4, b"\x0a\x02XX\x12\x02XX")], 1), ([(4, b"XX"), (11, 17)], 17)],
)
def test_a_batch_counts_as_what_it_holds(
    fields: list[tuple[int, int | bytes]], count: int, broker_metadata: bytes, checksum: bytes
) -> None:
    metadata = encode([(1, b"producer"), (2, 5), (3, 1_700_000_000_000), *fields])
    head = broker_metadata + checksum + struct.pack(">I", len(metadata))
    command = encode([(1, 9), (9, encode([(1, 1), (2, encode([(1, 0), (2, 0)]))]))])
    rest = struct.pack(">I", len(command)) + command + head + metadata + b"\x58\x63 the payload"
    assert batch_size(memoryview(struct.pack(">I", len(rest)) + rest)) == count
