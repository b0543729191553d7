"""Large payloads from their fragments, in any order, with bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatch.protocol.delivery import Reassembly
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
    reassembly = Reassembly(SETTINGS)
    whole = reassembly.add(fragments(size=100_000)[0])
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
    for offset in (0, 10_000):
        part = Cont(0, offset, 20_001, 4, HEAD, memoryview(bytes(10_000)))
        assert reassembly.fits(part)
        assert reassembly.add(part) is None
    assert not reassembly.fits(Cont(1, 0, 10, 4, HEAD, memoryview(b"x"))), "beside that one nothing has room"
    last = Cont(0, 20_000, 20_001, 4, HEAD, memoryview(b"x"))
    assert reassembly.fits(last)
    assert reassembly.add(last) is not None


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
