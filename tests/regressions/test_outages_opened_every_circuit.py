"""A broker outage opened every tool's circuit breaker, and the death of one of several instances the whole tool's.

A failure counts where it arose: a local one nowhere, that of one instance for this instance, and for the tool only while no
other instance answers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import dispatch
from dispatch import CallResult, CallTimeoutError, CircuitChanged, Dispatcher, Event, Origin
from dispatch.devtools.localbroker import Endpoint
from dispatch.resilience.breaker import State
from dispatch.routing.discovery import SPREAD_S
from dispatch.testing import FaultyTransport
from dispatch.transports.base import RECONNECT_WAIT_S
from dispatch.transports.memory import MemoryTransport
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, catalog, dispatching, read, serving
from tests.helpers.echo_service import Echo
from tests.helpers.lossy_proxy import LossyProxy

FOREVER = 1e9
TWO = ("one", "two")


def now() -> float:
    return asyncio.get_running_loop().time()


def taking(seconds: float) -> Callable[[Any], Any]:
    """A tool that answers after so many seconds."""

    async def work(_arguments: Any) -> str:
        await asyncio.sleep(seconds)
        return "done"

    return work


@contextlib.asynccontextmanager
async def instances(
    work: Callable[[Any], Any], *names: str, **keys: Any
) -> AsyncIterator[tuple[Dispatcher, FaultyTransport, dict[str, FaultyTransport]]]:
    """A dispatcher that knows these instances, its connection, and the connection of each instance."""
    async with contextlib.AsyncExitStack() as stack:
        connections: dict[str, FaultyTransport] = {}
        for name in names:
            connection = connections[name] = FaultyTransport(MemoryTransport(BROKER))
            await connection.start()
            stack.push_async_callback(connection.close)
            await stack.enter_async_context(
                serving(work, broker=connection, request_queue=REQUESTS, response_queue=RESPONSES, instance=name)
            )
        own = FaultyTransport(MemoryTransport(BROKER))
        tool = catalog(work={key.replace("_", "-"): value for key, value in keys.items()})
        dispatcher = await stack.enter_async_context(dispatching(tool, transport=own))
        yield dispatcher, own, connections


async def load(dispatcher: Dispatcher, rate: float, seconds: float) -> list[tuple[float, CallResult]]:
    """Calls at this rate for so long: when each began, and its result."""
    ended: list[tuple[float, CallResult]] = []

    async def one() -> None:
        began = now()
        ended.append((began, await dispatcher.execute("work")))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(round(rate * seconds)):
            tasks.create_task(one())
            await asyncio.sleep(1 / rate)
    return ended


def errors(results: list[CallResult]) -> Counter[str]:
    return Counter("" if result.error is None else result.error.type for result in results)


async def test_a_call_that_waits_for_an_instance_says_that_the_broker_was_lost() -> None:
    async with instances(taking(0.01), "one") as (dispatcher, connection, _):
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=3)) for _ in range(20)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)  # the others wait for further instances
        connection.disconnect(FOREVER)
        found = errors(await asyncio.gather(*calls))
        assert found == {"": 4, "disconnected": 16}


async def test_a_call_without_time_for_the_instances_to_come_back_says_that_the_broker_was_lost() -> None:
    async with instances(taking(0.01), "one") as (dispatcher, connection, others):
        await dispatcher.call("work")
        others["one"].disconnect(FOREVER)
        await advance(15)  # the instance is given up
        connection.disconnect(1)
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=3) for _ in range(20)))
        assert errors(results) == {"disconnected": 20}
        assert "no instance has been heard since" in str(results[-1].error)


async def test_after_an_outage_of_a_minute_calls_succeed_at_once() -> None:
    async with instances(taking(0.01), *TWO) as (dispatcher, connection, _):
        transitions: list[Event] = []
        assert (await dispatcher.execute("work")).ok
        dispatcher.on_event(transitions.append)
        began, seconds = now(), 60.0
        connection.disconnect(seconds)
        ended = await load(dispatcher, 20, seconds + 10)
        during = [result for at, result in ended if at < began + seconds - 1]
        after = [result for at, result in ended if at >= began + seconds]
        assert errors(during) == {"disconnected": len(during)}
        assert max(result.duration for result in during) <= RECONNECT_WAIT_S + 0.01, (
            "no call waits for its whole deadline"
        )
        assert all(result.attempts == 0 for result in during)
        assert errors(after) == {"": len(after)}
        assert transitions == []


async def test_requests_whose_answers_an_outage_kept_away_are_no_failures_of_the_tool() -> None:
    async with instances(taking(1.0), *TWO) as (dispatcher, connection, _):
        transitions: list[Event] = []
        assert (await dispatcher.execute("work")).ok
        dispatcher.on_event(transitions.append)
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=3)) for _ in range(40)]
        await advance(0.5)
        connection.disconnect(10)
        assert errors([await call for call in calls]) == {"timeout": 40}
        assert {str(result.error.origin) for call in calls if (result := call.result()).error} == {"local"}
        await advance(10)
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(40)))) == {"": 40}
        assert [view.failures for view in dispatcher.instances("lab")] == [0, 0]
        assert transitions == []


@pytest.mark.parametrize("policy", [{"rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}, {"bulkhead": 1}])
async def test_while_the_broker_is_away_no_other_guard_is_asked(policy: dict[str, Any]) -> None:
    async with instances(taking(0.01), "one", policy=policy) as (dispatcher, connection, _):
        assert (await dispatcher.execute("work")).ok
        await advance(5)
        connection.disconnect(RECONNECT_WAIT_S + 1)
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
        assert errors(results) == {"disconnected": 20}
        assert all(result.error is not None and not result.error.may_have_run for result in results)  # type: ignore[attr-defined]
        await advance(5)
        assert (await dispatcher.execute("work")).ok


async def test_a_connection_that_is_back_within_ten_seconds_costs_no_call() -> None:
    async with instances(taking(0.01), "one") as (dispatcher, connection, _):
        assert (await dispatcher.execute("work")).ok
        connection.disconnect(RECONNECT_WAIT_S - 0.1)
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))) == {"": 20}


@pytest.mark.parametrize("names", [TWO, ("one",)])
async def test_all_that_an_instance_had_when_it_died_is_one_failure(names: tuple[str, ...]) -> None:
    """20 of the 40 requests, or all of them, end in the same moment."""
    async with instances(taking(1.0), *names, policy={"retry": 1}) as (dispatcher, _, connections):
        transitions: list[Event] = []
        for _ in names:  # a new instance gets one request at a time
            assert (await dispatcher.execute("work")).ok
        dispatcher.on_event(transitions.append)
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(40)]
        await advance(0.5)
        connections["one"].disconnect(FOREVER)
        lost = 40 // len(names)
        ended = errors([await call for call in calls])
        assert ended == Counter({"instance-lost": lost, "": 40 - lost})
        assert dispatcher.breaker("work").state is State.CLOSED
        assert [event for event in transitions if type(event).__name__ == "CircuitChanged"] == []


async def test_an_instance_that_answers_nothing_closes_no_tool_while_another_answers() -> None:
    policy = {"attempt-timeout": 0.5, "retry": 1, "outlier-detection": None}
    async with instances(taking(0.01), *TWO, policy=policy) as (dispatcher, _, connections):
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(4)))) == {"": 4}
        connections["one"].disconnect(FOREVER)
        for _ in range(10):  # in bursts: the ten that time out do so in a row
            await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
        assert dispatcher.breaker("work").state is State.CLOSED
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(20))))["circuit-open"] == 0


async def test_a_tool_that_nearly_always_fails_is_left_alone_although_now_and_then_an_instance_answers() -> None:
    """Each answer of one instance must not excuse what all the others fail meanwhile."""
    calls = 0

    async def nearly_still(_arguments: Any) -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01 if calls % 10 == 0 else 60)
        return "done"

    policy = {"attempt-timeout": 0.5, "retry": 1, "outlier-detection": None}
    async with instances(nearly_still, *"abcdefgh", policy=policy) as (dispatcher, _, _):
        await advance(1)
        for _ in range(60):
            await dispatcher.execute("work")
        assert dispatcher.breaker("work").state is State.OPEN


@pytest.mark.parametrize("names", [TWO, ("one",)])
async def test_failures_of_all_instances_are_those_of_the_tool(names: tuple[str, ...]) -> None:
    policy = {"attempt-timeout": 0.5, "retry": 1}
    async with instances(taking(0.01), *names, policy=policy) as (dispatcher, _, connections):
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(4)))) == {"": 4}
        await advance(SPREAD_S)  # until then the others would wait for further instances
        for connection in connections.values():
            connection.disconnect(FOREVER)
        await asyncio.gather(*(dispatcher.execute("work") for _ in range(20 * len(names))))
        assert dispatcher.breaker("work").state is State.OPEN


async def test_the_failures_of_the_only_instance_left_are_those_of_the_tool() -> None:
    policy = {"attempt-timeout": 0.5, "retry": 1}
    async with instances(taking(0.01), "one", policy=policy) as (dispatcher, _, connections):
        async with serving(taking(0.01), instance="two"):
            await advance(2)
            assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(4)))) == {"": 4}
            assert len(dispatcher.instances("lab")) == 2
        await advance(2)
        connections["one"].disconnect(FOREVER)
        await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
        assert dispatcher.breaker("work").state is State.OPEN


async def test_a_stream_that_an_outage_cut_short_is_no_failure_of_the_tool() -> None:
    async with instances(taking(1.0), *TWO) as (dispatcher, connection, _):
        assert (await dispatcher.execute("work")).ok
        streams = [asyncio.create_task(read(dispatcher.stream("work", timeout=3), [])) for _ in range(20)]
        await advance(0.5)
        connection.disconnect(10)
        ended = await asyncio.gather(*streams, return_exceptions=True)
        assert {(type(error), getattr(error, "origin", "")) for error in ended} == {(CallTimeoutError, Origin.LOCAL)}
        assert dispatcher.breaker("work").state is State.CLOSED


@pytest.mark.pulsar
async def test_calls_succeed_as_soon_as_a_genuine_broker_answers_again(pulsar_endpoint: Endpoint) -> None:
    """The broker hangs for some seconds: its connections stay open, which is the outage that is harder to notice."""
    topic = unique_topic()
    tool = catalog_of(topic, "work", guarded=True, **{"read-only": True})
    async with (
        LossyProxy.before(pulsar_endpoint.service_url) as broker,
        dispatch.ToolServer(Echo(), broker.url, service=topic),
        dispatch.connect(broker.url, tool) as dispatcher,
    ):
        assert broker.process is not None
        assert (await dispatcher.execute("work")).ok
        transitions: list[Event] = []
        dispatcher.on_event(transitions.append)
        calling = asyncio.create_task(load(dispatcher, 50, 9))
        await asyncio.sleep(1)
        broker.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(4)
            assert not dispatcher.is_connected
        finally:
            broker.process.send_signal(signal.SIGCONT)
        back = now()
        ended = await calling
    first = min(began for began, result in ended if result.ok and began > back - 1)
    assert first - back <= 3, "within 1 s, and within 3 s on a busy machine"
    after = [result for began, result in ended if began >= first]
    assert sum(result.ok for result in after) >= 0.99 * len(after)
    assert [
        each for each in transitions if isinstance(each, CircuitChanged) or getattr(each, "change", "") == "ejected"
    ] == []
