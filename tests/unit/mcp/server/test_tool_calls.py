"""Calls over MCP: progress, cancellation, structured content, and the parts of results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from mcp import MCPError
from mcp_types import INVALID_PARAMS, ImageContent, TextContent

import dispatch
from dispatch import CallResult, Catalog, Outcome
from dispatch.mcp import McpServer
from dispatch.mcp.server import MAX_PROGRESS_CHARS
from tests.helpers.dispatcher_and_service import Service, catalog, stand
from tests.helpers.mcp_connections import CHANNELS, MODES, Channel, Mode, connected, text_of

CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


def functions(**tools: Any) -> dispatch.Functions:
    return dispatch.Functions(*(dispatch.tool(name=name)(function) for name, function in tools.items()))


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_chunks_are_progress(channel: Channel, mode: Mode) -> None:
    async def tell() -> AsyncIterator[str]:
        for chunk in ("one ", "zwei ", "", "三" * 5_000):
            yield chunk

    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with (
        dispatch.connect("memory://", functions(tell=tell)) as dispatcher,
        connected(McpServer(dispatcher), channel, mode) as client,
    ):
        result = await client.call_tool("tell", progress_callback=on_progress)
        assert text_of(result) == "one zwei " + "三" * 5_000
        for _ in range(100):  # notifications are delivered in tasks of their own
            await asyncio.sleep(0.01)
            if len(seen) >= 3:
                break
    chunks = sorted((number, message) for number, _, message in seen)
    assert [message for _, message in chunks if message] == ["one ", "zwei ", "三" * MAX_PROGRESS_CHARS]


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
async def test_a_failure_behind_chunks_is_a_result(mode: Mode) -> None:
    async def tell() -> AsyncIterator[str]:
        yield "one"
        raise dispatch.ToolError("out-of-words", "there are no more words")

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with (
        dispatch.connect("memory://", functions(tell=tell)) as dispatcher,
        connected(McpServer(dispatcher), "stdio", mode) as client,
    ):
        result = await client.call_tool("tell", progress_callback=on_progress)
    assert result.is_error
    assert json.loads(text_of(result))["error"] == "out-of-words"


@pytest.mark.wall_clock
@pytest.mark.parametrize("has_progress", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_a_cancelled_call_stops_at_the_instance(channel: Channel, mode: Mode, has_progress: bool) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def work(arguments: dict[str, Any]) -> str:
        if arguments:
            return "done"
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with (
        stand(work) as (dispatcher, _),
        connected(McpServer(dispatcher), channel, mode) as client,
    ):
        options: dict[str, Any] = {"progress_callback": on_progress} if has_progress else {}
        call = asyncio.create_task(client.call_tool("work", {}, **options))
        await started.wait()
        call.cancel()
        await asyncio.wait_for(stopped.wait(), 10)
        await asyncio.wait([call])
        assert dispatcher.pending_requests == 0
        # The connection goes on.
        assert text_of(await client.call_tool("work", {"more": 1})) == "done"


@pytest.mark.parametrize("mode", MODES)
async def test_an_output_schema_makes_structured_content(mode: Mode) -> None:
    answers = {"work": '{"name": "Köln", "people": 1000000}', "wrong": '{"people": "many"}', "numbers": "[1, 2]"}
    tools = catalog(
        work={"output-schema": CITY},
        wrong={"output-schema": CITY},
        numbers={"output-schema": {"type": "array", "items": {"type": "integer"}}},
    )
    answer = ""
    async with (
        stand(lambda _: answer, tools) as (dispatcher, _),
        connected(McpServer(dispatcher), "process", mode) as client,
    ):
        listed = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        assert listed == {"work": CITY, "wrong": CITY, "numbers": None, "read_result": None}
        answer = answers["work"]
        result = await client.call_tool("work")
        assert result.structured_content == {"name": "Köln", "people": 1_000_000}
        assert json.loads(text_of(result)) == result.structured_content
        answer = answers["wrong"]
        wrong = await client.call_tool("wrong")
        assert wrong.is_error
        error, shown = wrong.content
        assert isinstance(error, TextContent)
        assert isinstance(shown, TextContent)
        assert json.loads(error.text)["error"] == "invalid-output"
        assert json.loads(shown.text) == {"people": "many"}
        answer = answers["numbers"]
        numbers = await client.call_tool("numbers")
        assert (text_of(numbers), numbers.structured_content) == ("[1,2]", None)


@pytest.mark.parametrize("mode", MODES)
async def test_all_parts_of_a_result_are_passed_on(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ({"type": "text", "text": "a cat"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"})
    text = "a cat\n[image: image/png, 3 bytes]"
    result = CallResult("work", Outcome.SUCCESS, text, content=parts, structured_content={"cat": True})
    async with (
        stand(lambda _: "") as (dispatcher, _),
        connected(McpServer(dispatcher), "process", mode) as client,
    ):

        async def execute(*_: Any, **__: Any) -> CallResult:
            return result

        monkeypatch.setattr(dispatcher, "execute", execute)
        answer = await client.call_tool("work")
        assert answer.content == [TextContent(text="a cat"), ImageContent(data="AAAA", mime_type="image/png")]
        assert answer.structured_content == {"cat": True}
        long = msgspec.structs.replace(result, text="x" * 60_000)
        monkeypatch.setattr(dispatcher, "execute", lambda *_, **__: asyncio.sleep(0, long))
        cut, image = (await client.call_tool("work")).content
        assert isinstance(cut, TextContent)
        assert len(cut.text) <= 50_000
        assert isinstance(image, ImageContent)


@pytest.mark.parametrize("mode", MODES)
async def test_arguments_are_checked_here(mode: Mode) -> None:
    service = Service(lambda _: "done")
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    async with (
        stand(service, catalog(work={"input-schema": schema})) as (dispatcher, _),
        connected(McpServer(dispatcher), "process", mode) as client,
    ):
        for arguments in ({}, {"number": "one"}):
            result = await client.call_tool("work", arguments)
            assert result.is_error
            error = json.loads(text_of(result))
            assert error["error"] == "invalid-arguments"
            assert "/number" in error["message"]
    assert service.requests == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_cursor_of_another_server_is_an_error_of_the_protocol(mode: Mode) -> None:
    async with (
        stand(lambda _: "") as (dispatcher, _),
        connected(McpServer(dispatcher), "process", mode) as client,
    ):
        for cursor in ("?", "päge", "AAA"):
            with pytest.raises(MCPError) as caught:
                await client.list_tools(cursor=cursor)
            assert caught.value.error.code == INVALID_PARAMS


@pytest.mark.parametrize("mode", MODES)
async def test_permissions_that_cannot_be_resolved_are_said(mode: Mode) -> None:
    async def fail(_: str) -> list[str]:
        raise OSError("no directory")

    tools: Catalog = catalog(work={"permissions": ["work"]})
    async with (
        dispatch.connect("memory://", tools, grants=fail) as dispatcher,
        connected(McpServer(dispatcher, user="alice"), "process", mode) as client,
    ):
        with pytest.raises(MCPError, match="permissions"):
            await client.list_tools()
        result = await client.call_tool("work")
        assert json.loads(text_of(result))["error"] == "permissions-unavailable"
