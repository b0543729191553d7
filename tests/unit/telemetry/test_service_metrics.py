"""Metrics of a tool service's process: requests, rejections, run times; counters never decrease.
Metrics of sessions are what the sessions count, on both sides; their counters never decrease.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from dispatch import Catalog, Dispatcher, Telemetry, ToolServer
from dispatch.errors import ToolError
from dispatch.protocol.session import SessionState
from dispatch.telemetry.gauges import END_REASONS, SessionCollector
from dispatch.telemetry.observers import NULL_SERVER, SILENT
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    UNGUARDED,
    Service,
    catalog,
    dispatching,
    serving,
)
from tests.helpers.session_pair import DISPATCHER, INSTANCE, DelayedSessionPair
from tests.helpers.telemetry_capture import telling


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


async def test_rejections_are_counted_by_reason_and_expired_runs_as_stopped(registry: CollectorRegistry) -> None:
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


@pytest.mark.parametrize("options", [{}, {"descriptor": {"id": "joke-service"}}], ids=["learned", "given"])
@pytest.mark.parametrize(
    ("requests", "responses"),
    [
        ("non-persistent://tg/request/joke", "non-persistent://tg/response/joke"),
        ("non-persistent://acme/joke/requests", "non-persistent://acme/joke/responses"),
    ],
)
async def test_dispatcher_and_service_give_a_service_one_name(
    registry: CollectorRegistry, requests: str, responses: str, options: dict[str, Any]
) -> None:
    """A service that reads no descriptor learns its id from its callers, before their first request."""
    tools = Catalog.of(
        [{"id": "joke-service", "request-queue": requests, "response-queue": responses}],
        [{"type": "tool-service", "name": "tell-joke", "description": "Tells a joke.", "service": "joke-service"}],
    )
    telemetry = Telemetry(registry=registry)
    topics = {"request_queue": requests, "response_queue": responses}
    server = ToolServer(*(Service(work), BROKER), **topics, instance="one", telemetry=telemetry, **options)
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


async def test_a_service_keeps_the_id_that_it_has(registry: CollectorRegistry) -> None:
    def calling_it(id: str) -> Dispatcher:
        tool = {"type": "tool-service", "name": "work", "description": "Does work.", "service": id}
        tools = Catalog.of([{"id": id, "request-queue": REQUESTS, "response-queue": RESPONSES}], [tool])
        return Dispatcher(MemoryTransport(BROKER), tools, telemetry=SILENT)

    async with server(Service(work), registry) as served:
        assert served.service_id == "lab", "no dispatcher has called it"
        for id in ("first", "second"):
            async with calling_it(id) as dispatcher:
                await dispatcher.call("work")
            assert served.service_id == "first"
        assert served.service == "lab"
    found = values(registry)
    assert found["dispatch_service_requests_total{first}"] == 2
    assert found["dispatch_service_duration_seconds_count{ok,first}"] == 2
    async with server(Service(work), registry, descriptor={"id": "own"}) as served, calling_it("second") as dispatcher:
        await dispatcher.call("work")
        assert served.service_id == "own"


def _request() -> Any:
    return SimpleNamespace(id="1", headers={}, reply_topic=RESPONSES)


async def test_counts_from_before_a_service_knew_its_id_stay(registry: CollectorRegistry) -> None:
    """A client without sessions has called it before."""
    other = server(Service(work), registry, instance="other")
    async with server(Service(work), registry, instance="one") as served, other:
        served._observer.start_request(_request(), 0.0).on_tool_end("ok", 0.1)
        for each in (served, other):
            each._learn_id("joke-service")
        served._observer.start_request(_request(), 0.0).on_tool_end("ok", 0.1)
        found = values(registry)
    assert found["dispatch_service_duration_seconds_count{lab,ok}"] == 1
    assert found["dispatch_service_duration_seconds_count{ok,joke-service}"] == 1
    assert found["dispatch_service_running{joke-service}"] == 0
    assert "dispatch_service_running{lab}" not in found


@pytest.mark.parametrize("name", ["", "x" * 257, "two\nlines"])
async def test_what_cannot_be_an_id_names_no_service(registry: CollectorRegistry, name: str) -> None:
    async with server(Service(work), registry) as served:
        served._learn_id(name)
        assert served.service_id == "lab"


ROLES = ("caller", "callee")


class Scraped:
    """A pair of processes and the metrics of both."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.pair = DelayedSessionPair()
        collector = SessionCollector.of(self.registry)
        collector.add(self.pair.dispatcher, "caller")
        collector.add(self.pair.instance, "callee")

    def values(self) -> dict[str, float]:
        """Every sample by ``name{role,…}``, as a scrape reads it."""
        return {
            f"{sample.name}{{{','.join(sorted(sample.labels.values(), key=lambda it: not it.startswith('calle')))}}}": (
                sample.value
            )
            for family in text_string_to_metric_families(generate_latest(self.registry).decode())
            for sample in family.samples
        }

    def states(self, role: str) -> dict[str, float]:
        values = self.values()
        found = {str(state): values[f"dispatch_sessions{{{role},{state}}}"] for state in SessionState}
        return {state: value for state, value in found.items() if value}


@pytest.fixture
def scraped() -> Scraped:
    return Scraped()


def test_packets_and_frames_of_both_sides_are_counted(scraped: Scraped) -> None:
    scraped.pair.ask(b"x" * 1000)
    stream = scraped.pair.requests[0].number
    assert scraped.pair.callee.send_reply(stream, b"y" * 3000)
    scraped.pair.exchange()
    values = scraped.values()
    assert values["dispatch_session_frames_sent_total{caller}"] == 2, "PING after the handshake, and REQUEST"
    assert values["dispatch_session_frames_sent_total{callee}"] == 1
    scraped.pair.ask()
    scraped.pair.callee.refuse(scraped.pair.requests[1].number, "overloaded")
    scraped.pair.callee.drain()
    scraped.pair.exchange()
    values = scraped.values()
    assert values["dispatch_session_frames_sent_total{caller}"] == 3
    assert values["dispatch_session_frames_sent_total{callee}"] == 3, "REPLY, REFUSED and GOAWAY"
    for role, inbox in (("caller", INSTANCE), ("callee", DISPATCHER)):
        # ACCEPT belongs to no session.
        sent = [packet for to, packet in scraped.pair.packets if to == inbox][inbox == DISPATCHER :]
        assert values[f"dispatch_session_packets_sent_total{{{role}}}"] == len(sent)
        assert values[f"dispatch_session_bytes_sent_total{{{role}}}"] == sum(map(len, sent))
        assert values[f"dispatch_session_retransmissions_total{{{role}}}"] == 0
    assert 0 < values["dispatch_session_rtt_seconds{caller,median}"] <= 0.003
    assert values["dispatch_session_window_bytes{callee}"] == 48_000


def test_a_lost_packet_is_a_retransmission_and_a_probe(scraped: Scraped) -> None:
    scraped.pair.down = {INSTANCE}
    scraped.pair.ask()
    assert scraped.values()["dispatch_session_inflight_bytes{caller}"] > 0
    scraped.pair.advance(0.05)
    scraped.pair.down = set()
    scraped.pair.advance(1)
    values = scraped.values()
    assert values["dispatch_session_probes_total{caller}"] >= 2
    assert values["dispatch_session_packets_received_total{callee}"] >= 1
    assert values["dispatch_session_inflight_bytes{caller}"] == 0
    assert len(scraped.pair.requests) == 1


def test_packets_that_change_nothing_are_counted_by_reason(scraped: Scraped) -> None:
    pair = scraped.pair
    pair.instance.receive_packet(b"\x9a", pair.now)
    genuine = next(packet for to, packet in pair.packets if to == INSTANCE)
    pair.dispatcher.receive_packet(genuine, pair.now)  # a HELLO from whose inbox a dispatcher takes none
    values = scraped.values()
    assert values["dispatch_session_packets_rejected_total{callee,malformed}"] == 1
    assert values["dispatch_session_packets_rejected_total{caller,refused-hello}"] == 1
    assert values["dispatch_session_packets_rejected_total{caller,unknown}"] == 0


def test_sessions_are_counted_by_state(scraped: Scraped) -> None:
    pair = scraped.pair
    assert scraped.states("caller") == scraped.states("callee") == {"open": 1}
    pair.callee.drain()
    pair.exchange()
    assert scraped.states("caller") == scraped.states("callee") == {"draining": 1}
    pair.down = {DISPATCHER}
    pair.ask()
    pair.advance(1)
    assert scraped.states("caller") == {"suspect": 1}
    pair.caller.suspend()
    assert scraped.states("caller") == {"suspended": 1}
    pair.dispatcher.connect(INSTANCE, pair.now)
    assert scraped.states("caller") == {"suspended": 1, "half-open": 1}


def test_a_lost_instance_is_counted_with_its_reason_and_its_counts_stay(scraped: Scraped) -> None:
    pair = scraped.pair
    pair.ask()
    before = scraped.values()
    pair.down = {INSTANCE, DISPATCHER}
    pair.ask()
    pair.advance(12)
    values = scraped.values()
    assert values["dispatch_sessions_closed_total{caller,silent}"] == 1
    assert scraped.states("caller") == {}
    assert values["dispatch_session_packets_sent_total{caller}"] > before["dispatch_session_packets_sent_total{caller}"]
    assert "dispatch_session_window_bytes{caller}" not in values
    pair.connect()
    pair.advance(11)
    assert scraped.values()["dispatch_sessions_closed_total{caller,handshake}"] == 1


def test_every_reason_has_a_series_from_the_start(scraped: Scraped) -> None:
    values = scraped.values()
    assert all(
        values[f"dispatch_sessions_closed_total{{{role},{each}}}"] == 0 for each in END_REASONS for role in ROLES
    )


def test_counters_stay_when_a_table_is_removed(scraped: Scraped) -> None:
    scraped.pair.ask()
    before = scraped.values()
    collector = SessionCollector.of(scraped.registry)
    collector.remove(scraped.pair.dispatcher)
    collector.remove(scraped.pair.dispatcher)
    values = scraped.values()
    counters = {name: value for name, value in before.items() if "_total" in name}
    assert {name: values[name] for name in counters} == counters
    assert scraped.states("caller") == {}


def test_no_counter_decreases_when_a_session_ends_during_a_scrape(scraped: Scraped) -> None:
    pair = scraped.pair
    pair.ask()
    before = scraped.values()["dispatch_session_packets_sent_total{caller}"]
    pair.dispatcher.sessions.clear()  # removed from the table, and not yet among the ended ones
    assert scraped.values()["dispatch_session_packets_sent_total{caller}"] == before


def count_closed(registry: CollectorRegistry, role: str) -> float | None:
    return registry.get_sample_value("dispatch_sessions_closed_total", {"role": role, "reason": "closed"})


async def test_a_session_that_the_dispatcher_ends_when_it_closes_is_counted() -> None:
    registry = CollectorRegistry()
    telemetry = Telemetry(registry=registry)
    async with serving(lambda _: "done", telemetry=telemetry):
        async with telling(telemetry, catalog(work={})) as dispatcher:
            assert await dispatcher.call("work") == "done"
        assert count_closed(registry, "caller") == 1
        await idle()
        assert count_closed(registry, "callee") == 1


async def test_a_session_that_the_instance_ends_when_it_closes_is_counted() -> None:
    registry = CollectorRegistry()
    async with serving(lambda _: "done", telemetry=Telemetry(registry=registry)) as server, dispatching() as dispatcher:
        assert await dispatcher.call("work") == "done"
        await server.close()
        assert count_closed(registry, "callee") == 1
