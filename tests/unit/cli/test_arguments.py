"""``key=value`` → typed arguments."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.catalog import Argument, ToolDescriptor
from dispatch.cli.base import CliError
from dispatch.cli.call import read_arguments
from dispatch.messaging.wire import MAX_MESSAGE_BYTES

TYPES = ("string", "number", "integer", "boolean", "object", "array")
TOOL = ToolDescriptor("work", "Works.", "service", tuple(Argument(f"a-{type}", type, "…") for type in TYPES))


def read(*words: str, document: str | None = None, stdin: bytes = b"", tool: ToolDescriptor = TOOL) -> dict[str, Any]:
    return read_arguments(tool, words, document, no_warning, io.BytesIO(stdin))


def no_warning(line: str) -> None:
    raise AssertionError(f"unexpected: {line}")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a-string=cats", "cats"),
        ("a-string=", ""),
        ("a-string=3", "3"),
        ("a-string= two words ", " two words "),
        ("a-string=x=y", "x=y"),
        ("a-string=a:=b", "a:=b"),
        ('a-string={"a": 1}', '{"a": 1}'),
        ("a-number=2.5", 2.5),
        ("a-number=3", 3),
        ("a-number=-1e3", -1000.0),
        ("a-integer=3", 3),
        ("a-integer= 3 ", 3),
        ("a-integer=123456789012345678901234567890", 123456789012345678901234567890),
        ("a-boolean=true", True),
        ("a-boolean=False", False),
        ('a-object={"a": [1]}', {"a": [1]}),
        ("a-array=[1, null]", [1, None]),
        ("a-integer:=null", None),
        ("a-string:=[1]", [1]),
        ("a-string:=5", 5),
    ],
)
def test_a_value_has_the_type_that_the_descriptor_says(word: str, value: Any) -> None:
    (found,) = read(word).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "word",
    [
        "a-number=three",
        "a-number=NaN",
        "a-number=true",
        "a-number=",
        "a-integer=3.5",
        "a-integer=true",
        "a-integer=0x10",
        "a-boolean=yes",
        "a-boolean=1",
        "a-object=[1]",
        "a-object=" + "[" * 100_000,
        "a-array={}",
        "a-array=1,2",
    ],
    ids=lambda word: word[:20],
)
def test_a_value_of_another_type_is_a_mistake_with_a_way_out(word: str) -> None:
    with pytest.raises(CliError) as told:
        read(word)
    key, text = word.split("=", 1)
    assert f"'{key}' is a" in told.value.message
    assert f"{key}=" in told.value.fix
    assert f"{key}:=" in told.value.fix
    assert text == "" or text[:20] in told.value.fix


def test_the_way_out_works() -> None:
    with pytest.raises(CliError) as told:
        read("a-integer=it's three")
    import shlex

    word = shlex.split(told.value.fix.rpartition(": ")[2])[0]
    assert read(word) == {"a-integer": "it's three"}


@pytest.mark.parametrize(
    ("word", "fix"),
    [("cats", "a-string=cats"), ("two words", "'a-string=two words'"), ("=x", "topic=cats"), ("", "topic=")],
)
def test_a_word_without_a_key_is_told_what_was_probably_meant(word: str, fix: str) -> None:
    with pytest.raises(CliError, match="is not key=value") as told:
        read(word)
    assert fix in told.value.fix


def test_an_argument_given_twice_is_a_mistake() -> None:
    with pytest.raises(CliError, match="'a-string' is given twice"):
        read("a-string=1", "a-string:=2")


def test_json_after_colon_equals_must_be_json() -> None:
    with pytest.raises(CliError, match=r"'a-string:=' is not JSON: .*line 1, column 1"):
        read("a-string:=cats")


def test_a_document_from_the_option_a_file_or_stdin_and_words_over_it(tmp_path: Path) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"a-string": "grüße", "a-integer": 1}', encoding="utf-8")
    expected = {"a-string": "grüße", "a-integer": 2}
    assert read("a-integer=2", document=file.read_text(encoding="utf-8")) == expected
    assert read("a-integer=2", document=f"@{file}") == expected
    assert read("a-integer=2", document="-", stdin=file.read_bytes()) == expected


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("[1]", "is an array, not a JSON object"),
        ('"cats"', "is a string, not a JSON object"),
        ("null", "is null, not a JSON object"),
        ("3", "is a number, not a JSON object"),
        ("true", "is a boolean, not a JSON object"),
        ("{topic: cats}", "is not JSON"),
        ('{"a": NaN}', "JSON has no NaN"),
        ("", "is not JSON"),
        ("@nowhere.json", "cannot be read: No such file"),
        ("@.", "cannot be read"),
    ],
)
def test_a_document_that_is_no_object_is_told_with_an_example(document: str, problem: str) -> None:
    with pytest.raises(CliError) as told:
        read(document=document)
    assert problem in told.value.message
    assert told.value.fix


def test_a_document_over_the_limit_is_not_even_parsed() -> None:
    with pytest.raises(CliError, match=f"stdin has more than {MAX_MESSAGE_BYTES:,} bytes"):
        read(document="-", stdin=b" " * (MAX_MESSAGE_BYTES + 1))


def test_a_document_that_is_not_utf8() -> None:
    with pytest.raises(CliError, match=r"stdin is not UTF-8 \(byte 2\)"):
        read(document="-", stdin=b"{\x22\xff")


def test_an_unknown_argument_is_sent_and_warned_of_with_near_names() -> None:
    warnings: list[str] = []
    assert read_arguments(TOOL, ["a-strin=cats"], None, warnings.append) == {"a-strin": "cats"}
    (warning,) = warnings
    assert "declares no argument 'a-strin'" in warning
    assert "did you mean 'a-string'" in warning


def test_an_argument_that_is_required_and_missing_is_warned_of() -> None:
    tool = ToolDescriptor("work", "Works.", "service", (Argument("topic", "string", "…", required=True),))
    warnings: list[str] = []
    assert read_arguments(tool, [], None, warnings.append) == {}
    assert warnings == ["'work' requires topic, which is missing."]


def test_a_descriptor_without_arguments_says_nothing_about_them() -> None:
    assert read("anything=1", tool=ToolDescriptor("work", "Works.", "service")) == {"anything": "1"}


def test_an_input_schema_declares_arguments_and_their_types() -> None:
    schema = {
        "type": "object",
        "properties": {
            "topic": {"type": "string", "description": "About."},
            "count": {"type": ["integer", "null"]},
            "either": {"type": ["integer", "string"]},
            "other": {"$ref": "#/$defs/other"},
            "anything": True,
        },
        "required": ["topic"],
    }
    tool = ToolDescriptor("work", "Works.", "service", input_schema=schema)
    assert [(each.name, each.type, each.required) for each in tool.described_arguments] == [
        ("topic", "string", True),
        ("count", "integer", False),
        ("either", "any", False),
        ("other", "any", False),
        ("anything", "any", False),
    ]
    assert read("topic=1", "count=1", "either=1", "anything:=[1]", tool=tool) == {
        "topic": "1",
        "count": 1,
        "either": "1",
        "anything": [1],
    }
    warnings: list[str] = []
    read_arguments(tool, ["topc=1"], None, warnings.append)
    assert "did you mean 'topic'?" in warnings[0]
    assert warnings[1] == "'work' requires topic, which is missing."


def test_an_input_schema_without_properties_says_nothing_about_arguments() -> None:
    tool = ToolDescriptor("work", "Works.", "service", input_schema={"type": "object"})
    assert read("anything=1", tool=tool) == {"anything": "1"}


@given(st.text())
def test_any_text_is_a_string_argument_as_it_is(text: str) -> None:
    assert read(f"a-string={text}") == {"a-string": text}


@given(st.text())
def test_no_word_makes_it_fail_otherwise_than_told(word: str) -> None:
    try:
        read_arguments(TOOL, [word], None, lambda _line: None)
    except CliError as told:
        assert told.fix  # noqa: PT017 - most words are no mistake: there is nothing to expect
