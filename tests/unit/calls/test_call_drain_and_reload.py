"""Calls while their dispatcher drains or its catalogue is reloaded."""

from __future__ import annotations

import asyncio

import pytest

from dispatch import Dispatcher, Policy, RejectedError, TransportError
from dispatch._internal import RETENTION_S
from dispatch.policy import Breaker, Bulkhead
from dispatch.resilience.breaker import State
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle, now
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving, stand
from tests.helpers.guarded_tool import Gate, tools

# -- drain ----------------------------------------------------------------------------------------------------------


def _memory() -> MemoryTransport:
    return MemoryTransport(BROKER)


async def test_draining_lets_finish_what_runs_and_refuses_the_rest() -> None:
    gate = Gate()
    async with serving(gate):
        dispatcher = Dispatcher(_memory(), tools(policy={"bulkhead": 1}))
        await dispatcher.start()
        running = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        waiting = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        closing = asyncio.create_task(dispatcher.close(drain=5))
        await idle()
        queued = await waiting
        late = await dispatcher.execute("work")
        for result in (queued, late):
            assert isinstance(result.error, TransportError)
            assert (result.error.type, result.error.may_have_run) == ("closed", False)
        gate.event.set()
        assert (await running).ok
        await closing


async def test_a_drain_ends_when_its_time_is_over() -> None:
    async with serving(Gate()):
        dispatcher = Dispatcher(_memory(), tools())
        await dispatcher.start()
        running = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        began = now()
        await dispatcher.close(drain=5)
        assert now() - began == pytest.approx(5, abs=0.1)
        error = (await running).error
        assert error is not None
        assert error.type == "closed"


# -- reload ---------------------------------------------------------------------------------------------------------


async def test_a_new_policy_keeps_the_breaker_and_what_is_under_way() -> None:
    gate = Gate()
    async with stand(gate, tools(policy={"breaker": {"consecutive-failures": 3}})) as (dispatcher, _):
        running = asyncio.create_task(dispatcher.call("work"))
        await idle()
        breaker = dispatcher.breaker("work")
        breaker.force_open()
        await dispatcher.reload(tools(policy={"breaker": {"consecutive-failures": 7}, "bulkhead": 1}))
        assert dispatcher.breaker("work") is breaker
        assert breaker.state is State.FORCED_OPEN
        assert breaker.settings.consecutive_failures == 7
        breaker.reset()
        waiting = asyncio.create_task(dispatcher.call("work"))
        await idle()
        assert gate.running == 1, "the new limit counts the call that began under the old one"
        gate.event.set()
        assert await asyncio.gather(running, waiting) == ["done", "done"]


async def test_a_removed_tool_finds_its_guards_again_for_a_time() -> None:
    async with stand(lambda _: "done", catalog(one={}, two={})) as (dispatcher, _):
        assert await dispatcher.call("one") == "done"
        former = dispatcher.breaker("one")
        former.force_open()
        await dispatcher.reload(catalog(two={}, three={}))
        with pytest.raises(RejectedError, match="no tool 'one'"):
            await dispatcher.call("one")
        assert await dispatcher.call("three") == "done"
        await advance(RETENTION_S - 1)
        await dispatcher.reload(
            catalog(one={}), policy=Policy(breaker=Breaker(consecutive_failures=4), bulkhead=Bulkhead(max_wait=0))
        )
        assert dispatcher.breaker("one") is former
        assert former.settings.consecutive_failures == 4
        await advance(RETENTION_S)  # it is no longer removed
        with pytest.raises(RejectedError, match="operator"):
            await dispatcher.call("one")
        await dispatcher.reload(catalog(two={}))
        await advance(RETENTION_S)
        await dispatcher.reload(catalog(one={}))
        assert dispatcher.breaker("one") is not former
        assert await dispatcher.call("one") == "done"
