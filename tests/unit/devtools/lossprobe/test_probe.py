"""The probe on a genuine broker, with its service's process."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.devtools import lossprobe
from dispatch.devtools.localbroker import Endpoint
from dispatch.devtools.lossprobe import Probe, ProbeError, Variant
from dispatch.errors import TransportError
from dispatch.transports import Security

pytestmark = pytest.mark.pulsar


def probe_on(endpoint: Endpoint, responses: str = "tg/response") -> Probe:
    return Probe(endpoint.service_url, Security(token=endpoint.token), "tg/request", responses)


async def test_both_sides_are_measured_and_the_process_ends_with_it(pulsar_endpoint: Endpoint) -> None:
    async with probe_on(pulsar_endpoint) as probe:
        for side in Variant:
            run = await probe.measure(side, size=1_000, in_flight=4, calls=60, seconds=None)
            assert run.calls == 60
            assert run.errors == {}
            assert run.answered == 60 - run.lost
            assert run.rate > 0
        timed = await probe.measure(Variant.SESSION, size=100_000, in_flight=2, calls=None, seconds=0.1)
        assert timed.lost == 0
        assert timed.answered >= 2
        service = probe._service
        assert service is not None
        assert service.returncode is None
    assert service.returncode == 0


async def test_a_service_that_died_is_told(pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossprobe, "SILENCE_S", 0.2)
    async with probe_on(pulsar_endpoint) as probe:
        assert probe._service is not None
        probe._service.kill()
        await probe._service.wait()
        with pytest.raises(ProbeError, match=r"service ended with status -9\. None of 4 calls got a reply"):
            await probe.measure(Variant.PLAIN, size=120, in_flight=2, calls=100, seconds=None)


async def test_a_namespace_that_is_missing_is_told_as_everywhere(pulsar_endpoint: Endpoint) -> None:
    probe = probe_on(pulsar_endpoint, "tg/not-there")
    with pytest.raises(TransportError, match="tg/not-there") as told:
        await probe.__aenter__()
    assert told.value.type == "no-such-namespace"
    assert probe._service is not None
    assert probe._service.returncode == 1


async def test_cancelled_while_it_measures_it_leaves_no_process(pulsar_endpoint: Endpoint) -> None:
    probe = probe_on(pulsar_endpoint)
    measuring = asyncio.Event()

    async def measure() -> None:
        async with probe:
            measuring.set()
            await probe.measure(Variant.PLAIN, size=120, in_flight=16, calls=None, seconds=60.0)

    task = asyncio.create_task(measure())
    await measuring.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert probe._service is not None
    assert probe._service.returncode == 0
