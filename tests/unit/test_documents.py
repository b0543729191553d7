"""Reading of files: bounded, and never from a pipe.


Declarations of documents: rules of values, lists, objects and structs.
"""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch import documents


def load(path: Path) -> object:
    return documents.load_document(path, 50, "make it smaller", "write {}")


def test_the_suffix_decides_how_a_file_is_read(tmp_path: Path) -> None:
    for name, text in (("a.json", '{"a": 1}'), ("a.yaml", "a: 1"), ("a.YML", "a: 1"), ("a.conf", '\ufeff{"a": 1}')):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert load(tmp_path / name) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "problem", "fix"),
    [
        (b"", "the file is empty", "write {}"),
        (b"\xff\xfea", "not UTF-8: byte 0 begins no character", "iconv -f UTF-16"),
        (b'"Erz\xe4hl"', "not UTF-8", "iconv -f LATIN1"),
        (b'{"a": 1,\nb}', "line 2, column 1", "correct line 2"),
        (b" " * 51, "more than 50 bytes", "make it smaller"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: bytes, problem: str, fix: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(documents.DocumentError) as caught:
        load(tmp_path / "a.json")
    ((key, what, how),) = caught.value.mistakes
    assert key == ""
    assert problem in what
    assert fix in how


def test_pipes_and_folders_are_no_files_and_leave_no_descriptor_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(documents.DocumentError, match="not a regular file"):
            documents.read_regular_file(path, 50, "")
    with pytest.raises(documents.DocumentError, match="cannot be read: No such file"):
        load(tmp_path / "missing")
    assert not before or len(os.listdir("/proc/self/fd")) == len(before)


def test_a_type_of_msgspec_is_read_from_json_and_yaml() -> None:
    assert documents.parse_typed(b'\xef\xbb\xbf{"a": ["x"]}', "keys.json", dict[str, list[str]]) == {"a": ["x"]}
    assert documents.parse_typed(b"a: [x]", "keys.yaml", dict[str, list[str]]) == {"a": ["x"]}
    with pytest.raises(documents.DocumentError, match=r"Expected `str`, got `int` - at `\$\[\.\.\.\]`") as caught:
        documents.parse_typed(b'{"a": 5}', "keys.json", dict[str, str])
    assert "5" not in str(caught.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def problems_of(value: object) -> list[documents.Problem]:
    report = documents.Report("f.json")
    documents.freeze_json(value, report)
    assert report.has_errors == bool(report.problems)
    return report.problems


@settings(deadline=None)  # a busy machine is no failure
@given(JSON)
def test_freeze_and_thaw_preserve_json(value: Any) -> None:
    report = documents.Report("f.json")
    result = documents.freeze_json(value, report)
    assert not report.problems
    assert documents.thaw(result) == value
    assert json.loads(json.dumps(result)) == value
    assert msgspec.json.decode(msgspec.json.encode(result)) == value
    hash(result)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.__setitem__("a", 1),
        lambda d: d.__delitem__("a"),
        lambda d: d.__ior__({"b": 1}),
        lambda d: d.update(b=1),
        lambda d: d.setdefault("b", 1),
        lambda d: d.pop("a"),
        lambda d: d.popitem(),
        lambda d: d.clear(),
    ],
)
def test_a_frozen_object_is_immutable(change: Callable[[documents.FrozenDict[Any]], object]) -> None:
    value = documents.FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="immutable"):
        change(value)
    assert value == {"a": 1}


def test_a_frozen_object_is_its_own_copy_and_can_be_pickled() -> None:
    value = documents.FrozenDict({"a": documents.FrozenDict({"b": (1, 2)})})
    assert copy.copy(value) is value
    assert copy.deepcopy(value) is value
    travelled = pickle.loads(pickle.dumps(value))
    assert travelled == value
    assert hash(travelled) == hash(value)
    assert type(travelled["a"]) is documents.FrozenDict


def test_changes_of_the_original_do_not_change_the_frozen_value() -> None:
    original = {"a": [1]}
    result = documents.freeze_json(original, documents.Report("f.json"))
    original["a"].append(2)
    assert result == {"a": (1,)}


@pytest.mark.parametrize(
    ("value", "key", "problem", "fix"),
    [
        ({"a": [0, math.nan]}, "a[1]", "nan is not a JSON number", "finite"),
        ({"a": math.inf}, "a", "inf is not a JSON number", "finite"),
        ({"a": 2**64}, "a", "more than 64 bits", "as a text"),
        ({"a": {"b": date(2026, 1, 1)}}, "a.b", "a date is not a JSON value", "in quotes"),
        ({"a": {1: 2}}, "a", "the key 1 is a number, not a text", "in quotes"),
        ({"a": "\ud800"}, "a", "surrogate", "both halves"),
        ({"\ud800": 1}, "", "surrogate", "both halves"),
        ({"a": {1, 2}}, "a", "a set is not a JSON value", "as a text"),
    ],
)
def test_values_that_are_not_json_are_reported(value: object, key: str, problem: str, fix: str) -> None:
    (found,) = problems_of(value)
    assert found.key == key
    assert problem in found.problem
    assert fix in found.fix


def test_depth_is_bounded() -> None:
    value: Any = 1
    for _ in range(documents.MAX_DEPTH):
        value = [value]
    assert not problems_of(value)
    (found,) = problems_of([value])
    assert "nested objects or lists" in found.problem


def test_a_cyclic_value_is_reported() -> None:
    value: list[Any] = []
    value.append(value)
    assert problems_of(value)


def test_repeated_values_are_counted_each_time() -> None:
    assert not problems_of([0] * (documents.MAX_VALUES - 1))
    (found,) = problems_of([0] * documents.MAX_VALUES)
    assert "20,000 values" in found.problem
    bomb: Any = [0] * 10
    for _ in range(9):
        bomb = [bomb] * 10  # 10**10 values in ten small lists
    assert len(problems_of(bomb)) == 1


def test_paths_of_keys() -> None:
    assert documents.join_path("", "policy") == "policy"
    assert documents.join_path("policy", "retry-budget") == "policy.retry-budget"
    assert documents.join_path("a", "b.c") == "a['b.c']"
    assert documents.join_path("", "\x1b[2J") == r"['\x1b[2J']"


@pytest.mark.parametrize(
    ("value", "words", "short"),
    [
        (None, "null", "null"),
        (True, "true", "true"),
        (False, "false", "false"),
        ("x", "a text", "'x'"),
        (3, "a number", "3"),
        (0.5, "a number", "0.5"),
        ({}, "an object", "an object"),
        ([], "a list", "a list"),
        ((), "a list", "a list"),
    ],
)
def test_descriptions_of_values(value: object, words: str, short: str) -> None:
    assert documents.describe_kind(value) == words
    assert documents.describe_value(value) == short


def test_a_long_value_is_shown_in_part() -> None:
    assert len(documents.describe_value("x" * 10_000)) <= 62


def mistakes(parse: Any, text: str) -> list[tuple[str, str, str]]:
    with pytest.raises(documents.DocumentError) as raised:
        parse(text)
    return list(raised.value.mistakes)


def test_json() -> None:
    assert documents.parse_json('{"a": [1, 2.5, null, true, "ü"]}') == {"a": [1, 2.5, None, True, "ü"]}


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
    ((key, what, how),) = mistakes(documents.parse_json, text)
    assert key == ""
    assert problem in what
    assert fix in how


def test_a_duplicate_key_in_a_json_object() -> None:
    found = mistakes(documents.parse_json, '{"a": 1, "b": {"c": 1, "c": 2}, "a": 2, "d": [{"a": 1}, {"a": 1}]}')
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
    assert documents.parse_yaml(text) == {
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
    assert documents.parse_yaml(f"style: {text}") == {"style": text}


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000.0), ("-0.5", -0.5), ("0", 0), ("true", True), ("null", None)])
def test_yaml_scalars_with_a_json_type_have_it(text: str, value: object) -> None:
    assert documents.parse_yaml(f"style: {text}") == {"style": value}


@pytest.mark.costly
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
    ((key, what, how),) = mistakes(documents.parse_yaml, text)
    assert key == ""
    assert problem in what
    assert fix in how


def test_a_duplicate_key_in_a_yaml_mapping() -> None:
    ((key, problem, fix),) = mistakes(documents.parse_yaml, "a: 1\nb:\n  c: 1\n  c: 2\n")
    assert key == "c"
    assert "line 4" in problem
    assert "remove one" in fix


def test_merge_keys_are_plain_keys_because_nested_ones_grow_without_bound() -> None:
    assert documents.parse_yaml("a: &a {x: 1}\nb: {<<: *a}") == {"a": {"x": 1}, "b": {"<<": {"x": 1}}}


def test_without_pyyaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    ((_, problem, fix),) = mistakes(documents.parse_yaml, "a: 1")
    assert "PyYAML" in problem
    assert "pip install 'tool-dispatch[yaml]'" in fix


@settings(deadline=None)  # a busy machine is no failure
@given(st.text())
def test_any_text_is_a_document_or_a_document_error(text: str) -> None:
    for parse in (documents.parse_json, documents.parse_yaml):
        try:
            parse(text)
        except documents.DocumentError as error:
            for key, problem, fix in error.mistakes:
                assert (key + problem + fix).isprintable()


COUNT = documents.require(
    (documents.is_whole, "{!r} is no whole number", "write 1"), (lambda value: value > 0, "{} is below 1", "write 1")
)
NAME = documents.require(
    (str.islower, lambda name: f"{name!r} is not in lower case", lambda name: f"write {name.lower()!r}")
)
LIST = (lambda value: isinstance(value, list), "not a list", "write []")
OBJECT = (lambda value: isinstance(value, dict), "not an object", "write {}")


class Box(msgspec.Struct, rename="kebab"):
    """A struct with a rule for each field."""

    item_count: Annotated[int, COUNT]
    labels: Annotated[tuple[int, ...], documents.list_of(COUNT, LIST)] = ()
    note: Annotated[Any, documents.optional(COUNT)] = None


BOX = documents.object_of(Box, {"item-count": 'add "item-count": 1'}, OBJECT)


def read(rule: documents.Rule, value: object) -> Any:
    report = documents.Report("f")
    found = rule(value, report, "at")
    assert (found is documents.WRONG) == report.has_errors
    return [(each.key, each.problem, each.fix) for each in report.problems] if report.has_errors else found


def test_the_first_need_that_a_value_fails_is_its_mistake() -> None:
    assert read(COUNT, 3) == 3
    assert read(COUNT, 2.0) == [("at", "2.0 is no whole number", "write 1")]
    assert read(COUNT, True) == [("at", "True is no whole number", "write 1")]
    assert read(COUNT, 0) == [("at", "0 is below 1", "write 1")]
    assert read(NAME, "A") == [("at", "'A' is not in lower case", "write 'a'")]
    assert read(documents.optional(COUNT), None) is None


def test_every_element_and_every_value_is_read() -> None:
    assert read(documents.list_of(COUNT, LIST), [1, 2]) == (1, 2)
    assert [key for key, _, _ in read(documents.list_of(COUNT, LIST), [0, 1, "x"])] == ["at[0]", "at[2]"]
    assert read(documents.list_of(COUNT, LIST), 5) == [("at", "not a list", "write []")]
    rule = documents.map_of(NAME, COUNT, OBJECT)
    assert read(rule, {"a": 1}) == {"a": 1}
    assert [key for key, _, _ in read(rule, {"a": 0, "B": 0, "c d": 0})] == ["at.a", "at", "at['c d']"]


def test_an_object_is_read_as_its_struct() -> None:
    assert read(BOX, {"item-count": 2, "labels": [3]}) == Box(2, (3,))
    assert read(documents.list_of(BOX, LIST), [{"item-count": 1}]) == (Box(1),)


@pytest.mark.parametrize(
    ("raw", "mistakes"),
    [
        (5, [("at", "not an object", "write {}")]),
        ({}, [("at.item-count", "the key is missing", 'add "item-count": 1')]),
        ({"item-count": 1, "lables": []}, [("at.lables", "an unknown key", "rename it to 'labels'")]),
        (
            {"item-count": 0, "labels": [0], "zz": 1},
            [
                ("at.zz", "an unknown key", "remove it; the keys are item-count, labels, note"),
                ("at.item-count", "0 is below 1", "write 1"),
                ("at.labels[0]", "0 is below 1", "write 1"),
            ],
        ),
    ],
)
def test_every_mistake_of_an_object_is_found(raw: object, mistakes: list[tuple[str, str, str]]) -> None:
    assert read(BOX, raw) == mistakes
