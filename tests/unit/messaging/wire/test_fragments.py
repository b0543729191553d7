"""Parts: whatever is split comes together again, whatever the order, and nothing else does; bounded in every direction."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dispatch.messaging.wire.codec import MAX_MESSAGE_BYTES, Reply, encode_reply
from dispatch.messaging.wire.fragments import (
    MAX_PARTS,
    MAX_RANGES,
    PART_BYTES,
    FragmentBuffer,
    FragmentedPayload,
    FragmentError,
    part_at,
    parts_of,
    read_parts,
    read_ranges,
    split_text,
    write_parts,
    write_ranges,
)

sizes = st.integers(1, 400) | st.integers(1, 1 << 40)
limits = st.integers(1, 100) | st.integers(1_000, MAX_MESSAGE_BYTES)


@given(st.text(max_size=300), st.integers(8, 400))
def test_a_text_comes_together_again_and_every_part_fits(text: str, limit: int) -> None:
    parts = list(split_text(text, len(text.encode(errors="replace")), limit))
    assert "".join(part for part, _ in parts) == text
    assert [more for _, more in parts] == [True] * (len(parts) - 1) + [False] * bool(parts)
    assert all(0 < len(part.encode()) <= max(4, limit // 8) for part, _ in parts)


@pytest.mark.parametrize("letter", ["x", "ü", "😀", "\x01", '"'])
def test_a_part_of_the_most_costly_letters_is_still_a_message(letter: str) -> None:
    text = letter * MAX_MESSAGE_BYTES
    for part, more in split_text(text, len(text.encode()), MAX_MESSAGE_BYTES):
        assert len(encode_reply(Reply(None, part, not more))) <= MAX_MESSAGE_BYTES


def test_the_largest_text_has_fewer_parts_than_a_receiver_keeps_ahead() -> None:
    size = 1 << 28
    assert sum(1 for _ in split_text("x" * size, size, MAX_MESSAGE_BYTES)) <= MAX_PARTS
    assert [len(part) for part, _ in split_text("x" * (PART_BYTES + 1), PART_BYTES + 1, MAX_MESSAGE_BYTES)] == [
        PART_BYTES,
        1,
    ]


@given(sizes, limits)
def test_parts_of_a_request_cover_it_and_fit(size: int, limit: int) -> None:
    try:
        count = parts_of(size, limit)
    except ValueError:
        assert size > MAX_PARTS * min(limit, max(PART_BYTES, -(-size // MAX_PARTS)))
        return
    assert read_parts(write_parts(count, size)) == (count, size)
    bounds = [part_at(index, count, size) for index in range(count)]
    assert (bounds[0][0], bounds[-1][1]) == (0, size)
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
    assert all(0 < end - start <= limit for start, end in bounds)


@given(st.text(max_size=12) | st.from_regex(r"\d{0,4}/\d{0,4}", fullmatch=True))
def test_whatever_the_property_says_no_part_is_empty(text: str) -> None:
    said = read_parts(text)
    if said is not None:
        count, size = said
        assert 1 <= count <= MAX_PARTS
        assert all(start < end for start, end in (part_at(index, count, size) for index in range(count)))


@given(st.sets(st.integers(0, 500)))
def test_ranges_are_read_as_they_were_written(indices: set[int]) -> None:
    text = write_ranges(sorted(indices))
    read = read_ranges(text, 501)
    assert read == sorted(indices)[: len(read)], "the first ones, when there are too many gaps"
    assert len(read) == len(indices) or text.count(",") == MAX_RANGES - 1
    assert len(text) < 1_000


@given(st.text(alphabet="0123456789-,x ", max_size=40), st.integers(1, 50))
def test_ranges_that_are_none_name_nothing_beyond_the_parts(text: str, count: int) -> None:
    found = read_ranges(text, count)
    assert len(found) <= count
    assert all(0 <= index < count for index in found)


@given(st.binary(min_size=1, max_size=200), st.integers(1, 200), st.randoms(use_true_random=False))
def test_parts_in_any_order_and_again_make_the_whole_once(payload: bytes, limit: int, rng: random.Random) -> None:
    size = len(payload)
    count = -(-size // min(size, limit))
    if read_parts(write_parts(count, size)) is None:
        return  # no sender would split it so
    join = FragmentedPayload(count, size)
    order = [*range(count), *rng.choices(range(count), k=count)]
    rng.shuffle(order)
    here: set[int] = set()
    for index in order:
        start, end = part_at(index, count, size)
        join.add(index, payload[start:end])
        here.add(index)
        assert join.missing == count - len(here)
        assert read_ranges(join.missing_ranges(), count) == [i for i in range(count) if i not in here][:count]
    assert join.payload() == payload


@pytest.mark.parametrize(("index", "payload"), [(0, b"12"), (0, b"1234"), (2, b"12"), (3, b""), (9, b"123")])
def test_a_part_of_another_size_is_refused(index: int, payload: bytes) -> None:
    with pytest.raises(FragmentError, match=f"part {index} of 3"):
        FragmentedPayload(3, 7).add(index, payload)


def test_there_is_room_for_so_many_bytes_and_requests() -> None:
    joins = FragmentBuffer(100, max_joins=2)
    with pytest.raises(FragmentError, match="the service takes 100") as caught:
        joins.join("a", 2, 101, 0)
    assert not caught.value.full, "it will never fit"
    joins.join("a", 2, 60, 0)
    with pytest.raises(FragmentError, match="too many") as caught:
        joins.join("b", 2, 41, 0)
    assert caught.value.full
    joins.join("b", 2, 40, 0)
    joins.drop("a")
    joins.join("c", 2, 2, 0)
    with pytest.raises(FragmentError, match="too many"):
        joins.join("d", 2, 2, 0)
    with pytest.raises(FragmentError, match="contradict"):
        joins.join("c", 2, 3, 0)
    assert (len(joins), joins.size) == (2, 42)


class JoinsLife(RuleBasedStateMachine):
    """Requests come and go; the bytes held are those of the requests that were heard of lately, never more than allowed."""

    @initialize()
    def begin(self) -> None:
        self.joins = FragmentBuffer(1_000, max_joins=5, idle=10)
        self.heard: dict[str, float] = {}
        self.now = 0.0

    @rule(id=st.sampled_from("abcdefgh"), wait=st.floats(0, 6))
    def hear(self, id: str, wait: float) -> None:
        self.now += wait
        for gone in self.joins.remove_expired(self.now):
            assert self.now - self.heard.pop(gone) >= 10
        size = 100 * (1 + ord(id) - ord("a"))
        fits = id in self.heard or (len(self.heard) < 5 and self.joins.size + size <= 1_000)
        with contextlib.nullcontext() if fits else pytest.raises(FragmentError, match="too many"):
            self.joins.join(id, 2, size, self.now)
        if fits:
            self.heard.pop(id, None)
            self.heard[id] = self.now

    @rule(id=st.sampled_from("abcdefgh"))
    def drop(self, id: str) -> None:
        self.joins.drop(id)
        self.heard.pop(id, None)

    @invariant()
    def bounded_and_true(self) -> None:
        if not hasattr(self, "joins"):
            return
        assert all(id in self.joins for id in self.heard)
        assert len(self.joins) == len(self.heard) <= 5
        assert self.joins.size == sum(100 * (1 + ord(id) - ord("a")) for id in self.heard) <= 1_000
        expiry = self.joins.next_expiry()
        assert expiry == (min(self.heard.values()) + 10 if self.heard else None)


TestJoinsLife = JoinsLife.TestCase
