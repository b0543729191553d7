"""Schemas without the parts that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.schemas import (
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_OBJECT_KEYWORDS,
    SchemaValidator,
    widen_schema,
)

LEAVES = st.sampled_from(
    [
        {},
        {"type": "string"},
        {"type": "integer"},
        {"minimum": 2},
        {"minLength": 2},
        {"const": 1},
        {"required": ["a"]},
        False,
    ]
)


def combine(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), listed),
            **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), inner),
            **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "propertyNames"), inner),
            **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), named),
            "maxContains": st.just(1),
            "minimum": st.just(1),
        },
    )


SCHEMAS = st.recursive(LEAVES, combine, max_leaves=6).filter(lambda schema: isinstance(schema, dict))
VALUES = st.recursive(
    st.sampled_from([None, 0, 1, 3, "", "a", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


def places(schema: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a schema at which a fault may be."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        at = (*place, keyword)
        yield at
        if keyword in SCHEMA_KEYWORDS:
            yield from places(value, at)
        elif keyword in SCHEMA_LIST_KEYWORDS:
            for index, each in enumerate(value):
                yield (*at, index)
                yield from places(each, (*at, index))
        elif keyword in SCHEMA_OBJECT_KEYWORDS:
            for name, each in value.items():
                yield (*at, name)
                yield from places(each, (*at, name))


@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=5), st.data())
def test_every_value_that_was_allowed_is_allowed(
    schema: dict[str, Any], values: list[Any], data: st.DataObject
) -> None:
    known = list(places(schema))
    place = data.draw(st.sampled_from(known)) if known else ("none",)
    former, widened = SchemaValidator(schema), SchemaValidator(widen_schema(schema, place))
    for value in values:
        if not former.find_mistakes(value):
            assert not widened.find_mistakes(value)


@pytest.mark.parametrize(
    ("schema", "place", "widened"),
    [
        ({"type": "string", "pattern": "("}, ("pattern",), {"type": "string"}),
        ({"required": [1]}, ("required", 0), {}),
        ({"properties": {"a": "x"}, "additionalProperties": False}, ("properties", "a"), ...),
        (
            {"properties": [], "additionalProperties": False},
            ("properties",),
            {"properties": {}, "additionalProperties": False},
        ),
        ({"properties": 3, "additionalProperties": False}, ("properties",), {}),
        ({"patternProperties": {"(": {}, "a": {}}, "additionalProperties": False}, ("patternProperties", "("), ...),
        ({"not": {"pattern": "("}, "type": "string"}, ("not", "pattern"), {"type": "string"}),
        ({"oneOf": [{"pattern": "("}, {}], "anyOf": [{}]}, ("oneOf", 0, "pattern"), ...),
        ({"type": "string"}, ("pattern",), {"type": "string"}),
        ({"allOf": [{}]}, ("allOf", 3), {"allOf": [{}]}),
    ],
)
def test_places(schema: dict[str, Any], place: tuple[str | int, ...], widened: Any) -> None:
    expected = {
        ("properties", "a"): {"properties": {"a": {}}, "additionalProperties": False},
        ("patternProperties", "("): {"patternProperties": {"a": {}}},
        ("oneOf", 0, "pattern"): {"anyOf": [{}], "allOf": [{"anyOf": [{}, {}]}]},
    }
    assert widen_schema(schema, place) == (expected[place] if widened is ... else widened)
