"""The conversion of JSON arguments to the types of a signature."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.documents import Report
from dispatch.errors import InvalidArgumentsError
from dispatch.functions.schema import Arguments, read_parameters


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    tags: list[str] = dataclasses.field(default_factory=list)


def arguments_of(function: Any) -> Arguments:
    report = Report("test")
    arguments = Arguments(read_parameters(function, report), {}, report)
    assert report.problems == []
    return arguments


def paint(point: Point, colour: Colour = Colour.RED, size: float = 1, name: str | None = None) -> None: ...


PAINT = arguments_of(paint)


def test_values_have_the_types_of_the_signature() -> None:
    values = {"point": {"x": 1, "tags": ["a"]}, "colour": "red", "size": 2}
    assert PAINT.convert("paint", values) == ([], {"point": Point(1, ["a"]), "colour": Colour.RED, "size": 2.0})
    assert PAINT.schema["properties"]["colour"] == {"$ref": "#/$defs/Colour", "default": "red"}


def test_an_argument_that_is_not_given_is_not_passed() -> None:
    assert PAINT.convert("paint", {"point": {"x": 1}}) == ([], {"point": Point(1)})
    assert PAINT.convert("paint", {"point": {"x": 1}, "name": None}) == ([], {"point": Point(1), "name": None})


def test_positional_parameters() -> None:
    def move(x: int, y: int = 2, z: int = 3, /, speed: int = 4) -> None: ...

    arguments = arguments_of(move)
    assert arguments.convert("move", {"x": 1}) == ([1], {})
    assert arguments.convert("move", {"x": 1, "z": 5, "speed": 6}) == ([1, 2, 5], {"speed": 6})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "Object missing required field `point`"),
        ({"point": {"x": "1"}}, "/point/x: Expected `int`, got `str`"),
        ({"point": {"x": 1.5}}, "/point/x: Expected `int`, got `float`"),
        ({"point": {"x": True}}, "/point/x: Expected `int`, got `bool`"),
        ({"point": {"x": 1, "tags": ["a", 2]}}, "/point/tags/1: Expected `str`, got `int`"),
        ({"point": {"x": 1}, "colour": "blue"}, "/colour: Invalid enum value 'blue'"),
        (
            {"point": {"x": 1}, "color": "red"},
            "there is no argument 'color', the arguments are point, colour, size, name",
        ),
    ],
)
def test_a_mistake_is_named_with_its_path(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgumentsError) as caught:
        PAINT.convert("paint", values)
    assert caught.value.message == (
        f"Tool 'paint' was not executed: {problem}. Correct the arguments and call it once more."
    )
    assert caught.value.type == "invalid-arguments"


def test_keys_of_other_types_than_texts() -> None:
    def score(points: dict[int, Point]) -> None: ...

    assert arguments_of(score).convert("score", {"points": {"1": {"x": 2}}}) == ([], {"points": {1: Point(2)}})


def test_a_tool_without_arguments() -> None:
    with pytest.raises(InvalidArgumentsError, match="there is no argument 'x', the tool has no arguments"):
        arguments_of(lambda: None).convert("ping", {"x": 1})


def test_whole_numbers_may_be_written_with_a_point() -> None:
    values = {"point": {"x": 3.0}, "size": 2.0}
    _, named = PAINT.convert("paint", values)
    assert named == {"point": Point(3), "size": 2.0}
    assert isinstance(named["point"].x, int)
    assert isinstance(named["size"], float)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["point", "colour", "size", "name", "z"]), JSON))
def test_any_json_is_converted_or_refused(values: dict[str, Any]) -> None:
    try:
        positional, named = PAINT.convert("paint", values)
    except InvalidArgumentsError:
        return
    assert positional == []
    assert named.keys() == values.keys()


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), JSON, max_size=4))
def test_values_of_any_type_pass_unchanged(values: dict[str, Any]) -> None:
    def record(given: Any) -> None: ...

    assert arguments_of(record).convert("record", {"given": values}) == ([], {"given": values})
