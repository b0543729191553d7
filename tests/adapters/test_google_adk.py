"""Google's Agent Development Kit: a runner with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import PrivateAttr

import dispatch
from dispatch.adapters import execute, google_adk, specs
from tests.adapters import lab
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario


class ScriptedModel(BaseLlm):
    """Calls one tool, and replies when it has the answer; records what it is offered."""

    _remaining: list[types.Part] = PrivateAttr(default_factory=list)
    _offered: dict[str, types.FunctionDeclaration] = PrivateAttr(default_factory=dict)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        for tool in llm_request.config.tools or ():
            self._offered.update({each.name: each for each in tool.function_declarations or ()})
        yield LlmResponse(content=types.Content(role="model", parts=[self._remaining.pop(0)]))


async def run_agent(
    dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str
) -> tuple[dict[str, Any], dict[str, types.FunctionDeclaration]]:
    model = ScriptedModel(model="scripted")
    model._remaining = [
        types.Part(function_call=types.FunctionCall(id="c1", name=name, args=arguments)),
        types.Part(text="done"),
    ]
    agent = LlmAgent(
        name="agent",
        model=model,
        tools=[google_adk.toolset(dispatcher)],
        on_tool_error_callback=google_adk.answer_unknown_tools(dispatcher),
    )
    runner = InMemoryRunner(agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id=user)
    message = types.Content(role="user", parts=[types.Part(text="go")])
    parts: list[types.Part] = []
    async for event in runner.run_async(user_id=user, session_id=session.id, new_message=message):
        parts += event.content.parts if event.content else ()
    assert parts[-1].text == "done"
    (response,) = [part.function_response for part in parts if part.function_response]
    return response.response, model._offered


async def call_tool(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
    response, _ = await run_agent(dispatcher, name, arguments, user)
    ((key, text),) = response.items()
    assert key in ("result", "error")
    return Answer(text, key == "error")


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    run_scenario(name, Model(call_tool), "google_adk")


def test_declarations_are_in_the_dialect_of_gemini() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            _, offered = await run_agent(dispatcher, "repeat", {"text": "a"}, "alice")
            assert set(offered) == {*dispatcher.catalog.tools, "read_result"} - {"secret"}
            assert offered["refuse"].parameters is None
            count = offered["count"].parameters
            assert (count.type, count.required) == (types.Type.OBJECT, ["to"])
            assert count.properties["to"].type == types.Type.INTEGER

    asyncio.run(run())


def test_calls_and_declarations_of_the_sdk_of_gemini() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            described = await specs(dispatcher, style="gemini", user="bob")
            declared = types.Tool.model_validate(described[0]).function_declarations
            assert {each.name for each in declared} == {*dispatcher.catalog.tools, "read_result"}
            call = types.FunctionCall(id="c1", name="repeat", args={"text": "a"})
            answer = await execute(dispatcher, call, style="gemini", user="bob")
            part = types.Part.model_validate(answer)
            assert (part.function_response.id, part.function_response.response) == ("c1", {"output": "bob: a"})

    asyncio.run(run())


def test_another_error_stays_one() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            answer = google_adk.answer_unknown_tools(dispatcher, user="alice")
            (tool, *_) = await google_adk.toolset(dispatcher, user="alice").get_tools()
            assert await answer(tool, {}, None, ValueError("no")) is None

    asyncio.run(run())
