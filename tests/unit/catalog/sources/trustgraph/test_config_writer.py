"""Writes: every one touches both types, so that TrustGraph's agents reload completely."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch import CatalogError
from dispatch.trustgraph.config import ConfigServiceError
from tests.helpers.config_service import ConfigService
from tests.helpers.followed_config import SERVICE, TOOL, following, settle

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
