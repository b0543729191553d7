"""Parts: whatever is split comes together again, whatever the order, and nothing else does; bounded in every direction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.messaging.wire import MAX_MESSAGE_BYTES, MAX_PARTS, PART_BYTES, Reply, encode_reply, split_text


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
