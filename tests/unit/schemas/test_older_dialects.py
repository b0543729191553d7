"""Schemas in older dialects."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.documents import Report, freeze_json
from dispatch.schemas import DIALECT, GUESSED, find_dialect, translate_schema

D3, D4, D6, D7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (3, 4, 6, 7))
D8 = "https://json-schema.org/draft/2019-09/schema"


def translate(schema: dict[str, Any], name: str | None) -> dict[str, Any]:
    """The translation without ``$schema``."""
    named = schema if name is None else {"$schema": name, **schema}
    dialect = find_dialect(named) or GUESSED
    translated = dict(translate_schema(named, dialect))
    assert translated.pop("$schema", None) in (None, name, DIALECT)
    return translated


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (D3, 3),
        (D4.rstrip("#"), 4),
        (D6.replace("http", "https"), 6),
        (f" {D7}", 7),
        (D8, 8),
        (DIALECT, None),
        ("https://x.example/schema", None),
        ("http://json-schema.org/schema#", None),
        (None, None),
        (7, None),
    ],
)
def test_names(name: object, number: int | None) -> None:
    dialect = find_dialect({"$schema": name})
    assert (dialect.number if dialect else None) == number


@pytest.mark.parametrize("name", [D4, D6, D7, D8, None])
@pytest.mark.parametrize(
    ("schema", "translated"),
    [
        ({"items": [{"type": "string"}, True]}, {"prefixItems": [{"type": "string"}, True]}),
        ({"items": [{}], "additionalItems": False}, {"prefixItems": [{}], "items": False}),
        ({"items": [], "additionalItems": {"type": "null"}}, {"items": {"type": "null"}}),
        ({"items": [{"items": [{}]}]}, {"prefixItems": [{"prefixItems": [{}]}]}),
        ({"not": {"anyOf": [{"items": [{}]}]}}, {"not": {"anyOf": [{"prefixItems": [{}]}]}}),
        ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        ({"exclusiveMaximum": True}, {}),
        ({"definitions": {"a": {"$id": "#P"}}}, {"definitions": {"a": {"$anchor": "P"}}}),
        ({"$defs": {"a": {"$id": "x.json#P"}}}, {"$defs": {"a": {"$id": "x.json", "$anchor": "P"}}}),
        ({"$id": "#/a b"}, {}),
        (
            {"properties": {"a": {"required": True}, "b": {"required": False}}},
            {"properties": {"a": {}, "b": {}}, "required": ["a"]},
        ),
        (
            {"properties": {"a": {"required": True}}, "required": ["b"]},
            {"properties": {"a": {}}, "required": ["b", "a"]},
        ),
    ],
)
def test_what_can_mean_one_thing_only(name: str | None, schema: dict[str, Any], translated: dict[str, Any]) -> None:
    assert translate(schema, name) == translated


@pytest.mark.parametrize(
    ("names", "schema", "translated"),
    [
        ((D3, D4), {"id": "http://x/s"}, {"$id": "http://x/s"}),
        ((D4,), {"definitions": {"a": {"id": "#P"}}}, {"definitions": {"a": {"$anchor": "P"}}}),
        ((D4,), {"properties": {"id": {"type": "string"}}}, {"properties": {"id": {"type": "string"}}}),
        ((D4, D6, D7), {"not": {"$ref": "#", "minLength": 3, "title": "A"}}, {"not": {"$ref": "#", "title": "A"}}),
        (
            (D7,),
            {"type": "object", "$ref": "#/definitions/a", "minProperties": 1},
            {"type": "object", "$ref": "#/definitions/a"},
        ),
        (
            (D3, D4, D6, D7),
            {"dependencies": {"a": ["b"], "c": {"items": [{}]}}},
            {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"prefixItems": [{}]}}},
        ),
        ((D3,), {"dependencies": {"a": "b"}}, {"dependentRequired": {"a": ["b"]}}),
        ((D3,), {"divisibleBy": 2, "type": "any"}, {"multipleOf": 2}),
        ((D3,), {"type": ["string", {"type": "object"}]}, {}),
        ((D8,), {"$recursiveAnchor": True, "items": {"$recursiveRef": "#"}}, {"items": {"$ref": "#"}}),
    ],
)
def test_what_only_the_named_dialect_means(
    names: tuple[str, ...], schema: dict[str, Any], translated: dict[str, Any]
) -> None:
    for name in names:
        assert translate(schema, name) == translated
    assert translate(schema, None) == schema


def test_a_subschema_may_name_its_dialect() -> None:
    schema = {"items": {"$schema": D7, "$ref": "#", "minItems": 1}, "not": {"$ref": "#", "minItems": 1}}
    assert translate(schema, None) == {"items": {"$ref": "#"}, "not": {"$ref": "#", "minItems": 1}}


@pytest.mark.parametrize("name", [D4, D7, D8, DIALECT])
def test_a_schema_that_both_dialects_read_alike_is_unchanged(name: str) -> None:
    raw = {
        "$schema": name,
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "string"}, {"enum": [1, None]}]}, "items": {"const": {"items": [1]}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    schema = freeze_json(raw, Report("test"))
    assert translate_schema(schema, find_dialect(schema) or GUESSED) is schema


@pytest.mark.parametrize(
    "schema", [{"items": 3}, {"properties": [], "required": None}, {"$id": 3, "minimum": "x"}, {"anyOf": {}}]
)
def test_what_no_dialect_knows_is_unchanged(schema: dict[str, Any]) -> None:
    assert translate(schema, D4) == schema
