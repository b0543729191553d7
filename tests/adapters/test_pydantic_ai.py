"""Pydantic AI: an agent with a scripted model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai import Agent, ModelMessage, ModelResponse, RunContext, TextPart, ToolCallPart
from pydantic_ai.capabilities import ToolSearch
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import dispatch
from dispatch.adapters import pydantic_ai
from tests.adapters import lab
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario


def write_messages(*calls: tuple[str, dict[str, Any]], listed: list[list[str]] | None = None) -> FunctionModel:
    """A model that makes one call after the other, and records the tools that it sees."""
    remaining = [ToolCallPart(name, arguments, "c1") for name, arguments in calls]

    def reply(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if listed is not None:
            listed.append([each.name for each in info.function_tools])
        return ModelResponse([remaining.pop(0) if remaining else TextPart("done")])

    return FunctionModel(reply)


def read_returns(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def read_answers(messages: list[ModelMessage]) -> list[Answer]:
    return [Answer(str(each.content), each.outcome in ("failed", "retried")) for each in read_returns(messages)]


async def call_tool(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
    agent = Agent(write_messages((name, arguments)), toolsets=[pydantic_ai.toolset(dispatcher, user=user)])
    run = await agent.run("go")
    assert run.output == "done"
    (answer,) = read_answers(run.all_messages())
    return answer


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    run_scenario(name, Model(call_tool, answers_unknown="Unknown tool name"), "pydantic_ai")


def test_bad_arguments_are_a_retry_and_other_failures_are_none() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            model = write_messages(("count", {"to": "three"}), ("count", {"to": 2}), ("refuse", {}), ("refuse", {}))
            result = await Agent(model, toolsets=[pydantic_ai.toolset(dispatcher)], retries=1).run("go")
            outcomes = [each.outcome for each in read_returns(result.all_messages())]
            assert outcomes == ["retried", "success", "failed", "failed"]

    asyncio.run(run())


def test_a_result_that_is_no_longer_stored_ends_no_run() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            gone = ("read_result", {"handle": "expired"})
            agent = Agent(write_messages(gone, gone, gone), toolsets=[pydantic_ai.toolset(dispatcher)], retries=1)
            result = await agent.run("go")
            assert [each.outcome for each in read_returns(result.all_messages())] == ["failed"] * 3
            assert result.output == "done"

    asyncio.run(run())


@dataclass
class Deps:
    user: str


def test_the_user_of_the_run_and_the_catalogue_of_the_step() -> None:
    async def add_tool(dispatcher: dispatch.Dispatcher) -> None:
        await dispatcher.registry.put("tool", {**lab.JOKE, "name": "tell-pun"})

    def user_of(context: RunContext[Deps]) -> str:
        return context.deps.user

    async def run() -> None:
        async with lab.connect() as dispatcher:
            listed: list[list[str]] = []
            model = write_messages(
                ("repeat", {"text": "a"}), ("add", {}), ("tell-pun", {"topic": "cat"}), listed=listed
            )
            toolset = pydantic_ai.toolset(dispatcher, user=user_of)
            agent = Agent(model, toolsets=[toolset], deps_type=Deps)

            @agent.tool_plain
            async def add() -> str:
                await add_tool(dispatcher)
                return "added"

            result = await agent.run("go", deps=Deps("bob"))
            texts = [each.text for each in read_answers(result.all_messages())]
            assert texts == ["bob: a", "added", "bob: why did the cat cross the road?"]
            assert ["tell-pun" in names for names in listed] == [False, False, True, True]
            assert "secret" in listed[0]

    asyncio.run(run())


def test_a_search_finds_tools_that_are_not_loaded() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            listed: list[list[str]] = []
            model = write_messages(
                ("search_tools", {"queries": ["repeat a text"]}), ("repeat", {"text": "a"}), listed=listed
            )
            agent = Agent(
                model,
                toolsets=[pydantic_ai.toolset(dispatcher, user="alice", defer_loading=True)],
                capabilities=[ToolSearch(strategy=pydantic_ai.find_tools(dispatcher, user="alice", limit=1))],
            )
            result = await agent.run("go")
            assert read_answers(result.all_messages())[-1] == Answer("alice: a", False)
            assert set(listed[0]) == {"search_tools", "read_result"}
            assert "repeat" in listed[1]
            assert "refuse" not in listed[1]

    asyncio.run(run())
