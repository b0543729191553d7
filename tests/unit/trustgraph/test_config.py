"""The source on the embedded broker: what it fetches when, and what it makes of it.
Texts of TrustGraph's configuration as items: what TrustGraph's agent accepts, the reader of descriptors accepts, too.
Messages of the config service: exactly TrustGraph's dataclasses as JSON, and whatever decodes as one.
Writes: every one touches both types, so that TrustGraph's agents reload completely.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from typing import Any

import msgspec
import pytest
import trustgraph.schema as published
from hypothesis import given
from hypothesis import strategies as st
from trustgraph.base.serialization import dataclass_to_dict, dict_to_dataclass

import dispatch
from dispatch import CatalogError
from dispatch.catalog import Catalog, Problem, check_items
from dispatch.messaging.wire import ErrorInfo
from dispatch.trustgraph.config import (
    LARGE_BYTES,
    POLL_S,
    TIMEOUT_S,
    ConfigBroker,
    ConfigKey,
    ConfigPush,
    ConfigRequest,
    ConfigResponse,
    ConfigServiceError,
    ConfigTopics,
    ConfigValue,
    MalformedConfigMessageError,
    WorkspaceChanges,
    decode_message,
    read_config_item,
)
from tests.helpers.config_service import ConfigService
from tests.helpers.followed_config import SERVICE, TOOL, following, settle

FETCH = [("getvalues", "tool"), ("getvalues", "tool-service")]


async def test_fetches_both_types_once_at_the_start() -> None:
    async with following() as (service, _, _, follower):
        assert service.operations == FETCH
        assert follower.keys == [("tool-service", "joke-service"), ("tool", "tell-joke")]
        assert [item.namespace for item in follower.items] == ["", ""]
        assert follower.items[1].origin == "trustgraph:default/tool/tell-joke"


@pytest.mark.parametrize("kind", ["tool", "tool-service"])
async def test_fetches_both_types_after_a_notification_for_either(kind: str) -> None:
    async with following() as (service, store, _, follower):
        service.requests.clear()
        store.write(kind, "new", {})
        service.push({kind: ["default"]})
        await settle()
        assert service.operations == FETCH
        assert (kind, "new") in follower.keys


@pytest.mark.parametrize(
    ("version", "changes"),
    [*((version, {"prompt": ["default"]}) for version in (0, 1, 3, 100)), (None, {})],  # {}: the service has started
)
async def test_fetches_when_the_version_is_another_one(version: int | None, changes: dict[str, list[str]]) -> None:
    async with following() as (service, store, _, follower):
        store.texts.clear()
        store.version = store.version if version is None else version
        service.push(changes)
        await settle()
        assert follower.keys == []


async def test_a_notification_without_news_causes_no_fetch() -> None:
    async with following() as (service, _, _, follower):
        service.push({"prompt": ["default"]})
        await settle()
        assert follower.fetches == 1


async def test_an_unreadable_notification_causes_a_fetch() -> None:
    async with following() as (service, _, _, follower):
        service.send_notification(b"\xff")
        await settle()
        assert follower.fetches == 2


async def test_fetches_when_the_connection_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following() as (_, store, _, follower):
        loop = asyncio.get_running_loop()
        lost_at = loop.time() + 1.5
        back_at = lost_at + 4
        # The embedded broker is never lost: the connection says so of itself.
        monkeypatch.setattr(ConfigBroker, "is_connected", property(lambda _: not lost_at <= loop.time() < back_at))
        monkeypatch.setattr(
            ConfigBroker, "was_disconnected_since", lambda _, instant: instant < back_at and loop.time() >= lost_at
        )
        store.write("tool", "new", {})
        await asyncio.sleep(5)
        assert follower.fetches == 1
        await asyncio.sleep(2)
        assert follower.fetches == 2
        assert ("tool", "new") in follower.keys
        await asyncio.sleep(POLL_S - 3)
        assert follower.fetches == 2


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 24.0), (0.5, 30.0), (1.0, 36.0)])
async def test_polls_are_spread(share: float, seconds: float) -> None:
    async with following(randomness=lambda: share) as (_, store, _, follower):
        store.write("tool", "new", {})  # its notification is lost
        await asyncio.sleep(seconds - 0.5)
        assert follower.fetches == 1
        await asyncio.sleep(1)
        assert follower.fetches == 2
        assert ("tool", "new") in follower.keys


async def test_an_unchanged_item_is_the_same_object() -> None:
    async with following() as (service, store, _, follower):
        former = follower.items
        store.write("tool", "tell-joke", TOOL | {"description": "Tell a better joke"})
        service.push({"tool": ["default"]})
        await settle()
        assert follower.items[0] is former[0]
        assert follower.items[1] != former[1]


async def test_all_workspaces_each_under_its_own_namespace() -> None:
    async with following(workspace="*", namespace="acme") as (service, store, _, follower):
        store.write("tool", "find", TOOL, "crm")
        store.write("tool-service", "joke-service", SERVICE, "__template__")
        service.push({"tool": ["crm"]})
        await settle()
        found = [f"{item.namespace}/{item.key}" for item in follower.items]
        assert found == ["acme-crm/find", "acme-default/joke-service", "acme-default/tell-joke"]
        assert {each["workspace"] for each in service.requests} == {"", "crm", "default"}


async def test_a_write_between_the_two_types_causes_another_fetch() -> None:
    async with following() as (service, store, source, _):
        perform = service._perform
        written = iter([True])

        def write_between(**request: Any) -> dict[str, Any]:
            if request["type"] == "tool-service" and next(written, False):
                store.write("tool", "new", {})
            return perform(**request)

        service._perform = write_between  # type: ignore[method-assign]
        service.requests.clear()
        assert ("tool", "new") in [(item.kind, item.key) for item in await source.discover()]
        assert service.operations == FETCH * 2


async def test_a_lost_read_is_sent_again() -> None:
    async with following() as (service, _, source, _):
        service.is_silent = True
        reading = asyncio.create_task(source.get("tool", "tell-joke"))
        await asyncio.sleep(0.5)
        service.is_silent = False
        service.requests.clear()
        assert await reading == TOOL
        assert service.operations == [("get", "tool")]


async def test_a_large_configuration_is_decoded_in_a_thread() -> None:
    async with following() as (service, store, source, _):
        store.write("tool", "large", "x" * LARGE_BYTES)
        assert len(await source.discover()) == 3
        service.refusal = {"type": "config-error", "message": "x" * LARGE_BYTES}
        with pytest.raises(ConfigServiceError, match="config-error"):
            await source.discover()


async def test_an_unreadable_response_is_reported() -> None:
    async with following() as (service, _, source, _):
        service.refusal = "not an object"  # type: ignore[assignment]
        with pytest.raises(ConfigServiceError, match="answered 'getvalues' with an unreadable response") as caught:
            await source.discover()
        assert caught.value.type == "bad-response"


async def test_a_service_that_does_not_answer_is_an_error_and_its_items_return() -> None:
    async with following(is_running=False) as (service, _, _, follower):
        await asyncio.sleep(TIMEOUT_S)
        (error,) = follower.errors
        assert isinstance(error, ConfigServiceError)
        assert (error.type, error.operation) == ("no-response", "getvalues")
        assert "did not answer 'getvalues' within 5 s" in str(error)
        await service.start()  # it sends a notification
        await settle()
        await asyncio.sleep(2)
        assert follower.keys == [("tool-service", "joke-service"), ("tool", "tell-joke")]


async def test_the_error_of_a_response_is_reported() -> None:
    async with following() as (service, _, source, _):
        service.refusal = {"type": "config-error", "message": "no such keyspace"}
        problem = r"refused 'getvalues' \(config-error: no such keyspace\)"
        with pytest.raises(ConfigServiceError, match=problem) as caught:
            await source.discover()
        assert caught.value.type == "config-error"


@pytest.mark.parametrize("workspace", ["", "_", "__template__"])
def test_a_reserved_workspace_is_refused(workspace: str) -> None:
    with pytest.raises(ValueError, match="is not a workspace with tools"):
        dispatch.TrustGraphConfig(workspace)


def test_topics_are_configurable() -> None:
    topics = dispatch.TrustGraphConfig("crm", topics=ConfigTopics.of_workspace("crm")).topics
    names = ("request/config:crm", "response/config:crm", "notify/config")
    assert topics == ConfigTopics(*(f"non-persistent://tg/{name}" for name in names))


async def test_a_source_without_a_broker_says_so() -> None:
    with pytest.raises(RuntimeError, match="not connected"):
        await dispatch.TrustGraphConfig().discover()
    with pytest.raises(RuntimeError, match="not connected"):
        await anext(dispatch.TrustGraphConfig().changes())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["id", "type", "name", "description", "service", "arguments", "config-params", "request-queue", "required"]
OBJECTS = st.dictionaries(st.sampled_from(KEYS), JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON)))


def read(kind: str, key: str, raw: object) -> Any:
    return read_config_item("tg", "default", kind, key, raw if isinstance(raw, str) else json.dumps(raw)).raw


def check_texts(texts: dict[tuple[str, str], dict[str, Any]]) -> tuple[Catalog | None, list[Problem]]:
    items = (read_config_item("tg", "default", kind, key, json.dumps(raw)) for (kind, key), raw in texts.items())
    return check_items(items)


def load(service: dict[str, Any], tool: dict[str, Any]) -> tuple[Catalog | None, list[Problem]]:
    return check_texts({("tool-service", "joke-service"): service, ("tool", "tell-joke"): tool})


def test_origin_names_the_place() -> None:
    item = read_config_item("tg", "crm", "tool", "find", "{}", "crm")
    assert (item.origin, item.kind, item.key, item.namespace) == ("tg:crm/tool/find", "tool", "find", "crm")


@pytest.mark.parametrize("id", ["another", None, 7])
def test_tools_refer_to_the_key_of_a_service(id: object) -> None:
    catalog, _ = load(SERVICE | {"id": id}, TOOL)
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
    catalog, problems = check_texts(texts)
    assert catalog is not None, problems
    assert [each.version for each in catalog.service_versions("joke-service")] == ["2.0.0", None]
    assert {tool.service for tool in catalog.tools.values()} == {"joke-service"}
    assert [tool.requires for tool in catalog.tools.values()] == [None, "2.0.0", "*"]


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
    assert [(param.name, param.required) for param in catalog.services["joke-service"].config_params] == expected
    given = {"style": "pun", "length": 3}
    assert dict(catalog.tools["tell-joke"].config) == {name: given[name] for name, _ in expected}


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [*((each, "string") for each in ("string", None, "", " Text")), ("number", "number"), ("int", "integer")],
)
def test_type_and_description_of_an_argument_may_be_missing(given_type: str | None, expected: str) -> None:
    argument = {"name": "topic"} | ({} if given_type is None else {"type": given_type})
    tool = {key: value for key, value in TOOL.items() if key != "description"}
    catalog, _ = load(SERVICE, tool | {"arguments": [argument]})
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


@pytest.mark.costly
@given(kind=st.sampled_from(["tool", "tool-service"]), raw=OBJECTS | JSON)
def test_no_text_raises_an_exception(kind: str, raw: Any) -> None:
    for text in (json.dumps(raw), str(raw)):
        check_items([read_config_item("tg", "default", kind, "key", text)])


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
KEYS_MESSAGES = st.builds(ConfigKey, type=TEXTS, key=TEXTS)
VALUES = st.builds(ConfigValue, type=TEXTS, key=TEXTS, value=st.none() | TEXTS, workspace=TEXTS)
TUPLES = st.lists(VALUES, max_size=3).map(tuple)
NAMES = st.lists(TEXTS, max_size=3).map(tuple)
REQUESTS = st.builds(
    ConfigRequest,
    operation=TEXTS,
    workspace=TEXTS,
    keys=st.lists(KEYS_MESSAGES, max_size=3).map(tuple),
    type=TEXTS,
    values=TUPLES,
)
RESPONSES = st.builds(
    ConfigResponse,
    version=st.integers(0, 2**40),
    values=TUPLES,
    directory=NAMES,
    config=st.dictionaries(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=2),
    error=st.none() | st.builds(ErrorInfo, type=TEXTS, message=TEXTS),
)
PUSHES = st.builds(
    ConfigPush,
    version=st.integers(0, 2**40),
    changes=st.dictionaries(TEXTS, NAMES, max_size=3),
    workspace_changes=st.none() | st.builds(WorkspaceChanges, created=NAMES, deleted=NAMES),
)


def as_published(payload: bytes, type: Any) -> bytes:
    """Decode a payload as the published service does, and encode it as it does."""
    value = dict_to_dataclass(json.loads(payload), type)
    assert isinstance(value, type)
    return json.dumps(dataclass_to_dict(value)).encode()


@given(REQUESTS)
def test_the_published_service_reads_each_field_of_a_request(request: ConfigRequest) -> None:
    payload = msgspec.json.encode(request)
    assert json.loads(as_published(payload, published.ConfigRequest)) == json.loads(payload)
    assert list(json.loads(payload)) == [field.name for field in dataclasses.fields(published.ConfigRequest)]


@given(RESPONSES)
def test_a_response_of_the_published_service_is_read_in_full(response: ConfigResponse) -> None:
    assert (
        decode_message(as_published(msgspec.json.encode(response), published.ConfigResponse), ConfigResponse)
        == response
    )


@given(PUSHES)
def test_a_notification_of_the_published_service_is_read_in_full(push: ConfigPush) -> None:
    assert decode_message(as_published(msgspec.json.encode(push), published.ConfigPush), ConfigPush) == push


def test_payloads_are_those_of_the_protocol() -> None:
    request = ConfigRequest("getvalues", "default", type="tool")
    assert msgspec.json.encode(request) == (
        b'{"operation":"getvalues","workspace":"default","keys":[],"type":"tool","values":[]}'
    )
    response = ConfigResponse(7, (ConfigValue("tool", "tell-joke", "{}"),))
    assert msgspec.json.encode(response) == (
        b'{"version":7,"values":[{"type":"tool","key":"tell-joke","value":"{}","workspace":""}],'
        b'"directory":[],"config":{},"error":null}'
    )
    push = ConfigPush(7, {"tool": ("default",)})
    assert msgspec.json.encode(push) == b'{"version":7,"changes":{"tool":["default"]},"workspace_changes":null}'


def test_unknown_fields_are_ignored_and_missing_or_null_ones_have_defaults() -> None:
    assert decode_message(b'{"other": 1}', ConfigResponse) == ConfigResponse()
    assert decode_message(b"{}", ConfigPush) == ConfigPush()
    response = decode_message(
        b'{"version": null, "values": null, "directory": null, "config": null, "error": null}', ConfigResponse
    )
    assert (response.version, response.values, response.directory) == (None, None, None)


def test_half_a_surrogate_pair_in_one_value_hides_no_other() -> None:
    payload = json.dumps({"values": [{"key": "a", "value": "\ud800"}, {"key": "b", "value": "{}"}]}).encode()
    assert [each.value for each in decode_message(payload, ConfigResponse).values or ()] == ["\ud800", "{}"]


@given(st.binary(max_size=30) | st.sampled_from([b'{"values": [1]}', b'{"version": "7"}', b'{"changes": {"tool": 1}}']))
def test_any_payload_is_a_message_or_an_error(payload: bytes) -> None:
    for kind in (ConfigResponse, ConfigPush):
        with contextlib.suppress(MalformedConfigMessageError):
            assert decode_message(payload, kind) is not None


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b"null", b'{"version": "7"}', b"[" * 100_000])
def test_a_payload_of_another_shape_is_an_error(payload: bytes) -> None:
    for kind in (ConfigResponse, ConfigPush):
        with pytest.raises(MalformedConfigMessageError):
            decode_message(payload, kind)


OTHER_TOOL = {"type": "mcp-tool", "name": "weather", "description": "Weather", "mcp-tool": "weather"}


def writes(service: ConfigService) -> list[tuple[str, list[tuple[str, str]]]]:
    """The writes that the service received: operation, and type and key of each item."""
    return [
        (each["operation"], [(item["type"], item["key"]) for item in (*each["keys"], *each["values"])])
        for each in service.requests
        if each["operation"] in ("put", "delete")
    ]


async def test_a_tool_is_put_together_with_its_service() -> None:
    async with following() as (service, store, source, follower):
        stored = store.texts["default", "tool-service", "joke-service"]
        await source.put("tool", TOOL | {"name": "tell-pun"})
        assert writes(service) == [("put", [("tool-service", "joke-service"), ("tool", "tell-pun")])]
        assert store.texts["default", "tool-service", "joke-service"] == stored
        await settle()
        assert ("tool", "tell-pun") in follower.keys
        assert await source.get("tool", "tell-pun") == TOOL | {"name": "tell-pun"}
        assert await source.list("tool") == ("tell-joke", "tell-pun")


async def test_a_service_is_put_together_with_one_of_its_tools() -> None:
    async with following() as (service, store, source, _):
        store.write("tool", "a-other", OTHER_TOOL)
        await source.put("tool-service", SERVICE | {"config-params": ["style"]})
        assert writes(service) == [("put", [("tool-service", "joke-service"), ("tool", "tell-joke")])]
        assert (await source.get("tool-service", "joke-service"))["config-params"] == ["style"]


async def test_a_new_service_is_put_together_with_any_tool() -> None:
    async with following() as (service, store, source, _):
        await source.put("tool-service", SERVICE | {"id": "new"})
        assert writes(service) == [("put", [("tool-service", "new"), ("tool", "tell-joke")])]
        store.texts.clear()
        service.requests.clear()
        await source.put("tool-service", SERVICE)
        assert writes(service) == [("put", [("tool-service", "joke-service")])]


async def test_a_tool_of_another_type_is_put_together_with_any_service() -> None:
    async with following() as (service, store, source, _):
        await source.put("tool", OTHER_TOOL)
        assert writes(service) == [("put", [("tool-service", "joke-service"), ("tool", "weather")])]
        store.texts.clear()
        service.requests.clear()
        await source.put("tool", OTHER_TOOL)
        assert writes(service) == [("put", [("tool", "weather")])]


async def test_after_a_removal_a_remaining_tool_is_put_with_its_service() -> None:
    async with following() as (service, store, source, follower):
        store.write("tool-service", "a-service", SERVICE)
        store.write("tool", "a-other", OTHER_TOOL)
        store.write("tool", "tell-pun", TOOL | {"name": "tell-pun"})
        assert await source.remove("tool", "tell-joke")
        assert writes(service) == [
            ("delete", [("tool", "tell-joke")]),
            ("put", [("tool-service", "joke-service"), ("tool", "tell-pun")]),
        ]
        await settle()
        assert ("tool", "tell-joke") not in follower.keys


async def test_after_a_removal_any_tool_and_any_service_are_put_if_they_do_not_belong_together() -> None:
    async with following() as (service, store, source, _):
        store.write("tool", "a-other", OTHER_TOOL)
        assert await source.remove("tool", "tell-joke")
        assert writes(service)[1:] == [("put", [("tool-service", "joke-service"), ("tool", "a-other")])]
        service.requests.clear()
        assert await source.remove("tool-service", "joke-service")
        assert writes(service) == [("delete", [("tool-service", "joke-service")]), ("put", [("tool", "a-other")])]
        service.requests.clear()
        assert await source.remove("tool", "a-other")
        assert writes(service) == [("delete", [("tool", "a-other")])]


async def test_a_service_in_use_is_not_removed() -> None:
    async with following() as (service, _, source, _):
        with pytest.raises(ValueError, match=r"'joke-service' was not removed: the tools tell-joke use it"):
            await source.remove("tool-service", "joke-service")
        assert writes(service) == []


async def test_an_item_that_does_not_exist() -> None:
    async with following() as (service, _, source, _):
        assert await source.get("tool", "unknown") is None
        assert not await source.remove("tool", "unknown")
        assert writes(service) == []


@pytest.mark.parametrize(
    ("kind", "raw", "problem"),
    [
        ("tool", TOOL | {"service": "unknown"}, "there is no tool service 'unknown'"),
        (
            "tool",
            {key: value for key, value in TOOL.items() if key != "service"},
            "the required key 'service' is missing",
        ),
        ("tool-service", {"id": "joke-service"}, "the required key 'request-queue' is missing"),
    ],
)
async def test_an_invalid_descriptor_is_not_written(kind: str, raw: dict[str, Any], problem: str) -> None:
    async with following() as (service, _, source, _):
        with pytest.raises(CatalogError, match=problem):
            await source.put(kind, raw)
        assert writes(service) == []


async def test_key_and_workspace_may_be_given() -> None:
    async with following(workspace="*") as (_, store, source, _):
        store.write("tool-service", "joke-service", SERVICE, "crm")
        await source.put("tool", TOOL, key="joke-of-crm", workspace="crm")
        assert ("crm", "tool", "joke-of-crm") in store.texts
        assert await source.list("tool", workspace="crm") == ("joke-of-crm",)
        with pytest.raises(ValueError, match="An item belongs to one workspace"):
            await source.put("tool", TOOL)


@pytest.mark.parametrize(
    ("kind", "raw", "message"),
    [
        ("tools", TOOL, "'tools' is not a kind of descriptor"),
        ("tool", {"type": "tool-service"}, "has no 'name'"),
        ("tool-service", {"id": ""}, "has no 'id'"),
    ],
)
async def test_an_item_without_a_place_is_refused(kind: str, raw: dict[str, Any], message: str) -> None:
    async with following() as (_, _, source, _):
        with pytest.raises(ValueError, match=message):
            await source.put(kind, raw)


async def test_a_write_without_a_response_is_sent_once_and_may_have_been_executed() -> None:
    async with following() as (service, _, source, _):
        service.ignores = "put"
        with pytest.raises(ConfigServiceError, match="It may have been executed: read the item") as caught:
            await source.put("tool", TOOL)
        assert (caught.value.type, caught.value.operation) == ("no-response", "put")
        assert len(writes(service)) == 1


async def test_text_that_is_not_json_is_returned_as_text() -> None:
    async with following() as (_, store, source, _):
        store.write("tool", "broken", "{")
        assert await source.get("tool", "broken") == "{"
