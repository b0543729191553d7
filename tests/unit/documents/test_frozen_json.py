from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.documents import (
    MAX_DEPTH,
    MAX_VALUES,
    FrozenDict,
    Problem,
    Report,
    describe_kind,
    describe_value,
    freeze_json,
    join_path,
    thaw,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def problems_of(value: object) -> list[Problem]:
    report = Report("f.json")
    freeze_json(value, report)
    assert report.has_errors == bool(report.problems)
    return report.problems


@settings(deadline=None)  # a busy machine is no failure
@given(JSON)
def test_freeze_and_thaw_preserve_json(value: Any) -> None:
    report = Report("f.json")
    result = freeze_json(value, report)
    assert not report.problems
    assert thaw(result) == value
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
def test_a_frozen_object_is_immutable(change: Callable[[FrozenDict[Any]], object]) -> None:
    value = FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="immutable"):
        change(value)
    assert value == {"a": 1}


def test_a_frozen_object_is_its_own_copy_and_can_be_pickled() -> None:
    value = FrozenDict({"a": FrozenDict({"b": (1, 2)})})
    assert copy.copy(value) is value
    assert copy.deepcopy(value) is value
    travelled = pickle.loads(pickle.dumps(value))
    assert travelled == value
    assert hash(travelled) == hash(value)
    assert type(travelled["a"]) is FrozenDict


def test_changes_of_the_original_do_not_change_the_frozen_value() -> None:
    original = {"a": [1]}
    result = freeze_json(original, Report("f.json"))
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
    for _ in range(MAX_DEPTH):
        value = [value]
    assert not problems_of(value)
    (found,) = problems_of([value])
    assert "nested objects or lists" in found.problem


def test_a_cyclic_value_is_reported() -> None:
    value: list[Any] = []
    value.append(value)
    assert problems_of(value)


def test_repeated_values_are_counted_each_time() -> None:
    assert not problems_of([0] * (MAX_VALUES - 1))
    (found,) = problems_of([0] * MAX_VALUES)
    assert "20,000 values" in found.problem
    bomb: Any = [0] * 10
    for _ in range(9):
        bomb = [bomb] * 10  # 10**10 values in ten small lists
    assert len(problems_of(bomb)) == 1


def test_paths_of_keys() -> None:
    assert join_path("", "policy") == "policy"
    assert join_path("policy", "retry-budget") == "policy.retry-budget"
    assert join_path("a", "b.c") == "a['b.c']"
    assert join_path("", "\x1b[2J") == r"['\x1b[2J']"


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
    assert describe_kind(value) == words
    assert describe_value(value) == short


def test_a_long_value_is_shown_in_part() -> None:
    assert len(describe_value("x" * 10_000)) <= 62
