"""Metrics of a tool service's process: requests, rejections, run times; counters never decrease."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from dispatch import Catalog, Dispatcher, Telemetry, ToolServer
from dispatch.errors import ToolError
from dispatch.telemetry.observers import NULL_SERVER, SILENT
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, UNGUARDED, Service, catalog


def values(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample of services but buckets and sums, by ``name{service,…}``, as a scrape reads it."""
    return {
        f"{sample.name}{{{','.join(sorted(sample.labels.values(), key=lambda value: value != 'lab'))}}}": sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name.startswith("dispatch_service_") and not sample.name.endswith(("_bucket", "_sum"))
    }


def server(implementation: Service, registry: CollectorRegistry, **options: Any) -> ToolServer:
    return ToolServer(
        implementation,
        BROKER,
        request_queue=REQUESTS,
        response_queue=RESPONSES,
        telemetry=Telemetry(registry=registry),
        **options,
    )


def calling() -> Dispatcher:
    return Dispatcher(MemoryTransport(BROKER), catalog(work={"policy": UNGUARDED}), telemetry=SILENT)


async def work(arguments: dict[str, Any]) -> str:
    await asyncio.sleep(arguments.get("sleep", 0.0))
    if "error" in arguments:
        raise ToolError("no", "no")
    return "done"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


async def served(registry: CollectorRegistry, *calls: dict[str, Any], timeout: float | None = None) -> None:
    """One server, and these calls of its tool, all at once."""
    async with calling() as dispatcher, server(Service(work), registry, concurrency=2, max_queue=1):
        await asyncio.gather(*(dispatcher.execute("work", call, timeout=timeout) for call in calls))


async def test_each_request_is_counted_and_its_run_timed_once(registry: CollectorRegistry) -> None:
    await served(registry, {}, {"error": 1})
    found = values(registry)
    assert found["dispatch_service_requests_total{lab}"] == 2
    assert found["dispatch_service_duration_seconds_count{lab,ok}"] == 1
    assert found["dispatch_service_duration_seconds_count{lab,error}"] == 1
    assert found["dispatch_service_duration_seconds_count{lab,stopped}"] == 0


async def test_rejections_are_counted_by_reason_and_expired_runs_as_stopped(
    registry: CollectorRegistry,
) -> None:
    await served(registry, *({"sleep": 9.0} for _ in range(5)), timeout=5.0)
    found = values(registry)
    assert found["dispatch_service_refused_total{lab,overloaded}"] == 2
    assert found["dispatch_service_duration_seconds_count{lab,stopped}"] == 2
    # Its caller's cancellation and the instance's own clock end a request at the same time.
    names = ("refused_total{lab,expired}", "refused_total{lab,stopped}", "cancelled_total{lab}")
    assert sum(found[f"dispatch_service_{name}"] for name in names) == 3


async def test_running_and_queued_requests_are_read_at_the_scrape(registry: CollectorRegistry) -> None:
    gate = asyncio.Event()

    async def waits(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

    async with calling() as dispatcher, server(Service(waits), registry, concurrency=2):
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(3)]
        await asyncio.sleep(1.0)
        found = values(registry)
        assert (found["dispatch_service_running{lab}"], found["dispatch_service_queued{lab}"]) == (2, 1)
        gate.set()
        await asyncio.gather(*calls)
        found = values(registry)
        assert (found["dispatch_service_running{lab}"], found["dispatch_service_queued{lab}"]) == (0, 0)


async def test_counters_do_not_decrease_when_a_server_is_replaced(registry: CollectorRegistry) -> None:
    await served(registry, {}, {})
    await served(registry, {})
    found = values(registry)
    assert found["dispatch_service_requests_total{lab}"] == 3
    assert found["dispatch_service_duration_seconds_count{lab,ok}"] == 3
    assert "dispatch_service_running{lab}" not in found, "nobody serves it"


async def test_nothing_is_observed_when_telemetry_is_off(registry: CollectorRegistry) -> None:
    silent = ToolServer(Service(work), BROKER, request_queue=REQUESTS, response_queue=RESPONSES, telemetry=SILENT)
    async with silent:
        assert silent._observer is NULL_SERVER
    assert values(registry) == {}


async def test_services_beyond_the_limit_share_series(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.telemetry.gauges.MAX_SERVICES", 2)
    for number in range(5):
        async with server(Service(work), registry, service=f"service-{number}"):
            found = values(registry)
            label = f"service-{number}" if number < 2 else "_OTHER"
            assert found[f"dispatch_service_running{{{label}}}"] == 0
    services = {key.partition("{")[2].rstrip("}") for key in found if key.startswith("dispatch_service_requests_total")}
    assert services == {"service-0", "service-1", "_OTHER"}


@pytest.mark.parametrize(
    ("requests", "responses"),
    [
        ("non-persistent://tg/request/joke", "non-persistent://tg/response/joke"),
        ("non-persistent://acme/joke/requests", "non-persistent://acme/joke/responses"),
    ],
)
async def test_dispatcher_and_service_give_a_service_one_name(
    registry: CollectorRegistry, requests: str, responses: str
) -> None:
    tools = Catalog.of(
        [{"id": "joke-service", "request-queue": requests, "response-queue": responses}],
        [{"type": "tool-service", "name": "tell-joke", "description": "Tells a joke.", "service": "joke-service"}],
    )
    telemetry = Telemetry(registry=registry)
    topics = {"request_queue": requests, "response_queue": responses}
    server = ToolServer(
        *(Service(work), BROKER), **topics, instance="one", telemetry=telemetry, descriptor={"id": "joke-service"}
    )
    async with server, Dispatcher(MemoryTransport(BROKER), tools, telemetry=telemetry) as dispatcher:
        await dispatcher.call("tell-joke")
        (instance,) = dispatcher.instances("joke-service")
        assert instance.in_flight == 0
        families = text_string_to_metric_families(generate_latest(registry).decode())
        found = {
            (sample.name.startswith("dispatch_service_"), sample.labels["service"])
            for family in families
            for sample in family.samples
            if "service" in sample.labels
        }
    assert found == {(True, "joke-service"), (False, "joke-service"), (False, "_OTHER")}
