"""At most once, and answered whenever there is a way: our dispatchers and our service over a network that loses, repeats,
delays and reorders in both directions, with instances that die and dispatchers that come and go. What is seen here in a few
scenes, tests/at_most_once/test_scenarios.py looks for in whatever can happen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from dispatch import CallResult
from dispatch.errors import TransportError
from tests.at_most_once.world import World, longest_silence
from tests.helpers.clock import advance
from tests.helpers.faults import FaultPlan
from tests.helpers.protocol_settings import override_settings

BAD = FaultPlan(drop=0.25, delay=0.1, duplicate=0.2, reorder=0.1, max_delay=1.5)


@pytest.fixture
def patient() -> Iterator[None]:
    """No silence of the worst network is taken for death."""
    with override_settings(give_up=longest_silence(BAD), callee_give_up=longest_silence(BAD)):
        yield


@pytest.mark.costly
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("seed", "instances"), [(0, 1), (1, 3)])
async def test_every_call_is_answered_and_runs_once(seed: int, instances: int) -> None:
    world = World(BAD, seed)
    for _ in range(instances):
        await world.instance()
    dispatcher = await world.dispatcher()
    assert (await world.call(dispatcher)).ok  # they have met
    world.storm()
    for _ in range(20):
        plans = [{}, {"seconds": 0.5}, {"chunks": 40}, {"seconds": 20}, {"size": 9_000, "takes": 10_000}]
        results = await asyncio.gather(*(world.call(dispatcher, **world.rng.choice(plans)) for _ in range(20)))
        assert [result.error for result in results if not result.ok] == []
    assert sorted(world.ran.values()) == [1] * len(world.calls)
    await world.end()


@pytest.mark.costly
async def test_a_lost_answer_costs_a_fraction_of_the_timeout() -> None:
    world = World(FaultPlan(drop=0.05), 1)  # on both ends of both ways: one in ten is lost each way
    await world.instance()
    dispatcher = await world.dispatcher()
    for _ in range(50):
        await world.call(dispatcher, seconds=0.01)
    world.storm()
    results = [await world.call(dispatcher, seconds=0.01) for _ in range(500)]
    assert all(result.ok for result in results)
    recovered = [result for result in results if result.duration > 0.012]
    assert 50 < len(recovered) < 200, "one in five requests or replies was lost"
    assert max(result.duration for result in results) < 0.2
    await world.end()


@pytest.mark.usefixtures("patient")
async def test_a_tool_that_takes_long_is_executed_once() -> None:
    world = World(BAD, 1)
    await world.instance()
    dispatcher = await world.dispatcher()
    assert (await world.call(dispatcher)).ok  # they have met
    world.storm()
    result = await world.call(dispatcher, seconds=300)
    assert result.ok
    await world.end()


async def test_a_dead_instance_is_noticed_long_before_the_timeout() -> None:
    world = World(BAD, 1)
    server = await world.instance()
    dispatcher = await world.dispatcher()
    call = asyncio.create_task(world.call(dispatcher, seconds=500))
    await advance(30)
    started = asyncio.get_running_loop().time()
    await world.kill(server)
    result = await call
    error = result.error
    assert isinstance(error, TransportError)
    assert (error.type, error.may_have_run, error.retryable) == ("instance-lost", True, False)
    assert "may have been executed" in error.message
    assert asyncio.get_running_loop().time() - started < 20
    await world.end()


@pytest.mark.usefixtures("patient")
async def test_a_new_life_of_an_instance_refuses_what_was_meant_for_the_former_one() -> None:
    world = World(BAD, 1)
    server = await world.instance("steady")
    dispatcher = await world.dispatcher()
    call = asyncio.create_task(world.call(dispatcher, seconds=500))
    await advance(30)
    await world.kill(server)
    again = await world.instance("steady")
    started = asyncio.get_running_loop().time()
    result = await call
    assert (result.error.type, result.error.retryable) == ("instance-restarted", False)
    assert "may have been executed" in result.error.message
    assert asyncio.get_running_loop().time() - started <= 3
    # The next call finds the new one.
    assert (await world.call(dispatcher)).ok
    assert again.requests == 1
    await world.end()


async def test_what_a_leaving_instance_refuses_goes_to_another() -> None:
    world = World(BAD, 1)
    first = await world.instance(concurrency=1)
    dispatcher = await world.dispatcher()
    running = asyncio.create_task(world.call(dispatcher, seconds=5))
    await advance(1)
    waiting = [asyncio.create_task(world.call(dispatcher)) for _ in range(5)]
    await advance(0.01)
    second = await world.instance()
    await advance(11)  # a dispatcher in use looks for new ones every ten seconds
    busy = [asyncio.create_task(world.call(dispatcher, seconds=3)) for _ in range(6)]
    await advance(0.1)
    drain = asyncio.create_task(first.drain())
    results = await asyncio.gather(running, *waiting, *busy)
    await drain
    assert all(result.ok for result in results)
    assert second.requests > 0
    assert any(result.attempts == 2 for result in results), "refused by the one, taken by the other"
    await world.end()


@pytest.mark.parametrize("seed", range(2))
async def test_instances_that_die_and_come_back_run_nothing_twice(seed: int) -> None:
    world = World(FaultPlan(drop=0.05, delay=0.1, duplicate=0.2, reorder=0.1, max_delay=0.5), seed)
    await world.instance()
    dispatchers = [await world.dispatcher(), await world.dispatcher()]
    for dispatcher in dispatchers:
        assert (await world.call(dispatcher)).ok
    world.storm()
    calls: list[asyncio.Task[CallResult]] = []
    for _ in range(6):
        for dispatcher in dispatchers:
            calls += [asyncio.create_task(world.call(dispatcher, seconds=world.rng.random())) for _ in range(10)]
        await advance(world.rng.random() * 4)
        await world.kill(world.servers[0])
        await world.instance(world.rng.choice([None, "steady"]))
        await advance(2)
    world.calm()
    results = await asyncio.gather(*calls)
    ends = Counter(result.error.type if result.error else "answered" for result in results)
    assert ends["answered"] > 10
    assert set(ends) <= {"answered", "instance-lost", "instance-restarted", "timeout"}, ends
    for dispatcher in dispatchers:
        # One that died before it was ever asked can be told from a living one by asking it only.
        last = [await world.call(dispatcher) for _ in range(3)]
        assert last[-1].ok
        assert {each.error.type for each in last if each.error is not None} <= {"instance-lost"}
    await world.end()
