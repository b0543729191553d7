"""Microsoft's Agent Framework: an agent with a scripted chat client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
)

import dispatch
from dispatch.adapters import agent_framework
from tests.adapters import lab
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario


class ScriptedClient(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """Calls one tool, and replies when it has the answer."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self._remaining = [
            Content.from_function_call(call_id="c1", name=name, arguments=arguments),
            Content.from_text("done"),
        ]

    def _inner_get_response(self, **_options: Any) -> Any:
        async def reply() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message(role="assistant", contents=[self._remaining.pop(0)])])

        return reply()


async def run_agent(tools: list[Any], name: str, arguments: dict[str, Any], **options: Any) -> Content:
    response = await Agent(ScriptedClient(name, arguments), tools=tools).run("go", **options)
    assert response.text == "done"
    contents = [content for message in response.messages for content in message.contents]
    (result,) = [content for content in contents if content.type == "function_result"]
    assert result.call_id == "c1"
    return result


async def call_tool(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
    tools = await agent_framework.tools(dispatcher, user=user)
    result = await run_agent(tools, name, arguments)
    marked = any((item.additional_properties or {}).get("is_error") for item in result.items or ())
    return Answer(str(result.result), marked or result.exception is not None)


@pytest.mark.costly
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    run_scenario(name, Model(call_tool, answers_unknown="not found"), "agent_framework")


def test_the_form_of_a_tool() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            tools = {tool.name: tool for tool in await agent_framework.tools(dispatcher)}
            assert all(isinstance(tool, FunctionTool) for tool in tools.values())
            assert tools["repeat"].parameters() == dispatcher.tool("repeat").parameters
            (content,) = await tools["repeat"].invoke(arguments={"text": "a"})
            assert content.text == ": a"
            assert await tools["repeat"].invoke(text="b", skip_parsing=True) == ": b"

    asyncio.run(run())


def test_the_user_of_the_run() -> None:
    def user_of(context: FunctionInvocationContext) -> str:
        return str(context.kwargs["user"])

    async def run() -> None:
        async with lab.connect() as dispatcher:
            tools = await agent_framework.tools(dispatcher, user=user_of)
            result = await run_agent(tools, "repeat", {"text": "a"}, function_invocation_kwargs={"user": "bob"})
            assert result.result == "bob: a"

    asyncio.run(run())
