"""Schemas of other systems: no fault in them is a reason to refuse the tool."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dispatch.catalog.descriptors import ToolDescriptor
from dispatch.catalog.items import Item, read_service_item, read_tool_item
from dispatch.documents import FrozenDict, Problem
from dispatch.schemas import SchemaValidator
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, without

BARE = without(TELL_JOKE, "arguments")


def read(keys: dict[str, Any], *, is_foreign: bool = True) -> tuple[ToolDescriptor | None, tuple[Problem, ...]]:
    service = read_service_item(Item("service", "tool-service", "joke", JOKE_SERVICE)).service
    assert service is not None
    item = Item("server: tool", "tool", "tell-joke", BARE | keys, is_foreign=is_foreign)
    found = read_tool_item(item, {service.id: (service,)})
    return found.tool, found.problems


def schema_of(schema: dict[str, Any]) -> tuple[Any, tuple[Problem, ...]]:
    tool, problems = read({"input-schema": schema})
    assert tool is not None
    assert isinstance(tool.input_schema, FrozenDict)
    hash(tool.input_schema)
    SchemaValidator(tool.input_schema)
    return tool.input_schema, problems


@pytest.mark.parametrize(
    "schema",
    [
        {"items": [{"type": "string"}], "additionalItems": False},
        {"properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://x.example/s"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
    ],
)
def test_another_dialect_is_no_warning(schema: dict[str, Any]) -> None:
    _, problems = schema_of({"type": "object", **schema})
    assert {each.severity for each in problems} <= {"info"}


@pytest.mark.parametrize(
    ("schema", "key", "widened"),
    [
        ({"required": None}, "required", {}),
        ({"properties": []}, "properties", {"properties": {}}),
        ({"properties": {"a": {"type": "str"}}}, "properties.a.type", {"properties": {"a": {}}}),
        ({"anyOf": []}, "anyOf", {}),
        ({"$schema": "https://x.example/own"}, "$schema", {}),
        ({"allOf": [{"$ref": "https://x.example/a"}]}, "allOf[0].$ref", {"allOf": ({},)}),
        ({"not": {"$ref": "#/$defs/a"}}, "not.$ref", {}),
        ({"not": {"$ref": "#P"}, "$defs": {"p": {"$anchor": "P"}}}, None, ...),
        ({"type": ["object", "null"]}, "type", {}),
    ],
)
def test_a_fault_is_removed_and_reported(schema: dict[str, Any], key: str | None, widened: Any) -> None:
    found, problems = schema_of({"type": "object", **schema})
    assert found == {"type": "object", **(schema if widened is ... else widened)} | {"type": "object"}
    assert [(each.key, each.severity) for each in problems] == ([(f"input-schema.{key}", "warning")] if key else [])


@pytest.mark.parametrize("pattern", ["[^]", r"(?<n>\w)\k<n>", r"[\w-.]", r"(?P<n>a)\Z", "("])
def test_patterns_of_other_languages_are_not_checked(pattern: str, caplog: pytest.LogCaptureFixture) -> None:
    place = {
        "properties": {"a": {"type": "string", "pattern": pattern}},
        "patternProperties": {pattern: {"type": "null"}},
    }
    with caplog.at_level(logging.WARNING, "dispatch.catalog"):
        found, problems = schema_of({"type": "object", **place, "additionalProperties": False})
    assert found == {"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {}}
    assert len(problems) == 2
    (record,) = caplog.records
    assert "server: tool is used with a part of its schema" in record.getMessage()
    assert "(1 more)" in record.getMessage()


def test_what_cannot_be_corrected_is_left_out() -> None:
    definitions: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)}
    schema = {"type": "object", "title": "T", "$ref": "#/$defs/d0", "$defs": {**definitions, "d20": {}}}
    found, problems = schema_of(schema)
    assert found == {"type": "object", "title": "T"}
    assert [each.key for each in problems] == ["input-schema"]


def test_an_output_schema() -> None:
    tool, problems = read({"output-schema": {"type": "array", "items": [{"type": "integer"}], "minItems": "1"}})
    assert tool is not None
    assert tool.output_schema == {"type": "array", "prefixItems": ({"type": "integer"},)}
    assert [each.key for each in problems if each.severity == "warning"] == ["output-schema.minItems"]


def test_an_own_descriptor_names_its_dialect() -> None:
    old = {"type": "object", "properties": {"a": {"items": [{}]}}}
    tool, problems = read({"input-schema": old}, is_foreign=False)
    assert tool is None
    tool, problems = read(
        {"input-schema": {"$schema": "http://json-schema.org/draft-07/schema#", **old}}, is_foreign=False
    )
    assert tool is not None
    assert tool.input_schema is not None
    assert tool.input_schema["properties"] == {"a": {"prefixItems": ({},)}}
    assert [(each.key, each.severity) for each in problems] == [("input-schema.$schema", "warning")]
    assert "are translated" in problems[0].problem
