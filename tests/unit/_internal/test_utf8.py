from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch._internal import encode_text, scalar_text, scalar_value

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_every_text_is_encoded(text: str) -> None:
    assert encode_text(text) == scalar_text(text).encode()
    assert len(scalar_text(text)) == len(text)


@pytest.mark.parametrize("text", ["", "a", "größe 🦊", "\0\u2028"])
def test_a_valid_text_is_unchanged(text: str) -> None:
    assert scalar_text(text) is text
    assert encode_text(text).decode() == text


def test_values() -> None:
    value: Any = {"a\ud83d": ["\udce9", 1, None, {"b": ("ok", True)}], "c": 1.5}
    assert scalar_value(value) == {"a?": ["?", 1, None, {"b": ["ok", True]}], "c": 1.5}
