"""Tools that this process executes: the same outcomes as at an instance, and no call outlives its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

import dispatch
from dispatch.calls.invokers.local_executor import FailedCallError, LocalCall, LocalResult, RefusedCallError
from dispatch.calls.resolution.local_queues import local_queue, local_reply_queue
from dispatch.catalog.readers.item import Item
from dispatch.errors import ErrorType
from dispatch.result import ResultContent

Execute = Callable[[LocalCall], Awaitable[Any]]


class Local:
    """A source with one tool, ``run``, that a function of the test executes."""

    id = "local"

    def __init__(self, execute: Execute, **policy: Any) -> None:
        self._execute = execute
        self.policy = policy
        self.keys: dict[str, Any] = {}
        self.executor = self
        self.request_queue = local_queue("local", "function")

    async def execute(self, call: LocalCall) -> Any:
        return await self._execute(call)

    async def discover(self) -> Sequence[Item]:
        service = {
            "id": "local",
            "request-queue": self.request_queue,
            "response-queue": local_reply_queue("local", "function"),
        }
        tool = {
            "type": "tool-service",
            "name": "run",
            "description": "Runs.",
            "service": "local",
            "policy": self.policy,
            **self.keys,
        }
        return [Item("local", "tool-service", "local", service), Item("run", "tool", "run", tool)]

    async def changes(self) -> AsyncIterator[None]:
        await asyncio.get_running_loop().create_future()
        yield


def connect(execute: Execute, **policy: Any) -> dispatch.Dispatcher:
    return dispatch.connect("memory://", [Local(execute, **policy)])


async def chunks(*texts: str, wait: float = 0.0) -> AsyncIterator[str]:
    for text in texts:
        yield text
        await asyncio.sleep(wait)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type] # a coroutine


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
        raise dispatch.TransportError(ErrorType.SEND_TIMEOUT, "not sent", sent=False)

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
        assert (result.error.sent, result.error.retryable, result.attempts, count) == (True, False, 1, 2)

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


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_nothing_that_a_tool_raises_ends_the_loop(error: BaseException) -> None:
    async def execute(call: LocalCall) -> str:
        raise error

    async def test() -> None:
        async with connect(execute) as dispatcher:
            result = await dispatcher.execute("run")
        assert isinstance(result.error, dispatch.ToolError)

    run(test)


def test_a_tool_that_ignores_its_cancellation_delays_no_caller_and_keeps_its_place() -> None:
    release = asyncio.Event()

    async def execute(call: LocalCall) -> str:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return "late"

    async def test() -> None:
        policy = {"bulkhead": {"max-concurrent-calls": 1, "max-wait": 0.01}, "retry": None}
        async with connect(execute, **policy) as dispatcher:
            result = await dispatcher.execute("run", timeout=0.05)
            assert isinstance(result.error, dispatch.CallTimeoutError)
            full = await dispatcher.execute("run", timeout=0.05)
            assert full.error is not None
            assert full.error.type == ErrorType.BULKHEAD_FULL
            release.set()
            assert (await dispatcher.execute("run", timeout=5)).text == "late"

    run(test)


def test_a_thread_keeps_the_place_of_its_call() -> None:
    running: list[asyncio.Future[None]] = []

    async def execute(call: LocalCall) -> str:
        if running:
            return "free"
        running.append(asyncio.get_running_loop().create_future())
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            call.occupied = running[0]
            raise
        return "never"

    async def test() -> None:
        policy = {"bulkhead": {"max-concurrent-calls": 1, "max-wait": 0.01}, "retry": None}
        async with connect(execute, **policy) as dispatcher:
            assert (await dispatcher.execute("run", timeout=0.05)).outcome is dispatch.Outcome.TIMEOUT
            assert (await dispatcher.execute("run", timeout=0.05)).outcome is dispatch.Outcome.THROTTLED
            running[0].set_result(None)
            assert (await dispatcher.execute("run", timeout=5)).text == "free"

    run(test)


def test_a_cancelled_caller_cancels_the_tool() -> None:
    ended = asyncio.Event()

    async def execute(call: LocalCall) -> str:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
        return "never"

    async def test() -> None:
        async with connect(execute) as dispatcher:
            call = asyncio.create_task(dispatcher.call("run"))
            await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(ended.wait(), 1)

    run(test)


def test_a_stream_is_read_as_it_comes_and_joined_for_a_call() -> None:
    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return chunks("a", "", "b")

    async def test() -> None:
        async with connect(execute) as dispatcher:
            assert [each async for each in dispatcher.stream("run")] == ["a", "b"]
            assert await dispatcher.call("run") == "ab"

    run(test)


def test_a_plain_result_is_a_stream_of_one_chunk() -> None:
    async def execute(call: LocalCall) -> str:
        return "whole"

    async def test() -> None:
        async with connect(execute) as dispatcher:
            assert [each async for each in dispatcher.stream("run")] == ["whole"]

    run(test)


def test_a_stream_waits_for_its_reader() -> None:
    produced = 0

    async def endless() -> AsyncIterator[str]:
        nonlocal produced
        while True:
            produced += 1
            yield "x"

    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return endless()

    async def test() -> None:
        async with connect(execute) as dispatcher:
            stream = dispatcher.stream("run")
            for _ in range(200):
                await anext(stream)
            await asyncio.sleep(0.01)
            await stream.aclose()
            assert produced < 300

    run(test)


def test_a_silent_stream_ends_at_its_idle_timeout() -> None:
    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return chunks("a", "b", wait=5)

    async def test() -> None:
        async with connect(execute) as dispatcher:
            stream = dispatcher.stream("run", idle_timeout=0.05)
            assert await anext(stream) == "a"
            with pytest.raises(dispatch.CallTimeoutError) as caught:
                await anext(stream)
            assert caught.value.clock == "stream-idle"

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


def test_the_close_of_the_dispatcher_ends_running_tools() -> None:
    async def execute(call: LocalCall) -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    async def test() -> None:
        dispatcher = connect(execute)
        await dispatcher.start()
        call = asyncio.create_task(dispatcher.execute("run"))
        await asyncio.sleep(0.01)
        await dispatcher.close()
        result = await call
        assert result.error is not None
        assert result.error.type == ErrorType.CLOSED

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


def test_calls_that_finish_during_a_drain_have_their_source() -> None:
    order: list[str] = []
    started = asyncio.Event()

    async def execute(call: LocalCall) -> str:
        started.set()
        await asyncio.sleep(0.05)
        order.append("finished")
        return "done"

    class Closable(Local):
        async def close(self) -> None:
            order.append("closed")

    async def test() -> None:
        dispatcher = dispatch.connect("memory://", [Closable(execute)])
        await dispatcher.start()
        call = asyncio.create_task(dispatcher.call("run"))
        await started.wait()
        await dispatcher.close(drain=5)
        assert await call == "done"
        assert order == ["finished", "closed"]

    run(test)
