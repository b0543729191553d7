"""Tools and calls in the forms of the APIs of models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import dispatch
from dispatch.adapters import Style, execute, specs
from tests.adapters import lab
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario


def write_call(style: Style, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        Style.OPENAI_CHAT: {
            "id": "c1",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        },
        Style.OPENAI_RESPONSES: {
            "type": "function_call",
            "call_id": "c1",
            "name": name,
            "arguments": json.dumps(arguments),
        },
        Style.ANTHROPIC: {"type": "tool_use", "id": "c1", "name": name, "input": arguments},
        Style.GEMINI: {"functionCall": {"id": "c1", "name": name, "args": arguments}},
        Style.MCP: {"name": name, "arguments": arguments},
    }[style]


def read_answer(style: Style, answer: dict[str, Any]) -> Answer:
    match style:
        case Style.OPENAI_CHAT:
            assert (answer["role"], answer["tool_call_id"]) == ("tool", "c1")
            return Answer(answer["content"], "retryable" in answer["content"])
        case Style.OPENAI_RESPONSES:
            assert (answer["type"], answer["call_id"]) == ("function_call_output", "c1")
            return Answer(answer["output"], "retryable" in answer["output"])
        case Style.ANTHROPIC:
            assert (answer["type"], answer["tool_use_id"]) == ("tool_result", "c1")
            return Answer(answer["content"], answer["is_error"])
        case Style.GEMINI:
            part = answer["functionResponse"]
            assert part["id"] == "c1"
            ((key, text),) = part["response"].items()
            assert key in ("output", "error")
            return Answer(text, key == "error")
    return Answer(answer["content"][0]["text"], answer["isError"])


def model_of(style: Style) -> Model:
    async def call_tool(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
        call = write_call(style, name, arguments)
        return read_answer(style, await execute(dispatcher, call, style=style, user=user))

    return Model(call_tool)


@pytest.mark.costly
@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str, style: Style) -> None:
    run_scenario(name, model_of(style), style.value)


def names_of(style: Style, described: list[dict[str, Any]]) -> list[str]:
    if style is Style.GEMINI:
        (group,) = described
        return [each["name"] for each in group["functionDeclarations"]]
    return [each.get("function", each)["name"] for each in described]


@pytest.mark.costly
@pytest.mark.parametrize("style", Style)
def test_specs_list_the_tools_that_the_user_may_call_now(style: Style) -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            names = names_of(style, await specs(dispatcher, style=style.value, user="bob"))
            assert set(names) == {*dispatcher.catalog.tools, "read_result"}
            assert "secret" not in names_of(style, await specs(dispatcher, style=style, user="alice"))
            await dispatcher.registry.put("tool", {**lab.JOKE, "name": "tell-pun", "category": "fun"})
            assert "tell-pun" in names_of(style, await specs(dispatcher, style=style))
            found = names_of(style, await specs(dispatcher, style=style, category="fun"))
            assert found == ["tell-pun", "read_result"]
            assert await specs(dispatcher, style=style, category="none") == []
            found = names_of(style, await specs(dispatcher, style=style, user="alice", find="repeat a text"))
            assert found[0] == "repeat"
            assert len(found) <= 6  # five tools, and read_result

    asyncio.run(run())


def test_each_style_has_its_form() -> None:
    number = {"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]}

    async def run() -> None:
        async with lab.connect() as dispatcher:
            found = {style: await specs(dispatcher, style=style) for style in Style}
            (chat,) = [each for each in found[Style.OPENAI_CHAT] if each["function"]["name"] == "count"]
            assert chat["type"] == "function"
            assert chat["function"]["strict"] is True
            assert chat["function"]["parameters"] == {**number, "additionalProperties": False}
            (response,) = [each for each in found[Style.OPENAI_RESPONSES] if each["name"] == "count"]
            assert response == {"type": "function", **chat["function"]}
            (read_result,) = [each for each in found[Style.OPENAI_RESPONSES] if each["name"] == "read_result"]
            assert read_result["strict"] is False  # it has optional arguments
            (anthropic,) = [each for each in found[Style.ANTHROPIC] if each["name"] == "count"]
            assert anthropic.keys() == {"name", "description", "input_schema"}
            (group,) = found[Style.GEMINI]
            declared = {each["name"]: each for each in group["functionDeclarations"]}
            assert declared["count"]["parameters"] == number
            assert "parameters" not in declared["refuse"]
            (mcp,) = [each for each in found[Style.MCP] if each["name"] == "repeat"]
            assert mcp["inputSchema"]["required"] == ["text"]
            assert mcp["annotations"] == {"readOnlyHint": True, "idempotentHint": False}
            assert json.loads(json.dumps(found[Style.MCP])) == found[Style.MCP]

    asyncio.run(run())


def test_what_is_widened_is_reported() -> None:
    async def pay(amount: int, scale: dict[str, int]) -> str:
        """Pay."""
        return f"{amount} {scale}"

    async def run() -> None:
        async with dispatch.connect("memory://", catalog=[dispatch.Functions(pay)]) as dispatcher:
            assert (await specs(dispatcher, style="gemini")).widened == {"pay": ("/scale: additionalProperties",)}
            assert (await specs(dispatcher, style="anthropic")).widened == {}

    asyncio.run(run())


class SdkCall:
    """An object of an API's SDK."""

    def model_dump(self, **_options: Any) -> dict[str, Any]:
        return write_call(Style.OPENAI_CHAT, "repeat", {"text": "hi"})


def test_a_call_may_be_an_object_of_an_sdk_and_must_be_a_call() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            answer = await execute(dispatcher, SdkCall(), style="openai-chat", user="alice")
            assert answer == {"role": "tool", "tool_call_id": "c1", "content": "alice: hi"}
            for call in (object(), {"role": "user", "content": "hi"}):
                with pytest.raises(ValueError, match="Pass one call of a model's message"):
                    await execute(dispatcher, call, style="openai-chat")
            for style, part in (
                ("anthropic", {"type": "text", "text": "I add."}),
                ("anthropic", {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}),
                ("gemini", {"text": "I add."}),
                ("mcp", {"method": "tools/call", "params": {"name": "say"}}),
            ):
                with pytest.raises(ValueError, match=f"this is no call in the form of {style}"):
                    await execute(dispatcher, part, style=style)
            with pytest.raises(ValueError, match="there is no style 'openai'"):
                await execute(dispatcher, SdkCall(), style="openai")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("count", '{"to" 3}', "Tool 'count' was not executed: in its arguments ':' is missing"),
        ("count", '{"to": 3', "cut off"),
        ("drop", "{'table': 'users',}", "destructive"),
    ],
)
def test_a_call_that_cannot_be_read_is_answered(name: str, arguments: str, problem: str) -> None:
    @dispatch.tool(destructive=True)
    async def drop(table: str) -> str:
        """Drop a table."""
        raise AssertionError(table)

    async def run() -> None:
        sources: list[Any] = [dispatch.Functions(lab.count, drop)]
        async with dispatch.connect("memory://", catalog=sources) as dispatcher:
            call = {"id": "c1", "function": {"name": name, "arguments": arguments}}
            answer = await execute(dispatcher, call, style="openai-chat")
            error = json.loads(answer["content"])
            assert error["error"] == "invalid-arguments"
            assert problem in error["message"]

    asyncio.run(run())
