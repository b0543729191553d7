"""Faults on a genuine broker's connections: each kind happens, is survived or told, and hits the same messages again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.testing import FaultInjector, Faults, FaultyTransport
from dispatch.transports import Mode, open_transport
from dispatch.transports.base import RECONNECT_WAIT_S
from tests.helpers.catalogs import catalog_of, queues_of, unique_topic
from tests.helpers.dispatcher_and_service import UNGUARDED
from tests.helpers.echo_service import Echo
from tests.unit.transports.test_conformance import Received, unexpected

pytestmark = pytest.mark.pulsar

SMALL = 200
"""Messages of a test that knows each one."""

CALLS = 100


@contextlib.asynccontextmanager
async def calling(
    url: str, injector: FaultInjector, scheme: str = "non-persistent", **policy: Any
) -> AsyncIterator[dispatch.Dispatcher]:
    """A dispatcher with faults and a service without, which have met. Persistent topics have no sessions."""
    topic = unique_topic()
    requests, responses = queues_of(topic, scheme)
    transport = FaultyTransport(open_transport(url), injector)
    settings = dispatch.Policy(**{"timeout": 20.0, **UNGUARDED, **policy})
    async with (
        dispatch.ToolServer(Echo(), url, request_queue=requests, response_queue=responses),
        dispatch.Dispatcher(
            transport, catalog_of(topic, scheme=scheme), policy=settings, randomness=random.Random(1).random
        ) as caller,
    ):
        assert await caller.call("echo", {"text": "first"}) == "first"
        yield caller


async def call_apart(dispatcher: dispatch.Dispatcher) -> list[dispatch.CallResult]:
    """The results of :data:`CALLS` calls that begin 10 ms apart: one packet has all requests of one turn of the loop."""

    async def call(number: int) -> dispatch.CallResult:
        await asyncio.sleep(number / 100)
        return await dispatcher.execute("echo", {"text": f"text {number}"})

    return await asyncio.gather(*(call(number) for number in range(CALLS)))


async def arrived(url: str, faults: Faults, direction: str) -> tuple[list[str], dict[str, int]]:
    """What a subscriber gets of :data:`SMALL` messages, sorted; one of the two connections has faults."""
    # On a topic that loses nothing by itself. Its name is part of what the dice are thrown for: this one is another in each
    # run, and counts as the same.
    topic = f"persistent://tg/response/dispatch-reply-{unique_topic()}"
    plain, faulty = open_transport(url), FaultyTransport(open_transport(url), faults)
    sending, receiving = (faulty, plain) if direction == "out" else (plain, faulty)
    got, count = Received(), faulty.count
    async with contextlib.AsyncExitStack() as stack:
        for transport in (plain, faulty):
            await transport.start()
            stack.push_async_callback(transport.close)
        await receiving.subscribe(topic, got, mode=Mode.FANOUT, name="chaos")
        publisher = await sending.publisher(topic)
        for number in range(SMALL):
            with contextlib.suppress(dispatch.TransportError):
                publisher.publish(b"x", {"n": str(number)}, flow="a", on_failure=unexpected)
        async with asyncio.timeout(20):

            def expected() -> int:
                return SMALL + count["out duplicate"] - count["out error"] - count[f"{direction} drop"]

            while len(got.messages) != expected():  # noqa: ASYNC110 - of what is dropped on arrival only the count tells
                await asyncio.sleep(0.01)
        return sorted(properties["n"] for _, properties in got.messages), dict(count)


@pytest.mark.parametrize(
    ("faults", "direction"),
    [
        (Faults(drop=0.2), "out"),
        (Faults(drop=0.2), "in"),
        (Faults(error=0.2), "out"),
        (Faults(duplicate=0.2, max_delay=0.0), "out"),
    ],
)
async def test_a_seed_hits_the_same_messages_again(pulsar_endpoint: Endpoint, faults: Faults, direction: str) -> None:
    url = pulsar_endpoint.service_url
    first, count = await arrived(url, faults, direction)
    assert 15 < sum(count.values()) < 80
    assert (first, count) == await arrived(url, faults, direction)
    assert first != (await arrived(url, replace(faults, seed=1), direction))[0]


SURVIVED = {
    "drop": {"drop": 0.2},
    "duplicate": {"duplicate": 0.3, "max_delay": 0.3},
    "reorder": {"reorder": 0.3, "max_delay": 0.3},
    "delay": {"delay": 0.3, "max_delay": 0.3},
    "latency": {"latency": (0.0, 0.1)},
    "error": {"error": 0.4, "direction": "out"},
    "late_error": {"late_error": 0.4, "direction": "out"},
    "malformed": {"malformed": 0.2},
}
"""Faults that a session repairs."""


async def test_what_a_network_does_costs_no_answer(pulsar_endpoint: Endpoint) -> None:
    injector = FaultInjector()
    async with calling(pulsar_endpoint.service_url, injector) as dispatcher:
        for kind, values in SURVIVED.items():
            before = injector.count.total()
            injector.inject(Faults(**values))  # type: ignore[arg-type]
            texts = [result.text for result in await call_apart(dispatcher)]
            assert texts == [f"text {n}" for n in range(CALLS)], kind
            injector.heal()
            assert dispatcher.pending_requests == 0
            assert kind == "latency" or injector.count.total() > before + 20


TOLD = {
    "error": ({"error": 0.3, "direction": "out"}, {"publish-queue-full"}),
    "late_error": ({"late_error": 0.3, "max_delay": 0.2, "direction": "out"}, {"send-failed"}),
    "malformed": ({"malformed": 0.3, "direction": "in"}, {"malformed-reply"}),
    "tool_error": ({"tool_error": 0.3}, {"injected-fault"}),
    # Retransmissions can end the connection again and again.
    "disconnect": (
        {"disconnect": 0.05, "reconnect_after": 0.2, "max_delay": 0.2},
        {"disconnected", "unreachable", "connection-lost", "timeout"},
    ),
    # Longer than a call waits for the connection.
    "outage": (
        {"disconnect": 0.05, "reconnect_after": RECONNECT_WAIT_S + 1},
        {"disconnected", "unreachable", "connection-lost", "timeout"},
    ),
}


@pytest.mark.parametrize(
    ("scheme", "kinds"),
    [
        ("persistent", ("error", "late_error", "malformed", "tool_error", "disconnect")),
        ("non-persistent", ("tool_error", "disconnect", "outage")),
    ],
)
async def test_what_cannot_be_repaired_is_told_and_passes(
    pulsar_endpoint: Endpoint, scheme: str, kinds: tuple[str, ...]
) -> None:
    injector = FaultInjector()
    # Less than pulsar-client waits for a receipt: a call that is never sent ends by its own timeout.
    async with calling(pulsar_endpoint.service_url, injector, scheme, timeout=9.0) as dispatcher:
        for kind in kinds:
            (values, types), before = TOLD[kind], injector.count.total()
            least = 1 if kind == "outage" else 6  # one outage ends all calls
            injector.inject(Faults(**values))  # type: ignore[arg-type]
            results = []
            while injector.count.total() < before + least:  # on a busy machine one packet has many requests
                results += await call_apart(dispatcher)
            for number, result in enumerate(results):
                assert result.text == f"text {number % CALLS}" if result.ok else result.error is not None
            assert {result.error.type for result in results if result.error is not None} <= types, kind
            # A session may survive every short interruption.
            assert (kind, scheme) == ("disconnect", "non-persistent") or any(not result.ok for result in results)
            injector.heal()
            assert await dispatcher.call("echo", {"text": "well again"}) == "well again"
            assert dispatcher.pending_requests == 0
