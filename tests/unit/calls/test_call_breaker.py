"""The circuit breaker as a caller sees it: open, forced open, unaffected by callers, and alternatives to its tool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch import CallTimeoutError, RejectedError
from dispatch.errors import Outcome
from dispatch.resilience.breaker import State
from tests.helpers.clock import advance, idle, now
from tests.helpers.dispatcher_and_service import catalog, stand
from tests.helpers.guarded_tool import Gate, tools


@pytest.mark.usefixtures("exact_breakers")
async def test_a_tool_that_fails_is_left_alone_and_found_again() -> None:
    settings = {"consecutive-failures": 3, "open-duration": 5, "half-open-calls": 1}
    alive = False

    async def work(arguments: dict[str, Any]) -> str:
        if not alive:
            await asyncio.sleep(100)
        return "done"

    async with stand(work, tools(policy={"timeout": 1, "breaker": settings})) as (dispatcher, server):
        for _ in range(3):
            with pytest.raises(CallTimeoutError):
                await dispatcher.call("work")
        assert dispatcher.breaker("work").state is State.OPEN
        began, before = now(), server.requests
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("work")
        error = caught.value
        assert now() == began, "at once"
        assert (error.type, error.rejected_by, error.retryable) == ("circuit-open", "breaker", True)
        assert error.retry_after == pytest.approx(5, abs=0.01)
        assert "in 5 s or later" in error.message
        assert "try again" not in error.message
        result = await dispatcher.execute("work")
        assert (result.outcome, result.attempts, result.request_id) == (Outcome.REJECTED, 0, "")
        assert server.requests == before
        alive = True
        await advance(5)
        assert await dispatcher.call("work") == "done"
        assert dispatcher.breaker("work").state is State.CLOSED


async def test_an_operator_takes_a_tool_out_of_use() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        dispatcher.breaker("work").force_open()
        with pytest.raises(RejectedError, match="an operator has opened its circuit breaker") as caught:
            await dispatcher.call("work")
        assert not caught.value.retryable
        with pytest.raises(RejectedError):
            await anext(dispatcher.stream("work"))
        dispatcher.breaker("work").reset()
        assert await dispatcher.call("work") == "done"


async def test_who_has_no_breaker_is_told_so() -> None:
    async with stand(lambda _: "done", tools(policy={"breaker": None})) as (dispatcher, _):
        with pytest.raises(ValueError, match="has no breaker"):
            dispatcher.breaker("work")
        with pytest.raises(RejectedError):
            dispatcher.breaker("nothing")


async def test_a_caller_that_leaves_counts_as_nothing() -> None:
    async with stand(Gate(), tools(policy={"breaker": {"consecutive-failures": 1}})) as (dispatcher, _):
        for _ in range(5):
            call = asyncio.create_task(dispatcher.call("work"))
            await idle()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert dispatcher.breaker("work").state is State.CLOSED
        stream = dispatcher.stream("work")
        reading = asyncio.ensure_future(anext(stream))
        await idle()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert dispatcher.breaker("work").state is State.CLOSED


async def test_what_the_caller_did_wrong_says_nothing_of_the_service() -> None:
    """Against one careless caller who closes a tool to all: too much sent or asked for, and timeouts nobody could meet."""
    settings = {"breaker": {"consecutive-failures": 3}, "max-response-bytes": 100}

    async def work(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(0.1)
        return "x" * arguments.get("size", 0)

    async with stand(work, tools(policy=settings)) as (dispatcher, _):
        for _ in range(120):
            assert (await dispatcher.execute("work")).ok
        for _ in range(5):
            assert (await dispatcher.execute("work", {"size": 1_000})).outcome is Outcome.TRANSPORT
            assert (await dispatcher.execute("work", timeout=0.01)).outcome is Outcome.TIMEOUT
        assert dispatcher.breaker("work").state is State.CLOSED
        await advance(120)  # what it usually takes is forgotten: any timeout may be the service's
        for _ in range(3):
            assert (await dispatcher.execute("work", timeout=0.01)).outcome is Outcome.TIMEOUT
        assert dispatcher.breaker("work").state is State.OPEN


async def test_an_error_names_tools_that_could_do_instead() -> None:
    listed = {
        "joke": {"tags": ["fun"], "category": "talk"},
        "riddle": {"tags": ["fun"]},
        "poem": {"category": "talk"},
        "weather": {"tags": ["sky"]},
    }
    async with stand(lambda _: "done", catalog(**listed)) as (dispatcher, _):
        dispatcher.breaker("joke").force_open()
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("joke")
        assert caught.value.alternatives == ("riddle", "poem")
        assert caught.value.message.endswith("Use another tool (riddle, poem), or report the failure.")
        assert str(caught.value) == caught.value.message
        dispatcher.breaker("weather").force_open()
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("weather")
        assert caught.value.alternatives == ()
