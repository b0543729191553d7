from __future__ import annotations

import json
import time

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dispatch.results import find_cut, find_end_of_value, is_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a",\\[{\n:é🙂'), max_size=6),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)


@given(JSON.filter(lambda value: isinstance(value, (list, dict))), st.integers(0, 60), st.sampled_from([None, 2]))
def test_json_is_cut_behind_a_value(value: object, limit: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    end = find_end_of_value(text, limit)
    assert 0 <= end <= limit
    if end:
        closing = {"[": "]", "{": "}"}
        json.loads(text[: end - 1] + "".join(closing[each] for each in reversed(_find_open(text[:end]))))
        assert find_end_of_value(text, end) == end
        assert find_cut(text, end) == end


def _find_open(head: str) -> list[str]:
    stack: list[str] = []
    is_text = is_escaped = False
    for char in head:
        if is_text:
            is_text = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"':
            is_text, is_escaped = True, False
        elif char in "[{":
            stack.append(char)
        elif char in "]}":
            stack.pop()
    return stack


@given(st.text(st.sampled_from("ab \né🙂\u0301\u200d"), max_size=60), st.integers(0, 60))
def test_a_cut_is_within_the_limit(text: str, limit: int) -> None:
    cut = find_cut(text, limit)
    assert cut == len(text) if len(text) <= limit else max(limit - 16, 0) <= cut <= limit or cut > limit // 2


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("one\ntwo\nthree\n", 9, "one\ntwo\n"),
        ("one two three", 9, "one two "),
        ("one\ntwo three four", 12, "one\ntwo "),  # the only line ends in the first half
        ("一二三四五六七八", 5, "一二三四五"),
        ("e\u0301" * 10, 5, "e\u0301e\u0301"),
        ("👩\u200d👩\u200d👧 " * 2, 4, ""),
        ("0123456789", 4, "0123"),
        ('["a, b", "c, d", "e"]', 15, '["a, b",'),
        ('{"a": [1,\n 2,\n 3], "b": 4}', 17, '{"a": [1,\n 2,'),
        ('["' + "x" * 50 + '"]', 20, '["' + "x" * 18),
        ("[not json, at all", 12, "[not json, "),
        ("abc", 0, ""),
        ("abc", 3, "abc"),
    ],
)
def test_places(text: str, limit: int, shown: str) -> None:
    assert text[: find_cut(text, limit)] == (shown or text[:limit])


def test_what_is_json() -> None:
    assert is_json(' {"a": 1}')
    assert not any(map(is_json, ["3", '"a"', "[1,]", "", "[" * 5_000, "[\ud800]"]))


@pytest.mark.parametrize(
    "text", ['["' + '\\"' * 500_000 + '"]', "[" + "1," * 500_000 + "1]", '"' * 1_000_000, "[" * 999_999]
)
def test_it_is_linear(text: str) -> None:
    started = time.process_time()
    find_cut(text, len(text) - 1)
    assert time.process_time() - started < 2.0
