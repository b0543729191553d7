"""The transports' conformance tests on a wrapped transport, without faults and with latency."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from dispatch.testing import Faults, FaultyTransport
from dispatch.transports import Transport, open_transport
from tests.unit.transports import test_conformance as every
from tests.unit.transports import test_conformance_durable as kept

CALM = Faults()
SLOW = Faults(latency=(0.001, 0.01), direction="out")


@dataclass(frozen=True)
class Wrapped(every.Kind):
    faults: Faults = CALM

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Transport]:
        transport = FaultyTransport(open_transport(self.url), self.faults)
        await transport.start()
        try:
            yield transport
        finally:
            await transport.close()


@pytest.fixture(params=["calm", "calm, kept", "slow"])
def kind(request: pytest.FixtureRequest) -> every.Kind:
    scheme = "persistent" if "kept" in request.param else "non-persistent"
    return Wrapped("memory://", scheme, SLOW if request.param == "slow" else CALM)


@pytest.fixture
def durable() -> every.Kind:
    return Wrapped("memory://", "persistent")


async def test_payload_and_properties_arrive_as_they_were_sent(kind: every.Kind) -> None:
    await every.test_payload_and_properties_arrive_as_they_were_sent(kind)


async def test_shared_subscribers_take_turns(kind: every.Kind) -> None:
    await every.test_shared_subscribers_take_turns(kind)


async def test_fan_out_gives_everyone_everything_in_order(kind: every.Kind) -> None:
    await every.test_fan_out_gives_everyone_everything_in_order(kind)


async def test_the_first_message_after_subscribing_is_delivered(kind: every.Kind) -> None:
    await every.test_the_first_message_after_subscribing_is_delivered(kind)


async def test_a_handler_that_raises_costs_its_message_only(kind: every.Kind) -> None:
    await every.test_a_handler_that_raises_costs_its_message_only(kind)


async def test_the_largest_message_passes_and_a_larger_one_is_refused(kind: every.Kind) -> None:
    await every.test_the_largest_message_passes_and_a_larger_one_is_refused(kind)


async def test_publishers_of_one_topic_are_closed_one_by_one(kind: every.Kind) -> None:
    await every.test_publishers_of_one_topic_are_closed_one_by_one(kind)


async def test_a_burst_arrives_in_order_within_each_flow(kind: every.Kind) -> None:
    await every.test_a_burst_beyond_the_window_arrives_in_order_within_each_flow(kind)


async def test_a_cancelled_message_does_not_report_its_failure(kind: every.Kind) -> None:
    await every.test_a_cancelled_message_does_not_report_its_failure(kind)


async def test_packets_arrive_in_order_without_properties(kind: every.Kind) -> None:
    await every.test_packets_arrive_in_order_without_properties(kind)


async def test_a_closed_transport_says_so(kind: every.Kind) -> None:
    await every.test_a_closed_transport_says_so(kind)


async def test_what_comes_while_nobody_listens_is_kept_for_those_who_did(durable: every.Kind) -> None:
    await kept.test_what_comes_while_nobody_listens_is_kept_for_those_who_did(durable)


async def test_what_was_not_acknowledged_goes_to_another_subscriber_and_nothing_else(durable: every.Kind) -> None:
    await kept.test_what_was_not_acknowledged_goes_to_another_subscriber_and_nothing_else(durable)


async def test_then_is_called_later_and_what_was_settled_comes_to_nobody_else(durable: every.Kind) -> None:
    await kept.test_then_is_called_later_and_what_was_settled_comes_to_nobody_else(durable)
