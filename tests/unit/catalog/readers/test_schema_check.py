from __future__ import annotations

import copy
from typing import Any

import pytest

from dispatch.catalog import Catalog, ToolDescriptor
from dispatch.documents import Problem, thaw
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, check, only, service_item, tool_item, without

BARE = without(TELL_JOKE, "arguments")
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/joke",
    "$defs": {"mood": {"enum": ["dry", None, 3]}, "anything": True},
    "title": "Joke",
    "type": "object",
    "properties": {
        "topic": {"type": "string", "minLength": 1, "maxLength": 10.0, "pattern": "^[a-z]+$", "examples": ["cats"]},
        "mood": {"$ref": "#/$defs/mood", "default": {"type": 7}},
        "count": {"type": ["integer", "null"], "minimum": 1, "exclusiveMaximum": 9.5, "multipleOf": 0.5},
        "pair": {"type": "array", "prefixItems": [{"const": {"items": 3}}, False], "items": False, "uniqueItems": True},
        "type": {"type": "string", "format": "uuid", "deprecated": False},
        "choice": {"oneOf": [{"type": "string"}, {"not": {"type": "number"}}]},
    },
    "patternProperties": {"^x-": {}},
    "additionalProperties": {"type": "string"},
    "required": ["topic"],
    "dependentRequired": {"count": ["topic"]},
    "dependentSchemas": {"count": {"minProperties": 2}},
    "x-vendor": {"type": 3},
}


def read(schema: dict[str, Any]) -> ToolDescriptor:
    return Catalog.of([JOKE_SERVICE], [BARE | {"input-schema": schema}]).tool("tell-joke")


def test_a_valid_schema_is_used_unchanged() -> None:
    before = copy.deepcopy(SCHEMA)
    tool = read(SCHEMA)
    assert thaw(tool.input_schema) == SCHEMA == before
    assert tool.arguments == ()


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_without_arguments(schema: dict[str, Any]) -> None:
    assert read(schema).input_schema == schema


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "string"}, "the type of the root is 'string'"),
        ({"type": ["object"]}, "the type of the root is a list"),
        ({"type": None}, "the type of the root is null"),
        ({}, "the type of the root is missing"),
        ({"properties": {"topic": {"type": "string"}}}, "the type of the root is missing"),
    ],
)
def test_the_root_is_an_object(schema: dict[str, Any], problem: str) -> None:
    found = only(check(service_item(), tool_item(BARE | {"input-schema": schema})))
    assert found.key == "input-schema.type"
    assert found.problem.startswith(problem)
    assert 'write "type": "object"' in found.fix


@pytest.mark.parametrize("schema", [True, "object", [{"type": "object"}], 3])
def test_a_schema_is_an_object(schema: object) -> None:
    found = only(check(service_item(), tool_item(BARE | {"input-schema": schema})))
    assert found.key == "input-schema"
    assert "not an object" in found.problem


TOPIC: dict[str, Any] = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}


def test_a_schema_beside_the_same_arguments_counts() -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"input-schema": TOPIC}])
    tool = catalog.tool("tell-joke")
    assert tool.input_schema is not None
    assert (thaw(tool.input_schema), tool.arguments) == (TOPIC, ())


@pytest.mark.parametrize(
    ("schema", "key", "problem"),
    [
        ({"type": "object"}, "input-schema", "the argument 'topic' is in 'arguments' only"),
        (
            {**TOPIC, "properties": {"topic": {}, "mood": {}}},
            "arguments",
            "the argument 'mood' is in 'input-schema' only",
        ),
    ],
)
def test_a_schema_beside_other_arguments_is_an_error(schema: dict[str, Any], key: str, problem: str) -> None:
    found = only(check(service_item(), tool_item(BARE | {"input-schema": schema, "arguments": TELL_JOKE["arguments"]})))
    assert (found.key, found.problem) == (key, problem)
    assert "remove 'arguments'" in found.fix


@pytest.mark.parametrize(
    ("keywords", "key", "problem", "fix"),
    [
        ({"properties": ["topic"]}, "properties", "a list instead of an object of schemas", '{"topic": {"type"'),
        ({"properties": {"topic": "string"}}, "properties.topic", "a text instead of a schema", '{"type": "string"}'),
        ({"properties": {"a": {"type": "str"}}}, "properties.a.type", "'str' instead of one of array,", '"string"'),
        ({"properties": {"a": {"type": []}}}, "properties.a.type", "a list instead of one of", '"string"'),
        ({"properties": {"a": {"type": ["string", "string"]}}}, "properties.a.type", "a list instead", '"string"'),
        ({"properties": {"a": {"required": True}}}, "properties.a.required", "true instead of a list", '["topic"]'),
        ({"required": ["a", "a"]}, "required", "a list instead of a list of different names", '["topic"]'),
        ({"required": [1]}, "required", "a list instead of a list of different names", '["topic"]'),
        ({"properties": {"a": {"enum": "x"}}}, "properties.a.enum", "'x' instead of a list", '["a", "b"]'),
        ({"properties": {"a": {"minLength": -1}}}, "properties.a.minLength", "-1 instead of a whole number", ": 1"),
        ({"properties": {"a": {"maxItems": 1.5}}}, "properties.a.maxItems", "1.5 instead of a whole number", ": 1"),
        ({"properties": {"a": {"minItems": True}}}, "properties.a.minItems", "true instead of a whole number", ": 1"),
        ({"properties": {"a": {"minimum": "1"}}}, "properties.a.minimum", "'1' instead of a number", ": 1"),
        ({"properties": {"a": {"exclusiveMinimum": True}}}, "properties.a.exclusiveMinimum", "true instead", ": 1"),
        ({"properties": {"a": {"multipleOf": 0}}}, "properties.a.multipleOf", "0 instead of a number above 0", ": 1"),
        ({"properties": {"a": {"uniqueItems": 1}}}, "properties.a.uniqueItems", "1 instead of true or false", "true"),
        ({"properties": {"a": {"pattern": 3}}}, "properties.a.pattern", "3 instead of a text", "pattern"),
        ({"properties": {"a": {"description": None}}}, "properties.a.description", "null instead of a text", "descr"),
        ({"properties": {"a": {"items": [{}]}}}, "properties.a.items", "a list instead of a schema", "prefixItems"),
        ({"properties": {"a": {"not": 3}}}, "properties.a.not", "a number instead of a schema", '{"type": "string"}'),
        ({"anyOf": []}, "anyOf", "an empty list", "remove it"),
        ({"allOf": {"type": "object"}}, "allOf", "an object instead of a list of schemas", "write ["),
        ({"oneOf": [{"type": "objct"}]}, "oneOf[0].type", "'objct' instead of one of", '"string"'),
        ({"$defs": {"a b": 3}}, "$defs['a b']", "a number instead of a schema", '{"type": "string"}'),
        ({"dependentRequired": {"a": "b"}}, "dependentRequired", "an object instead of an object of lists", "unit"),
        ({"$ref": {}}, "$ref", "an object instead of a text", "$ref"),
    ],
)
def test_a_wrong_keyword_has_its_path_and_fix(keywords: dict[str, Any], key: str, problem: str, fix: str) -> None:
    found = only(check(service_item(), tool_item(BARE | {"input-schema": {"type": "object"} | keywords})))
    assert found.key == f"input-schema.{key}"
    assert problem in found.problem
    assert fix in found.fix


def test_another_dialect_is_a_warning() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    found = only(check(service_item(), tool_item(BARE | {"input-schema": schema}), severity="warning"))
    assert found.key == "input-schema.$schema"
    assert "2020-12" in found.fix


def test_the_depth_of_a_schema_is_limited() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}}
    problems = check(service_item(), tool_item(BARE | {"input-schema": schema}))
    assert any("nested" in problem.problem for problem in problems)


def test_the_size_of_a_schema_is_limited() -> None:
    schema = {"type": "object", "properties": {f"a{index}": {"type": "string"} for index in range(20_000)}}
    problems = check(service_item(), tool_item(BARE | {"input-schema": schema}))
    assert any("more than 20,000 values" in problem.problem for problem in problems)


FIELDS = pytest.mark.parametrize("field", ["input-schema", "output-schema"])
ADDRESS = "https://schemas.example/joke.json"


def check_schema_of(field: str, keywords: dict[str, Any]) -> list[Problem]:
    return check(service_item(), tool_item(BARE | {field: {"type": "object"} | keywords}))


@FIELDS
@pytest.mark.parametrize(
    ("keywords", "key", "problem", "fix"),
    [
        ({"$ref": ADDRESS}, "$ref", "must refer to a place in the schema itself", '"$defs"'),
        ({"properties": {"a": {"$ref": ADDRESS}}}, "properties.a.$ref", "nothing is fetched", '"$ref": "#/$defs/NAME"'),
        ({"anyOf": [{"$dynamicRef": ADDRESS}]}, "anyOf[0].$dynamicRef", "nothing is fetched", '"$defs"'),
        ({"$schema": ADDRESS}, "$schema", "nothing is fetched", 'write "https://json-schema.org/draft/2020-12/schema"'),
        ({"properties": {"a": {"$ref": "joke.json"}}}, "properties.a.$ref", "not to 'joke.json'", '"$defs"'),
    ],
)
def test_a_reference_to_an_address_is_an_error(
    field: str,
    keywords: dict[str, Any],
    key: str,
    problem: str,
    fix: str,
) -> None:
    found = only(check_schema_of(field, keywords))
    assert found.key == f"{field}.{key}"
    assert (found.severity, problem in found.problem, fix in found.fix) == ("error", True, True)


@FIELDS
@pytest.mark.parametrize(
    ("keywords", "key", "problem"),
    [
        ({"properties": {"a": {"pattern": "("}}}, "properties.a.pattern", "must be a regular expression"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "", "a place that does not exist (Pointer '/$defs/b'"),
        ({"$anchor": "a b"}, "$anchor", "must match the pattern"),
        ({"dependencies": {"a": 3}}, "dependencies.a", "matches none of 2 alternatives"),
        ({"allOf": [{"$vocabulary": 3}]}, "allOf[0].$vocabulary", "must be an object, not an integer"),
    ],
)
def test_the_metaschema_is_applied(field: str, keywords: dict[str, Any], key: str, problem: str) -> None:
    found = only(check_schema_of(field, keywords))
    assert found.key == (f"{field}.{key}" if key else field)
    assert problem in found.problem
    assert "JSON Schema 2020-12" in found.fix


@FIELDS
def test_all_mistakes_are_reported_at_once_and_each_once(field: str) -> None:
    found = check_schema_of(
        field,
        {
            "properties": {"a": {"type": "str", "required": [1], "$ref": ADDRESS}, "b": {"minLength": -1}},
            "$anchor": "a b",
            "required": "a",
        },
    )
    names = [
        "properties.a.type",
        "properties.a.required",
        "properties.a.$ref",
        "properties.b.minLength",
        "$anchor",
        "required",
    ]
    assert sorted(each.key for each in found) == sorted(f"{field}.{name}" for name in names)


def test_an_output_schema_may_be_of_any_type() -> None:
    assert check(service_item(), tool_item(BARE | {"output-schema": {"type": ["string", "null"]}})) == []
    found = only(check(service_item(), tool_item(BARE | {"output-schema": {"type": "text"}})))
    assert found.key == "output-schema.type"
