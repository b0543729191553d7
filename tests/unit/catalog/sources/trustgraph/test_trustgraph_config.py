"""The source on the embedded broker: what it fetches when, and what it makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dispatch
from dispatch.trustgraph.config import LARGE_BYTES, POLL_S, TIMEOUT_S, ConfigBroker, ConfigServiceError, ConfigTopics
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


async def test_fetches_after_the_start_of_the_service() -> None:
    async with following() as (service, store, _, follower):
        store.texts.clear()
        service.push({})
        await settle()
        assert follower.keys == []


@pytest.mark.parametrize("version", [0, 1, 3, 100])
async def test_fetches_when_the_version_is_another_one(version: int) -> None:
    async with following() as (service, store, _, follower):
        store.texts.clear()
        store.version = version
        service.push({"prompt": ["default"]})
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


async def test_polls_because_a_notification_may_be_lost() -> None:
    async with following() as (_, store, _, follower):
        store.write("tool", "new", {})
        await asyncio.sleep(POLL_S - 1)
        assert ("tool", "new") not in follower.keys
        await asyncio.sleep(2)
        assert ("tool", "new") in follower.keys


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
    async with following(randomness=lambda: share) as (_, _, _, follower):
        await asyncio.sleep(seconds - 0.5)
        assert follower.fetches == 1
        await asyncio.sleep(1)
        assert follower.fetches == 2


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
        assert [(item.namespace, item.key) for item in follower.items] == [
            ("acme-crm", "find"),
            ("acme-default", "joke-service"),
            ("acme-default", "tell-joke"),
        ]
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


async def test_duplicate_and_late_responses_are_ignored() -> None:
    async with following() as (service, store, source, follower):
        service.copies = 3
        store.write("tool", "new", {})
        service.push({"tool": ["default"]})
        await settle()
        assert ("tool", "new") in follower.keys
        assert await source.list("tool") == ("new", "tell-joke")


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
        with pytest.raises(
            ConfigServiceError, match=r"refused 'getvalues' \(config-error: no such keyspace\)"
        ) as caught:
            await source.discover()
        assert caught.value.type == "config-error"


@pytest.mark.parametrize("workspace", ["", "_", "__template__"])
def test_a_reserved_workspace_is_refused(workspace: str) -> None:
    with pytest.raises(ValueError, match="is not a workspace with tools"):
        dispatch.TrustGraphConfig(workspace)


def test_topics_are_configurable() -> None:
    topics = dispatch.TrustGraphConfig("crm", topics=ConfigTopics.of_workspace("crm")).topics
    assert topics == ConfigTopics(
        "non-persistent://tg/request/config:crm",
        "non-persistent://tg/response/config:crm",
        "non-persistent://tg/notify/config",
    )


async def test_a_source_without_a_broker_says_so() -> None:
    with pytest.raises(RuntimeError, match="not connected"):
        await dispatch.TrustGraphConfig().discover()
    with pytest.raises(RuntimeError, match="not connected"):
        await anext(dispatch.TrustGraphConfig().changes())
