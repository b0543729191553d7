"""Texts of TrustGraph's configuration as items: what TrustGraph's agent accepts, the reader of descriptors accepts, too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.catalog import Catalog, Problem, check_items
from dispatch.trustgraph.config import read_config_item
from tests.helpers.followed_config import SERVICE, TOOL

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["id", "type", "name", "description", "service", "arguments", "config-params", "request-queue", "required"]
OBJECTS = st.dictionaries(st.sampled_from(KEYS), JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON)))


def read(kind: str, key: str, raw: object) -> Any:
    return read_config_item("tg", "default", kind, key, raw if isinstance(raw, str) else json.dumps(raw)).raw


def load(service: dict[str, Any], tool: dict[str, Any]) -> tuple[Catalog | None, list[Problem]]:
    return check_items(
        read_config_item("tg", "default", kind, key, json.dumps(raw))
        for kind, key, raw in (("tool-service", "joke-service", service), ("tool", "tell-joke", tool))
    )


def test_origin_names_the_place() -> None:
    item = read_config_item("tg", "crm", "tool", "find", "{}", "crm")
    assert (item.origin, item.kind, item.key, item.namespace) == ("tg:crm/tool/find", "tool", "find", "crm")


@pytest.mark.parametrize("id", ["another", None, 7])
def test_tools_refer_to_the_key_of_a_service(id: object) -> None:
    catalog, _ = load(SERVICE | {"id": id}, TOOL)
    assert catalog is not None
    assert list(catalog.services) == ["joke-service"]
    catalog, _ = load({key: value for key, value in SERVICE.items() if key != "id"}, TOOL)
    assert catalog is not None


def test_a_key_with_a_version_is_a_version_of_the_service() -> None:
    texts = {
        ("tool-service", "joke-service"): SERVICE,
        ("tool-service", "joke-service@2.0.0"): SERVICE,
        ("tool", "tell-joke"): TOOL,
        ("tool", "new"): TOOL | {"name": "new", "service": "joke-service@2.0.0"},
        ("tool", "any"): TOOL | {"name": "any", "service": "joke-service@2.0.0", "requires": "*"},
    }
    catalog, problems = check_items(
        read_config_item("tg", "default", kind, key, json.dumps(raw)) for (kind, key), raw in texts.items()
    )
    assert catalog is not None, problems
    assert [each.version for each in catalog.service_versions("joke-service")] == ["2.0.0", None]
    assert [(tool.service, tool.requires) for tool in catalog.tools.values()] == [
        ("joke-service", None),
        ("joke-service", "2.0.0"),
        ("joke-service", "*"),
    ]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (["style", "length"], [("style", False), ("length", False)]),
        (["style", {"name": "length", "required": True}], [("style", False), ("length", True)]),
        ([{"name": "style", "required": 1}], [("style", True)]),
        (["style", {"name": "style", "required": True}, "style"], [("style", True)]),
    ],
)
def test_config_params_as_texts_and_repeated(params: list[Any], expected: list[tuple[str, bool]]) -> None:
    catalog, _ = load(SERVICE | {"config-params": params}, TOOL | {"style": "pun", "length": 3})
    assert catalog is not None
    assert [(param.name, param.required) for param in catalog.services["joke-service"].config_params] == expected
    assert dict(catalog.tools["tell-joke"].config) == {
        name: {"style": "pun", "length": 3}[name] for name, _ in expected
    }


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [
        ("string", "string"),
        (None, "string"),
        ("", "string"),
        ("number", "number"),
        ("int", "integer"),
        (" Text", "string"),
    ],
)
def test_type_and_description_of_an_argument_may_be_missing(given_type: str | None, expected: str) -> None:
    argument = {"name": "topic"} | ({} if given_type is None else {"type": given_type})
    tool = {key: value for key, value in TOOL.items() if key != "description"}
    catalog, _ = load(SERVICE, tool | {"arguments": [argument]})
    assert catalog is not None
    (read_argument,) = catalog.tools["tell-joke"].arguments
    assert (read_argument.name, read_argument.type, read_argument.description) == ("topic", expected, "")
    assert catalog.tools["tell-joke"].description == ""


def test_an_unknown_type_of_an_argument_is_a_text_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    raw = read("tool", "tell-joke", TOOL | {"arguments": [{"name": "on", "type": "date"}]})
    assert raw["arguments"] == [{"name": "on", "type": "string", "description": ""}]
    assert "tg:default/tool/tell-joke: arguments[0].type: the argument type 'date' is unknown" in caplog.text


def test_a_tool_of_another_type_is_not_changed() -> None:
    raw = {"type": "mcp-tool", "name": "weather", "mcp-tool": "weather", "arguments": [{"name": "city"}]}
    assert read("tool", "weather", raw) == raw


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        ("hello", "the descriptor is a text, not an object"),
        ("", "the descriptor is a text, not an object"),
        ("7", "the descriptor is a number, not an object"),
    ],
)
def test_a_text_that_is_no_object_is_refused(text: str, problem: str) -> None:
    for kind in ("tool", "tool-service"):
        _, problems = check_items([read_config_item("tg", "default", kind, "key", text)])
        assert [(each.file, each.problem) for each in problems] == [(f"tg:default/{kind}/key", problem)]


@given(kind=st.sampled_from(["tool", "tool-service"]), raw=OBJECTS | JSON)
def test_no_text_raises_an_exception(kind: str, raw: Any) -> None:
    for text in (json.dumps(raw), str(raw)):
        check_items([read_config_item("tg", "default", kind, "key", text)])
