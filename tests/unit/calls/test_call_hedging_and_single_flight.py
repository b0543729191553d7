"""Calls with more than one attempt at once (hedging), and attempts with more than one call (single-flight)."""

from __future__ import annotations

import asyncio
import contextlib

from dispatch.errors import Outcome
from tests.helpers.clock import advance, idle, now
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, Service, catalog, dispatching, serving, stand
from tests.helpers.guarded_tool import Gate, tools

# -- hedging --------------------------------------------------------------------------------------------------------


async def test_a_slow_first_attempt_is_hedged_at_another_instance() -> None:
    slow, fast = Gate(), Service(lambda _: "fast")
    async with (
        serving(slow, instance="slow"),
        dispatching(tools(read_only=True, policy={"hedging": 0.2})) as dispatcher,
    ):
        running = asyncio.create_task(dispatcher.call("work"))
        await advance(0.5)
        async with serving(fast, instance="fast"):
            await advance(12)  # until the dispatcher looks who is there
            before, began = slow.most, now()
            for _ in range(4):
                assert await dispatcher.call("work") == "fast"
            assert slow.most > before, "some began there"
            assert 0.2 <= now() - began <= 0.9
            await idle()
            assert slow.running == 1, "losers are cancelled, and their service hears of it"
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_an_instance_that_is_silent_is_ejected_although_its_calls_are_hedged() -> None:
    silent, fast = Gate(), Service(lambda _: "fast")
    async with (
        serving(silent, instance="silent") as server,
        serving(fast, instance="fast"),
        dispatching(tools(read_only=True, policy={"hedging": 0.2})) as dispatcher,
    ):
        assert [await dispatcher.call("work") for _ in range(40)] == ["fast"] * 40
        assert server.requests == 5
        assert {view.id: view.state for view in dispatcher.instances("lab")}["silent"] == "ejected"


# -- single-flight --------------------------------------------------------------------------------------------------


async def test_calls_that_are_the_same_share_one_exchange() -> None:
    gate = Gate()
    service = Service(gate)
    async with stand(service, tools(read_only=True, policy={"single-flight": True})) as (dispatcher, _):
        same = [asyncio.create_task(dispatcher.execute("work", {"n": 1}, user="ann")) for _ in range(5)]
        other = asyncio.create_task(dispatcher.execute("work", {"n": 2}, user="ann"))
        bob = asyncio.create_task(dispatcher.execute("work", {"n": 1}, user="bob"))
        await advance(0.01)
        assert len(service.requests) == 3
        same[0].cancel()  # even the one that began it
        await idle()
        gate.event.set()
        results = await asyncio.gather(*same[1:], other, bob)
        assert {result.text for result in results} == {"done"}
        assert len(service.requests) == 3
        assert (await dispatcher.execute("work", {"n": 1}, user="ann")).ok
        assert len(service.requests) == 4, "only while it is under way"


async def test_a_shared_call_whose_own_exchange_ends_as_expired_is_not_made_again() -> None:
    tools = catalog(work={"read-only": True, "policy": {**UNGUARDED, "single-flight": True}})
    async with Peer.as_service() as peer, dispatching(tools) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work", timeout=5))
        _, properties = await peer.request()
        await peer.answer(properties, error=("expired", "The deadline had passed."), refused="expired")
        result = await call
        assert result.outcome is Outcome.TIMEOUT
        assert result.duration < 5
        assert peer.arrived.empty(), "one request"
