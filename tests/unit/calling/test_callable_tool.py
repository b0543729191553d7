"""Tools of a toolkit are tools for a model: functions by their signatures, tools of a dispatcher over its path."""

from __future__ import annotations

import json
from typing import Any

import dispatch
from dispatch.calling import FunctionCallStatus, call_function, function_calling_prompt
from dispatch.calling.calls import list_tools
from dispatch.toolkit import Action, Tool, Toolkit, ToolkitService

SUCCEEDED, FAILED = FunctionCallStatus.SUCCEEDED, FunctionCallStatus.FAILED


@dispatch.tool(read_only=True)
async def find_order(number: int, shop: str = "main") -> str:
    """Find an order."""
    return f"order {number} of {shop}"


def refund(**arguments: Any) -> str:
    return f"paid {arguments}"


def call(name: str, /, **args: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': args})}</tool_call>\n"


async def test_functions_of_a_toolkit_are_called_by_name() -> None:
    tools = [Tool("find", "Find an order.", find_order), Tool("refund", "Pay back.", refund)]
    found, paid = await call_function(tools, call("find", number=3) + call("refund", number=3)) or []
    assert (found.status, found.output) == (SUCCEEDED, "order 3 of main")
    assert (paid.status, paid.output) == (SUCCEEDED, "paid {'number': 3}")
    (cut,) = await call_function(tools, call("find", number=3).replace("}</tool_call>\n", "")) or []
    assert cut.status is SUCCEEDED, "declared read-only"
    (cut,) = await call_function(tools, call("refund", number=3).replace("}</tool_call>\n", "")) or []
    assert cut.status is FAILED


def test_the_prompt_has_the_schema_of_a_function() -> None:
    tools = [Tool("find", "Find an order.", find_order), Tool("refund", "Pay back.", refund)]
    first, second = (json.loads(line) for line in function_calling_prompt(tools).splitlines()[2:4])
    assert (first["name"], first["description"], first["parameters"]["required"]) == (
        "find",
        "Find an order.",
        ["number"],
    )
    assert second["parameters"] == {"type": "object"}


async def test_recommended_tools_of_a_dispatcher_take_its_path() -> None:
    ended = []
    async with dispatch.connect("memory://", catalog=[dispatch.Functions(find_order)]) as dispatcher:
        dispatcher.on_call(ended.append)
        service = ToolkitService(Toolkit.of(dispatcher))
        look = Action("look", "Look up", "Find out what the customer ordered.")
        service.add_action(look, next_actions=[], prev_actions=[])
        service.add_tool(dispatcher.tool("find_order"), [(look, 0.9)])
        tools, _ = service.recommend_tools_actions([look], user="alice")
        assert [tool.name for tool in list_tools(tools)] == ["find_order", "read_result"]
        text = call("find_order", number=3) + call("find_order", number="three")
        found, wrong = await call_function(tools, text) or []
        assert (found.status, found.output) == (SUCCEEDED, "order 3 of main")
        assert json.loads(wrong.output)["error"] == "invalid-arguments"
        assert {(each.tool, each.user, each.by_model) for each in ended} == {("find_order", "alice", True)}


async def test_a_tool_of_a_dispatcher_with_another_name_is_a_function() -> None:
    async with dispatch.connect("memory://", catalog=[dispatch.Functions(find_order)]) as dispatcher:
        tools = [Tool("look_up", "Look up.", dispatcher.tool("find_order").invoke)]
        (found,) = await call_function(tools, call("look_up", number=3)) or []
        assert (found.func_name, found.output) == ("look_up", "order 3 of main")
        (tool,) = list_tools(tools)
        assert (tool.parameters, getattr(tool, "read_only", None)) == (dispatcher.tool("find_order").parameters, True)
