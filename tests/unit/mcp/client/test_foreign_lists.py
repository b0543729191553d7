"""Lists of tools as foreign servers write them: one bad tool costs itself, and no list is read for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dispatch
import dispatch.mcp.sessions
from tests.helpers.mcp_servers.programs import connected, until
from tests.helpers.mcp_servers.scripted import result, scripted_stdio, tool

GOOD = result({"content": [{"type": "text", "text": "fine"}], "structuredContent": {}})
ANY = {"type": "object"}

COMPLETED: dict[str, dict[str, Any]] = {
    "only $schema": tool("odd", inputSchema={"$schema": "http://json-schema.org/draft-07/schema#"}),
    "anyOf at the root": tool("odd", inputSchema={"anyOf": [{"type": "object"}, {"type": "object"}]}),
    "type null": tool("odd", inputSchema={"type": None, "properties": {"a": {"type": "string"}}}),
    "a list of types": tool("odd", inputSchema={"type": ["object", "null"]}),
    "a list for no properties": tool("odd", inputSchema={"type": "object", "properties": []}),
    "null for empty lists": tool("odd", inputSchema={"type": "object", "properties": None, "required": None}),
    "an empty schema": tool("odd", inputSchema={}),
    "an empty list as schema": tool("odd", inputSchema=[]),
    "true as schema": tool("odd", inputSchema=True),
    "null as schema": tool("odd", inputSchema=None),
    "no schema": {"name": "odd"},
    "an output schema without a type": tool("odd", outputSchema={"properties": {}}),
    "an output schema that is a text": tool("odd", outputSchema="x"),
    "null everywhere": {"name": "odd", "inputSchema": ANY, "description": None, "title": None, "annotations": None},
    "a list for no hints": tool("odd", annotations=[]),
    "a hint that is a text": tool("odd", annotations={"readOnlyHint": "perhaps"}),
    "a description that is a number": tool("odd", description=7),
    "an unknown kind of execution": tool("odd", execution={"taskSupport": "sometimes"}),
    "an icon without an address": tool("odd", icons=[{"sizes": "any"}]),
}
REFUSED: dict[str, Any] = {
    "a schema of a text": tool("odd", inputSchema={"type": "string"}),
    "a schema that is a text": tool("odd", inputSchema="object"),
    "false as schema": tool("odd", inputSchema=False),
    "a property that is a number": tool("odd", inputSchema={"type": "object", "properties": {"a": 3}}),
    "a list of properties": tool("odd", inputSchema={"type": "object", "properties": [{"name": "a"}]}),
    "required names that are numbers": tool("odd", inputSchema={"type": "object", "required": [1]}),
    "a number without an end": tool(
        "odd", inputSchema={"type": "object", "properties": {"a": {"default": float("nan")}}}
    ),
    "no name": {"inputSchema": ANY},
    "a name that is a number": {"name": 7, "inputSchema": ANY},
    "a number": 7,
    "null": None,
}


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type] # a coroutine


def names(dispatcher: dispatch.Dispatcher) -> list[str]:
    return sorted(each.name for each in dispatcher.registry.list())


@pytest.fixture(params=[False, True], ids=["legacy", "2026-07-28"])
def is_modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("odd", COMPLETED.values(), ids=COMPLETED)
def test_an_unusual_definition_is_completed(odd: dict[str, Any], is_modern: bool) -> None:
    async def test() -> None:
        pages = [result({"tools": [tool("one"), odd, tool("two")]})]
        entry = scripted_stdio({"odd": GOOD, "one": GOOD}, pages=pages, is_modern=is_modern)
        async with connected({"s": entry}) as dispatcher:
            (source,) = dispatcher.registry.sources()
            assert (source.state, source.tools, source.refused) == ("ok", 3, 0)
            assert await dispatcher.call("odd", {}) == "fine"

    run(test)


def test_definitions_that_are_not_usable_are_refused_by_their_names(
    is_modern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        odd = [
            each | {"name": f"odd-{n}"} if isinstance(each, dict) and each.get("name") == "odd" else each
            for n, each in enumerate(REFUSED.values())
        ]
        pages = [result({"tools": [tool("one"), *odd, tool("two")]})]
        async with connected({"s": scripted_stdio({"one": GOOD}, pages=pages, is_modern=is_modern)}) as dispatcher:
            (source,) = dispatcher.registry.sources()
            assert source.state == "ok"
            usual = [name for name in names(dispatcher) if not name.startswith("odd")]
            assert usual == ["one", "two"]
            assert await dispatcher.call("one", {}) == "fine"

    with caplog.at_level(logging.WARNING):
        run(test)
    for number, kind in enumerate(REFUSED):
        if number < 7:
            # Refused, or used without the part of its schema that is not usable.
            assert f"s: odd-{number}: " in caplog.text or f"s: odd-{number} is used with a part" in caplog.text, kind
    assert "(a tool without a name): tools[" in caplog.text


@pytest.mark.parametrize("tools", [None, {}, []])
def test_a_list_without_tools(tools: object) -> None:
    async def test() -> None:
        pages = [result({"tools": tools, "nextCursor": None, "_meta": None, "ttlMs": "1"})]
        async with connected({"s": scripted_stdio(pages=pages)}) as dispatcher:
            (source,) = dispatcher.registry.sources()
            assert (source.state, source.tools) == ("ok", 0)

    run(test)


def page(*tools: str, cursor: object = None) -> str:
    return result({"tools": [tool(name) for name in tools], "nextCursor": cursor})


REFUSAL = '{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32602,"message":"invalid cursor"}}'


@pytest.mark.parametrize(
    ("pages", "found"),
    [
        ([page("a", cursor="x"), page("b", cursor="y"), page("c")], ["a", "b", "c"]),
        ([page("a", cursor=1), page("b")], ["a", "b"]),
        ([page("a", cursor="")], ["a"]),
        ([page("a", cursor="x"), page("b", cursor="")], ["a", "b"]),
        ([page("a", cursor="x")], ["a"]),
        ([page("a", cursor="x"), page("b", cursor="x")], ["a", "b"]),
        ([page("a", cursor="x"), page("b", cursor="y"), page("c", cursor="x")], ["a", "b", "c"]),
        ([page("a", cursor="@PAGE@")], ["a"]),
        ([page("a", cursor="x"), page(cursor="y"), page("b")], ["a", "b"]),
        ([page("a", cursor="x"), page(cursor="@PAGE@")], ["a"]),
        ([page("a", cursor="x"), REFUSAL], ["a"]),
    ],
)
def test_pages(pages: list[str], found: list[str]) -> None:
    async def test() -> None:
        async with connected({"s": scripted_stdio({"a": GOOD}, pages=pages)}) as dispatcher:
            assert names(dispatcher) == found
            assert await dispatcher.call("a", {}) == "fine"

    run(test)


def test_a_list_without_an_end_is_used_as_far_as_it_was_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "MAX_PAGES", 50)

    async def test() -> None:
        pages = [page("a-@PAGE@", cursor="@PAGE@")]
        async with connected({"s": scripted_stdio({"a-0": GOOD}, pages=pages)}) as dispatcher:
            assert len(names(dispatcher)) == 50
            assert await dispatcher.call("a-0", {}) == "fine"

    run(test)
    assert "the list of tools has no end; its first 50 tools are used" in caplog.text


def test_a_page_that_does_not_arrive_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "LIST_S", 0.3)

    async def test() -> None:
        async with connected({"s": scripted_stdio({"a": GOOD}, pages=[page("a", cursor="x"), ""])}) as dispatcher:
            assert names(dispatcher) == ["a"]
            assert await dispatcher.call("a", {}) == "fine"

    run(test)


def test_a_tool_that_becomes_bad_is_refused_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "POLL_S", 0.1)
    monkeypatch.setattr(dispatch.mcp.sessions, "MIN_POLL_S", 0.1)

    async def test() -> None:
        pages = [page("a", "b"), result({"tools": [tool("a"), tool("b", inputSchema={"type": "array"})]})]
        async with connected({"s": scripted_stdio({"a": GOOD}, pages=pages)}) as dispatcher:
            await until(lambda: dispatcher.registry.sources()[0].refused)
            assert "a" in names(dispatcher)
            assert await dispatcher.call("a", {}) == "fine"

    run(test)
