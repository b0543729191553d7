"""Transports that lose messages."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.workers.channel import Spec
from benchmarks.workers.lossy_transport import open_lossy_transport
from dispatch.testing.faults import FaultyTransport

SPEC = Spec(url="memory://lossy", token=None, topic="t", request="req", response="res", timeout=1.0)


async def test_arriving_messages_are_lost_on_demand_only() -> None:
    assert not isinstance(open_lossy_transport(SPEC), FaultyTransport)
    transport = open_lossy_transport(replace(SPEC, drop=0.05))
    assert isinstance(transport, FaultyTransport)
    (faults,) = transport.injector.faults
    assert (faults.drop, faults.direction) == (0.05, "in")
