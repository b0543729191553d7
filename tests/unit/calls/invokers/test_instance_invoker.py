"""Calls while no instance is known: they wait for one, fail within a second, or go to the shared topic."""

from __future__ import annotations

import asyncio

import pytest

from dispatch import Dispatcher, Policy
from dispatch.calls.invokers.instance_invoker import DISCOVERY_S
from dispatch.errors import CallTimeoutError, RejectedError
from dispatch.routing.discovery import HELLO_WAIT_S
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import BROKER, Peer, catalog, dispatching, serving
from tests.helpers.faults import FaultPlan, FaultyTransport

KNOWN_ONLY = Policy(known_instances_only=True)
LONGEST_WAIT_S = HELLO_WAIT_S + DISCOVERY_S + 0.01


def refused(result: object) -> RejectedError:
    error = getattr(result, "error", None)
    assert isinstance(error, RejectedError)
    assert (error.type, error.rejected_by, error.retryable, error.retry_after) == ("no-instance", "balancer", True, 1.0)
    assert "was not executed" in error.message
    return error


async def test_a_call_without_instances_ends_within_a_second_and_sends_nothing() -> None:
    async with Peer.as_service() as stranger, dispatching(policy=KNOWN_ONLY) as dispatcher:
        result = await dispatcher.execute("work")
        error = refused(result)
        assert "lab" in error.message
        assert "'known-instances-only'" in error.message
        assert (result.duration <= LONGEST_WAIT_S, result.attempts) == (True, 0)
        with pytest.raises(RejectedError) as caught:
            await anext(dispatcher.stream("work"))
        assert caught.value.type == "no-instance"
        assert stranger.arrived.empty()
        assert dispatcher.pending_requests == 0


async def test_without_the_policy_the_request_goes_to_the_shared_topic() -> None:
    async with Peer.as_service() as stranger, dispatching() as dispatcher:
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", timeout=1)
        assert stranger.arrived.qsize() == 1


async def test_an_instance_that_starts_within_that_second_gets_the_calls() -> None:
    async with dispatching(policy=KNOWN_ONLY) as dispatcher:
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(5)]
        await advance(HELLO_WAIT_S + DISCOVERY_S / 2)
        async with serving(lambda _: "here"):
            assert await asyncio.gather(*calls) == ["here"] * 5


async def test_after_the_last_instance_the_next_call_ends_within_a_second() -> None:
    async with dispatching(policy=KNOWN_ONLY) as dispatcher:
        async with serving(lambda _: "here"):
            assert await dispatcher.call("work") == "here"
        refused(await dispatcher.execute("work"))
        async with serving(lambda _: "back"):
            assert await dispatcher.call("work") == "back"


async def test_a_call_during_a_restart_waits_for_the_instance() -> None:
    async with Peer.as_service() as stranger, dispatching() as dispatcher:
        async with serving(lambda _: "before"):
            assert await dispatcher.call("work") == "before"
        call = asyncio.create_task(dispatcher.call("work"))
        await advance(DISCOVERY_S * 0.7)
        async with serving(lambda _: "after"):
            assert await call == "after"
        assert stranger.arrived.empty(), "a request went to the shared topic"


async def test_a_service_without_instances_is_a_third_party_one_after_a_second() -> None:
    async with dispatching() as dispatcher:
        async with serving(lambda _: "before"):
            assert await dispatcher.call("work") == "before"
        async with Peer.as_service() as stranger:
            for longest in (DISCOVERY_S + 0.01, 0.01):
                call = asyncio.create_task(dispatcher.call("work"))
                await advance(longest)
                assert stranger.arrived.qsize() == 1
                _, properties = await stranger.request()
                await stranger.answer(properties, "third-party")
                assert await call == "third-party"


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
