"""Whatever bytes come back, a handshake ends as a connection or as a typed error; and the few fields it reads, it reads."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch.errors import TransportError
from dispatch.transports.base import Security
from dispatch.transports.pulsar import handshake
from dispatch.transports.pulsar.handshake import _fields, shake_hands
from tests.helpers.clock import run
from tests.helpers.handshake_server import CONNECTED, error, fields, frame, number, text
from tests.helpers.run_profile import examples

NUMBERS = st.integers(0, 2**64 - 1)
FIELDS = st.integers(1, 2**29 - 1)


@given(st.binary(max_size=200))
@example(b"\x80" * 9)
@example(b"\x80" * 11 + b"\x01")
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_any_bytes_are_fields_or_no_message(data: bytes) -> None:
    try:
        found = list(_fields(data))
    except ValueError:
        return
    size = sum(1 + (1 if isinstance(value, int) else 1 + len(value)) for _, value in found)
    assert size <= len(data), "nothing was read twice, and nothing beyond the end"


@given(st.lists(st.tuples(FIELDS, st.one_of(NUMBERS, st.binary(max_size=300)))))
def test_what_was_written_is_read(written: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(number(key, value) if isinstance(value, int) else text(key, value) for key, value in written)
    assert list(_fields(data)) == written
    assert fields(data) == dict(written), "the reader of the tests agrees"


@given(FIELDS, st.binary(min_size=1, max_size=300))
def test_a_message_that_was_cut_off_is_none(key: int, value: bytes) -> None:
    whole = text(key, value)
    for length in range(1, len(whole)):
        with pytest.raises(ValueError, match="not a Protocol Buffers message"):
            list(_fields(whole[:length]))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
@example("x" * 127)
@example("x" * 128)
@example("x" * 600)  # what a token has
@example("x" * 16_384)
def test_our_own_greeting_can_be_read(token: str) -> None:
    command = fields(handshake._connect_command(Security(token=token, certificate="agent.pem")))
    assert command[1] == 2
    greeting = fields(command[2])
    assert (greeting[3].decode(), greeting[5]) == (token, b"token"), "a token goes before a certificate"


class _Writer:
    """The other direction of a connection, which nobody looks at; it says whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        assert struct.unpack(">I", data[:4])[0] == len(data) - 4

    async def drain(self) -> None:
        """There is always room."""

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        """It is closed at once."""


def answered(answer: bytes, ends: bool) -> str:
    """What becomes of a handshake that is answered with these bytes; then the connection ends, or it hangs."""

    async def scenario() -> str:
        writer = _Writer()

        async def open_connection(*_args: Any, **_kwargs: Any) -> tuple[asyncio.StreamReader, _Writer]:
            reader = asyncio.StreamReader()
            reader.feed_data(answer)
            if ends:
                reader.feed_eof()
            return reader, writer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "open_connection", open_connection)
            try:
                await shake_hands("pulsar://broker.example", Security())
            except TransportError as problem:
                return "perhaps sent" if problem.may_have_run else problem.type
            finally:
                assert writer.closed
        return "connected"

    return run(scenario)


COMMANDS = st.one_of(
    st.binary(max_size=100),
    st.lists(
        st.one_of(
            st.builds(number, st.integers(1, 16), st.sampled_from([2, 3, 14, 2**63])),
            st.builds(text, st.integers(1, 16), st.binary(max_size=50)),
        )
    ).map(b"".join),
)


@given(COMMANDS.map(frame), st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_any_frame_ends_in_a_connection_or_in_a_typed_error(answer: bytes, ends: bool) -> None:
    assert answered(answer, ends) in {"connected", "unreachable", "unauthorized", "connection-refused"}


@given(st.binary(max_size=100), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_what_begins_larger_than_any_frame_is_no_broker(answer: bytes, ends: bool) -> None:
    assert answered(b"\x01" + answer, ends) == "unreachable"


@given(
    st.sampled_from([CONNECTED, error(3, b"Token expired"), error(0, b"busy")]),
    st.integers(0, 100),
    st.integers(0, 255),
    st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_damaged_answer_ends_in_one_of_them_too(answer: bytes, at: int, byte: int, ends: bool) -> None:
    damaged = bytearray(answer)
    damaged[at % len(damaged)] = byte
    assert answered(bytes(damaged), ends) in {"connected", "unreachable", "unauthorized", "connection-refused"}


def test_what_follows_the_command_in_its_frame_is_not_read() -> None:
    command = CONNECTED[8:]
    followed = struct.pack(">II", len(command) + 4 + 3, len(command)) + command + b"\xff\xff\xff"
    assert answered(followed, ends=False) == "connected"


@pytest.mark.parametrize(
    ("answer", "becomes"), [(CONNECTED, "connected"), (error(3, b"expired"), "unauthorized"), (b"", "unreachable")]
)
def test_the_whole_answers_do_what_they_say(answer: bytes, becomes: str) -> None:
    assert answered(answer, ends=False) == becomes
    assert answered(answer, ends=True) == becomes
