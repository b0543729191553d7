"""Cancellation of tools that this process executes: no call outlives its deadline, its caller or its dispatcher."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

import dispatch
from dispatch.calls.local import LocalCall
from dispatch.errors import ErrorType
from tests.helpers.local_source import Local, connect, run


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
