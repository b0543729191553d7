"""A circuit breaker never closed for a tool whose streams last longer than a probe's lease of 60 s: each probe was lost.

A stream is a success for the breakers as soon as its first chunk is there; what becomes of it later concerns its instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import CallTimeoutError, Dispatcher, RejectedError, ToolError
from dispatch.policy import Breaker, Policy
from dispatch.resilience.breaker import BreakerRules, State
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import dispatching, read, serving, stand

LASTS_S = 90
OPEN_S = 5.0
PROMPT = BreakerRules(slow_call_duration=10, open_duration=OPEN_S, jitter=0)


async def _long(arguments: dict[str, Any]) -> AsyncIterator[str]:
    for second in range(LASTS_S):
        yield f"{second} "
        await asyncio.sleep(arguments.get("pause", 1))


def long(arguments: dict[str, Any]) -> AsyncIterator[str]:
    return _long(arguments)


async def open_circuit(dispatcher: Dispatcher) -> None:
    """The breaker is open for a moment, as after failures; what comes next is a probe."""
    breaker = dispatcher.breaker("work")
    breaker.open_until(asyncio.get_running_loop().time() + OPEN_S)
    await advance(OPEN_S)
    assert breaker.state is State.OPEN


async def test_streams_close_the_circuit_at_their_first_chunks() -> None:
    async with stand(long, policy=Policy(breaker=PROMPT)) as (dispatcher, _):
        breaker = dispatcher.breaker("work")
        await open_circuit(dispatcher)
        streams: list[asyncio.Task[None]] = []
        chunks: list[list[str]] = []
        for _ in range(21):  # the probes of all three rounds, of which none has ended
            chunks.append([])
            streams.append(asyncio.create_task(read(dispatcher.stream("work"), chunks[-1])))
            await advance(0.1)
        assert not any(stream.done() for stream in streams)
        assert breaker.state is State.CLOSED
        await asyncio.gather(*streams)
        assert {len(each) for each in chunks} == {LASTS_S}
        assert (breaker.state, breaker.lost, breaker.stale) == (State.CLOSED, 0, 0)
        assert breaker.slow_call_rate in (None, 0.0), "a stream is as slow as its first chunk"


async def test_the_breaker_of_an_instance_closes_as_well() -> None:
    ill = True

    async def failing(arguments: dict[str, Any]) -> AsyncIterator[str]:
        if ill:
            raise ToolError("ill", "I am ill.")
        async for chunk in _long(arguments):
            yield chunk

    policy = Policy(
        retry=1, breaker=BreakerRules(failure_rate=1, count_tool_errors=True, open_duration=OPEN_S, jitter=0)
    )
    async with (
        serving(failing, instance="one"),
        serving(long, instance="two"),
        dispatching(policy=policy) as dispatcher,
    ):
        states: list[str] = []
        dispatcher.on_event(lambda event: states.append(event.new) if getattr(event, "instance", "") == "one" else None)
        for _ in range(20):
            await dispatcher.execute("work", {"pause": 0})
        assert states == [State.OPEN]
        ill = False
        await advance(OPEN_S)
        streams = []
        for _ in range(50):
            streams.append(asyncio.create_task(read(dispatcher.stream("work"), [])))
            await advance(0.1)
        assert states == [State.OPEN, State.HALF_OPEN, State.CLOSED]
        await asyncio.gather(*streams)


async def test_a_stream_that_breaks_after_its_first_chunk_counts_for_its_instance() -> None:
    policy = Policy(retry=1, breaker=Breaker(consecutive_failures=3), stream_idle_timeout=2)
    async with stand(long, policy=policy, instance="one") as (dispatcher, _):
        for _ in range(4):
            with pytest.raises(CallTimeoutError):
                await read(dispatcher.stream("work", {"pause": 10}), [])
        assert dispatcher.breaker("work").state is State.CLOSED
        assert [view.failures for view in dispatcher.instances("lab")] == [4]


async def test_a_stream_without_a_first_chunk_is_a_failure() -> None:
    async def silent(_arguments: dict[str, Any]) -> str:
        await asyncio.sleep(60)
        return ""

    policy = Policy(retry=1, breaker=Breaker(consecutive_failures=3), stream_idle_timeout=2)
    async with stand(silent, policy=policy) as (dispatcher, _):
        for _ in range(3):
            with pytest.raises(CallTimeoutError):
                await read(dispatcher.stream("work"), [])
        with pytest.raises(RejectedError, match="was not executed"):
            await read(dispatcher.stream("work"), [])
