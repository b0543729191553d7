"""Every call over a genuine broker is one trace, from the agent's own span to the service's and back: exported by three
processes with the SDK's own exporter, and read off the protobuf."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.telemetry.observers import SCHEMA_URL
from tests.helpers.catalogs import queues_of, unique_topic
from tests.helpers.otlp_collector import Collector, Received, collecting, exporting
from tests.helpers.traced_service import CHUNKS, TRIPPED, traced_process
from tests.unit.telemetry.test_names import ATTRIBUTES, DEPRECATED, ERROR_TYPES, EVENTS

pytestmark = pytest.mark.pulsar

CALLS = {"plain": 180, "trips": 60, "dawdles": 40, "talks": 20}
"""How many of each tool."""
IN_FLIGHT = 32
ALWAYS: Mapping[str, Any] = {"breaker": None, "outlier-detection": None}
"""An instance that does badly on purpose is to go on doing so."""
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "plain": ALWAYS,
    "trips": {
        **ALWAYS,
        "retry": {"retryable-errors": [TRIPPED], "initial-backoff": 0.01, "max-backoff": 0.02, "budget-ratio": 1.0},
    },
    "dawdles": {**ALWAYS, "hedging": 0.1},
    "talks": ALWAYS,
}
Exported = tuple[str, dict[str, str], dict[str, list[Received]]]
"""The topic; the tool of each trace; the spans of each trace."""

DOES = {"plain": "answer", "trips": "trip", "dawdles": "dawdle", "talks": "stream"}


def catalog(topic: str) -> dispatch.Catalog:
    requests, answers = queues_of(topic)
    return dispatch.Catalog.of(
        [{"id": "traced", "request-queue": requests, "response-queue": answers}],
        [
            {
                "type": "tool-service",
                "name": name,
                "description": "Is traced.",
                "service": "traced",
                "read-only": True,
                "policy": policy,
            }
            for name, policy in POLICIES.items()
        ],
    )


async def call(dispatcher: dispatch.Dispatcher, tool: str, number: int) -> None:
    arguments = {"do": DOES[tool], "n": number}
    if tool == "talks":
        chunks = [chunk async for chunk in dispatcher.stream(tool, arguments)]
        assert chunks == [f"{index} " for index in range(CHUNKS)]
    else:
        assert await dispatcher.call(tool, arguments) == str(number)


async def run(url: str, topic: str, collector: Collector) -> dict[str, str]:
    """Make the calls, each within a span of the agent's. Gives the tool of each trace."""
    provider = exporting(collector.endpoint, "agent")
    agent = provider.get_tracer("an agent")
    telemetry = dispatch.Telemetry(tracer_provider=provider, metrics=False)
    traces: dict[str, str] = {}
    work = iter([(tool, number) for tool, count in CALLS.items() for number in range(count)])

    async def caller() -> None:
        for tool, number in work:
            with agent.start_as_current_span("agent") as span:
                traces[f"{span.get_span_context().trace_id:032x}"] = tool
                await call(dispatcher, tool, number)

    async with dispatch.connect(url, catalog(topic), telemetry=telemetry, client_id="me") as dispatcher:
        async with asyncio.timeout(30):
            while len(dispatcher.instances("traced")) < 2:
                await call(dispatcher, "plain", 0)  # without a span of the agent's: a trace of its own
        async with asyncio.TaskGroup() as callers:
            for _ in range(IN_FLIGHT):
                callers.create_task(caller())
    await asyncio.to_thread(provider.shutdown)
    return traces


@pytest.fixture(scope="module")
def exported(pulsar_endpoint: Endpoint) -> Exported:
    """Everything, once for all tests here."""
    url, topic = pulsar_endpoint.service_url, unique_topic("traced")
    with collecting() as collector:
        with traced_process(url, topic, collector.endpoint, "a"), traced_process(url, topic, collector.endpoint, "b"):
            traces = asyncio.run(run(url, topic, collector))
        assert collector.problems == []
        spans: dict[str, list[Received]] = {}
        for span in collector.spans:
            spans.setdefault(span.trace, []).append(span)
    return topic, traces, spans


def paths(spans: list[Received]) -> list[tuple[str, ...]]:
    """The ways from the root to each leaf, by name; and everything must hang together."""
    known = {span.id: span for span in spans}
    assert len(known) == len(spans), "no span comes twice"
    children: dict[str, list[Received]] = {}
    for span in spans:
        assert not span.parent or span.parent in known, f"{span.name} has lost its parent"
        children.setdefault(span.parent, []).append(span)
    (root,) = children[""]

    def below(span: Received) -> Iterator[tuple[str, ...]]:
        if span.id not in children:
            yield (span.name,)
        for child in children.get(span.id, ()):
            for path in below(child):
                yield span.name, *path

    return list(below(root))


def test_every_call_is_one_connected_trace(exported: Exported) -> None:
    topic, traces, spans = exported
    requests, answers = queues_of(topic)
    assert len(traces) == sum(CALLS.values())
    send, process = f"send {requests}", f"process {requests}"
    reply = f"send {answers.rpartition('/')[0]}/dispatch-reply-{{dispatcher}}"
    whole, attempts = 0, Counter[str]()
    for trace, tool in traces.items():
        ways = paths(spans[trace])
        there_and_back = ("agent", f"execute_tool {tool}", send, process, reply)
        # What is cut short is an attempt that was given up when its rival was answered.
        assert all(way == there_and_back[: len(way)] for way in ways), ways
        whole += there_and_back in ways
        for span in spans[trace]:
            if span.name == send:
                attempts[span.attributes["dispatch.attempt.reason"]] += 1
                assert (span.name, span.process, span.kind) == (send, "agent", "PRODUCER")
    assert whole == attempts["first"] == len(traces), "100 %"
    assert attempts["retry"] > 10
    assert attempts["hedge"] > 1


def test_names_are_those_of_the_frozen_table(exported: Exported) -> None:
    topic, _, found = exported
    requests, answers = queues_of(topic)
    spans = [span for each in found.values() for span in each]
    reply = f"{answers.rpartition('/')[0]}/dispatch-reply-{{dispatcher}}"
    assert {(span.process.partition("-")[0], span.name, span.kind) for span in spans} == {
        ("agent", "agent", "INTERNAL"),
        *(("agent", f"execute_tool {tool}", "INTERNAL") for tool in CALLS),
        ("agent", f"send {requests}", "PRODUCER"),
        ("service", f"process {requests}", "CONSUMER"),
        ("service", f"send {reply}", "PRODUCER"),
    }
    ours = [span for span in spans if span.name != "agent"]
    assert {span.scope for span in ours} == {("dispatch", SCHEMA_URL)}
    keys = {key for span in ours for key in span.attributes}
    content = {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"}
    assert keys <= ATTRIBUTES - content
    assert not keys & DEPRECATED
    events = {name for span in ours for name, _ in span.events}
    assert {"dispatch.retry", "dispatch.hedge"} <= events <= EVENTS
    assert {key for span in ours for _, given in span.events for key in given} <= ATTRIBUTES
    errors = {span.attributes["error.type"] for span in ours if "error.type" in span.attributes}
    assert {"tool-error", "cancelled"} <= errors <= ERROR_TYPES
    assert all(span.error == ("error.type" in span.attributes) for span in ours)


def test_a_call_points_to_who_answered_it(exported: Exported) -> None:
    _, traces, spans = exported
    for trace, tool in traces.items():
        replies = [span for span in spans[trace] if span.process != "agent" and span.kind == "PRODUCER"]
        (whole,) = [span for span in spans[trace] if span.name == f"execute_tool {tool}"]
        (reply,) = (span for span in replies if (span.id,) == whole.links)
        assert reply.attributes["messaging.message.conversation_id"] == whole.attributes["gen_ai.tool.call.id"]
        if tool == "talks":
            assert whole.attributes["dispatch.chunks"] == CHUNKS
            assert reply.attributes["dispatch.chunks"] == CHUNKS + 1, "its end, too"
            assert whole.attributes["dispatch.first_chunk.seconds"] > 0
