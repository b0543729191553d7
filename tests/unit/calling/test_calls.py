"""Calls of a model's output are executed; results and errors are values, in order.
Tools of a toolkit are tools for a model: functions by their signatures, tools of a dispatcher over its path.
Calls in messages of model APIs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import pytest

import dispatch
from dispatch.calling import (
    MAX_CALLS,
    CallForm,
    FunctionCallStatus,
    call_function,
    current_context,
    format_answers,
    function_calling_prompt,
    list_tools,
    parse,
)
from dispatch.errors import ThrottledError
from dispatch.toolkit import Action, Tool, Toolkit, ToolkitService
from tests.helpers.clock import cancel_task
from tests.helpers.dispatcher_and_service import Service, catalog, stand

SUCCEEDED, FAILED = FunctionCallStatus.SUCCEEDED, FunctionCallStatus.FAILED


class LocalTool:
    def __init__(self, name: str, function: Callable[..., Any], *, read_only: bool = False, destructive: bool = False):
        self.name = name
        self.description = f"Runs {name}."
        self.parameters: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
        self.invoke = function
        self.read_only = read_only
        self.destructive = destructive


@dataclass
class Place:
    x: int


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


def call(name: str, /, **args: Any) -> str:
    content = {"name": name, "call_objective": "because", "args": args}
    return f"<function_call>{json.dumps(content)}</function_call>\n"


def add(a: int, b: int = 0) -> int:
    return a + b


async def test_results_in_the_order_of_the_calls() -> None:
    async def greet(name: str) -> str:
        return f"hello {name}"

    tools = [LocalTool("add", add), LocalTool("greet", greet)]
    first, second = await call_function(tools, "Now " + call("greet", name="你好") + call("add", a=1, b=2)) or []
    assert (first.func_name, first.func_args, first.call_objective) == ("greet", {"name": "你好"}, "because")
    assert (first.output, first.status) == ("hello 你好", SUCCEEDED)
    assert (second.output, second.status) == ("3", SUCCEEDED)


async def test_a_plain_function_is_no_tool() -> None:
    fix = r"the function add is no tool: it has no name\. Fix: offer functions with dispatch\.Functions"
    with pytest.raises(TypeError, match=fix):
        await call_function([add], call("add", a=1))  # type: ignore[list-item]
    with pytest.raises(TypeError, match=fix):
        function_calling_prompt([add])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("tools", "given"), [(add, "the function add"), (dispatch.connect("memory://"), "a Dispatcher")]
)
async def test_what_is_no_list_of_tools_is_told(tools: Any, given: str) -> None:
    with pytest.raises(TypeError, match=f"tools must be a list, .* not {given}"):
        await call_function(tools, call("add", a=1))


async def test_a_text_without_calls_is_none() -> None:
    assert await call_function([LocalTool("add", add)], "I have no questions.") is None


@pytest.mark.parametrize(
    ("result", "output"),
    [
        ("é\n", "é\n"),
        ({"a": "é"}, '{\n  "a": "é"\n}'),
        (None, "null"),
        ({1, 2} - {2}, "[\n  1\n]"),
        ([1], "[\n  1\n]"),
        ({"at": Place(1)}, '{\n  "at": {\n    "x": 1\n  }\n}'),
        (date(2026, 1, 2), '"2026-01-02"'),
        ({"a": 1j}, "{'a': 1j}"),
    ],
)
async def test_results_are_text(result: object, output: str) -> None:
    (found,) = await call_function([LocalTool("f", lambda: result)], call("f")) or []
    assert found.output == output


async def test_a_function_of_a_toolkit_gets_the_types_of_its_signature() -> None:
    def move(place: Place, day: date = date(2026, 1, 1), *, mode: Mode = Mode.FAST) -> str:
        return repr((place, day, mode))

    def anything(**values: Any) -> str:
        return repr(values)

    tools = [Tool("move", "Moves.", move), Tool("anything", "Does anything.", anything)]
    calls = [
        call("move", place={"x": 1.0}, day="2026-01-02", mode="slow"),
        call("move", place={"x": "1"}, speed=2),
        call("anything", place={"x": 1}),
    ]
    moved, refused, other = await call_function(tools, "".join(calls)) or []
    assert moved.output == "(Place(x=1), datetime.date(2026, 1, 2), <Mode.SLOW: 'slow'>)"
    assert (refused.status, refused.output) == (
        FAILED,
        "Tool 'move' was not executed: its arguments have 2 mistakes (/place/x must be an integer, not a string; /speed is "
        'not an expected property: "place", "day", "mode"). Correct the arguments.',
    )
    assert other.output == "{'place': {'x': 1}}"


async def test_errors_are_results() -> None:
    def divide(a: int) -> float:
        return 1 / a

    async def throttle() -> str:
        raise ThrottledError("rate-limited", "Tool 'x' was not executed: its rate limit is reached.", retry_after=3)

    tools = [LocalTool("divide", divide), LocalTool("throttle", throttle), LocalTool("add", add)]
    text = call("divide", a=0) + call("throttle") + call("add", c=1) + "<function_call>{'a' 1}</function_call>"
    results = await call_function(tools, text) or []
    assert [each.status for each in results] == [FAILED] * 4
    assert results[0].output == "Tool 'divide' failed with ZeroDivisionError: division by zero"
    assert results[1].output == "Tool 'x' was not executed: its rate limit is reached."
    assert "unexpected keyword argument 'c'" in results[2].output
    assert (results[3].func_name, results[3].func_args) == ("", {})
    assert results[3].output.startswith("The call at line 4, column ")


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        (
            "get_wether",
            ["get_weather", "put_file"],
            "No tool was executed: there is no tool 'get_wether'. Call 'get_weather' if you meant that, or another one of "
            "these: get_weather, put_file.",
        ),
        ("xyz", ["add"], "No tool was executed: there is no tool 'xyz'. Call one of these: add."),
        ("xyz", [], "No tool was executed: there is no tool 'xyz'. Report that no tools are loaded."),
    ],
)
async def test_an_unknown_name_lists_the_near_ones(name: str, known: list[str], message: str) -> None:
    (found,) = await call_function([LocalTool(each, add) for each in known], call(name)) or []
    assert (found.output, found.status) == (message, FAILED)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_call_that_is_cut_off_runs_only_if_its_tool_is_read_only(read_only: bool) -> None:
    paths: list[str] = []
    tools = [LocalTool("open", paths.append, read_only=read_only)]
    tools[0].invoke = lambda path: paths.append(path)
    (found,) = await call_function(tools, '<function_call>{"name": "open", "args": {"path":"/srv/da') or []
    assert paths == (["/srv/da"] if read_only else [])
    assert ("the text ended inside its call" in found.output) is not read_only
    cut = {"stop_reason": "max_tokens", "content": [{"type": "tool_use", "name": "open", "input": {"path": "/srv/da"}}]}
    (found,) = await call_function(tools, cut) or []
    assert ("its call was cut off" in found.output) is not read_only


@pytest.mark.parametrize("destructive", [False, True])
async def test_a_repaired_call_runs_only_if_its_tool_is_not_destructive(destructive: bool) -> None:
    tools = [LocalTool("add", add, destructive=destructive)]
    (found,) = await call_function(tools, call("add", a=1).replace("}}", ",}}")) or []
    assert (found.status, "it is destructive" in found.output) == (FAILED if destructive else SUCCEEDED, destructive)


async def test_read_only_calls_run_concurrently_and_the_others_in_order() -> None:
    log: list[str] = []
    both = asyncio.Barrier(2)

    async def read(key: str) -> str:
        await both.wait()
        log.append("read")
        return key

    async def write(key: str) -> str:
        log.append(f"start {key}")
        await asyncio.sleep(0)
        log.append(f"end {key}")
        return key

    tools = [LocalTool("read", read, read_only=True), LocalTool("write", write)]
    wanted = [("write", "a"), ("write", "b"), ("read", "c"), ("read", "d")]
    text = "".join(call(name, key=key) for name, key in wanted)
    async with asyncio.timeout(5):
        results = await call_function(tools, text + call("write", key="e")) or []
    assert [each.output for each in results] == list("abcde")
    assert log == ["start a", "end a", "start b", "end b", "read", "read", "start e", "end e"]


async def test_calls_beyond_the_limit_are_not_executed() -> None:
    ran: list[int] = []
    results = await call_function([LocalTool("f", lambda: ran.append(1))], call("f") * (MAX_CALLS + 3)) or []
    assert (len(ran), len(results)) == (MAX_CALLS, MAX_CALLS + 1)
    assert "rejected" in results[-1].output


async def test_cancelling_the_caller_cancels_the_calls() -> None:
    cancelled: list[int] = []
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(1)

    tools = [LocalTool("hang", hang, read_only=True)]
    task = asyncio.create_task(call_function(tools, call("hang") * 3))
    await started.wait()
    await asyncio.sleep(0)
    await cancel_task(task)
    assert cancelled == [1, 1, 1]


async def test_a_tool_that_cancels_itself_is_a_failed_call() -> None:
    def cancel() -> None:
        raise asyncio.CancelledError

    results = await call_function([LocalTool("f", cancel, read_only=True)], call("f") * 2) or []
    assert [(each.status, "was cancelled" in each.output) for each in results] == [(FAILED, True)] * 2


async def test_tools_read_the_context() -> None:
    (found,) = await call_function([LocalTool("who", current_context)], call("who"), context="alice") or []
    assert found.output == "alice"
    assert current_context() is None


async def test_tools_of_a_dispatcher_are_called_with_its_guards() -> None:
    def work(arguments: dict[str, Any]) -> str:
        if "path" in arguments:
            raise dispatch.ToolError("no-such-file", "There is no file.")
        return f"did {arguments}"

    service = Service(work)
    async with stand(service, catalog(read={"read-only": True}, remove={"destructive": True})) as (dispatcher, _):
        text = call("read", n=1) + call("remove", n=2).replace("}}", ",}}") + call("remove", path="/") + call("raed")
        results = await call_function(dispatcher.tools(user="alice"), text) or []
    assert [each.status for each in results] == [SUCCEEDED, FAILED, FAILED, FAILED]
    assert results[0].output == "did {'n': 1}"
    assert "it is destructive" in results[1].output
    assert "There is no file." in results[2].output
    assert "Call 'read' if you meant that" in results[3].output
    assert service.requests == [({}, {"n": 1}, "alice"), ({}, {"path": "/"}, "alice")]


# Answers
def native(form: CallForm) -> object:
    bad = '{"a" 1}'
    return {
        CallForm.OPENAI_CHAT: {
            "tool_calls": [
                {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}},
                {"id": "c2", "function": {"name": "add", "arguments": bad}},
            ]
        },
        CallForm.OPENAI_RESPONSES: [
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "add", "arguments": bad},
        ],
        CallForm.ANTHROPIC: {
            "content": [
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "add", "input": bad},
            ]
        },
        CallForm.GEMINI: [
            {"functionCall": {"name": "add", "args": {"a": 1}}},
            {"functionCall": {"id": "c2", "name": "add", "args": bad}},
        ],
    }[form]


async def test_answers_in_native_forms_have_the_ids_of_the_calls() -> None:
    answers = {}
    errors = {}
    for form in (CallForm.OPENAI_CHAT, CallForm.OPENAI_RESPONSES, CallForm.ANTHROPIC, CallForm.GEMINI):
        results = await call_function([LocalTool("add", add)], native(form)) or []
        errors[form] = results[1].output
        answers[form] = format_answers(results)
    assert answers[CallForm.OPENAI_CHAT] == [
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": errors[CallForm.OPENAI_CHAT]},
    ]
    assert answers[CallForm.OPENAI_RESPONSES] == [
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": errors[CallForm.OPENAI_RESPONSES]},
    ]
    (message,) = answers[CallForm.ANTHROPIC]
    assert [(block["tool_use_id"], block["is_error"]) for block in message["content"]] == [("c1", False), ("c2", True)]
    (message,) = answers[CallForm.GEMINI]
    assert message["parts"] == [
        {"functionResponse": {"name": "add", "response": {"output": "1"}}},
        {"functionResponse": {"id": "c2", "name": "add", "response": {"error": errors[CallForm.GEMINI]}}},
    ]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            '<tool_response>\n{"name": "f", "content": "<\\/tool_response> <\\/function_call_result>"}\n</tool_response>',
        ),
        (
            call("f").strip(),
            '<function_call_result>\n{"name": "f", "call_objective": "because", "status": "SUCCEEDED", "output": '
            '"<\\/tool_response> <\\/function_call_result>"}\n</function_call_result>',
        ),
        ("Thought: x\nAction: f\nArgs: {}\n", "Observation: </tool_response> </function_call_result>"),
    ],
)
async def test_answers_in_texts(text: str, answer: str) -> None:
    tools = [LocalTool("f", lambda: "</tool_response> </function_call_result>")]
    results = await call_function(tools, text) or []
    assert format_answers(results) == [{"role": "user", "content": answer}]


async def test_an_output_without_calls_has_no_answers() -> None:
    assert format_answers(await call_function([LocalTool("f", lambda: "x")], "No call.")) == []


# The prompt
def test_the_prompt_shows_each_tool_and_is_no_call_except_for_its_example() -> None:
    prompt = function_calling_prompt([LocalTool("add", add), LocalTool("sub", add)])
    for line in prompt.splitlines()[2:4]:
        assert json.loads(line)["parameters"]["properties"] == {"a": {"type": "integer"}}
    assert [each.name for each in parse(prompt)] == ["TOOL"]
    assert function_calling_prompt([]) == "No tools are available. Answer without calls.\n"


@dispatch.tool(read_only=True)
async def find_order(number: int, shop: str = "main") -> str:
    """Find an order."""
    return f"order {number} of {shop}"


def refund(**arguments: Any) -> str:
    return f"paid {arguments}"


def call_callable_tool(name: str, /, **args: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': args})}</tool_call>\n"


async def test_functions_of_a_toolkit_are_called_by_name() -> None:
    tools = [Tool("find", "Find an order.", find_order), Tool("refund", "Pay back.", refund)]
    text = call_callable_tool("find", number=3) + call_callable_tool("refund", number=3)
    found, paid = await call_function(tools, text) or []
    assert (found.status, found.output) == (SUCCEEDED, "order 3 of main")
    assert (paid.status, paid.output) == (SUCCEEDED, "paid {'number': 3}")
    (cut,) = await call_function(tools, call_callable_tool("find", number=3).replace("}</tool_call>\n", "")) or []
    assert cut.status is SUCCEEDED, "declared read-only"
    (cut,) = await call_function(tools, call_callable_tool("refund", number=3).replace("}</tool_call>\n", "")) or []
    assert cut.status is FAILED


def test_the_prompt_has_the_schema_of_a_function() -> None:
    tools = [Tool("find", "Find an order.", find_order), Tool("refund", "Pay back.", refund)]
    first, second = (json.loads(line) for line in function_calling_prompt(tools).splitlines()[2:4])
    assert (first["name"], first["description"]) == ("find", "Find an order.")
    assert first["parameters"]["required"] == ["number"]
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
        text = call_callable_tool("find_order", number=3) + call_callable_tool("find_order", number="three")
        found, wrong = await call_function(tools, text) or []
        assert (found.status, found.output) == (SUCCEEDED, "order 3 of main")
        assert json.loads(wrong.output)["error"] == "invalid-arguments"
        assert {(each.tool, each.user, each.by_model) for each in ended} == {("find_order", "alice", True)}


async def test_a_tool_of_a_dispatcher_with_another_name_is_a_function() -> None:
    async with dispatch.connect("memory://", catalog=[dispatch.Functions(find_order)]) as dispatcher:
        tools = [Tool("look_up", "Look up.", dispatcher.tool("find_order").invoke)]
        (found,) = await call_function(tools, call_callable_tool("look_up", number=3)) or []
        assert (found.func_name, found.output) == ("look_up", "order 3 of main")
        (tool,) = list_tools(tools)
        assert (tool.parameters, getattr(tool, "read_only", None)) == (dispatcher.tool("find_order").parameters, True)


CHAT: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
}
GEMINI_CALL = {"id": "c1", "name": "f", "args": {"a": 1}}
NATIVE = {
    CallForm.OPENAI_CHAT: {"choices": [{"finish_reason": "tool_calls", "message": CHAT}]},
    CallForm.OPENAI_RESPONSES: {
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "f", "arguments": '{"a": 1}'},
        ],
    },
    CallForm.ANTHROPIC: {
        "role": "assistant",
        "stop_reason": "tool_use",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        ],
    },
    CallForm.GEMINI: {"candidates": [{"content": {"role": "model", "parts": [{"functionCall": GEMINI_CALL}]}}]},
}


class SdkObject:
    tool_calls = ()


SDK_OBJECT = SdkObject()


@pytest.mark.parametrize(
    "output",
    [b"text", bytearray(b"text"), 3, SDK_OBJECT, [SDK_OBJECT], {"message": SDK_OBJECT}, {"tool_calls": [SDK_OBJECT]}],
)
async def test_an_output_that_is_neither_text_nor_decoded_is_told(output: object) -> None:
    with pytest.raises(TypeError, match=r"must be a text \(bytes.decode\(\)\) or a message in decoded JSON"):
        await call_function([LocalTool("add", add)], output)
    assert await call_function([LocalTool("add", add)], None) is None, "a message without text"


@pytest.mark.parametrize("form", NATIVE)
def test_a_response_and_its_json_text_are_read(form: CallForm) -> None:
    for output in (NATIVE[form], json.dumps(NATIVE[form])):
        (call,) = parse(output)
        assert (call.name, call.args, call.call_id, call.form) == ("f", {"a": 1}, "c1", form)
        assert (call.repaired, call.truncated, call.error) == (False, False, None)


def test_a_message_alone_is_read() -> None:
    assert [call.call_id for call in parse(CHAT)] == ["c1"]
    assert [call.call_id for call in parse([CHAT, CHAT])] == ["c1", "c1"]


def test_arguments_that_are_cut_off_are_truncated() -> None:
    function = {"name": "f", "arguments": '{"path": "/srv/da'}
    (call,) = parse({"tool_calls": [{"id": "c1", "function": function}]})
    assert (call.args, call.truncated) == ({"path": "/srv/da"}, True)


def test_an_object_in_a_response_that_reached_its_limit_is_truncated() -> None:
    (call,) = parse({**NATIVE[CallForm.ANTHROPIC], "stop_reason": "max_tokens"})
    assert call.truncated


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [("[1]", "are a list"), ('{"a" 1}', "':' is missing"), ('{"a": 1} x', "go on behind"), (3, "are a number")],
)
def test_arguments_that_are_no_object_are_an_error_with_the_id(arguments: object, reason: str) -> None:
    (call,) = parse({"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": arguments}}]})
    assert (call.name, call.args, call.call_id) == ("f", {}, "c1")
    assert call.error.startswith("Tool 'f' was not executed: ")
    assert reason in call.error


@pytest.mark.parametrize("arguments", ["", None, "{}", " ", "null"])
def test_missing_arguments_are_none(arguments: object) -> None:
    (call,) = parse({"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": arguments}}]})
    assert (call.args, call.error) == ({}, None)


def test_each_call_beyond_the_limit_keeps_its_id() -> None:
    calls = parse({"tool_calls": [{**CHAT["tool_calls"][0], "id": f"c{n}"} for n in range(MAX_CALLS + 2)]})
    assert [call.call_id for call in calls] == [f"c{n}" for n in range(MAX_CALLS + 2)]
    assert [call.error is None for call in calls] == [True] * MAX_CALLS + [False] * 2


@pytest.mark.parametrize("output", [{}, [], None, [3], {"content": "hello"}, '{"tool_calls": 3}', '{"tool_use": '])
def test_other_values_have_no_calls(output: object) -> None:
    assert parse(output) == []
