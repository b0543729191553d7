"""The order in which frames leave, and what a withdrawal removes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.protocol.delivery import SendQueue, frame_size
from dispatch.protocol.frames import CANCEL, CONT, FRAME_BYTES, REPLY, REQUEST, TRACE_BYTES, Reply, decode_payload_frame
from dispatch.protocol.settings import Settings

SETTINGS = Settings(large_bytes=1_000, fragment_bytes=2_000, large_at_once=2)


def reply(stream: int, size: int) -> tuple[Any, ...]:
    return (REPLY, stream, 0, bytes(size))


def request(stream: int, size: int = 10) -> tuple[Any, ...]:
    return (REQUEST, stream, 0, "tool", None, bytes(size))


def queue_with(*frames: tuple[Any, ...]) -> SendQueue:
    queue = SendQueue(SETTINGS)
    for frame in frames:
        queue.add(frame, len(frame[-1]))
    return queue


def test_the_size_of_a_frame() -> None:
    assert frame_size(reply(0, 100)) == 100 + FRAME_BYTES
    assert frame_size((CANCEL, 4)) == FRAME_BYTES
    assert frame_size((*reply(0, 100), {"traceparent": "x"})) == 100 + TRACE_BYTES + FRAME_BYTES


def test_small_frames_leave_together_in_order() -> None:
    queue = queue_with(reply(0, 10), reply(1, 20))
    assert queue.small
    assert queue.bytes == 30 + 2 * FRAME_BYTES
    cargo = queue.pop_small(10_000)
    assert [frame[1] for frame in cargo.frames] == [0, 1]
    assert cargo.size == 30 + 2 * FRAME_BYTES
    assert not queue.small
    assert (len(queue), queue.bytes) == (0, 0)


def test_a_packet_has_room_for_so_many_small_frames() -> None:
    queue = queue_with(*(reply(stream, 76) for stream in range(5)))
    assert [frame[1] for frame in queue.pop_small(250).frames] == [0, 1]
    assert queue.bytes == 300
    assert [frame[1] for frame in queue.pop_small(300).frames] == [2, 3, 4]


def test_at_least_one_frame_leaves() -> None:
    assert [frame[1] for frame in queue_with(reply(0, 900), reply(1, 10)).pop_small(100).frames] == [0]


def test_a_payload_above_the_limit_travels_in_fragments() -> None:
    queue = SendQueue(SETTINGS)
    assert queue.add(reply(0, 1_000), 1_000) is None
    large = queue.add(reply(1, 1_001), 1_001)
    assert queue.large
    assert decode_payload_frame(large.head) == Reply(1, 0, b"")
    assert queue.bytes == 1_000 + FRAME_BYTES + 1_001


def test_fragments_cover_the_payload() -> None:
    queue = SendQueue(SETTINGS)
    payload = bytes(range(256)) * 20
    large = queue.add((REPLY, 3, 0, payload), len(payload))
    assert large is not None
    pieces = []
    while queue.large:
        assert not large.is_packed
        (kind, message, offset, total, stream, head, piece), size = queue.pop_fragment(100_000)
        assert (kind, message, total, stream) == (CONT, 0, len(payload), 3)
        assert head == (None if offset else large.head)
        assert size == len(piece) + FRAME_BYTES
        assert len(piece) <= SETTINGS.fragment_bytes
        assert offset == sum(len(each) for each in pieces)
        pieces.append(piece)
    assert large.is_packed
    assert b"".join(pieces) == payload
    assert len(pieces) == 3


def test_a_fragment_fits_into_the_room_but_not_below_its_least_size() -> None:
    queue = queue_with(reply(0, 5_000))
    assert len(queue.pop_fragment(700)[0][-1]) == 700
    assert len(queue.pop_fragment(1)[0][-1]) == 512


def test_large_payloads_take_turns_and_further_ones_wait() -> None:
    queue = queue_with(*(reply(stream, 4_000) for stream in range(4)))
    streams = []
    while queue.large:
        streams.append(queue.pop_fragment(10_000)[0][4])
    assert streams == [0, 1, 0, 1, 2, 3, 2, 3]


def test_payloads_are_numbered_when_their_first_fragment_leaves() -> None:
    queue = queue_with(reply(7, 4_000), reply(8, 4_000), reply(9, 1_500))
    queue.drop_large(8)
    assert [queue.pop_fragment(10_000)[0][1:5:3] for _ in range(3)] == [(0, 7), (1, 9), (0, 7)]


def test_the_highest_packed_request_is_recorded() -> None:
    queue = queue_with(request(0), request(1), reply(9, 1))
    assert queue.packed_requests == -1
    queue.pop_small(10_000)
    assert queue.packed_requests == 1
    queue.add(reply(5, 1), 1)
    queue.pop_small(10_000)
    assert queue.packed_requests == 1


def test_an_unpacked_request_is_withdrawn() -> None:
    queue = queue_with(request(0), request(1), reply(1, 10), request(2))
    before = queue.bytes
    queue.withdraw_request(1)
    assert queue.bytes == before - frame_size(request(1))
    queue.withdraw_request(1)
    found = [(frame[0], frame[1]) for frame in queue.pop_small(10_000).frames]
    assert found == [(REQUEST, 0), (REPLY, 1), (REQUEST, 2)]


def test_dropping_a_large_payload_admits_the_next_one() -> None:
    queue = queue_with(*(reply(stream, 4_000) for stream in range(4)))
    queue.drop_large(0)
    queue.drop_large(3)
    assert queue.bytes == 8_000
    assert sorted(queue.pop_fragment(10_000)[0][4] for _ in range(2)) == [1, 2]
    queue.drop_large(1)
    queue.drop_large(2)
    assert (len(queue), queue.bytes, len(queue.large)) == (0, 0, 0)


def test_oversized_small_frames_are_cut() -> None:
    queue = queue_with(request(0, 900), request(1, 10), request(2, 900))
    found: list[int] = []
    queue.on_request_cut = lambda large: found.append(large.number)
    queue.cut_oversized(600)
    queue.cut_oversized(600)
    assert found == [0]
    assert [frame[1] for frame in queue.pop_small(10_000).frames] == [1, 2]
    assert queue.packed_requests == 2
    assert queue.pop_fragment(10_000)[0][4] == 0


def test_frames_fill_the_room_exactly() -> None:
    queue = queue_with(*(reply(stream, 76) for stream in range(3)))
    assert len(queue.pop_small(200).frames) == 2
    queue = queue_with(reply(0, 76), reply(1, 76))
    frames = queue.small
    assert queue.pop_small(200).frames is frames, "no copy where everything leaves"


def test_a_frame_that_fits_exactly_is_not_cut() -> None:
    queue = queue_with(reply(0, 900), reply(1, 100))
    queue.cut_oversized(900 + FRAME_BYTES)
    assert not queue.large
    queue.cut_oversized(899 + FRAME_BYTES)
    assert queue.large
    assert queue.bytes == 900 + 100 + FRAME_BYTES


def test_payloads_are_numbered_in_order() -> None:
    queue = queue_with(*(reply(stream, 1_500) for stream in range(4)))
    assert [queue.pop_fragment(10_000)[0][1] for _ in range(4)] == [0, 1, 2, 3]


def test_no_more_large_payloads_take_turns_after_one_is_dropped() -> None:
    queue = queue_with(*(reply(stream, 6_000) for stream in range(4)))
    queue.drop_large(1)
    assert [queue.pop_fragment(10_000)[0][4] for _ in range(4)] == [0, 2, 0, 2]


def test_without_a_listener_a_cut_request_is_fragmented_all_the_same() -> None:
    queue = queue_with(request(0, 900))
    queue.cut_oversized(600)
    assert queue.large


def test_clearing_removes_everything() -> None:
    queue = queue_with(reply(0, 10), *(reply(stream, 4_000) for stream in range(4)))
    queue.control.append((CANCEL, 1))
    assert len(queue) == 6
    queue.clear()
    assert (len(queue), queue.bytes) == (0, 0)
    assert not queue.small
    assert not queue.large
    assert queue.begun_bytes == 0


@given(st.lists(st.integers(0, 3_000), max_size=20), st.integers(1, 5_000))
def test_every_byte_leaves_once(sizes: list[int], room: int) -> None:
    queue = queue_with(*(reply(stream, size) for stream, size in enumerate(sizes)))
    sent = dict.fromkeys(range(len(sizes)), 0)
    while len(queue):
        if queue.small:
            for frame in queue.pop_small(room).frames:
                sent[frame[1]] += len(frame[-1])
        if queue.large:
            frame, _ = queue.pop_fragment(room)
            sent[frame[4]] += len(frame[-1])
    assert list(sent.values()) == sizes
    assert queue.bytes == 0


# -- room for incomplete payloads -------------------------------------------------------------------------------------

ROOM = Settings(large_bytes=1_000, fragment_bytes=2_000, large_at_once=8, max_partial_bytes=20_000)
"""Two payloads of 5,000 bytes may have begun at once."""


def room_queue(*sizes: int) -> SendQueue:
    queue = SendQueue(ROOM)
    for stream, size in enumerate(sizes):
        queue.add(reply(stream, size), size)
    return queue


def pop_all(queue: SendQueue, room: int = 2_000) -> list[tuple[Any, ...]]:
    """Remove the fragments of everything that has begun."""
    frames = []
    while queue.large:
        frames.append(queue.pop_fragment(room)[0])
    return frames


def test_payloads_wait_for_room_at_the_receiver_in_order() -> None:
    queue = room_queue(*[5_000] * 5)
    assert queue.begun_bytes == 10_000
    frames = pop_all(queue)
    assert {frame[4] for frame in frames} == {0, 1}
    assert (len(queue), queue.bytes) == (3, 15_000)
    queue.record_delivered([frame for frame in frames if frame[4] == 1][1:])
    assert not queue.large, "a fragment is missing: the payload is still incomplete"
    queue.record_delivered([frame for frame in frames if frame[4] == 1][:1])
    assert {frame[4] for frame in pop_all(queue)} == {2}
    queue.record_delivered(frames)
    assert {frame[4] for frame in pop_all(queue)} == {3}


def test_one_payload_may_always_begin() -> None:
    queue = room_queue(50_000, 5_000)
    frames = pop_all(queue)
    assert {frame[4] for frame in frames} == {0}
    queue.record_delivered(frames)
    assert {frame[4] for frame in pop_all(queue)} == {1}
    assert queue.begun_bytes == 5_000


def test_payloads_of_one_fragment_pass_those_that_wait() -> None:
    queue = room_queue(9_000, 9_000, 2_000, 3_000)
    assert {frame[4] for frame in pop_all(queue)} == {0, 2}
    assert queue.begun_bytes == 9_000
    assert len(queue) == 2


def test_a_dropped_payload_leaves_room_when_its_receiver_knows() -> None:
    queue = room_queue(9_000, 9_000, 9_000)
    queue.pop_fragment(2_000)
    queue.withdraw_large(0)
    assert queue.has_withdrawn
    assert not queue.large, "the receiver has a fragment of it until it reads CANCEL"
    queue.record_delivered([(CANCEL, 7)])
    assert not queue.large
    queue.record_delivered([(CANCEL, 0)])
    assert {frame[4] for frame in pop_all(queue)} == {1}
    queue.drop_large(1)
    assert {frame[4] for frame in pop_all(queue)} == {2}


def test_a_payload_that_is_withdrawn_before_its_first_fragment_leaves_room_at_once() -> None:
    queue = room_queue(9_000, 9_000)
    queue.withdraw_large(0)
    assert not queue.has_withdrawn
    assert {frame[4] for frame in pop_all(queue)} == {1}


def test_dropping_a_payload_that_waits_leaves_no_room() -> None:
    queue = room_queue(9_000, 9_000, 9_000)
    queue.drop_large(1)
    assert {frame[4] for frame in pop_all(queue)} == {0}
    assert len(queue) == 1


@pytest.mark.parametrize(("share", "begun"), [(1.0, 4), (0.5, 2), (0.1, 1)])
def test_a_sender_has_its_share_of_half_of_what_a_receiver_retains(share: float, begun: int) -> None:
    queue = SendQueue(ROOM)
    queue.divide_room(share)
    for stream in range(8):
        queue.add(reply(stream, 2_500), 2_500)
    assert queue.begun_bytes == begun * 2_500


def test_a_divided_room_has_no_whole_fragments() -> None:
    queue = room_queue(2_000, 2_000, 2_000, 3_000)
    queue.divide_room(0.3)
    assert queue.begun_bytes == 3_000, "the one that had begun beside those of one fragment"
    frames = pop_all(queue, 600)
    assert {frame[4] for frame in frames} == {3}
    queue.record_delivered(frames)
    assert {frame[4] for frame in pop_all(queue, 600)} == {0}
    queue.divide_room(1.0)
    assert {frame[4] for frame in pop_all(queue)} == {1, 2}


@given(
    st.lists(st.integers(1_001, 12_000), min_size=1, max_size=12),
    st.lists(st.tuples(st.sampled_from(["send", "arrive", "cancel", "divide"]), st.integers(0, 11)), max_size=80),
)
def test_what_is_incomplete_stays_within_the_room_and_everything_is_sent(
    sizes: list[int], actions: list[tuple[str, int]]
) -> None:
    queue = room_queue(*sizes)
    flying: list[tuple[Any, ...]] = []
    at_receiver: dict[int, int] = {}
    cancelled: set[int] = set()
    share = 1.0

    def act(action: str, argument: int) -> None:
        nonlocal share
        if action == "send" and queue.large:
            flying.append(queue.pop_fragment(2_000 if share == 1.0 else 500)[0])
        elif action == "arrive" and flying:
            frame = flying.pop(argument % len(flying))
            if frame[0] == CANCEL:
                at_receiver.pop(frame[1], None)
                cancelled.add(frame[1])
            elif frame[4] not in cancelled:
                size = at_receiver[frame[4]] = at_receiver.get(frame[4], 0) + len(frame[-1])
                if size == frame[3]:
                    del at_receiver[frame[4]]
            queue.record_delivered([frame])
        elif action == "cancel" and argument < len(sizes):
            queue.withdraw_large(argument)
            flying.append((CANCEL, argument))
        elif action == "divide":
            share = (argument + 1) / 12
            queue.divide_room(share)
        assert sum(at_receiver.values()) <= ROOM.max_partial_bytes // 2 or len(at_receiver) == 1

    for action, argument in actions:
        act(action, argument)
    while queue.large or flying:
        act("send" if queue.large else "arrive", 0)
    assert len(queue) == 0
    assert queue.begun_bytes == 0
    assert not at_receiver
