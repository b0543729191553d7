from __future__ import annotations

from typing import Any

import pytest

import dispatch
from tests.examples.conftest import TOOLS, Load


class Scripted:
    """A model that replies what it was told to; ``seen`` are the tools it was offered."""

    def __init__(self, *replies: dict[str, Any]) -> None:
        self.replies = list(replies)
        self.seen: list[dict[str, Any]] = []

    def reply(self, tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> dict[str, Any]:
        self.seen = tools
        return self.replies.pop(0)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "call": {"name": name, "arguments": arguments}}


END = {"role": "assistant", "content": "That was all."}


async def test_the_whole_conversation(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    messages = await load("agent_loop").run("memory://")
    called = [message["call"]["name"] for message in messages if "call" in message]
    told = [message["content"] for message in messages if message["role"] == "tool"]
    assert called == ["calculate", "query-customers", "query-products", "calculate", "tell-joke"]
    assert told[0] == "61.5"
    assert "a late delivery, in 14 of 31 letters" in told[1]
    assert "costs 89 euros" in told[2]
    assert told[3].startswith("Error (division-by-zero): ")
    assert told[4].startswith("Hello alice! ")
    assert messages[-1] == {"role": "assistant", "content": "All 5 tasks are done."}
    printed = capsys.readouterr().out
    assert "-> calculate {'expression': '(17.5 + 3) * 12 / 4'}\n<- 61.5\n" in printed


async def test_the_model_is_offered_every_tool_with_its_schema(load: Load) -> None:
    model = Scripted(END)
    async with dispatch.connect("memory://", catalog=TOOLS) as dispatcher:
        await load("agent_loop").run_agent(model, dispatcher, "alice")
    offered = {tool["name"]: tool["parameters"] for tool in model.seen}
    assert set(offered) == {"calculate", "query-customers", "query-products", "tell-joke", "tell-story"}
    assert offered["tell-story"]["required"] == ["subject"]
    assert offered["tell-story"]["properties"]["words"]["type"] == "integer"
    assert all(tool["description"] for tool in model.seen)


async def test_a_tool_that_there_is_not_is_told_to_the_model(load: Load) -> None:
    model = Scripted(call("tell-jokes", topic="cats"), END)
    async with dispatch.connect("memory://", catalog=TOOLS) as dispatcher:
        messages = await load("agent_loop").run_agent(model, dispatcher, "alice")
    assert messages[1]["content"].startswith("Error (unknown-tool): ")
    assert "'tell-joke'" in messages[1]["content"]


async def test_a_service_that_does_not_answer_is_told_to_the_model(load: Load) -> None:
    model = Scripted(call("calculate", expression="1 + 1"), END)
    async with dispatch.connect("memory://", catalog=TOOLS) as dispatcher:
        messages = await load("agent_loop").run_agent(model, dispatcher, "alice")
    assert messages[1]["content"].startswith(
        "Error (no-instance): Tool 'calculate' was not executed: no service consumes"
    )
