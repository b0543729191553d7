"""The OpenAI Agents SDK: a runner with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from agents import Agent, FunctionTool, ModelResponse, RunConfig, RunContextWrapper, Runner, Usage
from agents import Model as AgentModel
from agents.items import ToolCallOutputItem
from openai.types.chat.chat_completion_message_function_tool_call import ChatCompletionMessageFunctionToolCall, Function
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import dispatch
from dispatch.adapters import execute, openai_agents
from tests.adapters import lab
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario

UNTRACED = RunConfig(tracing_disabled=True, tool_not_found_behavior="return_error_to_model")


class ScriptedModel(AgentModel):
    """Calls one tool, and replies when it has the answer."""

    def __init__(self, name: str, arguments: str) -> None:
        self._remaining: list[Any] = [
            ResponseFunctionToolCall(type="function_call", call_id="c1", name=name, arguments=arguments),
            ResponseOutputMessage(
                id="m1",
                type="message",
                role="assistant",
                status="completed",
                content=[ResponseOutputText(type="output_text", text="done", annotations=[])],
            ),
        ]

    async def get_response(self, *_arguments: Any, **_options: Any) -> ModelResponse:
        return ModelResponse(output=[self._remaining.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_arguments: Any, **_options: Any) -> AsyncIterator[Any]:
        raise AssertionError("the runs are not streamed")


async def run_agent(tools: list[Any], name: str, arguments: str, context: Any = None) -> str:
    agent = Agent(name="agent", model=ScriptedModel(name, arguments), tools=tools)
    result = await Runner.run(agent, "go", context=context, run_config=UNTRACED)
    assert result.final_output == "done"
    (output,) = [item for item in result.new_items if isinstance(item, ToolCallOutputItem)]
    return str(output.output)


async def call_tool(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
    tools = await openai_agents.tools(dispatcher, user=user)
    return Answer(await run_agent(tools, name, json.dumps(arguments)), False)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    run_scenario(name, Model(call_tool, answers_unknown="not found", is_marked=False), "openai_agents")


def test_strict_mode_only_where_it_loses_nothing() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            tools = {tool.name: tool for tool in await openai_agents.tools(dispatcher)}
            assert all(isinstance(tool, FunctionTool) for tool in tools.values())
            assert tools["repeat"].strict_json_schema is True
            assert tools["repeat"].params_json_schema["additionalProperties"] is False
            assert tools["read_result"].strict_json_schema is False
            assert tools["read_result"].params_json_schema["required"] == ["handle"]
            assert "secret" not in tools

    asyncio.run(run())


def test_calls_of_the_sdk_of_openai() -> None:
    responses = ResponseFunctionToolCall(type="function_call", call_id="c1", name="repeat", arguments='{"text": "a"}')
    function = Function(name="repeat", arguments='{"text": "b"}')
    chat = ChatCompletionMessageFunctionToolCall(id="c2", type="function", function=function)

    async def run() -> None:
        async with lab.connect() as dispatcher:
            answer = await execute(dispatcher, responses, style="openai-responses", user="bob")
            assert answer == {"type": "function_call_output", "call_id": "c1", "output": "bob: a"}
            answer = await execute(dispatcher, chat, style="openai-chat", user="bob")
            assert answer == {"role": "tool", "tool_call_id": "c2", "content": "bob: b"}

    asyncio.run(run())


@dataclass
class Context:
    user: str


def test_the_user_of_the_run() -> None:
    def user_of(context: RunContextWrapper[Context]) -> str:
        return context.context.user

    async def run() -> None:
        async with lab.connect() as dispatcher:
            tools = await openai_agents.tools(dispatcher, user=user_of)
            assert await run_agent(tools, "repeat", '{"text": "a"}', Context("bob")) == "bob: a"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [('{"to" 3}', "':' is missing"), ('{"to": 3', "cut off"), ("[1]", "was not executed"), ('{"to": 3,}', "")],
)
def test_arguments_that_are_not_json(arguments: str, problem: str) -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            output = await run_agent(await openai_agents.tools(dispatcher), "count", arguments)
            if not problem:
                assert output == "0 1 2 "  # repaired
                return
            error = json.loads(output)
            assert error["error"] == "invalid-arguments"
            assert problem in error["message"]

    asyncio.run(run())
