from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.documents import Report, freeze_json
from dispatch.schemas import (
    MAX_DEPTH,
    MAX_EVALUATIONS,
    MAX_MISTAKES,
    InvalidSchemaError,
    Mistake,
    SchemaValidator,
    split_pointer,
)

UNIT = {"enum": ["celsius", "fahrenheit"]}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "maximum": 14},
        "unit": UNIT,
    },
    "required": ["place"],
    "additionalProperties": False,
}


def test_a_valid_value_has_no_mistakes() -> None:
    assert SchemaValidator(WEATHER).find_mistakes({"place": "Oslo", "days": 3, "unit": "celsius"}) == ()


def test_all_mistakes_are_found_at_once() -> None:
    mistakes = SchemaValidator(WEATHER).find_mistakes({"days": "3", "unit": "kelvin", "plce": "Oslo"})
    assert set(mistakes) == {
        Mistake("/place", "is required"),
        Mistake("/days", "must be an integer, not a string"),
        Mistake("/unit", "must be one of the allowed values", ('"celsius"', '"fahrenheit"')),
        Mistake("/plce", "is not an expected property", ('"place"', '"days"', '"unit"')),
    }


def test_a_schema_of_the_catalogue_and_immutable_values_are_accepted() -> None:
    report = Report("weather.json")
    schema = freeze_json(WEATHER | {"allOf": [{"minProperties": 2}]}, report)
    value = freeze_json({"place": "Oslo", "days": [1]}, report)
    assert [str(each) for each in SchemaValidator(schema).find_mistakes(value)] == [
        "/days must be an integer, not an array"
    ]


@pytest.mark.parametrize(("schema", "count"), [(True, 0), (False, 1)])
def test_a_boolean_is_a_schema(schema: bool, count: int) -> None:
    assert len(SchemaValidator(schema).find_mistakes({"a": 1})) == count


@pytest.mark.parametrize("value", [{1, 2}, b"x", "\ud800", {3: 1}, object()])
def test_a_value_that_is_no_json_is_a_mistake(value: object) -> None:
    (mistake,) = SchemaValidator({"type": "number"}).find_mistakes(value)
    assert mistake.path == ""
    assert mistake.message.startswith("must be ")


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_a_deep_value_is_refused_before_the_engine_exhausts_the_stack(depth: int) -> None:
    tree = SchemaValidator({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]})
    assert tree.find_mistakes(nest(MAX_DEPTH)) == ()
    (mistake,) = tree.find_mistakes(nest(depth))
    assert str(mistake) == "the whole value must have at most 100 nested objects and lists"


def test_a_cyclic_value_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    assert SchemaValidator(True).find_mistakes(value)


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 1):
        schema = {"not": schema}
    with pytest.raises(InvalidSchemaError, match="at most 100 nested"):
        SchemaValidator(schema)


def test_many_mistakes_are_bounded() -> None:
    numbers = SchemaValidator({"items": {"type": "integer"}})
    assert len(numbers.find_mistakes(["x"] * 5_000)) == MAX_MISTAKES
    assert numbers.find_mistakes([1] + ["x"] * MAX_EVALUATIONS) == (Mistake("/1", "must be an integer, not a string"),)
    assert numbers.find_mistakes([1] * MAX_EVALUATIONS) == ()


def test_an_invalid_schema_is_an_error_with_all_its_mistakes() -> None:
    with pytest.raises(InvalidSchemaError, match="/type must be") as raised:
        SchemaValidator({"type": "text"})
    assert [each.path for each in raised.value.mistakes] == ["/type"]
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (copy.mistakes, str(copy)) == (raised.value.mistakes, str(raised.value))


def test_a_slow_pattern_ends_early() -> None:
    validator = SchemaValidator({"pattern": r"^(?=x)(x+x+)+y\1$"})
    (mistake,) = validator.find_mistakes("x" * 2_000)
    assert "pattern" in mistake.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", ["0", "07", "+1", "18446744073709551615", "18446744073709551616", "1_0", "-0"])
def test_a_property_whose_name_reads_as_a_number_has_its_name_in_the_path(name: str) -> None:
    validator = SchemaValidator({"type": "object", "additionalProperties": {"type": "string"}})
    value = {"9" * 5_000: "", name: True}
    assert validator.find_mistakes(value) == (Mistake(f"/{name}", "must be a string, not a boolean"),)


@given(JSON)
def test_each_mistake_is_at_a_place_of_the_value(value: Any) -> None:
    schema = {
        "type": ["object", "array"],
        "items": {"$ref": "#"},
        "additionalProperties": {"type": ["string", "array"]},
    }
    for mistake in SchemaValidator(schema).find_mistakes(value):
        place = value
        for key in split_pointer(mistake.path):
            place = place[int(key) if isinstance(place, list) else key]
        assert str(mistake)
