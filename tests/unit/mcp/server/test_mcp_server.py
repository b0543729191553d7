"""The MCP server with the official client in the same process, in both protocol generations."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from mcp import Client, MCPError
from mcp_types import CallToolResult, TextContent, ToolAnnotations

from dispatch import ToolError
from dispatch.mcp import McpServer
from tests.helpers.dispatcher_and_service import Service, catalog, stand

MODES: tuple[Literal["auto", "legacy"], ...] = ("auto", "legacy")
TOPIC = {"name": "topic", "type": "string", "description": "What about.", "required": True}

pytestmark = pytest.mark.parametrize("mode", MODES)


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def test_tools_are_listed_and_called(mode: Literal["auto", "legacy"]) -> None:
    service = Service(lambda arguments: f"about {arguments['topic']}")
    tools = catalog(
        work={"arguments": [TOPIC], "read-only": True, "idempotent": True, "destructive": False},
        bare={"destructive": False},
    )
    async with (
        stand(service, tools) as (dispatcher, _),
        Client(McpServer(dispatcher, user="alice").sdk_server, mode=mode) as client,
    ):
        bare, _, work = (await client.list_tools()).tools
        assert (bare.name, work.name, work.description) == ("bare", "work", "Does work.")
        assert work.input_schema["properties"] == {"topic": {"type": "string", "description": "What about."}}
        assert work.input_schema["required"] == ["topic"]
        assert work.annotations == ToolAnnotations(read_only_hint=True, idempotent_hint=True)
        assert bare.annotations == ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=False)
        result = await client.call_tool("work", {"topic": "cäts"})
        assert (text_of(result), result.is_error) == ("about cäts", False)
    assert service.requests == [({}, {"topic": "cäts"}, "alice")]


async def test_a_failure_is_a_result_for_the_model(mode: Literal["auto", "legacy"]) -> None:
    async def fail(_: dict[str, Any]) -> str:
        raise ToolError("no-cats", "there are no cats")

    async with stand(fail) as (dispatcher, _), Client(McpServer(dispatcher).sdk_server, mode=mode) as client:
        failed, unknown = await client.call_tool("work"), await client.call_tool("wrok")
    assert failed.is_error
    assert unknown.is_error
    assert json.loads(text_of(failed))["error"] == "no-cats"
    error = json.loads(text_of(unknown))
    assert sorted(error) == ["alternatives", "error", "message", "retry_after", "retryable"]
    assert (error["error"], error["alternatives"], error["retryable"]) == ("unknown-tool", ["work"], False)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), LookupError("4711"), asyncio.CancelledError()])
async def test_a_function_of_the_user_that_fails_ends_its_request_alone(
    error: BaseException, mode: Literal["auto", "legacy"]
) -> None:
    broken = [True]

    def find_user(_context: object) -> str:
        if broken:
            raise error
        return "alice"

    service = Service(lambda _: "done")
    async with (
        stand(service) as (dispatcher, _),
        Client(McpServer(dispatcher, user=find_user).sdk_server, mode=mode) as client,
    ):
        with pytest.raises(MCPError, match=type(error).__name__) as caught:
            await client.call_tool("work")
        assert "4711" not in str(caught.value)
        broken.clear()
        assert text_of(await client.call_tool("work")) == "done"
