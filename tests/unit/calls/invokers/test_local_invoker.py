"""Tools that this process executes: the same results and errors as at an instance."""

from __future__ import annotations

import asyncio

import pytest

import dispatch
from dispatch.calls.local import FailedCallError, LocalCall, LocalResult, RefusedCallError
from dispatch.errors import ErrorType
from dispatch.result import ResultContent
from tests.helpers.local_source import Local, connect, run


def test_a_result_and_its_context() -> None:
    seen: list[LocalCall] = []

    async def execute(call: LocalCall) -> str:
        seen.append(call)
        call.arguments["n"] = 2  # the caller's own arguments do not change
        return "done"

    async def test() -> None:
        given = {"n": 1}
        async with connect(execute) as dispatcher:
            result = await dispatcher.execute("run", given, user="alice", timeout=5, context="here")
        assert (result.text, result.attempts, given) == ("done", 1, {"n": 1})
        context = seen[0].context
        assert (context.tool, context.user, context.attempt, context.context) == ("run", "alice", 1, "here")
        assert context.call_id == result.request_id
        assert 4 < context.remaining <= 5

    run(test)


def test_an_exception_is_the_tool_s_own_error() -> None:
    async def execute(call: LocalCall) -> str:
        raise ValueError("no such order")

    async def test() -> None:
        async with connect(execute) as dispatcher:
            result = await dispatcher.execute("run")
        assert isinstance(result.error, dispatch.ToolError)
        assert (result.error.type, result.error.message) == ("ValueError", "no such order")

    run(test)


def test_the_error_of_a_nested_call_does_not_repeat_the_function() -> None:
    count = 0

    async def execute(call: LocalCall) -> str:
        nonlocal count
        count += 1
        raise dispatch.TransportError(ErrorType.SEND_TIMEOUT, "not sent", may_have_run=False)

    async def test() -> None:
        async with connect(execute) as dispatcher:
            result = await dispatcher.execute("run")
        assert isinstance(result.error, dispatch.ToolError)
        assert count == 1

    run(test)


def test_a_refusal_is_no_execution() -> None:
    async def execute(call: LocalCall) -> str:
        raise RefusedCallError(dispatch.InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, "n must be a number."))

    async def test() -> None:
        async with connect(execute) as dispatcher:
            result = await dispatcher.execute("run")
        assert isinstance(result.error, dispatch.InvalidArgumentsError)
        assert result.attempts == 0

    run(test)


def test_a_failed_connection_is_a_transport_error_and_nothing_is_repeated() -> None:
    count = 0

    async def execute(call: LocalCall) -> str:
        nonlocal count
        count += 1
        raise FailedCallError(dispatch.TransportError(ErrorType.INSTANCE_LOST, "The server ended."))

    async def test() -> None:
        async with connect(execute) as dispatcher:
            result = await dispatcher.execute("run")
            with pytest.raises(dispatch.TransportError, match="server ended"):
                [each async for each in dispatcher.stream("run")]
        assert isinstance(result.error, dispatch.TransportError)
        assert (result.error.may_have_run, result.error.retryable, result.attempts, count) == (True, False, 1, 2)

    run(test)


def test_a_failed_connection_of_a_repeatable_tool_is_retried() -> None:
    count = 0

    async def execute(call: LocalCall) -> str:
        nonlocal count
        count += 1
        if count == 1:
            raise FailedCallError(dispatch.TransportError(ErrorType.INSTANCE_LOST, "The server ended."))
        return "done"

    async def test() -> None:
        source = Local(execute)
        source.keys = {"read-only": True}
        async with dispatch.connect("memory://", [source]) as dispatcher:
            assert (await dispatcher.execute("run", timeout=5)).text == "done"
        assert count == 2

    run(test)


def test_a_result_with_content() -> None:
    blocks = ({"type": "text", "text": "a cat"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"})

    async def execute(call: LocalCall) -> LocalResult:
        return LocalResult("a cat", ResultContent(blocks, {"animal": "cat"}), "server-1")

    async def test() -> None:
        async with connect(execute) as dispatcher:
            result = await dispatcher.execute("run")
            assert [each async for each in dispatcher.stream("run")] == ["a cat"]
        assert (result.text, result.content, result.structured_content) == ("a cat", blocks, {"animal": "cat"})
        assert result.instance == "server-1"

    run(test)


def test_content_beyond_the_limit_is_refused() -> None:
    async def execute(call: LocalCall) -> LocalResult:
        return LocalResult("", ResultContent(({"type": "image", "data": "A" * 2_000},)))

    async def test() -> None:
        async with connect(execute, **{"max-response-bytes": 1_000}) as dispatcher:
            result = await dispatcher.execute("run")
        assert result.error is not None
        assert result.error.type == ErrorType.RESPONSE_LIMIT_EXCEEDED

    run(test)


def test_a_result_beyond_the_limit_is_refused() -> None:
    async def execute(call: LocalCall) -> str:
        return "ä" * 600

    async def test() -> None:
        async with connect(execute, **{"max-response-bytes": 1_000}) as dispatcher:
            result = await dispatcher.execute("run")
        assert result.error is not None
        assert result.error.type == ErrorType.RESPONSE_LIMIT_EXCEEDED

    run(test)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_nothing_that_a_tool_raises_ends_the_loop(error: BaseException) -> None:
    async def execute(call: LocalCall) -> str:
        raise error

    async def test() -> None:
        async with connect(execute) as dispatcher:
            result = await dispatcher.execute("run")
        assert isinstance(result.error, dispatch.ToolError)

    run(test)


def test_listeners_receive_the_ends_of_calls() -> None:
    async def execute(call: LocalCall) -> str:
        return "done"

    async def test() -> None:
        ended = []
        async with connect(execute) as dispatcher:
            remove = dispatcher.on_call(ended.append)
            dispatcher.on_call(lambda call: 1 / 0)  # is logged, and affects nothing
            await dispatcher.execute("run", user="alice", by_model=True)
            remove()
            await dispatcher.call("run")
        assert [(each.tool, each.user, each.by_model, each.result.text) for each in ended] == [
            ("run", "alice", True, "done")
        ]

    run(test)
