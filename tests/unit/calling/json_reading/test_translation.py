"""What models write in place of JSON is translated into JSON, from left to right and at bounded cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.calling import MAX_CALLS, parse
from dispatch.calling.json_repair import JsonFaultError, JsonValue, MarkFinder, read_json
from tests.unit.calling.chunks import parse_in_chunks

END = "</function_call>"


def read(text: str, start: int = 0) -> JsonValue:
    return read_json(MarkFinder(text), start, (END,))


def fail(text: str) -> tuple[str, int, bool]:
    """The reason, the place and whether more text could repair it."""
    with pytest.raises(JsonFaultError) as caught:
        read(text)
    return caught.value.reason, caught.value.position, caught.value.is_open


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': \"b\", 'c': 'd \"e\" \\'f\\'', 'g': [1.5e3,],}", {"a": "b", "c": "d \"e\" 'f'", "g": [1.5e3]}),
        ("[1 /* , */ , // ]\n /* } */ ]", [1]),
        ('{"a": [1, {"b": 2}', {"a": [1, {"b": 2}]}),
        ('{"a": [{"b": 2]}', {"a": [{"b": 2}]}),
        ("[" + "1" * 400 + ",]", [int("1" * 400)]),
        ("{'a': '\\n\\u00e9', 'b': '\t'}", {"a": "\né", "b": "\t"}),
        ("['', '', \"\", \"'\", '\"',]", ["", "", "", "'", '"']),
    ],
)
def test_repairs_are_marked(text: str, value: Any) -> None:
    found = read(text + END)
    assert (found.value, found.end, found.repaired) == (value, len(text), True)


def test_wide_blanks_are_blanks() -> None:
    assert read("{\u3000\u00a0'a'\ufeff:\u200b1 }").value == {"a": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": 1, "b": tr', {"a": 1}),
        ('{"a": 1, "\\"b\\\\" : ', {"a": 1}),
        ('{"a": "x\\u00', {"a": "x"}),
        ('{"a": "x\\\\', {"a": "x\\"}),
        ("{'a': 'it\\'s", {"a": "it's"}),
        ('{"a": [1, 2, ', {"a": [1, 2]}),
        ('{"a": [1, /', {"a": [1]}),
        ('{"a": __PAYLOAD_START__b "c', {"a": 'b "c'}),
        ('{"a": 1, // and', {"a": 1}),
    ],
)
def test_a_value_that_is_cut_off_is_marked_truncated(text: str, value: Any) -> None:
    found = read(text)
    assert (found.value, found.end, found.truncated) == (value, len(text), True)


NO_VALUE = "a JSON value is missing"
NO_NAME = "a name in double quotes is missing"


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("[,]", NO_VALUE, 1),
        ("[1,,]", NO_VALUE, 3),
        ("{,}", NO_NAME, 1),
        ('{"a":,}', NO_VALUE, 5),
        ("['a' 'b']", "',' or an end bracket is missing", 5),
        ("{'a': 1 'b': 2}", "',' or an end bracket is missing", 8),
        ("{'a\"b': 'c' 'd': 2}", "',' or an end bracket is missing", 12),
        ("{'a', 'b': 1}", "':' is missing after 'a'", 2),
        ('{"a" /* b */ 1,}', "':' is missing after 'a'", 4),
        ('{"a": 1, b: 2}', NO_NAME, 9),
        ("[undefined]", NO_VALUE, 1),
        ("[1.]", NO_VALUE, 1),
        ('{"a": "\\d", }', r"a string has an invalid escape sequence (write '\\' for a backslash)", 7),
        ("{'a': 'b', 'c': '\\d'}", r"a string has an invalid escape sequence (write '\\' for a backslash)", 16),
        ("[1}", "']' is expected in place of '}'", 2),
        ("// nothing", NO_VALUE, 10),
        ("'text'", NO_VALUE, 0),
    ],
)
def test_a_fault_is_the_first_one_of_the_text(text: str, reason: str, position: int) -> None:
    assert fail(text) == (reason, position, False)
    assert fail(text + " [1,], }, 'a\n" if not text.startswith("//") else text) == (reason, position, False)


def test_what_is_at_the_end_may_be_the_beginning_of_an_end_mark() -> None:
    assert fail('{"a": 1, b') == (NO_NAME, 9, True)
    assert fail("{'a' Act") == ("':' is missing after 'a'", 2, True)
    assert fail("{'a' </func") == ("':' is missing after 'a'", 2, True)
    assert fail("{'a' </fund") == ("':' is missing after 'a'", 2, False)
    text = "Thought: a\nAction: f\nArgs: {\"b\": 1, 'c'" + " " * 40 + "\nAction: g\nArgs: {}"
    assert [call.args for call in parse(text)] == [{"b": 1}, {}]
    assert all(parse_in_chunks(text, size) == parse(text) for size in range(1, 30))


@pytest.mark.parametrize(("text", "start"), [('{"a": "b', 6), ("{'a': 'b", 6), ('{"a": __PAYLOAD_START__b', 6)])
def test_a_string_without_end_before_the_closing_tag_is_open(text: str, start: int) -> None:
    reason, position, is_open = fail(text + END)
    assert ("has no" in reason, position, is_open) == (True, start, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" + "[{]," * 65 + "]", "'}' is expected in place of ']'"),
        ("[" + "True," * 10_002 + "]", "more than 10,000 parts of it are not valid JSON"),
        ("[" * 65 + "'a'" + "]" * 65, "more than 64 objects and lists are inside each other"),
        ("[" + "1" * 5000 + ",]", "a number has too many digits"),
    ],
)
def test_the_number_of_repairs_is_limited(text: str, reason: str) -> None:
    assert fail(text)[0] == reason


@given(st.lists(st.text(alphabet="ab'\"\\\n,]}:", max_size=8), max_size=6))
def test_strings_in_single_quotes_keep_every_character(texts: list[str]) -> None:
    quoted = ["'" + json.dumps(each)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'" for each in texts]
    assert read(f"[{', '.join(quoted)}{',' if texts else ''}]").value == texts


def test_the_values_of_one_tag_are_limited() -> None:
    calls = parse("<tool_call>" + '{"name": "a", "arguments": {}} ' * 10_000)
    assert len(calls) == MAX_CALLS + 1
    (fault,) = parse("<tool_call>" + "[] " * 10_000)
    assert fault.error is not None
    assert "an empty list is in front of another value" in fault.error
