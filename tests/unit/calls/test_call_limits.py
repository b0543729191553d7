"""Limits as a caller sees them: bulkhead and its queue, priorities, and rate limits of tools and users."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dispatch import ThrottledError
from dispatch.errors import Outcome
from dispatch.resilience.bulkhead import QueueLimits
from tests.helpers.clock import advance, idle, now
from tests.helpers.dispatcher_and_service import catalog, dispatching, serving, stand
from tests.helpers.guarded_tool import Gate, deaf, tools

# -- bulkhead -------------------------------------------------------------------------------------------------------


async def test_so_many_at_once_so_many_in_line_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=1))
    gate = Gate()
    policy = {"bulkhead": {"max-concurrent-calls": 2, "max-wait": 1}}
    async with stand(gate, tools(policy=policy)) as (dispatcher, _):
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(3)]
        await advance(0.01)
        assert gate.running == 2
        with pytest.raises(ThrottledError) as caught:
            await dispatcher.call("work")
        assert (caught.value.type, caught.value.rejected_by) == ("bulkhead-full", "bulkhead")
        gate.event.set()
        assert await asyncio.gather(*calls) == ["done"] * 3
        assert gate.most == 2


@pytest.mark.usefixtures("strangers")
async def test_whoever_waits_for_a_place_sees_the_circuit_open() -> None:
    """Against a herd: those in line were let in by a breaker that has opened since."""
    policy = {
        "timeout": 2,
        "bulkhead": {"max-concurrent-calls": 3, "max-wait": 5},
        "breaker": {"consecutive-failures": 3},
    }
    async with deaf(policy=policy) as (dispatcher, peer):
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=2 + 2 * (n > 2)) for n in range(9)))
        assert Counter(result.outcome for result in results) == {Outcome.TIMEOUT: 3, Outcome.REJECTED: 6}
        assert peer.arrived.qsize() == 3


async def test_the_urgent_goes_first() -> None:
    order: list[str] = []

    async def work(arguments: dict[str, Any]) -> str:
        order.append(arguments["who"])
        await asyncio.sleep(0.1)
        return "done"

    async with stand(work, tools(policy={"bulkhead": 1})) as (dispatcher, _):
        first = asyncio.create_task(dispatcher.call("work", {"who": "first"}))
        await idle()
        batch = asyncio.create_task(dispatcher.call("work", {"who": "batch"}, priority="batch"))
        await idle()
        chat = asyncio.create_task(dispatcher.call("work", {"who": "chat"}, priority="interactive"))
        await asyncio.gather(first, batch, chat)
        assert order == ["first", "chat", "batch"]


# -- rate limits ----------------------------------------------------------------------------------------------------


async def test_a_rate_is_kept_and_who_would_wait_too_long_is_told_when_to_come_back() -> None:
    policy = {"rate-limit": {"rate": "10/s", "burst": 1, "max-wait": 0.5}}
    async with stand(lambda _: "done", tools(policy=policy)) as (dispatcher, _):
        began = now()
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(10)))
        done = [result for result in results if result.ok]
        refused = [result.error for result in results if not result.ok]
        assert len(done) == 6
        assert now() - began == pytest.approx(0.5, abs=0.02)
        for error in refused:
            assert isinstance(error, ThrottledError)
            assert (error.type, error.rejected_by) == ("rate-limited", "rate-limit")
            assert error.retry_after == pytest.approx(0.6, abs=0.01)


async def test_one_user_does_not_take_the_others_share() -> None:
    async with stand(lambda _: "done", tools(policy={"user-rate-limit": {"rate": "1/s", "max-wait": 0}})) as (
        dispatcher,
        _,
    ):
        hog = await asyncio.gather(*(dispatcher.execute("work", user="hog") for _ in range(5)))
        assert sum(result.ok for result in hog) == 1
        assert (await dispatcher.execute("work", user="ann")).ok


async def test_a_users_rate_can_be_for_several_tools_together() -> None:
    both = {"policy": {"shared-user-rate-limit": {"rate": "2/s", "max-wait": 0}}}
    async with stand(lambda _: "done", catalog(one=both, two=both)) as (dispatcher, _):
        results = [await dispatcher.execute(tool, user="ann") for tool in ("one", "two", "one", "two")]
        assert [result.ok for result in results] == [True, True, False, False]
        assert (await dispatcher.execute("one", user="bob")).ok


async def test_what_never_left_costs_nothing_of_the_rate() -> None:
    policy = {"rate-limit": {"rate": "1/h", "max-wait": 0}, "bulkhead": 1, "retry": 1}
    async with serving(lambda _: "done"), dispatching(tools(policy=policy)) as dispatcher:
        dispatcher.breaker("work").force_open()
        for _ in range(3):
            assert (await dispatcher.execute("work")).outcome is Outcome.REJECTED
        dispatcher.breaker("work").reset()
        assert (await dispatcher.execute("work")).ok
        assert (await dispatcher.execute("work")).outcome is Outcome.THROTTLED
