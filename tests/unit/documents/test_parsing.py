from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.documents import DocumentError, parse_json, parse_yaml


def mistakes(parse: Any, text: str) -> list[tuple[str, str, str]]:
    with pytest.raises(DocumentError) as raised:
        parse(text)
    return list(raised.value.mistakes)


def test_json() -> None:
    assert parse_json('{"a": [1, 2.5, null, true, "ü"]}') == {"a": [1, 2.5, None, True, "ü"]}


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("", "the file is empty", "delete the file"),
        (" \n", "the file is empty", "delete the file"),
        ('{\n  "a": 1,\n  "b" 2\n}', "line 3, column 7", "correct line 3, column 7"),
        ("{'a': 1}", "line 1, column 2", "correct line 1, column 2"),
        ('{"a": 1}\n{}', "line 2, column 1", "correct line 2"),
        ('{"a": NaN}', "NaN is not a JSON number", "finite number"),
        ('{"a": ' + "9" * 5_000 + "}", "not JSON", "finite number"),
        ("[" * 100_000, "nested objects or lists", "flatter"),
    ],
)
def test_errors_in_json_have_their_place(text: str, problem: str, fix: str) -> None:
    ((key, what, how),) = mistakes(parse_json, text)
    assert key == ""
    assert problem in what
    assert fix in how


def test_a_duplicate_key_in_a_json_object() -> None:
    found = mistakes(parse_json, '{"a": 1, "b": {"c": 1, "c": 2}, "a": 2, "d": [{"a": 1}, {"a": 1}]}')
    assert {key for key, _, _ in found} == {"a", "c"}
    assert all("duplicate key" in problem and "remove one" in fix for _, problem, fix in found)


def test_yaml() -> None:
    text = """
id: joke-service   # a comment
config-params:
  - {name: style, required: false}
weight: 2.5
count: -3
nothing: ~
empty:
shared: &topic non-persistent://tg/request/joke
request-queue: *topic
"""
    assert parse_yaml(text) == {
        "id": "joke-service",
        "config-params": [{"name": "style", "required": False}],
        "weight": 2.5,
        "count": -3,
        "nothing": None,
        "empty": None,
        "shared": "non-persistent://tg/request/joke",
        "request-queue": "non-persistent://tg/request/joke",
    }


@pytest.mark.parametrize(
    "text", ["no", "yes", "on", "off", "2024-01-01", "1_000", "010", "0x10", "1:30", ".nan", ".inf", "1.", "="]
)
def test_yaml_scalars_without_a_json_type_are_texts(text: str) -> None:
    assert parse_yaml(f"style: {text}") == {"style": text}


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000.0), ("-0.5", -0.5), ("0", 0), ("true", True), ("null", None)])
def test_yaml_scalars_with_a_json_type_have_it(text: str, value: object) -> None:
    assert parse_yaml(f"style: {text}") == {"style": value}


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("", "the file is empty", "delete the file"),
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column 2", "correct line 3"),
        ("a: 1\n\tb: 2", "line 2, column 1", "correct line 2"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1", "correct"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor", "correct line 1, column 4"),
        ("a: *nowhere", "undefined alias", "correct line 1"),
        ("? [1]\n: 2", "unhashable", "correct line 1"),
        ("a: !!int x", "not YAML", "in quotes"),
        ("a: \x00", "not YAML", "remove that character"),
        ("[" * 2_000, "nested objects or lists", "flatter"),
        ("a: !!merge <<", "could not determine a constructor", "correct line 1"),
    ],
)
def test_errors_in_yaml_have_their_place(text: str, problem: str, fix: str) -> None:
    ((key, what, how),) = mistakes(parse_yaml, text)
    assert key == ""
    assert problem in what
    assert fix in how


def test_a_duplicate_key_in_a_yaml_mapping() -> None:
    ((key, problem, fix),) = mistakes(parse_yaml, "a: 1\nb:\n  c: 1\n  c: 2\n")
    assert key == "c"
    assert "line 4" in problem
    assert "remove one" in fix


def test_merge_keys_are_plain_keys_because_nested_ones_grow_without_bound() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a}") == {"a": {"x": 1}, "b": {"<<": {"x": 1}}}


def test_without_pyyaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    ((_, problem, fix),) = mistakes(parse_yaml, "a: 1")
    assert "PyYAML" in problem
    assert "pip install 'tool-dispatch[yaml]'" in fix


@settings(deadline=None)  # a busy machine is no failure
@given(st.text())
def test_any_text_is_a_document_or_a_document_error(text: str) -> None:
    for parse in (parse_json, parse_yaml):
        try:
            parse(text)
        except DocumentError as error:
            for key, problem, fix in error.mistakes:
                assert (key + problem + fix).isprintable()
