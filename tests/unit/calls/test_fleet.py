"""Dispatchers of one fleet on the embedded broker: limits, quotas and hints of circuits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import dispatch
from dispatch.calls.fleet import fleet_topic, quota_topic
from dispatch.telemetry.observers import Telemetry
from dispatch.transports.memory import MemoryTransport

BROKER = "memory://fleet"


@dispatch.tool(read_only=True)
async def work() -> str:
    """Do nothing."""
    return "done"


@dispatch.tool(read_only=True)
async def hold(seconds: float) -> str:
    """Take time."""
    await asyncio.sleep(seconds)
    return "done"


def connect(policy: dict[str, Any], **options: Any) -> dispatch.Dispatcher:
    options = {"fleet": "shop", **options}
    return dispatch.connect(BROKER, catalog=[dispatch.Functions(work, hold)], policy=policy, **options)


@asynccontextmanager
async def lab() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        # The embedded broker ends with its last connection.
        lasting = MemoryTransport(BROKER)
        await lasting.start()
        stack.push_async_callback(lasting.close)
        yield stack


async def admitted(dispatcher: dispatch.Dispatcher, rate: float, seconds: float) -> int:
    """Call at a rate, and return how many calls were admitted."""
    calls = []
    for _ in range(int(rate * seconds)):
        calls.append(asyncio.create_task(dispatcher.execute("work")))
        await asyncio.sleep(1 / rate)
    return sum(result.error is None for result in await asyncio.gather(*calls))


async def test_two_dispatchers_share_a_rate_by_demand() -> None:
    async with lab() as stack:
        policy = {"rate-limit": {"rate": "100/s", "burst": 10, "scope": "fleet"}}
        one, other = [await stack.enter_async_context(connect(policy)) for _ in range(2)]
        counts = await asyncio.gather(admitted(one, 120, 5), admitted(other, 10, 5))
        assert sum(counts) == pytest.approx(510 + 90, abs=110)  # 90: calls that still wait at the end
        assert counts[0] > 400


@pytest.mark.costly
async def test_dispatchers_that_call_seldom_use_a_limit_of_few_calls() -> None:
    async with lab() as stack:
        policy = {"rate-limit": {"rate": "5/m", "scope": "fleet"}}
        dispatchers = [await stack.enter_async_context(connect(policy)) for _ in range(3)]
        for _ in range(5):
            for dispatcher in dispatchers:
                assert await dispatcher.call("work") == "done"
                await asyncio.sleep(20)


@pytest.mark.parametrize(("members", "scope"), [(1, "fleet"), (2, "process")])
async def test_a_call_waits_for_no_others_where_there_are_none(members: int, scope: str) -> None:
    async with lab() as stack:
        policy = {"rate-limit": {"rate": "1/m", "scope": scope}, "quota": "50/day"}
        dispatchers = [await stack.enter_async_context(connect(policy)) for _ in range(members)]
        assert await dispatchers[0].call("work") == "done"
        began = asyncio.get_running_loop().time()
        with pytest.raises(dispatch.ThrottledError):
            await dispatchers[0].call("work")
        assert asyncio.get_running_loop().time() == began


async def test_places_of_a_bulkhead_are_shared() -> None:
    async with lab() as stack:
        policy = {"bulkhead": {"max-concurrent-calls": 10, "scope": "fleet"}}
        one, other = [await stack.enter_async_context(connect(policy)) for _ in range(2)]
        held = [asyncio.create_task(one.execute("hold", {"seconds": 5})) for _ in range(30)]
        await asyncio.sleep(1.5)
        guards = [each._running.guard_registry.all() for each in (one, other)]
        in_flight = [sum(each.bulkhead.guard.in_flight for each in of if each.bulkhead) for of in guards]
        assert in_flight[0] >= 9
        assert sum(in_flight) <= 10
        assert (await other.execute("hold", {"seconds": 0.01}, timeout=9)).error is None
        for each in held:
            each.cancel()


@pytest.mark.costly
@pytest.mark.parametrize("wait", [{}, {"max-wait": 8}], ids=["until its deadline", "max-wait"])
async def test_a_bulkhead_with_fewer_places_than_dispatchers_lets_each_of_them_wait_for_one(
    wait: dict[str, float],
) -> None:
    async with lab() as stack:
        policy = {"bulkhead": {"max-concurrent-calls": 1, "scope": "fleet", **wait}}
        members = [await stack.enter_async_context(connect(policy)) for _ in range(3)]
        errors: list[Any] = []
        counts = []

        async def call(member: dispatch.Dispatcher) -> None:
            ends, count = asyncio.get_running_loop().time() + 40, 0
            while asyncio.get_running_loop().time() < ends:
                error = (await member.execute("hold", {"seconds": 0.1})).error
                if error is not None:
                    errors.append(error)
                    return
                count += 1
            counts.append(count)

        await call(members[0])  # the others are idle for long
        counts.clear()
        await asyncio.gather(*map(call, members))
        assert errors == []
        assert min(counts) > 40 / 0.1 / 3 / 2.5, counts
        in_flight = [
            each.bulkhead.guard.in_flight
            for member in members
            for each in member._running.guard_registry.all()
            if each.bulkhead is not None
        ]
        assert sum(in_flight) == 0


async def test_a_call_that_gets_no_place_of_the_fleet_is_told_how_long_it_has_waited() -> None:
    async with lab() as stack:
        policy = {"bulkhead": {"max-concurrent-calls": 1, "scope": "fleet", "max-wait": 5}}
        one, other = [await stack.enter_async_context(connect(policy)) for _ in range(2)]
        for each in (one, other):
            await each.execute("hold", {"seconds": 0.01})
        await asyncio.sleep(3)
        holding = asyncio.create_task(one.execute("hold", {"seconds": 25}))
        await asyncio.sleep(3)
        result = await other.execute("hold", {"seconds": 0.01})
        assert result.duration == pytest.approx(5, abs=0.1)
        assert "would exceed bulkhead.max-wait" in result.error.message
        assert (await holding).error is None


async def test_a_quota_survives_the_end_of_all() -> None:
    async with lab():
        counts = []
        for _ in range(3):
            async with connect({"quota": "30/month"}) as dispatcher:
                results = []
                for _ in range(12):
                    await asyncio.sleep(0.1)
                    results.append(await dispatcher.execute("work"))
                counts.append(sum(each.error is None for each in results))
        assert counts == [12, 12, 6]
        error = results[-1].error
        assert isinstance(error, dispatch.ThrottledError)
        assert error.retry_after > 60
        assert "its quota of calls in this day or month is used up" in error.message


@pytest.mark.parametrize("fleet", ["shop", None])
async def test_a_quota_survives_a_change_of_other_limits_and_of_its_own_number(fleet: str | None) -> None:
    async def admit(dispatcher: dispatch.Dispatcher) -> int:
        count = 0
        for _ in range(8):
            await asyncio.sleep(0.1)
            count += (await dispatcher.execute("hold", {"seconds": 0}, timeout=1)).error is None
        return count

    async with lab() as stack:
        dispatcher = await stack.enter_async_context(connect({"quota": "10/day"}, fleet=fleet))
        assert await admit(dispatcher) == 8
        for rate in ("100/s", "200/s"):
            await dispatcher.reload(policy={"quota": "10/day", "rate-limit": {"rate": rate, "scope": "fleet"}})
            await asyncio.sleep(1)
        assert await admit(dispatcher) == 2
        await dispatcher.reload(policy={"quota": "15/day"})
        await asyncio.sleep(1)
        assert await admit(dispatcher) == 5
        await dispatcher.reload(policy={"quota": "12/day", "retry": 2})
        assert await admit(dispatcher) == 0


@pytest.mark.parametrize("fleet", ["shop", None])
@pytest.mark.parametrize("scope", ["process", "fleet"])
async def test_a_change_of_one_limit_refills_no_other(fleet: str | None, scope: str) -> None:
    def limits(tool: str, user: str, **others: Any) -> dict[str, Any]:
        common = {"max-wait": 0, "scope": scope}
        rates = {"rate-limit": {"rate": tool, **common}, "user-rate-limit": {"rate": user, **common}}
        rates["rate-limit"] |= others.pop("keys", {})
        return {**rates, **others}

    async def admit(user: str) -> int:
        results = [await dispatcher.execute("hold", {"seconds": 0}, user=user) for _ in range(8)]
        return sum(result.error is None for result in results)

    async with lab() as stack:
        dispatcher = await stack.enter_async_context(connect(limits("6/h", "4/h"), fleet=fleet))
        assert await admit("alice") == 4
        await dispatcher.reload(policy=limits("8/h", "4/h"))
        assert await admit("alice") == 0
        assert await admit("bob") == 4
        await dispatcher.reload(policy=limits("8/h", "7/h", keys={"max-wait": 0.1, "weights": {"carol": 2}}))
        assert await admit("carol") == 4
        await dispatcher.reload(policy=limits("8/h", "7/h", quota="1000/day"))
        assert await admit("dan") == 0
        await dispatcher.reload(policy=limits("8/h", "6/h"))
        assert await admit("dan") == 0
        await dispatcher.reload(policy=limits("9/h", "6/h"))
        assert await admit("dan") == 6


@pytest.mark.parametrize("scope", ["process", "fleet"])
async def test_calls_that_wait_are_admitted_at_the_changed_rate(scope: str) -> None:
    """Forty calls that waited at 20/s passed within two seconds, whatever the rate was changed to."""

    def limits(rate: str) -> dict[str, Any]:
        return {"rate-limit": {"rate": rate, "burst": 1, "max-wait": 60, "scope": scope}, "timeout": 60}

    ended: list[float] = []

    async def call() -> None:
        result = await dispatcher.execute("work", user="alice")
        ended.append(clock() - changed if result.error is None else -1.0)

    clock = asyncio.get_running_loop().time
    async with lab() as stack:
        dispatcher = await stack.enter_async_context(connect(limits("20/s")))
        changed = clock()
        calls = [asyncio.create_task(call()) for _ in range(40)]
        await asyncio.sleep(0.52)
        assert len(ended) == 11
        await dispatcher.reload(policy=limits("2/s"))
        changed = clock()
        await asyncio.sleep(4.9)
        assert 19 <= len(ended) <= 22  # one at once and two a second
        await dispatcher.reload(policy=limits("1/h"))
        await asyncio.sleep(1.0)
        await asyncio.wait_for(asyncio.gather(*calls), 1.0)
        assert ended.count(-1.0) >= 17, "they would wait for an hour"


async def test_calls_that_wait_pass_when_the_limit_is_removed() -> None:
    async with lab() as stack:
        dispatcher = await stack.enter_async_context(
            connect({"rate-limit": {"rate": "1/h", "max-wait": 10_000}, "timeout": 20_000})
        )
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(3)]
        await asyncio.sleep(1.0)
        assert [each.done() for each in calls] == [True, False, False]
        await dispatcher.reload(policy={"rate-limit": None})
        results = await asyncio.wait_for(asyncio.gather(*calls), 1.0)
        assert [result.error for result in results] == [None, None, None]


async def test_without_a_fleet_limits_hold_for_the_process(caplog: pytest.LogCaptureFixture) -> None:
    async with lab() as stack:
        policy = {
            "rate-limit": {"rate": "1/h", "burst": 3, "scope": "fleet"},
            "quota": "2/day",
            "bulkhead": {"scope": "fleet"},
        }
        dispatcher = await stack.enter_async_context(connect(policy, fleet=None))
        results = [await dispatcher.execute("work") for _ in range(3)]
        assert [each.error is None for each in results] == [True, True, False]
        assert "limits of a fleet, and this dispatcher belongs to none" in caplog.text


@pytest.mark.costly
@pytest.mark.parametrize(
    ("limit", "smaller", "larger", "text"),
    [
        (
            "rate-limit",
            {"rate": "4/s"},
            {"rate": "9/s"},
            "rate limit of 'work', in calls a second: 4 and, in this one, 9;",
        ),
        (
            "user-rate-limit",
            {"rate": "4/s"},
            {"rate": "9/s"},
            "user of 'work', in calls a second: 4 and, in this one, 9;",
        ),
        (
            "bulkhead",
            {"max-concurrent-calls": 2},
            {"max-concurrent-calls": 6},
            "bulkhead of 'hold': 2 and, in this one, 6;",
        ),
        ("quota", "4000/day", "9000/day", "quota of 'work', in calls a day: 4000 and, in this one, 9000;"),
    ],
)
async def test_different_numbers_for_a_limit_are_reported_once(
    caplog: pytest.LogCaptureFixture, limit: str, smaller: Any, larger: Any, text: str
) -> None:
    async with lab() as stack:
        policies = [
            {limit: each if isinstance(each, str) else {**each, "scope": "fleet"}} for each in (smaller, larger)
        ]
        members = [await stack.enter_async_context(connect(policy)) for policy in policies]

        async def call(member: dispatch.Dispatcher) -> None:
            for _ in range(150):
                if limit == "bulkhead":
                    await asyncio.gather(*(member.execute("hold", {"seconds": 0.1}) for _ in range(8)))
                else:
                    await member.execute("work", user="alice", timeout=1)

        await asyncio.gather(*map(call, members))
        assert [text in message for message in caplog.messages if "different numbers" in message] == [True]


async def test_a_circuit_that_closed_elsewhere_ends_the_open_duration() -> None:
    async with lab() as stack:
        policy = {"breaker": {"open-duration": 60}}
        one, other = [await stack.enter_async_context(connect(policy)) for _ in range(2)]
        for each in (one, other):
            await each.execute("work")
        breakers = [each.breaker("work") for each in (one, other)]
        now = asyncio.get_running_loop().time
        breakers[0].open_until(now() + 0.5)
        breakers[1].open_until(now() + 60)
        await asyncio.sleep(1.0)
        for _ in range(40):
            await one.execute("work")
        assert breakers[0].state == "closed"
        await asyncio.sleep(0.5)
        assert breakers[1].state == "open"  # a hint forces no state
        assert (await other.execute("work")).error is None


async def test_metrics_of_a_fleet() -> None:
    async with lab() as stack:
        registry = CollectorRegistry()
        policy = {"rate-limit": {"rate": "9/s", "scope": "fleet"}, "quota": "90/day"}
        dispatcher = await stack.enter_async_context(connect(policy, telemetry=Telemetry(registry=registry)))
        await dispatcher.execute("work")
        text = generate_latest(registry).decode()
        assert 'dispatch_fleet_members{fleet="shop"} 1.0' in text
        assert 'dispatch_fleet_share{fleet="shop",kind="rate",tool="work"} 1.0' in text
        assert 'dispatch_fleet_quota{fleet="shop",per="day",tool="work"} 90.0' in text


def test_the_name_of_a_fleet() -> None:
    assert fleet_topic("shop") == "non-persistent://tg/notify/dispatch-shop"
    assert quota_topic("shop") == "persistent://tg/notify/dispatch-shop-quota"
    for name in ("", "Shop", "a/b", "-a", "a" * 65):
        with pytest.raises(ValueError, match="the name of a fleet"):
            dispatch.connect("memory://", fleet=name)
