"""CrewAI: a crew with a scripted model, in async and in sync runs."""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")

import pytest
from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool
from pydantic import PrivateAttr

import dispatch
from dispatch.adapters import crewai
from tests.adapters import lab
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario


class ScriptedModel(BaseLLM):
    """Calls one tool, and replies when it has the answer; records what it is offered, and the answer."""

    _calls: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _answers: list[str] = PrivateAttr(default_factory=list)
    _offered: dict[str, Any] = PrivateAttr(default_factory=dict)

    def supports_function_calling(self) -> bool:
        return True

    def get_context_window_size(self) -> int:
        return 1_000_000  # CrewAI shows a model with less only the first lines of a long result

    def call(self, messages: Any, tools: Any = None, **_options: Any) -> Any:
        self._offered.update({each["function"]["name"]: each["function"] for each in tools or ()})
        self._answers += [each["content"] for each in messages if each["role"] == "tool"]
        if self._calls:
            return [self._calls.pop(0)]
        return "done"

    async def acall(self, messages: Any, tools: Any = None, **options: Any) -> Any:
        return self.call(messages, tools, **options)


def create_crew(tools: list[BaseTool], name: str, arguments: dict[str, Any]) -> tuple[Crew, ScriptedModel]:
    model = ScriptedModel(model="scripted")
    model._calls = [{"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}]
    agent = Agent(role="helper", goal="help", backstory="none", llm=model, tools=tools, max_retry_limit=0)
    task = Task(description="go", expected_output="done", agent=agent)
    return Crew(agents=[agent], tasks=[task], share_crew=False), model


def read_answer(output: Any, model: ScriptedModel) -> Answer:
    assert output.raw == "done"
    failures = [each for task in output.tasks_output for each in task.tool_failures]
    return Answer(model._answers[-1], bool(failures))


async def call_async(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
    crew, model = create_crew(await crewai.tools(dispatcher, user=user), name, arguments)
    return read_answer(await crew.akickoff(), model)


async def call_sync(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
    crew, model = create_crew(await crewai.tools(dispatcher, user=user), name, arguments)
    return read_answer(await asyncio.to_thread(crew.kickoff), model)


UNKNOWN = "Tool not found"


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    run_scenario(name, Model(call_async, answers_unknown=UNKNOWN), "crewai")


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - {"cancel"}))  # a thread cannot be cancelled
def test_scenarios_in_sync_runs(name: str) -> None:
    run_scenario(name, Model(call_sync, answers_unknown=UNKNOWN))


def test_a_model_is_offered_the_schema_of_the_tool() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            crew, model = create_crew(await crewai.tools(dispatcher), "repeat", {"text": "a"})
            assert read_answer(await crew.akickoff(), model).text == ": a"
            parameters = model._offered["repeat"]["parameters"]
            assert parameters["properties"]["text"]["type"] == "string"
            assert parameters["required"] == ["text"]
            assert "secret" not in model._offered

    asyncio.run(run())


def test_calls_are_not_answered_from_a_cache() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            tools = {tool.name: tool for tool in await crewai.tools(dispatcher, user="alice")}
            assert await tools["limited"].arun() == "done"
            failure = await tools["limited"].arun()
            assert (failure.reason.value, failure.retryable) == ("tool_reported", True)
            failure = await tools["count"].arun(to="three")
            assert (failure.reason.value, failure.retryable) == ("invalid_input", False)
            assert tools["repeat"].cache_function({}, "") is False

    asyncio.run(run())
