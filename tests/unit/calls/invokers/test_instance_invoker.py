"""Calls while no instance can be reached: they wait for one, or go to the shared topic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dispatch.testing
from dispatch import Bulkhead, Dispatcher, Policy
from dispatch.errors import CallTimeoutError, Outcome, RejectedError
from dispatch.routing.instance import DISCOVERY_S, GONE_S, HELLO_WAIT_S, MAX_UNANSWERED
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import BROKER, Peer, catalog, dispatching, serving
from tests.helpers.faults import FaultPlan, FaultyTransport

KNOWN_ONLY = Policy(known_instances_only=True)


def refused(result: object) -> RejectedError:
    error = getattr(result, "error", None)
    assert isinstance(error, RejectedError)
    assert (error.type, error.rejected_by, error.retryable, error.retry_after) == ("no-instance", "balancer", True, 1.0)
    assert "was not executed" in error.message
    return error


async def test_a_call_without_instances_waits_as_long_as_its_tool_could_be_executed_and_sends_nothing() -> None:
    async with Peer.as_service() as stranger, dispatching(policy=KNOWN_ONLY) as dispatcher:
        result = await dispatcher.execute("work", timeout=10)
        error = refused(result)
        assert "lab" in error.message
        assert "is the service running?" in error.message
        assert (result.duration, result.attempts) == (pytest.approx(9.0, abs=0.2), 0)
        with pytest.raises(RejectedError) as caught:
            await anext(dispatcher.stream("work", timeout=10))
        assert caught.value.type == "no-instance"
        assert stranger.arrived.empty()
        assert dispatcher.pending_requests == 0


async def test_a_service_without_instances_for_long_refuses_within_a_second() -> None:
    async with Peer.as_service(), dispatching(policy=KNOWN_ONLY) as dispatcher:
        await dispatcher.execute("work", timeout=GONE_S * 2)
        result = await dispatcher.execute("work", timeout=GONE_S * 2)
        assert refused(result)
        assert result.duration == pytest.approx(DISCOVERY_S, abs=0.1)


async def test_calls_that_wait_for_an_instance_hold_no_place() -> None:
    policy = Policy(known_instances_only=True, bulkhead=Bulkhead(max_concurrent_calls=2))
    async with Peer.as_service(), dispatching(policy=policy) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(10)]
        await advance(5)
        assert dispatcher.pending_requests == 0
        async with serving(lambda _: "here"):
            assert [(await call).text for call in calls] == ["here"] * 10


async def test_an_open_circuit_rejects_at_once() -> None:
    async with dispatching(policy=KNOWN_ONLY) as dispatcher:
        dispatcher.breaker("work").force_open()
        result = await dispatcher.execute("work")
        assert result.error is not None
        assert (result.error.type, result.duration) == ("circuit-open", pytest.approx(0.0, abs=0.01))


async def test_of_an_unknown_service_a_call_goes_to_the_shared_topic_after_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Peer.as_service() as stranger, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work", timeout=5))
        await advance(DISCOVERY_S - 0.1)
        assert stranger.arrived.empty()
        await advance(0.2)
        assert stranger.arrived.qsize() == 1
        error = (await call).error
        assert isinstance(error, CallTimeoutError)
        assert "no instance has announced itself on non-persistent://tg/request/lab (is the service" in error.message
        assert "may have been executed" in error.message
        assert caplog.text.count("is the service running?") == 1


@pytest.mark.parametrize("read_only", [True, False])
async def test_what_was_sent_to_the_shared_topic_before_an_instance_is_known(read_only: bool) -> None:
    """A repeatable request is sent to the instance, too; another one keeps no other call from its place."""
    catalog_of = catalog(work={"read-only": read_only})
    policy = Policy(bulkhead=Bulkhead(max_concurrent_calls=4), timeout=20)
    async with Peer.as_service() as stranger, dispatching(catalog_of, policy=policy) as dispatcher:
        lost = [asyncio.create_task(dispatcher.execute("work")) for _ in range(4)]
        await advance(3)
        assert stranger.arrived.qsize() == 4
        async with serving(lambda _: "here"):
            results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
            assert [each.text for each in results] == ["here"] * 20
            outcomes = {(await each).outcome for each in lost}
            assert outcomes == {Outcome.SUCCESS if read_only else Outcome.TIMEOUT}


async def test_few_requests_are_sent_to_a_topic_that_nothing_answers_on() -> None:
    async with Peer.as_service() as stranger, dispatching() as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=10)) for _ in range(50)]
        await advance(5)
        assert stranger.arrived.qsize() == MAX_UNANSWERED
        _, properties = await stranger.request()
        await stranger.answer(properties, "third-party")
        await advance(3)
        assert stranger.arrived.qsize() == 49
        for call in calls:
            call.cancel()


async def test_on_the_embedded_broker_a_service_that_is_not_there_is_certain() -> None:
    async with dispatching() as dispatcher:
        result = await dispatcher.execute("work")
        assert result.error is not None
        assert (result.error.type, result.duration) == ("no-instance", pytest.approx(0.0, abs=0.01))
        assert "non-persistent://tg/request/lab" in result.error.message


async def test_an_instance_that_starts_meanwhile_gets_the_calls() -> None:
    async with Peer.as_service(), dispatching(policy=KNOWN_ONLY) as dispatcher:
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(5)]
        await advance(HELLO_WAIT_S + DISCOVERY_S / 2)
        async with serving(lambda _: "here"):
            assert await asyncio.gather(*calls) == ["here"] * 5


async def test_a_call_during_a_restart_waits_for_the_instance() -> None:
    async with Peer.as_service() as stranger, dispatching() as dispatcher:
        async with serving(lambda _: "before"):
            assert await dispatcher.call("work") == "before"
        call = asyncio.create_task(dispatcher.call("work"))
        await advance(DISCOVERY_S * 0.7)
        async with serving(lambda _: "after"):
            assert await call == "after"
        assert stranger.arrived.empty(), "a request went to the shared topic"


async def test_a_service_without_instances_is_a_third_party_one_in_the_end() -> None:
    async with dispatching() as dispatcher:
        async with serving(lambda _: "before"):
            assert await dispatcher.call("work") == "before"
        async with Peer.as_service() as stranger:
            await advance(GONE_S)
            call = asyncio.create_task(dispatcher.call("work"))
            await advance(0.1)
            assert stranger.arrived.qsize() == 1
            _, properties = await stranger.request()
            await stranger.answer(properties, "third-party")
            assert await call == "third-party"


async def test_an_overloaded_instance_passes_the_request_on_and_pauses_alone() -> None:
    served: list[str] = []

    def work(name: str) -> Any:
        async def invoke(_arguments: object) -> str:
            served.append(name)
            await asyncio.sleep(1)
            return name

        return invoke

    async with (
        serving(work("small"), instance="small", concurrency=1, max_queue=0),
        serving(work("large"), instance="large"),
        dispatching() as dispatcher,
    ):
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
        assert [each.outcome for each in results] == [Outcome.SUCCESS] * 20
        assert served.count("small") == 1
        assert dispatcher.breaker("work").retry_after is None


async def test_a_tool_paused_by_its_only_instance_goes_on_when_another_one_is_known() -> None:
    """The overloaded instance was known first, and its pause kept the calls from the ones that followed."""

    async def work(_arguments: object) -> str:
        await asyncio.sleep(1)
        return "done"

    async with (
        serving(work, instance="small", concurrency=1, max_queue=0),
        dispatching(policy=Policy(retry=None)) as dispatcher,
    ):
        first = [asyncio.create_task(dispatcher.execute("work")) for _ in range(20)]
        await advance(0.2)
        assert dispatcher.breaker("work").retry_after is not None
        async with serving(work, instance="large"):
            await idle()
            assert len(dispatcher.instances("lab")) == 2
            results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(3)))
            assert [each.outcome for each in results] == [Outcome.SUCCESS] * 3
        await asyncio.gather(*first)


async def test_a_refusal_pauses_no_tool_while_the_other_instance_is_only_suspected() -> None:
    """A suspected instance has asked for no pause: its connection was gone for a moment."""

    async def work(_arguments: object) -> str:
        await asyncio.sleep(5)
        return "done"

    network = dispatch.testing.FaultyTransport(MemoryTransport(BROKER))
    await network.start()
    async with (
        serving(work, instance="large", broker=network),
        serving(work, instance="small", concurrency=1, max_queue=0),
        dispatching(policy=Policy(retry=None)) as dispatcher,
    ):
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(2)]
        await advance(0.5)
        assert len(dispatcher.instances("lab")) == 2
        network.disconnect(0.7)
        calls += [asyncio.create_task(dispatcher.execute("work")) for _ in range(4)]
        await advance(0.5)
        calls += [asyncio.create_task(dispatcher.execute("work")) for _ in range(8)]
        await advance(0.05)
        assert any(each.done() and each.result().outcome is Outcome.THROTTLED for each in calls[-8:])
        assert dispatcher.breaker("work").retry_after is None
        await asyncio.gather(*calls)
    await network.close()


async def test_a_call_waits_no_longer_than_its_timeout() -> None:
    async with dispatching(policy=KNOWN_ONLY) as dispatcher:
        await dispatcher.execute("work")
        result = await dispatcher.execute("work", timeout=0.2)
        assert refused(result)
        assert result.duration <= 0.21


async def test_an_instance_whose_first_announcement_was_lost_is_found() -> None:
    network = FaultyTransport(MemoryTransport(BROKER), outgoing=FaultPlan(drop=1.0), incoming=FaultPlan(), seed=1)
    async with serving(lambda _: "here"), Dispatcher(network, catalog(), policy=KNOWN_ONLY) as dispatcher:
        call = asyncio.create_task(dispatcher.call("work"))
        await advance(HELLO_WAIT_S + 0.05)
        network.heal()
        assert await call == "here"


async def test_a_request_on_a_persistent_topic_needs_no_instance() -> None:
    queues = {"request_queue": "persistent://tg/request/lab", "response_queue": "persistent://tg/response/lab"}
    kept = catalog(service={key.replace("_", "-"): topic for key, topic in queues.items()})
    async with dispatching(kept, policy=KNOWN_ONLY) as dispatcher:
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", timeout=1)
        async with serving(lambda _: "here", **queues):
            assert await dispatcher.call("work", timeout=5) == "here"
