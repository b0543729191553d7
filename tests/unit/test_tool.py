"""A tool as an agent framework takes it."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.errors import InvalidArgumentsError, ToolError
from tests.helpers.dispatcher_and_service import Service, catalog, stand

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"topic": {"type": "string", "enum": ["cats", "dogs"]}, "words": {"type": ["integer", "null"]}},
    "required": ["topic"],
    "additionalProperties": False,
}

TOOLS = catalog(
    work={
        "description": "Does work.",
        "arguments": [
            {"name": "topic", "type": "string", "description": "What about.", "required": True},
            {"name": "length", "type": "integer", "description": "How long.", "required": False},
            {"name": "style", "type": "string", "description": "Which way."},
        ],
    },
    bare={},
    schema={"input-schema": SCHEMA},
)


async def test_a_tool_is_called_with_named_arguments_on_behalf_of_its_user() -> None:
    service = Service(lambda arguments: f"about {arguments['topic']}")
    async with stand(service, TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("work", user="alice")
        assert await tool.invoke(topic="cats") == "about cats"
        assert [chunk async for chunk in tool.stream(topic="dogs")] == ["about dogs"]
        assert service.requests == [({}, {"topic": "cats"}, "alice"), ({}, {"topic": "dogs"}, "alice")]
        assert (tool.name, tool.description, tool.user) == ("work", "Does work.", "alice")
        assert (tool.read_only, tool.destructive) == (False, None)
        assert repr(tool) == "Tool('work')"


async def test_no_name_of_an_argument_is_taken() -> None:
    service = Service(lambda arguments: "done")
    names: dict[str, Any] = {"self": 1, "tool": 2, "user": 3, "timeout": 4, "arguments": 5, "name": 6}
    async with stand(service, TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("work")
        await tool.invoke(**names)
        assert [chunk async for chunk in tool.stream(**names)] == ["done"]
    assert service.requests == [({}, names, "")] * 2


async def test_its_parameters_are_a_json_schema() -> None:
    async with stand(lambda _: "done", TOOLS) as (dispatcher, _):
        assert dispatcher.tool("work").parameters == {
            "type": "object",
            "properties": {
                "topic": {"type": "string", "description": "What about."},
                "length": {"type": "integer", "description": "How long."},
                "style": {"type": "string", "description": "Which way."},
            },
            "required": ["topic", "style"],
        }
        assert dispatcher.tool("bare").parameters == {"type": "object", "properties": {}, "required": []}


async def test_its_parameters_are_a_copy_of_its_input_schema() -> None:
    async with stand(lambda _: "done", TOOLS) as (dispatcher, _):
        parameters = dispatcher.tool("schema").parameters
        assert parameters == SCHEMA
        assert type(parameters["properties"]["words"]["type"]) is list
        parameters["properties"].clear()
        assert dispatcher.tool("schema").parameters == SCHEMA
        assert await dispatcher.tool("schema").invoke(topic="cats") == "done"


async def test_it_raises_what_a_call_raises() -> None:
    def work(_: Any) -> None:
        raise ValueError("no such city")

    async with stand(work, TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("work")
        with pytest.raises(ToolError, match="no such city"):
            await tool.invoke()
        with pytest.raises(InvalidArgumentsError):
            await tool.invoke(topic=object())
