"""A tool as an agent framework takes it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dispatch import CallResult, Outcome
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
    report={"output-schema": {"type": "array", "items": {"type": "string"}}, "policy": {"max-result-chars": 400}},
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
        assert repr(tool) == "BoundTool('work')"


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
            "required": ["topic"],
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


async def test_its_results_are_formatted_for_a_model() -> None:
    answers = iter(['[ "a" ]', "[7]", json.dumps(["word"] * 500)])
    async with stand(lambda _: next(answers), TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("report", user="alice")
        assert tool.format_result(await tool.execute()) == {"content": [{"type": "text", "text": '["a"]'}]}
        error, answer = tool.format_result(await tool.execute())["content"]
        assert json.loads(error["text"])["error"] == "invalid-output"
        assert "/0 must be a string, not an integer" in error["text"]
        assert answer["text"] == "[7]"
        (part,) = tool.format_result(await tool.execute())["content"]
        assert len(part["text"]) <= 400
        found = re.search(r'read_result\(handle="(.+)", offset=(\d+)\)', part["text"])
        assert found is not None
        handle, offset = found[1], int(found[2])
        rest = dispatcher.results.read(handle, offset=offset, user="alice")
        assert json.loads(part["text"][:offset] + rest.text) == ["word"] * 500
        assert await dispatcher.results.tool("alice").invoke(handle=handle, offset=offset) == rest.text
        with pytest.raises(InvalidArgumentsError, match="no stored result has this handle"):
            dispatcher.results.read(handle, user="bob")
        unknown = tool.format_result(await dispatcher.execute("missing"))
        assert unknown["isError"]
        await dispatcher.reload(catalog())  # the tool is removed
        assert len(tool.format_result(CallResult("report", Outcome.SUCCESS, '["a", "b"]'))["content"]) == 1


async def test_an_answer_is_what_a_model_reads() -> None:
    answers = iter(["[]", '["a"]', "[7]"])
    async with stand(lambda _: next(answers), TOOLS) as (dispatcher, _):
        users: list[tuple[str, bool]] = []
        dispatcher.on_call(lambda call: users.append((call.user, call.by_model)))
        tool = dispatcher.tool("report", user="alice")
        assert await tool.answer({}) == ("[]", False, None)
        assert await tool.answer({}, user="bob") == ('["a"]', False, None)
        assert users == [("alice", True), ("bob", True)]
        invalid = await tool.answer({})
        assert (invalid.is_error, invalid.error) == (True, None)
        assert invalid.text.endswith("\n[7]")
        await dispatcher.reload(catalog())
        removed = await tool.answer({})
        assert removed.error is not None
        assert json.loads(removed.text)["error"] == removed.error.type == "unknown-tool"
        assert dispatcher.format_result(await dispatcher.execute("report"))["isError"]
