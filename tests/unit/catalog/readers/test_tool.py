from __future__ import annotations

from typing import Any

import pytest

from dispatch.catalog import ARGUMENT_TYPES, Argument, Catalog, ToolDescriptor
from dispatch.documents import thaw
from tests.helpers.catalog_items import (
    JOKE_SERVICE,
    TELL_JOKE,
    check,
    only,
    service_item,
    tool_item,
    tool_problem,
    without,
)

RAG = JOKE_SERVICE | {"config-params": [{"name": "collection", "required": True}]}


def read(raw: dict[str, Any], service: dict[str, Any] = JOKE_SERVICE) -> ToolDescriptor:
    (tool,) = Catalog.of([service], [raw]).tools.values()
    return tool


def test_the_descriptor_of_trustgraphs_specification() -> None:
    assert read(TELL_JOKE) == ToolDescriptor(
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
    assert tool.policy == {"timeout": 5}
    assert tool.category == "fun"
    assert tool.tags == ("text", "short")
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


@pytest.mark.parametrize("key", ["description", "service", "type"])
def test_a_missing_key(key: str) -> None:
    problem = only(check(service_item(), tool_item(without(TELL_JOKE, key))))
    assert (problem.file, problem.key) == ("tool/tell-joke.json", key)
    assert f"'{key}' is missing" in problem.problem
    assert f'add "{key}": "' in problem.fix


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
        ({"read_only": "true"}, "read-only", "a text, not true or false", '"read-only": true'),
        ({"idempotent": 1}, "idempotent", "a number, not true or false", '"idempotent": true'),
        ({"destructive": []}, "destructive", "a list, not true or false", '"destructive": true'),
        ({"read_only": True, "destructive": True}, "destructive", "contradict", "remove the wrong one"),
    ],
)
def test_an_error_has_its_key_and_fix(changes: dict[str, Any], key: str, problem: str, fix: str) -> None:
    found = tool_problem(**changes)
    assert found.key == key
    assert problem in found.problem
    assert fix in found.fix


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
    assert found.key == key
    assert problem in found.problem
    assert fix in found.fix


def test_a_required_config_param_that_a_tool_lacks() -> None:
    problem = only(check(service_item(RAG), tool_item(without(TELL_JOKE, "style"))))
    assert (problem.file, problem.key) == ("tool/tell-joke.json", "collection")
    assert "'joke-service' requires a value for its config param 'collection'" in problem.problem
    assert 'add "collection"' in problem.fix


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
        ({"collection": "x"}, "collection", "remove it"),
        ({"styel": "pun"}, "styel", "rename it to 'style'"),
        (
            {"arguments": [{"name": "a", "type": "string", "description": "b", "optional": True}]},
            "arguments[0].optional",
            "remove it",
        ),
    ],
)
def test_an_unknown_key_is_a_warning(changes: dict[str, Any], key: str, fix: str) -> None:
    found = tool_problem("warning", **changes)
    assert found.key == key
    assert "ignored" in found.problem
    assert fix in found.fix


def test_what_trustgraphs_own_agent_reads_is_known() -> None:
    raw = TELL_JOKE | {"id": "j1", "group": ["default"], "state": "s", "applicable-states": ["*"]}
    assert not check(service_item(), tool_item(raw), severity="warning")


def test_a_key_of_ours_that_the_service_declares_is_the_services() -> None:
    service = JOKE_SERVICE | {"config-params": [{"name": "category", "required": True}]}
    raw = without(TELL_JOKE, "style") | {"category": {"any": "json"}}
    tool = read(raw, service)
    assert tool.config == {"category": {"any": "json"}}
    assert tool.category is None
    warning = only(check(service_item(service), tool_item(raw), severity="warning"))
    assert warning.key == "category"
    assert "config param" in warning.problem
    assert "rename" in warning.fix


def test_a_key_of_trustgraphs_that_the_service_declares_is_both() -> None:
    tool = read(TELL_JOKE, JOKE_SERVICE | {"config-params": [{"name": "name"}, {"name": "style"}]})
    assert tool.config == {"name": "tell-joke", "style": "pun"}
    assert tool.name == "tell-joke"


@pytest.mark.parametrize("name", ["tell a joke", "scherz-erzählen", "t" * 65, "tools.joke"])
def test_a_name_that_models_refuse_is_a_warning(name: str) -> None:
    found = tool_problem("warning", name=name)
    assert found.key == "name"
    assert "64 letters" in found.fix


@pytest.mark.parametrize("description", ["", "  "])
def test_an_empty_description_is_a_warning(description: str) -> None:
    found = tool_problem("warning", description=description)
    assert found.key == "description"
    assert "what the tool does" in found.fix


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
