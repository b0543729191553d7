"""LangChain: an agent of ``langchain`` and a ``ToolNode`` of LangGraph with a scripted model, in async and in sync runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool

import dispatch
from dispatch.adapters import langchain
from tests.adapters import lab
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario


class ScriptedModel(GenericFakeChatModel):
    """Calls one tool, and replies when it has the answer."""

    def bind_tools(self, tools: Any, **_options: Any) -> ScriptedModel:
        return self


def write_messages(name: str, arguments: dict[str, Any]) -> Any:
    call = {"name": name, "args": arguments, "id": "c1", "type": "tool_call"}
    return iter([AIMessage(content="", tool_calls=[call]), AIMessage(content="done")])


def read_answer(state: dict[str, Any]) -> Answer:
    (message,) = [each for each in state["messages"] if isinstance(each, ToolMessage)]
    assert state["messages"][-1].content == "done"
    assert message.tool_call_id == "c1"
    return Answer(str(message.content), message.status == "error")


async def call_async(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
    tools = await langchain.tools(dispatcher, user=user)
    agent = create_agent(ScriptedModel(messages=write_messages(name, arguments)), tools)
    return read_answer(await agent.ainvoke({"messages": [{"role": "user", "content": "go"}]}))


async def call_sync(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
    tools = await langchain.tools(dispatcher, user=user)
    agent = create_agent(ScriptedModel(messages=write_messages(name, arguments)), tools)
    return read_answer(await asyncio.to_thread(agent.invoke, {"messages": [{"role": "user", "content": "go"}]}))


UNKNOWN = "is not a valid tool, try one of"


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    run_scenario(name, Model(call_async, answers_unknown=UNKNOWN), "langchain")


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - {"cancel"}))  # a thread cannot be cancelled
def test_scenarios_in_sync_runs(name: str) -> None:
    run_scenario(name, Model(call_sync, answers_unknown=UNKNOWN))


def test_the_form_of_a_tool() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            tools = {tool.name: tool for tool in await langchain.tools(dispatcher)}
            assert all(isinstance(tool, StructuredTool) for tool in tools.values())
            assert "secret" not in tools
            assert tools["repeat"].args_schema == dispatcher.tool("repeat").parameters
            assert (tools["repeat"].description, tools["repeat"].response_format) == (
                "Repeat a text.",
                "content_and_artifact",
            )
            assert await tools["repeat"].ainvoke({"text": "a"}) == ": a"
            call = {"name": "repeat", "args": {"text": "a"}, "id": "c1", "type": "tool_call"}
            message = await tools["repeat"].ainvoke(call)
            assert (message.content, message.artifact.text, message.artifact.is_error) == (": a", ": a", False)
            assert (await tools["repeat"].coroutine(text="b"))[0] == ": b"
            assert (await asyncio.to_thread(tools["repeat"].func, text="c"))[0] == ": c"

    asyncio.run(run())


def test_arguments_may_have_the_names_of_langchains_own() -> None:
    async def merge(config: str, run_manager: str, callbacks: str) -> str:
        """Merge."""
        return config + run_manager + callbacks

    async def run() -> None:
        async with dispatch.connect("memory://", catalog=[dispatch.Functions(merge)]) as dispatcher:
            tool, _read_result = await langchain.tools(dispatcher)
            arguments = {"config": "a", "run_manager": "b", "callbacks": "c"}
            assert await tool.ainvoke(arguments) == "abc"
            assert await asyncio.to_thread(tool.invoke, arguments) == "abc"

    asyncio.run(run())


def test_the_user_of_the_run() -> None:
    def user_of(config: RunnableConfig) -> str:
        return str(config["configurable"]["user_id"])

    async def run() -> None:
        async with lab.connect() as dispatcher:
            tools = {tool.name: tool for tool in await langchain.tools(dispatcher, user=user_of)}
            config: RunnableConfig = {"configurable": {"user_id": "bob"}}
            assert await tools["repeat"].ainvoke({"text": "a"}, config) == "bob: a"
            assert await tools["tell-joke"].ainvoke({"topic": "cat"}, config) == "bob: why did the cat cross the road?"

    asyncio.run(run())


def test_a_sync_call_on_the_event_loop_of_the_dispatcher_is_refused_instead_of_blocking() -> None:
    async def run() -> None:
        async with lab.connect() as dispatcher:
            tools = {tool.name: tool for tool in await langchain.tools(dispatcher)}
            with pytest.raises(RuntimeError, match=r"Use ainvoke, or run the agent in another thread"):
                tools["repeat"].invoke({"text": "a"})
        with pytest.raises(RuntimeError, match="its dispatcher is closed"):
            await asyncio.to_thread(lambda: asyncio.run(invoke_elsewhere(tools["repeat"])))

    async def invoke_elsewhere(tool: StructuredTool) -> None:
        tool._loop = closed
        tool.invoke({"text": "a"})

    closed = asyncio.new_event_loop()
    closed.close()
    asyncio.run(run())
