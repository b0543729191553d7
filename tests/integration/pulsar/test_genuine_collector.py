"""An OpenTelemetry collector, built from its own modules, receives the spans of an agent and of two instances: a call with
two attempts is one trace from the agent to the service, and an exemplar of the duration leads to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.devtools.localbroker import find_free_ports
from dispatch.telemetry.exposition import render_metrics
from tests.helpers.catalogs import queues_of, unique_topic
from tests.helpers.otlp_collector import PATH, exporting
from tests.helpers.run_profile import skip_outside_ci
from tests.helpers.traced_service import traced_process
from tests.integration.pulsar.test_traces import catalog

pytestmark = [pytest.mark.pulsar, pytest.mark.soak]

CALLS = 20
CONFIG = """\
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{file: {{path: "{file}", flush_interval: 100ms}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], exporters: [file]}}}}
"""


@dataclass(frozen=True)
class Span:
    process: str
    trace: str
    id: str
    parent: str
    name: str
    attempt: str


def find_collector() -> str:
    """The collector that ``make tools`` builds from tests/helpers/otel_collector."""
    found = shutil.which("otel-collector", path=str(Path(sys.prefix) / "tools"))
    if found is None:
        skip_outside_ci("the OpenTelemetry collector is missing: make tools (it needs Go)")
    return found


@contextlib.contextmanager
def collecting(folder: Path) -> Iterator[str]:
    """The collector: its endpoint. It has written everything to ``folder/spans.json`` at the end."""
    (port,) = find_free_ports(1)
    config = folder / "collector.yaml"
    config.write_text(CONFIG.format(port=port, file=folder / "spans.json"))
    with (folder / "collector.log").open("wb") as log:
        process = subprocess.Popen([find_collector(), "--config", str(config)], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while "Everything is ready" not in (said := (folder / "collector.log").read_text()):
                assert process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}{PATH}"
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


def read(file: Path) -> list[Span]:
    """The spans as the collector wrote them: a request of OTLP as JSON in each line."""

    def named(attributes: list[dict[str, Any]], key: str) -> str:
        return next((each["value"].get("stringValue", "") for each in attributes if each["key"] == key), "")

    return [
        Span(
            named(resource["resource"]["attributes"], "service.name"),
            *(span["traceId"], span["spanId"], span.get("parentSpanId", ""), span["name"]),
            named(span.get("attributes", []), "dispatch.attempt.reason"),
        )
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def exemplars(registry: CollectorRegistry) -> set[str]:
    """The traces to which the durations of successful calls lead, as Prometheus scrapes them."""
    _, body = render_metrics(registry, "application/openmetrics-text; version=1.0.0", "")
    return {
        sample.exemplar.labels["trace_id"]
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name == "dispatch_call_duration_seconds_bucket" and sample.exemplar is not None
    }


async def call(url: str, topic: str, endpoint: str, registry: CollectorRegistry) -> set[str]:
    """Make calls that fail at one of two instances; give their traces."""
    provider = exporting(endpoint, "agent")
    telemetry, traces = dispatch.Telemetry(tracer_provider=provider, registry=registry), set()
    async with dispatch.connect(url, catalog(topic), telemetry=telemetry) as dispatcher:
        async with asyncio.timeout(30):
            while len(dispatcher.instances("traced")) < 2:
                await dispatcher.call("plain", {"do": "answer", "n": 0})
        for number in range(CALLS):
            with provider.get_tracer("an agent").start_as_current_span("agent") as span:
                traces.add(f"{span.get_span_context().trace_id:032x}")
                assert await dispatcher.call("trips", {"do": "trip", "n": number}) == str(number)
    await asyncio.to_thread(provider.shutdown)
    return traces


def test_a_call_is_one_trace_to_which_an_exemplar_leads(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    url, topic, registry = pulsar_endpoint.service_url, unique_topic("traced"), CollectorRegistry()
    with (
        collecting(tmp_path) as endpoint,
        traced_process(url, topic, endpoint, "a"),
        traced_process(url, topic, endpoint, "b"),
    ):
        traces = asyncio.run(call(url, topic, endpoint, registry))
    spans = read(tmp_path / "spans.json")
    requests, _ = queues_of(topic)
    retried = 0
    for trace in traces:
        known = {span.id: span for span in spans if span.trace == trace}
        served = [span for span in known.values() if span.name == f"process {requests}"]
        ways = {
            span: (known[span.parent], known[known[span.parent].parent], known[known[known[span.parent].parent].parent])
            for span in served
        }
        assert {tuple(each.name for each in way) for way in ways.values()} == {
            (f"send {requests}", "execute_tool trips", "agent")
        }
        attempts = {way[0].attempt: span.process for span, way in ways.items()}
        assert attempts in ({"first": "service-b"}, {"first": "service-a", "retry": "service-b"})
        retried += "retry" in attempts
    assert retried > 0, "some calls had two attempts, in one trace"
    assert exemplars(registry) & traces
    assert exemplars(registry) <= {span.trace for span in spans}
