"""What the fault ``malformed`` makes of a payload cannot be read, also where a message has the fault twice: on its way to
the broker, and from there."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.messaging.wire import (
    MalformedMessageError,
    Reply,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from dispatch.protocol.frames import PING, REPLY, REQUEST, VERSION, MalformedPacketError, decode_packet, encode_packet
from dispatch.testing.faults import MALFORMED_PAYLOADS, malformed_payload

HEADER = (VERSION, 5, 0, 7, 100, 0, 0, 10, 48_000)
frames = st.one_of(
    st.just((PING,)),
    st.builds(lambda stream, text: (REPLY, stream, 0, text), st.integers(0, 1 << 40), st.binary(max_size=40)),
    st.builds(lambda text: (REQUEST, 1, 0, "tool", None, text), st.binary(max_size=40)),
)


@given(seed=st.integers(0, 1 << 32), frames=st.lists(frames, max_size=4), faults=st.integers(1, 4))
def test_a_packet_is_unreadable_after_any_number_of_faults(
    seed: int, frames: list[tuple[object, ...]], faults: int
) -> None:
    packet, rng = encode_packet(HEADER, frames), random.Random(seed)
    decode_packet(packet)
    for _ in range(faults):
        packet = malformed_payload(rng, packet)
        with pytest.raises(MalformedPacketError):
            decode_packet(packet)


class Drawn(random.Random):
    """Draws these whole numbers."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(0)
        self._numbers = list(numbers)

    def randrange(self, *_bounds: int) -> int:  # type: ignore[override] # as it is called here
        return self._numbers.pop(0)


CUT, APPEND = 0, 2
"""Kinds of alteration."""


def test_cutting_what_was_appended_and_appending_what_was_cut_restore_no_message() -> None:
    packet = encode_packet(HEADER, [(REPLY, 3, 0, b"{}")])
    for original, decode, error in (
        (packet, decode_packet, MalformedPacketError),
        (encode_reply(Reply(None, "done", True)), decode_reply, MalformedMessageError),
    ):
        longer = malformed_payload(Drawn(APPEND), original)
        assert longer == original + b"}"
        cut = malformed_payload(Drawn(CUT, len(original) - 1), original)
        assert cut == original[:-1]
        for payload in (malformed_payload(Drawn(CUT, len(original)), longer), malformed_payload(Drawn(APPEND), cut)):
            with pytest.raises(error):
                decode(payload)


@given(seed=st.integers(0, 1 << 32), text=st.text(max_size=20), faults=st.integers(1, 4))
def test_a_request_and_a_reply_without_a_session_are_unreadable(seed: int, text: str, faults: int) -> None:
    for decode, payload in (
        (decode_request, encode_request("{}", "{}", text, limit=1_000)),
        (decode_reply, encode_reply(Reply(None, text, True))),
    ):
        rng = random.Random(seed)
        decode(payload)
        for _ in range(faults):
            payload = malformed_payload(rng, payload)  # the next fault alters it again
            with pytest.raises(MalformedMessageError):
                decode(payload)


@pytest.mark.parametrize("payload", MALFORMED_PAYLOADS, ids=range(len(MALFORMED_PAYLOADS)))
def test_no_listed_payload_is_a_packet(payload: bytes) -> None:
    with pytest.raises(MalformedPacketError):
        decode_packet(payload)
