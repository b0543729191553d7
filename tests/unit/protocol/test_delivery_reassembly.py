"""Large payloads from their fragments, in any order, with bounded memory.
The window of one receiver, divided among its senders.
Numbers that arrive late, twice or never.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.protocol.delivery import Reassembly, ReceivedPackets, ReceiveWindow, SeenNumbers
from dispatch.protocol.frames import CANCEL, REPLY, Cont, Reply, encode
from dispatch.protocol.settings import Settings

SETTINGS = Settings(max_payload_bytes=10_000, max_partial_bytes=15_000, max_gaps=10)
HEAD = encode((REPLY, 4, 0, b""))
WHOLE = bytes(range(256)) * 20


def fragments(size: int = 1_000, message: int = 0, stream: int = 4, head: bytes = HEAD) -> list[Cont]:
    offsets = range(0, len(WHOLE), size)
    return [
        Cont(message, at, len(WHOLE), stream, None if at else head, memoryview(WHOLE)[at : at + size]) for at in offsets
    ]


@given(st.permutations(range(6)))
def test_fragments_arrive_in_any_order(order: list[int]) -> None:
    reassembly, parts = Reassembly(SETTINGS), fragments()
    results = [reassembly.add(parts[at]) for at in order]
    assert results[:-1] == [None] * 5
    assert results[-1] == Reply(4, 0, WHOLE)
    assert reassembly.size == 0
    assert len(reassembly) == 0


def test_a_payload_of_one_fragment() -> None:
    whole = Reassembly(SETTINGS).add(fragments(size=100_000)[0])
    assert whole == Reply(4, 0, WHOLE)
    assert type(whole.payload) is bytes


def test_a_fragment_that_arrives_twice_counts_once() -> None:
    reassembly, parts = Reassembly(SETTINGS), fragments()
    for part in parts[:-1]:
        assert reassembly.add(part) is None
        assert reassembly.add(part) is None
    assert reassembly.size == 5_000
    assert reassembly.add(parts[-1]) == Reply(4, 0, WHOLE)
    assert reassembly.add(parts[0]) is None
    assert reassembly.size == 0


def test_payloads_are_separate() -> None:
    reassembly = Reassembly(SETTINGS)
    first, second = fragments(), fragments(message=1)
    for one, other in zip(first[:-1], second[:-1], strict=True):
        assert reassembly.add(one) is None
        assert reassembly.add(other) is None
    assert reassembly.is_new(2)
    assert not reassembly.is_new(0)
    assert reassembly.add(first[-1]) == Reply(4, 0, WHOLE)
    assert reassembly.add(second[-1]) == Reply(4, 0, WHOLE)
    assert not reassembly.is_new(1)


def test_overlapping_fragments_give_nothing() -> None:
    reassembly = Reassembly(SETTINGS)
    view = memoryview(WHOLE)
    assert reassembly.add(Cont(0, 0, len(WHOLE), 4, HEAD, view[:3_000])) is None
    assert reassembly.add(Cont(0, 2_000, len(WHOLE), 4, None, view[2_000:])) is None
    assert reassembly.size == 0


def test_fragments_of_another_total_do_not_complete_a_payload() -> None:
    reassembly, parts = Reassembly(SETTINGS), fragments()
    reassembly.add(parts[0])
    for offset in (-1, len(WHOLE) - 999, 10**9):
        assert reassembly.add(Cont(0, offset, 10**12, 4, None, memoryview(WHOLE)[:1_000])) is None
    assert reassembly.size == 1_000


def test_tiny_fragments_are_bounded() -> None:
    reassembly = Reassembly(SETTINGS)
    for at in range(len(WHOLE)):
        assert reassembly.add(Cont(0, at, len(WHOLE), 4, HEAD, memoryview(WHOLE)[at : at + 1])) is None
    assert reassembly.size == len(WHOLE) // 256 + 17


def test_without_its_head_a_payload_is_dropped() -> None:
    reassembly, parts = Reassembly(SETTINGS), fragments()
    parts[0].head = None
    assert [reassembly.add(part) for part in parts] == [None] * 6
    assert reassembly.size == 0


def test_a_head_of_another_stream_or_kind_is_dropped() -> None:
    for head in (encode((REPLY, 5, 0, b"")), encode((CANCEL, 4)), b"\xc0"):
        reassembly = Reassembly(SETTINGS)
        assert [reassembly.add(part) for part in fragments(head=head)] == [None] * 6
        assert len(reassembly) == 0


def test_a_dropped_stream_ignores_its_later_fragments() -> None:
    reassembly, parts, others = Reassembly(SETTINGS), fragments(), fragments(message=1, stream=5)
    reassembly.add(parts[0])
    reassembly.add(others[0])
    reassembly.drop(4)
    assert reassembly.size == 1_000
    assert [reassembly.add(part) for part in parts] == [None] * 6
    assert reassembly.size == 1_000


def test_an_ignored_payload_needs_no_memory() -> None:
    reassembly = Reassembly(SETTINGS)
    reassembly.ignore(0)
    assert [reassembly.add(part) for part in fragments()] == [None] * 6
    assert len(reassembly) == 0


def test_limits() -> None:
    reassembly = Reassembly(SETTINGS)
    part = Cont(0, 0, 10_000, 4, HEAD, memoryview(bytes(8_000)))
    assert reassembly.fits(part)
    reassembly.add(part)
    assert reassembly.fits(Cont(1, 0, 10_000, 4, HEAD, memoryview(bytes(7_000))))
    assert not reassembly.fits(Cont(1, 0, 10_000, 4, HEAD, memoryview(bytes(7_001))))


def test_one_payload_alone_may_have_any_size() -> None:
    reassembly = Reassembly(SETTINGS)
    for offset in (0, 20_000):
        part = Cont(0, offset, 40_001, 4, HEAD, memoryview(bytes(20_000)))
        assert reassembly.fits(part)
        assert reassembly.add(part) is None
    assert not reassembly.fits(Cont(1, 0, 10, 4, HEAD, memoryview(b"x"))), "beside that one nothing has room"
    last = Cont(0, 40_000, 40_001, 4, HEAD, memoryview(b"x"))
    assert reassembly.fits(last)
    assert reassembly.add(last) is not None


def test_beside_a_single_byte_of_another_payload_the_limit_applies() -> None:
    reassembly = Reassembly(SETTINGS)
    reassembly.add(Cont(0, 0, 10, 4, HEAD, memoryview(b"x")))
    assert reassembly.fits(Cont(1, 0, 20_000, 4, HEAD, memoryview(bytes(14_999))))
    assert not reassembly.fits(Cont(1, 0, 20_000, 4, HEAD, memoryview(bytes(15_000))))


def test_a_payload_has_at_least_one_byte() -> None:
    reassembly = Reassembly(SETTINGS)
    assert reassembly.fits(Cont(0, 0, 1, 4, HEAD, memoryview(b"x")))
    assert not reassembly.fits(Cont(0, 0, 0, 4, HEAD, memoryview(b"")))


def test_incomplete_payloads_are_bounded() -> None:
    reassembly = Reassembly(Settings(max_partials=2))
    for message in range(2):
        assert reassembly.fits(fragments(message=message)[0])
        reassembly.add(fragments(message=message)[0])
    assert not reassembly.fits(fragments(message=2)[0])
    assert reassembly.fits(fragments(message=0)[1]), "those that have begun may become complete"
    assert len(reassembly) == 2


def test_gaps_count_as_retained() -> None:
    reassembly = Reassembly(SETTINGS)
    reassembly.add(fragments()[0])
    reassembly.ignore(5)
    assert len(reassembly) == 2


def test_gaps_among_payloads_are_bounded() -> None:
    reassembly = Reassembly(SETTINGS)
    for message in range(1, 11):
        reassembly.ignore(message)
    assert reassembly.fits(fragments()[0])
    reassembly.ignore(11)
    assert not reassembly.fits(fragments()[0])


def test_clearing_drops_everything() -> None:
    reassembly = Reassembly(SETTINGS)
    reassembly.add(fragments()[0])
    reassembly.ignore(9)
    reassembly.clear()
    assert (len(reassembly), reassembly.size) == (0, 0)
    assert reassembly.is_new(0)


def test_a_late_copy_of_a_whole_payload_is_no_excess() -> None:
    """Its sender has begun another one since, which may fill what is retained of incomplete payloads."""
    reassembly = Reassembly(Settings(max_partial_bytes=100))
    first = Cont(0, 0, 4, 7, encode([REPLY, 7, 0, b""]), memoryview(b"done"))
    assert reassembly.add(first) is not None
    assert reassembly.add(Cont(1, 0, 200, 8, None, memoryview(bytes(99)))) is None
    assert reassembly.fits(Cont(0, 2, 4, 7, None, memoryview(b"ne")))
    assert reassembly.add(Cont(0, 2, 4, 7, None, memoryview(b"ne"))) is None


SETTINGS_RECEIVE_WINDOW = Settings(window=48_000, senders_at_full_window=4, least_window=2_400)


class Peer:
    def __init__(self) -> None:
        self.is_window_due = False


def window_with(count: int) -> tuple[ReceiveWindow, list[Peer]]:
    window, peers = ReceiveWindow(SETTINGS_RECEIVE_WINDOW), [Peer() for _ in range(count)]
    for peer in peers:
        window.add(peer)
    return window, peers


def test_a_few_senders_have_the_whole_window_each() -> None:
    assert window_with(0)[0].share == 48_000
    assert window_with(4)[0].share == 48_000


def test_more_senders_divide_the_windows_of_these() -> None:
    assert window_with(5)[0].share == 38_400
    assert window_with(7)[0].share == 27_428
    assert window_with(8)[0].share == 24_000


def test_the_share_has_a_least_size() -> None:
    assert window_with(80)[0].share == 2_400
    assert window_with(1_000)[0].share == 2_400


def test_a_sender_counts_once() -> None:
    window, peers = window_with(4)
    window.add(peers[0])
    assert (window.senders, window.share) == (4, 48_000)


def test_senders_that_have_ended_return_their_share() -> None:
    window, peers = window_with(6)
    window.discard(peers[0])
    window.discard(peers[0])
    assert window.senders == 5
    window.discard(peers[1])
    assert window.share == 48_000


def test_every_sender_learns_at_once_of_half_the_share() -> None:
    window, peers = window_with(7)
    assert window.due == []
    window.add(peer := Peer())
    assert window.due == [*peers, peer]
    assert all(each.is_window_due for each in window.due)


def test_a_sender_is_due_once() -> None:
    window, _ = window_with(8)
    for _ in range(8):
        window.add(Peer())
    assert window.senders == 16
    assert len(window.due) == len(set(window.due)) == 16


def test_a_slightly_smaller_share_can_wait() -> None:
    window, peers = window_with(5)
    window.due.clear()
    for peer in peers:
        peer.is_window_due = False
    window.add(Peer())
    assert (window.share, window.due) == (32_000, [])


def test_a_share_that_grew_and_shrinks_again_is_due_again() -> None:
    window, peers = window_with(8)
    for _ in range(4):
        window.discard(peers.pop())
    window.due.clear()
    for peer in peers:
        peer.is_window_due = False
    for _ in range(4):
        window.add(Peer())
    assert len(window.due) == 8


def test_a_peer_that_sends_without_being_asked_counts_for_a_while() -> None:
    window, peers = window_with(0)[0], [Peer() for _ in range(6)]
    for at, peer in enumerate(peers):
        window.record(peer, 100.0 + at, recent=10.0)
    assert window.senders == 6
    window.record(peers[5], 112.5, recent=10.0)
    assert (window.senders, window.share) == (3, 48_000)


def test_the_share_follows_peers_that_send_without_being_asked() -> None:
    window, peers = ReceiveWindow(SETTINGS_RECEIVE_WINDOW), [Peer() for _ in range(6)]
    for peer in peers:
        window.record(peer, 100.0, recent=10.0)
    assert window.share == 32_000
    window.record(peers[0], 110.0, recent=10.0)
    assert window.senders == 6, "exactly as long ago as counts"
    window.record(peers[0], 110.1, recent=10.0)
    assert (window.senders, window.share) == (1, 48_000)


def test_a_known_sender_does_not_divide_the_window_again() -> None:
    """Each division visits all senders when the share has halved."""
    window, peers = ReceiveWindow(SETTINGS_RECEIVE_WINDOW), [Peer() for _ in range(6)]
    for peer in peers:
        window.record(peer, 100.0, recent=10.0)
    window.share = 0
    window.record(peers[0], 100.1, recent=10.0)
    assert window.share == 0


def test_a_peer_that_sends_again_counts_anew() -> None:
    window, first, second = ReceiveWindow(SETTINGS_RECEIVE_WINDOW), Peer(), Peer()
    window.record(first, 100.0, recent=10.0)
    window.record(second, 101.0, recent=10.0)
    window.record(first, 105.0, recent=10.0)
    window.record(first, 112.0, recent=10.0)
    assert window.senders == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=100))
def test_the_share_is_always_that_of_the_senders(steps: list[tuple[bool, int]]) -> None:
    window, peers, model = ReceiveWindow(SETTINGS_RECEIVE_WINDOW), [Peer() for _ in range(31)], set()
    for is_added, index in steps:
        (window.add if is_added else window.discard)(peers[index])
        (model.add if is_added else model.discard)(index)
        assert window.senders == len(model)
        assert window.share == (48_000 if len(model) <= 4 else max(4 * 48_000 // len(model), 2_400))


NUMBERS = st.lists(st.integers(0, 40), max_size=80)


def add(*numbers: int, most: int = 32) -> ReceivedPackets:
    received = ReceivedPackets(most)
    for number in numbers:
        received.add(number)
    return received


@given(NUMBERS)
def test_each_number_counts_once(numbers: list[int]) -> None:
    received, seen = ReceivedPackets(100), set()
    for number in numbers:
        assert received.add(number) == (number not in seen)
        seen.add(number)
    expected = [number for low, high in received.ranges for number in range(low, high + 1)]
    assert expected == sorted(seen)
    assert all(first[1] + 1 < second[0] for first, second in zip(received.ranges, received.ranges[1:], strict=False))


@given(NUMBERS, st.integers(1, 4))
def test_with_few_ranges_no_number_counts_twice(numbers: list[int], most: int) -> None:
    received, counted = ReceivedPackets(most), []
    for number in numbers:
        if received.add(number):
            counted.append(number)
        assert len(received.ranges) <= most
    assert len(counted) == len(set(counted))


@given(NUMBERS, st.integers(0, 45))
def test_a_forgotten_number_does_not_count_again(numbers: list[int], below: int) -> None:
    received = add(*numbers, most=100)
    largest = received.largest
    received.forget(below)
    assert received.largest == largest
    for number in numbers:
        if number < below or number in numbers:
            assert not received.add(number)


def test_ranges_are_reported_newest_first() -> None:
    assert add(0, 1, 2, 5, 9, 8).newest_first() == [8, 9, 5, 5, 0, 2]
    assert add().newest_first() == []


def test_a_range_grows_in_the_middle_and_joins_its_neighbours() -> None:
    received = add(0, 3, 6)
    assert received.add(4)
    assert received.ranges == [[0, 0], [3, 4], [6, 6]]
    assert received.add(5)
    assert received.ranges == [[0, 0], [3, 6]]
    assert received.add(2)
    assert received.ranges == [[0, 0], [2, 6]]
    assert received.add(1)
    assert received.ranges == [[0, 6]]


def test_the_oldest_range_is_dropped_and_what_is_below_counts_as_a_duplicate() -> None:
    received = add(0, 2, 4, most=2)
    assert received.ranges == [[2, 2], [4, 4]]
    assert not received.add(0)
    assert received.add(1) is True
    assert received.ranges == [[1, 2], [4, 4]]


def test_an_inserted_range_may_be_the_one_too_many() -> None:
    received = add(10, 20, most=2)
    assert received.add(15)
    assert received.ranges == [[15, 15], [20, 20]]
    assert not received.add(9)
    assert received.add(16)


def test_largest() -> None:
    assert add().largest == -1
    assert add(3, 1).largest == 3


def test_forgetting_keeps_the_highest_number() -> None:
    received = add(0, 1, 2, 5)
    received.forget(2)
    assert received.ranges == [[2, 2], [5, 5]]
    received.forget(5)
    assert received.ranges == [[5, 5]]
    received.forget(3)  # an older acknowledgement
    assert not received.add(4)
    assert received.add(6)


def test_a_number_below_everything_that_was_forgotten_is_a_duplicate() -> None:
    received = add(0, 1, 2)
    received.forget(2)
    received.clear()
    assert not received.add(1)
    assert received.ranges == []
    assert received.add(2)


def test_the_number_after_a_dropped_range_is_new() -> None:
    received = add(10, 20, most=2)
    assert received.add(12)
    assert received.ranges == [[12, 12], [20, 20]]
    assert received.add(11)
    assert received.ranges == [[11, 12], [20, 20]]


def test_forgetting_cuts_a_range() -> None:
    received = add(0, 1, 2, 3)
    received.forget(2)
    assert received.ranges == [[2, 3]]
    received.forget(3)
    assert received.ranges == [[3, 3]]
    assert not received.add(2)


def test_clearing_drops_all_numbers() -> None:
    received = add(0, 1)
    received.clear()
    assert received.ranges == []


@given(NUMBERS)
def test_seen_numbers_count_once_and_need_no_memory_without_gaps(numbers: list[int]) -> None:
    seen, model = SeenNumbers(), set()
    for number in numbers:
        assert (number in seen) == (number in model)
        assert seen.add(number) == (number not in model)
        model.add(number)
        assert seen.floor == next(each for each in range(100) if each not in model)
        assert seen.above == {each for each in model if each > seen.floor}
    for number in range(max(model, default=0)):
        seen.add(number)
    assert seen.above == set()


@pytest.mark.parametrize("number", [0, 5])
def test_a_number_is_seen_once(number: int) -> None:
    seen = SeenNumbers()
    assert number not in seen
    assert seen.add(number)
    assert number in seen
    assert not seen.add(number)
