"""Declarations of documents: rules of values, lists, objects and structs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from dispatch.documents import WRONG, Report, Rule, is_whole, list_of, map_of, object_of, optional, require

COUNT = require((is_whole, "{!r} is no whole number", "write 1"), (lambda value: value > 0, "{} is below 1", "write 1"))
NAME = require((str.islower, lambda name: f"{name!r} is not in lower case", lambda name: f"write {name.lower()!r}"))
LIST = (lambda value: isinstance(value, list), "not a list", "write []")
OBJECT = (lambda value: isinstance(value, dict), "not an object", "write {}")


class Box(msgspec.Struct, rename="kebab"):
    """A struct with a rule for each field."""

    item_count: Annotated[int, COUNT]
    labels: Annotated[tuple[int, ...], list_of(COUNT, LIST)] = ()
    note: Annotated[Any, optional(COUNT)] = None


BOX = object_of(Box, {"item-count": 'add "item-count": 1'}, OBJECT)


def read(rule: Rule, value: object) -> Any:
    report = Report("f")
    found = rule(value, report, "at")
    assert (found is WRONG) == report.has_errors
    return [(each.key, each.problem, each.fix) for each in report.problems] if report.has_errors else found


def test_the_first_need_that_a_value_fails_is_its_mistake() -> None:
    assert read(COUNT, 3) == 3
    assert read(COUNT, 2.0) == [("at", "2.0 is no whole number", "write 1")]
    assert read(COUNT, True) == [("at", "True is no whole number", "write 1")]
    assert read(COUNT, 0) == [("at", "0 is below 1", "write 1")]
    assert read(NAME, "A") == [("at", "'A' is not in lower case", "write 'a'")]
    assert read(optional(COUNT), None) is None


def test_every_element_and_every_value_is_read() -> None:
    assert read(list_of(COUNT, LIST), [1, 2]) == (1, 2)
    assert [key for key, _, _ in read(list_of(COUNT, LIST), [0, 1, "x"])] == ["at[0]", "at[2]"]
    assert read(list_of(COUNT, LIST), 5) == [("at", "not a list", "write []")]
    rule = map_of(NAME, COUNT, OBJECT)
    assert read(rule, {"a": 1}) == {"a": 1}
    assert [key for key, _, _ in read(rule, {"a": 0, "B": 0, "c d": 0})] == ["at.a", "at", "at['c d']"]


def test_an_object_is_read_as_its_struct() -> None:
    assert read(BOX, {"item-count": 2, "labels": [3]}) == Box(2, (3,))
    assert read(list_of(BOX, LIST), [{"item-count": 1}]) == (Box(1),)


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
