"""Retries of calls, over the embedded broker, on a virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch import CallTimeoutError, ThrottledError, ToolError
from dispatch.errors import Outcome
from dispatch.messaging.wire import Property
from dispatch.resilience.breaker import State
from tests.helpers.clock import advance, now
from tests.helpers.dispatcher_and_service import Service, stand
from tests.helpers.guarded_tool import Gate, deaf, tools


async def test_what_was_refused_for_want_of_room_is_tried_again_when_it_may_be() -> None:
    async with deaf() as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        request, first = await peer.request()
        began = now()
        await peer.answer(first, error=("overloaded", "full"), refused="overloaded", retry_after_ms="500")
        again, second = await peer.request()
        assert 0.5 <= now() - began <= 0.55
        assert again == request
        assert second[Property.ID] != first[Property.ID]
        assert (first.get(Property.ATTEMPT), second[Property.ATTEMPT]) == (None, "2")
        await peer.answer(second, "done")
        result = await call
        assert (result.text, result.attempts, result.request_id) == ("done", 2, second[Property.ID])


async def test_what_may_have_run_is_not_tried_again_unless_it_may_run_twice() -> None:
    async with deaf(policy={"attempt-timeout": 1}) as (dispatcher, peer):
        with pytest.raises(CallTimeoutError) as caught:
            await dispatcher.call("work", timeout=5)
        assert caught.value.limit_name == "attempt"
        assert peer.arrived.qsize() == 1
    async with deaf(policy={"attempt-timeout": 1}, idempotent=True) as (dispatcher, peer):
        result = await dispatcher.execute("work", timeout=5)
        assert (result.outcome, result.attempts) == (Outcome.TIMEOUT, 3)
        assert peer.arrived.qsize() == 3
    async with deaf(policy={"attempt-timeout": 1}) as (dispatcher, peer):
        result = await dispatcher.execute("work", timeout=5, idempotency_key="once")
        assert (result.outcome, result.attempts) == (Outcome.TIMEOUT, 1), "it is not known to keep keys"


async def test_a_key_is_repeated_where_it_is_known_and_runs_once() -> None:
    service = Service(Gate())
    slow = {"attempt-timeout": 1, "retry": {"initial-backoff": 0.01, "max-backoff": 0.01}}
    async with stand(service, tools(policy=slow), instance="first") as (dispatcher, _):
        call = asyncio.create_task(dispatcher.execute("work", timeout=10, idempotency_key="once"))
        await advance(2.5)
        assert len(service.requests) == 1
        service._work.event.set()  # type: ignore[attr-defined] # the gate above
        result = await call
        assert (result.text, result.attempts) == ("done", 3)
        assert len(service.requests) == 1


async def test_a_tools_own_error_is_its_answer() -> None:
    runs = []

    def fail(arguments: dict[str, Any]) -> str:
        runs.append(1)
        raise ToolError("busy", "come back")

    async with stand(fail, tools(idempotent=True)) as (dispatcher, _):
        for _ in range(30):
            with pytest.raises(ToolError):
                await dispatcher.call("work")
        assert len(runs) == 30
        assert dispatcher.breaker("work").state is State.CLOSED, "and says nothing of its service's health"
    async with stand(fail, tools(idempotent=True, policy={"retry": {"retryable-errors": ["busy"]}})) as (dispatcher, _):
        result = await dispatcher.execute("work")
        assert (result.outcome, result.attempts) == (Outcome.TOOL_ERROR, 3)


async def test_retries_are_a_share_of_the_calls_however_many_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.calls.guards.MIN_REPEATS_PER_S", 0.1)
    policy = {"attempt-timeout": 0.5, "breaker": None}
    async with deaf(policy=policy, idempotent=True) as (dispatcher, peer):
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert all(result.outcome is Outcome.TIMEOUT for result in results)
        assert peer.arrived.qsize() == sum(result.attempts for result in results) == 50 + 50 * 0.2 + 1


async def test_a_caller_that_leaves_during_the_wait_leaves_nothing_behind() -> None:
    async with deaf() as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="5000")
        await advance(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await advance(10)
        assert peer.arrived.empty()
        assert dispatcher.pending_requests == 0


async def test_a_stream_is_tried_again_until_its_first_chunk() -> None:
    async with deaf() as (dispatcher, peer):
        stream = dispatcher.stream("work")
        first = asyncio.ensure_future(anext(stream))
        _, properties = await peer.request()
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="100")
        _, properties = await peer.request()
        assert properties[Property.ATTEMPT] == "2"
        await peer.answer(properties, "a", end=False)
        assert await first == "a"
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="100")
        with pytest.raises(ThrottledError):
            await anext(stream)
        await advance(5)
        assert peer.arrived.empty()
