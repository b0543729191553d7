"""The executor of functions, without a dispatcher."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest

from dispatch.calls.local import CallContext, LocalCall, RefusedCallError
from dispatch.errors import InvalidArgumentsError, RejectedError, ThrottledError, ToolError
from dispatch.functions.schema import tool
from dispatch.functions.sources import FunctionExecutor, FunctionTool
from dispatch.messaging.wire import write_result


def create(*functions: Any) -> FunctionExecutor:
    executor = FunctionExecutor()
    tools = [FunctionTool(function, lambda type: type is CallContext) for function in functions]
    executor.replace_tools({each.key: each for each in tools})
    return executor


def call(function: object, arguments: dict[str, Any] | None = None, concurrency: int | None = None) -> LocalCall:
    context = CallContext(tool="run", user="alice", call_id="1", attempt=1, deadline=0.0, clock=lambda: 0.0)
    return LocalCall("run", arguments or {}, {"tool": function}, context, concurrency)


@tool(name="run")
async def run(number: int, context: CallContext) -> str:
    return f"{number} for {context.user}"


async def test_arguments_and_context() -> None:
    assert await create(run).execute(call("run", {"number": 3.0})) == "3 for alice"


@pytest.mark.parametrize("arguments", [{"number": "3"}, {}, {"number": 3, "context": {"user": "root"}}])
async def test_invalid_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(RefusedCallError) as caught:
        await create(run).execute(call("run", arguments))
    assert isinstance(caught.value.error, InvalidArgumentsError)


@pytest.mark.parametrize("key", ["stop", None, 3, ["run"]])
async def test_a_function_that_the_source_does_not_have(key: object) -> None:
    with pytest.raises(RefusedCallError) as caught:
        await create(run).execute(call(key))
    assert isinstance(caught.value.error, RejectedError)


async def test_calls_in_flight_outlive_a_replacement_of_the_tools() -> None:
    proceed = asyncio.Event()

    @tool(name="wait")
    async def wait() -> str:
        await proceed.wait()
        return "former"

    executor = create(wait)
    task = asyncio.create_task(executor.execute(call("wait")))
    await asyncio.sleep(0)
    executor.replace_tools({})
    proceed.set()
    assert await task == "former"
    with pytest.raises(RefusedCallError):
        await executor.execute(call("wait"))


@pytest.mark.wall_clock
async def test_all_threads_occupied_by_calls_that_have_ended() -> None:
    release = threading.Event()
    try:
        executor = create(tool(name="hang")(lambda: release.wait(10)))
        calls = [call("hang", concurrency=2) for _ in range(3)]
        tasks = [asyncio.create_task(executor.execute(each)) for each in calls]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert executor.abandoned_threads == 2
        assert [each.occupied is not None for each in calls] == [True, True, False], "the third had no thread"
        with pytest.raises(RefusedCallError) as caught:
            await executor.execute(call("hang", concurrency=2))
        error = caught.value.error
        assert isinstance(error, ThrottledError)
        assert (error.rejected_by, error.message) == (
            "bulkhead",
            "Tool 'run' was not executed: all 2 threads of its function still run calls whose deadlines have passed. Use "
            "another tool, and make the function return in time.",
        )
    finally:
        release.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*(each.occupied for each in calls if each.occupied is not None))
    assert await executor.execute(call("hang", concurrency=2)) == "true"


def test_a_value_that_json_cannot_express_is_no_result() -> None:
    with pytest.raises(ToolError, match="JSON cannot express a complex"):
        write_result([1j])


@pytest.mark.parametrize("result", [math.nan, [-math.inf], {"a": {"b": math.inf}}, "\ud800", ["\udce9"], {"\ud83d": 1}])
def test_a_result_that_json_or_utf8_does_not_have(result: object) -> None:
    with pytest.raises(ToolError, match="was executed") as caught:
        write_result(result)
    assert caught.value.type == "invalid-result"


def test_a_text_about_numbers_is_a_result() -> None:
    assert write_result({"a": "NaN", "Infinity": 1}) == '{"a": "NaN", "Infinity": 1}'
