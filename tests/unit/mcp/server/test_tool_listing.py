"""Lists: pages, users, and the search in place of many tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client

from dispatch import Catalog, Dispatcher, Grants
from dispatch.mcp import McpServer
from dispatch.mcp.server import MAX_LISTED, PAGE_SIZE, complete_schema, cut_page
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, Service, catalog, serving, stand
from tests.helpers.mcp_connections import MODES, Mode, connected, text_of

NAMES = st.sets(st.text(min_size=1, max_size=8), max_size=3 * PAGE_SIZE)


@given(NAMES)
def test_pages_are_the_whole_list_in_order(names: set[str]) -> None:
    seen: list[str] = []
    page, cursor = cut_page(names, None)
    seen += page
    while cursor is not None:
        assert len(page) == PAGE_SIZE
        page, cursor = cut_page(names, cursor)
        seen += page
    assert seen == sorted(names)


@given(NAMES, st.sets(st.text(min_size=1, max_size=8), max_size=20), st.data())
def test_a_change_between_pages_moves_no_other_tool(names: set[str], added: set[str], data: st.DataObject) -> None:
    page, cursor = cut_page(names, None)
    if cursor is None:
        return
    removed = data.draw(st.sets(st.sampled_from(sorted(names))))
    changed = (names | added) - removed
    seen = [*page]
    while cursor is not None:
        page, cursor = cut_page(changed, cursor)
        seen += page
    assert len(seen) == len(set(seen))
    assert names - removed <= set(seen)


def test_the_root_of_a_schema_is_an_object() -> None:
    assert complete_schema({"properties": {}}) == {"properties": {}, "type": "object"}
    assert complete_schema({"type": "object"}) == {"type": "object"}


def many(number: int, **others: dict[str, Any]) -> Catalog:
    return catalog(**{f"tool-{at:03}": {"description": f"Counts sheep number {at}."} for at in range(number)}, **others)


async def list_names(client: Client) -> list[str]:
    page = await client.list_tools()
    names = [tool.name for tool in page.tools]
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        names += [tool.name for tool in page.tools]
    return names


@pytest.mark.parametrize("mode", MODES)
async def test_up_to_forty_tools_are_listed_and_more_are_found(mode: Mode) -> None:
    service = Service(lambda arguments: f"called with {arguments}")
    joke = {"description": "Tells a joke about a goat.", "read-only": True}
    async with stand(service, many(MAX_LISTED - 1, joke=joke)) as (dispatcher, _):
        async with connected(McpServer(dispatcher, user="alice"), "process", mode) as client:
            assert len(await list_names(client)) == MAX_LISTED + 1  # with read_result
        await dispatcher.reload(many(MAX_LISTED, joke=joke))
        server = McpServer(dispatcher, user="alice", always=["tool-007", "no-such-tool"])
        async with connected(server, "process", mode) as client:
            assert await list_names(client) == ["call_tool", "find_tools", "read_result", "tool-007"]
            found = json.loads(text_of(await client.call_tool("find_tools", {"query": "joke goat", "limit": 2})))
            first = found["tools"][0]
            assert (first["name"], first["description"], first["read_only"]) == ("joke", joke["description"], True)
            assert first["parameters"]["type"] == "object"
            found = json.loads(text_of(await client.call_tool("find_tools", {"query": "sheep", "limit": 2})))
            assert len(found["tools"]) == 2
            called = await client.call_tool("call_tool", {"name": "joke", "arguments": {"x": 1}})
            assert (text_of(called), called.is_error) == ("called with {'x': 1}", False)
            assert text_of(await client.call_tool("joke")) == "called with {}"  # a client may know the name
    assert [user for *_, user in service.requests] == ["alice", "alice"]


@pytest.mark.parametrize("mode", MODES)
async def test_the_search_can_be_forced_and_forbidden(mode: Mode) -> None:
    async with stand(lambda _: "done", many(2 * PAGE_SIZE)) as (dispatcher, _):
        async with connected(McpServer(dispatcher, search="never"), "process", mode) as client:
            names = await list_names(client)
            assert len(names) == 2 * PAGE_SIZE + 1
            assert names == sorted(names)
        await dispatcher.reload(catalog(work={}))
        async with connected(McpServer(dispatcher, search="always"), "process", mode) as client:
            assert await list_names(client) == ["call_tool", "find_tools", "read_result"]
        with pytest.raises(ValueError, match="search"):
            McpServer(dispatcher, search="maybe")  # type: ignore[typeddict-item] # a value that a user may write


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "arguments", "place"),
    [
        ("find_tools", {}, "/query"),
        ("find_tools", {"query": ""}, "/query"),
        ("find_tools", {"query": "x", "limit": 0}, "/limit"),
        ("find_tools", {"query": "x", "depth": 1}, "/depth"),
        ("call_tool", {"arguments": {}}, "/name"),
        ("call_tool", {"name": "work", "arguments": []}, "/arguments"),
        ("read_result", {}, "/handle"),
    ],
)
async def test_their_arguments_are_checked(name: str, arguments: dict[str, Any], place: str, mode: Mode) -> None:
    async with (
        stand(lambda _: "done") as (dispatcher, _),
        connected(McpServer(dispatcher, search="always"), "process", mode) as client,
    ):
        result = await client.call_tool(name, arguments)
        assert result.is_error
        error = json.loads(text_of(result))
        assert error["error"] == "invalid-arguments"
        assert place in error["message"]


@pytest.mark.parametrize("mode", MODES)
async def test_call_tool_answers_as_the_tool_does(mode: Mode) -> None:
    async with (
        stand(lambda _: "x" * 60_000) as (dispatcher, _),
        connected(McpServer(dispatcher, search="always"), "process", mode) as client,
    ):
        for name in ("wrok", "call_tool", "find_tools"):
            result = await client.call_tool("call_tool", {"name": name})
            assert json.loads(text_of(result))["error"] == "unknown-tool"
        shown = text_of(await client.call_tool("call_tool", {"name": "work"}))
        handle = shown.rpartition('handle="')[2].partition('"')[0]
        arguments = {"handle": handle, "offset": 59_990}
        whole = await client.call_tool("call_tool", {"name": "read_result", "arguments": arguments})
        assert text_of(whole) == "x" * 10


@pytest.mark.parametrize("mode", MODES)
async def test_tools_of_the_catalogue_keep_their_names(mode: Mode) -> None:
    service = Service(lambda arguments: f"mine: {arguments}")
    tools = catalog(find_tools={}, read_result={}, work={})
    async with (
        stand(service, tools) as (dispatcher, _),
        connected(McpServer(dispatcher, search="always", always=["find_tools"]), "process", mode) as client,
    ):
        assert await list_names(client) == ["call_tool", "find_all_tools", "find_tools", "read_result"]
        assert text_of(await client.call_tool("find_tools")) == "mine: {}"
        found = json.loads(text_of(await client.call_tool("find_all_tools", {"query": "work"})))["tools"]
        assert found[0]["name"] == "work"
        # A handle decides whose read_result it is.
        assert text_of(await client.call_tool("read_result", {"handle": "x"})) == "mine: {'handle': 'x'}"
        handle = dispatcher.results.add("whole", "")
        assert text_of(await client.call_tool("read_result", {"handle": handle})) == "whole"


@pytest.mark.parametrize("mode", MODES)
async def test_users_see_and_find_what_they_may_call(mode: Mode) -> None:
    tools = catalog(work={}, secret={"permissions": ["secrets"], "description": "Tells a secret."})
    grants = Grants.of({"users": {"alice": ["secrets"], "bob": []}})
    async with (
        serving(lambda _: "done"),
        Dispatcher(MemoryTransport(BROKER), tools, grants=grants) as dispatcher,
    ):
        for user, names in (("alice", ["secret", "work"]), ("bob", ["work"])):
            async with connected(McpServer(dispatcher, user=user), "process", mode) as client:
                assert await list_names(client) == sorted([*names, "read_result"])
            async with connected(McpServer(dispatcher, user=user, search="always"), "process", mode) as client:
                found = json.loads(text_of(await client.call_tool("find_tools", {"query": "secret"})))["tools"]
                assert sorted(each["name"] for each in found if each["name"] != "work") == names[:-1]
                result = await client.call_tool("call_tool", {"name": "secret"})
                assert result.is_error is (user == "bob")


async def test_a_function_of_the_request_names_the_user() -> None:
    service = Service(lambda _: "done")
    async with stand(service) as (dispatcher, _):
        server = McpServer(dispatcher, user=lambda request: f"user of {request.method}")
        async with connected(server, "process", "auto") as client:
            await client.call_tool("work")
    assert [user for *_, user in service.requests] == ["user of tools/call"]


@pytest.mark.wall_clock
async def test_lists_are_stale_at_once() -> None:
    async with stand(lambda _: "") as (dispatcher, _), connected(McpServer(dispatcher), "stdio", "auto") as client:
        page = await client.list_tools()
        assert (page.ttl_ms, page.cache_scope) == (0, "private")
