from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from dispatch.catalog import Catalog
from dispatch.catalog.catalog import fingerprint, service_fingerprint
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, without

INSTANCE = {"id": "a", "request-queue": "request:tg:a", "response-queue": "response:tg:a"}


def tool_print(service: dict[str, Any] = JOKE_SERVICE, **changes: Any) -> str:
    raw = TELL_JOKE | {key.replace("_", "-"): value for key, value in changes.items()}
    catalog = Catalog.of([service], [raw])
    (tool,) = catalog.tools.values()
    return fingerprint(tool, catalog.service_of(tool))


def service_print(**changes: Any) -> str:
    (service,) = Catalog.of(
        [JOKE_SERVICE | {key.replace("_", "-"): value for key, value in changes.items()}]
    ).services.values()
    return service_fingerprint(service)


def test_it_is_the_hash_of_the_canonical_json() -> None:
    # Written out, because stored approvals must stay valid over releases.
    text = (
        '{"arguments":[{"description":"The topic for the joke","name":"topic","required":null,"type":"string"}],'
        '"config":{"style":"Wörtspiel"},"description":"Tell a joke on a given topic","input-schema":null,'
        '"name":"tell-joke","output-schema":null,"service":{"id":"joke-service",'
        '"request-queue":"non-persistent://tg/request/joke","response-queue":"non-persistent://tg/response/joke"},'
        '"version":null}'
    )
    assert tool_print(style="Wörtspiel") == hashlib.sha256(text.encode()).hexdigest()


def test_the_order_of_keys_and_the_source_of_a_value_do_not_matter() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
    other = {"properties": {"b": {"type": "number"}, "a": {"type": "string"}}, "type": "object"}
    assert tool_print(output_schema=schema) == tool_print(output_schema=other)
    assert tool_print() == tool_print(JOKE_SERVICE | {"request-queue": "request:tg:joke"})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "tell-jokes"},
        {"description": "Tell a joke on a given topic."},
        {"arguments": []},
        {"arguments": [{"name": "topic", "type": "string", "description": "Another text"}]},
        {"arguments": [{"name": "topic", "type": "string", "description": "The topic for the joke", "required": True}]},
        {"output_schema": {"type": "string"}},
        {"style": "limerick"},
        {"style": None},
        {"version": "1.0.0"},
    ],
)
def test_a_changed_definition_has_another_fingerprint(changes: dict[str, Any]) -> None:
    assert tool_print(**changes) != tool_print()


def test_another_input_schema_has_another_fingerprint() -> None:
    raw = without(TELL_JOKE, "arguments")
    prints = set()
    for schema in ({"type": "object"}, {"type": "object", "properties": {}}):
        catalog = Catalog.of([JOKE_SERVICE], [raw | {"input-schema": schema}])
        prints.add(fingerprint(catalog.tool("tell-joke"), catalog.service("joke-service")))
    assert len(prints) == 2


@pytest.mark.parametrize("key", ["request-queue", "response-queue"])
def test_other_topics_of_the_service_are_another_definition(key: str) -> None:
    assert tool_print(JOKE_SERVICE | {key: "non-persistent://evil/request/joke"}) != tool_print()


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"timeout": 5}},
        {"permissions": ["tools:jokes"]},
        {"category": "fun"},
        {"tags": ["fun"]},
        {"author": "us"},
        {"group": ["a"]},
        {"read_only": True},
        {"requires": "*"},
        {"rollout": {"2.0.0": 5}},
    ],
)
def test_keys_of_the_operator_leave_the_fingerprint_unchanged(changes: dict[str, Any]) -> None:
    assert tool_print(JOKE_SERVICE | {"version": "1.0.0"}, **changes) == tool_print()


def test_instances_belong_to_the_fingerprint_of_the_service_alone() -> None:
    assert tool_print(JOKE_SERVICE | {"instances": [INSTANCE]}) == tool_print()
    assert service_print(instances=[INSTANCE]) != service_print()
    assert service_print(instances=[INSTANCE | {"response-queue": "response:evil:a"}]) != service_print(
        instances=[INSTANCE]
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "jokes"},
        {"request_queue": "request:evil:joke"},
        {"response_queue": "response:evil:joke"},
        {"config_params": []},
        {"config_params": [{"name": "style", "required": True}]},
        {"version": "1.0.0"},
    ],
)
def test_a_changed_service_has_another_fingerprint(changes: dict[str, Any]) -> None:
    assert service_print(**changes) != service_print()


def test_the_weight_and_the_policy_leave_the_fingerprint_of_a_service_unchanged() -> None:
    assert service_print(policy={"timeout": 5}, permissions=["a"]) == service_print()
    assert service_print(instances=[INSTANCE | {"weight": 3}]) == service_print(instances=[INSTANCE])


def test_equal_descriptors_have_one_fingerprint() -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE])
    tool, service = catalog.tool("tell-joke"), catalog.service("joke-service")
    copy = msgspec.structs.replace(tool, config=dict(tool.config))
    assert fingerprint(copy, service) == fingerprint(tool, service) == tool_print()
    assert len(tool_print()) == 64
