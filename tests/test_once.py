"""At most once, and answered whenever there is a way: our dispatchers and our service over a network that loses, repeats,
delays and reorders in both directions, with instances that die and dispatchers that come and go.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch import CallResult, Dispatcher, Policy, ToolServer, ToolService
from dispatch.ledger import Ledger
from dispatch.outcome import Outcome, TransportError
from dispatch.transports.memory import MemoryTransport
from tests.support.clock import advance, run
from tests.support.faults import FaultPlan, FaultyTransport, _Dice
from tests.support.stand import BROKER, REQUESTS, RESPONSES, catalog

EXAMPLES = int(os.environ.get("DISPATCH_ONCE_EXAMPLES", "300"))
"""Stories that are told; a minute brings some 1,500."""
PATIENT_S = 600.0
"""So long that a call which has a way gets its answer: what is shown is that it never takes that long for nothing."""


class Worker(ToolService):
    """Changes the state of the world: counts, by the number of the call, how often it was told to."""

    def __init__(self, ran: Counter[int]) -> None:
        self.ran = ran

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        self.ran[arguments["n"]] += 1
        if arguments.get("chunks"):
            return self._stream(arguments["n"], arguments["chunks"])
        if arguments.get("seconds"):
            await asyncio.sleep(arguments["seconds"])
        return f"answer {arguments['n']}"

    async def _stream(self, number: int, chunks: int) -> AsyncIterator[str]:
        for index in range(chunks):
            if index % 7 == 3:
                await asyncio.sleep(0.01)
            yield f"{number}:{index};"


class World:
    """A faulty network with instances and dispatchers on it. :meth:`calm` and :meth:`storm` switch the faults."""

    def __init__(self, plan: FaultPlan, seed: int) -> None:
        self.plan = plan
        self.rng = random.Random(seed)
        self.ran: Counter[int] = Counter()
        self.networks: list[FaultyTransport] = []
        self.servers: list[ToolServer] = []
        self.dispatchers: list[Dispatcher] = []
        self.stormy = False
        self.count = 0

    def _network(self) -> FaultyTransport:
        network = FaultyTransport(
            MemoryTransport(BROKER), outgoing=FaultPlan(), incoming=FaultPlan(), seed=self.rng.randrange(2**32)
        )
        # A broker gives a message of a shared subscription to one instance. To the same one it may come twice all the same.
        network.once = REQUESTS
        self.networks.append(network)
        if self.stormy:
            self._storm(network)
        return network

    def _storm(self, network: FaultyTransport) -> None:
        network.outgoing = network.incoming = _Dice(self.plan, network.outgoing.rng)

    def storm(self) -> None:
        self.stormy = True
        for network in self.networks:
            self._storm(network)

    def calm(self) -> None:
        self.stormy = False
        for network in self.networks:
            network.heal()

    async def instance(self, name: str | None = None, **options: Any) -> ToolServer:
        network = self._network()
        await network.start()
        server = ToolServer(
            Worker(self.ran), network, request_queue=REQUESTS, response_queue=RESPONSES, instance=name, **options
        )
        await server.start()
        self.servers.append(server)
        return server

    async def kill(self, server: ToolServer) -> None:
        """It ends in the middle of things: nothing that it says from now on gets anywhere."""
        self.servers.remove(server)
        network = server._transport
        assert isinstance(network, FaultyTransport)
        network.outgoing = _Dice(FaultPlan(drop=1.0), network.outgoing.rng)
        network.incoming = _Dice(FaultPlan(drop=1.0), network.incoming.rng)
        await server.close()
        await network.close()
        self.networks.remove(network)

    async def dispatcher(self, *, give_up_after: float = PATIENT_S) -> Dispatcher:
        """One that takes no silence for death, unless told so: this network can be silent for long."""
        policy = Policy(timeout=PATIENT_S, give_up_after=give_up_after)
        dispatcher = Dispatcher(self._network(), catalog(), policy=policy)
        await dispatcher.start()
        self.dispatchers.append(dispatcher)
        return dispatcher

    async def call(self, dispatcher: Dispatcher, **arguments: Any) -> CallResult:
        self.count += 1
        number = self.count
        result = await dispatcher.execute("work", {"n": number, **arguments})
        if result.ok:
            chunks = arguments.get("chunks")
            expected = "".join(f"{number}:{i};" for i in range(chunks)) if chunks else f"answer {number}"
            assert result.text == expected
            assert self.ran[number] == 1
        return result

    async def end(self) -> None:
        """Everything comes to rest: nothing waits, no credit is out, nothing ran twice."""
        self.calm()
        await advance(30)  # tools whose callers have gone run to their end, and the last questions get an answer
        for dispatcher in self.dispatchers:
            assert dispatcher.exchange.pending == 0
            await dispatcher.close()
        for server in self.servers:
            assert (server.running, server.queued) == (0, 0)
            assert not any(topic.gate.queued for topic in server._replies._topics.values())
            await server.close()
        for network in self.networks:
            await network.close()
        assert not +(self.ran - Counter(dict.fromkeys(self.ran, 1))), "a tool ran twice"


BAD = FaultPlan(drop=0.25, delay=0.1, duplicate=0.2, reorder=0.1, max_delay=1.5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("instances", [1, 3])
async def test_every_call_is_answered_and_runs_once(seed: int, instances: int) -> None:
    world = World(BAD, seed)
    for _ in range(instances):
        await world.instance()
    dispatcher = await world.dispatcher()
    assert (await world.call(dispatcher)).ok  # they have met
    world.storm()
    for _ in range(20):
        plans = [{}, {"seconds": 0.5}, {"chunks": 40}, {"seconds": 20}]
        results = await asyncio.gather(*(world.call(dispatcher, **world.rng.choice(plans)) for _ in range(20)))
        assert [result.error for result in results if not result.ok] == []
    assert sorted(world.ran.values()) == [1] * world.count
    await world.end()


async def test_a_lost_answer_costs_a_fraction_of_the_timeout() -> None:
    world = World(FaultPlan(drop=0.05), 1)  # on both ends of both ways: one in ten is lost each way
    await world.instance()
    dispatcher = await world.dispatcher()
    for _ in range(50):
        await world.call(dispatcher, seconds=0.01)
    world.storm()
    results = [await world.call(dispatcher, seconds=0.01) for _ in range(500)]
    assert all(result.ok for result in results)
    repaired = [result for result in results if result.transmissions > 1]
    assert 50 < len(repaired) < 200
    assert max(result.duration for result in results) < 1
    assert all(result.asked_for < result.duration for result in repaired)
    assert all(result.asked_for == 0 for result in results if result.transmissions == 1)
    await world.end()


async def test_a_tool_that_takes_long_is_left_alone() -> None:
    world = World(BAD, 1)
    server = await world.instance()
    dispatcher = await world.dispatcher()
    result = await world.call(dispatcher, seconds=300)
    assert result.ok
    assert 50 < result.transmissions < 80, "somebody at work is asked every five seconds"
    assert server.repeats == result.transmissions - 1
    await world.end()


async def test_a_dead_instance_is_noticed_long_before_the_timeout() -> None:
    world = World(BAD, 1)
    server = await world.instance()
    dispatcher = await world.dispatcher(give_up_after=10)
    call = asyncio.create_task(world.call(dispatcher, seconds=500))
    await advance(30)
    started = asyncio.get_running_loop().time()
    await world.kill(server)
    result = await call
    error = result.error
    assert isinstance(error, TransportError)
    assert (error.type, error.sent, error.retryable) == ("instance-lost", True, False)
    assert "may have run" in error.message
    assert asyncio.get_running_loop().time() - started < 20
    await world.end()


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
    assert result.error is not None
    assert (result.error.type, result.error.retryable) == ("former", False)
    assert "may have run" in result.error.message
    assert asyncio.get_running_loop().time() - started <= 5.1
    # The next call finds the new one.
    assert (await world.call(dispatcher)).ok
    assert again.refused["former"] >= 1
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


@pytest.mark.parametrize("seed", range(3))
async def test_instances_that_die_and_come_back_run_nothing_twice(seed: int) -> None:
    world = World(FaultPlan(drop=0.05, delay=0.1, duplicate=0.2, reorder=0.1, max_delay=0.5), seed)
    await world.instance()
    dispatchers = [await world.dispatcher(give_up_after=10), await world.dispatcher(give_up_after=10)]
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
    assert set(ends) <= {"answered", "instance-lost", "former", "timeout"}, ends
    for dispatcher in dispatchers:
        assert (await world.call(dispatcher)).ok
    await world.end()


async def test_what_does_not_fit_into_memory_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(FaultPlan(drop=0.3, duplicate=0.3, max_delay=30), 5)
    server = await world.instance()
    assert server._recall is not None
    server._recall.ledger = Ledger(max_entries=3, max_bytes=100)
    dispatcher = await world.dispatcher()
    assert (await world.call(dispatcher)).ok
    world.storm()
    for _ in range(20):
        results = await asyncio.gather(*(world.call(dispatcher) for _ in range(20)))
        assert {str(result.outcome) for result in results} <= {Outcome.SUCCESS, Outcome.TRANSPORT}
        assert {result.error.type for result in results if result.error} <= {"forgotten"}
    assert len(server._recall.ledger) <= 3
    await advance(60)  # the last of what was repeated arrives
    await world.end()


@given(
    plan=st.builds(
        FaultPlan,
        drop=st.floats(0, 0.4),
        delay=st.floats(0, 0.2),
        duplicate=st.floats(0, 0.2),
        reorder=st.floats(0, 0.2),
        max_delay=st.floats(0.001, 5),
    ),
    seed=st.integers(0, 2**32),
    steps=st.lists(
        st.sampled_from(
            ["call", "call", "stream", "slow", "burst", "wait", "kill", "join", "dispatcher", "cancel", "drain"]
        ),
        min_size=1,
        max_size=25,
    ),
)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_whatever_happens_nothing_runs_twice(plan: FaultPlan, seed: int, steps: list[str]) -> None:
    run(lambda: story(plan, seed, steps))


async def story(plan: FaultPlan, seed: int, steps: list[str]) -> None:
    world = World(plan, seed)
    rng = world.rng
    await world.instance()
    await world.dispatcher()
    assert (await world.call(world.dispatchers[0])).ok
    world.storm()
    calls: list[asyncio.Task[CallResult]] = []
    disturbed = False

    def call(**arguments: Any) -> None:
        calls.append(asyncio.create_task(world.call(rng.choice(world.dispatchers), **arguments)))

    for step in steps:
        match step:
            case "call":
                call()
            case "stream":
                call(chunks=rng.randrange(1, 30))
            case "slow":
                call(seconds=rng.random() * 10)
            case "burst":
                for _ in range(20):
                    call(seconds=rng.random())
            case "wait":
                await advance(rng.random() * 3)
            case "kill" if len(world.servers) > 0:
                disturbed = True
                await world.kill(rng.choice(world.servers))
                await world.instance(rng.choice([None, "steady"]))
            case "join" if len(world.servers) < 4:
                disturbed = True  # calls that come before it is known may go the unprotected way
                await world.instance()
            case "dispatcher" if len(world.dispatchers) < 3:
                world.calm()
                await world.dispatcher()
                assert (await world.call(world.dispatchers[-1])).ok
                world.storm()
            case "cancel" if calls:
                rng.choice(calls).cancel()
            case "drain" if len(world.servers) > 1:
                disturbed = True
                leaving = world.servers.pop(0)
                await leaving.drain()
                await leaving.close()
            case _:
                pass
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            assert isinstance(result, asyncio.CancelledError), result
        elif not disturbed:
            assert result.ok, result.error
    await world.end()
