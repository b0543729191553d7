"""Each kind of mistake in words for a model. No text repeats the value."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.schemas import SchemaValidator

CARD = {
    "type": "object",
    "properties": {"kind": {"const": "card"}, "number": {"type": "string"}},
    "required": ["kind", "number"],
}
CASH = {
    "type": "object",
    "properties": {"kind": {"const": "cash"}, "amount": {"type": "number"}},
    "required": ["kind", "amount"],
}


@pytest.mark.parametrize(
    ("schema", "value", "texts"),
    [
        (
            {"type": ["string", "null", "array"]},
            7,
            ["the whole value must be null, a string or an array, not an integer"],
        ),
        ({"type": "integer"}, 1.5, ["the whole value must be an integer, not a number"]),
        ({"type": "integer"}, True, ["the whole value must be an integer, not a boolean"]),
        ({"type": "string"}, None, ["the whole value must be a string, not null"]),
        ({"type": "string"}, {}, ["the whole value must be a string, not an object"]),
        ({"minimum": 1}, 0, ["the whole value must be at least 1"]),
        ({"maximum": 1.5}, 2, ["the whole value must be at most 1.5"]),
        ({"exclusiveMinimum": 1}, 1, ["the whole value must be greater than 1"]),
        ({"exclusiveMaximum": 1}, 1, ["the whole value must be less than 1"]),
        ({"multipleOf": 5}, 7, ["the whole value must be a multiple of 5"]),
        ({"minLength": 2}, "x", ["the whole value must have at least 2 characters"]),
        ({"maxLength": 1}, "xx", ["the whole value must have at most 1 character"]),
        ({"minItems": 1}, [], ["the whole value must have at least 1 item"]),
        ({"maxItems": 1000}, [0] * 1001, ["the whole value must have at most 1,000 items"]),
        ({"minProperties": 1}, {}, ["the whole value must have at least 1 property"]),
        ({"maxProperties": 0}, {"a": 1}, ["the whole value must have at most 0 properties"]),
        ({"pattern": "^a+$"}, "b", ["the whole value must match the pattern ^a+$"]),
        ({"uniqueItems": True}, [1, 1], ["the whole value must not have two equal items"]),
        (
            {"contains": {"const": 1}},
            [2],
            ["the whole value must have as many items of the kind in 'contains' as the schema requires"],
        ),
        ({"not": {"type": "null"}}, None, ["the whole value must not be of the kind in 'not'"]),
        ({"properties": {"a": False}}, {"a": 1}, ["/a is not allowed"]),
        ({"const": "x"}, "y", ['the whole value must be the only allowed value: "x"']),
        ({"enum": ["a", 1, None]}, "y", ['the whole value must be one of the allowed values: "a", 1, null']),
        ({"required": ["a/b", "c"]}, {}, ["/a~1b is required", "/c is required"]),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ["/b is required"]),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            ["the whole value has a property whose name must have at most 1 character"],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"b": 1, "c": 2},
            ['/b is not an expected property: "a"', '/c is not an expected property: "a"'],
        ),
        (
            {"$defs": {"p": {"properties": {"x": {}}, "additionalProperties": False}}, "items": {"$ref": "#/$defs/p"}},
            [{"y": 1}],
            ['/0/y is not an expected property: "x"'],
        ),
        (
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            {"a": 1, "b": 1},
            ["/b is not an expected property"],
        ),
        ({"prefixItems": [{}], "items": False}, [1, 2], ["/1 is not allowed"]),
        (
            {"prefixItems": [{}], "unevaluatedItems": False},
            [1, "b"],
            ["the whole value must not have items that the schema does not describe"],
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            3,
            ["the whole value must be a string or null, not an integer"],
        ),
        (
            {"anyOf": [{"enum": ["a", "b"]}, {"const": "c"}]},
            "d",
            ['the whole value must be one of the allowed values: "a", "b", "c"'],
        ),
        (
            {"anyOf": [{"enum": ["a"]}, {"type": "integer"}]},
            "d",
            ['the whole value must be an integer, or one of the allowed values: "a"'],
        ),
        (
            {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 3}]},
            "x",
            ["the whole value must have at least 3 characters"],
        ),
        ({"oneOf": [CARD, CASH]}, {"kind": "cash", "amount": "7"}, ["/amount must be a number, not a string"]),
        (
            {"oneOf": [CARD, CASH]},
            {"number": "7"},
            [
                "the whole value matches none of 2 alternatives: (1) /kind is required; "
                "(2) /kind is required, /amount is required"
            ],
        ),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            ["the whole value matches none of 2 alternatives: (1) /a is required; (2) /b is required"],
        ),
        (
            {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
            3,
            ["the whole value matches several of the alternatives, and must match exactly one"],
        ),
        (
            {"if": {"type": "string"}, "then": {"minLength": 3}},
            "a",
            ["the whole value must have at least 3 characters"],
        ),
    ],
)
def test_text(schema: dict[str, Any], value: Any, texts: list[str]) -> None:
    assert [str(each) for each in SchemaValidator(schema).find_mistakes(value)] == texts


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"enum": ["a"]},
        {"const": 1},
        {"maxLength": 1},
        {"pattern": "^a$"},
        {"not": {"type": "string"}},
        {"anyOf": [{"type": "integer"}, {"maxLength": 1}, {"maxLength": 2}]},
        {"oneOf": [{}, {"type": "string"}]},
        False,
    ],
)
def test_no_text_repeats_the_value(schema: Any) -> None:
    validator = SchemaValidator({"items": schema})
    (mistake,) = validator.find_mistakes([SECRET])
    assert SECRET not in str(mistake)
    assert mistake.path == "/0"
