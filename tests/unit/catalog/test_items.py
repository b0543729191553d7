"""Schemas of other systems: no fault in them is a reason to refuse the tool."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from dispatch.catalog import ARGUMENT_TYPES, Argument, Catalog, ConfigParam, Instance, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.items import Item, ItemKey, read_service_item, read_tool_item
from dispatch.documents import FrozenDict, Problem, thaw
from dispatch.policy import PolicyError
from dispatch.schemas import SchemaValidator
from tests.helpers.catalog_items import (
    JOKE_SERVICE,
    TELL_JOKE,
    assert_problem,
    check,
    only,
    service_item,
    service_problem,
    tool_item,
    tool_problem,
    without,
)
from tests.helpers.dispatcher_and_service import topics_of

REQUESTS, RESPONSES = JOKE_SERVICE["request-queue"], JOKE_SERVICE["response-queue"]
RAG = JOKE_SERVICE | {"config-params": [{"name": "collection", "required": True}]}


def read(raw: dict[str, Any], service: dict[str, Any] = JOKE_SERVICE) -> ToolDescriptor:
    (tool,) = Catalog.of([service], [raw]).tools.values()
    return tool


def test_the_descriptor_of_trustgraphs_specification() -> None:
    tool = read(TELL_JOKE)
    assert tool.policy == {}
    assert tool == ToolDescriptor(
        name="tell-joke",
        description="Tell a joke on a given topic",
        service="joke-service",
        arguments=(Argument("topic", "string", "The topic for the joke"),),
        config={"style": "pun"},
    )


def test_assume_the_worse_of_a_tool_that_declares_nothing() -> None:
    tool = read(TELL_JOKE)
    assert (tool.read_only, tool.idempotent, tool.destructive) == (False, False, None)
    assert not tool.repeatable
    assert tool.arguments[0].required is None


def test_all_keys_of_dispatch() -> None:
    tool = read(
        TELL_JOKE
        | {
            "policy": {"timeout": 5},
            "category": "fun",
            "tags": ["text", "short", "text"],
            "author": "the jokes team",
            "output-schema": {"type": "object", "properties": {"joke": {"type": "string"}}},
            "read-only": True,
            "idempotent": True,
            "destructive": False,
            "arguments": [{"name": "topic", "type": "string", "description": "About", "required": True}],
        }
    )
    assert (tool.policy, tool.category, tool.tags) == ({"timeout": 5}, "fun", ("text", "short"))
    assert tool.author == "the jokes team"
    assert tool.output_schema == {"type": "object", "properties": {"joke": {"type": "string"}}}
    assert (tool.read_only, tool.idempotent, tool.destructive) == (True, True, False)
    assert tool.arguments[0].required is True


@pytest.mark.parametrize(
    ("flags", "repeatable"), [({"read-only": True}, True), ({"idempotent": True}, True), ({}, False)]
)
def test_what_is_read_only_or_idempotent_may_be_repeated(flags: dict[str, bool], repeatable: bool) -> None:
    assert read(TELL_JOKE | flags).repeatable is repeatable


@pytest.mark.parametrize("arguments", [{}, {"arguments": []}, {"arguments": None}])
def test_arguments_may_be_absent(arguments: dict[str, Any]) -> None:
    assert read(without(TELL_JOKE, "arguments") | arguments).arguments == ()


@pytest.mark.parametrize("argument_type", ARGUMENT_TYPES)
def test_every_argument_type(argument_type: str) -> None:
    raw = TELL_JOKE | {"arguments": [{"name": "a", "type": argument_type, "description": ""}]}
    assert read(raw).arguments[0].type == argument_type


@pytest.mark.parametrize("value", ["pun", "", 0, 1.5, True, None, ["a", {"b": 1}], {"deep": {"er": [1]}}])
def test_a_config_value_is_any_json(value: Any) -> None:
    config = read(TELL_JOKE | {"style": value}).config
    assert list(config) == ["style"]
    assert thaw(config["style"]) == value


def test_a_config_value_that_is_left_out_is_not_sent() -> None:
    assert read(without(TELL_JOKE, "style")).config == {}


def test_a_tools_name_is_its_items_key_if_it_states_none() -> None:
    assert not check(service_item(), tool_item(without(TELL_JOKE, "name")))


def test_a_descriptor_cannot_be_changed() -> None:
    tool = read(TELL_JOKE)
    with pytest.raises(AttributeError):
        tool.name = "other"  # type: ignore[misc]  # it is frozen: that is the point
    with pytest.raises(TypeError):
        tool.config["style"] = "limerick"  # type: ignore[index]  # a Mapping: as above


@pytest.mark.parametrize("key", ["description", "service", "type", "request-queue", "response-queue"])
def test_a_missing_key(key: str) -> None:
    is_tool = key in TELL_JOKE
    tool = tool_item(without(TELL_JOKE, key))
    problem = only(check(service_item(), tool) if is_tool else check(service_item(without(JOKE_SERVICE, key))))
    assert problem.file == ("tool/tell-joke.json" if is_tool else "tool-service/joke-service.json")
    assert_problem(problem, key, f"'{key}' is missing", f'add "{key}": "{"" if is_tool else "non-persistent://tg/"}')


@pytest.mark.parametrize(
    ("changes", "key", "problem", "fix"),
    [
        ({"type": 3}, "type", "a number, not a text", '"type": "tool-service"'),
        ({"name": ["a"]}, "name", "a list, not a text", 'write "name": "tell-joke"'),
        ({"name": ""}, "name", "is empty", 'write "name": "tell-joke"'),
        ({"name": "a\tb"}, "name", "a control character", "use letters"),
        ({"description": {}}, "description", "an object, not a text", 'write "description": "'),
        ({"service": 1}, "service", "a number, not a text", 'write "service": "'),
        ({"arguments": {"topic": "string"}}, "arguments", "an object, not a list", '[{"name": "topic"'),
        ({"arguments": ["topic"]}, "arguments[0]", "'topic' instead of an object", '{"name": "topic"'),
        ({"version": "1.4"}, "version", "'1.4' is not a SemVer version", '"version": "1.4.0"'),
        ({"version": 2}, "version", "a number, not a text", '"version": "1.4.0"'),
        ({"requires": ["^1.4"]}, "requires", "a list, not a text", '"requires": "^1.4"'),
        ({"requires": "newest"}, "requires", "'newest' is not a version range", '"requires": "^1.4"'),
        ({"requires": ">=1.4.0, <2"}, "requires", "is not a version range", '"requires": "^1.4"'),
        ({"requires": " "}, "requires", "is empty", '"requires": "^1.4"'),
        ({"permissions": "admin"}, "permissions", "a text, not a list", '["tools:jokes"]'),
        ({"permissions": [""]}, "permissions[0]", "an empty text", '"tools:jokes"'),
        ({"rollout": 5}, "rollout", "a number, not an object", '{"2.0.0": 5}'),
        ({"rollout": {"2": 5}}, "rollout.2", "'2' is not a SemVer version", '{"2.0.0": 5}'),
        ({"rollout": {"2.0.0": 101}}, "rollout['2.0.0']", "101 is no share", '"2.0.0": 5'),
        ({"rollout": {"2.0.0": -1}}, "rollout['2.0.0']", "-1 is no share", '"2.0.0": 5'),
        ({"rollout": {"2.0.0": True}}, "rollout['2.0.0']", "true is no share", '"2.0.0": 5'),
        ({"rollout": {"2.0.0": 60, "3.0.0": 40.5}}, "rollout", "a sum of 100.5 per cent", "at most 100"),
        (
            {"version": "2.0.0", "rollout": {"2.0.0": 5}},
            "rollout['2.0.0']",
            "this descriptor itself",
            "another version",
        ),
        ({"group": "fun"}, "group", "a text, not a list", '["default"]'),
        ({"group": [1]}, "group[0]", "1 instead of a text", '"default"'),
        ({"state": ["a"]}, "state", "a list, not a text", '"state": "running"'),
        ({"applicable_states": "*"}, "applicable-states", "a text, not a list", '["*"]'),
        ({"category": ["fun"]}, "category", "a list, not a text", '"category": "'),
        ({"tags": {"a": 1}}, "tags", "an object, not a list", '["fun"]'),
        ({"tags": ["a", 1]}, "tags[1]", "1 instead of a text", '"fun"'),
        ({"tags": [" "]}, "tags[0]", "an empty text", "remove it"),
        ({"tags": [None]}, "tags[0]", "null instead of a text", '"fun"'),
        ({"author": 5}, "author", "a number, not a text", '"author": "'),
        ({"output_schema": "string"}, "output-schema", "a text, not an object", '{"type": "string"}'),
        ({"input_schema": True}, "input-schema", "not an object", ""),
        ({"input_schema": "object"}, "input-schema", "not an object", ""),
        ({"input_schema": [{"type": "object"}]}, "input-schema", "not an object", ""),
        ({"read_only": "true"}, "read-only", "a text, not true or false", '"read-only": true'),
        ({"idempotent": 1}, "idempotent", "a number, not true or false", '"idempotent": true'),
        ({"destructive": []}, "destructive", "a list, not true or false", '"destructive": true'),
        ({"read_only": True, "destructive": True}, "destructive", "contradict", "remove the wrong one"),
    ],
)
def test_an_error_has_its_key_and_fix(changes: dict[str, Any], key: str, problem: str, fix: str) -> None:
    assert_problem(tool_problem(**changes), key, problem, fix)


@pytest.mark.parametrize(
    ("argument", "key", "problem", "fix"),
    [
        ({"name": None}, "arguments[1].name", "null", 'add "name"'),
        ({"name": "topic"}, "arguments[1].name", "'topic' is not unique", "its own name"),
        ({"type": None}, "arguments[1].type", "null", 'add "type": "string"'),
        ({"type": 1}, "arguments[1].type", "a number, not a text", '"type": "string"'),
        ({"type": ""}, "arguments[1].type", "is empty", '"type": "string"'),
        ({"type": "str"}, "arguments[1].type", "'str' is unknown", 'write "string"'),
        ({"type": "int"}, "arguments[1].type", "'int' is unknown", 'write "integer"'),
        ({"type": "Boolean"}, "arguments[1].type", "'Boolean' is unknown", 'write "boolean"'),
        ({"type": "list"}, "arguments[1].type", "'list' is unknown", 'write "array"'),
        ({"type": "quaternion"}, "arguments[1].type", "'quaternion' is unknown", "string, number, integer"),
        ({"description": None}, "arguments[1].description", "null", 'add "description"'),
        ({"required": "no"}, "arguments[1].required", "a text, not true or false", '"required": true'),
    ],
)
def test_a_mistake_in_an_argument(argument: dict[str, Any], key: str, problem: str, fix: str) -> None:
    first = {"name": "topic", "type": "string", "description": "About"}
    found = tool_problem(arguments=[first, {"name": "words", "type": "integer", "description": "Length"} | argument])
    assert_problem(found, key, problem, fix)


def test_a_required_config_param_that_a_tool_lacks() -> None:
    problem = only(check(service_item(RAG), tool_item(without(TELL_JOKE, "style"))))
    assert (problem.file, problem.key) == ("tool/tell-joke.json", "collection")
    assert "'joke-service' requires a value for its config param 'collection'" in problem.problem
    assert 'add "collection"' in problem.fix


@pytest.mark.costly
def test_a_misspelt_config_param_is_named_in_the_fix() -> None:
    problem = only(check(service_item(RAG), tool_item(without(TELL_JOKE, "style") | {"colection": "customers"})))
    assert problem.key == "collection"
    assert problem.fix.startswith("rename 'colection' to 'collection'")


def test_a_required_config_param_may_be_null() -> None:
    # TrustGraph asks whether the key is there, and sends what it finds.
    assert read(without(TELL_JOKE, "style") | {"collection": None}, RAG).config == {"collection": None}


@pytest.mark.parametrize(
    ("changes", "key", "fix"),
    [
        ({"read_onyl": True}, "read-onyl", "rename it to 'read-only'"),
        ({"collection": "x"}, "collection", "remove it, or declare it in the service's 'config-params'"),
        ({"styel": "pun"}, "styel", "rename it to 'style'"),
        (
            {"arguments": [{"name": "a", "type": "string", "description": "b", "optional": True}]},
            "arguments[0].optional",
            "remove it",
        ),
    ],
)
def test_an_unknown_key_is_a_warning(changes: dict[str, Any], key: str, fix: str) -> None:
    assert_problem(tool_problem("warning", **changes), key, "ignored", fix)


def test_what_trustgraphs_own_agent_reads_is_known() -> None:
    raw = TELL_JOKE | {"id": "j1", "group": ["default"], "state": "s", "applicable-states": ["*"]}
    assert not check(service_item(), tool_item(raw), severity="warning")


def test_a_key_of_ours_that_the_service_declares_is_the_services() -> None:
    service = JOKE_SERVICE | {"config-params": [{"name": "category", "required": True}]}
    raw = without(TELL_JOKE, "style") | {"category": {"any": "json"}}
    tool = read(raw, service)
    assert (tool.config, tool.category) == ({"category": {"any": "json"}}, None)
    warning = only(check(service_item(service), tool_item(raw), severity="warning"))
    assert_problem(warning, "category", "config param", "rename")


def test_a_key_of_trustgraphs_that_the_service_declares_is_both() -> None:
    tool = read(TELL_JOKE, JOKE_SERVICE | {"config-params": [{"name": "name"}, {"name": "style"}]})
    assert (tool.config, tool.name) == ({"name": "tell-joke", "style": "pun"}, "tell-joke")


@pytest.mark.parametrize("name", ["tell a joke", "scherz-erzählen", "t" * 65, "tools.joke"])
def test_a_name_that_models_refuse_is_a_warning(name: str) -> None:
    assert_problem(tool_problem("warning", name=name), "name", fix="64 letters")


@pytest.mark.parametrize("description", ["", "  "])
def test_an_empty_description_is_a_warning(description: str) -> None:
    assert_problem(tool_problem("warning", description=description), "description", fix="what the tool does")


def test_every_mistake_of_one_descriptor_is_found() -> None:
    raw = {
        "name": 1,
        "arguments": [{"type": "str"}, 2],
        "service": "joke-service",
        "tags": 3,
        "requires": "newest",
        "policy": {"timeout": 0},
        "read-only": True,
        "destructive": True,
    }
    assert {problem.key for problem in check(service_item(RAG), tool_item(raw))} == {
        "type",
        "name",
        "description",
        "collection",
        "arguments[0].name",
        "arguments[0].type",
        "arguments[0].description",
        "arguments[1]",
        "tags",
        "requires",
        "policy.timeout",
        "destructive",
    }


@pytest.mark.parametrize(
    ("key", "name", "version"),
    [
        ("tell-joke", "tell-joke", None),
        ("tell-joke@2.0.0", "tell-joke", "2.0.0"),
        ("tell@joke@2.0.0-rc.1+b", "tell@joke", "2.0.0-rc.1+b"),
        ("tell@joke", "tell@joke", None),
        ("tell-joke@2.0", "tell-joke@2.0", None),
        ("tell-joke@v2.0.0", "tell-joke@v2.0.0", None),
        ("@2.0.0", "@2.0.0", None),
        ("", "", None),
    ],
)
def test_a_version_after_the_last_at_sign_is_split_off(key: str, name: str, version: str | None) -> None:
    assert ItemKey.parse(key) == (name, version)


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


def read_schema_check(schema: dict[str, Any]) -> ToolDescriptor:
    return Catalog.of([JOKE_SERVICE], [BARE | {"input-schema": schema}]).tool("tell-joke")


def test_a_valid_schema_is_used_unchanged() -> None:
    before = copy.deepcopy(SCHEMA)
    tool = read_schema_check(SCHEMA)
    assert thaw(tool.input_schema) == SCHEMA == before
    assert tool.arguments == ()


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_without_arguments(schema: dict[str, Any]) -> None:
    assert read_schema_check(schema).input_schema == schema


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


TOPIC: dict[str, Any] = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}


def test_a_schema_beside_the_same_arguments_counts() -> None:
    tool = Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"input-schema": TOPIC}]).tool("tell-joke")
    assert (thaw(tool.input_schema), tool.arguments) == (TOPIC, ())


def test_arguments_beyond_the_mistakes_of_a_report_are_not_compared_with_the_schema() -> None:
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    wrong = BARE | {"notes": [deep] * 150, "input-schema": TOPIC, "arguments": [5]}
    found = check(service_item(), tool_item(wrong))
    assert len(found) > 100
    assert all(each.key.startswith("notes") for each in found[:100])


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
        ({"properties": ["topic"]}, "properties", "must be an object, not an array", '{"topic": {"type"'),
        (
            {"properties": {"topic": "string"}},
            "properties.topic",
            "must be a boolean or an object, not a string",
            '{"type": "string"}',
        ),
        *(
            ({"properties": {"a": {word: value}}}, f"properties.a.{word}", problem, fix)
            for word, value, problem, fix in (
                ("type", "str", 'or one of the allowed values: "array"', '"string"'),
                ("type", [], "must have at least 1 item", '"string"'),
                ("type", ["string", "string"], "two equal items", '"string"'),
                ("required", True, "must be an array, not a boolean", '["topic"]'),
                ("enum", "x", "must be an array, not a string", '["a", "b"]'),
                ("minLength", -1, "must be at least 0", ": 1"),
                ("maxItems", 1.5, "must be an integer, not a number", ": 1"),
                ("minItems", True, "must be an integer, not a boolean", ": 1"),
                ("minimum", "1", "must be a number, not a string", ": 1"),
                ("exclusiveMinimum", True, "must be a number, not a boolean", ": 1"),
                ("multipleOf", 0, "must be greater than 0", ": 1"),
                ("uniqueItems", 1, "must be a boolean, not an integer", "true"),
                ("pattern", 3, "must be a string, not an integer", "2020-12"),
                ("description", None, "must be a string, not null", "2020-12"),
                ("items", [{}], "must be a boolean or an object, not an array", "prefixItems"),
                ("not", 3, "must be a boolean or an object, not an integer", '{"type": "string"}'),
            )
        ),
        ({"required": ["a", "a"]}, "required", "must not have two equal items", '["topic"]'),
        ({"required": [1]}, "required[0]", "must be a string, not an integer", '["topic"]'),
        ({"anyOf": []}, "anyOf", "must have at least 1 item", '[{"type": "string"}]'),
        ({"allOf": {"type": "object"}}, "allOf", "must be an array, not an object", '[{"type": "string"}]'),
        ({"oneOf": [{"type": "objct"}]}, "oneOf[0].type", "or one of the allowed values", '"string"'),
        ({"$defs": {"a b": 3}}, "$defs['a b']", "an object, not an integer", '{"type": "string"}'),
        ({"dependentRequired": {"a": "b"}}, "dependentRequired.a", "must be an array, not a string", "unit"),
        ({"$ref": {}}, "$ref", "must be a string, not an object", "$ref"),
    ],
)
def test_a_wrong_keyword_has_its_path_and_fix(keywords: dict[str, Any], key: str, problem: str, fix: str) -> None:
    assert_problem(only(check_schema_of("input-schema", keywords)), f"input-schema.{key}", problem, fix)


def test_another_dialect_is_a_warning() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    found = only(check(service_item(), tool_item(BARE | {"input-schema": schema}), severity="warning"))
    assert_problem(found, "input-schema.$schema", fix="2020-12")


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
        ({"$schema": ADDRESS}, "$schema", "nothing is fetched", "https://json-schema.org/draft/2020-12/schema"),
        ({"properties": {"a": {"$ref": "joke.json"}}}, "properties.a.$ref", "not to 'joke.json'", '"$defs"'),
    ],
)
def test_a_reference_to_an_address_is_an_error(
    field: str, keywords: dict[str, Any], key: str, problem: str, fix: str
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
    assert_problem(found, f"{field}.{key}" if key else field, problem, "JSON Schema 2020-12")


@FIELDS
def test_all_mistakes_are_reported_at_once_and_each_once(field: str) -> None:
    properties = {"a": {"type": "str", "required": [1], "$ref": ADDRESS}, "b": {"minLength": -1}}
    found = check_schema_of(field, {"properties": properties, "$anchor": "a b", "required": "a"})
    names = ("a.type", "a.required[0]", "a.$ref", "b.minLength")
    keys = [*(f"properties.{name}" for name in names), "$anchor", "required"]
    assert sorted(each.key for each in found) == sorted(f"{field}.{key}" for key in keys)


def test_an_output_schema_may_be_of_any_type() -> None:
    assert check(service_item(), tool_item(BARE | {"output-schema": {"type": ["string", "null"]}})) == []
    found = only(check(service_item(), tool_item(BARE | {"output-schema": {"type": "text"}})))
    assert found.key == "output-schema.type"


def read_foreign_schemas(
    keys: dict[str, Any], *, is_foreign: bool = True
) -> tuple[ToolDescriptor | None, tuple[Problem, ...]]:
    service = read_service_item(Item("service", "tool-service", "joke", JOKE_SERVICE)).service
    item = Item("server: tool", "tool", "tell-joke", BARE | keys, is_foreign=is_foreign)
    found = read_tool_item(item, {service.id: (service,)})
    return found.tool, found.problems


def schema_of(schema: dict[str, Any]) -> tuple[Any, tuple[Problem, ...]]:
    tool, problems = read_foreign_schemas({"input-schema": schema})
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
    properties = {"a": {"type": "string", "pattern": pattern}}
    place = {"properties": properties, "patternProperties": {pattern: {"type": "null"}}}
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
    schema = {"type": "array", "items": [{"type": "integer"}], "minItems": "1"}
    tool, problems = read_foreign_schemas({"output-schema": schema})
    assert tool.output_schema == {"type": "array", "prefixItems": ({"type": "integer"},)}
    assert [each.key for each in problems if each.severity == "warning"] == ["output-schema.minItems"]


def test_an_own_descriptor_names_its_dialect() -> None:
    old = {"type": "object", "properties": {"a": {"items": [{}]}}}
    tool, problems = read_foreign_schemas({"input-schema": old}, is_foreign=False)
    assert tool is None
    named = {"$schema": "http://json-schema.org/draft-07/schema#", **old}
    tool, problems = read_foreign_schemas({"input-schema": named}, is_foreign=False)
    assert tool.input_schema["properties"] == {"a": {"prefixItems": ({},)}}
    assert [(each.key, each.severity) for each in problems] == [("input-schema.$schema", "warning")]
    assert "are translated" in problems[0].problem


def read_service(raw: dict[str, Any]) -> ServiceDescriptor:
    (service,) = Catalog.of([raw]).services.values()
    return service


def test_the_service_of_trustgraphs_specification() -> None:
    assert read_service(JOKE_SERVICE) == ServiceDescriptor(
        id="joke-service",
        request_queue=REQUESTS,
        response_queue=RESPONSES,
        config_params=(ConfigParam("style", required=False),),
    )


@pytest.mark.parametrize("params", [{}, {"config-params": []}, {"config-params": None}])
def test_config_params_may_be_absent_or_empty(params: dict[str, Any]) -> None:
    assert read_service(without(JOKE_SERVICE, "config-params") | params).config_params == ()


def test_all_keys_of_a_service() -> None:
    service = read_service(
        JOKE_SERVICE
        | {
            "config-params": [{"name": "collection", "required": True}, {"name": "style"}],
            "instances": [
                {"id": "joke-1", **topics_of("joke-1"), "weight": 2.5, "version": "1.5.0"},
                {"id": "joke-2", "request-queue": "request:tg:joke-2"},
            ],
            "version": "1.4.0-rc.1",
            "policy": {"timeout": 5},
            "permissions": ["tools:jokes", "tools:fun"],
        }
    )
    assert service.config_params == (ConfigParam("collection", True), ConfigParam("style", False))
    assert service.instances == (
        Instance("joke-1", "non-persistent://tg/request/joke-1", "non-persistent://tg/response/joke-1", 2.5, "1.5.0"),
        Instance("joke-2", "non-persistent://tg/request/joke-2", "non-persistent://tg/response/joke", 1, "1.4.0-rc.1"),
    )
    assert (service.version, service.policy) == ("1.4.0-rc.1", {"timeout": 5})
    assert service.permissions == ("tools:jokes", "tools:fun")


def test_the_short_form_of_a_topic_is_expanded() -> None:
    service = read_service(JOKE_SERVICE | {"request-queue": "request:tg:joke", "response-queue": "response:tg:joke"})
    assert (service.request_queue, service.response_queue) == (REQUESTS, RESPONSES)


def test_a_misspelt_key_is_named_in_the_fix_of_the_missing_one() -> None:
    raw = without(JOKE_SERVICE, "request-queue") | {"request_queue": "non-persistent://tg/request/joke"}
    problem = only(check(service_item(raw)))
    assert problem.key == "request-queue"
    assert problem.fix.startswith("rename 'request_queue' to 'request-queue'")


def test_no_id_at_all() -> None:
    assert_problem(only(check(service_item(without(JOKE_SERVICE, "id"), key=""))), "id", fix='add "id"')


@pytest.mark.parametrize(
    ("changes", "key", "problem", "fix"),
    [
        ({"id": 7}, "id", "'id' is a number, not a text", 'write "id": "joke-service"'),
        ({"id": " "}, "id", "'id' is empty", 'write "id": "joke-service"'),
        ({"id": "joke "}, "id", "has blanks around it", 'write "id": "joke"'),
        ({"id": "jo\x1bke"}, "id", "a control character", "use letters"),
        ({"id": "j" * 257}, "id", "257 characters", "at most 256"),
        ({"request_queue": None}, "request-queue", "is null", 'add "request-queue"'),
        ({"request_queue": ["a"]}, "request-queue", "is a list, not a text", REQUESTS),
        ({"request_queue": ""}, "request-queue", "is empty", REQUESTS),
        ({"request_queue": "joke"}, "request-queue", "'joke' is no whole topic name", REQUESTS),
        ({"response_queue": "tcp://a/b/c"}, "response-queue", "'tcp' is no scheme", RESPONSES),
        ({"response_queue": "persistent://tg/x"}, "response-queue", "is not of the form", "all three parts"),
        ({"response_queue": REQUESTS}, "request-queue", "the same topic", f"'{RESPONSES}'"),
        ({"config_params": {}}, "config-params", "an object, not a list", '[{"name": "style"'),
        ({"config_params": ["style"]}, "config-params[0]", "'style' instead of an object", '{"name": "style"'),
        ({"config_params": [{"required": True}]}, "config-params[0].name", "is missing", 'add "name"'),
        (
            {"config_params": [{"name": "a", "required": "yes"}]},
            "config-params[0].required",
            "a text, not true or false",
            '"required": true',
        ),
        (
            {"config_params": [{"name": "a"}, {"name": "a"}]},
            "config-params[1].name",
            "'a' is declared twice",
            "remove one",
        ),
        ({"instances": 2}, "instances", "a number, not a list", '[{"id": "joke-1"'),
        ({"instances": [2]}, "instances[0]", "2 instead of an object", '{"id": "joke-1"'),
        ({"version": "1.4"}, "version", "'1.4' is not a SemVer version", '"version": "1.4.0"'),
        ({"version": 1.4}, "version", "a number, not a text", '"version": "1.4.0"'),
    ],
)
def test_an_error_in_a_service_has_its_key_and_fix(changes: dict[str, Any], key: str, problem: str, fix: str) -> None:
    assert_problem(service_problem(**changes), key, problem, fix)


@pytest.mark.parametrize(
    ("instance", "key", "problem", "fix"),
    [
        ({"id": None}, "instances[1].id", "null", 'add "id"'),
        ({"id": "joke-1"}, "instances[1].id", "'joke-1' is not unique", "its own id"),
        ({"request-queue": None}, "instances[1].request-queue", "null", "non-persistent://tg/request/joke-1"),
        ({"request-queue": "joke-2"}, "instances[1].request-queue", "no whole topic name", "joke-1"),
        ({"request-queue": "response:tg:joke"}, "instances[1].request-queue", "the same topic", "two topics"),
        ({"response-queue": "x:y:z"}, "instances[1].response-queue", "'x' is no queue class", "response/joke-1"),
        ({"weight": 0}, "instances[1].weight", "0 is not above 0", "remove it"),
        ({"weight": -0.5}, "instances[1].weight", "-0.5 is not above 0", "remove it"),
        ({"weight": "2"}, "instances[1].weight", "a text, not a number", '"weight": 1'),
        ({"weight": True}, "instances[1].weight", "true, not a number", '"weight": 1'),
    ],
)
def test_an_error_in_an_instance(instance: dict[str, Any], key: str, problem: str, fix: str) -> None:
    first = {"id": "joke-1", "request-queue": "request:tg:joke-1", "response-queue": "response:tg:joke-1"}
    second = {"id": "joke-2", "request-queue": "request:tg:joke-2", "response-queue": "response:tg:joke-2"}
    assert_problem(service_problem(instances=[first, second | instance]), key, problem, fix)


def test_two_instances_on_one_topic_are_worth_a_warning() -> None:
    instances = [{"id": "a", "request-queue": "request:tg:x"}, {"id": "b", "request-queue": "request:tg:x"}]
    found = service_problem("warning", instances=instances)
    assert_problem(found, "instances[1].request-queue", "the same topic as instance 'a'", "topic of its own")


def test_an_instance_may_share_the_services_own_queue() -> None:
    raw = JOKE_SERVICE | {"instances": [{"id": "a", "request-queue": "non-persistent://tg/request/joke"}]}
    assert read_service(raw).instances[0].request_queue == "non-persistent://tg/request/joke"


@pytest.mark.parametrize(
    ("changes", "key", "fix"),
    [
        ({"versoin": "1.0.0"}, "versoin", "rename it to 'version'"),
        ({"colour": "red"}, "colour", "remove it"),
        ({"config_params": [{"name": "a", "default": 1}]}, "config-params[0].default", "remove it"),
        ({"instances": [{"id": "a", "request-queue": "request:tg:a", "wieght": 2}]}, "instances[0].wieght", "'weight'"),
    ],
)
def test_an_unknown_key_of_a_service_is_a_warning(changes: dict[str, Any], key: str, fix: str) -> None:
    assert_problem(service_problem("warning", **changes), key, "ignored", fix)


def test_a_description_is_a_note_to_people() -> None:
    assert not check(service_item(JOKE_SERVICE | {"description": "tells jokes"}), severity="warning")


def test_an_id_other_than_the_items_key_is_worth_a_note() -> None:
    assert_problem(only(check(service_item(key="jokes"), severity="info")), "id", "'jokes'")


def test_every_mistake_of_one_service_is_found() -> None:
    raw = {
        "id": 1,
        "request-queue": "x",
        "config-params": [3, {"name": "a", "required": 1}],
        "instances": [{"weight": 0}],
        "version": "one",
        "policy": {"timeout": 0, "colour": "red"},
    }
    assert [problem.key for problem in check(service_item(raw))] == [
        "id",
        "request-queue",
        "response-queue",
        "config-params[0]",
        "config-params[1].required",
        "instances[0].id",
        "instances[0].request-queue",
        "instances[0].weight",
        "version",
        "policy.timeout",
        "policy.colour",
    ]


@pytest.mark.parametrize(
    ("policy", "key", "problem", "fix"),
    [
        ({"timeout": -1}, "policy.timeout", "out of range", "seconds"),
        ({"timeout": "10"}, "policy.timeout", "not a number", "seconds"),
        ({"time-out": 10}, "policy.time-out", "unknown key", "did you mean 'timeout'?"),
        ({"a.b": 10}, "policy.a.b", "unknown key", "known keys"),
        ({"max-response-bytes": 0}, "policy.max-response-bytes", "0", "≥ 1"),
        (10, "policy", "'policy' is a number, not an object", '{"timeout": 10}'),
    ],
)
def test_a_bad_policy_of_a_service_or_of_a_tool(policy: object, key: str, problem: str, fix: str) -> None:
    for found in (service_problem(policy=policy), tool_problem(policy=policy)):
        assert_problem(found, key, problem, fix)


def test_a_long_value_is_not_repeated_whole() -> None:
    assert len(tool_problem(policy={"timeout": "9" * 100_000}).problem) <= 200


def test_a_policy_mistake_at_no_key_of_the_descriptor_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(raw: object, base: object, *_: object) -> None:
        raise PolicyError("together", "these do not go together", "change one")

    monkeypatch.setattr("dispatch.catalog.items.parse_policy", refuse)
    problem = service_problem(policy={"timeout": 1})
    assert (problem.key, problem.fix) == ("policy.together", "change one")


def test_a_tool_is_still_checked_when_its_services_policy_is_bad() -> None:
    wrong = {"policy": {"timeout": 0}}
    problems = check(service_item(JOKE_SERVICE | wrong), tool_item(TELL_JOKE | wrong))
    found = [(problem.file, problem.key) for problem in problems]
    assert found == [("tool-service/joke-service.json", "policy.timeout"), ("tool/tell-joke.json", "policy.timeout")]
